"""Advantages and targets against a slow reference, one env and one step at a time, and against sums by hand."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fledge.learn.returns import gae


@dataclass
class Rollout:
    """[T, N] each, in the order in which `gae` takes them."""

    reward: Tensor
    value: Tensor
    next_value: Tensor
    terminated: Tensor
    truncated: Tensor

    def all(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return self.reward, self.value, self.next_value, self.terminated, self.truncated

    def ended(self, t: int, n: int) -> bool:
        return bool(self.terminated[t, n]) or bool(self.truncated[t, n])


def column(*figures: float) -> Tensor:
    return torch.tensor(figures, dtype=torch.float64).unsqueeze(-1)


def flags(steps: int, *where: int) -> Tensor:
    return torch.tensor([[t in where] for t in range(steps)])


def random_rollout(seed: int, steps: int, envs: int, end_share: float) -> Rollout:
    """As a collector fills it: values agree from row to row within an episode; steps may be terminated and truncated."""
    generator = torch.Generator().manual_seed(seed)

    def draw() -> Tensor:
        return torch.randn(steps, envs, generator=generator, dtype=torch.float64)

    reward, value, other = draw(), 3 * draw(), 3 * draw()
    terminated, truncated = (torch.rand(2, steps, envs, generator=generator) < end_share).unbind()
    goes_on = ~(terminated | truncated)
    next_value = other.clone()
    next_value[:-1] = torch.where(goes_on[:-1], value[1:], other[:-1])
    return Rollout(reward, value, next_value, terminated, truncated)


def random_weights(seed: int, steps: int, envs: int) -> Tensor:
    """Between 0 and 1, and often at both: actions that the policy has given up, and ones it takes as before."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(steps, envs, generator=generator, dtype=torch.float64) * 1.6 - 0.3).clamp(0.0, 1.0)


def n_step_advantage(r: Rollout, t: int, n: int, steps: int, gamma: float) -> float:
    """`steps` rewards from row t on, then the value of what they led to; fewer where the episode or the rollout ends."""
    total, discount, last = 0.0, 1.0, t
    for last in range(t, min(t + steps, len(r.reward))):
        total += discount * float(r.reward[last, n])
        discount *= gamma
        if r.ended(last, n):
            break
    if not r.terminated[last, n]:
        total += discount * float(r.next_value[last, n])
    return total - float(r.value[t, n])


def slow_gae(r: Rollout, t: int, n: int, gamma: float, decay: float) -> float:
    """Schulman et al. 2016, equation 16: the exponentially weighted mean of all n-step advantages.

    Beyond the last row of an episode or rollout, an n-step advantage stays as it is: its weight goes to the longest.
    """
    last = t
    while last + 1 < len(r.reward) and not r.ended(last, n):
        last += 1
    longest = last - t + 1
    mean = sum((1 - decay) * decay ** (k - 1) * n_step_advantage(r, t, n, k, gamma) for k in range(1, longest))
    return mean + decay ** (longest - 1) * n_step_advantage(r, t, n, longest, gamma)


def slow_v_trace(r: Rollout, t: int, n: int, gamma: float, decay: float, weight: Tensor) -> float:
    """Espeholt et al. 2018, equation 1: target v_t, with rho = weight and c = decay * weight."""
    target, factor = float(r.value[t, n]), 1.0
    for k in range(t, len(r.reward)):
        follows = 0.0 if r.terminated[k, n] else gamma * float(r.next_value[k, n])
        rho = float(weight[k, n])
        target += factor * rho * (float(r.reward[k, n]) + follows - float(r.value[k, n]))
        if r.ended(k, n):
            break
        factor *= gamma * decay * rho
    return target


