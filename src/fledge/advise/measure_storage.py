"""Measure storage: checkpoints, and rollouts archived (scheme B), compressed in memory (scheme C) or sent to another machine.

A cost is the time that the training thread waits, plus the CPU time of background threads, which training would use on a
busy machine.
"""

from __future__ import annotations

import copy
import os
import secrets
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
from fledge.collect.remote import SENT
from fledge.core.machine import available_bytes, default_threads, meminfo, total_bytes
from fledge.storage import AsyncCheckpointSaver, RolloutStorage
from fledge.storage.exchange import ExchangeClient, Kind
from fledge.storage.exchange_server import ExchangeServer
from fledge.storage.stream import pack_rollout, unpack_rollout

if TYPE_CHECKING:
    from fledge.advise.measure import Loop

LEVELS = (0, 1, 3, 6, 9)
REPEATS = 3
PACK_LEVEL = 4
SEND_LEVEL = 1
POOL = 4  # threads that decode LZ4 frames, as in NavRL's add-on
DRONES = 16  # whose LiDAR is one LZ4 frame of half a megabyte, about an episode


def seconds_of(work: Callable[[], Any]) -> float:
    """Call `work` and return the time that it takes, s."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def median_s(work: Callable[[], Any]) -> float:
    """Call `work` REPEATS times and return the median time, s."""
    return float(np.median([seconds_of(work) for _ in range(REPEATS)]))


def measure_storage(loop: Loop, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure storage with the state and a rollout of a loop; return all values as a JSON-able dict."""
    rollout = loop.iterate()
    say("checkpoints: levels, and the cost of a save to the loop")
    found: dict[str, Any] = {"checkpoint": measure_checkpoints(loop, folder)}
    say("archiving rollouts")
    found["archive"] = measure_archive(rollout, folder)
    say("LiDAR compressed in memory")
    found["packed"] = measure_packed(rollout)
    say("sending rollouts")
    found["stream"] = measure_stream(rollout)
    return found


def whole_state(loop: Loop) -> dict[str, Any]:
    """Return the state for a checkpoint of all ranks, with a copy of this rank's state for each rank."""
    state = loop.run.state_dict()
    return {**state, "ranks": [copy.deepcopy(rank) for rank in state["ranks"] * loop.ranks]}


def measure_checkpoints(loop: Loop, folder: Path) -> dict[str, Any]:
    """Return file sizes and background costs by compression level, and the time that a save costs the training thread."""
    state = whole_state(loop)
    levels = {f"level {level}": save_costs(state, folder, compression_level=level) for level in LEVELS}
    levels["LZ4 around torch.save"] = save_costs(state, folder, compression_level=9, codec="lz4")
    path = folder / "plain.pt"

    def torch_save() -> None:
        with path.open("wb") as stream:
            torch.save(state, stream)
            stream.flush()
            os.fsync(stream.fileno())

    return {
        "torch_save_s": median_s(torch_save),
        "torch_save_bytes": path.stat().st_size,
        "levels": levels,
        **loop_costs(loop, folder),
    }


def save_costs(state: Any, folder: Path, **options: Any) -> dict[str, float]:
    """Return the bytes written, the background CPU time (s) and the time until the file is on disk (s), per save."""
    with AsyncCheckpointSaver(handle_signals=False, find_optimizers=False, **options) as saver:
        saver.save_async(state, folder / "warm")
        saver.drain()
        before, begun = saver.get_stats(), time.perf_counter()
        for k in range(REPEATS):
            saver.save_async(state, folder / f"checkpoint{k}")
            saver.drain()
        seconds, after = time.perf_counter() - begun, saver.get_stats()
    size, cpu = ((after[key] - before[key]) / REPEATS for key in ("bytes_out", "background_cpu_s"))
    return {"level": options["compression_level"], "bytes": int(size), "cpu_s": cpu, "durable_s": seconds / REPEATS}


def loop_costs(loop: Loop, folder: Path) -> dict[str, float]:
    """Return the seconds that the training thread waits per save.

    `gather_s` is the time to gather the state, `call_s` the time in `save_async`, `fence_s` the time in `fence`.
    """
    waits = []
    with AsyncCheckpointSaver(compression_level=1, handle_signals=False) as saver:
        saver.attach(*loop.run.learner.optimizers.values())
        for k in range(REPEATS + 1):
            gather = seconds_of(loop.run.state_dict)
            saver.save_async(whole_state(loop), folder / f"loop{k}")
            rollout = loop.run.collect(progress=1.0)
            waits.append((gather, seconds_of(saver.fence)))
            loop.run.learn(rollout)
            saver.drain()
        stats = saver.get_stats()
    gather, fence = np.median(waits[1:], axis=0)
    return {"gather_s": float(gather), "call_s": stats["stall_p50_ms"] / 1e3, "fence_s": float(fence)}


