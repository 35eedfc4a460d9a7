"""How duels are shown: the task's `view` part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fledge.agents.base import Action
from fledge.envs.base import TensorEnv
from fledge.envs.opponent_wrapper import OpponentWrapper
from fledge.tasks.aircombat.config import AircombatConfig, Scenario
from fledge.tasks.aircombat.env import duel_of
from fledge.tasks.aircombat.spacetime.recorded import physics_settings
from fledge.tasks.aircombat.view import controls
from fledge.tasks.aircombat.view.loss_reason import explain_loss
from fledge.tasks.aircombat.view.stage import fight_instruments, with_energy
from fledge.tasks.view.base import TaskView
from fledge.tasks.view.controls import Control
from fledge.tasks.view.objects import SceneObject
from fledge.tasks.view.stage import Instrument, Stage
from fledge.tasks.view.trajectory import LossReason, Trajectory


class AircombatView(TaskView):
    """Fighters, missiles, and the space-time graph of a moment."""

    page = Path(__file__).parent / "page"

    def scene(self, env: TensorEnv, ids: Sequence[int]) -> list[dict[str, Any]]:
        """How the fight began, the kill radius, and where the physics are not the usual ones."""
        duel = duel_of(env)
        per = env.num_envs // duel.num_duels
        kinds, names = duel.state["kind"].cpu().tolist(), list(Scenario)
        world: dict[str, Any] = {"kill_radius_m": duel.cfg.missile.kill_radius_m}
        world |= {"physics": changed} if (changed := physics_settings(duel.cfg)) else {}
        return [{"scenario": names[kinds[i // per]].value, **world} for i in ids]

    def snapshot(self, env: TensorEnv, ids: Sequence[int]) -> dict[str, np.ndarray]:
        """Both fighters and all missiles of some rows' duels, the row's own side first: [n, 2, ...], missiles [n, 2, S, ...].

        m, rad, m/s, s.
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
        """Fighters, and missiles with their energy; who died is destroyed at the end."""
        found = super().objects(with_energy(track))
        lost = {"win": (1,), "loss": (0,), "draw": (0, 1)}.get(track.outcome, ())
        for side in (0, 1):
            found[side].name, found[side].destroyed = ("blue", "red")[side], side in lost
        return found

    def stage(self, scene: Mapping[str, Any]) -> Stage:
        return Stage(flat=True)

    def instruments(self, track: Trajectory) -> list[Instrument]:
        return fight_instruments(track)

    def draw(self, tracks: Sequence[Trajectory], title: str = "") -> Any:
        from fledge.tasks.aircombat.view.picture import fights_figure  # Matplotlib takes a while to load

        return fights_figure(tracks, title)

    def draw_closely(self, track: Trajectory, title: str = "") -> Any:
        from fledge.tasks.aircombat.view.picture import fight_figure

        return fight_figure(track, title)

    def explain(self, track: Trajectory, side: int = 0) -> LossReason | None:
        return explain_loss(track, side)

    def controls(self, env: TensorEnv) -> Sequence[Control]:
        return controls.CONTROLS

    def command(self, env: TensorEnv, values: Mapping[str, float]) -> Action:
        return controls.command_duel(duel_of(env).cfg, values)

    def hold(self, env: TensorEnv, action: Action) -> Action:
        return controls.hold_duel(action)

    def graph(self, cfg: AircombatConfig, frame: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """The space-time graph (`spacetime/moment.py`)."""
        return controls.graph_duel(cfg, frame)
