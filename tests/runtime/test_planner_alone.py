"""A folder without a network: the planner flies, with all of its settings on."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fledge
import fledge_runtime
from benchmarks.runtime import EQUAL_M_S, fly
from fledge.core.errors import ConfigError
from fledge.evaluation.env_config import eval_env
from fledge.tasks.policy_loader import load_policy
from fledge_runtime import ContractError, Inputs
from fledge_runtime.cli import main
from fledge_runtime.replay import replay
from tests.runtime.folders import PLANNER, SMALL, change, copy_of
from tests.runtime.test_verify import run_bare


def test_it_has_no_network_and_needs_none(planner: Path) -> None:
    code = "sys.modules['onnxruntime'] = None; from fledge_runtime.cli import main; sys.exit(main(['verify', '.', '--json']))"
    done = run_bare(planner, code)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert {*facts["largest_difference"]} == {"observe", "plan", "command"}
    assert facts["sequences"] >= 64
    assert not (planner / "policy.onnx").exists()
    assert "onnxruntime" not in (planner / "README.md").read_text()
    with pytest.raises(ContractError, match=r"has no network, its planner flies: use deployment.pilot\(\)"):
        fledge_runtime.load(planner).policy()


def test_its_commands_tell_the_response_and_its_readme_what_to_give(planner: Path) -> None:
    pilot = fledge_runtime.load(planner).pilot()
    pilot.reset((0.0, 0.0, 1.5), (20.0, 0.0, 1.5))
    inputs = Inputs(0.0, (0.0, 0.0, 1.5), (0.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0), points_w=np.zeros((0, 3)))
    assert pilot.step(inputs).info["response"]["gain"] == 2.2
    assert "`flown_w`" in (planner / "README.md").read_text()
    with pytest.raises(fledge_runtime.InputError, match="more than 100 km from the goal"):
        pilot.step(dataclasses.replace(inputs, time_s=0.1, position_w=(2e5, 0.0, 1.5)))


def test_decisions_further_apart_than_the_planner_predicts_are_not_deployed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a decision every 3\.2 s, but the planner predicts 3 s"):
        fledge.deploy("planner", tmp_path / "out", decimation=200, progress=False)


def test_an_unknown_setting_is_answered_with_those_of_the_planner(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"planner\(bogus=...\) has no such setting. Settings of planner\(...\): headings, slow"
    ):
        fledge.deploy("planner(bogus=1)", tmp_path / "out", progress=False)


def test_its_pilot_commands_what_the_scripted_policy_does_in_the_env(planner: Path) -> None:
    policy, settings = load_policy(PLANNER), {**SMALL, "starts": "crossing", "inside_share": 0.5, "decimation": 4}
    words = [f"env.{key}={str(value).lower()}" for key, value in settings.items()]
    cfg = policy.task.policy.robot.recording_config(eval_env(policy, overrides=words).cfg)
    cfg = dataclasses.replace(cfg, max_episode_steps=480)
    deployment = fledge_runtime.load(planner)
    flown = fly(policy, cfg, 6, 5, [deployment.pilot() for _ in range(6)])
    assert len(flown["gaps"]) > 200
    assert (flown["gaps"] <= EQUAL_M_S).mean() > 0.99
    assert np.median(flown["gaps"]) < 1e-6
    assert (flown["outcomes"] == fly(policy, cfg, 6, 5, [])["outcomes"]).all()


@pytest.mark.parametrize(
    ("setting", "value"), [("planner.identify", False), ("planner.hasten", False), ("planner.guard", False)]
)
def test_a_folder_with_another_setting_is_refused(setting: str, value: Any, planner: Path, tmp_path: Path) -> None:
    folder = copy_of(planner, tmp_path)
    change(folder, lambda contract: contract["planner"]["settings"].update({setting: value}))
    assert main(["verify", str(folder)]) == 1


class WithoutFlown:
    """A pilot that is not told what the guard made of its commands."""

    def __init__(self, pilot: Any) -> None:
        self.pilot, self.reset = pilot, pilot.reset

    def step(self, inputs: Inputs) -> Any:
        return self.pilot.step(dataclasses.replace(inputs, flown_w=None))


def test_a_log_has_what_was_sent_so_that_identification_replays(
    planner: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "flight.flog"
    words = ["--flights", "1", "--distance", "12", "--density", "12", "--speed", "1", "--log", str(log)]
    assert main(["simulate", str(planner), *words]) == 0
    assert "goal_reached" in capsys.readouterr().out
    assert main(["replay", str(log), str(planner)]) == 0
    assert "all equal bit for bit (this folder flew)" in capsys.readouterr().out
    deployment = fledge_runtime.load(planner)
    told = replay(log, deployment.pilot())
    assert told["equal"] == told["decisions"] > 50
    assert replay(log, WithoutFlown(deployment.pilot()))["largest_m_s"] > 0.05
