"""Settings of `fledge learn-on`."""

from __future__ import annotations

from dataclasses import dataclass

from fledge.core.settings import setting


@dataclass
class LearnOnConfig:
    candidates: int = setting(8, at_least=1, at_most=100_000)
    """Number of candidates, over all calls; raise it to go on."""
    decisions: int = setting(500_000, at_least=1)
    """Decisions of new experience that a candidate learns from."""
    old_share: float = setting(0.5, at_least=0, at_most=0.9)
    """Old experience, flown in the run's own env, as a share of all that a candidate learns from."""
    num_envs: int = setting(512, at_least=2, at_most=2**20)
    """Parallel envs, of old and new experience together; for a stream, those of old experience follow from old_share."""
    steps: int = setting(64, at_least=2)
    """Decisions of each env between two updates; streams and archives have their own number."""
    kl_target: float = setting(1.0, above=0, at_most=100)
    """Divergence from the last accepted policy that an update aims at, nats per decision; each refusal halves it."""
    lr: float = setting(3e-4, above=0, below=1)
    """Adam's learning rate."""
    epochs: int = setting(3, at_least=1)
    """Learning passes over each rollout."""
    tolerance: float = setting(0.01, at_least=0, at_most=1)
    """Largest loss on old worlds, compared with the run's policy; of tasks measured by the return, in standard deviations."""
    episodes: int = setting(1024, at_least=16)
    """Held-out episodes that each candidate flies on old worlds, and as many on new worlds."""
    seed: int = setting(0, at_least=0, at_most=2**62)
    """Seed of all random numbers."""
