"""The advice on a terminal: decision tree with its numbers, tables, and the config lines to set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from fledge.advise.decide import SCHEMES

BUSY = 0.5  # load at the start, above which others share the cores


def config_line(config: Mapping[str, Any]) -> str:
    """Settings as words of `fledge train`."""
    return " ".join(f"{key}={value}" for key, value in config.items())


def render(result: Mapping[str, Any]) -> list[RenderableType]:
    """Return what `advise` found as rich renderables."""
    measured = result["measured"]
    machine, settings = measured["machine"], measured["settings"]
    title = (
        f"{machine['cpu']}, {machine['cores']} cores, load {machine['load_average']} at the start · "
        f"{settings['num_envs']} drones, {settings['ranks']} ranks, rollouts of {settings['rollout_steps']} steps"
    )
    if (machine["load_average"] or 0) > BUSY:
        title += "\nOthers work on this machine: speeds are rough. Ask again when it is quiet."
    scheme = f"{result['scheme']} ({SCHEMES[result['scheme']]})"
    lines = Text.assemble(("Scheme for rollouts: ", "bold"), scheme)
    return [title, _tree(result), _speeds(measured), _checkpoints(measured), _storage(measured), lines]


def settings_line(result: Mapping[str, Any]) -> Text:
    """What to set; printed unwrapped, so that it can be copied."""
    return Text.assemble(("Set: ", "bold"), config_line(result["config"]))


def _tree(result: Mapping[str, Any]) -> Tree:
    phases = result["measured"]["phases"]
    parts = ", ".join(
        f"{k.removesuffix('_s')} {v / phases['iteration_s']:.0%}" for k, v in phases.items() if k != "iteration_s"
    )
    tree = Tree(f"An iteration takes {phases['iteration_s']:.2f} s: {parts}")
    for branch in result["branches"]:
        node = tree.add(Text(branch["question"], "bold"))
        node.add(Text(branch["because"]))
        for label, taken, text in (
            ("yes", branch["yes"], branch["then"]),
            ("no", not branch["yes"], branch["otherwise"]),
        ):
            if taken:
                node.add(Text(f"→ {label}: {text}", "green"))
            else:
                node.add(Text(label, "dim"))
    return tree


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for k, column in enumerate(columns):
        table.add_column(column, justify="left" if k == 0 else "right")
    return table


def _speeds(measured: Mapping[str, Any]) -> Table:
    modes = measured["modes"]
    plain = next(row["frames_per_second"] for row in modes.values() if row["mode"] == "sync")
    table = _table("Ways to collect", "", "decisions/s", "p10 to p90", "beside the first")
    for name, row in modes.items():
        spread = f"{row['p10']:,.0f} to {row['p90']:,.0f}"
        table.add_row(name, f"{row['frames_per_second']:,.0f}", spread, f"{row['frames_per_second'] / plain - 1:+.1%}")
    return table


def _checkpoints(measured: Mapping[str, Any]) -> Table:
    found = measured["checkpoint"]
    waits = [f"{1e3 * found[k]:.2f}" for k in ("gather_s", "call_s", "fence_s")]
    title = f"Checkpoints: training waits {waits[0]} + {waits[1]} + {waits[2]} ms (state, call, fence) per save"
    table = _table(title, "", "MB", "of torch.save", "CPU ms", "durable after, ms")
    plain = found["torch_save_bytes"]
    table.add_row(
        "torch.save + fsync, waited for", f"{plain / 1e6:.2f}", "100%", "", f"{1e3 * found['torch_save_s']:.0f}"
    )
    for name, row in found["levels"].items():
        share, cpu, durable = (
            f"{row['bytes'] / plain:.1%}",
            f"{1e3 * row['cpu_s']:.0f}",
            f"{1e3 * row['durable_s']:.0f}",
        )
        table.add_row(name, f"{row['bytes'] / 1e6:.2f}", share, cpu, durable)
    return table


def _storage(measured: Mapping[str, Any]) -> Table:
    archive, packed, decoding = measured["archive"], measured["packed"], measured["decoding"]
    table = _table("Rollouts of one rank", "", "MB", "of raw", "seconds")
    raw = archive["raw_bytes"]
    table.add_row("B: as it is", f"{raw / 1e6:.1f}", "100%", "")
    table.add_row("B: LZ4-9", f"{archive['lz4_bytes'] / 1e6:.1f}", f"{archive['lz4_bytes'] / raw:.1%}", "")
    for name, row in archive["levels"].items():
        cost = f"{row['call_s']:.2f} waiting, {row['cpu_s']:.2f} CPU"
        table.add_row(f"B: archive, {name}", f"{row['bytes'] / 1e6:.1f}", f"{row['bytes'] / raw:.1%}", cost)
    lidar = packed["raw_bytes"]
    table.add_row(
        "C: LiDAR in memory",
        f"{packed['bytes'] / 1e6:.1f}",
        f"{packed['bytes'] / lidar:.1%} of {lidar / 1e6:.1f}",
        f"{packed['pack_s']:.2f} to pack, {packed['decode_s']:.2f} to decode",
    )
    sent = measured["stream"]
    table.add_row(
        "sent to another machine",
        f"{sent['bytes'] / 1e6:.1f}",
        f"{sent['bytes'] / sent['raw_bytes']:.1%}; pays below {sent['break_even_bytes_per_s'] / 1e6:,.0f} MB/s",
        f"{sent['pack_s']:.2f} to pack, {sent['unpack_s']:.2f} to restore",
    )
    speedup = f"{decoding['one_s'] / decoding['pool_s']:.2f}x the speed"
    table.add_row(
        f"LZ4 decoding, {decoding['threads']} threads on {decoding['cores']} cores",
        "",
        speedup,
        f"{decoding['pool_s']:.3f}",
    )
    return table
