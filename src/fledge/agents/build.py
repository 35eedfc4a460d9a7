"""Describe and build the general networks, which fit any env.

A policy file has the description beside the weights. A task describes its own networks (`Task.policy`); the general ones are

    {"kind": "mlp" | "mlp_squashed" | "mlp_q", "hidden": [64, 64], "observation": spec, "action": spec,
     "normalize": true, "beta": false, "gru_size": 64}     the last three only for "mlp"; specs as in `core.specs`;
                                                           without "gru_size" the network has no memory
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fledge.agents.actor_critic import ActorCritic, MLPActorCritic
from fledge.agents.q_network import MLPQNetwork, QNetwork
from fledge.agents.recurrent import describe_memory
from fledge.agents.squashed import MLPActor, SquashedActor
from fledge.core.errors import FormatError
from fledge.core.specs import ActionSpec, TensorSpec, describe_spec, spec_from

LearnedPolicy = ActorCritic | SquashedActor | QNetwork
NETWORKS: dict[str, Any] = {"mlp": MLPActorCritic, "mlp_q": MLPQNetwork, "mlp_squashed": MLPActor}
KINDS = {"ppo": "mlp", "sac": "mlp_squashed", "td3": "mlp_squashed", "dqn": "mlp_q"}


def describe(
    algo: str,
    observation: Mapping[str, TensorSpec],
    action: ActionSpec,
    hidden: list[int],
    normalize: bool = True,
    beta: bool = False,
    gru_size: int = 0,
) -> dict[str, Any]:
    """Return the description (see the module) of the general network that an algorithm uses."""
    memory = describe_memory(algo, gru_size)
    found = {"kind": KINDS[algo], "hidden": list(hidden)}
    specs = {"observation": describe_spec(observation), "action": describe_spec(action)}
    return found | specs | ({"normalize": normalize, "beta": beta, **memory} if algo == "ppo" else {})


def build_from_description(description: Mapping[str, Any]) -> LearnedPolicy:
    """Return a new policy of the described network, with random weights.

    Raises:
        ConfigError: The network does not support the described action.
        FormatError: The description is malformed.
    """
    try:
        kind, hidden = str(description["kind"]), [int(h) for h in description["hidden"]]
        observation, action = spec_from(description["observation"]), spec_from(description["action"])
        gru_size = int(description.get("gru_size", 0))
        if isinstance(observation, TensorSpec):
            raise TypeError("the observation must be a dict of specs")
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"The policy has a malformed description, {description!r}: the file is damaged.") from error
    if kind not in NETWORKS:
        raise FormatError(f"The policy's kind is {kind!r}, but must be one of {', '.join(NETWORKS)}. Use another file.")
    if kind != "mlp":
        return NETWORKS[kind](observation, action, hidden)
    given = {name: bool(description.get(name, default)) for name, default in (("normalize", True), ("beta", False))}
    return MLPActorCritic(observation, action, hidden, **given, gru_size=gru_size)
