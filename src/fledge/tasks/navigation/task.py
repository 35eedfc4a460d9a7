"""The navigation task: what the rest of the house may ask about drones that cross a forest."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fledge.agents.base import BaseAgent
from fledge.agents.build import LearnedPolicy
from fledge.core.errors import ConfigError, FormatError
from fledge.core.overrides import from_plain
from fledge.core.settings import flat_settings
from fledge.envs.base import TensorEnv
from fledge.tasks.base import Task, Trajectory, World
from fledge.tasks.navigation.benchmarks import BENCHMARKS
from fledge.tasks.navigation.config import (
    EDGE_M,
    ActionForm,
    CurriculumConfig,
    NavigationConfig,
    NavigationPolicyConfig,
    PolicyKind,
    Starts,
)
from fledge.tasks.navigation.contract import bare, complete
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.metrics import FlightMetrics
from fledge.tasks.navigation.networks.feature_policy import FeatureActor, FeaturePolicy
from fledge.tasks.navigation.networks.grid_q import GridQ
from fledge.tasks.navigation.networks.navrl import NavRLPolicy, load_navrl_checkpoint
from fledge.tasks.navigation.networks.navrl_actor_critic import NavRLActorCritic
from fledge.tasks.navigation.networks.planned_policy import PlannedPolicy
from fledge.tasks.navigation.pilots import PILOTS, Planning, make_pilot
from fledge.tasks.navigation.shield import SHIELDS, Shielded
from fledge.tasks.navigation.view.frame_capture import flight_frames, flight_scenes
from fledge.tasks.navigation.view.objects import flight_objects
from fledge.tasks.navigation.view.stage import (
    flight_actors,
    flight_beams,
    flight_crowd,
    flight_instruments,
    flight_stage,
)
from fledge.tasks.view.objects import SceneObject
from fledge.tasks.view.stage import Beams, Crowd, Instrument, Stage

HERE = Path(__file__).parent
EVAL_BANK = 0x40000000  # banks from here on are for evaluation only
EVAL_DRONES = 1024
CLASSES = ("crossing", "opposite", "adjacent", "same", "inside")  # sides of start and goal, the hardest first
KINDS = ("features", "planned", "navrl", "squashed", "grid_q")


def side_of(point: Tensor) -> Tensor:
    """Which side of the map points [N, 3] lie on: 0 east, 1 north, 2 west, 3 south."""
    x, y = point[:, 0], point[:, 1]
    along_x = torch.where(x > 0, 0, 2)
    along_y = torch.where(y > 0, 1, 3)
    return torch.where(x.abs() > y.abs(), along_x, along_y)


class NavigationTask(Task):
    """Drones that cross a forest and a crowd on LiDAR.

    Policies are described as
        {"kind": "features" | "navrl" | "squashed", "hidden": [256, 128], "lidar": [36, 4], "range_m": 4.0}
        {"kind": "planned", ... as above ..., "correction": 0.5}
        {"kind": "grid_q", "hidden": [256], "grid_size": 64, "headings": 16}
    """

    name = "navigation"
    config = NavigationConfig
    policy_config = NavigationPolicyConfig
    curriculum_config = CurriculumConfig
    presets = HERE / "presets"
    policies = HERE / "policies"
    primary_metric = "success"
    classes = CLASSES
    figures = {
        "outside_share": "outside",
        "detour": "detour",
        "least_clearance": "least m",
        "control_effort": "effort",
        "mean_success_seconds": "s",
        "shield_share": "changed",
        "shield_change": "by",
    }
    legend = (
        "Success by the sides of start and goal: crossing (walls, no way round), opposite, adjacent, the same. outside: "
        "share of the time over bare ground. detour: way over straight line (a flight ends within the goal's radius, so a "
        "straight one has a little less than 1), least m: smallest clearance, s: seconds, of flights that arrived. effort: "
        "mean change of the commanded velocity, m/s per second. Behind a shield: share of decisions changed, by m/s."
    )
    eval_preset = "crossing"
    shields = tuple(SHIELDS)
    benchmarks = BENCHMARKS
    unit = "drones"
    labels = {
        "success": "success",
        "collision_static": "column",
        "collision_moving": "mover",
        "out_of_bounds": "out",
        "timeout": "time",
    }
    aliases = {
        # NavRL's and the prior design's names for our settings
        "env.num_obstacles": "env.static_obstacles",
        "env_dyn.num_obstacles": "env.moving_obstacles",
        "moving_obstacles.floating": "env.floating_boxes",
        "env.moving_obstacles.floating": "env.floating_boxes",
        "max_frame_num": "total_frames",
        "eval_interval_episodes": "eval_episodes",
        "env.max_episode_length": "env.max_episode_steps",
        "sensor.lidar_range": "env.lidar_range_m",
        "sim.dt": "env.dt_s",
        "algo.training_frame_num": "ppo.rollout_steps",
        "algo.training_epoch_num": "ppo.epochs",
        "algo.entropy_loss_coefficient": "ppo.entropy_coef",
        "algo.actor.learning_rate": "ppo.lr",
        "algo.feature_extractor.learning_rate": "ppo.lr",
        "algo.actor.clip_ratio": "ppo.clip",
        "algo.actor.action_limit": "env.speed_limit",
        "algo.critic.clip_ratio": "ppo.value_clip",
        "algo.critic.learning_rate": "",  # NavRL itself uses the actor's
        "algo.feature_extractor.dyn_obs_num": "=5",
        "env_dyn.vel_range": "=[0.5, 1.5]",
        "env_dyn.local_range": "=[5.0, 5.0, 4.5]",
        "headless": "",  # there is no window to hide, and no Isaac Sim to set up
        "viewer": "",
        "sim": "",
        "drone.model_name": "=hummingbird",
        "env.env_spacing": "",
        "wandb.name": "",
        "wandb.entity": "",
        "wandb.run_id": "",
        "defaults": "",
    }

    # ---- the env ---------------------------------------------------------------------------------------------------

    def make_env(
        self,
        cfg: NavigationConfig,
        *,
        device: str = "cpu",
        seed: int = 0,
        num_threads: int | None = None,
        env_offset: int = 0,
        total_envs: int | None = None,
        rank: int = 0,
        held_out: bool = False,
    ) -> NavigationEnv:
        bank = EVAL_BANK if held_out else rank
        return NavigationEnv(cfg, device, seed, num_threads, env_offset, total_envs, bank)

    def evaluation(self, cfg: NavigationConfig) -> NavigationConfig:
        """All movers on every map, starts on the edges (or crossing), episodes end at the goal, maps stay."""
        return dataclasses.replace(
            cfg,
            num_envs=EVAL_DRONES,
            movers_cycle=[1.0],
            starts=cfg.starts if cfg.starts in (Starts.crossing, Starts.lane) else Starts.edges,
            success_ends_episode=True,
            map_refresh_steps=0,
        )

    def contract(self, cfg: NavigationConfig) -> dict[str, Any]:
        return complete(super().contract(bare(cfg)), cfg)

    def set_progress(self, env: TensorEnv, curriculum: CurriculumConfig, progress: float) -> None:
        """Moving obstacles grow in number from `movers_start` to all over `ramp` of training."""
        assert isinstance(env, NavigationEnv)
        start, ramp = curriculum.movers_start, curriculum.ramp
        env.bank.set_movers_share(1.0 if ramp <= 0 else min(1.0, start + (1 - start) * progress / ramp))

    def world_facts(self, cfg: NavigationConfig) -> dict[str, Any]:
        names = ("static_obstacles", "moving_obstacles", "floating_boxes")
        return {**{name: getattr(cfg, name) for name in names}, "starts": cfg.starts.value, "walls": cfg.walls}

    def world_label(self, cfg: NavigationConfig) -> str:
        """Columns and movers, after where flights begin and end."""
        where = "crossing, no walls" if cfg.starts is Starts.crossing and not cfg.walls else cfg.starts.value
        return f"{where} {cfg.static_obstacles}/{cfg.moving_obstacles}{'' if cfg.floating_boxes else ' low'}"

    # ---- policies --------------------------------------------------------------------------------------------------

    def describe_policy(self, algo: str, env: NavigationConfig, policy: NavigationPolicyConfig) -> dict[str, Any]:
        headings, hidden = env.action_form is ActionForm.headings, list(policy.hidden)
        if algo == "dqn":
            if not headings or not env.grid_map:
                raise ConfigError("algo=dqn needs env.action_form=headings and env.grid_map=true, as in --preset dqn.")
            return {"kind": "grid_q", "hidden": hidden, "grid_size": env.grid_size, "headings": env.num_headings}
        if headings:
            raise ConfigError(f"algo={algo} flies with env.action_form=velocity; headings are for dqn.")
        if algo != "ppo" and policy.kind is not PolicyKind.features:
            raise ConfigError(f"algo={algo} learns with policy.kind=features; navrl's and planned are for ppo.")
        planned = policy.kind is PolicyKind.planned
        if planned and not env.plan:
            raise ConfigError("policy.kind=planned corrects the planner, which it must observe: set env.plan=true.")
        return {
            "kind": policy.kind.value if algo == "ppo" else "squashed",
            "hidden": hidden,
            "lidar": [env.lidar_azimuths, env.num_elevations],
            "range_m": env.lidar_range_m,
            **({"correction": policy.correction} if planned else {}),
        }

    def build_policy(self, description: Mapping[str, Any]) -> LearnedPolicy:
        try:
            kind, hidden = str(description["kind"]), tuple(int(h) for h in description["hidden"])
            if kind == "grid_q":
                return GridQ(int(description["grid_size"]), int(description["headings"]), hidden)
            azimuths, elevations = (int(x) for x in description["lidar"])
            range_m, correction = float(description["range_m"]), float(description.get("correction", 0.0))
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"This is not a policy's description: {description!r}.") from error
        if kind == "features":
            return FeaturePolicy((azimuths, elevations), hidden, range_m=range_m)
        if kind == "planned":
            return PlannedPolicy((azimuths, elevations), hidden, range_m=range_m, correction=correction)
        if kind == "squashed":
            return FeatureActor((azimuths, elevations), hidden, range_m=range_m)
        if kind == "navrl":
            if (azimuths, elevations) != (36, 4):
                raise ConfigError(
                    f"NavRL's network reads 36 x 4 beams, but the env has {azimuths} x {elevations}: "
                    "set env.lidar_azimuths=36 and four env.lidar_elevations_deg, or policy.kind=features."
                )
            return NavRLActorCritic()
        raise FormatError(f"The policy's kind is {kind!r}, but must be one of {', '.join(KINDS)}.")

    def pilots(self) -> Mapping[str, Callable[[], BaseAgent]]:
        return PILOTS

    def find_pilot(self, name: str) -> BaseAgent | None:
        return make_pilot(name) if name.partition("(")[0].strip() in PILOTS else None

    def enable_observations(self, cfg: NavigationConfig, agent: BaseAgent) -> NavigationConfig:
        """Who reads `pose` or `plan` gets it."""
        pose, plan = ("pose" in agent.observes, "plan" in agent.observes)
        return dataclasses.replace(cfg, pose=cfg.pose or pose, plan=plan)

    def check_fit(self, agent: BaseAgent, env: TensorEnv) -> None:
        """Also tells agents that plan which sensors and limits they have."""
        super().check_fit(agent.agent if isinstance(agent, Shielded) else agent, env)
        if isinstance(agent, Planning):
            assert isinstance(env, NavigationEnv)
            agent.meet(env.cfg)

    def shielded(self, agent: BaseAgent, shield: str) -> BaseAgent:
        return Shielded(agent, shield)

    def load_foreign(self, path: Path) -> BaseAgent:
        """NavRL's policy from its released file."""
        return load_navrl_checkpoint(path)

    def default_env_config(self, agent: BaseAgent) -> World | None:
        """NavRL's policy flies in NavRL's world."""
        if not isinstance(agent, NavRLPolicy):
            return None
        cfg = from_plain(NavigationConfig, self.preset("env", "navrl"))
        return World(flat_settings(cfg), cfg.dt_s * cfg.decimation)

    # ---- judging and showing ---------------------------------------------------------------------------------------

    def episode_metrics(self) -> FlightMetrics:
        return FlightMetrics()

    def classify(self, env: TensorEnv) -> Tensor:
        """By the sides that start and goal lie on; of starts inside the forest there is one class."""
        assert isinstance(env, NavigationEnv)
        if env.cfg.walls or env.cfg.starts is Starts.lane:  # no way round
            return torch.full((env.num_envs,), CLASSES.index("crossing"))
        start, goal = (side_of(env.state[name].cpu()) for name in ("start", "goal"))
        kind = torch.where(start % 2 == goal % 2, CLASSES.index("opposite"), CLASSES.index("adjacent"))
        kind = torch.where(start == goal, CLASSES.index("same"), kind)
        inside = env.state["start"][:, :2].cpu().abs().amax(dim=-1) < EDGE_M - 0.1
        return torch.where(inside, CLASSES.index("inside"), kind)

    def scene(self, env: TensorEnv, ids: Sequence[int]) -> list[dict[str, Any]]:
        assert isinstance(env, NavigationEnv)
        return flight_scenes(env, ids)

    def snapshot(self, env: TensorEnv, ids: Sequence[int]) -> dict[str, np.ndarray]:
        assert isinstance(env, NavigationEnv)
        return flight_frames(env, ids)

    def stage_of(self, env: TensorEnv) -> Tensor:
        """Drones on one map share a stage."""
        assert isinstance(env, NavigationEnv)
        return env.state["slot"]

    def draw(self, tracks: Sequence[Trajectory], title: str = "") -> Any:
        from fledge.tasks.navigation.view.picture import flights_figure  # Matplotlib takes a while to load

        return flights_figure(tracks, title)

    def objects(self, track: Trajectory) -> list[SceneObject]:
        return flight_objects(track)

    def stage(self, scene: Mapping[str, Any]) -> Stage:
        return flight_stage(scene)

    def actors(self, track: Trajectory) -> list[SceneObject]:
        return flight_actors(track)

    def crowd(self, track: Trajectory) -> Crowd | None:
        return flight_crowd(track)

    def beams(self, track: Trajectory) -> Beams | None:
        return flight_beams(track)

    def instruments(self, track: Trajectory) -> list[Instrument]:
        return flight_instruments(track)

    def recorded(self) -> list[dict[str, Any]]:
        """What `fledge eval --navrl-checkpoint FILE --movers 0,80 --episodes 2048 --json` printed when we ran it, with
        `--env crossing` and without."""
        rows = json.loads((HERE / "recorded" / "navrl_released.json").read_text())
        return [{**row, "policy": "NavRL (recorded)"} for row in rows]
