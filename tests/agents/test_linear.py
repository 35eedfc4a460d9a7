"""Linear in training equals torch's layer in float64, and is exactly torch's layer otherwise."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fledge.agents import linear as module
from fledge.agents.linear import Linear
from fledge.agents.mlp import mlp


@pytest.mark.parametrize(("batch", "inputs", "outputs"), [(1, 3, 5), (100, 50, 128), (300, 128, 64), (257, 9, 1)])
def test_outputs_and_gradients_equal_float64(batch: int, inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    layer = Linear(inputs, outputs)
    plain = nn.Linear(inputs, outputs, dtype=torch.float64)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(batch, 2 * inputs)[:, inputs:].requires_grad_()  # not contiguous
    wide = x.detach().double().requires_grad_()
    weights = torch.randn(outputs, batch).t()
    (layer(x) * weights).sum().backward()
    (plain(wide) * weights).sum().backward()
    pairs = [(layer(x), plain(wide)), (x.grad, wide.grad)]
    pairs += [(a.grad, b.grad) for a, b in zip(layer.parameters(), plain.parameters(), strict=True)]
    for a, b in pairs:
        assert a is not None
        assert b is not None
        assert float((a - b).detach().abs().max()) < 1e-5 * float(b.detach().abs().max())


def test_only_training_leaves_torchs_products(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    right = module.linear_in_training
    monkeypatch.setattr(module, "linear_in_training", lambda *args: (calls.append(1), right(*args))[1])
    net, x = mlp(6, [8, 4]), torch.randn(3, 6)
    net(x)
    assert len(calls) == 2
    plain = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU())
    plain.load_state_dict(net.state_dict())
    assert torch.equal(net.eval()(x), plain(x))
    net.train().double()(x.double())  # float64 is torch's as well
    net.float()(torch.zeros(0, 6))  # as is an empty batch
    torch.jit.trace(net, x, check_trace=False)
    assert len(calls) == 2


@pytest.mark.parametrize(("inputs", "outputs"), [(50, 128), (128, 64)])
def test_products_get_dense_operands(inputs: int, outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def dense(tensor: torch.Tensor) -> bool:
        return tensor.is_contiguous() or tensor.t().is_contiguous()

    seen: list[bool] = []
    right = module._product
    monkeypatch.setattr(module, "HAS_ONEDNN", True)
    monkeypatch.setattr(
        module, "_product", lambda a, b, *rest: (seen.append(dense(a) and dense(b)), right(a, b, *rest))[1]
    )
    layer = Linear(inputs, outputs)
    layer(
        torch.randn(40, 200)[:, :inputs].requires_grad_()
    ).sum().backward()  # both operands of the backward are strided
    assert seen[1:] == [True, True]


def test_what_only_torch_can_do_is_left_to_torch() -> None:
    x = torch.randn(4, 6)
    unbiased = Linear(6, 3, bias=False)
    unbiased(x).sum().backward()
    assert torch.equal(unbiased.weight.grad, x.sum(0).expand(3, 6))
    assert Linear(0, 3)(torch.zeros(4, 0)).shape == (4, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert Linear(6, 3)(x).dtype == torch.bfloat16
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        Linear(6, 3)(torch.randn(4, 5))
