"""Duels that stay as they ended, until they are reset."""

from __future__ import annotations

from torch import Tensor

from fledge.envs.warp_env import Programs
from fledge.tasks.aircombat.env import AircombatEnv


class StandingDuels(AircombatEnv):
    """AircombatEnv without its auto-reset, and with what `states` shows of the last step."""

    def _restart_ended(self, programs: Programs) -> None:
        self._keep_seen(programs)

    @property
    def throttle(self) -> Tensor:
        """What was asked for last, [2 N]."""
        return self._controls["throttle"].clamp(0.0, 1.0)

    @property
    def shots(self) -> Tensor:
        """Missiles fired in the last step, [2 N]."""
        return self.state["fired"] - self._fired_before
