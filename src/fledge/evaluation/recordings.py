"""Write recordings of evaluations, and describe the contents of a recording."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fledge.core.errors import ConfigError, FormatError
from fledge.storage import Recording, RecordingWriter, is_recording
from fledge.tasks.base import Task
from fledge.tasks.view.trajectory import Trajectory

ENDING = ".frec"
PICTURES = (".png", ".svg", ".pdf", ".jpg")
LISTED = 100  # episodes that `fledge inspect` lists


def save_recording(
    path: Path, task: Task, highlights: Sequence[Trajectory], decision_s: float, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the highlights of an evaluation, the most interesting first, and return the file's statistics, such as its size.

    Raises:
        ConfigError: The task has no snapshots to record.
    """
    if not highlights or not highlights[0].frames:
        raise ConfigError(f"{task.name} cannot be recorded, as it has no frames: define `snapshot` in its TaskView.")
    frame = {name: value[0] for name, value in highlights[0].frames.items()}
    with RecordingWriter(
        path, task.reference, frame, decision_s, facts=facts, when_full="wait", max_bytes=2**36
    ) as writer:
        for trajectory in highlights:
            known = {name: value for name, value in trajectory.facts.items() if name in ("episode", "lost")}
            episode = writer.begin(trajectory.scene, known)
            writer.add_many(episode, trajectory.frames)
            writer.end(episode, trajectory.outcome, trajectory.facts["return"])
    return writer.stats()


def means_recording(source: Path, target: Path | None = None) -> bool:
    """Return whether the file `source` is a recording, judged by its content.

    Raises:
        ConfigError: There is no file `source`, but it must be a recording: its extension is that of recordings, or `target`,
            the file to convert it to, has an extension such as .mcap, which only recordings can be converted to.
        FormatError: The file exists and must be a recording, but is not one.
    """
    if is_recording(source):
        return True
    if source.suffix != ENDING and (target is None or target.suffix not in (".acmi", ".mcap", ".html", *PICTURES)):
        return False
    if not source.exists():
        raise ConfigError(f"There is no recording {source}: check the name.")
    raise FormatError(
        f"{source} is not a recording: it does not begin with a recording's header. Check the file, or write it again."
    )


def describe_recording(path: Path) -> dict[str, Any]:
    """Return a summary of a recording, with a list of its episodes, as JSON-able values."""
    with Recording(path) as recording:
        episodes = [
            {
                "number": episode.number,
                "outcome": episode.outcome or "running",
                "seconds": round(episode.seconds, 3),
                "frames": episode.length,
                "recorded": episode.recorded,
                "return": episode.total_return,
                "facts": episode.facts,
            }
            for episode in recording
        ]
        return {
            "recording": str(path),
            "task": recording.task,
            "episodes": len(episodes),
            "outcomes": recording.outcomes(),
            "seconds": round(sum(episode.seconds for episode in recording), 3),
            "frames": sum(row["recorded"] for row in episodes),
            "seconds_per_frame": recording.seconds_per_frame,
            "file_bytes": path.stat().st_size,
            "closed": recording.closed,
            "damage": recording.damage,
            "fields": {name: f"{field.dtype} {list(field.shape)}" for name, field in recording.fields.items()},
            "facts": recording.facts,
            "list": episodes,
        }


def render_recording(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines of text about `found`, the result of `describe_recording`.

    Print them with `harmless`: text from the file may hold control characters.
    """
    outcomes = ", ".join(f"{count} {name}" for name, count in found["outcomes"].items())
    yield (
        f"{found['recording']}: recording of {found['task']}, {found['file_bytes']:,} bytes, {found['episodes']} episodes, "
        f"{found['seconds']:,.1f} s in {found['frames']:,} frames"
    )
    if outcomes:
        yield f"outcomes: {outcomes}"
    if not found["closed"]:
        yield "incomplete: it is still being written, or was cut off, and plays up to there"
    if found["damage"]:
        yield f"damaged: {found['damage']}"
    facts = {key: value for key, value in found["facts"].items() if key != "settings"}
    if facts:
        yield ", ".join(f"{key} {value}" for key, value in facts.items())
    yield "fields: " + ", ".join(f"{name} {kind}" for name, kind in found["fields"].items())
    yield ""
    yield f"{'episode':>7}  {'seconds':>8}  {'frames':>7}  {'return':>9}  outcome"
    for row in found["list"][:LISTED]:
        total = "" if row["return"] is None else f"{row['return']:.3f}"
        part = "" if row["recorded"] == row["frames"] else f", {row['recorded']} of its frames are here"
        yield f"{row['number']:>7}  {row['seconds']:>8.1f}  {row['frames']:>7}  {total:>9}  {row['outcome']}{part}"
        yield from (f"         {line}" for line in reasons(row["facts"]))
    if found["episodes"] > LISTED:
        yield f"and {found['episodes'] - LISTED} more; `fledge inspect FILE --json` lists all"


def reasons(facts: Mapping[str, Any]) -> list[str]:
    """Return the reasons why a recorded match was lost, one line for each agent that lost."""
    lost = facts.get("lost")
    return [f"{who}: {why}" for who, why in lost.items()] if isinstance(lost, Mapping) else []


def labelled_paths(path: Path, labels: Sequence[str]) -> list[Path]:
    """Return a path for each label: FILE_LABEL.png, with a number if a label occurs twice; FILE.png for a single label."""
    if len(labels) == 1:
        return [path]
    plain = [re.sub(r"[^\w.+=-]+", "-", label.removesuffix(".fledge").removesuffix(".pt"))[:80] for label in labels]
    again = [plain[:k].count(name) for k, name in enumerate(plain)]
    names = [f"{name}_{count + 1}" if count else name for name, count in zip(plain, again, strict=True)]
    return [path.with_name(f"{path.stem}_{name}{path.suffix}") for name in names]
