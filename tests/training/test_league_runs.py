"""League runs end to end: killed at any moment they go on bit for bit, past selves, scores and ratings included."""

import copy
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fledge.core.errors import ConfigError, FledgeError
from fledge.storage import CheckpointHistory
from fledge.tasks.policy_loader import load_policy
from fledge.training.config import make_config
from fledge.training.ranks import Ranks
from fledge.training.run import EXACT, TrainingState
from tests.commands import fledge

WORDS = [
    "env.num_envs=32",
    "env.spacetime=false",
    "env.scenario=chase",
    "env.opponent=placeholder",
    "env.max_episode_s=50",
    "ppo.rollout_steps=16",
    "ppo.minibatch=128",
    "policy.hidden=[16]",
    "policy.tokens=8",
    "tensorboard=false",
    "league.ladder=[placeholder,random]",
    "league.window=20",
    "league.promote_at=0.05",
    "league.self_beaten_at=0.05",
    "league.past_selves=2",
    "league.self_play=0.3",
    "save_interval=5",
    f"total_frames={12 * 32 * 16}",
]


def state_of(folder: Path) -> dict[str, object]:
    state, _ = CheckpointHistory(folder / "checkpoints").load_latest()
    return state


def flat(state: object, path: str = "") -> dict[str, object]:
    if isinstance(state, dict):
        return {k: v for key, value in state.items() for k, v in flat(value, f"{path}/{key}").items()}
    if isinstance(state, list):
        return {k: v for key, value in enumerate(state) for k, v in flat(value, f"{path}/{key}").items()}
    return {path: state}


@pytest.mark.parametrize(
    ("ranks", "memory"), [(1, 0), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((2, 0), (1, 8), (2, 8)))]
)
def test_a_killed_league_goes_on_bit_for_bit(tmp_path: Path, ranks: int, memory: int) -> None:
    asked = ["aircombat", "--preset", "", *WORDS, f"ranks={ranks}", f"policy.gru_size={memory}", "--folder"]
    done = fledge("train", *asked, tmp_path / "straight", apart=ranks > 1)
    assert done.returncode == 0, done.stderr
    killed = tmp_path / "killed"
    command = [sys.executable, "-m", "fledge.cli", "train", *asked, str(killed)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        first = killed / "checkpoints" / "checkpoint_000000005.fledge"
        deadline = time.monotonic() + 200
        while not first.exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        os.killpg(process.pid, signal.SIGKILL)
    resumed = fledge("train", "--resume", killed, apart=ranks > 1)
    assert resumed.returncode == 0, resumed.stderr
    assert "bit for bit" in resumed.stderr
    ours, theirs = (flat(state_of(tmp_path / name)) for name in ("straight", "killed"))
    assert ours.keys() == theirs.keys()
    league = {name for name in ours if name.startswith("/curriculum/selves/")}
    assert league  # a past self had joined
    assert ours["/curriculum/rung"] == 1
    for name, value in ours.items():
        if name.startswith(("/seconds", "/log")):
            continue
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, theirs[name]), name  # type: ignore[arg-type]
        else:
            assert value == theirs[name], name
    count = len(state_of(killed)["curriculum"]["names"]) - 2  # type: ignore[index]
    assert {path.name for path in (killed / "selves").iterdir()} == {f"self_{n + 1}.fledge" for n in range(count)}
    for number in range(1, count + 1):
        past, same = (load_policy(f"{tmp_path / name}#{number}").agent.state_dict() for name in ("straight", "killed"))
        assert all(torch.equal(value, same[name]) for name, value in past.items())
    with pytest.raises(ConfigError, match="must end in the number of an earlier policy"):
        load_policy(f"{killed}#99")


def test_who_beats_a_rung_meets_the_next_and_a_past_self() -> None:
    run = TrainingState(make_config("aircombat", "", [*WORDS, "ranks=1"]), Ranks())
    try:
        for _ in range(10):
            rollout = run.collect()
            run.learn(rollout)
            metrics = run.episode_metrics(rollout)
        assert metrics["league/rung"] == 2
        assert metrics["league/opponents"] >= 3
    finally:
        run.close()


