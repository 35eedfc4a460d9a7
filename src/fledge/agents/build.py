"""From a policy's description to the policy.

A description is what a checkpoint keeps beside the weights:
    {"kind": "features" | "navrl" | "squashed", "hidden": [256, 128], "lidar": [36, 4], "range_m": 4.0}
    {"kind": "grid_q", "hidden": [256], "grid_size": 64, "headings": 16}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fledge.agents.actor_critic import ActorCritic, FeaturePolicy
from fledge.agents.squashed import SquashedActor
from fledge.core.errors import ConfigError, FormatError
from fledge.tasks.navigation.grid_q import GridQ
from fledge.tasks.navigation.navrl_actor_critic import NavRLActorCritic

LearnedPolicy = ActorCritic | SquashedActor | GridQ
KINDS = ("features", "navrl", "squashed", "grid_q")


def build_from_description(description: Mapping[str, Any]) -> LearnedPolicy:
    """Return a new policy.

    Raises:
        ConfigError: when the network cannot read such a LiDAR.
        FormatError: when the description is not one.
    """
    try:
        kind, hidden = str(description["kind"]), tuple(int(h) for h in description["hidden"])
        if kind == "grid_q":
            return GridQ(int(description["grid_size"]), int(description["headings"]), hidden)
        azimuths, elevations = (int(x) for x in description["lidar"])
        range_m = float(description["range_m"])
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"This is not a policy's description: {description!r}.") from error
    if kind == "features":
        return FeaturePolicy((azimuths, elevations), hidden, range_m=range_m)
    if kind == "squashed":
        return SquashedActor((azimuths, elevations), hidden, range_m=range_m)
    if kind == "navrl":
        if (azimuths, elevations) != (36, 4):
            raise ConfigError(
                f"NavRL's network reads 36 x 4 beams, but the env has {azimuths} x {elevations}: "
                "set env.lidar_azimuths=36 and four env.lidar_elevations_deg, or policy.kind=features."
            )
        return NavRLActorCritic()
    raise FormatError(f"The policy's kind is {kind!r}, but must be one of {', '.join(KINDS)}.")
