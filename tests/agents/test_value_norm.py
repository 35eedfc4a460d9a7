"""Value normalisation worked out by hand, and PopArt's promise: predictions stay when their scale moves."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fledge.agents.actor_critic import ValueNorm


def moments(returns: list[float]) -> tuple[Tensor, Tensor]:
    x = torch.tensor(returns)
    return x.mean(), x.square().mean()


def figures(norm: ValueNorm) -> tuple[float, float]:
    mean, std = norm.mean_std()
    return float(mean), float(std)


def random_layer(inputs: int = 5) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(inputs, 1)


def test_values_pass_unchanged_before_the_first_update() -> None:
    norm, x = ValueNorm(), torch.tensor([-3.0, 0.0, 700.0])
    assert figures(norm) == (0.0, 1.0)
    assert torch.equal(norm.normalize(x), x)
    assert torch.equal(norm.denormalize(x), x)


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.995])
def test_the_first_update_counts_in_full_whatever_beta_is(beta: float) -> None:
    norm = ValueNorm(beta=beta)
    norm.update(*moments([2.0, 6.0]))  # mean 4, mean square 20
    assert figures(norm) == pytest.approx((4.0, 2.0), rel=1e-4)


def test_two_updates_by_hand() -> None:
    """Beta 1/2 weighs the last batch 2 : 1 against the one before: mean (1·4 + 2·1)/3 = 2, square (20 + 2·5)/3 = 10."""
    norm = ValueNorm(beta=0.5)
    norm.update(*moments([2.0, 6.0]))
    norm.update(*moments([-1.0, 3.0]))  # mean 1, mean square 5
    assert figures(norm) == pytest.approx((2.0, math.sqrt(6.0)))
    assert float(norm.weight) == pytest.approx(0.75)


def test_many_updates_are_the_weighted_mean_of_all_batches() -> None:
    """NavRL's beta: batch k of n weighs 0.995^(n - 1 - k), and weights sum to 1."""
    generator = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, generator=generator) * (1 + k % 5) + 0.1 * k).tolist() for k in range(60)]
    norm = ValueNorm()
    for batch in batches:
        norm.update(*moments(batch))
    weights = [0.995 ** (59 - k) for k in range(60)]
    mean = sum(w * sum(b) / 8 for w, b in zip(weights, batches, strict=True)) / sum(weights)
    square = sum(w * sum(x * x for x in b) / 8 for w, b in zip(weights, batches, strict=True)) / sum(weights)
    assert figures(norm) == pytest.approx((mean, math.sqrt(square - mean**2)), rel=1e-3)


def test_old_batches_are_forgotten() -> None:
    norm = ValueNorm(beta=0.5)
    norm.update(*moments([1000.0, 3000.0]))
    for _ in range(60):
        norm.update(*moments([2.0, 6.0]))
    assert figures(norm) == pytest.approx((4.0, 2.0), rel=1e-4)


@pytest.mark.parametrize("returns", [[7.0, 7.0], [7.05, 6.95]])
def test_the_deviation_is_at_least_a_tenth(returns: list[float]) -> None:
    norm = ValueNorm()
    norm.update(*moments(returns))
    assert figures(norm) == pytest.approx((7.0, 0.1), rel=1e-3)


def test_normalize_and_denormalize_by_hand() -> None:
    norm = ValueNorm(beta=0.0)
    norm.update(*moments([2.0, 6.0]))
    assert norm.normalize(torch.tensor([[2.0, 4.0], [6.0, 0.0]])).tolist() == [[-1.0, 0.0], [1.0, -2.0]]
    assert norm.denormalize(torch.tensor([-1.0, 0.0, 2.5])).tolist() == [2.0, 4.0, 9.0]


@given(mean=st.floats(-500, 500, width=32), deviation=st.floats(0.5, 500, width=32), x=st.floats(-1000, 1000, width=32))
@settings(max_examples=50, deadline=None)
def test_denormalize_undoes_normalize(mean: float, deviation: float, x: float) -> None:
    norm = ValueNorm()
    norm.update(torch.tensor(mean), torch.tensor(mean**2 + deviation**2))
    back = norm.denormalize(norm.normalize(torch.tensor([x])))
    assert float(back) == pytest.approx(x, abs=1e-5 * (1 + abs(x) + abs(mean)))


