"""Philox-4x32-10 random numbers in Warp kernels: the same function as in `fledge.core.random`, which explains the counters."""

import warp as wp

from fledge.core.random import M0, M1, W0, W1

TWO_PI = wp.constant(6.283185307179586)
C_M0 = wp.constant(wp.uint32(M0))
C_M1 = wp.constant(wp.uint32(M1))
C_W0 = wp.constant(wp.uint32(W0))
C_W1 = wp.constant(wp.uint32(W1))


@wp.func
def mul_hi(a: wp.uint32, b: wp.uint32) -> wp.uint32:
    return wp.uint32((wp.uint64(a) * wp.uint64(b)) >> wp.uint64(32))


@wp.func
def philox(counter: wp.vec4ui, seed: wp.vec2ui) -> wp.vec4ui:
    """Return four random words for a counter (env, time, purpose, draw)."""
    c0 = counter[0]
    c1 = counter[1]
    c2 = counter[2]
    c3 = counter[3]
    k0 = seed[0]
    k1 = seed[1]
    for _r in range(10):
        h0 = mul_hi(c0, C_M0)
        l0 = c0 * C_M0
        h1 = mul_hi(c2, C_M1)
        l1 = c2 * C_M1
        c0 = h1 ^ c1 ^ k0
        c1 = l1
        c2 = h0 ^ c3 ^ k1
        c3 = l0
        k0 = k0 + C_W0
        k1 = k1 + C_W1
    return wp.vec4ui(c0, c1, c2, c3)


@wp.func
def unit(word: wp.uint32) -> float:
    """Return a float in [0, 1) made of the highest 24 bits of a word."""
    return float(word >> wp.uint32(8)) * 5.9604644775390625e-08


@wp.func
def uniform4(env: wp.uint32, time: wp.uint32, purpose: wp.uint32, draw: wp.uint32, seed: wp.vec2ui) -> wp.vec4:
    """Return four uniform random floats in [0, 1) for a counter (env, time, purpose, draw)."""
    r = philox(wp.vec4ui(env, time, purpose, draw), seed)
    return wp.vec4(unit(r[0]), unit(r[1]), unit(r[2]), unit(r[3]))


@wp.func
def normal2(u1: float, u2: float) -> wp.vec2:
    """Return two standard normal numbers from two uniform ones (Box-Muller)."""
    radius = wp.sqrt(-2.0 * wp.log(wp.max(1.0 - u1, 1.0e-12)))
    return wp.vec2(radius * wp.cos(TWO_PI * u2), radius * wp.sin(TWO_PI * u2))
