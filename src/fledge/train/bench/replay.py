"""Replay: size and speed of `DictReplayBuffer` beside TorchRL's storages and the prior design, on rollouts really flown.

Drones fly the navigation task (350 trees, 80 movers); the transitions go into every buffer; all must return the same data;
then adding and sampling batches of 256 is timed, the buffers taking turns, so that whatever else the machine does
hits all of them. Rates are medians over batches; `best` is the fastest batch, which others on the machine disturb least.
"""

from __future__ import annotations

import functools
import logging
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from rich.table import Table

from fledge.core.errors import FledgeError
from fledge.envs.navigation import NavigationConfig, NavigationEnv
from fledge.replay import DictReplayBuffer
from fledge.sim.launch import default_threads
from fledge.train.bench.machine import machine_info
from fledge.train.bench.references.prior_replay import PriorReplay
from fledge.train.policies import load_policy

BATCH = 256
Episode = dict[str, np.ndarray]
Batch = Mapping[str, torch.Tensor]
FLIGHT = ("lidar", "dynamic_obstacle", "state", "direction")
SLOW = ("CompressedListStorage", "prior design")  # tens of milliseconds a batch: fewer batches will do
WARM_S = 4.0  # of flight before anything is recorded
LIST_ROWS = 2_000  # CompressedListStorage packs row by row; its rates do not depend on how many there are


