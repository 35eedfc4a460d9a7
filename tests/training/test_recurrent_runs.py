"""Runs of recurrent policies: exact resume in every mode and task, use, wrong uses, and a task that needs memory."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import fledge
from fledge.cli import main
from fledge.compat import ppo as navrl_ppo
from fledge.core.errors import ConfigError
from fledge.envs.placement import EnvPlacement
from fledge.evaluation.episodes import check_fit
from fledge.tasks.navigation.networks.feature_policy import FeaturePolicy
from fledge.tasks.policy_loader import load_policy
from fledge.tasks.registry import find_task
from fledge.training.config import make_config
from fledge.training.ranks import Ranks
from fledge.training.run import EXACT, TrainingState

ROOT = Path(__file__).parents[2]
REMEMBER = str(ROOT / "examples" / "remember.py")
COMMON = ["env.num_envs=8", "ppo.rollout_steps=8", "ppo.minibatch=32", "policy.hidden=[16]", "total_frames=6400"]
COMMON += ["replay.warm_up=0"]
FOREST = [*COMMON, "env.num_maps=2", "env.static_obstacles=40", "env.moving_obstacles=8", "env.max_episode_steps=60"]
DUEL = [*COMMON, "env.spacetime=false", "env.scenario=chase", "env.max_episode_s=11", "policy.tokens=8"]
LEAGUE = ["env.opponent=placeholder", "league.ladder=[placeholder,random]", "league.window=4", "league.promote_at=0.05"]
LEAGUE += ["league.past_selves=2", "league.self_beaten_at=0.05", "env.max_episode_s=30", "ppo.rollout_steps=32"]
PLANNED = ["env.plan=true", "policy.kind=planned", "env.planner.horizon_s=1", "env.planner.headings=8"]
RUNS = {
    "features": ("navigation", FOREST),
    "pipelined": ("navigation", [*FOREST, "collect.mode=pipelined", "ppo.sequence_length=4"]),
    "halves": ("navigation", [*FOREST, "collect.mode=halves"]),
    "compressed": ("navigation", [*FOREST, "collect.compression_level=1"]),
    "planned": ("navigation", [*FOREST, *PLANNED]),
    "duel": ("aircombat", [*DUEL, "env.opponent="]),
    "league": ("aircombat", [*DUEL, *LEAGUE, "league.self_play=0.4"]),
    "league_halves": ("aircombat", [*DUEL, *LEAGUE, "collect.mode=halves"]),
    "gym": ("gym:CartPole-v1", COMMON),
    "own": (REMEMBER, COMMON),
}


def make_run(name: str, *words: str) -> TrainingState:
    task, given = RUNS[name]
    found = find_task(task)
    return TrainingState(make_config(found, "", [*given, "policy.gru_size=6", *words]), Ranks(), found)


def fly(run: TrainingState, iterations: int) -> list[torch.Tensor]:
    for _ in range(iterations):
        run.episode_metrics(rollout := run.collect())
        run.learn(rollout)
    return [value.clone() for value in run.policy.state_dict().values()]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if "league" in name else name for name in RUNS]
)
def test_a_resumed_run_continues_bit_for_bit(name: str) -> None:
    run = make_run(name)
    fly(run, 9 if "league" in name else 3)
    state = copy.deepcopy(run.state_dict())
    ours = fly(run, 3)
    run.close()
    again = make_run(name)
    assert again.load_state_dict(state) == EXACT
    assert all(torch.equal(a, b) for a, b in zip(ours, fly(again, 3), strict=True))
    again.close()
    collector = state["ranks"][0]["collector"]
    saved = collector.get("base", collector)["hidden"]  # of a pipelined collector
    assert all(part.shape[1] == 6 and part.any() for part in (saved if isinstance(saved, list) else [saved]))
    if "league" in name:
        envs = collector["env"] if isinstance(collector["env"], list) else [collector["env"]]
        assert len(state["curriculum"]["selves"]) > 0, "no past self joined"
        assert all(env["hidden"] and any(part.any() for part in env["hidden"].values()) for env in envs)


@pytest.mark.slow
def test_states_of_opponents_matter_for_the_continuation() -> None:
    """The test above can fail: without the opponents' states the fights go another way."""
    run = make_run("league")
    fly(run, 9)
    state = copy.deepcopy(run.state_dict())
    ours = fly(run, 2)
    run.close()
    again = make_run("league")
    for part in state["ranks"][0]["collector"]["env"]["hidden"].values():
        part.zero_()
    again.load_state_dict(state)
    assert not all(torch.equal(a, b) for a, b in zip(ours, fly(again, 2), strict=True))
    again.close()


