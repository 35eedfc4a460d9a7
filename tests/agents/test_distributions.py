"""Action heads against closed forms written with `math`, and against sums over their own densities.

A distribution of one number enters by a `Kind`, a head by a `Case`: everything that is claimed of all of them is claimed
of it then. Figures are in double precision, so that a wrong formula cannot hide behind rounding; what float32 costs is a
claim of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from fledge.agents.distributions import BetaHead, CategoricalHead, GaussianHead, Head, MixedHead, Scale, make_head
from fledge.core.errors import ConfigError
from fledge.core.specs import ActionSpec, TensorSpec
from fledge.tasks.navigation.networks.feature_policy import FeaturePolicy

INPUTS = 6
VALUES = 5  # of a discrete action
Figures = tuple[float, ...]  # parameters of one number of an action
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


def logs(*chances: float) -> Figures:
    return tuple(math.log(p) for p in chances)


def chances_of(figures: Figures) -> list[float]:
    return [math.exp(f) for f in figures]


def expected_value(*figures: float) -> float:
    return sum(k * p for k, p in enumerate(chances_of(figures)))


@dataclass(frozen=True)
class Kind:
    """The distribution of one number of an action, in closed form, as a function of its figures."""

    examples: tuple[Figures, ...]
    log_density: Callable[..., float]  # of raw and the figures
    entropy: Callable[..., float]
    mean: Callable[..., float]  # what is flown without exploration
    expected: Callable[..., float]
    variance: Callable[..., float]
    support: Callable[..., tuple[float, float]]  # holds all but 1e-12 of the mass
    discrete: bool = False

    def tensors(self, rows: int, *columns: Figures, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
        """Parameters that are the same in each row, given column by column."""
        if self.discrete:
            return (torch.tensor(columns, dtype=dtype).repeat(rows, 1, 1),)
        return tuple(torch.tensor(figures, dtype=dtype).repeat(rows, 1) for figures in zip(*columns, strict=True))

    def figures(self, params: tuple[Tensor, ...], row: int, column: int) -> Figures:
        """The way back."""
        return tuple(params[0][row, column].tolist()) if self.discrete else tuple(float(t[row, column]) for t in params)

    def points(self, pq: Figures, count: int) -> tuple[Tensor, float]:
        """Midpoints [count, 1] of equal cells over the support, and the width of a cell; all values if discrete."""
        if self.discrete:
            return torch.arange(len(pq), dtype=torch.float64).unsqueeze(-1), 1.0
        low, high = self.support(*pq)
        width = (high - low) / count
        return low + width * (torch.arange(count, dtype=torch.float64) + 0.5).unsqueeze(-1), width

    def around_the_mean(self, pq: Figures, *deviations: float) -> list[float]:
        """Points so many standard deviations from the mean, within the support; values if discrete."""
        if self.discrete:
            return [float(k % len(pq)) for k in range(len(deviations))]
        low, high = self.support(*pq)
        deviation = math.sqrt(self.variance(*pq))
        return [min(max(self.mean(*pq) + k * deviation, low + 1e-4), high - 1e-4) for k in deviations]


GAUSSIAN = Kind(
    examples=((0.0, 1.0), (0.6, 0.6), (-1.3, 0.02), (4.0, 2.5)),
    log_density=lambda x, m, s: -((x - m) ** 2) / (2 * s * s) - math.log(s * math.sqrt(2 * math.pi)),
    entropy=lambda m, s: 0.5 * math.log(2 * math.pi * math.e * s * s),
    mean=lambda m, s: m,
    expected=lambda m, s: m,
    variance=lambda m, s: s * s,
    support=lambda m, s: (m - 8 * s, m + 8 * s),
)
BETA = Kind(
    # next to uniform; two plain ones; the released NavRL policy's, among obstacles and in the open
    examples=((1.000002, 1.000003), (2.0, 3.0), (1.3, 5.1), (22.998, 1.0007), (1704.66, 34.626)),
    log_density=lambda x, a, b: (a - 1) * math.log(x) + (b - 1) * math.log1p(-x) - log_beta(a, b),
    entropy=beta_entropy,
    mean=lambda a, b: a / (a + b),
    expected=lambda a, b: a / (a + b),
    variance=lambda a, b: a * b / ((a + b) ** 2 * (a + b + 1)),
    support=lambda a, b: (0.0, 1.0),
)
CATEGORICAL = Kind(  # figures are log-probabilities
    examples=(
        logs(0.2, 0.2, 0.2, 0.2, 0.2),
        logs(0.5, 0.1, 0.15, 0.2, 0.05),
        logs(0.01, 0.02, 0.9, 0.03, 0.04),
        logs(1e-6, 1e-6, 1e-6, 1e-6, 1 - 4e-6),
        (math.log(0.3), -1e9, math.log(0.6), -1e9, math.log(0.1)),  # two are forbidden
    ),
    log_density=lambda x, *f: f[round(x)],
    entropy=lambda *f: -sum(p * v for p, v in zip(chances_of(f), f, strict=True)),
    mean=lambda *f: float(f.index(max(f))),
    expected=expected_value,
    variance=lambda *f: sum(p * (k - expected_value(*f)) ** 2 for k, p in enumerate(chances_of(f))),
    support=lambda *f: (0.0, len(f) - 1.0),
    discrete=True,
)
KINDS = {"gaussian": GAUSSIAN, "beta": BETA, "categorical": CATEGORICAL}


def numbers(actions: int, low: float = 0.0, high: float = 1.0) -> TensorSpec:
    return TensorSpec((actions,), torch.float32, low, high)


def choices(actions: int, mask: str | None = None) -> TensorSpec:
    return TensorSpec((actions,), torch.int64, 0, VALUES - 1, num_values=VALUES, mask=mask)


@dataclass(frozen=True)
class Case:
    """A head for an action of A numbers (in each entry, where it is a dict), and the kind of each entry."""

    spec: Callable[[int], ActionSpec]
    kinds: tuple[Kind, ...]
    beta: bool = False

    def make(self, actions: int) -> Head:
        return make_head(INPUTS, self.spec(actions), self.beta)

    def specs(self, actions: int) -> list[TensorSpec]:
        spec = self.spec(actions)
        return [spec] if isinstance(spec, TensorSpec) else list(spec.values())

    def columns(self, params: tuple[Tensor, ...], row: int, actions: int) -> list[tuple[Kind, Figures]]:
        """Kind and figures of every column of raw, in order."""
        found, rest = [], params
        for kind in self.kinds:
            count = 1 if kind.discrete else 2
            found += [(kind, kind.figures(rest[:count], row, k)) for k in range(actions)]
            rest = rest[count:]
        assert not rest
        return found

    def tensors(self, rows: int, actions: int = 1, example: int = 1) -> tuple[Tensor, ...]:
        """Parameters of one example for every column."""
        parts = [kind.tensors(rows, *[kind.examples[example]] * actions) for kind in self.kinds]
        return tuple(tensor for part in parts for tensor in part)


CASES = {
    "gaussian": Case(numbers, (GAUSSIAN,)),
    "beta": Case(numbers, (BETA,), beta=True),
    "categorical": Case(choices, (CATEGORICAL,)),
    "categorical, masked": Case(lambda n: choices(n, "allowed"), (CATEGORICAL,)),
    "mixed": Case(lambda n: {"fly": numbers(n), "fire": choices(n)}, (GAUSSIAN, CATEGORICAL)),
    "mixed, masked": Case(
        lambda n: {
            "aim": choices(n, "targets"),
            "fly": numbers(n, -2.0, 3.0),
            "fire": choices(n, "arms"),
            "go": choices(n),
        },
        (CATEGORICAL, BETA, CATEGORICAL, CATEGORICAL),
        beta=True,
    ),
}
HEADS = {"gaussian": GaussianHead, "beta": BetaHead, "categorical": CategoricalHead, "mixed": MixedHead}
PLAIN = {id(kind): CASES[name] for name, kind in KINDS.items()}
EXAMPLES = [
    pytest.param(kind, pq, id="-".join((name, *(f"{x:.6g}" for x in pq))))
    for name, kind in KINDS.items()
    for pq in kind.examples
]
all_cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
all_examples = pytest.mark.parametrize(("kind", "pq"), EXAMPLES)


def head_of(kind: Kind, actions: int = 1) -> Head:
    """The head of nothing but this kind."""
    return PLAIN[id(kind)].make(actions)


def wide_head(case: Case, actions: int = 3) -> Head:
    """A head in double precision whose parameters vary much with its input."""
    torch.manual_seed(0)
    head = case.make(actions).double()
    for p in head.parameters():
        nn.init.normal_(p, std=1.0)
    return head


def inputs(rows: int) -> Tensor:
    return torch.randn(rows, INPUTS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def masks(head: Head, rows: int) -> Tensor | None:
    """Masks that allow some values of each number, if the head has any; another number of them in each row."""
    if not head.masks:
        return None
    drawn = torch.rand(rows, head.masks // VALUES, VALUES, generator=torch.Generator().manual_seed(2)) < 0.5
    drawn[..., 2] |= ~drawn.any(-1)
    return drawn.flatten(1).float()


# ------------------------------------------------------------------------------------------------------------ densities


@all_cases
@torch.no_grad()
def test_log_prob_and_entropy_are_sums_of_the_closed_forms_over_actions(case: Case) -> None:
    head = wide_head(case)
    params = head(inputs(50), masks(head, 50))
    raw = head.sample(params)
    assert raw.shape == (50, 3 * len(case.kinds)) == (50, head.width)
    density, entropy = head.log_prob(params, raw), head.entropy(params)
    assert density.shape == entropy.shape == (50,)
    for b in range(50):
        columns = case.columns(params, b, 3)
        want = sum(kind.log_density(float(x), *pq) for x, (kind, pq) in zip(raw[b], columns, strict=True))
        assert float(density[b]) == pytest.approx(want, rel=1e-9, abs=1e-9)
        assert float(entropy[b]) == pytest.approx(sum(kind.entropy(*pq) for kind, pq in columns), rel=1e-9, abs=1e-9)


@all_examples
def test_log_prob_is_the_closed_form_across_the_support(kind: Kind, pq: Figures) -> None:
    raw, _ = kind.points(pq, 200)
    got = head_of(kind).log_prob(kind.tensors(len(raw), pq), raw)
    want = [kind.log_density(x, *pq) for x in raw.flatten().tolist()]
    assert got.tolist() == pytest.approx(want, rel=1e-9, abs=1e-9)


@all_examples
def test_the_density_integrates_to_1(kind: Kind, pq: Figures) -> None:
    raw, width = kind.points(pq, 100_000)
    density = head_of(kind).log_prob(kind.tensors(len(raw), pq), raw).exp()
    assert float(density.sum() * width) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_density_of_two_actions_integrates_to_1_over_the_plane(kind: Kind) -> None:
    first, second = kind.examples[1:3]
    (x, dx), (y, dy) = kind.points(first, 400), kind.points(second, 400)
    plane = torch.cartesian_prod(x.flatten(), y.flatten())
    density = head_of(kind, 2).log_prob(kind.tensors(len(plane), first, second), plane).exp()
    assert float(density.sum() * dx * dy) == pytest.approx(1.0, abs=1e-3)


@all_cases
def test_the_density_of_all_entries_integrates_to_1_over_their_product(case: Case) -> None:
    axes = [kind.points(kind.examples[1], 400) for kind in case.kinds]
    space = torch.cartesian_prod(*(x.flatten() for x, _ in axes)).view(-1, len(axes))
    density = case.make(1).log_prob(case.tensors(len(space)), space).exp()
    assert float(density.sum()) * math.prod(width for _, width in axes) == pytest.approx(1.0, abs=1e-3)


@all_examples
def test_the_entropy_is_the_mean_of_minus_the_log_density(kind: Kind, pq: Figures) -> None:
    raw, width = kind.points(pq, 100_000)
    head, params = head_of(kind), kind.tensors(1, pq)
    density = head.log_prob(kind.tensors(len(raw), pq), raw)
    integral = float(-(density.exp() * density).sum() * width)
    assert float(head.entropy(params)) == pytest.approx(integral, abs=1e-4)
    assert float(head.entropy(params)) == pytest.approx(kind.entropy(*pq), rel=1e-9, abs=1e-9)


@all_examples
def test_gradients_are_the_slopes_of_the_closed_forms(kind: Kind, pq: Figures) -> None:
    head, params = head_of(kind), kind.tensors(1, pq)
    for t in params:
        t.requires_grad_(True)
    x = kind.around_the_mean(pq, 0.3)[0]
    density = slopes_of(head.log_prob(params, torch.full((1, 1), x, dtype=torch.float64)), params)
    entropy = slopes_of(head.entropy(params), params)
    step = 1e-4 * (1.0 if kind.discrete else math.sqrt(kind.variance(*pq)))
    for k in range(len(pq)):
        up, down = ([v + sign * step * (j == k) for j, v in enumerate(pq)] for sign in (1, -1))
        slope = (kind.log_density(x, *up) - kind.log_density(x, *down)) / (2 * step)
        assert density[k] == pytest.approx(slope, rel=1e-3, abs=1e-4)
        slope = (kind.entropy(*up) - kind.entropy(*down)) / (2 * step)
        assert entropy[k] == pytest.approx(slope, rel=1e-3, abs=1e-4)


def slopes_of(figure: Tensor, params: tuple[Tensor, ...]) -> list[float]:
    """Derivatives by every figure of the one number that the parameters describe."""
    found = torch.autograd.grad(figure.sum(), params, allow_unused=True)
    return [
        x
        for t, p in zip(found, params, strict=True)
        for x in (torch.zeros_like(p) if t is None else t).flatten().tolist()
    ]


@all_examples
def test_float32_loses_less_than_a_fiftieth_of_navrls_clip(kind: Kind, pq: Figures) -> None:
    """PPO compares densities of two moments. At the released policy's sharpest, lgamma is 11,000 and a bit of it 0.001."""
    raw = torch.tensor(kind.around_the_mean(pq, *range(-3, 4))).unsqueeze(-1)
    params = kind.tensors(7, pq, dtype=torch.float32)
    rounded = kind.figures(params, 0, 0)
    want = [kind.log_density(x, *rounded) for x in raw.flatten().tolist()]
    head = head_of(kind)
    assert head.log_prob(params, raw).tolist() == pytest.approx(want, abs=0.002)
    assert float(head.entropy(params)[0]) == pytest.approx(kind.entropy(*rounded), abs=0.002)


