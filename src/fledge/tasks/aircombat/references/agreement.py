"""From the env to a plain duel: the same fights, the same moment."""

from __future__ import annotations

import numpy as np
import torch

from fledge.tasks.aircombat.env import AircombatEnv
from fledge.tasks.aircombat.references.numpy_duel import Fights


def fights_of(env: AircombatEnv) -> Fights:
    """The env's duels at this moment, float64; all go on."""
    state, rules = env.state, env.cfg.missile

    def plane(name: str) -> np.ndarray:
        return torch.view_as_complex(state[name].double().cpu()).unflatten(0, (-1, 2)).numpy().copy()

    def numbers(name: str) -> np.ndarray:
        return state[name].double().cpu().unflatten(0, (-1, 2)).numpy().copy()

    direction, missile_direction = plane("dir"), plane("m_dir")
    return Fights(
        pos=plane("pos"),
        direction=direction / np.abs(direction),
        speed=numbers("speed"),
        rudder=numbers("rudder"),
        left=rules.carried - numbers("fired").astype(np.int64),
        since_shot=rules.interval_s - numbers("wait"),
        missile_pos=plane("m_pos"),
        missile_direction=missile_direction / np.abs(missile_direction),
        missile_speed=numbers("m_speed"),
        missile_age=rules.burn_s - numbers("m_burn"),
        flying=numbers("m_flying") > 0,
        clock=state["time"].double().cpu().numpy().copy(),
        outcome=np.zeros(env.num_duels, np.int64),
    )
