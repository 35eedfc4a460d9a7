"""How duels are shown: the task's `view` part."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fledge.agents.base import Action
from fledge.core.overrides import to_plain
from fledge.envs.base import TensorEnv
from fledge.envs.opponent_wrapper import OpponentWrapper
from fledge.tasks.aircombat.config import ActionForm, AircombatConfig, Scenario
from fledge.tasks.aircombat.env import RUDDERS, duel_of
from fledge.tasks.aircombat.spacetime.recorded import distances, physics_settings
from fledge.tasks.aircombat.view.loss_reason import DEAD, explain_loss
from fledge.tasks.view.base import TaskView
from fledge.tasks.view.controls import Control
from fledge.tasks.view.objects import SceneObject
from fledge.tasks.view.stage import Instrument, Stage
from fledge.tasks.view.trajectory import LossReason, Trajectory

SIDES = ("blue", "red")
FAST, SPENT = 1200.0, 200.0  # m/s of a missile with all its energy, and with none left to manoeuvre
CONTROLS = (
    Control(
        "rudder", "stick", -1.0, 1.0, 0.0, "rudder", "right", "left", ("ArrowRight", "KeyD"), ("ArrowLeft", "KeyA")
    ),
    Control(
        "throttle", "lever", 0.0, 1.0, 1.0, "throttle", "slower", "faster", ("ArrowDown", "KeyS"), ("ArrowUp", "KeyW")
    ),
    Control("fire", "button", label="fire", more="fire", keys_more=("Space",)),
)
MAX_SOLVERS = 4  # kept ready, one for each physics
_lock = threading.Lock()
_solvers: dict[str, Any] = {}


class AircombatView(TaskView):
    """Recordings and pictures of duels: fighters, missiles, and the space-time graph."""

    page = Path(__file__).parent / "page"

    def scene(self, env: TensorEnv, ids: Sequence[int]) -> list[dict[str, Any]]:
        """Return for each row the scenario, the kill radius, and the physics settings that differ from the defaults."""
        duel = duel_of(env)
        per = env.num_envs // duel.num_duels
        kinds, names = duel.state["kind"].cpu().tolist(), list(Scenario)
        world: dict[str, Any] = {"kill_radius_m": duel.cfg.missile.kill_radius_m}
        world |= {"physics": changed} if (changed := physics_settings(duel.cfg)) else {}
        return [{"scenario": names[kinds[i // per]].value, **world} for i in ids]

    def snapshot(self, env: TensorEnv, ids: Sequence[int]) -> dict[str, np.ndarray]:
        """Return the state of the fighters and missiles in the duels of the rows `ids`, by name.

        Fighters have the shape [len(ids), 2, ...], missiles [len(ids), 2, S, ...]. Of the two sides, the row's own is first.
        Units are m, rad, m/s and s.
        """
        duel = duel_of(env)
        n = duel.num_duels
        world = env.unwrapped
        rows = world.mine.cpu()[list(ids)] if isinstance(world, OpponentWrapper) else torch.tensor(list(ids))
        duels, seats = rows // 2, torch.stack([rows % 2, 1 - rows % 2], dim=1)
        s = {name: value.cpu() for name, value in duel.state.items()}

        def sides(name: str) -> Tensor:
            return s[name].view(n, 2, *s[name].shape[1:])[duels[:, None], seats]

        def heading(name: str) -> Tensor:
            return torch.atan2(sides(name)[..., 1], sides(name)[..., 0])

        seen = {
            "pos": sides("pos"),
            "heading": heading("dir"),
            "speed": sides("speed"),
            "alive": sides("alive") > 0,
            "missile_pos": sides("m_pos"),
            "missile_heading": heading("m_dir"),
            "missile_speed": sides("m_speed"),
            "missile_motor_s": sides("m_burn"),
            "missile_alive": sides("m_flying") > 0,
            "missiles_left": duel.cfg.missile.carried - sides("fired"),
            "rudder": sides("rudder"),
            "time_s": s["time"][duels],
        }
        return {name: value.numpy() for name, value in seen.items()}

    def objects(self, track: Trajectory) -> list[SceneObject]:
        """Return fighters, and missiles with their energy; a fighter that died is marked as destroyed."""
        found = super().objects(with_energy(track))
        for side in (0, 1):
            found[side].name, found[side].destroyed = SIDES[side], track.outcome in DEAD[side]
        return found

    def stage(self, scene: Mapping[str, Any]) -> Stage:
        return Stage(flat=True)

    def instruments(self, track: Trajectory) -> list[Instrument]:
        """Return distance, speeds and number of missiles in flight, each over time."""
        frames, flying = track.frames, track.frames["missile_alive"].astype(bool)
        shown = [Instrument("range", distances(frames) / 1000.0, "km")]
        shown += [Instrument(f"{name} speed", frames["speed"][:, side], "m/s") for side, name in enumerate(SIDES)]
        counts = flying.sum(axis=-1)
        shown += [Instrument(f"{name} missiles in the air", counts[:, side]) for side, name in enumerate(SIDES)]
        fastest = np.where(flying, frames["missile_speed"], -1.0).max(axis=-1)
        for side, name in enumerate(SIDES):
            if flying[:, side].any():
                best = np.where(fastest[:, side] < 0, np.nan, fastest[:, side])
                shown.append(Instrument(f"{name}'s fastest missile", best, "m/s"))
        return shown

    def draw(self, tracks: Sequence[Trajectory], title: str = "") -> Any:
        from fledge.tasks.aircombat.view.picture import fights_figure  # Matplotlib takes a while to load

        return fights_figure(tracks, title)

    def draw_closely(self, track: Trajectory, title: str = "") -> Any:
        from fledge.tasks.aircombat.view.picture import fight_figure

        return fight_figure(track, title)

    def explain(self, track: Trajectory, side: int = 0) -> LossReason | None:
        return explain_loss(track, side)

    def controls(self, env: TensorEnv) -> Sequence[Control]:
        return CONTROLS

    def command(self, env: TensorEnv, values: Mapping[str, float]) -> Action:
        fire = int(values["fire"] > 0.5)
        if duel_of(env).cfg.action_form is ActionForm.discrete:
            nearest = min(range(3), key=lambda k: abs(RUDDERS[k] - values["rudder"]))
            return torch.tensor([2 * nearest + fire])
        return super().command(env, {**values, "fire": fire})

    def hold(self, env: TensorEnv, action: Action) -> Action:
        return action - action % 2 if isinstance(action, Tensor) else super().hold(env, action)

    def graph(self, cfg: AircombatConfig, frame: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return the space-time graph of a frame. Threads may call this method; calls run one at a time."""
        from fledge.tasks.aircombat.spacetime.graph import GraphSolver

        with _lock:
            plain = to_plain(cfg)
            key = repr([plain[name] for name in ("fighter", "missile", "load_limits", "rudder_rate", "dt_s")])
            if key not in _solvers:
                while len(_solvers) >= MAX_SOLVERS:
                    _solvers.pop(next(iter(_solvers))).close()
                _solvers[key] = GraphSolver(cfg)
            return _solvers[key].solve(frame)


def with_energy(track: Trajectory) -> Trajectory:
    """Return the track with `missile_energy` added: kinetic energy of each missile from 0 (spent) to 1 (full speed)."""
    if "missile_speed" not in track.frames:
        return track
    share = (np.square(track.frames["missile_speed"], dtype=np.float32) - SPENT**2) / (FAST**2 - SPENT**2)
    return replace(track, frames={**track.frames, "missile_energy": np.clip(share, 0.0, 1.0)})
