"""sensor=NAME in training, evaluation, Python and Gymnasium; policies and the planner under every sensor."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from click.testing import CliRunner

import fledge
import fledge.gym
from fledge.cli import main
from fledge.core.errors import ConfigError
from fledge.core.overrides import leaves
from fledge.core.settings import flat_settings
from fledge.evaluation.env_config import eval_env
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.planner.pilot import PlannerPilot
from fledge.tasks.navigation.planner.reader import PlanReader
from fledge.tasks.navigation.task import NavigationTask
from fledge.tasks.policy_loader import load_policy
from fledge.training.config import make_config

TASK = NavigationTask()
NAMES = ("d435", "mid360", "navrl", "ouster16", "vl53l5cx")
SMALL = {"num_maps": 1, "static_obstacles": 20, "moving_obstacles": 8}
WORDS = [f"env.{key}={value}" for key, value in SMALL.items()]


@pytest.mark.parametrize("name", NAMES)
def test_a_sensor_is_chosen_by_name_wherever_settings_are_given(name: str) -> None:
    assert TASK.presets.names("sensor") == sorted(NAMES)
    preset = dict(leaves(TASK.presets.load("sensor", name)))
    assert preset.keys() == dict(leaves(TASK.presets.load("sensor", "navrl"))).keys()  # each undoes all of another

    def of(cfg: NavigationConfig) -> dict[str, object]:
        return {key: flat_settings(cfg)[key] for key in preset}

    assert of(make_config("navigation", None, ["sensor=mid360", f"sensor={name}"]).env) == preset
    assert of(eval_env(load_policy("planner", task=TASK.name), "crossing", [f"sensor={name}"]).cfg) == preset
    env = fledge.make_env("navigation", 2, sensor=name, **SMALL)
    assert of(env.unwrapped.cfg) == preset
    env.close()
    single = gymnasium.make("fledge/Navigation-v0", sensor=name, **SMALL)
    single.close()


def test_the_default_is_navrls_sensor_and_labels_name_every_other_one() -> None:
    default, plain = NavigationConfig(), flat_settings(NavigationConfig())
    assert all(plain[key] == value for key, value in leaves(TASK.presets.load("sensor", "navrl")))
    assert "sensor" not in TASK.metrics.env_facts(default)

    def label(*words: str) -> str:
        return TASK.metrics.env_label(eval_env(load_policy("planner"), "crossing", words).cfg)

    assert label() == "crossing 350/80"
    assert label("sensor=mid360") == "crossing 350/80, mid360"
    assert label("sensor=d435", "perception=typical") == "crossing 350/80, d435, typical perception"
    assert label("perception=typical", "sensor=d435") == "crossing 350/80, d435, typical perception"
    assert label("perception=typical") == "crossing 350/80, typical perception"
    assert label("sensor=d435", "env.randomize.lidar_dropout=0.1") == "crossing 350/80, d435, lidar_dropout=0.1"
    facts = TASK.metrics.env_facts(eval_env(load_policy("planner"), "crossing", ["sensor=mid360"]).cfg)
    assert (facts["sensor"], facts["perception"]) == ("mid360", "perfect")
    assert "faults" not in facts


def test_a_wrong_name_and_a_policy_of_another_sensor_get_a_sentence() -> None:
    for words in (["eval", "straight", "sensor=d455"], ["train", "navigation", "sensor=d455"]):
        done = CliRunner().invoke(main, words)
        assert "sensor=d455 is not a preset: choose one of d435, mid360, navrl" in done.output + str(done.exception)
    with pytest.raises(ConfigError, match=r"cannot fly with env\.lidar_range_m"):
        eval_env(load_policy("fledge-nav"), "crossing", ["sensor=d435"])
    cfg = make_config("navigation", None, ["sensor=d435", "policy.kind=navrl"])
    described = TASK.policy.describe(TASK, "ppo", cfg.env, cfg.policy)
    with pytest.raises(ConfigError, match="NavRL's network reads 36 x 4 beams"):
        TASK.policy.build(described)


@pytest.mark.parametrize("name", ["d435", "mid360", "ouster16", "vl53l5cx"])
def test_a_policy_trains_on_a_named_sensor_and_reads_the_attitude(name: str, tmp_path: Path) -> None:
    small = {"env": {**SMALL, "num_envs": 4}, "ppo": {"rollout_steps": 4, "minibatch": 16}, "policy": {"hidden": [8]}}
    quiet = {"tensorboard": False, "ranks": 1, "progress": False, "total_frames": 16}
    fledge.train("navigation", folder=tmp_path / "run", sensor=name, **small, **quiet)
    policy = load_policy(tmp_path / "run")
    assert "attitude" in policy.agent.observes
    assert eval_env(policy, "crossing").cfg.lidar_rows == TASK.presets.load("sensor", name)["lidar_rows"]


@pytest.mark.parametrize("name", ["d435", "mid360", "ouster16", "vl53l5cx"])
def test_the_planner_maps_true_hits_of_a_tilted_sensor(name: str) -> None:
    quiet = ["env.perception.lidar_period_s=0", "env.randomize.lidar_noise_m=0", "env.randomize.lidar_noise_per_m2=0"]
    words = [f"sensor={name}", *quiet, "env.num_envs=8", "env.num_maps=1", "env.moving_obstacles=0", "env.decimation=5"]
    cfg = make_config("navigation", None, [*words, "env.starts=mixed", "env.inside_share=1", "env.pose=true"]).env
    env, pilot = NavigationEnv(cfg, seed=1), PlannerPilot(env_cfg=cfg)
    obs = env.reset()["obs"]
    pilot.reset()
    for _ in range(6):
        obs = env.step(pilot.act(obs))["obs"]
    assert (obs["attitude"].abs() > 0.05).any()
    pilot.act(obs)
    buffers = pilot._kernel_buffers.tensors
    boxes = env.bank.boxes[0].numpy() * 0.1 - 20.0
    cells = buffers["cells"].view(8, -1, 2)[..., 0].numpy().astype(np.uint64) & np.uint64(0xFFFF)
    size = int(cells.shape[1] ** 0.5)
    gaps: list[float] = []
    for i in range(8):
        x_axis = (env.state["goal"][i] - env.state["start"][i])[:2].double().numpy()
        x_axis /= np.linalg.norm(x_axis)
        y_axis, centre = np.array([-x_axis[1], x_axis[0]]), buffers["centre"][i].numpy()
        hit = np.argwhere(cells[i].reshape(size, size))
        cell = centre - size // 2 + (hit - (centre - size // 2)) % size
        point = (cell + 0.5) * 0.1
        world = env.state["goal"][i][:2].double().numpy() + point[:, :1] * x_axis + point[:, 1:] * y_axis
        away = np.maximum(np.maximum(boxes[:, :2] - world[:, None], world[:, None] - boxes[:, 2:]), 0.0)
        gaps.extend(np.linalg.norm(away, axis=-1).min(-1).tolist())
    assert len(gaps) > 20
    slack, share = (0.45, 0.9) if name == "mid360" else (0.16, 0.97)  # a jittered ray is known to half a bin
    assert (np.array(gaps) < slack).mean() > share
    env.close()


def test_the_planner_observes_the_same_plan_inside_and_outside_of_the_env() -> None:
    cfg = make_config(
        "navigation", None, ["sensor=d435", *WORDS, "env.num_envs=4", "env.plan=true", "env.pose=true"]
    ).env
    env = NavigationEnv(cfg, seed=1)
    reader = PlanReader(cfg, 4)
    obs, action = env.reset()["obs"], None
    for _ in range(3):
        assert torch.equal(reader.read(obs, action), obs["plan"])
        action = torch.full((4, 3), 0.7)
        obs = env.step(action)["obs"].clone()
    env.close()