# -------------------------------------------------------------------------------------------------------------- sampling


@all_examples
def test_samples_follow_the_density(kind: Kind, pq: Figures) -> None:
    """Kolmogorov's statistic against the summed density; 1.95 is exceeded once in a thousand seeds."""
    count = 100_000
    head = head_of(kind)
    torch.manual_seed(3)
    drawn = head.sample(kind.tensors(count, pq)).double()
    assert drawn.shape == (count, 1)
    raw, width = kind.points(pq, 50_000)
    below = torch.cat([torch.zeros(1), head.log_prob(kind.tensors(len(raw), pq), raw).exp().cumsum(0) * width])
    edges = torch.cat([raw - width / 2, raw[-1:] + width / 2]).flatten()
    share = torch.searchsorted(drawn.flatten().sort().values, edges) / count
    assert float((share - below).abs().max()) * math.sqrt(count) < 1.95


@all_examples
def test_samples_have_the_closed_mean_variance_and_entropy(kind: Kind, pq: Figures) -> None:
    count = 100_000
    head, params = head_of(kind), kind.tensors(count, pq)
    torch.manual_seed(4)
    drawn = head.sample(params)
    mean, deviation = kind.expected(*pq), math.sqrt(kind.variance(*pq))
    assert float(drawn.mean()) == pytest.approx(mean, abs=4 * deviation / math.sqrt(count))
    if not kind.discrete or deviation > 0.01:  # a value that is drawn once or never tells no deviation
        assert float(drawn.std()) == pytest.approx(deviation, rel=0.02)
    surprise = -head.log_prob(params, drawn)
    assert float(surprise.mean()) == pytest.approx(kind.entropy(*pq), abs=0.02)


