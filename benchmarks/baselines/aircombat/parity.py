"""Compare plain duels with the simulator: both from the same state, with the same controls, decision by decision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from benchmarks.baselines.aircombat.numpy_duel import GOING_ON, Fights
from fledge.tasks.aircombat.env import AircombatEnv

Action = Mapping[str, torch.Tensor]
Array = np.ndarray
CLOCK = 12  # of the observation `state`, in units of 240 s


def fights_of(env: AircombatEnv) -> Fights:
    """Return the current state of the env's duels, float64, none of them over."""
    state, rules = env.state, env.cfg.missile

    def numbers(name: str) -> Array:
        return state[name].double().cpu().unflatten(0, (-1, 2)).numpy().copy()

    direction, missile_direction = _plane(env, "dir"), _plane(env, "m_dir")
    return Fights(
        pos=_plane(env, "pos"),
        direction=direction / np.abs(direction),
        speed=numbers("speed"),
        rudder=numbers("rudder"),
        left=rules.carried - numbers("fired").astype(np.int64),
        since_shot=rules.interval_s - numbers("wait"),
        missile_pos=_plane(env, "m_pos"),
        missile_direction=missile_direction / np.abs(missile_direction),
        missile_speed=numbers("m_speed"),
        missile_age=rules.burn_s - numbers("m_burn"),
        flying=numbers("m_flying") > 0,
        clock=state["time"].double().cpu().numpy().copy(),
        outcome=np.zeros(env.num_duels, np.int64),
    )


def _plane(env: AircombatEnv, name: str) -> Array:
    """Return vectors of the env's state as complex numbers [F, 2, ...]."""
    return torch.view_as_complex(env.state[name].double().cpu()).unflatten(0, (-1, 2)).numpy().copy()


@dataclass
class Comparison:
    """Fights flown by the env and by a plain duel. Gaps are the largest until either says that a fight is over."""

    fighter_gap: Array  # [F] m
    missile_gap: Array  # [F] m
    outcome: Array  # [F] of the env; the numbers are those of numpy_duel.OUTCOMES
    plain_outcome: Array  # [F]
    end_gap: Array  # [F] s between the two ends of a fight; 0 where the outcomes differ or it goes on

    @property
    def same_outcome(self) -> float:
        """Share of fights with the same outcome."""
        return float((self.outcome == self.plain_outcome).mean())


def fly_together(
    env: AircombatEnv, out: TensorDict, duel: Any, actions: Iterable[Action], arguments: Iterable[tuple] | None = None
) -> Comparison:
    """Step the env and a plain duel in the same state until the actions run out or all fights are over.

    Args:
        duel: A baseline as in `benchmarks.sim_benchmark`.
        arguments: Arguments of its `step`; None: the actions as NumPy arrays, float64.
    """
    count = env.num_duels
    zeros, none = np.zeros((3, count)), np.zeros((2, count), np.int64)
    found = Comparison(zeros[0], zeros[1], none[0], none[1], zeros[2])
    ended_at, clock = np.zeros(count), np.zeros(count)
    given = None if arguments is None else iter(arguments)
    for action in actions:
        env.step(action, out=out)
        now = {k: np.asarray(v) for k, v in duel.step(*(next(given) if given else (controls_of(action),))).items()}
        result = out["outcome"].cpu().numpy()[::2].astype(np.int64)
        news = (found.outcome == GOING_ON) & (result != GOING_ON)
        found.outcome[news] = result[news]
        ended_at[news] = 240.0 * out["final_obs", "state"].cpu().numpy()[::2, CLOCK][news]
        found.plain_outcome[:], clock = now["outcome"], now["clock"]
        on = (found.outcome == GOING_ON) & (found.plain_outcome == GOING_ON)
        flying = (env.state["m_flying"].cpu().numpy().reshape(count, 2, -1) > 0) & now["flying"]
        missiles = np.where(flying, np.abs(_plane(env, "m_pos") - now["missile_pos"]), 0.0).max((1, 2))
        np.maximum(found.fighter_gap, np.abs(_plane(env, "pos") - now["pos"]).max(1), out=found.fighter_gap, where=on)
        np.maximum(found.missile_gap, missiles, out=found.missile_gap, where=on)
        if (found.outcome != GOING_ON).all() and (found.plain_outcome != GOING_ON).all():
            break
    both = (found.outcome != GOING_ON) & (found.outcome == found.plain_outcome)
    found.end_gap[both] = np.abs(ended_at - clock)[both]
    return found


def controls_of(action: Action) -> tuple[Array, Array, Array]:
    """Return rudder, throttle and fire [F, 2] as `NumpyDuel` takes them."""
    rudder, throttle, fire = (
        action[name].cpu().double().view(-1, 2).numpy() for name in ("rudder", "throttle", "fire")
    )
    return rudder, throttle, fire
