"""Which charts a run's metrics make: sections, titles, units, and what the figures mean.

Names that are known have a place; others (of a user's own task or learner) get a chart each in the last section. A chart is
plain data for the page: title, unit, the metrics in it with labels, whether it is a share, and a line of explanation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Chart = dict[str, Any]

# section -> charts: title, unit, {metric: label}, explanation
KNOWN: dict[str, list[tuple[str, str, dict[str, str], str]]] = {
    "Return and length": [
        (
            "Return",
            "",
            {"return": "training", "eval/return": "held-out world"},
            "Mean sum of rewards of the episodes that ended.",
        ),
        ("Episode length", "decisions", {"length": "length"}, "Mean over the episodes that ended."),
        ("Reward", "per decision", {"reward": "reward"}, "Mean over all decisions of an iteration."),
        ("Episodes ended", "per row", {"episodes": "episodes"}, "Since the row before."),
    ],
    "Learning": [
        ("Policy loss", "", {"policy_loss": "policy loss"}, "PPO's clipped surrogate."),
        ("Value loss", "", {"value_loss": "value loss"}, "In normalised units."),
        ("Total loss", "", {"total_loss": "total loss"}, "Weighted sum with the entropy."),
        ("Critic loss", "", {"critic_loss": "critic loss"}, ""),
        ("Actor loss", "", {"actor_loss": "actor loss"}, ""),
        ("Q loss", "", {"q_loss": "Q loss"}, ""),
        ("Q", "", {"q": "Q"}, "Mean value of what was learned from."),
        ("Entropy", "nats", {"entropy": "entropy"}, "How undecided the policy is."),
        ("Temperature", "", {"alpha": "alpha"}, "SAC's weight of the entropy."),
        ("Divergence", "nats", {"kl": "KL"}, "From the policy that flew, per decision."),
        ("Clipped samples", "%", {"clip_share": "clipped"}, "Share of samples beyond PPO's clip."),
        ("Gradient norm", "", {"grad_norm": "gradient norm"}, "Before clipping."),
        ("Learning rate", "", {"lr": "learning rate"}, ""),
    ],
    "League": [
        ("Rating", "Elo", {"league/elo": "rating"}, "The first pilot's is 1000."),
        ("Rung of the ladder", "pilot", {"league/rung": "rung"}, "Number of the pilot being climbed."),
        ("Opponents", "", {"league/opponents": "opponents"}, "How many are met."),
        (
            "Against this rung",
            "%",
            {"league/rung_win_of_decided": "won of decided", "league/rung_decided": "decided"},
            "Of recent fights.",
        ),
    ],
    "Speed": [
        ("Speed", "decisions/s", {"frames_per_second": "decisions/s"}, "Over all ranks."),
        (
            "Phases of an iteration",
            "s",
            {"learn_s": "learning", "collect_s": "flying and deciding", "simulate_s": "of it, simulation"},
            "Time of each phase.",
        ),
        ("Evaluation", "s", {"perf/evaluation": "evaluation"}, "Mean of the last 20."),
        ("Rollout archive", "s", {"perf/rollout_save": "archive"}, "Mean of the last 20."),
        ("Memory", "MB", {"memory_mb": "resident", "gpu_memory_mb": "GPU"}, "Of rank 0's process."),
    ],
    "Checkpoints": [
        (
            "What saving makes training wait",
            "ms",
            {"checkpoint/stall_p99_ms": "at the save", "checkpoint/fence_p99_ms": "at the next step"},
            "99th percentile.",
        ),
        (
            "Time in the call",
            "s",
            {"perf/checkpoint_save": "save"},
            "Gathering the state and handing it over; mean of the last 20.",
        ),
        ("Written", "MB", {"checkpoint/bytes_out": "written"}, "All checkpoints so far."),
        ("Compression", "x", {"checkpoint/compression_ratio": "ratio"}, "Bytes in over bytes out."),
        (
            "Saved",
            "",
            {
                "checkpoint/saves": "saves",
                "checkpoint/failures": "failures",
                "checkpoint/queue_size": "waiting for the disk",
            },
            "Counts.",
        ),
        ("Age of the newest", "s", {"checkpoint/age_s": "age"}, "What a crash would cost."),
    ],
}
UNCHARTED = ("perf/data_collection", "perf/policy_training")  # collect_s and learn_s, averaged
SCALES = {"checkpoint/bytes_out": 1e-6}


def lay_out(columns: Iterable[str], primary_metric: str, outcomes: Sequence[str]) -> list[dict[str, Any]]:
    """Sections of charts for these metrics: `{"title": …, "charts": […]}`, without what there is none of."""
    left = [name for name in columns if name not in UNCHARTED]
    share = primary_metric != "return"
    first = {f"{primary_metric}_recent": "last 20 iterations", f"eval/{primary_metric}": "held-out world"}
    sections = [
        (
            "",
            [(told(primary_metric), "%" if share else "", first, "The task's headline: checkpoints are ranked by it.")],
        )
    ]
    ends = [(told(name), "%", {name: "training", f"eval/{name}": "held-out world"}, "Share of the episodes that ended so.")
            for name in outcomes]  # fmt: skip
    sections += [("How episodes end", ends), *KNOWN.items()]
    made: list[dict[str, Any]] = []
    for title, charts in sections:
        some = [chart for known in charts if (chart := make_chart(left, *known))]
        left = [name for name in left if not any(name == line["name"] for c in some for line in c["lines"])]
        made.append({"title": title, "charts": some})
    rest = [name for name in left if name not in ("step", "frames", "seconds")]
    made.append(
        {"title": "Others", "charts": [make_chart(left, told(name), "", {name: told(name)}, "") for name in rest]}
    )
    return [section for section in made if section["charts"]]


def make_chart(columns: Sequence[str], title: str, unit: str, metrics: dict[str, str], about: str) -> Chart | None:
    """A chart of those metrics that there are; None where there are none."""
    lines = [
        {"name": name, "label": label, "scale": 100.0 if unit == "%" else SCALES.get(name, 1.0)}
        for name, label in metrics.items()
        if name in columns
    ]
    smooth = not any(name.endswith("_recent") for name in metrics)  # that is a mean already
    return {"title": title, "unit": unit, "about": about, "smooth": smooth, "lines": lines} if lines else None


def told(name: str) -> str:
    """A metric's name as a title."""
    return name.replace("_", " ").replace("/", ": ").strip().capitalize() or name
