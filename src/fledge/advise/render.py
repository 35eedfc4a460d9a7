"""The advice on a terminal: decision tree with its figures, tables, and the settings to use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from fledge.advise.decide import SCHEMES

BUSY = 0.5  # load at the start above which speeds are rough


def config_line(config: Mapping[str, Any]) -> str:
    """Format settings as arguments of `fledge train`."""
    return " ".join(f"{key}={value}" for key, value in config.items())


def render(result: Mapping[str, Any]) -> list[RenderableType]:
    """Return the result of `advise` as rich renderables."""
    measured = result["measured"]
    machine, settings = measured["machine"], measured["settings"]
    title = (
        f"{machine['cpu']}, {machine['cores']} cores, load {machine['load_average']} at the start · "
        f"{settings['num_envs']} drones, {settings['ranks']} ranks, rollouts of {settings['rollout_steps']} steps"
    )
    if (machine["load_average"] or 0) > BUSY:
        title += "\nOther processes are running on this machine, so speeds are rough. Measure again when it is idle."
    scheme = f"{result['scheme']} ({SCHEMES[result['scheme']]})"
    lines = Text.assemble(("Scheme for rollouts: ", "bold"), scheme)
    return [title, _tree(result), _speeds(measured), _checkpoints(measured), _storage(measured), lines]


def settings_line(result: Mapping[str, Any]) -> Text:
    """Return the settings to use, to be printed unwrapped so that they can be copied."""
    return Text.assemble(("Set: ", "bold"), config_line(result["config"]))


def _tree(result: Mapping[str, Any]) -> Tree:
    phases = dict(result["measured"]["phases"])
    whole = phases.pop("iteration_s")
    parts = ", ".join(f"{name.removesuffix('_s')} {seconds / whole:.0%}" for name, seconds in phases.items())
    tree = Tree(f"An iteration takes {whole:.2f} s: {parts}")
    for branch in result["branches"]:
        node = tree.add(Text(branch["question"], "bold"))
        node.add(Text(branch["because"]))
        for label, taken, text in (("yes", branch["yes"], "then"), ("no", not branch["yes"], "otherwise")):
            node.add(Text(f"→ {label}: {branch[text]}", "green") if taken else Text(label, "dim"))
    return tree


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for k, column in enumerate(columns):
        table.add_column(column, justify="left" if k == 0 else "right")
    return table


def _mb(size: float, digits: int = 1) -> str:
    return f"{size / 1e6:.{digits}f}"


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
    plain = found["torch_save_bytes"]
    waits = " + ".join(f"{1e3 * found[key]:.2f}" for key in ("gather_s", "call_s", "fence_s"))
    title = f"Checkpoints: training waits {waits} ms (state, call, fence) per save"
    table = _table(title, "", "MB", "of torch.save", "CPU ms", "durable after, ms")
    table.add_row("torch.save + fsync, waited for", _mb(plain, 2), "100%", "", f"{1e3 * found['torch_save_s']:.0f}")
    for name, row in found["levels"].items():
        times = (f"{1e3 * row[key]:.0f}" for key in ("cpu_s", "durable_s"))
        table.add_row(name, _mb(row["bytes"], 2), f"{row['bytes'] / plain:.1%}", *times)
    return table


def _storage(measured: Mapping[str, Any]) -> Table:
    archive, packed, sent, decoding = (measured[key] for key in ("archive", "packed", "stream", "decoding"))
    table = _table("Rollouts of one rank", "", "MB", "of raw", "seconds")
    raw, lidar = archive["raw_bytes"], packed["raw_bytes"]
    table.add_row("B: as it is", _mb(raw), "100%", "")
    table.add_row("B: LZ4-9", _mb(archive["lz4_bytes"]), f"{archive['lz4_bytes'] / raw:.1%}", "")
    for name, row in archive["levels"].items():
        cost = f"{row['call_s']:.2f} waiting, {row['cpu_s']:.2f} CPU"
        table.add_row(f"B: archive, {name}", _mb(row["bytes"]), f"{row['bytes'] / raw:.1%}", cost)
    table.add_row(
        "C: LiDAR in memory",
        _mb(packed["bytes"]),
        f"{packed['bytes'] / lidar:.1%} of {_mb(lidar)}",
        f"{packed['pack_s']:.2f} to pack, {packed['decode_s']:.2f} to decode",
    )
    table.add_row(
        "sent to another machine",
        _mb(sent["bytes"]),
        f"{sent['bytes'] / sent['raw_bytes']:.1%}; pays below {sent['break_even_bytes_per_s'] / 1e6:,.0f} MB/s",
        f"{sent['pack_s']:.2f} to pack, {sent['unpack_s']:.2f} to restore",
    )
    name = f"LZ4 decoding, {decoding['threads']} threads on {decoding['cores']} cores"
    speedup = f"{decoding['one_s'] / decoding['pool_s']:.2f}x the speed"
    table.add_row(name, "", speedup, f"{decoding['pool_s']:.3f}")
    return table
