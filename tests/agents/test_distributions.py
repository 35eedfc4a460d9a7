"""Action heads against closed forms written with `math`, and against sums over their own densities.

A head enters by a `Case`: everything that is claimed of all heads is claimed of it then. Figures are in double precision,
so that a wrong formula cannot hide behind rounding; what float32 costs is a claim of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from fledge.agents.distributions import BetaHead, GaussianHead

INPUTS = 6
Figures = tuple[float, ...]  # parameters of one action
FLOOR = math.exp(-4.0)  # of the Gaussian's spread


def digamma(x: float) -> float:
    """Derivative of lgamma: recurrence up to 8, then the asymptotic series."""
    shift = 0.0
    while x < 8.0:
        shift -= 1.0 / x
        x += 1.0
    r = 1.0 / (x * x)
    return shift + math.log(x) - 0.5 / x - r * (1 / 12 - r * (1 / 120 - r * (1 / 252 - r * (1 / 240 - r / 132))))


def log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def beta_entropy(a: float, b: float) -> float:
    return log_beta(a, b) - (a - 1) * digamma(a) - (b - 1) * digamma(b) + (a + b - 2) * digamma(a + b)


@dataclass(frozen=True)
class Case:
    """A head for A actions, and what one action has in closed form, as a function of its parameters."""

    make: Callable[[int], nn.Module]
    examples: tuple[Figures, ...]
    log_density: Callable[..., float]  # of raw and the parameters
    entropy: Callable[..., float]
    mean: Callable[..., float]
    variance: Callable[..., float]
    support: Callable[..., tuple[float, float]]  # holds all but 1e-12 of the mass


CASES = {
    "gaussian": Case(
        make=lambda actions: GaussianHead(INPUTS, actions),
        examples=((0.0, 1.0), (0.6, 0.6), (-1.3, 0.02), (4.0, 2.5)),
        log_density=lambda x, m, s: -((x - m) ** 2) / (2 * s * s) - math.log(s * math.sqrt(2 * math.pi)),
        entropy=lambda m, s: 0.5 * math.log(2 * math.pi * math.e * s * s),
        mean=lambda m, s: m,
        variance=lambda m, s: s * s,
        support=lambda m, s: (m - 8 * s, m + 8 * s),
    ),
    "beta": Case(
        make=lambda actions: BetaHead(INPUTS, actions),
        # next to uniform; two plain ones; the released NavRL policy's, among obstacles and in the open
        examples=((1.000002, 1.000003), (2.0, 3.0), (1.3, 5.1), (22.998, 1.0007), (1704.66, 34.626)),
        log_density=lambda x, a, b: (a - 1) * math.log(x) + (b - 1) * math.log1p(-x) - log_beta(a, b),
        entropy=beta_entropy,
        mean=lambda a, b: a / (a + b),
        variance=lambda a, b: a * b / ((a + b) ** 2 * (a + b + 1)),
        support=lambda a, b: (0.0, 1.0),
    ),
}
EXAMPLES = [pytest.param(c, pq, id="-".join(map(str, (name, *pq)))) for name, c in CASES.items() for pq in c.examples]
all_cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
all_examples = pytest.mark.parametrize(("case", "pq"), EXAMPLES)


def wide_head(case: Case, actions: int = 3) -> nn.Module:
    """A head in double precision whose parameters vary much with its input."""
    torch.manual_seed(0)
    head = case.make(actions).double()
    for p in head.parameters():
        nn.init.normal_(p, std=1.0)
    return head


def inputs(rows: int) -> Tensor:
    return torch.randn(rows, INPUTS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def params_of(rows: int, *pq: Figures, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """Parameters [rows, A] that are the same in each row, given action by action."""
    return tuple(torch.tensor(figures, dtype=dtype).repeat(rows, 1) for figures in zip(*pq, strict=True))


def points(case: Case, pq: Figures, count: int) -> tuple[Tensor, float]:
    """Midpoints [count, 1] of equal cells over the support, and the width of a cell."""
    low, high = case.support(*pq)
    width = (high - low) / count
    return low + width * (torch.arange(count, dtype=torch.float64) + 0.5).unsqueeze(-1), width


# ------------------------------------------------------------------------------------------------------------ densities


@all_cases
@torch.no_grad()
def test_log_prob_and_entropy_are_sums_of_the_closed_forms_over_actions(case: Case) -> None:
    head = wide_head(case)
    params = head(inputs(50))
    raw = head.sample(params)
    density, entropy = head.log_prob(params, raw), head.entropy(params)
    assert density.shape == entropy.shape == (50,)
    for b in range(50):
        actions = [[float(t[b, k]) for t in (raw, *params)] for k in range(3)]
        assert float(density[b]) == pytest.approx(sum(case.log_density(*a) for a in actions), rel=1e-9, abs=1e-9)
        assert float(entropy[b]) == pytest.approx(sum(case.entropy(*pq) for _, *pq in actions), rel=1e-9, abs=1e-9)


@all_examples
def test_log_prob_is_the_closed_form_across_the_support(case: Case, pq: Figures) -> None:
    raw, _ = points(case, pq, 200)
    got = case.make(1).log_prob(params_of(200, pq), raw)
    want = [case.log_density(x, *pq) for x in raw.flatten().tolist()]
    assert got.tolist() == pytest.approx(want, rel=1e-9, abs=1e-9)


@all_examples
def test_the_density_integrates_to_1(case: Case, pq: Figures) -> None:
    raw, width = points(case, pq, 100_000)
    density = case.make(1).log_prob(params_of(1, pq), raw).exp()
    assert float(density.sum() * width) == pytest.approx(1.0, abs=1e-5)


@all_cases
def test_the_density_of_two_actions_integrates_to_1_over_the_plane(case: Case) -> None:
    first, second = case.examples[1:3]
    (x, dx), (y, dy) = points(case, first, 400), points(case, second, 400)
    density = case.make(2).log_prob(params_of(1, first, second), torch.cartesian_prod(x.flatten(), y.flatten())).exp()
    assert float(density.sum() * dx * dy) == pytest.approx(1.0, abs=1e-3)


@all_examples
def test_the_entropy_is_the_mean_of_minus_the_log_density(case: Case, pq: Figures) -> None:
    raw, width = points(case, pq, 100_000)
    head, params = case.make(1), params_of(1, pq)
    density = head.log_prob(params, raw)
    integral = float(-(density.exp() * density).sum() * width)
    assert float(head.entropy(params)) == pytest.approx(integral, abs=1e-4)
    assert float(head.entropy(params)) == pytest.approx(case.entropy(*pq), rel=1e-9, abs=1e-9)


@all_examples
def test_gradients_are_the_slopes_of_the_closed_forms(case: Case, pq: Figures) -> None:
    head, params = case.make(1), params_of(1, pq)
    for t in params:
        t.requires_grad_(True)
    x = case.mean(*pq) + 0.3 * math.sqrt(case.variance(*pq))
    density = torch.autograd.grad(head.log_prob(params, torch.full((1, 1), x, dtype=torch.float64)).sum(), params)
    entropy = torch.autograd.grad(head.entropy(params).sum(), params, allow_unused=True)
    step = 1e-4 * math.sqrt(case.variance(*pq))
    for k in range(len(pq)):
        up, down = ([v + sign * step * (j == k) for j, v in enumerate(pq)] for sign in (1, -1))
        slope = (case.log_density(x, *up) - case.log_density(x, *down)) / (2 * step)
        assert float(density[k]) == pytest.approx(slope, rel=1e-3, abs=1e-4)
        slope = (case.entropy(*up) - case.entropy(*down)) / (2 * step)
        got = entropy[k]
        assert (0.0 if got is None else float(got)) == pytest.approx(slope, rel=1e-3, abs=1e-4)


@all_examples
def test_float32_loses_less_than_a_fiftieth_of_navrls_clip(case: Case, pq: Figures) -> None:
    """PPO compares densities of two moments. At the released policy's sharpest, lgamma is 11,000 and a bit of it 0.001."""
    deviation = math.sqrt(case.variance(*pq))
    low, high = case.support(*pq)
    raw = torch.tensor([[min(max(case.mean(*pq) + k * deviation, low + 1e-4), high - 1e-4)] for k in range(-3, 4)])
    params = params_of(7, pq, dtype=torch.float32)
    rounded = [float(t[0, 0]) for t in params]
    want = [case.log_density(x, *rounded) for x in raw.flatten().tolist()]
    head = case.make(1)
    assert head.log_prob(params, raw).tolist() == pytest.approx(want, abs=0.002)
    assert float(head.entropy(params)[0]) == pytest.approx(case.entropy(*rounded), abs=0.002)


