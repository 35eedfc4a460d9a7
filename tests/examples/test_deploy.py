"""An exported policy on a robot: what examples/deploy.py makes of a point cloud and odometry is what the policy sees and does
in the env, and it flies as well."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from fledge.agents.export import export_agent
from fledge.cli import main
from fledge.core.code import find_object
from fledge.envs.placement import EnvPlacement
from fledge.evaluation.env_config import eval_env
from fledge.evaluation.export import export_policy
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.networks.feature_policy import FeaturePolicy
from fledge.tasks.navigation.planner.reader import PlanReader
from fledge.tasks.policy_loader import LoadedPolicy, load_policy

pytest.importorskip("onnxruntime")
SCRIPT = Path(__file__).parents[2] / "examples" / "deploy.py"
DRONES = 6
WORLD = ["env.num_maps=8", "env.moving_obstacles=40", "env.starts=mixed", "env.inside_share=1.0"]


@pytest.fixture(scope="module")
def deploy() -> Any:
    spec = importlib.util.spec_from_file_location("deploy", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def policy() -> LoadedPolicy:
    return load_policy("fledge-reflex")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("deploy")
    export_policy("fledge-reflex", folder / "policy.onnx", overrides=WORLD, golden=folder / "golden.npz")
    return folder / "policy.onnx", folder / "golden.npz"


def make_env(policy: LoadedPolicy) -> NavigationEnv:
    cfg = dataclasses.replace(eval_env(policy, overrides=WORLD).cfg, num_envs=DRONES)
    env = policy.task.make_env(cfg, EnvPlacement(seed=5, held_out=True))
    assert isinstance(env, NavigationEnv)
    return env


def yaw_of(quat: torch.Tensor) -> float:
    x, y, z, w = quat.tolist()
    return math.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))


def pilot_for(deploy: Any, env: NavigationEnv, i: int, path: Path) -> Any:
    return deploy.Pilot(str(path), *(env.state[name][i].numpy().copy() for name in ("start", "goal")))


class Robot:
    """Return what a robot knows of drone i: odometry, and hits of beams and detections in the world frame."""

    def __init__(self, env: NavigationEnv, i: int) -> None:
        self.pos, self.vel = (env.state[name][i].numpy().astype(float) for name in ("pos", "vel"))
        self.yaw, self.limit = yaw_of(env.state["quat"][i]), env.cfg.speed_limit
        self.env, self.i = env, i

    def points(self, lidar: torch.Tensor) -> np.ndarray:
        """Hits of the env's own beams, [N, 3] m, world."""
        cfg, value = self.env.cfg, lidar[0].numpy().astype(float)  # [azimuths, elevations]
        around = self.yaw + np.arange(cfg.lidar_azimuths)[:, None] * math.tau / cfg.lidar_azimuths
        up = np.radians(cfg.lidar_elevations_deg)[None, :] + 0.0 * around
        rays = np.stack([np.cos(up) * np.cos(around), np.cos(up) * np.sin(around), np.sin(up)], axis=-1)
        return (self.pos + (cfg.lidar_range_m - value)[..., None] * rays)[value > 0.0]

    def movers(self) -> np.ndarray:
        """All moving obstacles of the map, [K, 8]."""
        crowd, slot = self.env.bank.maps.crowd, int(self.env.state["slot"][self.i])
        count = int(crowd.count.numpy()[slot])
        j = np.arange(count)
        sizes = np.stack([0.25 * (j % 4 + 1), np.where(j % 8 >= 4, 5.0, 1.0)], axis=-1)
        return np.concatenate([crowd.trail.numpy()[-1, slot, :count], crowd.vel.numpy()[slot, :count], sizes], axis=-1)

    def commanded(self, action: torch.Tensor) -> np.ndarray:
        """The velocity that an action means in this flight, m/s, world."""
        start, goal = (self.env.state[name][self.i].numpy() for name in ("start", "goal"))
        along = math.atan2(goal[1] - start[1], goal[0] - start[0])
        x, y, z = (2.0 * action.numpy() - 1.0) * self.limit
        return np.array([x * math.cos(along) - y * math.sin(along), x * math.sin(along) + y * math.cos(along), z])

    def action_for(self, command: np.ndarray) -> torch.Tensor:
        """The action that commands a velocity."""
        axes = np.stack([self.commanded(0.5 + torch.eye(3)[k] / (2.0 * self.limit)) for k in range(3)])
        return torch.as_tensor((axes @ command / self.limit + 1.0) / 2.0, dtype=torch.float32)