def test_a_league_saved_when_an_opponent_has_just_joined_goes_on_exactly() -> None:
    """The env gets the new opponent only before the next rollout, so the state has one opponent more than the env."""
    cfg = make_config("aircombat", "", [*WORDS, "ranks=1", "league.window=4"])
    run, other = TrainingState(cfg, Ranks()), TrainingState(cfg, Ranks())
    try:
        for _ in range(30):
            known = len(run.curriculum.league.agents)  # type: ignore[attr-defined]
            run.learn(rollout := run.collect())
            run.episode_metrics(rollout)
            if len(run.curriculum.league.agents) > known:  # type: ignore[attr-defined]
                break
        else:
            pytest.fail("no opponent joined")
        assert other.load_state_dict(copy.deepcopy(run.state_dict())) == EXACT
        states, random = [], torch.get_rng_state()
        for each in (run, other):
            torch.set_rng_state(random)
            each.learn(rollout := each.collect())
            each.episode_metrics(rollout)
            states.append(flat(each.state_dict()))
        for name, value in states[0].items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, states[1][name]), name  # type: ignore[arg-type]
    finally:
        run.close()
        other.close()


def test_of_many_past_selves_the_state_has_those_that_are_met_or_in_the_air() -> None:
    run = TrainingState(
        make_config(
            "aircombat", "", [*WORDS, "ranks=1", "league.self_play=0", "league.window=1", "league.past_selves=1"]
        ),
        Ranks(),
    )
    try:
        most = 0
        for _ in range(60):
            run.learn(rollout := run.collect())
            run.episode_metrics(rollout)
            kept = {int(number) for number in run.curriculum.state_dict()["selves"]}
            flying = run.envs[0].unwrapped.opponent.unique().tolist()  # type: ignore[attr-defined]
            assert kept >= {number for number in flying if number > 1}, "a resumed run could not go on"
            most = max(most, len(kept))
            if (joined := len(run.curriculum.take_new_selves())) and len(run.curriculum.state_dict()["names"]) > 14:
                break
        assert joined
        assert most < 8  # of twelve or more
    finally:
        run.close()


def test_a_league_in_a_world_with_one_side_is_refused() -> None:
    with pytest.raises(ConfigError, match="has one: leave it empty"):
        TrainingState(make_config("navigation", "", ["league.ladder=[straight]", "env.num_envs=4"]), Ranks())


def test_a_league_without_an_opponent_s_seat_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"set env\.opponent"):
        TrainingState(make_config("aircombat", "", [*WORDS, "env.opponent="]), Ranks())


@pytest.mark.slow
def test_a_rung_may_be_the_policy_of_another_run(tmp_path: Path) -> None:
    """An exploiter, say: trained against the learner alone, then met by it."""
    short = [word for word in WORDS if not word.startswith(("total", "league"))]
    asked = ["aircombat", "--preset", "", *short, f"total_frames={2 * 32 * 16}", "ranks=1", "--folder"]
    other = tmp_path / "other"
    done = fledge("train", *asked, other)
    assert done.returncode == 0, done.stderr
    run = TrainingState(
        make_config("aircombat", "", [*WORDS, f"league.ladder=[placeholder,{other}]", "ranks=1"]), Ranks()
    )
    try:
        theirs, _ = CheckpointHistory(other / "checkpoints").load_latest()
        met = run.curriculum.league.agents[1]  # type: ignore[attr-defined]
        assert all(torch.equal(value, theirs["model"][name]) for name, value in met.state_dict().items())
    finally:
        run.close()
    with pytest.raises(ConfigError, match=r"spacetime, which this env does not observe|acts with"):
        TrainingState(
            make_config("aircombat", "", [*WORDS, f"league.ladder=[{other}]", "env.action_form=discrete"]), Ranks()
        )
    with pytest.raises(ConfigError, match=r"other', which does not fit this env: .*missiles"):  # at once, not later
        TrainingState(
            make_config("aircombat", "", [*WORDS, f"league.ladder=[random,{other}]", "env.missile.carried=3"]), Ranks()
        )


@pytest.mark.parametrize("ladder", ["ace", "missing.fledge", "../fledge-duel"])
def test_an_unknown_opponent_in_the_ladder_is_refused(ladder: str) -> None:
    with pytest.raises(FledgeError, match=r"not a scripted policy, a run, a policy file|missing\.fledge"):
        TrainingState(make_config("aircombat", "", [*WORDS, f"league.ladder=[{ladder}]"]), Ranks())


def test_both_names_of_a_renamed_setting_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"league.mirror=0.1 and league.self_play=0.2 both set league.self_play"):
        make_config("aircombat", None, ["league.mirror=0.1", "league.self_play=0.2"])
    assert make_config("aircombat", None, ["league.mirror=0.1"]).league.self_play == 0.1
