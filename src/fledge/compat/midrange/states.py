"""States and observations of fights in midrangeRL's form: entities in numbered slots, and one observation for each side.

slot            0 P1        1 P2        2, 4, 6 ... P1's missiles, 3, 5, 7 ... P2's, in the order of firing
states[name]    [num_envs, slots]: m, m/s, degrees counter-clockwise from east in [0, 360), s
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fledge.envs.warp_env import Programs
from fledge.tasks.aircombat.env import AircombatEnv
from fledge.tasks.aircombat.observations import State

P1, P2, FIRST_MISSILE = 0, 1, 2
SPEED = 400.0  # m/s, unit of observed speeds


class ManualResetDuels(AircombatEnv):
    """AircombatEnv without auto-reset: a fight that ended does not change until it is reset."""

    def restart_ended(self, programs: Programs) -> None:
        self._keep_seen(programs)

    @property
    def throttle(self) -> Tensor:
        """Throttle of the last action of each side, [2 N]."""
        return self._controls["throttle"].clamp(0.0, 1.0)

    @property
    def shots(self) -> Tensor:
        """Number of missiles that each side fired in the last step, [2 N]."""
        return self.state["fired"] - self._fired_before


def degrees_of(direction: Tensor) -> Tensor:
    """Return the headings [...] of unit vectors [..., 2], degrees counter-clockwise from east in [0, 360)."""
    return torch.rad2deg(torch.atan2(direction[..., 1], direction[..., 0])) % 360.0


def slots_of(duel: ManualResetDuels, origin_m: float, slots: int) -> dict[str, Tensor]:
    """Return a copy of the state of all entities: a tensor [N, slots] for each quantity ("x", "speed", ...)."""
    n, s = duel.num_duels, duel.state
    fired = duel.cfg.missile.carried

    def filled(fighters: Tensor, missiles: Tensor) -> Tensor:
        """Return the values of fighters [2 N] and of missiles [2 N, missiles per fighter] as slots, [N, slots]."""
        flying = missiles.view(n, 2, fired).transpose(1, 2).reshape(n, 2 * fired)
        rest = torch.zeros((n, slots - 2 - 2 * fired), dtype=missiles.dtype, device=missiles.device)
        return torch.cat([fighters.view(n, 2).to(missiles.dtype), flying, rest], dim=1)

    active, used = s["m_flying"] > 0, torch.arange(fired, device=duel.device) < s["fired"][:, None]
    side = torch.arange(2 * n, device=duel.device) % 2
    nothing = torch.zeros_like(s["m_speed"])
    velocity, m_velocity = s["dir"] * s["speed"][:, None], s["m_dir"] * s["m_speed"][..., None]
    alive = s["alive"] > 0

    def shown(value: Tensor) -> Tensor:
        return torch.where(used, value, 0.0)

    return {
        "x": filled(s["pos"][:, 0] + origin_m, shown(s["m_pos"][..., 0] + origin_m)),
        "y": filled(s["pos"][:, 1] + origin_m, shown(s["m_pos"][..., 1] + origin_m)),
        "vx": filled(velocity[:, 0], shown(m_velocity[..., 0])),
        "vy": filled(velocity[:, 1], shown(m_velocity[..., 1])),
        "speed": filled(s["speed"], shown(s["m_speed"])),
        "angle": filled(degrees_of(s["dir"]), shown(degrees_of(s["m_dir"]))),
        "rudder": filled(s["rudder"], nothing),
        "throttle": filled(duel.throttle, nothing),
        "engine_time": filled(torch.zeros_like(s["speed"]), s["m_burn"]),
        "missile_count": filled(fired - s["fired"], torch.zeros_like(s["m_flying"])).long(),
        "alive": filled(alive, torch.zeros_like(active)),
        "is_active": filled(alive, active),
        "is_missile": filled(torch.zeros_like(alive), used),
        "is_player1": filled(side == 0, used & (side == 0)[:, None]),
        # slots counted from 1, 0 for none, become slots counted from 0, -1 for none
        "source_idx": filled(torch.zeros_like(side), used * (side[:, None] + 1)).long() - 1,
        "target_idx": filled(torch.zeros_like(side), used * (2 - side[:, None])).long() - 1,
    }


def side_observations(
    duel: ManualResetDuels, ours: Mapping[str, Tensor], origin_m: float, size_m: float
) -> dict[str, dict[str, Tensor]]:
    """Return the observations of "p1" and "p2", both midrangeRL's and Fledge's, as tensors of shape [N, ...].

    Args:
        ours: Fledge's observations, [2 N, ...]. Its "missiles" is returned as "missile_tokens", because midrangeRL has
            another observation of that name.
        origin_m: Position of Fledge's origin in midrangeRL's coordinates, m.
        size_m: Side length of the battlefield, m; positions and distances are divided by it.
    """
    s, state = duel.state, ours["state"]
    pos = s["pos"].view(-1, 2, 2)
    apart = (pos[:, 1] - pos[:, 0]).norm(dim=-1) / size_m
    carried = duel.cfg.missile.carried
    whole = {
        "x": (s["pos"][:, 0] + origin_m) / size_m,
        "y": (s["pos"][:, 1] + origin_m) / size_m,
        "angle": degrees_of(s["dir"]) / 360.0,
        "speed": s["speed"] / SPEED,
        "missiles": (carried - s["fired"]).float() / carried,
        "alive": (s["alive"] > 0).float(),
        "enemy_distance": apart.repeat_interleave(2),
        "enemy_relative_angle": torch.atan2(state[:, State.BEARING_SIN], state[:, State.BEARING_COS]) / math.pi,
    }
    other = torch.arange(duel.num_envs, device=duel.device).view(-1, 2).flip(1).flatten()
    whole |= {"enemy_speed": whole["speed"][other], "enemy_alive": whole["alive"][other]}
    whole |= {"missile_tokens" if name == "missiles" else name: value for name, value in ours.items()}
    return {name: {key: value[row::2].clone() for key, value in whole.items()} for row, name in enumerate(("p1", "p2"))}
