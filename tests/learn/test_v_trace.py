"""Learning from old policies: `gae` with weights against a plain V-trace, for mixtures of policies, and in a known world."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge.learn.returns import gae
from tests.reference.plain_v_trace import v_trace


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    steps=st.integers(1, 12),
    spread=st.sampled_from([0.0, 0.1, 1.0, 5.0]),
    gamma=st.floats(0.0, 1.0),
    lam=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
)
def test_targets_and_advantages_of_a_mixture_of_policies_are_v_traces(
    seed: int, steps: int, spread: float, gamma: float, lam: float
) -> None:
    """Each env was flown by a policy of another age: their log-probabilities differ from the present ones by `spread`."""
    envs, generator = 3, torch.Generator().manual_seed(seed)

    def draw() -> torch.Tensor:
        return torch.randn(steps, envs, generator=generator, dtype=torch.float64)

    reward, value, next_value, log_pi = draw(), draw(), draw(), draw()
    log_mu = log_pi + spread * draw() * torch.arange(envs)
    terminated, truncated = (torch.rand(2, steps, envs, generator=generator) < 0.15).unbind()
    goes_on = ~(terminated | truncated)
    next_value[:-1] = torch.where(goes_on[:-1], value[1:], next_value[:-1])
    weight = (log_pi - log_mu).exp().clamp(max=1.0)
    advantage, target = gae(reward, value, next_value, terminated, truncated, gamma, lam, weight)
    for n in range(envs):
        columns = [x[:, n].tolist() for x in (reward, value, next_value, terminated, truncated, log_pi, log_mu)]
        targets, advantages = v_trace(*columns, gamma, lam)
        assert target[:, n].tolist() == pytest.approx(targets, abs=1e-9)
        assert advantage[:, n].tolist() == pytest.approx(advantages, abs=1e-9)


def test_targets_of_rollouts_by_another_policy_converge_to_the_values_of_the_present_one() -> None:
    """Two states, two actions: action 1 pays 1 and leads to state 1, action 0 pays 0 and leads to state 0.

    The actor takes action 1 with probability 0.9, the present policy with 0.6. As both ratios exceed 1 for action 0 and are
    below 1 for action 1, rho-bar = 1 biases V-trace to the policy pi_rho (equation 3), whose values are known.
    """
    mu, pi, gamma = 0.9, 0.6, 0.8
    clipped = {1: min(mu, pi), 0: min(1 - mu, 1 - pi)}
    share = clipped[1] / (clipped[0] + clipped[1])  # probability of action 1 under pi_rho
    known = share / (1 - gamma)  # the reward does not depend on the state
    value, generator = torch.zeros((), dtype=torch.float64), torch.Generator().manual_seed(0)
    for _ in range(300):
        action = (torch.rand(50, 200, generator=generator) < mu).double()
        log_pi = torch.where(action == 1, math.log(pi), math.log(1 - pi))
        log_mu = torch.where(action == 1, math.log(mu), math.log(1 - mu))
        none, values = torch.zeros(50, 200, dtype=torch.bool), value.expand(50, 200).clone()
        _, target = gae(action, values, values, none, none, gamma, 1.0, (log_pi - log_mu).exp().clamp(max=1.0))
        value = value + 0.2 * (target.mean() - value)
    assert float(value) == pytest.approx(known, rel=0.02)
    assert known != pytest.approx(mu / (1 - gamma), rel=0.02), "the actor's own value is another"
