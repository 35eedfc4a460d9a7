"""Which missile a lost fight is blamed on."""

from __future__ import annotations

import numpy as np
import pytest

from fledge.tasks.aircombat.view.loss_reason import find_kill


def chase(gap_m: float, missile_speed: float, fired_at: int = 0, frames: int = 5) -> dict[str, np.ndarray]:
    """Return frames of a fighter that flies east at 450 m/s, with an enemy missile behind it, in flight from a frame on."""
    time = np.arange(frames, dtype=float)
    pos, heading, speed = np.zeros((frames, 2, 2)), np.zeros((frames, 2)), np.full((frames, 2), 450.0)
    pos[:, 0, 0] = 450.0 * time
    missile_pos, alive = np.zeros((frames, 2, 2, 2)), np.zeros((frames, 2, 2), dtype=bool)
    missile_pos[:, 1, 0, 0] = pos[:, 0, 0] - gap_m - (missile_speed - 450.0) * (time[-1] - time)
    alive[fired_at:, 1, 0] = True
    return {
        "time_s": time,
        "pos": pos,
        "heading": heading,
        "speed": speed,
        "missile_pos": missile_pos,
        "missile_heading": np.zeros((frames, 2, 2)),
        "missile_speed": np.full((frames, 2, 2), missile_speed),
        "missile_alive": alive,
    }


@pytest.mark.parametrize(("fired_at", "fired"), [(0, None), (2, 1)])
def test_a_missile_that_catches_up_slowly_is_the_one_that_killed(fired_at: int, fired: int | None) -> None:
    kill = find_kill(chase(110.0, 470.0, fired_at), side=0, kill_radius_m=100.0)
    assert (kill.slot, kill.fired) == (0, fired)
    assert kill.end_s == pytest.approx(4.5)  # 10 m at 20 m/s after the last frame


def test_a_missile_that_is_far_away_is_not_blamed() -> None:
    assert find_kill(chase(5000.0, 800.0), side=0, kill_radius_m=100.0).slot is None