# -------------------------------------------------------------------------------------------------------------- sampling


@all_examples
def test_samples_follow_the_density(case: Case, pq: Figures) -> None:
    """Kolmogorov's statistic against the summed density; 1.95 is exceeded once in a thousand seeds."""
    count = 100_000
    head = case.make(1)
    torch.manual_seed(3)
    drawn = head.sample(params_of(count, pq))
    assert drawn.shape == (count, 1)
    raw, width = points(case, pq, 50_000)
    below = torch.cat([torch.zeros(1), head.log_prob(params_of(1, pq), raw).exp().cumsum(0) * width])
    edges = torch.cat([raw - width / 2, raw[-1:] + width / 2]).flatten()
    share = torch.searchsorted(drawn.flatten().sort().values, edges) / count
    assert float((share - below).abs().max()) * math.sqrt(count) < 1.95


@all_examples
def test_samples_have_the_closed_mean_variance_and_entropy(case: Case, pq: Figures) -> None:
    count = 100_000
    head, params = case.make(1), params_of(count, pq)
    torch.manual_seed(4)
    drawn = head.sample(params)
    mean, deviation = case.mean(*pq), math.sqrt(case.variance(*pq))
    assert float(drawn.mean()) == pytest.approx(mean, abs=4 * deviation / math.sqrt(count))
    assert float(drawn.std()) == pytest.approx(deviation, rel=0.02)
    surprise = -head.log_prob(params, drawn)
    assert float(surprise.mean()) == pytest.approx(case.entropy(*pq), abs=0.02)


