"""Export recorded episodes as an animation seen from above: WebP or GIF.

Episodes on the same map fly at the same time, as they did in the env. Every task is drawn in the same way,
from what the methods of its `TaskView` return: static shapes, moving obstacles, actors with their trails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import EllipseCollection, PatchCollection
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle
from matplotlib.patches import Circle, Rectangle
from matplotlib.transforms import Affine2D

from fledge.app.recordings.episode_payload import stage_key
from fledge.app.recordings.trajectory import checked_frames
from fledge.core.errors import ConfigError
from fledge.storage import Recording
from fledge.tasks.base import Task
from fledge.tasks.view.objects import SceneObject
from fledge.tasks.view.stage import Crowd, Stage, track_seconds
from fledge.tasks.view.trajectory import Trajectory

FRAMES_PER_S = 15
MAX_SECONDS = 12.0  # of the animation: longer episodes are shown faster
SPEEDS = (1, 2, 4, 8, 16, 32, 64, 128)
TRAIL_S = 1.5  # length of an actor's trail, in seconds of the animation
HOLD_FRAMES = 15  # the last image stays for a second
COLOURS = {"blue": "#2f6db3", "red": "#c8433f", "green": "#1b9e5a", "orange": "#e08e1b", "violet": "#6b4fa0"}
SIZES = {"aircraft": 11.0, "drone": 7.0, "missile": 6.0, "obstacle": 5.0}


@dataclass
class Shot:
    """One episode in the animation: the times of its frames, its actors, and the moving obstacles near them."""

    seconds: np.ndarray  # [T] since the animation's start
    actors: list[SceneObject]
    crowd: Crowd | None

    def frame_at(self, time: float) -> int:
        """Return the index of the last frame at or before a time."""
        return int(np.searchsorted(self.seconds, time + 1e-6, side="right")) - 1

    def between(self, actor: SceneObject, k: int, time: float) -> np.ndarray:
        """Return an actor's position at a time between frame k and the next frame, [2] m."""
        if k + 1 >= len(self.seconds) or (actor.present is not None and not actor.present[k + 1]):
            return actor.pos[k, :2]
        share = (time - self.seconds[k]) / max(self.seconds[k + 1] - self.seconds[k], 1e-9)
        return actor.pos[k, :2] + share * (actor.pos[k + 1, :2] - actor.pos[k, :2])


def export_animation(recording: Recording, task: Task, target: Path, episode: int | None = None) -> dict[str, Any]:
    """Write an animation of one episode, or of all ended ones on the map with the most episodes; return its key figures."""
    with checked_frames(recording.path, task):
        tracks = choose_tracks(recording, task, episode)
        stage = task.view.stage(tracks[0].scene)
        start = min(task.view.stage(track.scene).clock_s for track in tracks)
        shots = [
            Shot(
                track_seconds(track) + task.view.stage(track.scene).clock_s - start,
                [actor for actor in task.view.objects(track) if actor.kind != "obstacle"],
                task.view.crowd(track),
            )
            for track in tracks
        ]
        images, speed = draw_frames(stage, shots)
    target.parent.mkdir(parents=True, exist_ok=True)
    save_images(images, target)
    return {"drawn": len(tracks), "frames": len(images), "speed": speed}


def choose_tracks(recording: Recording, task: Task, episode: int | None) -> list[Trajectory]:
    """Return one episode, or all ended ones on the map with the most episodes; if there are no maps, the first ended one."""
    if episode is not None:
        return [Trajectory(**recording.track(episode))]
    tracks = [Trajectory(**recording.track(e.number)) for e in recording if e.outcome and e.recorded]
    if not tracks:
        raise ConfigError(
            f"No episode of {recording.path} has ended yet, so there is nothing to draw. Choose one with --episode."
        )
    keys = [stage_key(track.scene) for track in tracks]
    most, _ = Counter(keys).most_common(1)[0]
    return tracks[:1] if most is None else [track for track, key in zip(tracks, keys, strict=True) if key == most]