# ---- use of the policy -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of navigation, as a user starts it."""
    folder = tmp_path_factory.mktemp("recurrent") / "run"
    words = [*FOREST, "policy.gru_size=6", "ranks=1", "tensorboard=false", "total_frames=192"]
    done = CliRunner().invoke(main, ["train", "navigation", "--preset", "", *words, "--folder", str(folder)])
    assert done.exit_code == 0, done.output
    return folder


def test_a_loaded_policy_remembers_each_env_until_its_mask(trained: Path) -> None:
    policy, other = fledge.load_policy(trained), fledge.load_policy(trained)
    env = policy.make_env(num_envs=4)
    seen = [env.reset()["obs"].clone()]
    seen += [env.step(torch.rand(4, 3))["obs"].clone() for _ in range(3)]
    for obs in seen[:-1]:
        policy.act(obs)
    warm = policy.act(seen[-1])
    other.act(seen[-1])  # its only decision
    for obs in seen[:-1]:
        other.act(obs)
        other.reset(torch.tensor([False, True, False, False]))
    other.reset()
    for obs in seen[:-1]:
        other.act(obs)
    other.reset(torch.tensor([False, True, False, False]))
    mixed = other.act({name: value.numpy() for name, value in seen[-1].items()})
    fresh = fledge.load_policy(trained).act(seen[-1])
    assert isinstance(mixed, np.ndarray)
    assert np.array_equal(mixed[[0, 2, 3]], warm[[0, 2, 3]].numpy())
    np.testing.assert_allclose(mixed[1], fresh[1].numpy(), atol=1e-6)
    assert not np.allclose(mixed[1], warm[1].numpy(), atol=1e-6)
    one = fledge.load_policy(trained)
    for obs in seen:
        last = one.act({name: value[2] for name, value in obs.items()})  # a single observation
    np.testing.assert_allclose(last.numpy(), warm[2].numpy(), atol=1e-6)


def test_a_recurrent_run_is_evaluated_with_and_without_a_shield(trained: Path) -> None:
    small = ["--episodes", "8", "env.num_envs=8", "--json"]
    done = CliRunner().invoke(main, ["eval", str(trained), f"{trained}+planner", *small])
    assert done.exit_code == 0, done.output
    agent = load_policy(f"{trained}+planner").agent
    env = fledge.make_env("navigation", num_envs=3, static_obstacles=20, moving_obstacles=0, num_maps=1, pose=True)
    check_fit(agent, env)
    out = env.reset()
    for _ in range(3):
        out = env.step(agent.act(out["obs"]))
    saved = agent.episode_state()
    assert saved["agent"]["hidden"].shape == (3, 6)
    agent.reset(torch.tensor([True, False, False]))
    left = agent.episode_state()["agent"]["hidden"]
    assert not left[0].any()
    assert torch.equal(left[1:], saved["agent"]["hidden"][1:])
    env.close()


def test_golden_vectors_have_the_states(trained: Path, tmp_path: Path) -> None:
    words = [str(trained), str(tmp_path / "policy.ts"), "--golden", str(tmp_path / "golden.npz")]
    done = CliRunner().invoke(main, ["export", *words])
    assert done.exit_code == 0, done.output
    assert "The policy is recurrent: pass zeros as state_in at the first decision" in done.output
    golden = np.load(tmp_path / "golden.npz")
    script = torch.jit.load(str(tmp_path / "policy.ts"))
    names = ["state", "lidar", "dynamic_obstacle", "state_in"]
    assert {*golden} == {*names, "action", "state_out"}
    assert not golden["state_in"][:8].any()  # the flights begin
    assert golden["state_in"][8:16].any(axis=1).all()
    action, state = script(*(torch.from_numpy(golden[name]) for name in names))
    np.testing.assert_allclose(action.detach().numpy(), golden["action"], atol=1e-5)
    np.testing.assert_allclose(state.detach().numpy(), golden["state_out"], atol=1e-5)


