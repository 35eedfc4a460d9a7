"""The random streams against Random123's published vectors, and the kernels' version against the host's."""

import numpy as np
import pytest
import warp as wp

import fledge.tasks.navigation.physics  # noqa: F401 - quiets Warp before the first kernel
from fledge.core.random import derive_seed, philox, split_seed, uniform
from fledge.envs.kernel_random import philox as warp_philox
from fledge.envs.kernel_random import uniform4

# Random123's kat_vectors for philox4x32-10: counter words, key words, answer
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@wp.kernel(enable_backward=False)
def draw(
    counters: wp.array(dtype=wp.vec4ui),
    keys: wp.array(dtype=wp.vec2ui),
    bits: wp.array(dtype=wp.vec4ui),
    floats: wp.array(dtype=wp.vec4),
):
    i = wp.tid()
    c = counters[i]
    bits[i] = warp_philox(c, keys[i])
    floats[i] = uniform4(c[0], c[1], c[2], c[3], keys[i])


def draw_in_kernel(counters: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    n = len(counters)
    bits = wp.zeros(n, dtype=wp.vec4ui, device="cpu")
    floats = wp.zeros(n, dtype=wp.vec4, device="cpu")
    inputs = [wp.array(counters, dtype=wp.vec4ui, device="cpu"), wp.array(keys, dtype=wp.vec2ui, device="cpu")]
    wp.launch(draw, n, [*inputs, bits, floats], device="cpu")
    return bits.numpy(), floats.numpy()


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_host_philox_gives_random123s_known_answers(counter: str, key: str, answer: str) -> None:
    low, high = words(key)
    assert philox(words(counter), low | high << 32).tolist() == words(answer)


def test_kernel_philox_gives_random123s_known_answers() -> None:
    counters = np.array([words(c) for c, _, _ in KNOWN_ANSWERS], dtype=np.uint32)
    keys = np.array([words(k) for _, k, _ in KNOWN_ANSWERS], dtype=np.uint32)
    bits, _ = draw_in_kernel(counters, keys)
    assert bits.tolist() == [words(a) for _, _, a in KNOWN_ANSWERS]


def test_kernel_and_host_agree_bit_for_bit_on_random_counters_and_seeds() -> None:
    rng = np.random.default_rng(1)
    counters = rng.integers(0, 2**32, size=(4096, 4), dtype=np.uint32)
    for seed in (0, 1, 2**32, 2**63 - 1, int(rng.integers(0, 2**63))):
        keys = np.broadcast_to(np.array(split_seed(seed), dtype=np.uint32), (4096, 2))
        bits, floats = draw_in_kernel(counters, np.ascontiguousarray(keys))
        np.testing.assert_array_equal(bits, philox(counters, seed))
        np.testing.assert_array_equal(floats, uniform(counters, seed))


def test_uniform_draws_fill_the_unit_interval_and_never_reach_one() -> None:
    counters = np.zeros((50_000, 4), dtype=np.uint32)
    counters[:, 3] = np.arange(50_000)
    u = uniform(counters, 7)
    assert u.dtype == np.float32
    assert u.min() >= 0.0
    assert u.max() < 1.0
    # 200,000 draws: the mean's standard error is 0.00065, a decile's share is 0.1 ± 0.0007
    assert abs(float(u.mean()) - 0.5) < 0.003
    shares = np.histogram(u, bins=10, range=(0, 1))[0] / u.size
    assert np.abs(shares - 0.1).max() < 0.004
    assert np.abs(np.corrcoef(u.T) - np.eye(4)).max() < 0.02


def test_derived_seeds_are_legal_and_differ_by_word_and_position() -> None:
    seeds = {derive_seed(s, *w) for s in (0, 1) for w in ((), (1,), (0, 1), (2,), (1, 2), (2, 1))}
    assert len(seeds) == 12
    assert all(0 <= s < 2**63 for s in seeds)


def test_a_seeds_high_word_matters() -> None:
    counter = [1, 2, 3, 4]
    assert philox(counter, 5).tolist() != philox(counter, 5 + 2**32).tolist()
