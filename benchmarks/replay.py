"""`python -m benchmarks replay`: size and speed of `DictReplayBuffer` beside TorchRL's storages and LZ4 episodes.

A policy flies the navigation task (350 columns, 80 moving obstacles), and the transitions are added to every buffer. All
must return the same data for the same indices before adding and sampling batches of 256 are timed, in turns. Then the
layouts are compared, and millions of frames pass through a bounded buffer while the memory of the process is measured.
Before that, images are compared with a ring buffer of NumPy arrays (`replay_images`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from typing import Any, get_args

import numpy as np
import torch
from rich.console import RenderableType
from rich.table import Table

from benchmarks import replay_candidates as candidates
from benchmarks.baselines.lz4_replay import LZ4Replay
from benchmarks.replay_flights import FLIGHT, MAPS, Episode, fly
from benchmarks.replay_images import measure_images, render_images
from benchmarks.replay_memory import measure_memory
from benchmarks.tables import machine_line, table
from fledge.core.errors import InputError
from fledge.core.machine import default_threads, keep_freed_memory, machine_info
from fledge.replay import DictReplayBuffer
from fledge.replay.stores.plan import Layout

PARTS = {"flight": (3, FLIGHT), "flight_navrl_rate": (1, FLIGHT), "grid_maps": (3, MAPS)}  # decimation, observations
TITLES = {
    "flight": "In flight, 20.8 decisions a second",
    "flight_navrl_rate": "In flight, 62.5 decisions a second",
    "grid_maps": "224x224 grid maps",
}
LAYOUT_FRAMES = 10_000
IMAGES = 100_000  # transitions of images without noise
GROWTH_MIB = 16.0  # what "flat" allows: the allocator's own noise


def run(
    frames: int = 100_000,
    memory_frames: int = 10_000_000,
    quick: bool = False,
    seed: int = 0,
    policy: str = "fledge-reflex",
    only_images: bool = False,
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Return sizes, rates, layouts, memory and bars; JSON-able.

    Args:
        frames: Transitions to fly, twice; grid maps are a thirtieth of that.
        memory_frames: Frames to pass through the bounded buffer.
        quick: Measure a few thousand transitions, few batches, a hundred thousand frames.
        seed: Random seed of maps, flights and draws.
        policy: The policy that flies: any name or path for `load_policy`, NavRL's `.pt` file included.
        only_images: Measure images only; no policy flies.
        on_progress: Called with a line before each part.

    Raises:
        FledgeError: if a buffer returns other data than was stored; nothing is timed then.
    """
    if frames < 3_000 or memory_frames < 1_000:
        raise InputError(f"frames is {frames} and memory_frames {memory_frames}; at least 3000 and 1000 are needed.")
    say = on_progress or (lambda text: None)
    keep_freed_memory()  # as in training, for every buffer
    frames, memory_frames, batches = (4_000, 100_000, 10) if quick else (frames, memory_frames, 200)
    result: dict[str, Any] = {
        "machine": machine_info(),
        "settings": {"frames": frames, "batch": candidates.BATCH, "policy": policy, "seed": seed, "quick": quick},
        "parts": {},
        "layouts": {},
        "images": measure_images(2_000 if quick else IMAGES, 3 if quick else 40, seed, say),
    }
    for name, (decimation, obs) in ({} if only_images else PARTS).items():
        maps = obs == MAPS
        count = max(frames // 30, 300) if maps else frames
        say(f"flying {count:,} decisions for {name}")
        episodes = fly(count, seed, policy, decimation, maps)
        result["parts"][name] = measure(episodes, obs, max(batches // (10 if maps else 1), 5), seed, say)
        if name != "flight_navrl_rate":
            result["layouts"][name] = measure_layouts(episodes, obs, max(batches // 10, 5), seed, say)
        if name == "flight":
            result["memory"] = measure_memory(episodes, keys_of(episodes, obs), memory_frames, say)
    result["bars"] = bars(result)
    return result


def keys_of(episodes: list[Episode], obs: tuple[str, ...]) -> list[str]:
    """Return the keys of a batch: the episode's and the next observations."""
    return [*episodes[0], *(f"next_{k}" for k in obs)]


def measure(
    episodes: list[Episode], obs: tuple[str, ...], batches: int, seed: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Fill every buffer, compare the data they return, and time them in turns."""
    total = sum(len(e["reward"]) for e in episodes)
    both = candidates.doubled(episodes, obs)
    flat = {k: torch.from_numpy(np.concatenate([e[k] for e in both])) for k in both[0]}
    say("filling the buffers")
    buffer = DictReplayBuffer(total, keys_of(episodes, obs), seed=seed)
    lz4_buffers = {name: LZ4Replay(default_threads(), seed, level) for name, level in candidates.LZ4.items()}
    with tempfile.TemporaryDirectory() as folder, buffer:
        filled = {
            candidates.FLEDGE: candidates.ours(buffer, episodes),
            **{name: candidates.lz4_episodes(replay, both) for name, replay in lz4_buffers.items()},
            **candidates.torchrl(flat, folder),
        }
        say("comparing what they return")
        candidates.check_parity(filled, flat, np.random.default_rng(seed))
        say(f"sampling batches of {candidates.BATCH}")
        candidates.time_in_turns(filled, batches)
        stored = buffer.stats()["keys"]
        lz4 = {k: min(b.key_bytes()[k] for b in lz4_buffers.values()) / total for k in stored}
        return {
            "transitions": total,
            "episodes": len(episodes),
            "raw_bytes_per_frame": sum(v[0].nbytes for v in flat.values()),
            "keys": {
                k: {"raw": row["raw"], "fledge": row["bytes_per_frame"], "codec": row["codec"], "lz4": lz4[k]}
                for k, row in stored.items()
            },
            "buffers": {name: candidate.figures() for name, candidate in filled.items()},
        }


def measure_layouts(
    episodes: list[Episode], obs: tuple[str, ...], batches: int, seed: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Compare the three layouts of our buffer on the same episodes."""
    chosen: list[Episode] = []
    for episode in episodes:
        if sum(len(e["reward"]) for e in chosen) < LAYOUT_FRAMES:
            chosen.append(episode)
    total = sum(len(e["reward"]) for e in chosen)
    say("comparing the layouts")
    layouts: tuple[Layout, ...] = get_args(Layout)
    buffers = {name: DictReplayBuffer(total, keys_of(chosen, obs), layout=name, seed=seed) for name in layouts}
    filled: dict[str, candidates.Candidate] = {n: candidates.ours(buffer, chosen) for n, buffer in buffers.items()}
    candidates.time_in_turns(filled, batches)
    for buffer in buffers.values():
        buffer.close()
    return {name: candidate.figures() for name, candidate in filled.items()}


def bars(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return each target beside the measured value; `at_most` says on which side of `wanted` the value must lie."""
    rows: list[dict[str, Any]] = []

    def bar(name: str, value: float, wanted: float, at_most: bool = False) -> None:
        met = value <= wanted if at_most else value >= wanted
        rows.append({"bar": name, "measured": value, "wanted": wanted, "at_most": at_most, "met": bool(met)})

    if arcade := result.get("images", {}).get("arcade_stack"):
        for batch, times in arcade["sampling"].items():
            bar(
                f"84x84x4 images: sampling {batch}, CPU time of ours / ring",
                times["uniform"]["cpu"]["median"],
                6.0,
                True,
            )
        bar("84x84x4 images: memory, ring / ours", arcade["smaller"], 20.0)
        bar("84x84x4 images: filling, CPU time of ours / ring", arcade["filling"]["total_ratio"], 1.0, True)
    for part, found in result["parts"].items():
        keys, buffers = found["keys"], found["buffers"]
        ours = buffers[candidates.FLEDGE]
        if "lidar" in keys:
            bar(f"{part}: LiDAR, raw / ours", keys["lidar"]["raw"] / keys["lidar"]["fledge"], 8.0)
        lz4 = sum(row["lz4"] for row in keys.values())
        bar(f"{part}: transition, LZ4 (each frame once) / ours", lz4 / ours["bytes_per_frame"], 1.3)
        bar(f"{part}: largest field, ours / raw", max(r["fledge"] / r["raw"] for r in keys.values()), 1.0, True)
        fastest = max(buffers[name]["sample_rate"] for name in candidates.LZ4)
        bar(f"{part}: sampling, ours / LZ4 episodes", ours["sample_rate"] / fastest, 10.0)
        for other, wanted in ((candidates.LISTED, 10.0), (candidates.TENSOR, 0.5)):
            if other in buffers:
                bar(f"{part}: sampling, ours / {other}", ours["sample_rate"] / buffers[other]["sample_rate"], wanted)
    if memory := result.get("memory"):
        name = f"memory: growth over {memory['frames'] / 1e6:.1f} million frames, MiB"
        bar(name, memory["growth_bytes"] / 2**20, GROWTH_MIB, True)
    return rows


# ---- printing --------------------------------------------------------------------------------------------------------


def render(result: Mapping[str, Any]) -> list[RenderableType]:
    """Return the figures of `run` as rich renderables."""
    settings, memory = result["settings"], result.get("memory")
    shown: list[RenderableType] = [
        f"{machine_line(result['machine'], 'start')} · {settings['policy']} flies, batches of {settings['batch']}"
    ]
    shown += render_images(result["images"])
    if memory is None:
        return [*shown, _bars(result["bars"])]
    if candidates.TENSOR not in result["parts"]["flight"]["buffers"]:
        shown.append("TorchRL is not installed, so its storages are missing below: pip install 'fledge[torchrl]'.")
    for part, found in result["parts"].items():
        size = f"{found['transitions']:,} transitions, {found['raw_bytes_per_frame']:,} bytes raw each"
        shown += [_buffers(f"{TITLES[part]}: {size}", found["buffers"]), _fields(found["keys"])]
    for part, found in result["layouts"].items():
        shown.append(_buffers(f"Layouts, {TITLES[part].lower()}", found))
    last, points = memory["points"][-1], memory["points"]
    shown.append(
        f"Memory: {memory['frames']:,} frames through a buffer of {memory['capacity']:,}: "
        f"{points[0]['resident_bytes'] / 2**20:.0f} MiB resident after the first {points[0]['frames']:,}, "
        f"{last['resident_bytes'] / 2**20:.0f} at the end (the buffer holds {last['buffer_bytes'] / 2**20:.1f})."
    )
    return [*shown, _bars(result["bars"])]


def _buffers(title: str, rows: Mapping[str, Mapping[str, float]]) -> Table:
    view = table(title, "buffer", "bytes/frame", "added/s", "sampled/s", "p10 to p90")
    for name, row in rows.items():
        figures = [f"{row[k]:,.0f}" for k in ("bytes_per_frame", "add_rate", "sample_rate")]
        view.add_row(name, *figures, f"{row['p10']:,.0f} to {row['p90']:,.0f}")
    return view


def _fields(keys: Mapping[str, Mapping[str, Any]]) -> Table:
    view = table("Bytes per frame and field", "field", "raw", "Fledge", "smaller by", "LZ4 per episode", "codec")
    for name, row in keys.items():
        ratio = f"{row['raw'] / row['fledge']:.1f}x"
        view.add_row(name, str(row["raw"]), f"{row['fledge']:.2f}", ratio, f"{row['lz4']:.2f}", row["codec"])
    return view


def _bars(rows: list[dict[str, Any]]) -> Table:
    view = table("Targets", "", "measured", "target", "met", wrap=True)
    for row in rows:
        asked = f"{'at most' if row['at_most'] else 'at least'} {row['wanted']:g}"
        view.add_row(row["bar"], f"{row['measured']:.2f}", asked, "yes" if row["met"] else "no")
    return view
