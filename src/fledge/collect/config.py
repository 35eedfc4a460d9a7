"""Settings of collecting: `collect.*`, and `actors.*` for actors on other machines."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from fledge.core.settings import setting


class CollectMode(enum.Enum):
    """When rollouts are collected and learned from; the setting `collect.mode` explains each value."""

    sync = "sync"
    pipelined = "pipelined"
    halves = "halves"


@dataclass
class CollectConfig:
    mode: CollectMode = setting(CollectMode.sync, resume="restart")
    """sync: collect, then learn. pipelined: collect while learning, with weights that are one update old.
    halves: half of the envs are simulated while the policy decides for the others. On-policy algorithms only."""
    compression_level: int = setting(0, at_least=0, at_most=9, resume="same")
    """Compress rollouts in memory, losslessly: 1 (fast) to 9 (small); 0: do not compress. On-policy algorithms only."""


@dataclass
class ActorsConfig:
    listen: str = ""
    """HOST:PORT to listen on for `fledge actor`, which collects on other machines; 127.0.0.1:7000 is reached from this
    machine only (and by SSH tunnels), 0.0.0.0:7000 from others. Empty: collect here only."""
    token_file: str = setting("", resume="same")
    """File with the secret that actors must know; empty: RUN/actors.token, written if it does not exist."""
    local_share: float = setting(0.0, at_least=0, below=1)
    """Share of env.num_envs that this process simulates itself, 0 to below 1; actors fill the rest of each rollout."""
    max_lag: int = setting(4, at_least=0)
    """Updates by which the weights of an actor's rollout may be older than the present ones; older rollouts are discarded."""
    wait_minutes: float = setting(0.0, at_least=0, resume="same")
    """Save and stop if no actor has sent anything for this many minutes; 0: wait without limit."""