@all_cases
def test_actions_and_rows_are_drawn_independently(case: Case) -> None:
    torch.manual_seed(5)
    drawn = case.make(2).sample(case.tensors(50_000, 2))
    pairs = torch.cat([drawn[:-1].T, drawn[1:, :1].T])
    assert len(pairs) == 2 * len(case.kinds) + 1
    off_diagonal = torch.corrcoef(pairs)[torch.triu_indices(len(pairs), len(pairs), offset=1).unbind()]
    assert off_diagonal.abs().max() < 4 / math.sqrt(50_000)


@all_cases
@torch.no_grad()
def test_the_same_seed_draws_the_same_actions(case: Case) -> None:
    head = wide_head(case)
    params = head(inputs(20), masks(head, 20))
    draws = []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        draws.append(case.make(3).sample(params))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


@all_examples
def test_every_float32_sample_has_a_finite_density(kind: Kind, pq: Figures) -> None:
    head, params = head_of(kind), kind.tensors(200_000, pq, dtype=torch.float32)
    torch.manual_seed(6)
    drawn = head.sample(params)
    assert drawn.dtype == torch.float32
    assert torch.isfinite(head.log_prob(params, drawn)).all()


def test_a_beta_pressed_against_an_edge_draws_a_millionth_away_from_it() -> None:
    """A draw rounded to the edge itself would have a log density of minus infinity; torch stops at one bit from it."""
    torch.manual_seed(8)
    head = BetaHead(INPUTS, numbers(1))
    for pq in ((30_000.0, 1.000002), (1.000002, 30_000.0)):
        params = BETA.tensors(100_000, pq, dtype=torch.float32)
        drawn = head.sample(params)
        assert float(torch.minimum(drawn, 1 - drawn).min()) == pytest.approx(1e-6, rel=0.05)
        assert torch.isfinite(head.log_prob(params, drawn)).all()


