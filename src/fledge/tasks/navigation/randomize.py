"""Settings of domain randomisation. The string under a field is its help text."""

from __future__ import annotations

from dataclasses import dataclass

from fledge.core.errors import ConfigError
from fledge.core.settings import setting

AIRFRAME = ("mass", "thrust", "damping", "drag", "velocity_gain", "attitude_gain", "rotor_lag")


@dataclass
class RandomizeConfig:
    """Domain randomisation: airframe, controller, wind, latency and sensor noise."""

    mass: float = setting(0.0, at_least=0, at_most=0.9)
    """Mass varies by up to ± this share, drawn per episode."""
    thrust: float = setting(0.0, at_least=0, at_most=0.9)
    """Rotor thrust varies by up to ± this share, drawn per episode."""
    damping: float = setting(0.0, at_least=0, at_most=0.9)
    """Air damping of velocity and rotation varies by up to ± this share, drawn per episode."""
    drag: float = setting(0.0, at_least=0, at_most=0.9)
    """Air damping of velocity alone varies by up to ± this share, drawn per episode."""
    velocity_gain: float = setting(0.0, at_least=0, at_most=0.9)
    """Gain of the velocity controller varies by up to ± this share, drawn per episode."""
    attitude_gain: float = setting(0.0, at_least=0, at_most=0.9)
    """Gains of attitude and body rates vary together by up to ± this share, drawn per episode (dynamics=lee only)."""
    rotor_lag: float = setting(0.0, at_least=0, at_most=0.9)
    """Time constant of the rotors varies by up to ± this share, drawn per episode (dynamics=lee only)."""
    wind_m_s2: float = setting(0.0, at_least=0, at_most=100)
    """Largest strength of gusts: standard deviation of the acceleration by wind along each horizontal axis, m/s², half of
    it vertically; each episode draws its strength from 0 to this number."""
    gust_s: float = setting(2.0, at_least=0.01, at_most=1000)
    """Correlation time of gusts, s (an Ornstein-Uhlenbeck process)."""
    latency_steps: int = setting(0, at_least=0, at_most=1000, resume="restart")
    """Largest delay of commands, in physics steps; each episode draws its delay from latency_min_steps to this number."""
    latency_min_steps: int = setting(0, at_least=0, at_most=1000)
    """Smallest delay of commands, in physics steps; at most latency_steps."""
    lidar_noise_m: float = setting(0.0, at_least=0, at_most=1000)
    """Standard deviation of the noise on each LiDAR distance, m."""
    lidar_noise_per_m2: float = setting(0.0, at_least=0, at_most=100)
    """Further noise that grows with distance: its standard deviation is this number times the squared distance, m per m²."""
    lidar_dropout: float = setting(0.0, at_least=0, at_most=0.9)
    """Probability that a LiDAR beam returns no hit."""
    state_noise: float = setting(0.0, at_least=0, at_most=1000)
    """Standard deviation of noise on observed distances (m) and velocities (m/s)."""
    mass_factor: float = setting(1.0, at_least=0.2, at_most=3)
    """Mass as a multiple of the nominal mass, which the controller assumes; `mass` varies around it."""

    def validate(self) -> None:
        """Raise ConfigError for settings that contradict each other."""
        if self.latency_min_steps > self.latency_steps:
            raise ConfigError(
                f"env.randomize.latency_min_steps is {self.latency_min_steps}, but must be at most "
                f"env.randomize.latency_steps, which is {self.latency_steps}: raise latency_steps."
            )

    def refuse_airframe(self, dynamics: str) -> None:
        """Raise ConfigError if airframe or wind vary, which only the env's own dynamics can."""
        nominal = RandomizeConfig()
        for name in (*AIRFRAME, "mass_factor", "wind_m_s2"):
            if getattr(self, name) != (usual := getattr(nominal, name)):
                raise ConfigError(
                    f"env.randomize.{name} needs env.dynamics=lee or first_order, not {dynamics}: set "
                    f"env.randomize.{name}={usual:g}, or change env.dynamics."
                )
