"""The part of a report that says how the run was made: command, preset, machine, and settings that differ."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fledge.core.config_help import written
from fledge.core.settings import flat_settings
from fledge.core.terminal import duration
from fledge.evaluation.page import cell, html_table, note, table_row
from fledge.evaluation.run_info import machine_text, read_run_info
from fledge.tasks.policy_loader import LoadedPolicy


def run_section(run: Path, policy: LoadedPolicy, curves: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the report section on how the run was made, as HTML parts."""
    info = read_run_info(run)
    facts = {"preset": info.get("preset"), "started": info.get("started"), "machine": machine_text(info)}
    if curves:
        last = curves[-1]
        trained = f"{last['frames']:,.0f} decisions in {duration(last['seconds'])}"
        speed = f", {last['frames'] / last['seconds']:,.0f} per second" if last["seconds"] else ""
        facts = {"trained": f"{trained}{speed} ({last.get('step', len(curves)):,.0f} iterations)", **facts}
    rows = [
        table_row([cell(name), f"<td class=text>{html.escape(str(value))}</td>"])
        for name, value in facts.items()
        if value
    ]
    parts = ["<h2>How it was made</h2>"]
    parts += [f"<pre>{html.escape(info['command'])}</pre>"] if info.get("command") else []
    parts += [html_table(["", ""], rows, tight=True)] if rows else []
    return [*parts, *settings_table(info, policy)]


def settings_table(info: Mapping[str, Any], policy: LoadedPolicy) -> list[str]:
    """Return a table of settings that differ from the defaults, as HTML parts; without run.json, only of env settings."""
    changed, defaults = info.get("changed"), info.get("defaults") or {}
    if not isinstance(changed, Mapping):
        plain = flat_settings(policy.task.config())
        own = policy.env.settings if policy.env is not None else {}
        changed = {f"env.{key}": value for key, value in own.items() if plain.get(key) != value}
        defaults = {key: plain.get(key.removeprefix("env.")) for key in changed}
    if not changed:
        return [note("All settings have their defaults.")]
    body = []
    for key, value in sorted(changed.items(), key=lambda pair: ("." in pair[0], pair[0])):
        before = written(defaults[key]) if key in defaults else ""
        body.append(table_row([cell(key), cell(written(value)), cell(before)]))
    title = "<h3>Settings that differ from the defaults</h3>"
    return [title, html_table(["setting", "this run", "default"], body, tight=True)]