# ------------------------------------------------------------------------------------------- parameters, mean and actions


@all_cases
@torch.no_grad()
def test_the_mean_is_the_closed_form(case: Case) -> None:
    head = wide_head(case)
    params = head(inputs(50), masks(head, 50))
    got = head.mean(params)
    assert got.shape == (50, 3 * len(case.kinds))
    for b in range(50):
        want = [kind.mean(*pq) for kind, pq in case.columns(params, b, 3)]
        assert got[b].tolist() == pytest.approx(want, rel=1e-12)


@all_cases
@torch.no_grad()
def test_actions_for_the_env_lie_within_the_bounds_of_its_spec(case: Case) -> None:
    head = wide_head(case)
    params = head(inputs(500), masks(head, 500))
    for raw in (head.sample(params), head.mean(params)):
        action = head.to_env(raw)
        entries = list(action.values()) if isinstance(action, dict) else [action]
        for kind, spec, entry in zip(case.kinds, case.specs(3), entries, strict=True):
            assert entry.shape == (500, 3)
            assert (entry >= spec.low).all()
            assert (entry <= spec.high).all()
            assert entry.dtype == (spec.dtype if kind.discrete else torch.float64)  # the head is in double precision
            assert len(entry.unique()) == VALUES if kind.discrete else len(entry.unique()) > 100, (
                "not all at the limits"
            )


