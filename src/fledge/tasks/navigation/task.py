"""The navigation task: drones fly by LiDAR through a forest and a crowd of moving obstacles."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fledge.agents.base import BaseAgent
from fledge.envs.base import TensorEnv
from fledge.envs.placement import EnvPlacement
from fledge.tasks.base import Task
from fledge.tasks.curriculum import Curriculum
from fledge.tasks.match import MatchRules
from fledge.tasks.navigation.config import TOGETHER, ActionForm, CurriculumConfig, NavigationConfig, Starts
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.metrics import NavigationMetrics
from fledge.tasks.navigation.networks.factory import NavigationPolicies
from fledge.tasks.navigation.physics.voxel_worlds import is_scene
from fledge.tasks.navigation.pilots import PILOTS
from fledge.tasks.navigation.sensing.observations import OBSERVATIONS
from fledge.tasks.navigation.view.view import NavigationView
from fledge.tasks.presets import Presets

EVAL_BANK = 0x40000000  # map banks from this number on are for evaluation only
EVAL_DRONES = 1024
EVAL_MAPS = 64  # the same for all policies, however many maps each was trained on
EVAL_WORLDS = 16  # maps in worlds of voxels
FRAMES = {
    "world": "z up; metres, radians",
    "goal": "x along the horizontal direction from start to goal, fixed when the flight begins; z up; y = z cross x",
    "yaw": "the drone's position, turned by its yaw alone, never by roll or pitch; x straight ahead, y left, z up",
}
ACTIONS = {
    ActionForm.velocity: {
        "unit": "m/s",
        "frame": "goal",
        "doc": "velocity command = (2 a - 1) * speed_limit_m_s, held for decision_s",
    },
    ActionForm.headings: {
        "frame": "goal",
        "doc": "fly at speed_limit_m_s towards angle 2 pi a / num_values, counter-clockwise from x, and to the goal's "
        "height; held for decision_s",
    },
}


class MoversCurriculum(Curriculum):
    """Raises the share of active moving obstacles linearly from `movers_start` to 1.

    It reaches 1 when the share `ramp` of the training is over.
    """

    config = CurriculumConfig

    def set_progress(self, env: TensorEnv, settings: CurriculumConfig, progress: float) -> None:
        assert isinstance(env, NavigationEnv)
        start, ramp = settings.movers_start, settings.ramp
        env.bank.set_movers_share(1.0 if ramp <= 0 else min(1.0, start + (1 - start) * progress / ramp))


class SharedWorlds(MatchRules):
    """Several drones in one world share an episode; each flies for itself."""

    def rows(self, cfg: NavigationConfig) -> int:
        return cfg.drones


class NavigationTask(Task):
    """Drones that fly by LiDAR through a forest and a crowd of moving obstacles."""

    name = "navigation"
    config = NavigationConfig
    env = NavigationEnv
    primary_metric = "success"
    presets = Presets(Path(__file__).parent / "presets")
    policy = NavigationPolicies()
    curriculum = MoversCurriculum()
    view = NavigationView()
    metrics = NavigationMetrics()
    match = SharedWorlds()

    def make_env(self, cfg: NavigationConfig, placement: EnvPlacement = EnvPlacement()) -> NavigationEnv:
        p = placement
        bank = EVAL_BANK if p.held_out else p.rank
        made = self.env(cfg, p.device, p.seed, p.num_threads, p.env_offset, p.total_envs, bank)
        assert isinstance(made, NavigationEnv)
        return made

    def evaluation(self, cfg: NavigationConfig) -> NavigationConfig:
        """Return the config for evaluation: fixed maps with all movers, and episodes that end at the goal.

        `starts` becomes edges, unless it is crossing, lane or a formation of several drones.
        """
        cfg = dataclasses.replace(cfg, world=cfg.eval_world or cfg.world)
        return dataclasses.replace(
            cfg,
            num_envs=EVAL_DRONES // cfg.drones * cfg.drones,
            num_maps=EVAL_DRONES if is_scene(cfg) else EVAL_WORLDS if cfg.world else EVAL_MAPS,
            movers_cycle=[1.0],
            starts=cfg.starts if cfg.starts in (Starts.lane, *TOGETHER) else Starts.edges,
            success_ends_episode=True,
            map_refresh_steps=0,
        )

    def contract(self, cfg: NavigationConfig) -> dict[str, Any]:
        """Return units, frames and geometry, for programs that run policies on robots. See docs/guides/deploy.md."""
        contract = super().contract(cfg.without_maps())
        for observation in OBSERVATIONS:
            if observation.enabled(cfg):
                contract["observation"][observation.name] |= observation.describe(cfg)
        contract["action"]["action"] |= ACTIONS[cfg.action_form]
        return {**contract, "speed_limit_m_s": cfg.speed_limit, "goal_radius_m": cfg.goal_radius_m, "frames": FRAMES}

    def pilots(self) -> Mapping[str, Callable[..., BaseAgent]]:
        return PILOTS
