"""RemoteCollector: how rollouts are assembled, which ones are refused, and which are too old."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from fledge.agents.actor_critic import ActorCritic, MLPActorCritic
from fledge.collect.remote import NoExperienceError, RemoteCollector
from fledge.collect.sync import SyncDataCollector
from fledge.core.errors import FledgeError, InputError
from fledge.storage.stream import pack_rollout, unpack_state
from tests.reference.toy_worlds import GunneryConfig, GunneryEnv

T, N = 4, 6


class Server:
    """Keeps what is published; no network."""

    def __init__(self) -> None:
        self.published: list[tuple[dict[str, Any], bytes]] = []
        self.bytes_received, self.refused, self.clients, self.address = 0, 0, [{"number": 1}], "here"

    def publish(self, note: dict[str, Any], body: bytes) -> None:
        self.published.append((note, body))

    def close(self, end: bool = False) -> None:
        pass


def make_policy(gru_size: int = 0) -> ActorCritic:
    torch.manual_seed(0)
    env = GunneryEnv(GunneryConfig(1))
    return MLPActorCritic(env.observation_spec, env.action_spec, hidden=(8,), gru_size=gru_size)


def make_local(num_envs: int, policy: ActorCritic, seed: int = 0) -> SyncDataCollector:
    return SyncDataCollector(GunneryEnv(GunneryConfig(num_envs), seed=seed), policy, num_envs * T)


def make_collector(local_envs: int = 0, max_lag: int = 1, gru_size: int = 0, **options: Any) -> Any:
    local = make_local(max(local_envs, 1), make_policy(gru_size))
    collector: Any = RemoteCollector(local, N, local_envs, max_lag, **options)
    collector.server = Server()
    return collector


def rollout_of(n: int, seed: int = 1, gru_size: int = 0) -> TensorDict:
    """Return an actor's rollout, as `training.actor` makes it."""
    collector = make_local(n, make_policy(gru_size), seed)
    data, after = collector.rollout(), collector._env_slices[0]
    last = {"input": collector.policy.encode(after.spare), "hidden": after.hidden}
    rows = {}
    for name in make_collector(gru_size=gru_size).entries:
        extra = last[name] if name in last else torch.zeros_like(data[name][0])
        rows[name] = torch.cat([data[name], extra.unsqueeze(0)])
    return TensorDict(rows, [T + 1, n])


def send(collector: Any, data: TensorDict, version: int = 1, **note: Any) -> None:
    collector.accept({"number": 1}, {"version": version, "log": {}, **note}, pack_rollout(data))


def test_a_rollout_is_filled_in_the_order_in_which_actors_sent_and_cut_pieces_begin_the_next() -> None:
    collector = make_collector(max_lag=5)
    collector.version = 1
    sent = [rollout_of(n, seed) for seed, n in enumerate((4, 4, 4))]
    for data in sent:
        send(collector, data)
    together = torch.cat(sent, dim=1)
    for first in (0, N):
        data = collector.rollout()
        for name in collector.entries:
            want = together[name][:-1, first : first + N]
            if name == "next_value":
                assert torch.equal(data[name][:-1], want[:-1])
            else:
                assert torch.equal(data[name], want), name
        assert (data["version"] == 1).all()
    assert collector.has_room()


def test_local_envs_come_first_and_have_the_present_version() -> None:
    collector = make_collector(local_envs=2, max_lag=5)
    alone = make_local(2, make_policy())
    collector.version = 3
    send(collector, rollout_of(4), 2)
    torch.manual_seed(5)
    data = collector.rollout().clone()
    torch.manual_seed(5)
    want = alone.rollout()
    for name in collector.entries:
        assert torch.equal(data[name][:, :2], want[name]), name
    assert data["version"][0].tolist() == [4, 4, 2, 2, 2, 2]
    assert collector.metrics["actors/lag"] == 2.0


@pytest.mark.parametrize("gru_size", [0, 5])
def test_the_value_after_the_last_row_is_the_present_policys(gru_size: int) -> None:
    """The actor's own estimate is older; within the rollout the learner computes values itself."""
    collector = make_collector(gru_size=gru_size)
    collector.version = 1
    sent = rollout_of(N, gru_size=gru_size)
    sent["truncated"][T - 1, 0] = True
    send(collector, sent)
    policy = collector.local.policy
    with torch.no_grad():
        policy.critic.weight.add_(0.3)
        hidden = sent["hidden"][-1] if gru_size else None
        want = policy.value(sent["input"][-1], hidden)
    got = collector.rollout()["next_value"]
    torch.testing.assert_close(got[-1, 1:], want[1:])
    assert not torch.allclose(got[-1, 1:], sent["next_value"][-2, 1:])
    assert got[-1, 0] == sent["next_value"][-2, 0], "a truncated episode's is of its final observation"
    assert torch.equal(got[:-1], sent["next_value"][:-2])


def test_rollouts_that_are_too_old_are_discarded_and_counted() -> None:
    collector = make_collector(max_lag=1)
    collector.version = 4
    send(collector, rollout_of(3, 1), 3)  # will be 2 updates old
    send(collector, rollout_of(N, 2), 4)
    data = collector.rollout()
    assert (data["version"] == 4).all()
    assert collector.metrics["actors/discarded"] == 3 * T
    assert collector.metrics["actors/lag"] == 1.0


def test_actors_have_room_until_a_whole_rollout_waits() -> None:
    collector = make_collector(local_envs=2)
    collector.version = 1
    assert collector.has_room()
    send(collector, rollout_of(3))
    assert collector.has_room()
    send(collector, rollout_of(1))
    assert not collector.has_room()


