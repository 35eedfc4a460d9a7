"""NavRL's three convolutions in native code, forward and backward, for training on a CPU.

Sixteen channels are one vector of an AVX-512 processor; others split it. Per sample, all tensors stay in the fastest cache:

    x    [36, 4]       azimuths, elevations
    one  [40, 16]      azimuths with 2 of zeros before and after, (elevation, channel)
    two  [22, 4, 16]   azimuths with 2 of zeros before and after, elevation, channel
    out  [9, 2, 16]    azimuth, elevation, channel

`lidar_encoder` has the same function as matrix products; tests compare both with Conv2d in float64. The loops are C++, because
the compiler vectorises them. They run on one thread: a run has a rank per core.
"""
# mypy: ignore-errors

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import warp as wp
from torch import Tensor
from torch.autograd.function import once_differentiable

from fledge.core.warp_start import start_warp

wp.set_module_options({"enable_backward": False})
start_warp()

VECTORS = (20, 1, 60, 1, 240, 1)  # of 16 values: kernel and bias of each layer, as `_pack` arranges them

COMMON = """
    typedef float V __attribute__((ext_vector_type(16), aligned(4)));
    typedef int I __attribute__((ext_vector_type(16)));
    const long long* const table_ = (const long long*)table;
    const float* const x = (const float*)table_[0] + item * table_[1];
    float* const one = (float*)table_[2] + item * table_[3] + 32;  // azimuth 0
    float* const two = (float*)table_[4] + item * table_[5] + 128;
    float* const out = (float*)table_[6] + item * 288;
    const V* const w1 = (const V*)table_[7];
    const V *const b1 = w1 + 20, *const w2 = w1 + 21, *const b2 = w1 + 81, *const w3 = w1 + 82, *const b3 = w1 + 322;
    auto fma = [](float a, V b, V c) { return __builtin_elementwise_fma((V)a, b, c); };
"""

_FORWARD = """
    auto elu = [](V x) {  // exp(x) - 1 = 2^n * (exp(r) - 1) + 2^n - 1 with x = n * log(2) + r
        const V low = __builtin_elementwise_max(__builtin_elementwise_min(x, (V)0.0f), (V)-80.0f);
        const V n = __builtin_elementwise_roundeven(low * 1.44269504f);
        const V r = __builtin_elementwise_fma(n, (V)-0.693147181f, low);
        V p = __builtin_elementwise_fma(r, (V)(1.0f / 720), (V)(1.0f / 120));
        p = __builtin_elementwise_fma(p, r, (V)(1.0f / 24));
        p = __builtin_elementwise_fma(p, r, (V)(1.0f / 6));
        p = __builtin_elementwise_fma(p, r, (V)0.5f);
        p = __builtin_elementwise_fma(p * r, r, r);
        const V power = __builtin_bit_cast(V, (__builtin_convertvector(n, I) + 127) << 23);
        return x <= 0.0f ? __builtin_elementwise_fma(power, p, power - 1.0f) : x;  // NaN stays NaN
    };
    float padded[160];
    for (int i = 0; i < 160; ++i) padded[i] = i >= 8 && i < 152 ? x[i - 8] : 0.0f;
    for (int i = 0; i < 32; ++i) one[i - 32] = one[576 + i] = 0.0f;
    for (int i = 0; i < 128; ++i) two[i - 128] = two[1152 + i] = 0.0f;
    for (int first = 0; first < 36; first += 12) {
        V sum[12];
        for (int r = 0; r < 12; ++r) sum[r] = *b1;
        for (int j = 0; j < 20; ++j)
            _Pragma("unroll") for (int r = 0; r < 12; ++r) sum[r] = fma(padded[4 * (first + r) + j], w1[j], sum[r]);
        _Pragma("unroll") for (int r = 0; r < 12; ++r) *(V*)(one + 16 * (first + r)) = elu(sum[r]);
    }
    for (int first = 0; first < 18; first += 6) {
        V sum[24];
        _Pragma("unroll") for (int k = 0; k < 24; ++k) sum[k] = *b2;
        for (int tap = 0; tap < 5; ++tap)
            _Pragma("unroll") for (int t = 0; t < 3; ++t)
                for (int i = 0; i < 4; ++i) {
                    const V w = w2[(tap * 3 + t) * 4 + i];
                    const float* const from = one + 16 * (2 * first + tap - 2) + 4 * (t - 1) + i;
                    _Pragma("unroll") for (int r = 0; r < 6; ++r)
                        _Pragma("unroll") for (int v = 0; v < 4; ++v)
                            if (v + t >= 1 && v + t <= 4) sum[4 * r + v] = fma(from[32 * r + 4 * v], w, sum[4 * r + v]);
                }
        _Pragma("unroll") for (int k = 0; k < 24; ++k) *(V*)(two + 16 * (4 * first + k)) = elu(sum[k]);
    }
    V sum[18];
    _Pragma("unroll") for (int k = 0; k < 18; ++k) sum[k] = *b3;
    for (int tap = 0; tap < 5; ++tap)
        _Pragma("unroll") for (int t = 0; t < 3; ++t)
            for (int i = 0; i < 16; ++i) {
                const V w = w3[(tap * 3 + t) * 16 + i];
                const float* const from = two + 64 * (tap - 2) + 16 * (t - 1) + i;
                _Pragma("unroll") for (int r = 0; r < 9; ++r)
                    _Pragma("unroll") for (int v = 0; v < 2; ++v)
                        if (v + t > 0) sum[2 * r + v] = fma(from[128 * r + 32 * v], w, sum[2 * r + v]);
            }
    _Pragma("unroll") for (int k = 0; k < 18; ++k) *(V*)(out + 16 * k) = elu(sum[k]);
"""

