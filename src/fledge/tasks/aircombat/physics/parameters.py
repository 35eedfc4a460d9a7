"""Parameters of the kernels, from the settings."""

from __future__ import annotations

import math

from fledge.tasks.aircombat.config import GRAVITY, AircombatConfig, FighterConfig, MissileConfig
from fledge.tasks.aircombat.physics.airframe import Airframe
from fledge.tasks.aircombat.physics.missile import Motor
from fledge.tasks.aircombat.physics.structs import Physics


def airframe_of(cfg: FighterConfig | MissileConfig, load_limits: bool) -> Airframe:
    """Return the parameters of an airframe."""
    frame = Airframe()
    frame.cd0 = GRAVITY / cfg.terminal_speed**2
    frame.k = 1.0 / (4.0 * frame.cd0 * cfg.lift_drag**2)
    frame.rmin = cfg.min_turn_radius_m
    frame.thrust = cfg.thrust_g * GRAVITY
    frame.max_load = cfg.load_limit_g * GRAVITY if load_limits else 0.0
    return frame


def motor_of(cfg: MissileConfig, load_limits: bool) -> Motor:
    """Return the parameters of a missile."""
    motor = Motor()
    motor.frame = airframe_of(cfg, load_limits)
    motor.navigation, motor.burn = cfg.navigation, cfg.burn_s
    motor.min_speed, motor.kill_radius = cfg.min_speed, cfg.kill_radius_m
    return motor


def physics_of(cfg: AircombatConfig) -> Physics:
    """Return the parameters of fighters and missiles."""
    physics = Physics()
    physics.fighter = airframe_of(cfg.fighter, cfg.load_limits)
    physics.motor = motor_of(cfg.missile, cfg.load_limits)
    physics.rudder_rate = cfg.rudder_rate
    physics.top_speed = math.sqrt(cfg.fighter.thrust_g) * cfg.fighter.terminal_speed
    return physics