def test_the_gaussian_maps_minus_1_to_1_onto_0_to_1_and_cuts_what_lies_beyond() -> None:
    raw = torch.tensor([[-7.0, -1.0, -0.5, 0.0, 0.6, 1.0, 1.01]])
    action = GaussianHead(INPUTS, numbers(7)).to_env(raw)
    assert action.tolist()[0] == pytest.approx([0.0, 0.0, 0.25, 0.5, 0.8, 1.0, 1.0])


def test_the_beta_is_the_envs_action_as_it_stands() -> None:
    raw = torch.tensor([[0.0, 0.25, 1.0]])
    assert torch.equal(BetaHead(INPUTS, numbers(3)).to_env(raw), raw)


@pytest.mark.parametrize(
    ("low", "high", "want"),
    [
        (-3.0, 5.0, [-3.0, -3.0, -1.0, 1.0, 3.4, 5.0, 5.0]),
        (-1.0, 1.0, [-1.0, -1.0, -0.5, 0.0, 0.6, 1.0, 1.0]),
        (2.0, 2.5, [2.0, 2.0, 2.125, 2.25, 2.4, 2.5, 2.5]),
        (-math.inf, math.inf, [-7.0, -1.0, -0.5, 0.0, 0.6, 1.0, 1.01]),  # no bounds: neither scaled nor cut
    ],
)
def test_the_gaussian_is_scaled_to_the_actions_bounds(low: float, high: float, want: list[float]) -> None:
    raw = torch.tensor([[-7.0, -1.0, -0.5, 0.0, 0.6, 1.0, 1.01]])
    assert GaussianHead(INPUTS, numbers(7, low, high)).to_env(raw).tolist()[0] == pytest.approx(want)