_BACKWARD = """
    const float* const grad = (const float*)table_[8] + item * 288;
    const V* const back3 = (const V*)table_[9];  // [tap, t, channel out] of channels in
    const V* const back2 = back3 + 240;  // [tap, elevation out, channel out] of (elevation, channel) in
    V* const dw1 = (V*)table_[10];  // as w1; the gradients are added
    V *const db1 = dw1 + 20, *const dw2 = dw1 + 21, *const db2 = dw1 + 81, *const dw3 = dw1 + 82, *const db3 = dw1 + 322;
    auto slope = [](const float* y, V g) {  // of ELU, by its result
        const V value = *(const V*)y;
        return value > 0.0f ? g : g * value + g;
    };
    float padded[160], g3[11 * 32] = {}, g2[20 * 64] = {}, g1[576];  // g3, g2: with an azimuth of zeros before and after
    for (int i = 0; i < 160; ++i) padded[i] = i >= 8 && i < 152 ? x[i - 8] : 0.0f;
    V bias = *db3;
    for (int k = 0; k < 18; ++k) {
        const V g = slope(out + 16 * k, *(const V*)(grad + 16 * k));
        bias += g;
        *(V*)(g3 + 32 + 16 * k) = g;
    }
    *db3 = bias;
    for (int tap = 0; tap < 5; ++tap)
        _Pragma("unroll") for (int t = 0; t < 3; ++t) {
            V* const to = dw3 + (tap * 3 + t) * 16;
            V sum[16];
            _Pragma("unroll") for (int i = 0; i < 16; ++i) sum[i] = to[i];
            for (int r = 0; r < 9; ++r)
                _Pragma("unroll") for (int v = t ? 0 : 1; v < 2; ++v) {
                    const V g = *(const V*)(g3 + 32 * (r + 1) + 16 * v);
                    const float* const from = two + 64 * (2 * r + tap - 2) + 16 * (2 * v + t - 1);
                    _Pragma("unroll") for (int i = 0; i < 16; ++i) sum[i] = fma(from[i], g, sum[i]);
                }
            _Pragma("unroll") for (int i = 0; i < 16; ++i) to[i] = sum[i];
        }
    bias = *db2;
    for (int odd = 0; odd < 2; ++odd)  // azimuths in: 2 j + odd
        _Pragma("unroll") for (int above = 0; above < 2; ++above) {  // elevations in: 2 v + above
            V sum[18];
            _Pragma("unroll") for (int k = 0; k < 18; ++k) sum[k] = (V)0.0f;
            for (int tap = odd; tap < 5; tap += 2)
                _Pragma("unroll") for (int next = 0; next < 1 + above; ++next)  // the output elevation v, or v + 1
                    for (int o = 0; o < 16; ++o) {
                        const V w = back3[(tap * 3 + (above ? 2 - 2 * next : 1)) * 16 + o];
                        const float* const from = g3 + 32 * (2 - (tap - odd) / 2) + 16 * next + o;
                        _Pragma("unroll") for (int j = 0; j < 9; ++j)
                            _Pragma("unroll") for (int v = 0; v < 2; ++v)
                                if (v + next < 2) sum[2 * j + v] = fma(from[32 * j + 16 * v], w, sum[2 * j + v]);
                    }
            _Pragma("unroll") for (int k = 0; k < 18; ++k) {
                const int place = 64 * (k / 2 * 2 + odd) + 16 * (k % 2 * 2 + above);
                const V g = slope(two + place, sum[k]);
                bias += g;
                *(V*)(g2 + 64 + place) = g;
            }
        }
    *db2 = bias;
    for (int tap = 0; tap < 5; ++tap) {
        V* const to = dw2 + tap * 12;
        V sum[12];
        _Pragma("unroll") for (int k = 0; k < 12; ++k) sum[k] = to[k];
        for (int r = 0; r < 18; ++r)
            _Pragma("unroll") for (int v = 0; v < 4; ++v) {
                const V g = *(const V*)(g2 + 64 * (r + 1) + 16 * v);
                const float* const from = one + 16 * (2 * r + tap - 2) + 4 * (v - 1);
                _Pragma("unroll") for (int k = 0; k < 12; ++k)
                    if (v + k / 4 >= 1 && v + k / 4 <= 4) sum[k] = fma(from[k], g, sum[k]);
            }
        _Pragma("unroll") for (int k = 0; k < 12; ++k) to[k] = sum[k];
    }
    bias = *db1;
    for (int odd = 0; odd < 2; ++odd) {
        V sum[18];
        _Pragma("unroll") for (int k = 0; k < 18; ++k) sum[k] = (V)0.0f;
        for (int tap = odd; tap < 5; tap += 2)
            for (int o = 0; o < 64; ++o) {
                const V w = back2[tap * 64 + o];
                const float* const from = g2 + 64 * (2 - (tap - odd) / 2) + o;
                _Pragma("unroll") for (int j = 0; j < 18; ++j) sum[j] = fma(from[64 * j], w, sum[j]);
            }
        _Pragma("unroll") for (int j = 0; j < 18; ++j) {
            const V g = slope(one + 16 * (2 * j + odd), sum[j]);
            bias += g;
            *(V*)(g1 + 16 * (2 * j + odd)) = g;
        }
    }
    *db1 = bias;
    V sum[20];
    _Pragma("unroll") for (int k = 0; k < 20; ++k) sum[k] = dw1[k];
    for (int r = 0; r < 36; ++r) {
        const V g = *(const V*)(g1 + 16 * r);
        _Pragma("unroll") for (int k = 0; k < 20; ++k) sum[k] = fma(padded[4 * r + k], g, sum[k]);
    }
    _Pragma("unroll") for (int k = 0; k < 20; ++k) dw1[k] = sum[k];
"""