def run(
    frames: int = 100_000,
    quick: bool = False,
    seed: int = 0,
    rollouts: str | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Return sizes, rates and bars, for flights and for 224x224 grid maps.

    Args:
        frames: Transitions to fly.
        quick: A few thousand transitions and few batches.
        seed: Decides maps, flights and draws.
        rollouts: Who flies: anything that `load_policy` takes. None is the scripted gap pilot.
        on_progress: Told what is being done.
    """
    say = on_progress or (lambda text: None)
    logging.getLogger("torchrl").setLevel(logging.WARNING)  # it announces every storage on stdout
    frames, maps, batches = (4_000, 300, 10) if quick else (frames, 3_000, 200)
    pilot = rollouts or "gap"
    result: dict[str, Any] = {"machine": machine_info(), "batch": BATCH, "pilot": pilot, "quick": quick}
    for name, decimation in (("flight", 1), ("flight_decimation_5", 5)):
        say(f"flying {frames:,} decisions, decimation {decimation}")
        episodes = fly(frames, seed, pilot, decimation, grid=0)
        result[name] = measure(episodes, FLIGHT, batches, seed, say)
    say(f"flying {maps:,} decisions with 224x224 grid maps")
    episodes = fly(maps, seed, pilot, 5, grid=224)
    result["grid_maps"] = measure(episodes, ("grid_map",), max(batches // 10, 3), seed, say)
    result["bars"] = bars(result)
    return result


def fly(frames: int, seed: int, pilot: str, decimation: int, grid: int) -> list[Episode]:
    """Episodes [T] per key, observations [T + 1], of a policy in flight; those still open are cut at the last frame."""
    envs = 8 if grid else 64
    cfg = NavigationConfig(num_envs=envs, static_obstacles=350, moving_obstacles=80, decimation=decimation)
    cfg.grid_map, cfg.grid_size = bool(grid), grid or cfg.grid_size
    cfg.grid_resolution_m = 8.0 / grid if grid else cfg.grid_resolution_m
    env, policy = NavigationEnv(cfg, seed=seed), load_policy(pilot)
    obs = env.reset()["obs"]
    keys = ("grid_map",) if grid else FLIGHT
    for _ in range(int(WARM_S / env.decision_s)):  # into the forest: at the start there is nothing to see
        obs = env.step(policy.act(obs))["obs"]
    rows: list[list[dict[str, Any]]] = [[] for _ in range(envs)]
    episodes: list[Episode] = []
    for _ in range(-(-frames // envs)):
        with torch.no_grad():
            action = policy.act(obs)
        out = env.step(action)
        done = (out["terminated"] | out["truncated"]).tolist()
        step = {"action": action, **{k: out[k] for k in ("reward", "terminated", "truncated")}}
        for n in range(envs):
            rows[n].append({**{k: obs[k][n] for k in keys}, **{k: v[n] for k, v in step.items()}})
            if done[n]:
                episodes.append(_episode(rows[n], {k: out["final_obs"][k][n] for k in keys}))
                rows[n] = []
        obs = out["obs"]
    env.close()
    return episodes + [_episode(r, {k: obs[k][n] for k in keys}) for n, r in enumerate(rows) if r]


def _episode(rows: list[dict[str, Any]], final: dict[str, torch.Tensor]) -> Episode:
    columns = {k: [row[k] for row in rows] + ([final[k]] if k in final else []) for k in rows[0]}
    return {k: torch.stack(v).numpy() for k, v in columns.items()}


class Contender:
    """A buffer under test: how it takes episodes, gives transitions, and what it weighs."""

    def __init__(
        self, sample: Callable[[], Any], get: Callable[[np.ndarray], Batch], size: float, added: float
    ) -> None:
        self.sample, self.get, self.bytes_per_frame, self.add_rate = sample, get, size, added
        self.times: list[float] = []


def measure(
    episodes: list[Episode], obs: tuple[str, ...], batches: int, seed: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Fill every buffer, compare what they return, time them in turns."""
    total = sum(len(e["reward"]) for e in episodes)
    doubled = [
        {**{k: v[: len(e["reward"])] for k, v in e.items()}, **{f"next_{k}": e[k][1:] for k in obs}} for e in episodes
    ]
    flat = {k: torch.from_numpy(np.concatenate([e[k] for e in doubled])) for k in doubled[0]}
    raw = sum(v[0].nbytes for v in flat.values())
    threads, before = torch.get_num_threads(), default_threads()
    torch.set_num_threads(1)  # index_select of a batch gains nothing from more
    say("filling the buffers")
    buffer = DictReplayBuffer(total, list(flat), seed=seed)
    prior = PriorReplay(before, seed)
    with tempfile.TemporaryDirectory() as folder, buffer:
        contenders = {
            "Fledge": _ours(buffer, episodes, total),
            "prior design": _prior(prior, doubled, total),
            **_torchrl(flat, folder),
        }
        say("comparing what they return")
        check_agreement(contenders, flat, np.random.default_rng(seed))
        say(f"sampling {batches} batches of {BATCH}")
        time_in_turns(contenders, batches)
        torch.set_num_threads(threads)
        return {
            "transitions": total,
            "episodes": len(episodes),
            "raw_bytes_per_frame": raw,
            "keys": key_sizes(buffer, prior, total),
            "buffers": {name: _figures(c) for name, c in contenders.items()},
        }


def _ours(buffer: DictReplayBuffer, episodes: list[Episode], total: int) -> Contender:
    warm = DictReplayBuffer(total, buffer.schema.names)  # compiles the kernels
    warm.add(episodes[0])
    warm.sample(BATCH)
    warm.close()
    begun = time.perf_counter()
    for episode in episodes:
        buffer.add(episode)
    added = total / (time.perf_counter() - begun)
    return Contender(lambda: buffer.sample(BATCH), buffer.get, buffer.stats()["held_bytes"] / total, added)


def _prior(prior: PriorReplay, doubled: list[Episode], total: int) -> Contender:
    begun = time.perf_counter()
    for episode in doubled:
        prior.add(episode)
    added = total / (time.perf_counter() - begun)
    return Contender(lambda: prior.sample(BATCH), prior.get, sum(prior.key_bytes().values()) / total, added)


def _torchrl(flat: dict[str, torch.Tensor], folder: str) -> dict[str, Contender]:
    try:
        from torchrl.data import CompressedListStorage, LazyMemmapStorage, LazyTensorStorage, TensorDictReplayBuffer
    except ImportError:
        return {}
    from tensordict import TensorDict

    from fledge.replay.torchrl_storage import CompressedStorage

    count = len(flat["reward"])
    data = TensorDict(flat, [count])
    makes: dict[str, Callable[[int], Any]] = {
        "LazyTensorStorage": LazyTensorStorage,
        "LazyMemmapStorage": functools.partial(LazyMemmapStorage, scratch_dir=folder),
        "CompressedListStorage": CompressedListStorage,
        "Fledge in TorchRL": CompressedStorage,
    }
    found = {}
    for name, make in makes.items():
        rows = data if name != "CompressedListStorage" else data[: min(count, LIST_ROWS)]
        storage = make(len(rows))
        buffer = TensorDictReplayBuffer(storage=storage, batch_size=BATCH)
        begun = time.perf_counter()
        for a in range(0, len(rows), 1000):
            buffer.extend(rows[a : a + 1000])
        added = len(rows) / (time.perf_counter() - begun)
        size = _storage_bytes(storage, rows) / len(rows)
        found[name] = Contender(buffer.sample, functools.partial(_get_rows, storage), size, added)
    return found


def _get_rows(storage: Any, numbers: np.ndarray) -> Any:
    got = storage.get(torch.from_numpy(numbers))
    return torch.stack(got) if isinstance(got, list) else got


def _storage_bytes(storage: Any, rows: Any) -> int:
    if hasattr(storage, "_packed"):
        blobs = [*storage._packed.values(), *(b for part in storage._single.values() for b in part.values())]
        return sum(len(b) for b in blobs) + sum(a.nbytes for o in storage._open.values() for a in o.values())
    if isinstance(storage._storage, list):
        return sum(t.nbytes for item in storage._storage for t in item.values())
    return sum(v.nbytes for v in rows.values())


def check_agreement(
    contenders: Mapping[str, Contender], flat: dict[str, torch.Tensor], rng: np.random.Generator
) -> None:
    """Every buffer must return exactly the transitions that went in."""
    for name, contender in contenders.items():
        limit = min(len(flat["reward"]), LIST_ROWS if name == "CompressedListStorage" else 2**62)
        numbers = rng.integers(0, limit, 64)
        got = contender.get(numbers)
        for key, values in flat.items():
            if not torch.equal(got[key].reshape(values[numbers].shape), values[numbers]):
                raise FledgeError(f"{name} returns other {key!r} than was stored, so there is nothing to time.")


def time_in_turns(contenders: Mapping[str, Contender], batches: int) -> None:
    """Time batches of every buffer, one after the other, a few per turn."""
    for contender in contenders.values():
        contender.sample()
    for turn in range(max(batches // 5, 1)):
        for name, contender in contenders.items():
            slow = name in SLOW
            if slow and turn >= 5:
                continue
            for _ in range(1 if slow else 5):
                begun = time.perf_counter()
                contender.sample()
                contender.times.append(time.perf_counter() - begun)


def _figures(contender: Contender) -> dict[str, float]:
    rates = BATCH / np.array(contender.times)
    spread = {"p10": float(np.quantile(rates, 0.1)), "p90": float(np.quantile(rates, 0.9)), "best": float(rates.max())}
    rate = float(np.median(rates))
    return {"bytes_per_frame": contender.bytes_per_frame, "add_rate": contender.add_rate, "sample_rate": rate, **spread}


def key_sizes(buffer: DictReplayBuffer, prior: PriorReplay, total: int) -> dict[str, Any]:
    """Bytes per frame of every stored key: raw, ours, and the prior design's LZ4 (without its doubled next keys)."""
    lz4 = prior.key_bytes()
    return {
        key: {"raw": row["raw"], "fledge": row["bytes_per_frame"], "codec": row["codec"], "lz4": lz4[key] / total}
        for key, row in buffer.stats()["keys"].items()
    }


def bars(result: dict[str, Any]) -> list[dict[str, Any]]:
    """What was asked for, beside what was measured."""
    rows: list[dict[str, Any]] = []

    def bar(name: str, value: float, wanted: float) -> None:
        rows.append({"bar": name, "measured": value, "wanted": wanted, "met": bool(value >= wanted)})

    for part in ("flight", "flight_decimation_5", "grid_maps"):
        keys, buffers = result[part]["keys"], result[part]["buffers"]
        if "lidar" in keys:
            bar(f"{part}: LiDAR, raw / ours", keys["lidar"]["raw"] / keys["lidar"]["fledge"], 8.0)
        ours = buffers["Fledge"]
        once = sum(row["lz4"] for row in keys.values()) / sum(row["fledge"] for row in keys.values())
        bar(
            f"{part}: transition, prior / ours",
            buffers["prior design"]["bytes_per_frame"] / ours["bytes_per_frame"],
            1.3,
        )
        bar(f"{part}: transition, LZ4 without doubled next / ours", once, 1.3)
        bar(f"{part}: worst field, raw / ours", min(row["raw"] / row["fledge"] for row in keys.values()), 1.0)
        others = (("CompressedListStorage", 10.0), ("prior design", 10.0), ("LazyTensorStorage", 0.5))
        for other, wanted in ((o, w) for o, w in others if o in buffers):
            for rate in ("sample_rate", "best"):
                bar(f"{part}: {rate}, ours / {other}", ours[rate] / buffers[other][rate], wanted)
    return rows


def render(result: dict[str, Any]) -> list[Any]:
    """The figures as tables."""
    shown: list[Any] = []
    for part in ("flight", "flight_decimation_5", "grid_maps"):
        found = result[part]
        table = Table(
            title=f"{part}: {found['transitions']:,} transitions, {found['raw_bytes_per_frame']:,} bytes raw each"
        )
        for heading in ("buffer", "bytes/frame", "added/s", "sampled/s", "p10 to p90", "best"):
            table.add_column(heading, justify="left" if heading == "buffer" else "right")
        for name, row in found["buffers"].items():
            figures = [f"{row[k]:,.0f}" for k in ("bytes_per_frame", "add_rate", "sample_rate")]
            table.add_row(name, *figures, f"{row['p10']:,.0f} to {row['p90']:,.0f}", f"{row['best']:,.0f}")
        keys = Table(title=f"{part}: bytes per frame and field")
        for heading in ("field", "raw", "Fledge", "codec", "LZ4 per episode"):
            keys.add_column(heading, justify="left" if heading in ("field", "codec") else "right")
        for name, row in found["keys"].items():
            keys.add_row(name, str(row["raw"]), f"{row['fledge']:.2f}", row["codec"], f"{row['lz4']:.2f}")
        shown += [table, keys]
    verdicts = Table(title="bars")
    for heading in ("bar", "measured", "wanted", "met"):
        verdicts.add_column(heading, justify="left" if heading == "bar" else "right")
    for row in result["bars"]:
        verdicts.add_row(row["bar"], f"{row['measured']:.2f}", f"{row['wanted']:.1f}", "yes" if row["met"] else "no")
    return [*shown, verdicts]
