"""Charts of a run's metrics: sections, titles, units and explanations.

Known metrics have a fixed place; other metrics (of a user's own task or learner) get a chart each in the last section. A
chart is plain data for the page: title, unit, a line of explanation, whether to smooth it, and its metrics with labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Chart = dict[str, Any]

HELD_OUT = "held-out evaluation"
LEAGUE_RUNG = {"league/rung_win_of_decided": "won of decided", "league/rung_decided": "decided"}
PHASES = {"learn_s": "learning", "collect_s": "collecting", "simulate_s": "of it, simulation"}
STALLS = {"checkpoint/stall_p99_ms": "at the save", "checkpoint/fence_p99_ms": "at the next step"}
SAVES = {
    "checkpoint/saves": "saves",
    "checkpoint/failures": "failures",
    "checkpoint/queue_size": "waiting for the disk",
}

# section -> charts: title, unit, {metric: label}, explanation
KNOWN: dict[str, list[tuple[str, str, dict[str, str], str]]] = {
    "Return and length": [
        ("Return", "", {"return": "training", "eval/return": HELD_OUT}, "Mean of the episodes that ended."),
        ("Episode length", "decisions", {"length": "length"}, "Mean of the episodes that ended."),
        ("Reward", "per decision", {"reward": "reward"}, "Mean over all decisions of an iteration."),
        ("Episodes ended", "per row", {"episodes": "episodes"}, "Since the previous row."),
    ],
    "Learning": [
        ("Policy loss", "", {"policy_loss": "policy loss"}, "PPO's clipped surrogate."),
        ("Value loss", "", {"value_loss": "value loss"}, "In normalised units."),
        ("Total loss", "", {"total_loss": "total loss"}, "Weighted sum of policy loss, value loss and entropy."),
        ("Critic loss", "", {"critic_loss": "critic loss"}, ""),
        ("Actor loss", "", {"actor_loss": "actor loss"}, ""),
        ("Q loss", "", {"q_loss": "Q loss"}, ""),
        ("Q", "", {"q": "Q"}, "Mean over the sampled transitions."),
        ("Entropy", "nats", {"entropy": "entropy"}, "Of the policy's action distribution."),
        ("Temperature", "", {"alpha": "alpha"}, "SAC's weight of the entropy."),
        ("Divergence", "nats", {"kl": "KL"}, "KL from the policy that collected, per decision."),
        ("Clipped samples", "%", {"clip_share": "clipped"}, "Share of samples beyond PPO's clip range."),
        ("Gradient norm", "", {"grad_norm": "gradient norm"}, "Before clipping."),
        ("Learning rate", "", {"lr": "learning rate"}, ""),
    ],
    "League": [
        ("Rating", "Elo", {"league/elo": "rating"}, "The first scripted policy has 1000."),
        ("Ladder", "stage", {"league/rung": "stage"}, "Number of the scripted policy that it fights now."),
        ("Opponents", "", {"league/opponents": "opponents"}, "Number of opponents."),
        ("Against this stage", "%", LEAGUE_RUNG, "Of recent matches."),
    ],
    "Speed": [
        ("Speed", "decisions/s", {"frames_per_second": "decisions/s"}, "Over all ranks."),
        ("Phases of an iteration", "s", PHASES, "Time of each phase."),
        ("Evaluation", "s", {"perf/evaluation": "evaluation"}, "Mean of the last 20."),
        ("Rollout archive", "s", {"perf/rollout_save": "archive"}, "Mean of the last 20."),
        ("Memory", "MB", {"memory_mb": "resident", "gpu_memory_mb": "GPU"}, "Of rank 0's process."),
    ],
    "Checkpoints": [
        ("Training waits for saving", "ms", STALLS, "99th percentile."),
        ("Duration of the save call", "s", {"perf/checkpoint_save": "save"}, "Copying the state; mean of the last 20."),
        ("Bytes written", "MB", {"checkpoint/bytes_out": "written"}, "All checkpoints so far."),
        ("Compression", "x", {"checkpoint/compression_ratio": "ratio"}, "Bytes in over bytes out."),
        ("Saves", "", SAVES, "Number so far."),
        ("Age of the newest checkpoint", "s", {"checkpoint/age_s": "age"}, "Progress that a crash would lose."),
    ],
}
UNCHARTED = ("perf/data_collection", "perf/policy_training")  # collect_s and learn_s, averaged
SCALES = {"checkpoint/bytes_out": 1e-6}


def lay_out(columns: Iterable[str], primary_metric: str, outcomes: Sequence[str]) -> list[dict[str, Any]]:
    """Return the sections of charts for these metrics, each `{"title": …, "charts": […]}`; leave out empty sections."""
    left = [name for name in columns if name not in UNCHARTED]
    unit = "" if primary_metric == "return" else "%"
    recent = {f"{primary_metric}_recent": "last 20 iterations", f"eval/{primary_metric}": HELD_OUT}
    first = (titled(primary_metric), unit, recent, "The task's primary metric: checkpoints are ranked by it.")
    ends = [
        (titled(name), "%", {name: "training", f"eval/{name}": HELD_OUT}, "Share of the episodes that ended.")
        for name in outcomes
    ]
    made: list[dict[str, Any]] = []
    for title, charts in [("", [first]), ("How episodes end", ends), *KNOWN.items()]:
        some = [chart for known in charts if (chart := make_chart(left, *known))]
        left = [name for name in left if not any(name == line["name"] for c in some for line in c["lines"])]
        made.append({"title": title, "charts": some})
    rest = [name for name in left if name not in ("step", "frames", "seconds")]
    others = [make_chart(left, titled(name), "", {name: titled(name)}, "") for name in rest]
    return [section for section in [*made, {"title": "Others", "charts": others}] if section["charts"]]


def make_chart(columns: Sequence[str], title: str, unit: str, metrics: dict[str, str], about: str) -> Chart | None:
    """Return a chart of those `metrics` that are in `columns`; None if none of them is."""
    lines = [
        {"name": name, "label": label, "scale": 100.0 if unit == "%" else SCALES.get(name, 1.0)}
        for name, label in metrics.items()
        if name in columns
    ]
    smooth = not any(name.endswith("_recent") for name in metrics)  # such a metric is a mean already
    return {"title": title, "unit": unit, "about": about, "smooth": smooth, "lines": lines} if lines else None


def titled(name: str) -> str:
    """Return a metric's name as a title: "Eval: success" for "eval/success"."""
    return name.replace("_", " ").replace("/", ": ").strip().capitalize() or name