def draw_frames(stage: Stage, shots: Sequence[Shot]) -> tuple[list[np.ndarray], int]:
    """Return the images [height, width, 3] of the animation, and how many times faster than real time it is."""
    seconds = max(float(shot.seconds[-1]) for shot in shots)
    speed = next((factor for factor in SPEEDS if seconds / factor <= MAX_SECONDS), SPEEDS[-1])
    canvas = Canvas(stage, shots, speed)
    times = np.arange(0.0, seconds + speed / FRAMES_PER_S, speed / FRAMES_PER_S)
    images = [canvas.draw(float(time)) for time in times]
    return images + images[-1:] * HOLD_FRAMES, speed


class Canvas:
    """Draws the images of an animation over a background that is drawn once."""

    def __init__(self, stage: Stage, shots: Sequence[Shot], speed: int) -> None:
        self.shots, self.speed = shots, speed
        low, high = view_bounds(stage, shots)
        wide, tall = 5.6 * (high - low) / float((high - low).max())
        self.figure = Figure(figsize=(wide + 0.8, tall + 0.8), dpi=100)
        self.agg = FigureCanvasAgg(self.figure)
        self.scale, unit = (1e-3, "km") if float((high - low).max()) > 5000.0 else (1.0, "m")
        self.axes = self.figure.add_axes(
            (0.6 / (wide + 0.8), 0.5 / (tall + 0.8), wide / (wide + 0.8), tall / (tall + 0.8))
        )
        self.axes.set(
            xlim=(low[0] * self.scale, high[0] * self.scale), ylim=(low[1] * self.scale, high[1] * self.scale)
        )
        self.axes.set(xlabel=f"x, {unit}", ylabel=f"y, {unit}")
        self.axes.tick_params(labelsize=8)
        shapes: list[Any] = [Rectangle((x - w / 2, y - d / 2), w, d) for x, y, _, w, d, _ in stage.boxes]
        shapes += [Circle((x, y), w / 2) for x, y, _, w, _, _ in stage.cylinders]
        self.is_open = not shapes  # without obstacles, whole paths are shown
        if shapes:
            tint = PatchCollection(shapes, facecolor="#9aa3ad", edgecolor="none")
            tint.set_transform(Affine2D().scale(self.scale) + self.axes.transData)
            self.axes.add_collection(tint)
        else:
            self.axes.grid(alpha=0.25)
        for shot in shots:
            for goal in (actor for actor in shot.actors if actor.kind == "goal"):
                self.axes.plot(*(goal.pos[0, :2] * self.scale), "*", color=COLOURS[goal.colour], markersize=8)
        self.agg.draw()
        self.background = self.agg.copy_from_bbox(self.figure.bbox)

    def draw(self, time: float) -> np.ndarray:
        """Return the image at a time, in seconds since the start."""
        self.agg.restore_region(self.background)
        drawn: list[Any] = [self.axes.add_collection(movers) for movers in self.movers_at(time)]
        for shot in self.shots:
            for actor in shot.actors:
                if len(actor.pos) == len(shot.seconds):
                    drawn += self.actor_at(shot, actor, time)
        clock = f"{time:.0f} s" + (f", shown {self.speed} times faster" if self.speed > 1 else "")
        drawn.append(self.axes.text(0.0, 1.01, clock, transform=self.axes.transAxes, fontsize=9))
        for artist in drawn:
            self.axes.draw_artist(artist)
            artist.remove()
        return np.asarray(self.agg.buffer_rgba())[..., :3].copy()

    def movers_at(self, time: float) -> list[EllipseCollection]:
        """Return the moving obstacles near any recorded actor at a time."""
        found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for shot in self.shots:
            k = shot.frame_at(time)
            if shot.crowd is None or not 0 <= k < len(shot.seconds) - 1:
                continue
            for number, pos in zip(shot.crowd.ids[k], shot.crowd.pos[k], strict=True):
                if number >= 0:
                    found[int(number)] = (pos[:2], shot.crowd.sizes[number][:2])
        if not found:
            return []
        pos, size = (np.array(values) * self.scale for values in zip(*found.values(), strict=True))
        wide, deep = size.T
        options: dict[str, Any] = {"units": "xy", "facecolor": "#e9b872", "edgecolor": "#b9802f", "linewidth": 0.6}
        return [
            EllipseCollection(
                wide, deep, np.zeros(len(pos)), offsets=pos, offset_transform=self.axes.transData, **options
            )
        ]

    def actor_at(self, shot: Shot, actor: SceneObject, time: float) -> list[Any]:
        """Return an actor's trail and marker at a time; after the episode's end, the marker shows if it was destroyed."""
        k, last = shot.frame_at(time), len(shot.seconds) - 1
        if k < 0 or (actor.present is not None and not actor.present[k]):
            return []
        ended, colour = k >= last and time > shot.seconds[last], COLOURS.get(actor.colour, "#2f6db3")
        path = np.vstack([actor.pos[: k + 1, :2], shot.between(actor, k, time)]) * self.scale
        first = 0 if self.is_open else min(k, int(np.searchsorted(shot.seconds, time - TRAIL_S * self.speed)))
        if actor.present is not None and not actor.present[: k + 1].all():  # it came back: the trail begins there
            first = max(first, k - int(np.argmin(actor.present[k::-1])) + 1)
        trail: dict[str, Any] = {"color": colour, "linewidth": 1.4, "alpha": 0.6}
        drawn = [] if ended and not self.is_open else self.axes.plot(path[first:, 0], path[first:, 1], **trail)
        size = SIZES.get(actor.kind, 7.0)
        if ended and actor.destroyed:
            sign: Any = {"marker": "X", "color": "#c8433f", "markersize": size + 3, "markeredgecolor": "white"}
        else:
            sign = {"marker": marker_of(actor, k), "color": colour, "markersize": size, "alpha": 0.35 if ended else 1.0}
        return [*drawn, *self.axes.plot(path[-1:, 0], path[-1:, 1], linestyle="", **sign)]


