"""Observations `state` and `missiles`, and the action mask; see `observations.py` for the columns. One thread per row."""

import warp as wp

from fledge.tasks.aircombat.observations import Missile, State
from fledge.tasks.aircombat.physics.airframe import Flyer
from fledge.tasks.aircombat.physics.missile import cross2
from fledge.tasks.aircombat.physics.structs import (
    FAR,
    Duels,
    Obs,
    Params,
    Result,
    can_fire,
    fighter_of,
    limits_of,
    missile_of,
)

STATE_COLUMNS = wp.constant(len(State))
STATE_LIMITS = limits_of(State)
MISSILE_COLUMNS = wp.constant(len(Missile))
MISSILE_LIMITS = limits_of(Missile)


@wp.func
def observe_missile(p: Params, d: Duels, obs: Obs, row: int, owner: int, me: Flyer, target: Flyer, slot: int, at: int):
    """Write missile `slot` of the side `owner` to entry `at` of the observation `missiles` of the side `row`.

    `me` is the observing fighter, `target` the fighter that the missile flies at.
    """
    for k in range(MISSILE_COLUMNS):
        obs.missiles[row, at, k] = 0.0
    if d.m_flying[owner, slot] == 0:
        return
    missile = missile_of(d, owner, slot)
    r = target.pos - missile.pos
    away = wp.max(wp.length(r), 1.0)
    closing = wp.dot(missile.speed * missile.dir - target.speed * target.dir, r) / away
    togo = float(FAR)
    if closing > 1.0:
        togo = away / closing
    to_it = missile.pos - me.pos
    distance = wp.max(wp.length(to_it), 1.0)
    incoming = float(0.0)
    if owner != row:
        incoming = 1.0
    obs.missiles[row, at, Missile.FLYING] = 1.0
    obs.missiles[row, at, Missile.INCOMING] = incoming
    obs.missiles[row, at, Missile.RANGE] = away
    obs.missiles[row, at, Missile.CLOSING_SPEED] = closing
    obs.missiles[row, at, Missile.TIME_TO_GO] = togo
    obs.missiles[row, at, Missile.MOTOR_LEFT] = d.m_burn[owner, slot] / wp.max(p.motor.burn, 1.0e-3)
    obs.missiles[row, at, Missile.SPEED] = missile.speed
    obs.missiles[row, at, Missile.BEARING_SIN] = cross2(me.dir, to_it) / distance
    obs.missiles[row, at, Missile.BEARING_COS] = wp.dot(me.dir, to_it) / distance
    obs.missiles[row, at, Missile.LEAD_COS] = wp.dot(missile.dir, r) / away
    for k in range(MISSILE_COLUMNS):
        scaled = obs.missiles[row, at, k] / MISSILE_LIMITS[0, k]
        obs.missiles[row, at, k] = wp.clamp(scaled, MISSILE_LIMITS[1, k], MISSILE_LIMITS[2, k])


@wp.kernel(enable_backward=False)
def observe(first: int, only_ended: int, p: Params, d: Duels, result: Result, obs: Obs):
    """Write all observations but `spacetime`; if `only_ended` is 1, only for fights that have just restarted.

    `first` is the row of the launch's first thread.
    """
    row = 2 * first + wp.tid()
    if only_ended == 1 and not (result.terminated[row] or result.truncated[row]):
        return
    i = row / 2
    other = 4 * i + 1 - row
    me = fighter_of(d, row)
    foe = fighter_of(d, other)
    r = foe.pos - me.pos
    away = wp.max(wp.length(r), 1.0)
    v = foe.speed * foe.dir - me.speed * me.dir
    ready = float(0.0)
    if can_fire(p, d, row):
        ready = 1.0
    obs.state[row, State.RANGE] = away
    obs.state[row, State.CLOSING_SPEED] = -wp.dot(r, v) / away
    obs.state[row, State.BEARING_SIN] = cross2(me.dir, r) / away
    obs.state[row, State.BEARING_COS] = wp.dot(me.dir, r) / away
    obs.state[row, State.ASPECT_SIN] = -cross2(foe.dir, r) / away
    obs.state[row, State.ASPECT_COS] = -wp.dot(foe.dir, r) / away
    obs.state[row, State.SPEED] = me.speed
    obs.state[row, State.ENEMY_SPEED] = foe.speed
    obs.state[row, State.ENERGY] = me.speed * me.speed / (p.top_speed * p.top_speed)
    obs.state[row, State.ENEMY_ENERGY] = foe.speed * foe.speed / (p.top_speed * p.top_speed)
    obs.state[row, State.MISSILES_LEFT] = float(p.slots - d.fired[row]) / float(p.slots)
    obs.state[row, State.CAN_FIRE] = ready
    obs.state[row, State.TIME] = d.time[i]
    obs.state[row, State.RUDDER] = d.rudder[row]
    obs.state[row, State.CROSSING_SPEED] = cross2(r, v) / away
    for k in range(STATE_COLUMNS):
        obs.state[row, k] = wp.clamp(obs.state[row, k] / STATE_LIMITS[0, k], STATE_LIMITS[1, k], STATE_LIMITS[2, k])
    for slot in range(p.slots):
        observe_missile(p, d, obs, row, row, me, foe, slot, slot)
        observe_missile(p, d, obs, row, other, me, me, slot, p.slots + slot)
    values = obs.mask.shape[1]  # 2: hold or fire; 6: hold or fire for each of three rudders
    for k in range(values):
        obs.mask[row, k] = k % 2 == 0 or ready > 0.5