# ----------------------------------------------------------------------------------------------------------- by reference


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    steps=st.integers(1, 12),
    envs=st.integers(1, 4),
    end_share=st.sampled_from([0.0, 0.2, 0.7]),
    gamma=st.floats(0.0, 1.0),
    decay=st.floats(0.0, 1.0),
)
def test_advantages_are_the_weighted_mean_of_n_step_advantages(
    seed: int, steps: int, envs: int, end_share: float, gamma: float, decay: float
) -> None:
    r = random_rollout(seed, steps, envs, end_share)
    advantage, target = gae(*r.all(), gamma, decay)
    assert advantage.shape == target.shape == (steps, envs)
    for t in range(steps):
        for n in range(envs):
            want = slow_gae(r, t, n, gamma, decay)
            assert float(advantage[t, n]) == pytest.approx(want, abs=1e-9), (t, n)
            assert float(target[t, n]) == pytest.approx(want + float(r.value[t, n]), abs=1e-9), (t, n)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    steps=st.integers(1, 12),
    envs=st.integers(1, 4),
    end_share=st.sampled_from([0.0, 0.2, 0.7]),
    gamma=st.floats(0.0, 1.0),
    decay=st.floats(0.0, 1.0),
)
def test_targets_of_an_old_rollout_are_v_traces_and_advantages_lead_to_them(
    seed: int, steps: int, envs: int, end_share: float, gamma: float, decay: float
) -> None:
    """The advantage is r + gamma·((1 - lambda)·V' + lambda·v') - V: what its action led to, the future corrected."""
    r, weight = random_rollout(seed, steps, envs, end_share), random_weights(seed, steps, envs)
    advantage, target = gae(*r.all(), gamma, decay, weight)
    for t in range(steps):
        for n in range(envs):
            want = slow_v_trace(r, t, n, gamma, decay, weight)
            assert float(target[t, n]) == pytest.approx(want, abs=1e-9), (t, n)
            future = 0.0 if r.terminated[t, n] else float(r.next_value[t, n])
            if t + 1 < steps and not r.ended(t, n):
                future += decay * (slow_v_trace(r, t + 1, n, gamma, decay, weight) - future)
            led_to = float(r.reward[t, n]) + gamma * future - float(r.value[t, n])
            assert float(advantage[t, n]) == pytest.approx(led_to, abs=1e-9), (t, n)


def test_weights_of_1_change_nothing() -> None:
    r = random_rollout(0, 20, 3, 0.2)
    for ours, plain in zip(gae(*r.all(), 0.9, 0.8, torch.ones(20, 3)), gae(*r.all(), 0.9, 0.8), strict=True):
        torch.testing.assert_close(ours, plain)


# ---------------------------------------------------------------------------------------------------------------- by hand


def test_decay_0_is_the_one_step_error() -> None:
    r = random_rollout(1, 10, 3, 0.3)
    advantage, _ = gae(*r.all(), 0.9, 0.0)
    torch.testing.assert_close(advantage, r.reward + 0.9 * r.next_value * ~r.terminated - r.value)


def test_decay_1_is_the_discounted_return_of_an_episode() -> None:
    """Rewards 1, 2, 4 and the end: worth 1 + 2/2 + 4/4 = 3, then 2 + 4/2 = 4, then 4."""
    reward, value = column(1.0, 2.0, 4.0), column(10.0, 20.0, 30.0)
    advantage, target = gae(reward, value, column(20.0, 30.0, 99.0), flags(3, 2), flags(3), 0.5, 1.0)
    assert target.flatten().tolist() == [3.0, 4.0, 4.0]
    assert advantage.flatten().tolist() == [-7.0, -16.0, -26.0]


def test_decay_1_bootstraps_a_truncated_episode_and_the_end_of_the_rollout() -> None:
    """As above, but what would have followed is worth 8: 1 more in row 0, 2 in row 1, 4 in row 2."""
    reward, value, next_value = column(1.0, 2.0, 4.0), column(10.0, 20.0, 30.0), column(20.0, 30.0, 8.0)
    for truncated in (flags(3, 2), flags(3)):
        _, target = gae(reward, value, next_value, flags(3), truncated, 0.5, 1.0)
        assert target.flatten().tolist() == [4.0, 6.0, 8.0]


@pytest.mark.parametrize(
    ("terminated", "truncated", "want"),
    [
        # one-step errors where nothing ends: 1 + 20/2 - 10 = 1, 2 + 30/2 - 20 = -3, 4 + 40/2 - 30 = -6, 8 + 50/2 - 40 = -7
        pytest.param((), (), [1 + (-3 + (-6 - 7 / 4) / 4) / 4, -3 + (-6 - 7 / 4) / 4, -6 - 7 / 4, -7], id="none"),
        pytest.param((1,), (), [1 + (-18) / 4, -18, -6 - 7 / 4, -7], id="terminated"),
        pytest.param((), (1,), [1 + (-3) / 4, -3, -6 - 7 / 4, -7], id="truncated"),
        pytest.param((1,), (1,), [1 + (-18) / 4, -18, -6 - 7 / 4, -7], id="both at once: terminated"),
        pytest.param((1,), (2,), [1 + (-18) / 4, -18, -6, -7], id="terminated, then truncated"),
        pytest.param((2,), (1,), [1 + (-3) / 4, -3, -26, -7], id="truncated, then terminated"),
        pytest.param((1, 2), (), [1 + (-18) / 4, -18, -26, -7], id="terminated twice"),
        pytest.param((), (1, 2), [1 + (-3) / 4, -3, -6, -7], id="truncated twice"),
        pytest.param((0, 3), (), [-9, -3 + (-6 + -32 / 4) / 4, -6 + -32 / 4, -32], id="first and last"),
    ],
)
def test_ends_of_episodes_by_hand(terminated: tuple[int, ...], truncated: tuple[int, ...], want: list[float]) -> None:
    reward, value = column(1.0, 2.0, 4.0, 8.0), column(10.0, 20.0, 30.0, 40.0)
    next_value = column(20.0, 30.0, 40.0, 50.0)
    advantage, target = gae(reward, value, next_value, flags(4, *terminated), flags(4, *truncated), 0.5, 0.5)
    assert advantage.flatten().tolist() == want
    assert torch.equal(target, value + advantage)


