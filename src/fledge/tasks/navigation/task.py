"""The navigation task: drones that cross a forest and a crowd on LiDAR."""

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
from fledge.tasks.navigation.config import CurriculumConfig, NavigationConfig, Starts
from fledge.tasks.navigation.contract import bare, complete
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.metrics import NavigationMetrics
from fledge.tasks.navigation.networks.factory import NavigationPolicies
from fledge.tasks.navigation.pilots import PILOTS
from fledge.tasks.navigation.view.view import NavigationView
from fledge.tasks.presets import Presets

EVAL_BANK = 0x40000000  # banks from here on are for evaluation only
EVAL_DRONES = 1024


class MoversCurriculum(Curriculum):
    """The number of moving obstacles grows from `movers_start` to all over `ramp` of training."""

    config = CurriculumConfig

    def set_progress(self, env: TensorEnv, settings: CurriculumConfig, progress: float) -> None:
        assert isinstance(env, NavigationEnv)
        start, ramp = settings.movers_start, settings.ramp
        env.bank.set_movers_share(1.0 if ramp <= 0 else min(1.0, start + (1 - start) * progress / ramp))


class NavigationTask(Task):
    """Drones that cross a forest and a crowd on LiDAR."""

    name = "navigation"
    config = NavigationConfig
    primary_metric = "success"
    presets = Presets(Path(__file__).parent / "presets")
    policy = NavigationPolicies()
    curriculum = MoversCurriculum()
    view = NavigationView()
    metrics = NavigationMetrics()

    def make_env(self, cfg: NavigationConfig, placement: EnvPlacement = EnvPlacement()) -> NavigationEnv:
        p = placement
        bank = EVAL_BANK if p.held_out else p.rank
        return NavigationEnv(cfg, p.device, p.seed, p.num_threads, p.env_offset, p.total_envs, bank)

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

    def pilots(self) -> Mapping[str, Callable[..., BaseAgent]]:
        return PILOTS