def test_the_example_sees_and_commands_what_the_policy_does_in_the_env(
    deploy: Any, policy: LoadedPolicy, exported: tuple[Path, Path]
) -> None:
    env = make_env(policy)
    out = env.reset()
    pilots = [pilot_for(deploy, env, i, exported[0]) for i in range(DRONES)]
    flying, hits, met = set(range(DRONES)), 0, 0
    for step in range(200):
        action = policy.agent.act(out["obs"])
        assert isinstance(action, torch.Tensor)
        for i in flying if step % 10 == 0 else ():
            robot, pilot = Robot(env, i), pilots[i]
            lidar, cloud, movers = out["obs"]["lidar"][i], robot.points(out["obs"]["lidar"][i]), robot.movers()
            assert np.abs(pilot.scan(cloud - robot.pos, robot.yaw) - lidar[0].numpy()).max() < 1e-4  # m
            rows = out["obs"]["dynamic_obstacle"][i, 0].numpy()
            assert np.abs(pilot.nearest(robot.pos, movers) - rows).max() < 1e-5
            command = pilot.command(cloud, robot.pos, robot.vel, robot.yaw, movers)
            assert np.abs(command - robot.commanded(action[i])).max() < 1e-3  # m/s
            hits, met = hits + len(cloud), met + int((rows[:, 3] > 0).sum())
        out = env.step(action)
        flying -= set(out["outcome"].nonzero().flatten().tolist())
    env.close()
    assert hits > 1000, "the flights met too little to compare"
    assert met > 20


def test_the_example_hands_a_recurrent_policy_its_memory(deploy: Any, policy: LoadedPolicy, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = FeaturePolicy(hidden=(16,), gru_size=8).eval()
    with torch.no_grad():
        network.head.layer.weight *= 100.0  # so that the memory shows in the command
    export_agent(network, tmp_path / "policy.onnx", policy.task.contract(make_env(policy).cfg))
    rng = np.random.default_rng(0)
    flights = [deploy.Pilot(str(tmp_path / "policy.onnx"), np.zeros(3), np.array([20.0, 0.0, 0.0])) for _ in range(2)]
    places = [(rng.normal(size=(50, 3)), np.array([1.0, 0.2 * t, 1.5]), rng.normal(size=3)) for t in range(5)]
    for cloud, pos, vel in places:
        command = flights[0].command(pos + cloud, pos, vel, 0.0)
        state = {
            "state": [*flights[0].turn(deploy.unit(flights[0].goal - pos)), *(flights[0].goal - pos)[[0, 2]], *vel]
        }
        state["state"][3] = np.hypot(*(flights[0].goal - pos)[:2])
        obs = {**state, "lidar": flights[0].scan(cloud, 0.0)[None], "dynamic_obstacle": np.zeros((1, 5, 10))}
        action = network.act(
            {name: torch.tensor(np.array(value), dtype=torch.float32)[None] for name, value in obs.items()}
        )
        limit = flights[0].contract["speed_limit_m_s"]
        np.testing.assert_allclose(command, (2.0 * action[0].numpy() - 1.0) * limit, atol=1e-4)
    cloud, pos, vel = places[-1]
    assert np.abs(flights[1].command(pos + cloud, pos, vel, 0.0) - command).max() > 1e-3  # begins without a memory


def test_the_example_flies_as_well_as_the_policy_in_the_env(
    deploy: Any, policy: LoadedPolicy, exported: tuple[Path, Path]
) -> None:
    def fly(by_example: bool) -> list[int]:
        env = make_env(policy)
        out, ends = env.reset(), [0] * DRONES
        pilots = [pilot_for(deploy, env, i, exported[0]) for i in range(DRONES)]
        while not all(ends):
            action = policy.agent.act(out["obs"])
            assert isinstance(action, torch.Tensor)
            for i in range(DRONES) if by_example else ():
                if not ends[i]:
                    robot = Robot(env, i)
                    cloud = robot.points(out["obs"]["lidar"][i])
                    action[i] = robot.action_for(
                        pilots[i].command(cloud, robot.pos, robot.vel, robot.yaw, robot.movers())
                    )
            out = env.step(action)
            ends = [end or int(now) for end, now in zip(ends, out["outcome"].tolist(), strict=True)]
        env.close()
        return ends

    there, here = fly(by_example=True), fly(by_example=False)
    assert there == here
    assert there.count(1) >= 4  # fledge-reflex reaches .92 of its goals among 40 movers


def test_the_file_says_what_its_world_is(policy: LoadedPolicy, exported: tuple[Path, Path]) -> None:
    import onnxruntime

    told = json.loads(onnxruntime.InferenceSession(str(exported[0])).get_modelmeta().custom_metadata_map["contract"])
    contract = policy.task.contract(eval_env(policy).cfg)
    assert told.pop("inputs") == list(policy.agent.observes)
    assert told.pop("outputs") == ["action"]
    assert told.pop("fledge")
    assert contract["observation"].pop("direction")  # which this policy does not read
    assert told == json.loads(json.dumps(contract))
    assert told["decision_s"] == pytest.approx(0.048)


def test_golden_vectors_are_what_the_file_puts_out(policy: LoadedPolicy, exported: tuple[Path, Path]) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(exported[0]))
    with np.load(exported[1], allow_pickle=False) as file:
        golden = dict(file)
    assert set(golden) == {"state", "lidar", "dynamic_obstacle", "action"}
    inputs = {name: golden[name] for name in policy.agent.observes}
    assert len({len(array) for array in golden.values()}) == 1
    assert np.abs(session.run(["action"], inputs)[0] - golden["action"]).max() <= 1e-5
    assert (golden["lidar"] > 0).mean() > 0.001, "golden flights should meet something"
    assert np.abs(np.linalg.norm(golden["state"][:, :3], axis=-1) - 1.0).max() < 1e-5


