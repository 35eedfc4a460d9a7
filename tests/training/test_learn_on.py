"""learn-on: what it accepts, what it refuses, and that nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fledge
from fledge.agents.actor_critic import MLPActorCritic
from fledge.core.errors import ConfigError, FledgeError, FormatError
from fledge.core.specs import TensorSpec
from fledge.learn.bonded import BondedPPO
from fledge.learn.ppo import PPOConfig
from fledge.storage import RolloutStorage
from fledge.storage.stream import pack_rollout
from fledge.tasks.registry import find_task
from fledge.training.learn_on.folder import LearnOnFolder, read_folder
from fledge.training.learn_on.gate import Change, verdict
from fledge.training.learn_on.sources import checked, open_source
from tests.reference.shifted_world import ShiftTask

QUICK: dict[str, Any] = {"decisions": 6000, "num_envs": 128, "steps": 8, "episodes": 128, "lr": 3e-3, "kl_target": 3.0}
WORLDS = ("env:shift=0.35", "env:shift=0.7")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that points well without a shift, and archived some of its rollouts."""
    folder = tmp_path_factory.mktemp("base") / "run"
    settings = {"total_frames": 40_000, "ranks": 1, "threads": 1, "tensorboard": False, "rollout_save_interval": 5}
    settings |= {"ppo.rollout_steps": 8, "ppo.minibatch": 512, "ppo.lr": 3e-3, "policy.hidden": [32], "seed": 1}
    fledge.train(ShiftTask, folder=folder, progress=False, **settings, **{"policy.normalize": False})
    return folder


