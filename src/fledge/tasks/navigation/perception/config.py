"""Settings of faulty perception. The string under a field is its help text; docs/worlds/perception.md has the sources."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from fledge.core.settings import setting

MAX_GHOSTS = 4  # slots for ghosts; each is filled at most half of the time


@dataclass
class PerceptionConfig:
    """Faults of detector, LiDAR and odometry. The defaults are perfect perception."""

    vary: float = setting(0.0, at_least=0, at_most=1, resume="restart")
    """Share by which episodes differ: each draws rates, delays, errors and drift from (1 - vary) times their setting up to
    the setting. 0: the settings themselves."""
    miss_rate: float = setting(0.0, at_least=0, at_most=0.95, resume="restart")
    """Probability that the detector misses a mover in a frame."""
    lose_rate: float = setting(0.0, at_least=0, at_most=10, resume="restart")
    """Tracks lost per second, for each mover; a lost mover is not seen for lose_s on average."""
    lose_s: float = setting(1.0, at_least=0.05, at_most=1000, resume="restart")
    """Mean time for which a lost mover stays unseen, s (exponential distribution)."""
    ghosts: float = setting(0.0, at_least=0, at_most=2, resume="restart")
    """Mean number of ghosts: movers that the detector reports and that do not exist. They appear within range."""
    ghost_s: float = setting(0.5, at_least=0.05, at_most=1000, resume="restart")
    """Mean lifetime of a ghost, s (exponential distribution)."""
    mover_period_s: float = setting(0.0, at_least=0, at_most=2, resume="restart")
    """Time between two frames of the detector, s, in whole physics steps; 0: a frame for every decision."""
    mover_delay_s: float = setting(0.0, at_least=0, at_most=2, resume="restart")
    """Age of a frame when it arrives, s, in whole physics steps: movers are seen where they were."""
    position_noise: float = setting(0.0, at_least=0, at_most=2, resume="restart")
    """Standard deviation of a mover's position along each axis, m per metre of distance; new in every frame."""
    velocity_noise: float = setting(0.0, at_least=0, at_most=10, resume="restart")
    """Standard deviation of a mover's velocity along each axis, m/s per metre of distance; new in every frame."""
    size_error: float = setting(0.0, at_least=0, at_most=2, resume="restart")
    """Standard deviation of a mover's width, as a share of it; the same for a whole episode."""
    occlusion: bool = setting(False, resume="restart")
    """Hide movers whose centre is behind a static obstacle."""
    view_deg: float = setting(360.0, above=0, at_most=360, resume="restart")
    """Horizontal field of view of the detector, degrees, with the drone's heading in the middle."""
    lidar_period_s: float = setting(0.0, at_least=0, at_most=2, resume="restart")
    """Time between two LiDAR scans, s, in whole decisions; in between, the last scan counts. 0: one for every decision."""
    lidar_delay_s: float = setting(0.0, at_least=0, at_most=2, resume="restart")
    """Age of a LiDAR scan when it arrives, s, in whole decisions."""
    drift_m: float = setting(0.0, at_least=0, at_most=100, resume="restart")
    """Odometry: standard deviation of the estimated position along each axis after a minute, m (a random walk)."""
    drift_yaw_deg: float = setting(0.0, at_least=0, at_most=180, resume="restart")
    """Odometry: standard deviation of the estimated yaw after a minute, degrees (a random walk). Positions are summed up
    along the wrong heading."""

    @property
    def active(self) -> bool:
        """Whether any fault is on."""
        idle = dataclasses.replace(PerceptionConfig(), vary=self.vary, lose_s=self.lose_s, ghost_s=self.ghost_s)
        return self != idle

    @property
    def mean_scan_delay_s(self) -> float:
        """Mean age of a LiDAR scan when it arrives, s."""
        return self.lidar_delay_s * (1.0 - 0.5 * self.vary)

    @property
    def mean_mover_age_s(self) -> float:
        """Mean age of the detector's frame at a decision, s."""
        return self.mover_delay_s * (1.0 - 0.5 * self.vary) + 0.5 * self.mover_period_s
