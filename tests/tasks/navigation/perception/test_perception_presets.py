"""perception=NAME in training, evaluation, Python and Gymnasium, and what tables say about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from click.testing import CliRunner

import fledge
import fledge.gym  # registers the envs
from fledge.cli import main
from fledge.core.errors import ConfigError
from fledge.core.overrides import leaves
from fledge.core.settings import flat_settings
from fledge.evaluation.env_config import eval_env
from fledge.tasks.navigation.benchmarks import BENCHMARKS, FAULTS
from fledge.tasks.navigation.config import NavigationConfig, RandomizeConfig
from fledge.tasks.navigation.perception.config import PerceptionConfig
from fledge.tasks.navigation.task import NavigationTask
from fledge.tasks.policy_loader import load_policy
from fledge.training.config import make_config

TASK = NavigationTask()
NAMES = ("perfect", "poor", "typical")
DEFAULTS = flat_settings(NavigationConfig())
PAGE = Path(__file__).parents[4] / "docs" / "worlds" / "perception.md"


def preset(name: str) -> dict[str, Any]:
    return dict(leaves(TASK.presets.load("perception", name)))


def of(cfg: NavigationConfig) -> dict[str, Any]:
    return {key: flat_settings(cfg)[key] for key in preset("poor")}


def test_every_preset_names_every_fault_so_that_one_replaces_another() -> None:
    assert TASK.presets.names("perception") == sorted(NAMES)
    airframe = {"mass", "mass_factor", "thrust", "damping", "drag", "velocity_gain", "attitude_gain", "rotor_lag"}
    keys = {f"perception.{key}" for key in flat_settings(PerceptionConfig())}
    keys |= {f"randomize.{key}" for key in flat_settings(RandomizeConfig()) if key not in airframe}
    for name in NAMES:
        assert set(preset(name)) == keys, name
    assert preset("perfect") == {key: DEFAULTS[key] for key in keys}
    for key, typical in preset("typical").items():  # poor is worse in everything, or equal
        values = [DEFAULTS[key], typical, preset("poor")[key]]
        assert values in (sorted(values), sorted(values, reverse=True)) or key == "perception.lose_s", key


@pytest.mark.parametrize("name", NAMES)
def test_a_name_means_the_same_in_training_evaluation_python_and_gymnasium(name: str) -> None:
    expected = preset(name)
    assert of(make_config("navigation", None, [f"perception={name}"]).env) == expected
    assert of(make_config("navigation", None, ["perception=poor", f"perception={name}"]).env) == expected
    assert of(eval_env(load_policy("fledge-nav"), "crossing", [f"perception={name}"]).cfg) == expected
    small: dict[str, Any] = {"num_maps": 1, "static_obstacles": 0, "moving_obstacles": 2}
    env = fledge.make_env("navigation", 2, perception=name, **small)
    assert of(env.cfg) == expected
    env.close()
    single = gymnasium.make("fledge/Navigation-v0", perception=name, **small)
    assert of(single.unwrapped.env.unwrapped.cfg) == expected
    single.close()


def test_single_settings_change_a_preset_and_an_unknown_name_gets_one_sentence() -> None:
    cfg = make_config("navigation", None, ["perception=poor", "env.perception.ghosts=0"]).env
    assert of(cfg) == preset("poor") | {"perception.ghosts": 0.0}
    env = fledge.make_env("navigation", 2, perception={"ghosts": 0.25}, num_maps=1, moving_obstacles=2)
    assert env.cfg.perception == PerceptionConfig(ghosts=0.25)
    env.close()
    for words in (["eval", "straight", "perception=bad"], ["train", "navigation", "perception=bad"]):
        done = CliRunner().invoke(main, words)
        assert "perception=bad is not a preset: choose one of perfect, poor, typical" in done.output + str(
            done.exception
        )
    with pytest.raises(ConfigError, match="no perception preset 'bad'"):
        gymnasium.make("fledge/Navigation-v0", perception="bad")


def test_tables_and_rows_say_which_perception_a_figure_was_measured_in() -> None:
    words = ["eval", "straight", "--env", "crossing", "--episodes", "2", "--vary", "perception=perfect,typical"]
    done = CliRunner().invoke(main, [*words, "--json"])
    assert done.exit_code == 0, done.output
    perfect, typical = json.loads(done.stdout)
    assert (perfect["perception"], typical["perception"]) == ("perfect", "typical")
    assert (perfect["world"], typical["world"]) == ("crossing 350/80", "crossing 350/80, typical perception")
    assert "faults" not in perfect
    assert typical["faults"] == {k: v for k, v in preset("typical").items() if v != DEFAULTS[k]}
    own = NavigationConfig(perception=PerceptionConfig(ghosts=0.5))
    assert TASK.metrics.env_label(own) == "edges 350/80, ghosts=0.5"
    assert TASK.metrics.env_facts(own)["perception"] == "own"
    assert TASK.evaluation(own).perception == own.perception  # judged in the env that it was trained in


def test_the_contract_for_robots_is_that_of_perfect_perception() -> None:
    faulty, plain = (make_config("navigation", "planned", [f"perception={name}"]).env for name in ("poor", "perfect"))
    ours, theirs = TASK.contract(faulty), TASK.contract(plain)
    for name in ("state", "lidar", "dynamic_obstacle"):
        assert ours["observation"][name] == theirs["observation"][name]


def test_the_benchmark_has_every_fault_and_others_have_none() -> None:
    policy = load_policy("fledge-nav")
    bench, changed = BENCHMARKS["faults"], set()
    for column, words in FAULTS.items():
        cfg = eval_env(policy, bench.preset, [*bench.rules, *words]).cfg
        faults = TASK.metrics.env_facts(cfg).get("faults", {})
        assert bool(faults) == (column != "perfect"), column
        changed |= set(faults)
    unused = {"damping", "state_noise", "gust_s", "mass_factor"}  # no faults of their own, or a payload
    known = {f"randomize.{key}" for key in flat_settings(RandomizeConfig()) if key not in unused}
    known |= {f"perception.{key}" for key in flat_settings(PerceptionConfig()) if key != "ghost_s"}
    assert changed >= known
    others = [
        BENCHMARKS[name] for name in BENCHMARKS if name not in ("faults", "transfer")
    ]  # these have columns with faults
    poor = policy.env.settings | preset("poor") | {"randomize.mass": 0.5}
    policy.env.settings.update(poor)
    for each in others:
        for words in each.worlds.values():
            assert "faults" not in TASK.metrics.env_facts(eval_env(policy, each.preset, [*each.rules, *words]).cfg)


def test_the_page_lists_every_setting_with_its_default_and_the_values_of_the_presets() -> None:
    text = PAGE.read_text(encoding="utf-8")
    table = {line.split("|")[1].strip(" `"): line for line in text.splitlines() if line.startswith("| `env.")}
    for key in preset("poor"):
        cells = [cell.strip() for cell in table[f"env.{key}"].split("|")]
        values = [DEFAULTS[key], preset("typical")[key], preset("poor")[key]]
        assert cells[3:6] == [str(v).lower() if isinstance(v, bool) else f"{v:g}" for v in values], key
    for key in set(DEFAULTS) - set(preset("poor")):
        assert f"`env.{key}`" in text or not key.startswith("randomize."), key
    for column in FAULTS:
        assert column in text, column
