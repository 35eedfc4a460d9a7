"""Old place of `recorded`."""

from fledge.tasks.aircombat.spacetime.recorded import physics_settings

__all__ = ["physics_settings"]