@all_cases
def test_actions_and_rows_are_drawn_independently(case: Case) -> None:
    torch.manual_seed(5)
    drawn = case.make(2).sample(params_of(50_000, case.examples[1], case.examples[1]))
    pairs = torch.stack([drawn[:-1, 0], drawn[:-1, 1], drawn[1:, 0]])
    off_diagonal = torch.corrcoef(pairs)[torch.triu_indices(3, 3, offset=1).unbind()]
    assert off_diagonal.abs().max() < 4 / math.sqrt(50_000)


@all_cases
@torch.no_grad()
def test_the_same_seed_draws_the_same_actions(case: Case) -> None:
    params = wide_head(case)(inputs(20))
    draws = []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        draws.append(case.make(3).sample(params))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


@all_examples
def test_every_float32_sample_has_a_finite_density(case: Case, pq: Figures) -> None:
    head, params = case.make(1), params_of(200_000, pq, dtype=torch.float32)
    torch.manual_seed(6)
    drawn = head.sample(params)
    assert drawn.dtype == torch.float32
    assert torch.isfinite(head.log_prob(params, drawn)).all()


def test_a_beta_pressed_against_an_edge_draws_a_millionth_away_from_it() -> None:
    """A draw rounded to the edge itself would have a log density of minus infinity; torch stops at one bit from it."""
    torch.manual_seed(8)
    for pq in ((30_000.0, 1.000002), (1.000002, 30_000.0)):
        params = params_of(100_000, pq, dtype=torch.float32)
        drawn = BetaHead.sample(params)
        assert float(torch.minimum(drawn, 1 - drawn).min()) == pytest.approx(1e-6, rel=0.05)
        assert torch.isfinite(BetaHead.log_prob(params, drawn)).all()


# ------------------------------------------------------------------------------------------- parameters, mean and actions


@all_cases
@torch.no_grad()
def test_the_mean_is_the_closed_form(case: Case) -> None:
    head = wide_head(case)
    params = head(inputs(50))
    got = head.mean(params)
    assert got.shape == (50, 3)
    for b, k in itertools.product(range(50), range(3)):
        assert float(got[b, k]) == pytest.approx(case.mean(*(float(t[b, k]) for t in params)), rel=1e-12)


