"""What the advisor measures of storage: checkpoints, rollout archives (scheme B), LiDAR compressed in memory (C), and
rollouts sent to another machine.

A cost is what the training thread waits, and the CPU time that background threads take from it where all cores are busy.
"""

from __future__ import annotations

import copy
import io
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lz4.frame
import numpy as np
import torch
from tensordict import TensorDictBase

from fledge.collect.compressed import CompressedBatch, large_keys
from fledge.core.machine import available_bytes, default_threads, meminfo
from fledge.storage import AsyncCheckpointSaver, RolloutStorage
from fledge.storage.stream import pack_rollout, unpack_rollout

if TYPE_CHECKING:
    from fledge.advise.measure import Loop

LEVELS = (0, 1, 3, 6, 9)
REPEATS = 3
PACK_LEVEL = 4
SEND_LEVEL = 1
POOL = 4  # threads of the prior design's pool
DRONES = 16  # whose LiDAR is one LZ4 frame, half a megabyte: about an episode


def measure_storage(loop: Loop, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Figures of all of these on the state and rollouts of a running loop; JSON-able."""
    rollout = loop.iterate()
    say("checkpoints: levels, and what a save costs the loop")
    found: dict[str, Any] = {"checkpoint": measure_checkpoints(loop, folder)}
    say("archiving rollouts")
    found["archive"] = measure_archive(rollout, folder)
    say("LiDAR compressed in memory")
    found["packed"] = measure_packed(rollout)
    say("rollouts as they would be sent")
    found["stream"] = measure_stream(rollout)
    return found


def whole_state(loop: Loop) -> dict[str, Any]:
    """A checkpoint of all ranks, each in the state of this one."""
    state = loop.run.state_dict()
    return {**state, "ranks": [copy.deepcopy(rank) for rank in state["ranks"] * loop.ranks]}


def measure_checkpoints(loop: Loop, folder: Path) -> dict[str, Any]:
    """Sizes and background costs by level; and what a save costs the loop that it runs beside."""
    state = whole_state(loop)
    levels = {f"level {level}": save_costs(state, folder, compression_level=level) for level in LEVELS}
    levels["LZ4 around torch.save"] = save_costs(state, folder, compression_level=9, codec="lz4")
    plain = io.BytesIO()
    torch.save(state, plain)
    return {
        "torch_save_bytes": plain.getbuffer().nbytes,
        "torch_save_s": float(np.median([torch_save_seconds(state, folder / "plain.pt") for _ in range(REPEATS)])),
        "levels": levels,
        **loop_costs(loop, folder),
    }


def save_costs(state: Any, folder: Path, **options: Any) -> dict[str, float]:
    """Bytes given and written, background CPU seconds and seconds until durable, per save."""
    with AsyncCheckpointSaver(handle_signals=False, find_optimizers=False, **options) as saver:
        saver.save_async(state, folder / "warm")
        saver.drain()
        before, begun = saver.get_stats(), time.perf_counter()
        for k in range(REPEATS):
            saver.save_async(state, folder / f"checkpoint{k}")
            saver.drain()
        seconds, after = time.perf_counter() - begun, saver.get_stats()
    gained = {k: (after[k] - before[k]) / REPEATS for k in ("bytes_in", "bytes_out", "background_cpu_s")}
    return {
        "level": options["compression_level"],
        "bytes_in": int(gained["bytes_in"]),
        "bytes": int(gained["bytes_out"]),
        "cpu_s": gained["background_cpu_s"],
        "durable_s": seconds / REPEATS,
    }


def torch_save_seconds(state: Any, path: Path) -> float:
    """What the loop would wait for a plain, durable `torch.save`."""
    begun = time.perf_counter()
    with path.open("wb") as stream:
        torch.save(state, stream)
        stream.flush()
        os.fsync(stream.fileno())
    return time.perf_counter() - begun


def loop_costs(loop: Loop, folder: Path) -> dict[str, float]:
    """What the training thread waits per save: gathering the state, the call, the fence before weights change."""
    gather, fence = [], []
    with AsyncCheckpointSaver(compression_level=1, handle_signals=False) as saver:
        saver.attach(*loop.run.learner.optimizers.values())
        for k in range(REPEATS + 1):
            begun = time.perf_counter()
            loop.run.state_dict()
            gather.append(time.perf_counter() - begun)
            saver.save_async(whole_state(loop), folder / f"loop{k}")
            rollout = loop.run.collect(progress=1.0)
            begun = time.perf_counter()
            saver.fence()
            fence.append(time.perf_counter() - begun)
            loop.run.learn(rollout)
            saver.drain()
        stats = saver.get_stats()
    return {
        "gather_s": float(np.median(gather[1:])),
        "call_s": stats["stall_p50_ms"] / 1e3,
        "call_worst_s": stats["stall_p99_ms"] / 1e3,
        "fence_s": float(np.median(fence[1:])),
    }


def measure_archive(rollout: TensorDictBase, folder: Path) -> dict[str, Any]:
    """What archiving one rollout takes on disk and costs, beside LZ4 on the tensors as they lie in memory."""
    tensors = [t.contiguous().numpy() for t in rollout.cpu().flatten_keys().values()]
    levels = {}
    for level in (1, 9):
        with RolloutStorage(folder / f"rollouts{level}", compression_level=level) as storage:
            storage.save(rollout, 0)
            storage.drain()
            before = storage.get_stats()
            begun = time.perf_counter()
            storage.save(rollout, 1)
            call = time.perf_counter() - begun
            storage.drain()
            after = storage.get_stats()
            size = storage.path(1).stat().st_size
        cpu = after["background_cpu_s"] - before["background_cpu_s"]
        levels[f"level {level}"] = {"level": level, "bytes": size, "call_s": call, "cpu_s": cpu}
    return {
        "raw_bytes": sum(t.nbytes for t in tensors),
        "lz4_bytes": sum(len(lz4.frame.compress(t.data, compression_level=9)) for t in tensors),
        "levels": levels,
    }


def measure_packed(rollout: TensorDictBase) -> dict[str, Any]:
    """Scheme C: time to compress a rollout's large entries and to decode them all, as in an update; bytes before and after."""
    keys = large_keys(rollout)
    begun = time.perf_counter()
    batch = CompressedBatch(rollout, keys, PACK_LEVEL, copy=False)
    pack = time.perf_counter() - begun
    begun = time.perf_counter()
    for part in torch.arange(rollout.batch_size[1]).chunk(8):  # neighbours share blocks: each is decoded once
        batch.decode(envs=part)
    decode = time.perf_counter() - begun
    total = sum(t.nbytes for t in rollout.flatten_keys().values())
    return {
        "rollout_bytes": total,
        "raw_bytes": sum(rollout.get(key).nbytes for key in keys),
        "bytes": batch.nbytes,
        "pack_s": pack,
        "decode_s": decode,
        "available_bytes": free_bytes(rollout["reward"].device),
    }


def measure_stream(rollout: TensorDictBase) -> dict[str, float]:
    """Compressing a rollout for the wire and restoring it, and the bandwidth below which that is faster than sending it raw.

    What is saved on the wire is (raw - packed) / bandwidth seconds; it pays while that is more than the work at both ends.
    """
    pack, unpack, message = [], [], b""
    for _ in range(REPEATS):
        begun = time.perf_counter()
        message = pack_rollout(rollout, SEND_LEVEL)
        middle = time.perf_counter()
        unpack_rollout(message, max_bytes=2**40)
        pack.append(middle - begun)
        unpack.append(time.perf_counter() - middle)
    raw = sum(t.nbytes for t in rollout.flatten_keys().values())
    work = float(np.median(pack)) + float(np.median(unpack))
    return {
        "raw_bytes": raw,
        "bytes": len(message),
        "pack_s": float(np.median(pack)),
        "unpack_s": float(np.median(unpack)),
        "break_even_bytes_per_s": max(0.0, (raw - len(message)) / work),
    }


def measure_decoding(rollout: TensorDictBase) -> dict[str, float]:
    """LZ4 frames of some drones' LiDAR each, decoded one after the other and by a pool of threads made for the batch."""
    lidar = rollout["obs", "lidar"].movedim(0, 1).cpu()
    frames = [lz4.frame.compress(part.contiguous().numpy().data) for part in lidar.split(DRONES)]
    one, many = [], []
    for _ in range(5):
        begun = time.perf_counter()
        for frame in frames:
            lz4.frame.decompress(frame)
        one.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        with ThreadPoolExecutor(POOL) as pool:
            list(pool.map(lz4.frame.decompress, frames))
        many.append(time.perf_counter() - begun)
    return {"frames": len(frames), "one_s": min(one), "pool_s": min(many), "threads": POOL, "cores": default_threads()}


def free_bytes(device: torch.device) -> int:
    """Memory of the device that rollouts live on which is free, or 0 where the system does not tell."""
    return available_bytes(device) if device.type == "cuda" else meminfo("MemAvailable") or 0