# ---- wrong uses ------------------------------------------------------------------------------------------------------

REFUSED = [
    (
        "features",
        ["algo=sac"],
        r"policy.gru_size=6 works only with algo=ppo, but algo=sac learns from single transitions",
    ),
    ("features", ["algo=td3"], r"policy.gru_size=6 works only with algo=ppo, but algo=td3"),
    ("gym", ["algo=dqn"], r"policy.gru_size=6 works only with algo=ppo, but algo=dqn"),
    ("duel", ["algo=dqn"], r"policy.gru_size=6 works only with algo=ppo, but algo=dqn"),
    (
        "features",
        ["policy.kind=navrl"],
        r"policy.gru_size=6 does not fit policy.kind=navrl, whose network has no memory",
    ),
    ("features", ["compile=true"], r"compile=true does not work with a recurrent policy"),
    ("features", ["ppo.sequence_length=3"], r"ppo.sequence_length is 3, but must divide the 8 decisions"),
    ("features", ["policy.gru_size=-1"], r"policy.gru_size is -1, but must be 0 to 4096"),
    ("features", [f"algo={ROOT}/examples/a2c.py:A2C"], r"does not train recurrent policies .*: set policy.gru_size=0"),
]


@pytest.mark.parametrize(("name", "words", "sentence"), REFUSED)
def test_a_wrong_use_gets_a_sentence(name: str, words: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_run(name, *words)


def test_weights_without_a_memory_cannot_begin_a_recurrent_run_nor_the_other_way_round(
    trained: Path, tmp_path: Path
) -> None:
    def start(*words: str) -> Any:
        given = [*FOREST, "ranks=1", "tensorboard=false", "total_frames=64", *words]
        return CliRunner().invoke(
            main, ["train", "navigation", "--preset", "", *given, "--folder", str(tmp_path / "run"), "--json"]
        )

    done = start("init_from=fledge-reflex", "policy.gru_size=6", "policy.hidden=[256,256]")
    assert done.exit_code == 2
    assert "policy.gru_size is 6, but the policy of init_from=fledge-reflex has no memory" in done.output
    done = start(f"init_from={trained}", "policy.gru_size=0")
    assert done.exit_code == 2
    assert "policy.gru_size is 0, but the policy of init_from=" in done.output
    done = start(f"init_from={trained}")
    assert done.exit_code == 0, done.output
    assert "policy.gru_size=6" in done.output + done.stderr
    assert load_policy(str(tmp_path / "run")).agent.hidden_size == 6
    resumed = CliRunner().invoke(main, ["train", "--resume", str(tmp_path / "run"), "policy.gru_size=8"])
    assert resumed.exit_code == 2
    assert "A run cannot continue with another policy.gru_size" in resumed.output + resumed.stderr


def test_navrls_loop_refuses_a_recurrent_network() -> None:
    with pytest.raises(ConfigError, match="PPO got a recurrent network, but NavRL's loop passes no hidden states"):
        navrl_ppo.PPO(network=FeaturePolicy(hidden=(8,), gru_size=4))


# ---- a task that needs memory ----------------------------------------------------------------------------------------


def share_right(gru_size: int, frames: int) -> float:
    """Train examples/remember.py and return the share of right answers in 512 new episodes, by the mean action."""
    task = find_task(REMEMBER)
    words = [f"policy.gru_size={gru_size}", f"total_frames={frames}", "seed=1"]
    run = TrainingState(make_config(task, None, words), Ranks(), task)
    while not run.finished:
        run.learn(run.collect())
    env = task.make_env(task.config(num_envs=512), EnvPlacement(seed=5, held_out=True))
    out, policy = env.reset(), run.policy.eval()
    policy.reset()
    while not (out := env.step(policy.act(out["obs"])))["terminated"].any():
        pass
    run.close()
    return float((out["outcome"] == 1).float().mean())


@pytest.mark.slow
def test_a_recurrent_policy_remembers_what_a_feed_forward_one_must_guess() -> None:
    assert share_right(32, 200_000) > 0.95
    assert share_right(0, 60_000) == pytest.approx(0.25, abs=0.07)