def marker_of(actor: SceneObject, k: int) -> MarkerStyle:
    """Return an arrowhead in the direction of flight, or a dot if the direction is unknown."""
    step = actor.pos[k, :2] - actor.pos[max(k - 1, 0), :2]
    angle = float(actor.heading[k]) if actor.heading is not None else float(np.arctan2(step[1], step[0]))
    if actor.heading is None and not step.any():
        return MarkerStyle("o")
    return MarkerStyle([(1.0, 0.0), (-0.8, 0.6), (-0.4, 0.0), (-0.8, -0.6)], transform=Affine2D().rotate(angle))


def view_bounds(stage: Stage, shots: Sequence[Shot]) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and the highest corner of the area to show, [2] m each: the map and the paths of all actors.

    The shorter side is widened to at least 55 % of the longer one.
    """
    corners = [np.asarray(stage.bounds)[:, :2]] if stage.bounds is not None else []
    for actor in (actor for shot in shots for actor in shot.actors):
        path = actor.pos[:, :2] if actor.present is None else actor.pos[actor.present][:, :2]
        corners.append(path[np.isfinite(path).all(axis=1)])
    points = np.concatenate(corners)
    low, high = points.min(axis=0), points.max(axis=0)
    half = 0.5 * (high - low) * (1.0 if stage.bounds is not None else 1.1) + 1e-3
    half = np.maximum(half, 0.55 * half.max())
    centre = (low + high) / 2
    return centre - half, centre + half


def save_images(images: Sequence[np.ndarray], target: Path) -> None:
    """Write an animation that repeats forever."""
    from PIL import Image

    first, *others = (Image.fromarray(image) for image in images)
    step: dict[str, Any] = {
        "save_all": True,
        "append_images": others,
        "duration": round(1000 / FRAMES_PER_S),
        "loop": 0,
    }
    first.save(target, **step, **({"quality": 60, "method": 4} if target.suffix == ".webp" else {"optimize": True}))