@pytest.mark.parametrize(
    ("low", "high", "want"),
    [(-3.0, 5.0, [-3.0, -1.0, 5.0]), (-1.0, 1.0, [-1.0, -0.5, 1.0]), (2.0, 2.5, [2.0, 2.125, 2.5])],
)
def test_the_beta_is_scaled_to_the_actions_bounds(low: float, high: float, want: list[float]) -> None:
    action = BetaHead(INPUTS, numbers(3, low, high)).to_env(torch.tensor([[0.0, 0.25, 1.0]]))
    assert action.tolist()[0] == pytest.approx(want)


@pytest.mark.parametrize("bounds", [(-math.inf, math.inf), (0.0, math.inf), (-math.inf, 0.0)])
def test_a_beta_without_bounds_is_refused(bounds: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match="needs an action with bounds"):
        BetaHead(INPUTS, numbers(2, *bounds))


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-3.0, 5.0), (-math.inf, math.inf)])
def test_scaling_goes_there_and_back(bounds: tuple[float, float]) -> None:
    scale = Scale(TensorSpec((2, 2), torch.float32, *bounds))
    action = torch.linspace(-1, 1, 12).view(3, 4)
    there = scale.to_env(action)
    assert there.shape == (3, 2, 2)
    torch.testing.assert_close(scale.from_env(there), action)


@pytest.mark.parametrize("name", ["gaussian", "beta", "categorical"])
def test_an_action_of_any_shape_is_filled_row_by_row(name: str) -> None:
    discrete = name == "categorical"
    spec = TensorSpec((2, 3), torch.int32 if discrete else torch.float32, 0.0, 6.0, 7 if discrete else None)
    head = HEADS[name](INPUTS, spec)
    raw = torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]] * 4)
    share = {"gaussian": raw / 3 - 1, "beta": raw / 6, "categorical": raw}[name]
    action = head.to_env(share)
    torch.testing.assert_close(action, raw.view(4, 2, 3).to(spec.dtype))
    assert head.sample(head(torch.randn(4, INPUTS))).shape == (4, 6)
    one = HEADS[name](INPUTS, TensorSpec((), spec.dtype, 0.0, 6.0, spec.num_values))
    assert one.to_env(one.sample(one(torch.randn(4, INPUTS)))).shape == (4,)


