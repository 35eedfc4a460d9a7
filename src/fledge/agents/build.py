"""From a policy's description to the policy.

A description is what a checkpoint keeps beside the weights:
    {"kind": "features" | "navrl", "hidden": [256, 128], "lidar": [36, 4], "range_m": 4.0}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fledge.agents.actor_critic import ActorCritic, FeaturePolicy
from fledge.agents.navrl_policy import NavRLActorCritic
from fledge.core.errors import ConfigError, FormatError
from fledge.envs.navigation.config import ActionForm, NavigationConfig


def describe(kind: str, hidden: Sequence[int], env: NavigationConfig) -> dict[str, Any]:
    """Return the description of a policy for a task."""
    if env.action_form is not ActionForm.velocity:
        raise ConfigError("PPO flies with env.action_form=velocity; headings are for DQN.")
    return {
        "kind": kind,
        "hidden": list(hidden),
        "lidar": [env.lidar_azimuths, env.num_elevations],
        "range_m": env.lidar_range_m,
    }


def build_from_description(description: Mapping[str, Any]) -> ActorCritic:
    """Return a new actor-critic.

    Raises:
        ConfigError: when the network cannot read such a LiDAR.
        FormatError: when the description is not one.
    """
    try:
        kind, hidden = str(description["kind"]), tuple(int(h) for h in description["hidden"])
        azimuths, elevations = (int(x) for x in description["lidar"])
        range_m = float(description["range_m"])
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"This is not a policy's description: {description!r}.") from error
    if kind == "features":
        return FeaturePolicy((azimuths, elevations), hidden, range_m=range_m)
    if kind == "navrl":
        if (azimuths, elevations) != (36, 4):
            raise ConfigError(
                f"NavRL's network reads 36 x 4 beams, but the env has {azimuths} x {elevations}: "
                "set env.lidar_azimuths=36 and four env.lidar_elevations_deg, or policy.kind=features."
            )
        return NavRLActorCritic()
    raise FormatError(f"The policy's kind is {kind!r}, but must be 'features' or 'navrl'.")