def test_weights_by_hand() -> None:
    """One-step errors 1, -3, -6. What followed row 0 counts by row 1's weight; a row's own weight is in its target."""
    reward, value, next_value = column(1.0, 2.0, 4.0), column(10.0, 20.0, 30.0), column(20.0, 30.0, 40.0)
    weight = column(0.25, 0.5, 0.75)
    advantage, target = gae(reward, value, next_value, flags(3), flags(3), 0.5, 0.5, weight)
    second = -3 + 0.25 * 0.75 * -6
    assert advantage.flatten().tolist() == [1 + 0.25 * 0.5 * second, second, -6.0]
    assert target.flatten().tolist() == [
        10 + 0.25 * (1 + 0.25 * 0.5 * second),
        20 + 0.5 * second,
        30 + 0.75 * -6,
    ]


def test_an_action_given_up_hides_what_followed_it_and_its_target_is_its_value() -> None:
    r, weight = random_rollout(2, 6, 2, 0.0), torch.ones(6, 2, dtype=torch.float64)
    weight[3] = 0.0
    advantage, target = gae(*r.all(), 0.9, 0.8, weight)
    r.reward[3:] += 100.0
    later, _ = gae(*r.all(), 0.9, 0.8, weight)
    assert torch.equal(later[:3], advantage[:3])
    assert (later[3:] != advantage[3:]).all(), "its own advantage still tells what it led to"
    assert torch.equal(target[3], r.value[3])


# ------------------------------------------------------------------------------------------------------------------ claims


@pytest.mark.parametrize("how", ["terminated", "truncated"])
@pytest.mark.parametrize("weighted", [False, True])
def test_nothing_of_the_next_episode_reaches_the_one_before(how: str, weighted: bool) -> None:
    r, weight = random_rollout(3, 8, 2, 0.0), random_weights(3, 8, 2)
    getattr(r, how)[4, 0] = True
    first = gae(*r.all(), 0.99, 0.95, weight if weighted else None)
    for t in (r.reward, r.value, r.next_value, weight):
        t[5:] = 0.5 - t[5:]
    second = gae(*r.all(), 0.99, 0.95, weight if weighted else None)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a[:5, 0], b[:5, 0])
    assert (first[0][4, 1] != second[0][4, 1]).item(), "the other env goes on"


def test_what_a_terminated_step_led_to_is_ignored() -> None:
    r = random_rollout(4, 12, 3, 0.3)
    assert (r.terminated & r.truncated).any()
    before = gae(*r.all(), 0.99, 0.95)
    r.next_value[r.terminated] = 1e6
    for a, b in zip(before, gae(*r.all(), 0.99, 0.95), strict=True):
        assert torch.equal(a, b)


def test_envs_do_not_mix() -> None:
    """Each env alone gives its column."""
    r, weight = random_rollout(5, 16, 4, 0.2), random_weights(5, 16, 4)
    together = gae(*r.all(), 0.99, 0.95, weight)
    for n in range(4):
        alone = gae(*(t[:, n : n + 1] for t in r.all()), 0.99, 0.95, weight[:, n : n + 1])
        for a, b in zip(together, alone, strict=True):
            torch.testing.assert_close(a[:, n : n + 1], b)


def test_the_rollout_stays_as_it_was() -> None:
    r, weight = random_rollout(6, 10, 3, 0.2), random_weights(6, 10, 3)
    before = [t.clone() for t in (*r.all(), weight)]
    gae(*r.all(), 0.99, 0.95, weight)
    assert all(torch.equal(a, b) for a, b in zip(before, (*r.all(), weight), strict=True))


def test_no_gradient_flows_into_targets() -> None:
    r = random_rollout(7, 5, 2, 0.2)
    r.value.requires_grad_(True)
    r.next_value.requires_grad_(True)
    assert not any(t.requires_grad for t in gae(*r.all(), 0.99, 0.95))


def test_float32_stays_float32_and_near_the_exact_sums() -> None:
    r, weight = random_rollout(8, 128, 8, 0.02), random_weights(8, 128, 8)
    exact = gae(*r.all(), 0.99, 0.95, weight)
    single = [t.float() if t.is_floating_point() else t for t in r.all()]
    for a, b in zip(gae(*single, 0.99, 0.95, weight.float()), exact, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)
