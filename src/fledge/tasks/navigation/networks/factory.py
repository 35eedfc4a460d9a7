"""Build navigation's policies: networks from their descriptions, shipped policy files, NavRL's checkpoint, shields."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fledge.agents.base import BaseAgent
from fledge.agents.build import LearnedPolicy
from fledge.agents.recurrent import describe_memory
from fledge.core.errors import ConfigError, FormatError
from fledge.core.overrides import from_plain
from fledge.core.settings import flat_settings
from fledge.core.specs import TensorSpec, describe_spec, spec_from
from fledge.tasks.base import Task
from fledge.tasks.navigation.config import ActionForm, NavigationConfig, NavigationPolicyConfig, PolicyKind
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.networks.feature_policy import FeatureActor, FeaturePolicy, PlannedPolicy, Sectors
from fledge.tasks.navigation.networks.grid_q import GridQ
from fledge.tasks.navigation.networks.navrl import NavRLActorCritic, NavRLPolicy, load_navrl_checkpoint
from fledge.tasks.navigation.robot import NavigationRobot
from fledge.tasks.navigation.sensing.observations import ATTITUDE, OBSERVATIONS
from fledge.tasks.navigation.shield import SHIELDS, Shielded
from fledge.tasks.policy_factory import PolicyFactory, TrainedEnv, env_specs
from fledge.tasks.presets import Presets

TASK_FOLDER = Path(__file__).parents[1]
KINDS = ("features", "planned", "navrl", "squashed", "grid_q")


def extra_observations(task: Task, env: NavigationConfig, sectors: bool) -> dict[str, TensorSpec]:
    """Return the specs of `attitude`, if the LiDAR tilts, and of the observations that a subclass of NavigationEnv adds.

    Sectors are so wide that a network reads them without `attitude`.
    """
    tilts = ATTITUDE.enabled(env) and not sectors
    if task.env is NavigationEnv:
        return {ATTITUDE.name: ATTITUDE.spec(env)} if tilts else {}
    known = {observation.name for observation in OBSERVATIONS} - ({ATTITUDE.name} if tilts else set())
    return {name: spec for name, spec in env_specs(task, env.without_maps())[0].items() if name not in known}


def describe_lidar(algo: str, env: NavigationConfig, policy: NavigationPolicyConfig) -> dict[str, Any]:
    """Return the entries of a policy's description about the beams that it reads: `lidar`, `range_m`, and `scan` if the
    rays are grouped into sectors."""
    rays, sectors = [env.lidar_azimuths, env.num_elevations], list(policy.sectors)
    if not sectors:
        return {"lidar": rays, "range_m": env.lidar_range_m}
    if algo != "ppo" or policy.kind is PolicyKind.navrl:
        raise ConfigError(
            "policy.sectors is for policy.kind=features or planned with algo=ppo: leave policy.sectors out."
        )
    if len(sectors) != 2 or min(sectors) < 1 or rays[0] % sectors[0] or rays[1] % sectors[1]:
        raise ConfigError(
            f"policy.sectors={sectors} must be two numbers, azimuths and elevations, that divide the LiDAR's {rays[0]} x "
            f"{rays[1]} rays: change policy.sectors, env.lidar_azimuths or env.lidar_rows."
        )
    reach = min(policy.sector_range_m, env.lidar_range_m)
    scan = {"rays": rays, "range_m": env.lidar_range_m, "wraps": env.lidar_view_deg == 360}
    return {"lidar": sectors, "range_m": reach, "scan": scan}


def sectors_from(description: Mapping[str, Any]) -> Sectors | None:
    """Return how the network reduces its scan, by its description; None if it reads every ray."""
    if "scan" not in description:
        return None
    shapes = [tuple(int(n) for n in row) for row in (description["scan"]["rays"], description["lidar"])]
    (wide, tall), (azimuths, elevations) = shapes
    ranges = float(description["scan"]["range_m"]), float(description["range_m"])
    if wide % azimuths or tall % elevations:
        raise ValueError("sectors must divide the rays")
    return Sectors((wide, tall), ranges[0], (azimuths, elevations), ranges[1], bool(description["scan"]["wraps"]))


class NavigationPolicies(PolicyFactory):
    """Builds policies from descriptions:
    {"kind": "features" | "navrl" | "squashed", "hidden": [256, 128], "lidar": [36, 4], "range_m": 4.0}
    {"kind": "planned", ... as above ..., "correction": 0.5}
    {"kind": "grid_q", "hidden": [256], "grid_size": 64, "headings": 16}
    and, except for navrl and grid_q, optionally "extra": specs of the observations that a subclass of the env adds;
    for features and planned also "gru_size": 128, the width of a memory, and "scan": {"rays": [144, 16], "range_m": 8.0,
    "wraps": true}, a scan that is reduced to the sectors "lidar" (`policy.sectors`).
    """

    config = NavigationPolicyConfig
    robot = NavigationRobot()
    folder = TASK_FOLDER / "policies"
    own_settings = ("decimation", "dt_s", "speed_limit", "lidar_", "movers_from", "planner.")
    shields = {name: functools.partial(Shielded, shield=name) for name in SHIELDS}

    def describe(self, task: Task, algo: str, env: NavigationConfig, policy: NavigationPolicyConfig) -> dict[str, Any]:
        headings, hidden = env.action_form is ActionForm.headings, list(policy.hidden)
        memory = describe_memory(algo, policy.gru_size)
        if memory and policy.kind is PolicyKind.navrl:
            raise ConfigError(
                f"policy.gru_size={policy.gru_size} does not fit policy.kind=navrl, whose network has no memory: set "
                "policy.gru_size=0, or policy.kind=features or planned."
            )
        if algo == "dqn":
            if not headings or not env.grid_map:
                raise ConfigError("algo=dqn needs env.action_form=headings and env.grid_map=true, as in --preset dqn.")
            return {"kind": "grid_q", "hidden": hidden, "grid_size": env.grid_size, "headings": env.num_headings}
        if headings:
            raise ConfigError(f"algo={algo} needs env.action_form=velocity; headings are for algo=dqn.")
        if algo != "ppo" and policy.kind is not PolicyKind.features:
            raise ConfigError(f"algo={algo} needs policy.kind=features; navrl and planned are for algo=ppo.")
        planned = policy.kind is PolicyKind.planned
        if planned and not env.plan:
            raise ConfigError("policy.kind=planned needs the observation plan: set env.plan=true.")
        return {
            "kind": policy.kind.value if algo == "ppo" else "squashed",
            "hidden": hidden,
            **describe_lidar(algo, env, policy),
            **memory,
            **({"correction": policy.correction} if planned else {}),
            **(
                {"extra": describe_spec(extra)}
                if (extra := extra_observations(task, env, bool(policy.sectors)))
                else {}
            ),
        }

    def build(self, description: Mapping[str, Any]) -> LearnedPolicy:
        try:
            kind, hidden = str(description["kind"]), tuple(int(h) for h in description["hidden"])
            if kind == "grid_q":
                return GridQ(int(description["grid_size"]), int(description["headings"]), hidden)
            azimuths, elevations = (int(x) for x in description["lidar"])
            range_m, correction = float(description["range_m"]), float(description.get("correction", 0.0))
            extra: Any = spec_from(description["extra"]) if "extra" in description else None
            gru_size, sectors = int(description.get("gru_size", 0)), sectors_from(description)
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise FormatError(f"The description of a policy is damaged: {description!r}. Use another file.") from error
        given: dict[str, Any] = {"range_m": range_m, "extra": extra, "gru_size": gru_size, "sectors": sectors}
        if kind == "features":
            return FeaturePolicy((azimuths, elevations), hidden, **given)
        if kind == "planned":
            return PlannedPolicy((azimuths, elevations), hidden, correction=correction, **given)
        if kind == "squashed":
            return FeatureActor((azimuths, elevations), hidden, range_m=range_m, extra=extra)
        if kind == "navrl":
            if (azimuths, elevations) != (36, 4):
                raise ConfigError(
                    f"NavRL's network reads 36 x 4 beams, but the env has {azimuths} x {elevations}: "
                    "set env.lidar_azimuths=36 and four env.lidar_elevations_deg, or policy.kind=features."
                )
            return NavRLActorCritic()
        raise FormatError(f"The policy's kind is {kind!r}, but must be one of {', '.join(KINDS)}.")

    def load_interop(self, path: Path) -> BaseAgent:
        """Return NavRL's policy from its checkpoint."""
        return load_navrl_checkpoint(path)

    def to_trainable(self, agent: BaseAgent) -> tuple[dict[str, Any], LearnedPolicy]:
        """Return the description and the trainable network of an agent; for NavRL's policy, a description of kind `navrl`."""
        if not isinstance(agent, NavRLPolicy):
            return super().to_trainable(agent)
        network = NavRLActorCritic.from_navrl(agent)
        hidden = list(NavigationPolicyConfig().hidden)  # of other kinds; NavRL's layers are fixed
        return {"kind": "navrl", "hidden": hidden, "lidar": [36, 4], "range_m": 4.0}, network

    def default_env_config(self, agent: BaseAgent) -> TrainedEnv | None:
        """Return the config of NavRL's env if the agent is NavRL's policy, else None."""
        if not isinstance(agent, NavRLPolicy):
            return None
        cfg = from_plain(NavigationConfig, Presets(TASK_FOLDER / "presets").load("env", "navrl"))
        return TrainedEnv(flat_settings(cfg), cfg.dt_s * cfg.decimation)

    def enable_observations(self, cfg: NavigationConfig, agent: BaseAgent) -> NavigationConfig:
        """Return the config with `plan` on if the agent reads it, else off, and with `pose` on if the agent reads it."""
        return dataclasses.replace(cfg, pose=cfg.pose or "pose" in agent.observes, plan="plan" in agent.observes)