def measure_archive(rollout: TensorDictBase, folder: Path) -> dict[str, Any]:
    """Return the size and cost of an archived rollout by compression level, and its size raw and with plain LZ4, bytes."""
    tensors = [t.contiguous().numpy() for t in rollout.cpu().flatten_keys().values()]
    levels = {}
    for level in (1, 9):
        with RolloutStorage(folder / f"rollouts{level}", compression_level=level) as storage:
            storage.save(rollout, 0)
            storage.drain()
            before = storage.get_stats()["background_cpu_s"]
            call = seconds_of(lambda storage=storage: storage.save(rollout, 1))  # type: ignore[misc]
            storage.drain()
            cpu = storage.get_stats()["background_cpu_s"] - before
            size = storage.path(1).stat().st_size
        levels[f"level {level}"] = {"level": level, "bytes": size, "call_s": call, "cpu_s": cpu}
    return {
        "raw_bytes": sum(t.nbytes for t in tensors),
        "lz4_bytes": sum(len(lz4.frame.compress(t.data, compression_level=9)) for t in tensors),
        "levels": levels,
    }


def measure_packed(rollout: TensorDictBase) -> dict[str, Any]:
    """Return the times to compress a rollout's large entries in memory (scheme C) and to decode them, s.

    Also return their sizes, and the total and free memory of the device, bytes.
    """
    keys, device = large_keys(rollout), rollout["reward"].device
    begun = time.perf_counter()
    batch = CompressedBatch(rollout, keys, PACK_LEVEL, copy=False)
    pack = time.perf_counter() - begun
    parts = torch.arange(rollout.batch_size[1]).chunk(8)  # neighbours share blocks: each is decoded once
    return {
        "rollout_bytes": sum(t.nbytes for t in rollout.flatten_keys().values()),
        "raw_bytes": sum(rollout.get(key).nbytes for key in keys),
        "bytes": batch.nbytes,
        "pack_s": pack,
        "decode_s": seconds_of(lambda: [batch.decode(envs=part) for part in parts]),
        "device_bytes": total_bytes(device),
        "available_bytes": available_bytes(device)
        if device.type == "cuda"
        else meminfo("MemAvailable") or 0,  # 0: unknown
    }


def measure_stream(rollout: TensorDictBase) -> dict[str, float]:
    """Return the times to compress and restore a rollout, s, and the bandwidth below which sending it compressed is faster.

    Sending a compressed rollout saves (raw - packed) / bandwidth seconds; compressing and restoring it must take less.
    """
    message = pack_rollout(rollout, SEND_LEVEL)
    pack = median_s(lambda: pack_rollout(rollout, SEND_LEVEL))
    unpack = median_s(lambda: unpack_rollout(message, max_bytes=2**40))
    raw = sum(t.nbytes for t in rollout.flatten_keys().values())
    break_even = max(0.0, (raw - len(message)) / (pack + unpack))
    costs = {"pack_s": pack, "unpack_s": unpack, "break_even_bytes_per_s": break_even}
    return {"raw_bytes": raw, "bytes": len(message), **costs}


def measure_actors(loop: Loop) -> dict[str, float]:
    """Return the costs of learning from an actor's rollout on this machine as the learner, of `frames` decisions.

    `bytes` and `raw_bytes` are the size of the message, compressed and not; `pack_s` the actor's time to compress it,
    `unpack_s` and `again_s` the learner's to decode it and to evaluate it with the present weights, and `loopback_s` the time
    of the exchange without a network.
    """
    rollout, learner = loop.collector.latest, loop.run.learner
    sent = rollout.select(*SENT, strict=False)
    message = pack_rollout(sent, SEND_LEVEL)
    token = secrets.token_bytes(32)
    with (
        ExchangeServer("127.0.0.1:0", token, dict, lambda *_: None, max_body=2**40) as server,
        ExchangeClient(server.address, token) as client,
    ):
        server.publish({"version": 0}, b"")
        client.request(Kind.JOIN, {})
        loopback = median_s(lambda: client.request(Kind.EXPERIENCE, {"version": 0}, message))
    learn = float(np.median([learn for _, learn, _ in loop.seconds]))
    return {
        "frames": float(rollout.numel()),
        "bytes": float(len(message)),
        "raw_bytes": float(sum(t.nbytes for t in sent.flatten_keys().values())),
        "pack_s": median_s(lambda: pack_rollout(sent, SEND_LEVEL)),
        "unpack_s": median_s(lambda: unpack_rollout(message, max_bytes=2**40)),
        "again_s": median_s(lambda: learner._evaluate_again(rollout)),  # type: ignore[attr-defined]
        "learn_s": learn,
        "loopback_s": loopback,
    }


def measure_decoding(rollout: TensorDictBase) -> dict[str, float]:
    """Return the times to decode a rollout's LiDAR, s, in one thread and in a new thread pool.

    The LiDAR is compressed to LZ4 frames of DRONES drones each.
    """
    lidar = rollout["obs", "lidar"].movedim(0, 1).cpu()
    frames = [lz4.frame.compress(part.contiguous().numpy().data) for part in lidar.split(DRONES)]

    def in_pool() -> None:
        with ThreadPoolExecutor(POOL) as pool:
            list(pool.map(lz4.frame.decompress, frames))

    one = min(seconds_of(lambda: [lz4.frame.decompress(frame) for frame in frames]) for _ in range(5))
    pool = min(seconds_of(in_pool) for _ in range(5))
    return {"one_s": one, "pool_s": pool, "threads": POOL, "cores": default_threads()}
