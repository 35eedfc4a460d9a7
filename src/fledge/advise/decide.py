"""Decide on settings from measured values. `decide` depends on nothing else; it returns a JSON-able dict:

    way         how to collect: a name in measured["modes"]
    config      settings to use, by the names of `TrainConfig`
    scheme      what to do with rollouts: a name in `SCHEMES`
    branches    the decision tree: questions, answers, the values behind each answer, and what either answer means

Without a clear gain, the decision is the simple choice: not compressed, not archived, synchronous.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

WORTH_SPACE = 0.95  # compressed checkpoints must be at most this share of the raw ones
SAME_SPACE = 1.03  # levels whose files differ by less than this factor count as equal: the cheaper one is chosen
LEAST_SAVE_S = 10.0  # shortest time between checkpoints, s
SMALL_DEVICE = 8e9  # bytes of memory below which compressing rollouts may be worthwhile
MEMORY_SHARE = 0.25  # rollouts above this share of the free memory are worth compressing there
MOST_SLOWDOWN = 0.25  # ... unless that would cost more than this
SMALLER_BATCH = 0.5  # share of the envs that must fit for a smaller batch to be the simpler way
NETWORK = 125e6  # bytes per second: gigabit Ethernet
EXACT_GAIN = 1.03  # speed-up worth a setting that does not change results
STALE_GAIN = 1.10  # speed-up worth rollouts by a policy that is one update old
ROUNDING_GAIN = 1.10  # speed-up worth updates in bf16
MOST_TURNS = 0.75  # share of the pairs of turns in which the faster one must have been faster

SCHEMES = {"A": "none", "B": "archive", "C": "compressed in memory"}  # for rollouts

Measured = Mapping[str, Any]
Settings = dict[str, Any]


@dataclass
class Branch:
    """One question of the decision tree: its answer and the reason, and what follows from either answer."""

    question: str
    yes: bool
    because: str
    then: str
    otherwise: str
    numbers: dict[str, float] = field(default_factory=dict)


def decide(measured: Mapping[str, Any], budget: float) -> dict[str, Any]:
    """Return the decisions and the settings that follow; saving may cost the share `budget` of the training time."""
    way, branches = _modes(measured)
    chosen = measured["modes"][way]
    config = {"ranks": chosen["ranks"], "collect.mode": chosen["mode"]}
    precision, branch = _precision(measured)
    config |= precision
    branches.append(branch)
    for question in (_compress, _interval, _archive):
        settings, branch = question(measured, budget, config, chosen["iteration_s"])
        config |= settings
        branches.append(branch)
    archive = branches[-1].yes
    branches += _memory(measured, chosen["iteration_s"])
    scheme = "C" if branches[-1].yes else "B" if archive else "A"
    branches += [_send(measured), _actors(measured, chosen["frames_per_second"])]
    return {"way": way, "config": config, "scheme": scheme, "branches": [asdict(branch) for branch in branches]}


def checkpoint_level(config: Mapping[str, Any]) -> str:
    """Return the name of the advised compression level of checkpoints."""
    return f"level {config['save_compression_level']}" if config["compress_checkpoint"] else "level 0"


def save_cost_s(measured: Mapping[str, Any], level: str) -> float:
    """Return the seconds that one checkpoint costs training: waiting time, plus the CPU time of background work."""
    found = measured["checkpoint"]
    return float(found["gather_s"] + found["call_s"] + found["fence_s"] + found["levels"][level]["cpu_s"])


def _compress(measured: Measured, budget: float, config: Settings, iteration_s: float) -> tuple[Settings, Branch]:
    """Decide whether to compress checkpoints, and at which level; return the settings and the branch."""
    levels = {n: row for n, row in measured["checkpoint"]["levels"].items() if n.startswith("level")}
    raw = levels["level 0"]["bytes"]
    packed = {n: row for n, row in levels.items() if n != "level 0"}
    smallest = min(row["bytes"] for row in packed.values())
    near = [n for n, row in packed.items() if row["bytes"] <= SAME_SPACE * smallest]
    chosen = min(near, key=lambda n: (packed[n]["cpu_s"], packed[n]["level"]))
    share = packed[chosen]["bytes"] / raw
    yes = share <= WORTH_SPACE
    settings = {"compress_checkpoint": yes} | ({"save_compression_level": packed[chosen]["level"]} if yes else {})
    lz4 = measured["checkpoint"]["levels"]["LZ4 around torch.save"]["bytes"]
    return settings, Branch(
        "Do compressed checkpoints save space?",
        yes,
        f"{chosen} takes {share:.0%} of {raw / 1e6:.2f} MB and {1e3 * packed[chosen]['cpu_s']:.0f} ms of CPU per save; "
        f"LZ4 around torch.save takes {lz4 / measured['checkpoint']['torch_save_bytes']:.0%}",
        f"compress, at {chosen}",
        f"store raw: less than {1 - WORTH_SPACE:.0%} is saved",
        {"share": share, "lz4_share": lz4 / measured["checkpoint"]["torch_save_bytes"]},
    )


def _interval(measured: Measured, budget: float, config: Settings, iteration_s: float) -> tuple[Settings, Branch]:
    """Decide how often to save a checkpoint; return the setting and the branch."""
    cost = save_cost_s(measured, checkpoint_level(config))
    affordable = max(1, math.ceil(cost / (budget * iteration_s)))
    often = max(1, math.ceil(LEAST_SAVE_S / iteration_s))
    interval = max(affordable, often)
    return {"save_interval": interval}, Branch(
        f"Does a checkpoint every {LEAST_SAVE_S:.0f} s stay within {budget:.1%} of the time?",
        affordable <= often,
        f"a save costs {1e3 * cost:.1f} ms, an iteration takes {iteration_s:.2f} s: every {often} iterations cost "
        f"{cost / (often * iteration_s):.2%}",
        f"save every {often} iterations",
        f"save every {affordable} iterations, the most often that the budget allows",
        {"cost_s": cost, "affordable": affordable, "overhead": cost / (interval * iteration_s)},
    )


def _archive(measured: Measured, budget: float, config: Settings, iteration_s: float) -> tuple[Settings, Branch]:
    """Decide how often to archive rollouts (scheme B): only if the config asks for it, and within the budget.

    Return the settings and the branch.
    """
    archive, wanted = measured["archive"], int(measured["settings"]["rollout_save_interval"])
    row = min(archive["levels"].values(), key=lambda row: row["call_s"] + row["cpu_s"])
    cost = row["call_s"] + row["cpu_s"]
    affordable = max(1, math.ceil(cost / (budget * iteration_s)))
    interval = max(wanted, affordable) if wanted else 0
    settings = {"rollout_save_interval": interval} | ({"rollout_compression_level": row["level"]} if wanted else {})
    return settings, Branch(
        "B: are rollouts to be archived?",
        bool(wanted),
        f"the config {f'asks for every {wanted} iterations' if wanted else 'does not ask for it'}; one rollout of a rank "
        f"takes {row['bytes'] / 1e6:.1f} MB instead of {archive['raw_bytes'] / 1e6:.1f} (LZ4: "
        f"{archive['lz4_bytes'] / 1e6:.1f}) and {cost:.2f} s of work",
        f"archive every {interval or affordable} iterations: every {affordable} cost {budget:.1%}",
        f"should you want it, every {affordable} iterations cost {budget:.1%}",
        {"cost_s": cost, "affordable": affordable, "share": row["bytes"] / archive["raw_bytes"]},
    )


def _memory(measured: Measured, iteration_s: float) -> list[Branch]:
    """Decide whether to compress rollouts in memory (scheme C).

    Yes if all three hold: the rollouts do not fit into memory, fewer envs would not help, and compression is fast enough.
    """
    packed, settings = measured["packed"], measured["settings"]
    ranks, envs = settings["ranks"], settings["num_envs"]
    slowdown = (packed["pack_s"] + packed["decode_s"]) / iteration_s
    need, saved = ranks * packed["rollout_bytes"], ranks * (packed["raw_bytes"] - packed["bytes"])
    free = packed["available_bytes"]  # 0: unknown
    fits = not 0 < MEMORY_SHARE * free < need
    fewer = math.floor(envs * MEMORY_SHARE * free / need) if need else envs
    smaller = not fits and fewer >= SMALLER_BATCH * envs
    critical = slowdown > MOST_SLOWDOWN
    sizes = f"rollouts take {need / 2**20:.0f} MiB, and {free / 2**20:.0f} MiB are free"
    cost = f"it would save {saved / 2**20:.0f} MiB and make an iteration {slowdown:.0%} longer"
    total = packed.get("device_bytes", 0)  # 0: unknown
    return [
        Branch(
            "Does the device have less than 8 GB of memory?",
            0 < total < SMALL_DEVICE,
            f"it has {total / 1e9:.1f} GB" if total else "its memory is unknown",
            "the next answers tell whether a smaller batch or C is needed",
            "A: leave rollouts as they are, if they fit",
            {"device_bytes": total},
        ),
        Branch(
            "Do rollouts fit the memory of the device?",
            fits,
            sizes,
            "leave them as they are",
            f"they take more than {MEMORY_SHARE:.0%} of what is free",
            {"need_bytes": need, "free_bytes": free},
        ),
        Branch(
            "Would a smaller batch do first?",
            smaller,
            f"{sizes}; {fewer if not fits else envs} of {envs} envs fit into {MEMORY_SHARE:.0%} of it",
            f"env.num_envs={fewer}: the simplest way to fit",
            "the batch fits as it is" if fits else f"less than {SMALLER_BATCH:.0%} of it would be left",
            {"envs": fewer},
        ),
        Branch(
            "Is speed critical?",
            critical,
            cost,
            f"more than {MOST_SLOWDOWN:.0%} is too slow: stay with A or B",
            "compressing in memory is quick enough here, should memory be scarce",
            {"slowdown": slowdown},
        ),
        Branch(
            "C: should the LiDAR live compressed in memory?",
            not fits and not smaller and not critical,
            f"{sizes}; {cost}",
            "collect.compression_level=1 (in a loop of your own, CompressedDataCollector around the collector)",
            "memory is not scarce" if fits else "a smaller batch is better" if smaller else "it is too slow",
            {"slowdown": slowdown, "saved_bytes": saved, "need_bytes": need},
        ),
    ]


def _send(measured: Measured) -> Branch:
    """Decide whether to compress rollouts that are sent to another machine."""
    found = measured["stream"]
    limit = found["break_even_bytes_per_s"]
    work = found["pack_s"] + found["unpack_s"]
    return Branch(
        "Should rollouts between machines be sent compressed?",
        limit > NETWORK,
        f"{found['bytes'] / 1e6:.1f} MB instead of {found['raw_bytes'] / 1e6:.1f}, for {work:.2f} s of work at both ends: it "
        f"pays below {limit / 1e6:,.0f} MB/s ({8 * limit / 1e9:.2f} Gbit/s)",
        "fledge.send(rollout, connection) as it is, unless your network is faster than that",
        f"on a gigabit ({NETWORK / 1e6:.0f} MB/s) send with compression_level=0; compress on slower ones",
        {"break_even_bytes_per_s": limit},
    )


def _actors(measured: Measured, alone: float) -> Branch:
    """Decide whether actors on other machines would make training faster than `alone`, in decisions per second.

    With enough actors, the learner's own work limits it: an update, decoding, and evaluating with the present weights.
    """
    found = measured["actors"]
    most = found["frames"] / (found["learn_s"] + found["unpack_s"] + found["again_s"])
    size = found["bytes"] / found["frames"]
    least, full = size * STALE_GAIN * alone, size * most
    return Branch(
        "Would actors on other machines make training faster?",
        most >= STALE_GAIN * alone,
        f"without collecting, this machine learns from at most {most:,.0f} decisions/s, alone it reaches {alone:,.0f}; a "
        f"decision takes {size:,.0f} bytes instead of {found['raw_bytes'] / found['frames']:,.0f}",
        f"actors.listen=HOST:PORT, if at least {least / 1e6:.1f} MB/s ({8 * least / 1e6:,.0f} Mbit/s) reach this machine; "
        f"more than {full / 1e6:.1f} MB/s are of no use",
        f"an actor pays only if this machine learned more than {STALE_GAIN - 1:.0%} faster without collecting",
        {
            "most": most,
            "alone": alone,
            "bytes_per_decision": size,
            "least_bytes_per_s": least,
            "full_bytes_per_s": full,
        },
    )


def _modes(measured: Measured) -> tuple[str, list[Branch]]:
    """Return the name in measured["modes"] of the advised way to collect, and the branches that lead to it.

    Collecting in halves gives the same results and is advised if it is faster by the factor EXACT_GAIN; pipelined
    collecting uses older weights and must be faster by STALE_GAIN. Either must also be faster in at least the
    share MOST_TURNS of the comparisons of one timed turn with another (`_share_faster`). Otherwise the advice is to collect
    synchronously.
    """
    modes = measured["modes"]

    def fastest(mode: str) -> str:
        return max((n for n in modes if modes[n]["mode"] == mode), key=lambda n: modes[n]["frames_per_second"])

    best, branches = fastest("sync"), []
    halves = "half of the envs are simulated while the policy acts on the others; results are the same"
    pipelined = "the next rollout is collected during the update, by a policy one update old"
    for mode, needed, what in (("halves", EXACT_GAIN, halves), ("pipelined", STALE_GAIN, pipelined)):
        name = fastest(mode)
        speed, other = modes[name]["frames_per_second"], modes[best]["frames_per_second"]
        gain = speed / other
        steady = _share_faster(modes[name], modes[best])
        yes = gain >= needed and steady >= MOST_TURNS
        branches.append(
            Branch(
                f"Does collecting {mode} pay?",
                yes,
                f"{name}: {speed:,.0f} decisions/s, {best}: {other:,.0f}; {gain - 1:+.1%}, faster in {steady:.0%} of turns",
                f"collect {mode}: {what}",
                f"it would have to be {needed - 1:.0%} faster, in {MOST_TURNS:.0%} of the turns",
                {"gain": gain, "steady": steady},
            )
        )
        best = name if yes else best
    return best, branches


def _precision(measured: Measured) -> tuple[Settings, Branch]:
    """Decide whether to compute updates in bf16, which rounds results; return the setting and the branch."""
    found = measured["precision"]
    full, mixed = found["fp32"], found["bf16"]
    gain = median(full) / median(mixed)
    steady = sum(a > b for a in full for b in mixed) / (len(full) * len(mixed))
    yes = gain >= ROUNDING_GAIN and steady >= MOST_TURNS
    return {"ppo.precision": "bf16" if yes else "fp32"}, Branch(
        "Do updates in bf16 pay?",
        yes,
        f"on {found['device']} an update takes {median(mixed):.2f} s in bf16 and {median(full):.2f} s in fp32: "
        f"{gain:.2f} times the speed",
        "ppo.precision=bf16: results are rounded",
        f"they would have to be {ROUNDING_GAIN - 1:.0%} faster, in {MOST_TURNS:.0%} of the turns",
        {"gain": gain, "steady": steady},
    )


def _share_faster(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Compare each timed turn of `one` with each of `other`; return the share of pairs where `one` was faster, 0 to 1."""
    speeds = [[row["frames_per_second"] * row["iteration_s"] / t for t in row["turns"]] for row in (one, other)]
    pairs = [a > b for a in speeds[0] for b in speeds[1]]
    return sum(pairs) / max(len(pairs), 1)