def test_the_example_runs_without_fledge_and_torch(exported: tuple[Path, Path], tmp_path: Path) -> None:
    text = SCRIPT.read_text()
    assert set(re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE)) == {
        "__future__", "json", "sys", "typing", "numpy", "onnxruntime"
    }  # fmt: skip
    done = subprocess.run([sys.executable, SCRIPT, exported[0]], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"reached the goal after \d+\.\d s", done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return an exported policy that reads a plan, and what the command printed."""
    path = tmp_path_factory.mktemp("planned") / "nav.onnx"
    done = CliRunner().invoke(main, ["export", "fledge-nav", str(path)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return path, done.output


def test_export_says_which_input_is_computed_and_by_what(planned: tuple[Path, str]) -> None:
    import onnxruntime

    text = onnxruntime.InferenceSession(str(planned[0])).get_modelmeta().custom_metadata_map["contract"]
    plan = json.loads(text)["observation"]["plan"]
    assert plan["computed_from"] == ["state", "lidar", "dynamic_obstacle", "pose"]
    assert find_object(plan["computed_by"]) is PlanReader
    assert f"input plan is not a sensor reading: compute it from {', '.join(plan['computed_from'])}" in planned[1]


def test_the_example_flies_a_policy_that_reads_a_plan(
    deploy: Any, planned: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["deploy.py", str(planned[0])])
    deploy.main()
    assert re.search(r"reached the goal after \d+\.\d s", capsys.readouterr().out.splitlines()[-1])


def test_the_example_commands_what_a_planning_policy_does_in_the_env(deploy: Any, planned: tuple[Path, str]) -> None:
    nav = load_policy("fledge-nav")
    settings = ["env.num_maps=2", "env.pose=true"]
    cfg = dataclasses.replace(eval_env(nav, overrides=settings).cfg, num_envs=1)
    env = nav.task.make_env(cfg, EnvPlacement(seed=5, held_out=True))
    assert isinstance(env, NavigationEnv)
    out = env.reset()
    pilot = pilot_for(deploy, env, 0, planned[0])
    for _ in range(40):
        robot, action = Robot(env, 0), nav.agent.act(out["obs"])
        assert isinstance(action, torch.Tensor)
        cloud = robot.points(out["obs"]["lidar"][0])
        command = pilot.command(cloud, robot.pos, robot.vel, robot.yaw, robot.movers())
        assert np.abs(command - robot.commanded(action[0])).max() < 0.01  # m/s
        out = env.step(action)
    env.close()


def test_without_fledge_the_example_names_the_input_that_is_missing(
    deploy: Any, planned: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, PlanReader.__module__, None)
    with pytest.raises(SystemExit, match="also reads the input `plan`, which Fledge's planner computes"):
        deploy.Pilot(str(planned[0]), np.zeros(3), np.array([9.0, 0.0, 0.0]))


@pytest.mark.parametrize(("words", "code"), [([], 2), (["--help"], 0)])
def test_the_example_says_how_it_is_called(words: list[str], code: int) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=100)
    assert done.returncode == code, done.stderr
    assert done.stdout.startswith("usage: python examples/deploy.py policy.onnx")