def test_gradients_reach_predictions_but_not_the_averages() -> None:
    norm, x = ValueNorm(beta=0.0), torch.tensor([1.0, 2.0], requires_grad=True)
    prediction = x * 3.0
    norm.update(prediction.mean(), prediction.square().mean())
    assert not norm.mean_avg.requires_grad
    norm.denormalize(x).sum().backward()
    assert x.grad.tolist() == pytest.approx([1.5, 1.5])  # the deviation of 3 and 6


def test_a_copy_by_state_dict_normalizes_alike() -> None:
    norm, copy = ValueNorm(beta=0.5), ValueNorm(beta=0.5)
    norm.update(*moments([2.0, 6.0]))
    copy.load_state_dict(norm.state_dict())
    for one in (norm, copy):
        one.update(*moments([10.0, 20.0]))
    assert figures(copy) == figures(norm)


def test_popart_by_hand() -> None:
    """From (mean 4, deviation 2) to (2, sqrt 6): 2·(w x + b) + 4 = sqrt 6·(w' x + b') + 2."""
    norm, layer = ValueNorm(beta=0.5), nn.Linear(2, 1)
    norm.update(*moments([2.0, 6.0]))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[3.0, -1.0]]))
        layer.bias.fill_(0.5)
    norm.update_preserving(*moments([-1.0, 3.0]), layer)
    assert figures(norm) == pytest.approx((2.0, math.sqrt(6.0)))
    assert layer.weight.tolist()[0] == pytest.approx([6.0 / math.sqrt(6.0), -2.0 / math.sqrt(6.0)])
    assert layer.bias.tolist() == pytest.approx([(2.0 * 0.5 + 4.0 - 2.0) / math.sqrt(6.0)])


@pytest.mark.parametrize("beta", [0.5, 0.995])
@pytest.mark.parametrize(
    "batches",
    [
        pytest.param([[2.0, 6.0]], id="first"),
        pytest.param([[2.0, 6.0], [-50.0, 90.0]], id="wider"),
        pytest.param([[-100.0, 300.0], [5.0, 5.0], [5.0, 5.0]], id="narrower"),
        pytest.param([[7.0, 7.0], [7.0, 7.0], [7.0, 9.0]], id="constant"),
        pytest.param([[400.0, 500.0], [-400.0, -500.0]], id="sign"),
    ],
)
def test_popart_keeps_every_prediction_in_reward_units(batches: list[list[float]], beta: float) -> None:
    norm, layer, x = ValueNorm(beta), random_layer(), torch.randn(64, 5)
    before = norm.denormalize(layer(x))
    for batch in batches:
        norm.update_preserving(*moments(batch), layer)
        torch.testing.assert_close(norm.denormalize(layer(x)), before, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_popart_keeps_predictions_over_a_thousand_updates() -> None:
    """Rounding adds up: what is left after a run is still a small part of the returns' spread."""
    norm, layer, x = ValueNorm(), random_layer(), torch.randn(64, 5)
    before = norm.denormalize(layer(x))
    generator = torch.Generator().manual_seed(2)
    for k in range(1000):
        returns = 100 + 50 * math.sin(k / 100) + 70 * torch.randn(256, generator=generator)
        norm.update_preserving(returns.mean(), returns.square().mean(), layer)
    assert float((norm.denormalize(layer(x)) - before).abs().max()) < 0.001 * figures(norm)[1]


def test_popart_moves_the_averages_as_a_plain_update_does() -> None:
    plain, preserving, layer = ValueNorm(), ValueNorm(), random_layer()
    for batch in ([2.0, 6.0], [-50.0, 90.0], [3.0, 3.0]):
        plain.update(*moments(batch))
        preserving.update_preserving(*moments(batch), layer)
    for name, value in plain.state_dict().items():
        assert torch.equal(preserving.state_dict()[name], value), name


@torch.no_grad()
def test_a_plain_update_moves_predictions() -> None:
    """PopArt prevents this."""
    norm, layer, x = ValueNorm(), random_layer(), torch.randn(64, 5)
    before = norm.denormalize(layer(x))
    norm.update(*moments([2.0, 6.0]))
    assert float((norm.denormalize(layer(x)) - before).abs().max()) > 1.0


def test_popart_changes_the_layer_in_place() -> None:
    """The optimiser and the flat parameters hold on to these tensors."""
    norm, layer = ValueNorm(), random_layer()
    held = [(id(p), p.data_ptr()) for p in layer.parameters()]
    norm.update_preserving(*moments([2.0, 6.0]), layer)
    assert [(id(p), p.data_ptr()) for p in layer.parameters()] == held
    assert all(p.requires_grad and p.is_leaf for p in layer.parameters())