def test_the_spec_decides_the_head() -> None:
    assert type(make_head(INPUTS, numbers(2))) is GaussianHead
    assert type(make_head(INPUTS, numbers(2), beta=True)) is BetaHead
    assert type(make_head(INPUTS, choices(2), beta=True)) is CategoricalHead
    mixed = make_head(INPUTS, {"fly": numbers(2), "fire": choices(1)}, beta=True)
    assert isinstance(mixed, MixedHead)
    assert [type(head) for head in mixed.parts] == [BetaHead, CategoricalHead]
    with pytest.raises(ConfigError, match="at least one entry"):
        make_head(INPUTS, {})


@torch.no_grad()
def test_an_untrained_gaussian_flies_towards_the_goal() -> None:
    head = FeaturePolicy(hidden=(INPUTS,)).head
    action = head.to_env(head.mean(head(torch.randn(100, INPUTS, generator=torch.Generator().manual_seed(2)))))
    torch.testing.assert_close(action, torch.tensor([0.8, 0.5, 0.5]).expand(100, 3), atol=0.05, rtol=0)


@torch.no_grad()
def test_the_gaussians_spread_by_hand() -> None:
    """log std = ceiling - log(1 + e^(-s - 2)), not below the floor."""
    head = GaussianHead(1, numbers(3), log_std_max=-0.5).double()
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
        head.limit_spread(ceiling)
        _, std = head(inputs(500))
        assert float(std.max()) < math.exp(ceiling)
        assert float(std.max()) > 0.9 * math.exp(ceiling), "some row comes near it"
        assert float(std.min()) >= FLOOR
    assert float(head.state_dict()["log_std_max"]) == pytest.approx(-1.3), "a checkpoint keeps it"


@torch.no_grad()
def test_the_betas_parameters_by_hand() -> None:
    """1 + log(1 + e^x) + 1e-6: never below 1, so that the density has one finite peak."""
    head = BetaHead(1, numbers(3)).double()
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
    params = head(inputs(5), masks(head, 5))
    assert isinstance(params, tuple)
    shapes = [shape for kind in case.kinds for shape in ([(5, 4, VALUES)] if kind.discrete else [(5, 4)] * 2)]
    assert [t.shape for t in params] == shapes
    (head.log_prob(params, head.sample(params).detach()) + head.entropy(params)).sum().backward()
    for name, p in head.named_parameters():
        assert p.grad is not None, name
        assert p.grad.any(), name


# -------------------------------------------------------------------------------------------------- masks, several entries


@torch.no_grad()
def test_a_mask_leaves_the_chances_among_allowed_values_as_they_were() -> None:
    """By hand: those of a softmax over the allowed ones only."""
    head = wide_head(CASES["categorical, masked"], actions=2)
    x, mask = inputs(100), masks(head, 100)
    assert mask is not None
    logits, allowed = head.layer(x).view(100, 2, VALUES), mask.view(100, 2, VALUES) > 0.5
    got = head(x, mask)[0].exp()
    for b, k in itertools.product(range(100), range(2)):
        weight = [
            math.exp(v) if ok else 0.0 for v, ok in zip(logits[b, k].tolist(), allowed[b, k].tolist(), strict=True)
        ]
        assert got[b, k].tolist() == pytest.approx([w / sum(weight) for w in weight], rel=1e-9)


@pytest.mark.parametrize("name", ["categorical, masked", "mixed, masked"])
@torch.no_grad()
def test_what_a_mask_forbids_is_neither_drawn_nor_flown(name: str) -> None:
    case = CASES[name]
    head = wide_head(case, actions=1).float()
    x, mask = inputs(20_000).float(), masks(head, 20_000)
    assert mask is not None
    params = head(x, mask)
    columns = [k for k, spec in enumerate(case.specs(1)) if spec.mask is not None]
    torch.manual_seed(9)
    for raw in (head.sample(params), head.mean(params)):
        chosen = raw[:, columns].long().unsqueeze(-1)
        assert (mask.view(20_000, len(columns), VALUES).gather(-1, chosen) == 1).all()
    assert torch.isfinite(head.entropy(params)).all()


