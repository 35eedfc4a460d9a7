"""Actions that no env can take: every adapter answers with one sentence, and the env's state does not change."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fledge
from fledge.core.errors import InputError
from fledge.envs.adapters.gymnasium import GymnasiumEnv, GymnasiumVectorEnv
from fledge.envs.base import TensorEnv
from fledge.envs.flight_log import same

NAN = float("nan")
N = 4


def drones(count: int = N, **options: Any) -> TensorEnv:
    small: dict[str, Any] = {"num_maps": 1, "static_obstacles": 5, "moving_obstacles": 5, **options}
    return fledge.make_env("navigation", num_envs=count, device="cpu", num_threads=1, **small)


def duels(count: int = 2, opponent: str = "", **options: Any) -> TensorEnv:
    small: dict[str, Any] = {"opponent": opponent, "spacetime": False, **options}
    return fledge.make_env("aircombat", num_envs=count, device="cpu", num_threads=1, **small)


def commands(**changed: Any) -> dict[str, Any]:
    return {"rudder": torch.zeros(2), "throttle": torch.zeros(2), "fire": torch.zeros(2, dtype=torch.int64), **changed}


def refused(env: TensorEnv, step: Callable[[], object], sentence: str) -> None:
    before = copy.deepcopy(env.state_dict())
    with pytest.raises(InputError, match=sentence) as caught:
        step()
    assert "\n" not in str(caught.value)
    assert same(before, env.state_dict())


@pytest.fixture(scope="module")
def env() -> Iterator[TensorEnv]:
    with drones() as made:
        made.reset()
        yield made


WRONG = [
    (torch.full((N, 3), NAN), r"action of env 0 is \[nan, nan, nan\], but must be finite"),
    (torch.zeros(N, 3).index_fill(0, torch.tensor(2), float("inf")), "action of env 2 is .*, but must be finite"),
    (torch.zeros(N, 3).to(torch.float8_e4m3fn), "has dtype torch.float8_e4m3fn, but must have torch.float32"),
    (torch.zeros(N, 3).to_sparse(), "is torch.sparse_coo, but must be a dense tensor"),
    (torch.zeros(N, 3, device="meta"), "is on meta, but must be on the env's device, cpu"),
    (torch.zeros(N, 3, dtype=torch.complex64), "must have torch.float32"),
    (None, "is a NoneType, but must be a torch.Tensor"),
]


@pytest.mark.parametrize(("bad", "sentence"), WRONG, ids=[sentence[:24] for _, sentence in WRONG])
def test_a_tensor_that_is_no_action_is_refused(env: TensorEnv, bad: Any, sentence: str) -> None:
    refused(env, lambda: env.step(bad), sentence)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_times_masks_and_buffers_of_the_wrong_kind_are_refused(env: TensorEnv) -> None:
    for dt in (NAN, "1", [1], 0, -1.0):
        refused(
            env, lambda dt=dt: env.step(torch.zeros(N, 3), dt), r"^dt is .*: leave dt out, or set env\.decimation\.$"
        )  # type: ignore[misc]
    nested = torch.nested.nested_tensor([torch.zeros(3)] * N)
    refused(env, lambda: env.step(nested), "is nested, but must be a dense tensor")
    all_envs = torch.ones(N, dtype=torch.bool)
    for mask in (all_envs.to_sparse(), all_envs.to("meta"), "all"):
        refused(env, lambda mask=mask: env.reset(mask), "env_mask must be a bool tensor")  # type: ignore[misc]
    refused(env, lambda: env.step(torch.zeros(N, 3), out={}), "out is a dict, but must be a TensorDict")  # type: ignore[arg-type]


def test_whole_numbers_that_are_no_heading_are_refused_with_their_env() -> None:
    with drones(action_form="headings") as env:
        env.reset()
        vector = GymnasiumVectorEnv(env)
        refused(env, lambda: env.step(torch.tensor([0, 1, 16, 2])), "action of env 2 is 16, but must be 0 to 15")
        refused(
            env, lambda: env.step(torch.zeros(N, dtype=torch.uint64)), "must have torch.int64, with values from 0 to 15"
        )
        refused(env, lambda: vector.step(np.full(N, 2**63, np.uint64)), "must be 0 to 15")
        refused(env, lambda: vector.step([10**30] * N), "not arrays of numbers")
        vector.step(np.ones(N, np.uint64))


def test_dicts_with_other_keys_are_refused() -> None:
    with duels() as env:
        env.reset()
        refused(
            env, lambda: env.step({1: torch.zeros(2)}), "has the keys 1, but must have the keys rudder, throttle, fire"
        )  # type: ignore[dict-item]
        refused(env, lambda: env.step([1, 2]), "is a list, but must be a dict with the keys rudder")  # type: ignore[arg-type]
        refused(env, lambda: env.step(commands(rudder=torch.tensor([0.0, NAN]))), "rudder of env 1 is nan")
        vector = GymnasiumVectorEnv(env)
        refused(env, lambda: vector.step(None), "actions are a NoneType, but must be a dict")


ODD = {
    "ragged": [[0.0, 1.0], [0.0]],
    "text": "up",
    "None": None,
    "objects": np.full((N, 3), None),
    "dates": np.zeros((N, 3), "datetime64[s]"),
    "complex": np.ones((N, 3), complex),
    "NaN": np.full((N, 3), NAN),
    "too many": np.zeros((N + 1, 3), np.float32),
}


@pytest.mark.parametrize("name", ODD)
def test_arrays_that_are_no_actions_are_refused_by_every_adapter(env: TensorEnv, name: str) -> None:
    sentence = "action of env 0|actions are not arrays of numbers|action has shape"
    refused(env, lambda: GymnasiumVectorEnv(env).step(ODD[name]), sentence)
    if pytest.importorskip("stable_baselines3"):
        from fledge.envs.adapters.stable_baselines3 import StableBaselinesVecEnv

        refused(env, lambda: StableBaselinesVecEnv(env).step(ODD[name]), sentence)  # type: ignore[arg-type]


def test_arrays_in_any_byte_order_direction_or_with_a_gradient_fly(env: TensorEnv) -> None:
    state, adapter = env.state_dict(), GymnasiumVectorEnv(env)
    plain = np.linspace(0, 1, 3 * N, dtype=np.float32).reshape(N, 3)
    results = []
    for given in (plain, plain.astype(">f4"), plain[:, ::-1].copy()[:, ::-1], torch.from_numpy(plain).requires_grad_()):
        env.load_state_dict(state)
        results.append(adapter.step(given)[0]["state"])
    env.load_state_dict(state)
    assert all(np.array_equal(result, results[0]) for result in results)


def test_the_single_env_and_the_parallel_env_refuse_ragged_actions() -> None:
    with drones(1) as one:
        single = GymnasiumEnv(one)
        single.reset()
        refused(one, lambda: single.step([1, [2]]), "not arrays of numbers")
    pytest.importorskip("pettingzoo")
    from fledge.envs.adapters.pettingzoo import PettingZooEnv

    with duels() as two:
        parallel, good = PettingZooEnv(two), {"rudder": 0.0, "throttle": 0.0, "fire": 0}
        parallel.reset()
        for bad in ({**good, "rudder": [1.0, 2.0]}, {**good, "rudder": "left"}, {**good, "fire": NAN}, None):
            actions = {"p1": good, "p2": bad}
            refused(two, lambda actions=actions: parallel.step(actions), "action|dict")  # type: ignore[misc]


def test_torchrl_refuses_what_the_env_refuses(env: TensorEnv) -> None:
    pytest.importorskip("torchrl")
    from fledge.envs.adapters.torchrl import TorchRLEnv

    adapter = TorchRLEnv(env)
    first = adapter.reset()
    refused(
        env, lambda: adapter.step(first.clone().set("action", torch.full((N, 3), NAN))), "env 0 is .*must be finite"
    )
    refused(env, lambda: adapter.step(first.clone()), "is a NoneType, but must be a torch.Tensor")


OPPONENT = """
import torch
from fledge import BaseAgent

class Odd(BaseAgent):
    observes = ("state", "missiles", "mask")
    task = "aircombat"
    answer = None

    def act(self, obs, deterministic=True):
        zeros = torch.zeros(len(obs["state"]))
        return self.answer(zeros, {"rudder": zeros, "throttle": zeros, "fire": zeros.long()})
"""


def test_an_opponents_bad_action_is_refused_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(OPPONENT)
    answers: dict[str, Callable[[torch.Tensor, dict[str, Any]], Any]] = {
        "rudder of env 0 is nan, but must be finite": lambda zeros, good: {**good, "rudder": zeros * NAN},
        r"rudder has shape \(1,\)": lambda zeros, good: {**good, "rudder": zeros[:1]},
        "has the keys rudder, but must have": lambda zeros, good: {"rudder": zeros},
        "is a NoneType": lambda zeros, good: None,
    }
    with duels(opponent=f"{tmp_path}/odd.py:Odd") as env:
        env.reset()
        for sentence, answer in answers.items():
            env.opponents[0].answer = answer  # type: ignore[attr-defined]
            refused(env, lambda: env.step(commands()), f"^Opponent Odd: the action.*{sentence}")