@pytest.fixture(scope="module")
def learned(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `base` learned on in one new world, then in another."""
    folder = tmp_path_factory.mktemp("learned") / "on"
    for number, world in enumerate(WORLDS, 1):
        learn(base, folder, world, candidates=number)
    return folder


def learn(base: Path, folder: Path, source: str | None = WORLDS[0], **settings: Any) -> LearnOnFolder:
    fledge.learn_on(base, source, folder, task=ShiftTask, progress=False, **{**QUICK, **settings})
    return LearnOnFolder(folder)


def weights(folder: Path) -> torch.Tensor:
    return torch.cat([p.flatten() for p in fledge.load_policy(folder, ShiftTask).agent.parameters()])


def test_a_policy_learns_new_worlds_and_keeps_the_old_one(base: Path, learned: Path) -> None:
    first, second, third = LearnOnFolder(learned).rows
    assert first["new"] == 0.0
    assert [row["accepted"] for row in (first, second, third)] == [True, True, True]
    assert min(second["new"], third["new"]) > 0.9
    assert third["old"] >= first["old"] - 0.01
    assert not torch.equal(weights(learned), weights(base)), "the run itself must stay as it is"
    flown = fledge.evaluate(learned, episodes=128, task=ShiftTask, progress=False, shift=0.7)
    assert flown.rows[0]["success"] > 0.9


def test_a_candidate_that_forgets_is_refused_and_leaves_nothing_behind(base: Path, tmp_path: Path) -> None:
    folder = learn(base, tmp_path / "on", candidates=2, decisions=2000, lr=0.5, kl_target=100)
    assert [row["accepted"] for row in folder.rows] == [True, False, False]
    assert all(row["reason"].startswith("old worlds: may lose") for row in folder.rows[1:])
    assert [entry.step for entry in folder.history.entries()] == [0]
    assert torch.equal(weights(tmp_path / "on"), weights(base))


def test_a_killed_call_makes_the_same_candidate_again_bit_for_bit(base: Path, learned: Path, tmp_path: Path) -> None:
    folder = tmp_path / "on"
    learn(base, folder, candidates=1)
    child = os.fork()
    if not child:
        made, update = [0], BondedPPO.update

        def kill(*args: Any, **options: Any) -> Any:  # in the middle of candidate 2
            made[0] += 1
            if made[0] == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return update(*args, **options)

        BondedPPO.update = kill  # type: ignore[method-assign]
        learn(base, folder, WORLDS[1], candidates=2)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    again = learn(base, folder, WORLDS[1], candidates=2)
    assert [without_time(row) for row in again.rows] == [without_time(row) for row in LearnOnFolder(learned).rows]
    assert torch.equal(weights(folder), weights(learned))


def without_time(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "seconds"}


def test_a_checkpoint_whose_row_was_not_written_gets_it_again(learned: Path, tmp_path: Path) -> None:
    shutil.copytree(learned, tmp_path / "on")
    rows = LearnOnFolder(tmp_path / "on").rows
    state = json.loads((tmp_path / "on" / "learn_on.json").read_text())
    (tmp_path / "on" / "learn_on.json").write_text(json.dumps({**state, "rows": rows[:-1]}))
    assert LearnOnFolder(tmp_path / "on").rows == rows


def test_going_back_makes_an_earlier_policy_the_newest_and_keeps_all(base: Path, learned: Path, tmp_path: Path) -> None:
    shutil.copytree(learned, tmp_path / "on")
    folder = LearnOnFolder(tmp_path / "on")
    assert folder.go_back(None)["back_to"] == 1
    assert folder.go_back(None)["back_to"] == 0
    assert torch.equal(weights(tmp_path / "on"), weights(base))
    folder.go_back(2)
    assert torch.equal(weights(tmp_path / "on"), weights(learned))
    assert [row["candidate"] for row in read_folder(tmp_path / "on").rows] == [0, 1, 2, 3, 4, 5]
    with pytest.raises(ConfigError, match=r"has no earlier accepted policy 9: it can go back to 0, 1, 2, 3, 4"):
        folder.go_back(9)


def test_an_archive_of_rollouts_is_a_source_that_ends(base: Path, tmp_path: Path) -> None:
    folder = learn(base, tmp_path / "on", str(base), decisions=3000, candidates=50, kl_target=0.05, lr=3e-4)
    assert 1 <= len(folder.rows) - 1 < 50
    row = folder.rows[1]
    assert row["new"] is None, "an archive cannot be flown"
    assert row["new_change"] is not None
    assert 0 < row["position"] <= len(RolloutStorage(base / "rollouts").list())


def test_rollouts_that_do_not_fit_are_refused_with_what_is_wrong(base: Path) -> None:
    policy = fledge.load_policy(base, ShiftTask).agent
    good = RolloutStorage(base / "rollouts").load(5)
    assert set(checked(good.clone(), policy, "it").keys()) >= {"input", "raw_action", "log_prob"}

    def refused(match: str, change: Any) -> None:
        data = good.clone()
        change(data)
        with pytest.raises(FormatError, match=match):
            checked(data, policy, "it")

    refused("it lacks log_prob, reward", lambda data: data.exclude("log_prob", "reward", inplace=True))
    refused("reward of it holds NaN or infinity", lambda data: data["reward"].__setitem__((0, 0), float("nan")))
    refused("the shape", lambda data: data.set("raw_action", data["raw_action"].repeat(1, 1, 2)))
    refused("input of it has the shape", lambda data: data["obs"].set("seen", torch.zeros(*data.shape, 5)))


@pytest.mark.parametrize(
    ("source", "match"),
    [
        ("flight.flog", "no rewards, no ends of episodes and no probabilities of actions"),
        ("flight.frec", "no observations and no actions"),
        ("env:", r"write env:KEY=VALUE"),
        ("env:shift=5", r"env.shift is 5.0, but must be"),
        ("env:shfit=0.5", r"Did you mean env.shift"),
        ("listen:nowhere", "write listen:HOST:PORT"),
        ("nowhere", "'nowhere' is no source"),
    ],
)
def test_a_source_that_cannot_be_used_is_one_sentence_and_leaves_no_folder(
    base: Path, tmp_path: Path, source: str, match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        learn(base, tmp_path / "on", source)
    assert not (tmp_path / "on").exists()


def test_a_sender_needs_the_token_and_a_bad_rollout_changes_nothing(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fledge.storage.exchange import ExchangeClient, Kind, Refused

    policy = fledge.load_policy(base, ShiftTask).agent
    monkeypatch.delenv("FLEDGE_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="FLEDGE_TOKEN"):
        open_source("listen:127.0.0.1:0", policy, find_task(ShiftTask), None)
    monkeypatch.setenv("FLEDGE_TOKEN", "a secret of enough characters")
    source: Any = open_source("listen:127.0.0.1:0", policy, find_task(ShiftTask), None)
    good = RolloutStorage(base / "rollouts").load(5)
    try:
        with pytest.raises(FledgeError):
            ExchangeClient(source.server.address, b"another secret, as long")
        token = b"a secret of enough characters"
        with ExchangeClient(source.server.address, token) as client:
            client.request(Kind.JOIN, {})
            with pytest.raises(Refused, match="lacks reward"):
                client.request(Kind.EXPERIENCE, {}, pack_rollout(good.exclude("reward")))
        source.publish(3, policy.state_dict())
        with ExchangeClient(source.server.address, token) as client:
            client.request(Kind.JOIN, {})
            kind, note, _ = client.request(Kind.EXPERIENCE, {"version": 0}, pack_rollout(good))
        assert (kind, note["version"]) == (Kind.POLICY, 3)
        assert torch.equal(source.take()["reward"], good["reward"])
        assert source.position == 1
    finally:
        source.close()


def test_the_gate_accepts_a_policy_that_loses_more_than_the_tolerance_at_most_once_in_twenty() -> None:
    rng, gain, accepted = np.random.default_rng(0), Change(0.1, 0.05, 0.15), 0
    for _ in range(2000):  # pairs of which 6 % change, with a true loss of 0.01
        change = rng.choice([-1.0, 0.0, 1.0], p=[0.035, 0.94, 0.025], size=1024)
        accepted += not verdict(Change.of(change), gain, 0.01)
    assert accepted / 2000 < 0.065
    assert verdict(Change(0.0, -0.005, 0.005), Change(0.0, -1, 1), 0.01) == "new worlds: no gain"


def test_the_bond_holds_the_policy_near_the_one_before() -> None:
    def update(kl_target: float) -> float:
        torch.manual_seed(0)
        policy = MLPActorCritic({"x": TensorSpec((2,), torch.float32)}, TensorSpec((1,), torch.float32, -1.0, 1.0), [8])
        learner = BondedPPO(policy, PPOConfig(lr=0.05, minibatch=64, epochs=4), kl_target)
        learner.optimizer.param_groups[0]["lr"] = 0.05
        env = torch.randn(16, 16, 2)
        for _ in range(12):
            with torch.no_grad():
                params, value = policy(env.flatten(0, 1))
                raw = policy.head.sample(params)
            flat = (t.unflatten(0, (16, 16)) for t in (raw, policy.head.log_prob(params, raw).detach(), value))
            raw, log_prob, value = flat
            zeros = torch.zeros(16, 16, dtype=torch.bool)
            rollout = {"input": env, "raw_action": raw, "log_prob": log_prob, "value": value, "next_value": value}
            rollout |= {"reward": raw.squeeze(-1), "terminated": zeros, "truncated": zeros}
            from tensordict import TensorDict

            report = learner.update(TensorDict(rollout, [16, 16]))
        return report["divergence"]

    assert update(0.02) < 0.2 < update(50.0)


def test_two_calls_at_once_are_refused(base: Path, tmp_path: Path) -> None:
    from fledge.training.run_lock import RunLock

    with RunLock(tmp_path / "on"), pytest.raises(FledgeError, match="another"):
        learn(base, tmp_path / "on")


def test_a_damaged_folder_is_named(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base, tmp_path / "run")
    folder = tmp_path / "on"
    folder.mkdir()
    (folder / "learn_on.json").write_text("{")
    with pytest.raises(FledgeError, match="is damaged"):
        learn(base, folder)
    with pytest.raises(ConfigError, match="holds another run"):
        learn(base, tmp_path / "run")
    with pytest.raises(ConfigError, match="has not learned on yet"):
        read_folder(base)