@wp.func_native(COMMON + _FORWARD)
def run_forward(item: wp.int32, table: wp.uint64): ...


@wp.func_native(COMMON + _BACKWARD)
def run_backward(item: wp.int32, table: wp.uint64): ...


@wp.kernel
def convolve(table: wp.uint64):
    """Compute `one`, `two` and `out` of a sample.

    `table` is the address of int64: address and row stride of x, one and two, address of out, address of the packed layers.
    """
    run_forward(wp.tid(), table)


@wp.kernel
def convolve_back(table: wp.uint64):
    """Add the gradients of a sample to those of the packed layers.

    `table` continues with the addresses of the gradients of out, of the kernels packed for the way back (`_pack_back`), and of
    the layers' gradients.
    """
    run_backward(wp.tid(), table)


class NativeConvs(torch.autograd.Function):
    """Return the three layers' output [B, 9 * 2 * 16] for LiDAR [B, 144]; it has gradients of the layers only.

    Arguments after `x`: the first layer's table of elevations (`lidar_encoder.band`), then kernel and bias of each layer.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, band: Tensor, *layers: Tensor) -> Tensor:
        learns = any(ctx.needs_input_grad)
        count = len(x)
        x = x if x.stride(1) == 1 else x.contiguous()
        one, two = (x.new_empty(count if learns else 1, size) for size in (640, 1408))
        out = x.new_empty(count, 288)
        packed = _pack(band, *layers)
        table = _table(x, one, two, out, packed, learns)
        wp.launch(convolve, count, [table.ctypes.data], device="cpu")
        if learns:
            ctx.save_for_backward(x, one, two, out, packed, band, layers[2], layers[4])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, one, two, out, packed, band, kernel2, kernel3 = ctx.saved_tensors
        grad, back, found = grad.contiguous(), _pack_back(band, kernel2, kernel3), torch.zeros_like(packed)
        more = [part.data_ptr() for part in (grad, back, found)]
        table = np.concatenate([_table(x, one, two, out, packed, True), np.array(more)])
        wp.launch(convolve_back, len(x), [table.ctypes.data], device="cpu")
        return None, None, *_unpack(band, found)


def _table(x: Tensor, one: Tensor, two: Tensor, out: Tensor, packed: Tensor, learns: bool) -> np.ndarray:
    strides = [x.stride(0), 640 * learns, 1408 * learns]
    places = [value for part, stride in zip((x, one, two), strides, strict=True) for value in (part.data_ptr(), stride)]
    return np.array([*places, out.data_ptr(), packed.data_ptr()])


def _pack(band: Tensor, *layers: Tensor) -> Tensor:
    """Return the kernels and biases as the native code reads them, [323, 16]."""
    one, bias1, two, bias2, three, bias3 = layers
    first = torch.einsum("oikt,twv->kwvo", one, band).reshape(20, 16)
    kernels = [kernel.permute(2, 3, 1, 0).reshape(-1, 16) for kernel in (two, three)]
    return torch.cat([first, bias1.repeat(1, 4), kernels[0], bias2[None], kernels[1], bias3[None]])


def _pack_back(band: Tensor, two: Tensor, three: Tensor) -> Tensor:
    """Return the kernels of the last two layers as the way back reads them, [560, 16]."""
    folded = torch.einsum("oikt,twv->kvowi", two, band)
    return torch.cat([three.permute(2, 3, 0, 1).reshape(240, 16), folded.reshape(320, 16)])


def _unpack(band: Tensor, found: Tensor) -> list[Tensor]:
    """Return the layers' gradients from those of the packed layers."""
    one, bias1, two, bias2, three, bias3 = found.split(VECTORS)
    first = torch.einsum("kwvo,twv->okt", one.view(5, 4, 4, 4), band).unsqueeze(1)
    kernels = [part.view(5, 3, -1, 16).permute(3, 2, 0, 1) for part in (two, three)]
    return [first, bias1.view(4, 4).sum(0), kernels[0], bias2[0], kernels[1], bias3[0]]
