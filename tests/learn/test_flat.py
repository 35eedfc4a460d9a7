"""FlatParameters: one tensor of values, one of gradients, and the module's own names for parts of both."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from fledge.learn import flat as flat_module
from fledge.learn.flat import FlatParameters


def small_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Tanh(), nn.Linear(3, 2))


def random_input(rows: int = 16) -> Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(1))


def loss_of(module: nn.Module, x: Tensor) -> Tensor:
    return module(x).square().sum()


def joined(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def lies_within(part: Tensor, whole: Tensor) -> bool:
    """Whether a tensor's memory is inside another's."""
    first, size = whole.data_ptr(), whole.numel() * whole.element_size()
    return first <= part.data_ptr() and part.data_ptr() + part.numel() * part.element_size() <= first + size


def assert_still_views(flat: FlatParameters, module: nn.Module) -> None:
    offset = 0
    for name, p in module.named_parameters():
        if not p.requires_grad:
            continue
        part = slice(offset, offset + p.numel())
        assert lies_within(p, flat.values), name
        assert p.grad is not None, name
        assert lies_within(p.grad, flat.grads), name
        assert torch.equal(p.detach().flatten(), flat.values.detach()[part]), name
        assert torch.equal(p.grad.flatten(), flat.grads[part]), name
        offset += p.numel()
    assert offset == flat.values.numel() == flat.grads.numel()


# ------------------------------------------------------------------------------------------------------------------ views


def test_the_flat_values_are_the_parameters_in_order() -> None:
    module = small_network()
    want = joined(module)
    flat = FlatParameters(module)
    assert torch.equal(flat.values.detach(), want)
    assert torch.equal(flat.grads, torch.zeros_like(want))
    assert_still_views(flat, module)


def test_the_module_computes_what_it_did() -> None:
    module, x = small_network(), random_input()
    before = module(x)
    FlatParameters(module)
    assert torch.equal(module(x), before)


def test_parameters_keep_their_identity_shape_and_names() -> None:
    module = small_network()
    before = {name: (id(p), p.shape) for name, p in module.named_parameters()}
    FlatParameters(module)
    assert {name: (id(p), p.shape) for name, p in module.named_parameters()} == before


def test_writing_the_flat_values_writes_the_parameters_and_back() -> None:
    module = small_network()
    flat = FlatParameters(module)
    with torch.no_grad():
        flat.values.copy_(torch.arange(float(flat.values.numel())))
        # 4·3 weights, 3 biases, 3 + 3 of the norm, then the second layer's
        assert module[0].weight.tolist()[1] == [4.0, 5.0, 6.0, 7.0]
        assert module[0].bias.tolist() == [12.0, 13.0, 14.0]
        assert module[3].weight.tolist() == [[21.0, 22.0, 23.0], [24.0, 25.0, 26.0]]
        module[3].bias.fill_(-1.0)
    assert flat.values.detach()[-2:].tolist() == [-1.0, -1.0]


def test_loading_a_state_dict_writes_the_flat_values() -> None:
    module, other = small_network(), small_network()
    nn.init.normal_(other[0].weight)
    flat = FlatParameters(module)
    module.load_state_dict(other.state_dict())
    assert torch.equal(flat.values.detach(), joined(other))
    assert_still_views(flat, module)


def test_parameters_that_are_not_contiguous_keep_their_values() -> None:
    module = nn.Linear(3, 2, bias=False)
    module.weight = nn.Parameter(torch.arange(6.0).view(3, 2).t())
    flat = FlatParameters(module)
    assert module.weight.tolist() == [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]
    assert_still_views(flat, module)


def test_frozen_parameters_stay_outside() -> None:
    module = small_network()
    module[0].requires_grad_(False)
    frozen = module[0].weight.detach().clone()
    flat = FlatParameters(module)
    assert flat.values.numel() == 3 + 3 + 6 + 2
    with torch.no_grad():
        flat.values.zero_()
    assert torch.equal(module[0].weight, frozen)
    loss_of(module, random_input()).backward()
    assert module[0].weight.grad is None
    assert_still_views(flat, module)


def test_a_parameter_shared_by_two_layers_is_held_once() -> None:
    module = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    module[1].weight = module[0].weight
    flat = FlatParameters(module)
    assert flat.values.numel() == 9
    module(torch.ones(1, 3)).sum().backward()
    assert lies_within(module[1].weight.grad, flat.grads)


# -------------------------------------------------------------------------------------------------------------- gradients


def test_gradients_arrive_in_the_flat_tensor() -> None:
    module, twin, x = small_network(), small_network(), random_input()
    flat = FlatParameters(module)
    loss_of(module, x).backward()
    loss_of(twin, x).backward()
    want = torch.cat([p.grad.flatten() for p in twin.parameters()])
    assert want.any()
    torch.testing.assert_close(flat.grads, want)
    assert flat.values.grad is flat.grads
    assert_still_views(flat, module)


def test_gradients_add_up_until_they_are_zeroed() -> None:
    module, x = small_network(), random_input()
    flat = FlatParameters(module)
    loss_of(module, x).backward()
    once = flat.grads.clone()
    loss_of(module, x).backward()
    torch.testing.assert_close(flat.grads, 2 * once)
    flat.zero_grad()
    assert not flat.grads.any()
    assert_still_views(flat, module)
    loss_of(module, x).backward()
    torch.testing.assert_close(flat.grads, once)


@pytest.mark.parametrize("fused", [False, True])
def test_adam_on_the_flat_tensor_equals_adam_on_each_parameter(fused: bool) -> None:
    module, twin = small_network(), small_network()
    flat = FlatParameters(module)
    ours = torch.optim.Adam([flat.values], lr=0.01, fused=fused)
    plain = torch.optim.Adam(twin.parameters(), lr=0.01)
    for k in range(10):
        x = random_input() * (1 + k)
        flat.zero_grad()
        plain.zero_grad()
        loss_of(module, x).backward()
        loss_of(twin, x).backward()
        ours.step()
        plain.step()
    assert not torch.equal(flat.values.detach(), joined(small_network()))
    for a, b in zip(module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert_still_views(flat, module)


def test_copies_of_a_module_have_buffers_of_their_own() -> None:
    module = small_network()
    flat = FlatParameters(module)
    target = copy.deepcopy(module)
    target_flat = FlatParameters(target)
    with torch.no_grad():
        flat.values.zero_()
    assert target_flat.values.detach().any()
    assert_still_views(target_flat, target)


# --------------------------------------------------------------------------------------------------------------- clipping


def with_grads(*figures: float) -> tuple[FlatParameters, nn.Linear]:
    """A layer of two weights and a bias with these gradients."""
    module = nn.Linear(2, 1)
    flat = FlatParameters(module)
    flat.grads.copy_(torch.tensor(figures))
    return flat, module


def test_clipping_by_hand() -> None:
    flat, module = with_grads(2.0, -3.0, 6.0)  # norm 7
    assert float(flat.clip_grad_norm(3.5)) == pytest.approx(7.0)
    assert flat.grads.tolist() == pytest.approx([1.0, -1.5, 3.0], rel=1e-5)
    assert module.weight.grad.tolist()[0] == pytest.approx([1.0, -1.5], rel=1e-5)
    assert float(flat.clip_grad_norm(100.0)) == pytest.approx(3.5, rel=1e-5)


@pytest.mark.parametrize("limit", [7.1, 1e9, math.inf])
def test_gradients_within_the_limit_are_not_touched(limit: float) -> None:
    flat, _ = with_grads(2.0, -3.0, 6.0)
    assert float(flat.clip_grad_norm(limit)) == pytest.approx(7.0)
    assert flat.grads.tolist() == [2.0, -3.0, 6.0]


def test_a_zero_gradient_stays_zero() -> None:
    flat, _ = with_grads(0.0, 0.0, 0.0)
    assert float(flat.clip_grad_norm(1.0)) == 0.0
    assert flat.grads.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("limit", [0.01, 1.0, 1000.0])
def test_clipping_equals_torchs_over_all_parameters(limit: float) -> None:
    module, twin, x = small_network(), small_network(), random_input()
    flat = FlatParameters(module)
    loss_of(module, x).backward()
    loss_of(twin, x).backward()
    norm = flat.clip_grad_norm(limit)
    torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(twin.parameters(), limit))
    for a, b in zip(module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    assert float(torch.linalg.vector_norm(flat.grads)) <= limit * (1 + 1e-6)
    assert_still_views(flat, module)


def test_a_broken_gradient_shows_in_the_norm() -> None:
    for bad in (math.nan, math.inf):
        flat, _ = with_grads(1.0, bad, 1.0)
        assert not math.isfinite(float(flat.clip_grad_norm(1.0)))


# ------------------------------------------------------------------------------------------------------------------ ranks


def test_ranks_average_their_gradients_with_one_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    flat, module = with_grads(2.0, -3.0, 6.0)
    sent: list[list[float]] = []

    def all_reduce(tensor: Tensor) -> None:
        """Two other ranks: one with gradients of 1, one of 3."""
        sent.append(tensor.tolist())
        tensor.add_(4.0)

    monkeypatch.setattr(flat_module.dist, "all_reduce", all_reduce)
    flat.average_grads(3)
    assert sent == [[2.0, -3.0, 6.0]]
    assert flat.grads.tolist() == pytest.approx([2.0, 1 / 3, 10 / 3])
    assert module.bias.grad.tolist() == pytest.approx([10 / 3])


def test_a_single_rank_needs_no_process_group() -> None:
    flat, _ = with_grads(2.0, -3.0, 6.0)
    flat.average_grads(1)
    assert flat.grads.tolist() == [2.0, -3.0, 6.0]
