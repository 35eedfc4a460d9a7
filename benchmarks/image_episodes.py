"""Episodes of made-up images for the replay benchmark, each content with a known amount of noise.

Contract
    `CONTENTS[name].episodes(count, seed)` yields episodes with `count` transitions in total: "image" [T + 1, ...] with the
    final one, and "action", "reward", "terminated" [T]. No Atari recordings are used: `arcade` draws frames like
    theirs, at twice the resolution, and averages 2 x 2 pixels, so that moving edges have intermediate grays.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

Episode = dict[str, np.ndarray]
Rng = np.random.Generator
FRAME_SKIP = 4  # of the arcade's moves: an agent sees every fourth frame
STACK = 4
DISTINCT = 10_000  # transitions that are drawn, because drawing takes longer than what is measured


def _boxes(canvas: np.ndarray, top: np.ndarray, left: np.ndarray, height: int, width: int, value: object) -> None:
    for a, b in zip(top.astype(int).tolist(), left.astype(int).tolist(), strict=True):
        canvas[a : a + height, b : b + width] = value


def arcade(rng: Rng, length: int, size: int = 84, channels: int = 1) -> np.ndarray:
    """Return frames [length, size, size, channels] uint8 of a game: nothing is noisy, and most of the picture stands still.

    A sky in bands, walls and a ground; 60 bricks, of which one in 25 frames goes; a paddle, a ball and three bombs that
    bounce; a formation of 18 enemies with two shapes that moves every second frame; two shots that flicker (drawn in every
    second frame); a score of four digits that counts.
    """
    big, step = 2 * size, size / 84
    tint = rng.uniform(0.7, 1.0, (8, channels)) if channels > 1 else np.ones((8, 1))

    def colour(gray: int, which: int) -> np.ndarray:
        return (gray * tint[which]).astype(np.uint8)

    still = np.zeros((big, big, channels), np.uint8)
    for band in range(6):
        still[band * big // 6 :] = colour(20 + 12 * band, 0)
    still[: big // 12] = 0
    still[:, :6] = still[:, -6:] = still[big // 12 : big // 12 + 6] = colour(142, 1)
    still[-14:] = colour(96, 2)
    out = np.empty((length, size, size, channels), np.uint8)
    bricks = np.ones((3, 20), bool)
    places, speeds = rng.uniform(0.4, 0.8, (4, 2)) * big, rng.uniform(-3.0, 3.0, (4, 2)) * step
    paddle, drift = big / 2, 0.0
    for t in range(length):
        canvas = still.copy()
        if t % 25 == 24:
            bricks[rng.integers(3), rng.integers(20)] = False
        rows, columns = np.nonzero(bricks)
        _boxes(canvas, big * 0.2 + 8 * rows, 8 + columns * (big - 16) / 20, 6, int(7 * step), colour(180, 3))
        swing = 16 * step * np.sin(t // 2 * 0.12)
        for row in range(3):
            left = big * 0.2 + np.arange(6) * 20 * step + swing
            top = np.full(6, big * 0.35 + 14 * row + t // 60)
            _boxes(canvas, top, left, 8, int(10 * step), colour(210 - 20 * row, 4))
            _boxes(canvas, top + (2 if t // 8 % 2 else 4), left + 2, 2, int(5 * step), colour(60, 4))
        for _ in range(FRAME_SKIP):
            places += speeds
            hit = (places < 0.12 * big) | (places > 0.92 * big)
            speeds[hit] *= -1
            places = np.clip(places, 0.12 * big, 0.92 * big)
        _boxes(canvas, places[:1, 0], places[:1, 1], 4, 4, colour(236, 5))
        _boxes(canvas, places[1:, 0], places[1:, 1], 6, 3, colour(200, 6))
        drift = np.clip(drift + rng.normal(0, 1.5), -6, 6)
        paddle = float(np.clip(paddle + drift, 10, big - 40))
        _boxes(canvas, np.array([0.93 * big]), np.array([paddle]), 6, int(28 * step), colour(200, 7))
        if t % 2:
            _boxes(canvas, places[2:, 0] * 0.7, places[2:, 1], 10, 2, colour(255, 5))
        for digit in range(4):
            segments = (7 * (t // 12 // 10 ** (3 - digit) % 10) + 3) % 64  # made-up glyphs of 6 bits
            for bit in range(6):
                if segments >> bit & 1:
                    a, b = 2 + 4 * (bit // 2), big // 2 + 14 * digit + 5 * (bit % 2)
                    canvas[a : a + 4, b : b + 5] = colour(220, 5)
        out[t] = (canvas.reshape(size, 2, size, 2, channels).sum((1, 3), dtype=np.uint16) // 4).astype(np.uint8)
    return out


def stacked(planes: np.ndarray) -> np.ndarray:
    """Return [T, height, width, STACK]: each frame with the ones before it; the first is repeated, as Gymnasium does."""
    before = np.concatenate([planes[:1]] * (STACK - 1) + [planes])
    return np.stack([before[k : k + len(planes)] for k in range(STACK)], -1)


def camera(rng: Rng, length: int) -> np.ndarray:
    """Return frames [length, 84, 84] uint8 of a camera that moves over a textured ground, with noise of 2 gray levels."""
    ground = rng.normal(0, 1, (160, 160))
    for axis in (0, 1):  # smooth
        ground = np.sum([np.roll(ground, k, axis) for k in range(-3, 4)], 0)
    ground = 128 + 50 * ground / ground.std()
    place = 38 + 30 * np.sin(np.arange(length)[:, None] * np.array([0.011, 0.017]) + rng.uniform(0, 6, 2))
    frames = np.stack([ground[a : a + 84, b : b + 84] for a, b in place.astype(int).tolist()])
    return np.clip(frames + rng.normal(0, 2, frames.shape), 0, 255).astype(np.uint8)


def depth(rng: Rng, length: int) -> np.ndarray:
    """Return depth images [length, 48, 64] float32, m: ground, wall and six pillars passed in flight, with noise.

    The noise is that of a stereo camera, 0.2 % of the square of the distance; 1 % of the pixels return nothing (0).
    """
    rows, columns = np.mgrid[:48, :64]
    out = np.empty((length, 48, 64), np.float32)
    pillars = rng.uniform([1.0, -4.0], [12.0, 4.0], (6, 2))
    for t in range(length):
        slope = (rows - 24 + 3 * np.sin(t * 0.05)) / 48
        image = np.minimum(12.0, 1.5 / np.maximum(slope, 1e-3))
        pillars[:, 0] -= 0.08
        passed = pillars[:, 0] < 0.5
        pillars[passed] = rng.uniform([10.0, -4.0], [12.0, 4.0], (int(passed.sum()), 2))
        for ahead, aside in pillars:
            image = np.where(np.abs(columns - 32 - 40 * aside / ahead) < 8 / ahead, np.minimum(image, ahead), image)
        image += rng.normal(0, 1, image.shape) * 0.002 * image**2
        image[rng.random(image.shape) < 0.01] = 0
        out[t] = image
    return out


@dataclass(frozen=True)
class Content:
    """Images of one kind: `make(rng, frames)` returns [frames, ...]; `hard` ones have noise, which no codec can shrink."""

    title: str
    make: Callable[[Rng, int], np.ndarray]
    hard: bool

    def episodes(self, count: int, seed: int) -> Iterator[Episode]:
        """Yield episodes of `count` transitions in total; after `DISTINCT` of them, the same again."""
        rng = np.random.default_rng(seed)
        made: list[Episode] = []
        for number in itertools.count():
            if sum(len(e["reward"]) for e in made) < DISTINCT:
                length = int(rng.integers(200, 800))
                end = np.zeros(length, bool)
                end[-1] = True
                steps: Episode = {
                    "action": rng.integers(0, 6, length),
                    "reward": rng.random(length, np.float32),
                    "terminated": end,
                }
                made.append({"image": np.ascontiguousarray(self.make(rng, length + 1)), **steps})
            episode = made[number % len(made)]
            if len(episode["reward"]) >= count:
                yield {key: values[: count + (key == "image")] for key, values in episode.items()}
                return
            count -= len(episode["reward"])
            yield episode


CONTENTS = {
    "arcade_stack": Content("Arcade, 84x84x4 uint8", lambda rng, n: stacked(arcade(rng, n)[..., 0]), False),
    "arcade_rgb": Content("Arcade, 64x64x3 uint8", lambda rng, n: arcade(rng, n, 64, 3), False),
    "camera_stack": Content("Noisy camera, 84x84x4 uint8", lambda rng, n: stacked(camera(rng, n)), True),
    "depth_mm": Content("Noisy depth, 48x64 uint16", lambda rng, n: (1000 * depth(rng, n)).astype(np.uint16), True),
    "depth_m": Content("Noisy depth, 48x64 float32", depth, True),
}