def test_each_rollout_publishes_the_present_weights_and_the_progress() -> None:
    collector = make_collector(max_lag=9)
    collector.version, collector.progress = 1, 0.25
    for _ in range(2):
        send(collector, rollout_of(N))
    collector.rollout()
    with torch.no_grad():
        collector.local.policy.critic.bias.add_(1.0)
    collector.rollout()
    notes = [note for note, _ in collector.server.published]
    assert notes == [{"version": 2, "progress": 0.25}, {"version": 3, "progress": 0.25}]
    before, after = (unpack_state(body)["critic.bias"] for _, body in collector.server.published)
    assert torch.equal(before + 1.0, after)


def test_logs_of_actors_and_local_envs_are_added() -> None:
    collector = make_collector(max_lag=9)
    collector.version = 1
    send(collector, rollout_of(4), log={"height": [6.0, 2]})
    send(collector, rollout_of(4), log={"height": [1.0, 1], "speed": [3.0, 3]})
    collector.rollout()
    assert collector.env_log == {"height": (7.0, 3), "speed": (3.0, 3)}


def test_waiting_ends_when_the_run_is_told_to_stop_or_after_the_wait() -> None:
    collector = make_collector()
    collector.stopped = lambda: True
    with pytest.raises(NoExperienceError, match="Stopped while waiting"):
        collector.rollout()
    collector = make_collector(wait_s=0.05)
    with pytest.raises(NoExperienceError, match="No actor has sent a rollout"):
        collector.rollout()


def test_numbers_of_actors_are_unique_also_after_a_resume() -> None:
    collector = make_collector()
    assert [collector.give_number(wanted, used) for wanted, used in ((None, set()), (None, {1}), (1, {2}))] == [1, 2, 1]
    assert collector.give_number(1, {1, 2}) == 3, "another actor has number 1"
    assert collector.give_number(7, set()) == 7
    assert collector.give_number(None, {7}) == 8
    assert [collector.give_number(wanted, set()) for wanted in ("1", -1, 2**40, True)] == [9, 10, 11, 12]
    state = collector.state_dict()
    collector.give_number(None, set())
    resumed = make_collector()
    resumed.load_state_dict(state)
    assert resumed.give_number(None, set()) > 13
    assert resumed.version == collector.version


# ---- rollouts that are refused ---------------------------------------------------------------------------------------


def put(name: str, value: float) -> Callable[[TensorDict], TensorDict]:
    def change(data: TensorDict) -> TensorDict:
        data[name][1, 0] = value
        return data

    return change


def wrong(**entries: Any) -> Callable[[TensorDict], TensorDict]:
    return lambda data: TensorDict({**dict(data.items()), **entries}, data.batch_size)


WRONG: dict[str, Callable[[TensorDict], Any]] = {
    **{f"{name} {value}": put(name, value)
       for name in ("input", "raw_action", "reward", "value", "next_value", "log_prob", "episode_return")
       for value in (math.nan, math.inf, -1e30)},
    "log_prob 1e30": put("log_prob", 1e30),
    "an unknown outcome": put("outcome", 77),
    "a discrete action that does not exist": lambda data: wrong(raw_action=data["raw_action"] * 0 + 5)(data),
    "a negative discrete action": lambda data: wrong(raw_action=data["raw_action"] * 0 - 1)(data),
    "too few rows": lambda data: data[:-1],
    "too many columns": lambda data: torch.cat([data] * 4, dim=1),
    "no column": lambda data: data[:, :0],
    "three axes": lambda data: data.unsqueeze(-1),
    "one axis": lambda data: data[0],
    "a missing entry": lambda data: data.exclude("reward"),
    "another entry": lambda data: data.set("more", torch.zeros(data.batch_size)),
    "a wrong width": lambda data: wrong(input=data["input"][..., :-1])(data),
    "a wrong type": lambda data: wrong(reward=data["reward"].double())(data),
    "text for a tensor": lambda data: data.exclude("reward").set_non_tensor("reward", "text"),
    "a nested entry": lambda data: wrong(reward=TensorDict({"x": data["reward"]}, data.batch_size))(data),
}  # fmt: skip


@pytest.fixture(scope="module")
def checker() -> Any:
    collector = make_collector()
    collector.version = 1
    return collector


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_rollout_is_refused_and_leaves_nothing(checker: Any, what: str) -> None:
    send(checker, rollout_of(2))
    checker._queue.clear()
    with pytest.raises(InputError):
        send(checker, WRONG[what](rollout_of(2)))
    assert not checker._queue


NOTES: list[dict[str, Any]] = [{"version": v} for v in (0, 2, -1, 1.0, True, None, "1", [1])]
NOTES += [
    {"version": 1, "log": log} for log in (None, [], 3, {"a": 1}, {"a": [1]}, {"a": [1, "x"]}, {"a": [math.inf, 1]})
]
NOTES += [{"version": 1, "log": log} for log in ({"a": [math.nan, 1]}, {"a\n": [1, 1]}, {"a" * 101: [1, 1]})]
NOTES += [{"version": 1, "log": {str(k): [1, 1] for k in range(300)}}]


@pytest.mark.parametrize("note", NOTES, ids=range(len(NOTES)))
def test_a_wrong_note_is_refused(checker: Any, note: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        checker.accept({}, {"log": {}, **note}, pack_rollout(rollout_of(2)))
    assert not checker._queue


def test_garbage_is_refused(checker: Any) -> None:
    for body in (b"", b"garbage" * 100, pack_rollout(rollout_of(2))[:-20]):
        with pytest.raises(FledgeError):
            checker.accept({}, {"version": 1, "log": {}}, body)