@all_cases
@torch.no_grad()
def test_actions_for_the_env_lie_within_0_and_1(case: Case) -> None:
    head = wide_head(case)
    params = head(inputs(500))
    for raw in (head.sample(params), head.mean(params)):
        action = head.to_env(raw)
        assert action.shape == raw.shape
        assert (action >= 0).all()
        assert (action <= 1).all()
        assert len(action.unique()) > 100, "not all at the limits"


def test_the_gaussian_maps_minus_1_to_1_onto_0_to_1_and_cuts_what_lies_beyond() -> None:
    raw = torch.tensor([[-7.0, -1.0, -0.5, 0.0, 0.6, 1.0, 1.01]])
    assert GaussianHead.to_env(raw).tolist()[0] == pytest.approx([0.0, 0.0, 0.25, 0.5, 0.8, 1.0, 1.0])


def test_the_beta_is_the_envs_action_as_it_stands() -> None:
    raw = torch.tensor([[0.0, 0.25, 1.0]])
    assert torch.equal(BetaHead.to_env(raw), raw)


@torch.no_grad()
def test_an_untrained_gaussian_flies_towards_the_goal() -> None:
    head = GaussianHead(INPUTS, 3)
    action = head.to_env(head.mean(head(torch.randn(100, INPUTS, generator=torch.Generator().manual_seed(2)))))
    torch.testing.assert_close(action, torch.tensor([0.8, 0.5, 0.5]).expand(100, 3), atol=0.05, rtol=0)


@torch.no_grad()
def test_the_gaussians_spread_by_hand() -> None:
    """log std = ceiling - log(1 + e^(-s - 2)), not below the floor."""
    head = GaussianHead(1, 3, log_std_max=-0.5).double()
    head.layer.weight.zero_()
    head.layer.bias.copy_(torch.tensor([0.1, 0.2, 0.3, -2.0, 50.0, -50.0], dtype=torch.float64))
    mean, std = head(torch.zeros(1, 1, dtype=torch.float64))
    assert mean[0].tolist() == pytest.approx([0.1, 0.2, 0.3])
    want = [math.exp(-0.5) / 2, math.exp(-0.5), FLOOR]
    assert std[0].tolist() == pytest.approx(want, rel=1e-9)


@torch.no_grad()
def test_the_gaussians_ceiling_bounds_every_spread_and_can_be_moved() -> None:
    head = wide_head(CASES["gaussian"])
    for ceiling in (-0.5, -1.3):
        head.log_std_max.fill_(ceiling)
        _, std = head(inputs(500))
        assert float(std.max()) < math.exp(ceiling)
        assert float(std.max()) > 0.9 * math.exp(ceiling), "some row comes near it"
        assert float(std.min()) >= FLOOR
    assert float(head.state_dict()["log_std_max"]) == pytest.approx(-1.3), "a checkpoint keeps it"


@torch.no_grad()
def test_the_betas_parameters_by_hand() -> None:
    """1 + log(1 + e^x) + 1e-6: never below 1, so that the density has one finite peak."""
    head = BetaHead(1, 3).double()
    for layer, bias in ((head.alpha, [-100.0, 0.0, 3.0]), (head.beta, [2.0, -2.0, 100.0])):
        layer.weight.zero_()
        layer.bias.copy_(torch.tensor(bias))
    alpha, beta = head(torch.zeros(1, 1, dtype=torch.float64))
    want = [1.000001 + math.log1p(math.exp(x)) for x in (-100.0, 0.0, 3.0)]
    assert alpha[0].tolist() == pytest.approx(want, rel=1e-9)
    want = [1.000001 + math.log1p(math.exp(x)) for x in (2.0, -2.0, 100.0)]
    assert beta[0].tolist() == pytest.approx(want, rel=1e-7)  # torch's softplus is linear above 20


@all_cases
def test_parameters_come_as_a_tuple_of_rows_by_actions_and_learn(case: Case) -> None:
    head = wide_head(case, actions=4)
    params = head(inputs(5))
    assert isinstance(params, tuple)
    assert all(t.shape == (5, 4) for t in params)
    (head.log_prob(params, head.sample(params).detach()) + head.entropy(params)).sum().backward()
    for name, p in head.named_parameters():
        assert p.grad is not None, name
        assert p.grad.any(), name
