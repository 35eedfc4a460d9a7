"""Tables of `python -m benchmarks checkpoint`."""

from __future__ import annotations

from typing import Any

from benchmarks.tables import shown, table, three_digits


def render(result: dict[str, Any]) -> list[Any]:
    """Return the figures of `checkpoint.run` as rich renderables: waits, slow-downs, targets, sizes."""
    first = table(
        f"First save of a process, {next(iter(result['first_save'].values()))['mb']:.0f} MB, ms: median (quartiles)",
        "saver", "first save", "its CPU", "later saves", "to Fledge",
    )  # fmt: skip
    for name, row in result["first_save"].items():
        parts = [shown(row[part]) for part in ("first_ms", "first_cpu_ms", "later_ms", "ratio")]
        first.add_row(name, *parts)
    waits = table(
        f"Saving {result['state_mb']['large']:.0f} MB (model + Adam), ms: median/99th percentile",
        "saver", "call", "fence", "both", "written", "MB",
    )  # fmt: skip
    for name, row in result["waits"].items():
        parts = [f"{three_digits(row[f'{part}_p50_ms'])}/{three_digits(row[f'{part}_p99_ms'])}"
                 for part in ("call", "fence", "total")]  # fmt: skip
        written = f"{row['written_p50_ms']:.0f}"
        waits.add_row(name, *parts, written, f"{row['bytes'] / 1e6:.0f}")
    loops = table(
        "Slow-down of a training loop by saving (quartiles)",
        "saver", "by the clock", "CPU", "loop, s", "saves",
    )  # fmt: skip
    labels = {"small_loop": f"{result['state_mb']['small']:.1f} MB every iteration",
              "large_loop": f"{result['state_mb']['large']:.0f} MB every 10 s"}  # fmt: skip
    for loop, label in labels.items():
        loops.add_row(f"{label}:")
        for name, row in result[loop].items():
            low, high = row["slowdown_quartiles"]
            share = f"{row['cpu_share']:.1%}" if "cpu_share" in row else "-"
            clock = f"{row['slowdown']:+.1%} ({low:+.1%}, {high:+.1%})"
            loops.add_row(f"  {name}", clock, share, f"{row['iteration_s']:.3f}", str(row["saves"]))
    bars = table(
        "Targets" + (" (quick: not a measurement)" if result["quick"] else ""), "what", "measured", "at most", "met"
    )
    for name, row in result["bars"].items():
        bars.add_row(name, f"{row['measured']:.3f}", f"{row['bar']:.2f}", "yes" if row["met"] else "no")
    navrl, history = result["navrl"], result["history"]
    lines = [
        f"{navrl['source']}: {navrl['bytes']:,} of {navrl['original_bytes']:,} bytes, ratio {navrl['ratio']:.3f} "
        f"({navrl['ratio_to_tensors']:.3f} of the bare tensors), lossless: {'yes' if navrl['lossless'] else 'NO'}",
        f"history of {history['checkpoints']}: "
        + ", ".join(f"{name} {history[name]['ratio']:.3f}" for name in ("default", "delta", "bfloat16"))
        + " of as many torch.save files",
    ]
    if "train" in result:
        row = result["train"]
        lines.append(
            f"fledge train on 2 ranks: perf/checkpoint_save p50 {row['p50_ms']:.2f}, p99 {row['p99_ms']:.2f} ms (CPU time "
            f"of the training thread {row['cpu_p50_ms']:.2f} and {row['cpu_p99_ms']:.2f}), {row['saves']} saves"
        )
    counts = sorted(row["saves"] for row in result["waits"].values())
    meaning = (
        "call: until save returns. fence: what optimizer.step() then waits, when it follows at once; with computing in "
        "between it is less. written: median until the file is on the disk; of savers called not durable and the "
        f"LZ4 thread, until the system has it. {counts[0]} to {counts[-1]} saves each, in turns."
    )
    return [first, waits, meaning, loops, bars, *lines]