@torch.no_grad()
def test_masks_of_several_entries_stand_in_the_order_of_the_entries() -> None:
    head = wide_head(CASES["mixed, masked"], actions=1)
    mask = torch.zeros(1, 2 * VALUES)
    mask[0, 3] = mask[0, VALUES + 1] = 1.0  # only value 3 of "aim", only 1 of "fire"; "go" has no mask
    action = head.to_env(head.sample(head(inputs(1), mask)))
    assert isinstance(action, dict)
    assert list(action) == ["aim", "fly", "fire", "go"]
    assert (int(action["aim"]), int(action["fire"])) == (3, 1)


@torch.no_grad()
def test_one_allowed_value_is_certain() -> None:
    head = wide_head(CASES["categorical, masked"], actions=1).float()
    params = head(inputs(VALUES).float(), torch.eye(VALUES))
    assert head.sample(params).flatten().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert head.entropy(params).tolist() == [0.0] * VALUES
    assert head.log_prob(params, torch.arange(float(VALUES)).unsqueeze(-1)).tolist() == [0.0] * VALUES


def test_a_mask_that_forbids_all_makes_no_nan() -> None:
    head = wide_head(CASES["categorical, masked"], actions=1).float()
    params = head(inputs(3).float(), torch.zeros(3, VALUES))
    (head.log_prob(params, head.sample(params)) + head.entropy(params)).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in head.parameters() if p.grad is not None)


def test_a_forbidden_value_learns_nothing() -> None:
    head = wide_head(CASES["categorical, masked"], actions=1)
    mask = torch.tensor([[1.0, 0.0, 1.0, 1.0, 0.0]]).repeat(40, 1)
    params = head(inputs(40), mask)
    (head.log_prob(params, head.sample(params)) + head.entropy(params)).sum().backward()
    assert head.layer.bias.grad is not None
    assert (head.layer.bias.grad != 0).tolist() == [True, False, True, True, False]


@torch.no_grad()
def test_entries_of_a_dict_are_the_heads_they_would_be_alone() -> None:
    """Density and entropy of the whole are the sums of theirs; each gets its own columns of raw."""
    head = wide_head(CASES["mixed, masked"], actions=2)
    assert isinstance(head, MixedHead)
    x, mask = inputs(30), masks(head, 30)
    assert mask is not None
    params = head(x, mask)
    raw = head.sample(params)
    aim, fly, fire, go = head.parts
    parts = [aim(x, mask[:, : 2 * VALUES]), fly(x), fire(x, mask[:, 2 * VALUES :]), go(x)]
    each = list(zip(head.parts, parts, raw.split(2, dim=-1), strict=True))
    torch.testing.assert_close(head.log_prob(params, raw), sum(h.log_prob(p, r) for h, p, r in each))
    torch.testing.assert_close(head.entropy(params), sum(h.entropy(p) for h, p, _ in each))
    whole = head.to_env(raw)
    assert isinstance(whole, dict)
    for (h, _, r), action in zip(each, whole.values(), strict=True):
        assert torch.equal(h.to_env(r), action)


@torch.no_grad()
def test_the_ceiling_of_the_spread_reaches_every_entry() -> None:
    head = make_head(INPUTS, {"fly": numbers(2), "look": numbers(1), "fire": choices(1)})
    head.limit_spread(-1.3)
    _, fly, _, look, _ = head(torch.randn(500, INPUTS, generator=torch.Generator().manual_seed(3)))
    assert float(torch.cat([fly, look], dim=-1).max()) <= math.exp(-1.3)


@torch.no_grad()
def test_an_untrained_choice_is_next_to_uniform() -> None:
    head = CategoricalHead(INPUTS, choices(2))
    chances = head(torch.randn(100, INPUTS, generator=torch.Generator().manual_seed(2)))[0].exp()
    torch.testing.assert_close(chances, torch.full((100, 2, VALUES), 1 / VALUES), atol=0.02, rtol=0)
