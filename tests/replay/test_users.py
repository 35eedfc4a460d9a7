"""The buffer as people use it: threads, Ctrl-C, saving while adding, odd priorities, odd data. Each was once an attack."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fledge import load_checkpoint, save_checkpoint
from fledge.core.errors import ConfigError, FledgeError, FormatError, InputError
from fledge.replay import DictReplayBuffer
from fledge.replay.stores.base import Store
from tests.replay.plain import KEYS, PlainBuffer, check_batch, check_index, everything, make_episode

LAYOUTS = ["frame", "chunk", "episode"]


def line(count: int = 10, keys: tuple[str, ...] = ("x",), **settings: Any) -> DictReplayBuffer:
    """A buffer of 100 with one episode whose x is 0, 1, 2, ..."""
    buffer = DictReplayBuffer(100, list(keys), **settings)
    buffer.add({"x": np.arange(float(count))})
    return buffer


def names_itself(batch: dict[str, torch.Tensor]) -> None:
    """Every frame is of the transition that it is with: `make_episode` writes the id into the first cell."""
    assert torch.equal(batch["lidar"][..., 0].double(), batch["id"].double())
    assert torch.equal(batch["next_lidar"][..., 0].double(), batch["id"].double() + 1)


def at_once(*calls: Callable[[], Any], rounds: int = 15) -> None:
    """Run calls on a thread each, over and over; what one raises fails the test."""
    failures: list[BaseException] = []

    def work(call: Callable[[], Any]) -> None:
        try:
            for _ in range(rounds):
                call()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


# ---- threads ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_threads_sample_while_others_add_and_save(layout: Any, tmp_path: Path) -> None:
    buffer = DictReplayBuffer(300, KEYS, layout=layout, prioritized=True, decode_threads=2)
    number = iter(range(1, 10_000))

    def add() -> None:
        buffer.add(make_episode(next(number), 30))

    def sample() -> None:
        batch = buffer.sample(64)
        names_itself(batch)
        buffer.update_priorities(batch["index"], torch.rand(64))
        windows = buffer.sample_sequences(8, 5, ends="pad")
        assert torch.equal(windows["lidar"][..., 0].long() * windows["mask"], windows["id"])

    def save() -> None:
        state = buffer.state_dict()
        add()  # between taking the state and writing it
        path = save_checkpoint({"replay": state}, tmp_path / str(next(number)))
        other = DictReplayBuffer(300, KEYS, prioritized=True)
        other.load_state_dict(load_checkpoint(path)["replay"])
        names_itself(everything(other))

    add()
    at_once(add, add, sample, sample, save, buffer.stats, lambda: len(buffer.buffer["lidar"][-1]))
    names_itself(everything(buffer))


def test_closing_waits_for_who_samples_and_later_calls_say_so() -> None:
    buffer = DictReplayBuffer(300, KEYS, layout="episode", decode_threads=2)
    buffer.add(make_episode(1, 200))
    errors: list[str] = []

    def sample() -> None:
        try:
            while True:
                buffer.sample(64)
        except FledgeError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=sample) for _ in range(3)]
    for thread in threads:
        thread.start()
    buffer.close()
    for thread in threads:
        thread.join()
    assert errors == ["The replay buffer is closed: make a new one."] * 3


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["append", "evict", "encode"])
@pytest.mark.parametrize("which", [0, 1])
def test_an_interrupt_while_adding_leaves_index_and_data_in_agreement(
    call: str, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    plain = PlainBuffer(100)
    try:
        buffer = DictReplayBuffer(100, KEYS, layout="episode", prioritized=True)
        for number in range(3):
            buffer.add(make_episode(number + 1, 30))
            plain.add(make_episode(number + 1, 30))
        store = buffer.stores[which]
        kept: Callable[..., Any] = getattr(type(store), call)

        def interrupted(self: Store, *args: Any) -> Any:
            if self is store:
                signal.raise_signal(signal.SIGINT)
            return kept(self, *args)

        monkeypatch.setattr(type(store), call, interrupted)
        with pytest.raises(KeyboardInterrupt):
            buffer.add(make_episode(4, 30))
        monkeypatch.undo()
        plain.add(make_episode(4, 30))  # it came too late
        check_index(buffer, plain)
        check_batch(everything(buffer), plain)
        buffer.add(make_episode(5, 30))
        plain.add(make_episode(5, 30))
        check_batch(everything(buffer), plain)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


# ---- priorities ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("priority", [np.nan, np.inf, -1.0, 1e308, 1e300])
def test_a_priority_that_cannot_be_drawn_by_is_refused_and_changes_nothing(priority: float) -> None:
    buffer, same = line(prioritized=True, alpha=1.0), line(prioritized=True, alpha=1.0)
    values = np.ones(10)
    values[3] = priority
    with pytest.raises(InputError, match="priorities must be finite"):
        buffer.update_priorities(np.arange(10), values)
    one, two = buffer.sample(50), same.sample(50)
    assert torch.equal(one["index"], two["index"])
    assert torch.equal(one["weight"], two["weight"])


@pytest.mark.parametrize("value", [np.nan, np.inf, -1, 60, "0.5", None])
@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_exponents_are_numbers_that_can_be_computed_with(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{name} is .*, but must be a number from 0 to 10"):
        line(prioritized=True, **{name: value})


def test_steep_exponents_still_draw_everything_with_weights_that_are_numbers() -> None:
    buffer = line(3, prioritized=True, alpha=10, beta=10)
    buffer.update_priorities([0, 1, 2], [0.0, 1e-3, 1e28])
    batch = buffer.sample(64)
    assert torch.isfinite(batch["weight"]).all()
    assert batch["weight"].max() == 1
    buffer.update_priorities([0, 1, 2], [0.0, 0.0, 0.0])
    assert set(buffer.sample(300)["index"].tolist()) == {0, 1, 2}


@pytest.mark.parametrize(
    "change",
    [
        lambda saved: saved.update(largest=np.nan),
        lambda saved: saved.update(largest=np.inf),
        lambda saved: saved.update(priorities=np.zeros(10)),
        lambda saved: saved.update(priorities=np.full(10, 1e308)),
        lambda saved: saved.update(priorities=np.full(10, np.nan)),
    ],
)
def test_saved_priorities_that_cannot_be_drawn_by_are_a_format_error(change: Callable[[Any], None]) -> None:
    buffer = line(prioritized=True)
    state = buffer.state_dict()
    change(state["priorities"])
    with pytest.raises(FormatError, match="priorities"):
        buffer.load_state_dict(state)
    buffer.add({"x": np.zeros(3)})
    assert len(buffer.sample(20)["x"]) == 20


# ---- saved states of strangers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["index"].update(evicted_total=-5),
        lambda state: state["index"].update(evicted_total=2**63 - 3),
        lambda state: state["index"].update(values=np.full(4, 2**62)),
        lambda state: state["stores"][0]["blobs"].update(dropped=-1),
        lambda state: state["stores"][0]["blobs"].update(dropped=2**63 - 2),
        lambda state: state["specs"]["x"].update(shape=[2**40]),
        lambda state: state["specs"]["x"].update(shape=[2**24]),
        lambda state: state["specs"]["x"].update(shape=[-1]),
        lambda state: state["specs"]["x"].update(shape=[1] * 100),
        lambda state: state["specs"]["x"].update(shape=[0, 2**62]),
    ],
)
def test_a_saved_state_with_giant_numbers_is_a_format_error(change: Callable[[Any], None]) -> None:
    buffer = DictReplayBuffer(100)
    state = line().state_dict()
    change(state)
    with pytest.raises(FormatError, match="damaged"):
        buffer.load_state_dict(state)
    assert len(buffer) == 0


# ---- arguments and data ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"seed": -1}, {"seed": 1.5}, {"seed": "a"}, {"decode_threads": 1.5}, {"decode_threads": 0}, {"cache_bytes": -1},
        {"segment_frames": 1.5}, {"segment_frames": 0}, {"n_step": 1.5}, {"n_step": 0}, {"device": "nope"}, {"device": 1.5},
    ],
)  # fmt: skip
def test_a_setting_that_means_nothing_is_refused_when_the_buffer_is_made(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(settings))} is"):
        DictReplayBuffer(10, ["x"], **settings)


@pytest.mark.parametrize("count", [0, -1, 1.5, "a", None, True])
def test_counts_are_whole_numbers(count: Any) -> None:
    with pytest.raises(InputError, match="batch_size is"):
        line().sample(count)
    with pytest.raises(InputError, match="length is"):
        line().sample_sequences(2, count)


def test_a_seed_decides_and_none_does_not() -> None:
    assert line(seed=4).sample(50)["x"].tolist() == line(seed=4).sample(50)["x"].tolist()
    assert line(seed=4).sample(50)["x"].tolist() != line(seed=5).sample(50)["x"].tolist()
    assert line(seed=None).sample(50)["x"].tolist() != line(seed=None).sample(50)["x"].tolist()


ODD_EPISODES: dict[str, Callable[[], Any]] = {
    "no mapping": lambda: [np.zeros(3)],
    "nothing": lambda: None,
    "numbers as keys": lambda: {1: np.zeros(3)},
    "no frames": lambda: {"x": np.zeros(0)},
    "no keys": lambda: {},
    "another type": lambda: {"x": np.zeros(3, np.float32)},
    "another shape": lambda: {"x": np.zeros((3, 2))},
    "too long": lambda: {"x": np.zeros(101)},
    "sparse": lambda: {"x": torch.zeros(3, dtype=torch.float64).to_sparse()},
    "on meta": lambda: {"x": torch.zeros(3, dtype=torch.float64, device="meta")},
    "nested": lambda: {"x": torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)},
    "masked": lambda: {"x": np.ma.masked_array(np.zeros(3), [0, 1, 0])},
    "objects": lambda: {"x": np.array([1.0, None])},
    "dates": lambda: {"x": np.array(["2020-01-01"], "M8[s]")},
    "more keys": lambda: {"x": np.zeros(3), "y": np.zeros(3)},
}


@pytest.mark.parametrize("kind", ODD_EPISODES)
def test_an_odd_episode_is_refused_and_the_buffer_is_as_it_was(kind: str) -> None:
    buffer = line()
    with pytest.raises(InputError):
        buffer.add(ODD_EPISODES[kind]())
    assert everything(buffer)["x"].tolist() == list(range(10))
    assert buffer.sample(5)["index"].tolist() == line().sample(5)["index"].tolist()


def test_a_rollout_too_long_for_the_buffer_is_refused_whole() -> None:
    """The steps before the one that did not fit were taken, and came again when the rollout was."""
    buffer = DictReplayBuffer(3, ["x"])
    rollout = {"x": np.arange(10.0).reshape(5, 2), "done": np.zeros((5, 2), bool)}
    with pytest.raises(InputError, match="max_size of 3"):
        buffer.add_rollout(rollout)
    assert buffer.flush() == 0
    part = {key: value[:3, :1].astype(np.float32 if key == "x" else bool) for key, value in rollout.items()}
    buffer.add_rollout(part)  # another type and number of envs: nothing was learned either
    assert buffer.flush() == 1
    assert everything(buffer)["x"].tolist() == [0, 2, 4]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_frames_without_cells_are_kept_and_copied(layout: Any) -> None:
    buffer = DictReplayBuffer(10, layout=layout)
    buffer.add({"x": np.zeros((3, 0), np.float32), "y": np.zeros((3, 4, 0, 2)), "z": np.arange(3)})
    other = DictReplayBuffer(10, layout=layout)
    other.load_state_dict(buffer.state_dict())
    for one in (buffer, other):
        batch = one.get([2, 0])
        assert [tuple(batch[key].shape) for key in "xyz"] == [(2, 0), (2, 4, 0, 2), (2,)]
        assert batch["z"].tolist() == [2, 0]


def test_n_step_returns_count_no_reward_past_the_end_or_discounted_to_nothing() -> None:
    rewards = np.array([1, np.inf, 1, np.nan, 1], np.float32)
    for gamma, expected in ((0.0, rewards.tolist()), (0.5, [np.inf, np.inf, np.nan, np.nan, 1])):
        buffer = DictReplayBuffer(50, ["x", "next_x", "reward"], n_step=2, gamma=gamma)
        buffer.add({"x": np.arange(6.0), "reward": rewards})
        assert np.array_equal(buffer.get(np.arange(5))["reward"].numpy(), np.array(expected), equal_nan=True)
