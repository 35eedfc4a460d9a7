"""Linear: torch's linear layer, whose products in training run in oneDNN on processors with AVX-512.

MKL, which torch calls otherwise, uses half of the vector width on AMD's processors: there oneDNN takes half the time. Outside
training (`eval()`), in exported and compiled networks and on other processors, the layer is exactly torch's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

HAS_ONEDNN = torch.backends.mkldnn.is_available() and "AVX512" in torch.backends.cpu.get_cpu_capability()


def trains_natively(module: nn.Module, x: Tensor) -> bool:
    """Return whether a module may compute float32 `x` on the CPU by other means than torch's operations."""
    if not module.training or torch.jit.is_tracing() or torch.compiler.is_compiling():
        return False
    if torch.is_autocast_enabled("cpu") or any(
        part.dtype != torch.float32 for part in module.parameters(recurse=False)
    ):
        return False
    return x.device.type == "cpu" and x.dtype == torch.float32 and x.dim() == 2 and len(x) > 0


class Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        native = trains_natively(self, x) and x.shape[1] == self.in_features > 0 and self.bias is not None
        product = linear_in_training if native else F.linear
        return product(x, self.weight, self.bias)


def linear_in_training(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return `F.linear(x, weight, bias)` of float32 tensors on the CPU, by oneDNN where it is faster; x is [B, inputs]."""
    return _LinearOneDNN.apply(x, weight, bias) if HAS_ONEDNN else F.linear(x, weight, bias)


class _LinearOneDNN(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        x, grad = x.contiguous(), grad.contiguous()  # products of strided operands are up to a thousand times slower
        outputs, inputs = weight.shape
        # oneDNN is faster with the smaller dimension first
        by_weight = _product(grad.t(), x.t()) if outputs <= 2 * inputs else _product(x.t(), grad.t()).t()
        return _product(grad, weight.t()) if ctx.needs_input_grad[0] else None, by_weight, grad.sum(0)


def _product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `a @ b.t() + bias`."""
    return torch.ops.mkldnn._linear_pointwise(a, b, bias, "none", [], "")
