"""V-trace (Espeholt et al. 2018, "IMPALA"), as an oracle: its recursion (remark 1), one env and one step at a time.

    delta_t = rho_t (r_t + gamma V(x_{t+1}) - V(x_t))                    rho_t = min(1, pi / mu)
    v_t     = V(x_t) + delta_t + gamma c_t (v_{t+1} - V(x_{t+1}))        c_t = lambda min(1, pi / mu)
    advantage of the policy gradient, without its own rho: r_t + gamma q_{t+1} - V(x_t),
        q_{t+1} = (1 - lambda) V(x_{t+1}) + lambda v_{t+1}, which is the paper's v_{t+1} for lambda = 1

Plain Python numbers; it shares nothing with Fledge.
"""

from __future__ import annotations

import math


def v_trace(
    rewards: list[float],
    values: list[float],
    next_values: list[float],
    terminated: list[bool],
    truncated: list[bool],
    log_pi: list[float],
    log_mu: list[float],
    gamma: float,
    lam: float,
) -> tuple[list[float], list[float]]:
    """Return targets v_t and advantages of one env's steps; `next_values` are V(x_{t+1}), of final observations too."""
    steps = len(rewards)
    targets, advantages = [0.0] * steps, [0.0] * steps
    for t in reversed(range(steps)):
        ratio = min(1.0, math.exp(min(log_pi[t] - log_mu[t], 0.0)))
        following = 0.0 if terminated[t] else next_values[t]
        ends = terminated[t] or truncated[t] or t == steps - 1
        correction = 0.0 if ends else targets[t + 1] - following
        targets[t] = values[t] + ratio * (rewards[t] + gamma * following - values[t]) + gamma * lam * ratio * correction
        advantages[t] = rewards[t] + gamma * (following + (0.0 if ends else lam * correction)) - values[t]
    return targets, advantages
