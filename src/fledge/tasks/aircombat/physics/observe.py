"""What each side sees: egocentric and bounded, the same for either side. One thread a row.

    state [15]           0 range / 50 km (to 4)              1 closing speed / 1000 m/s
                         2, 3 sin, cos of the angle from the nose to the enemy
                         4, 5 sin, cos of the enemy's aspect: the angle from its nose to us
                         6, 7 own, enemy's speed / 500 m/s   8, 9 own, enemy's energy: (speed / top speed)² (to 4)
                         10 share of missiles left           11 1 if a shot is possible
                         12 time of the fight / 240 s (to 4) 13 own rudder
                         14 speed across the line of sight / 1000 m/s
    missiles [2 S, 10]   own ones, then incoming ones; zeros where there is none:
                         0 flying                            1 incoming
                         2 range to its target / 30 km       3 closing speed / 1500 m/s
                         4 time to go / 60 s (to 2)          5 share of the motor left
                         6 speed / 1500 m/s                  7, 8 sin, cos of the angle from our nose to it
                         9 cos of the angle from its nose to its target

Angles are positive to the left.
"""

import warp as wp

from fledge.tasks.aircombat.physics.airframe import Flyer
from fledge.tasks.aircombat.physics.missile import cross2
from fledge.tasks.aircombat.physics.structs import Duels, Obs, Params, Result, can_fire, fighter_of, missile_of


@wp.func
def observe_token(p: Params, d: Duels, obs: Obs, row: int, owner: int, me: Flyer, target: Flyer, slot: int, token: int):
    """One missile of `owner`'s, as `row` sees it."""
    for k in range(10):
        obs.missiles[row, token, k] = 0.0
    if d.m_flying[owner, slot] == 0:
        return
    missile = missile_of(d, owner, slot)
    r = target.pos - missile.pos
    away = wp.max(wp.length(r), 1.0)
    closing = wp.dot(missile.speed * missile.dir - target.speed * target.dir, r) / away
    togo = float(2.0)
    if closing > 1.0:
        togo = wp.min(away / closing / 60.0, 2.0)
    to_it = missile.pos - me.pos
    distance = wp.max(wp.length(to_it), 1.0)
    incoming = float(0.0)
    if owner != row:
        incoming = 1.0
    obs.missiles[row, token, 0] = 1.0
    obs.missiles[row, token, 1] = incoming
    obs.missiles[row, token, 2] = wp.min(away / 30000.0, 4.0)
    obs.missiles[row, token, 3] = wp.clamp(closing / 1500.0, -2.0, 2.0)
    obs.missiles[row, token, 4] = togo
    obs.missiles[row, token, 5] = d.m_burn[owner, slot] / wp.max(p.motor.burn, 1.0e-3)
    obs.missiles[row, token, 6] = wp.min(missile.speed / 1500.0, 4.0)
    obs.missiles[row, token, 7] = wp.clamp(cross2(me.dir, to_it) / distance, -1.0, 1.0)
    obs.missiles[row, token, 8] = wp.clamp(wp.dot(me.dir, to_it) / distance, -1.0, 1.0)
    obs.missiles[row, token, 9] = wp.clamp(wp.dot(missile.dir, r) / away, -1.0, 1.0)


@wp.kernel(enable_backward=False)
def observe(first: int, only_ended: int, p: Params, d: Duels, result: Result, obs: Obs):
    """Everything but the space-time graph; where `only_ended`, of fights that have just begun again."""
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
    obs.state[row, 0] = wp.min(away / 50000.0, 4.0)
    obs.state[row, 1] = wp.clamp(-wp.dot(r, v) / away / 1000.0, -2.0, 2.0)
    obs.state[row, 2] = wp.clamp(cross2(me.dir, r) / away, -1.0, 1.0)
    obs.state[row, 3] = wp.clamp(wp.dot(me.dir, r) / away, -1.0, 1.0)
    obs.state[row, 4] = wp.clamp(-cross2(foe.dir, r) / away, -1.0, 1.0)
    obs.state[row, 5] = wp.clamp(-wp.dot(foe.dir, r) / away, -1.0, 1.0)
    obs.state[row, 6] = wp.min(me.speed / 500.0, 4.0)
    obs.state[row, 7] = wp.min(foe.speed / 500.0, 4.0)
    obs.state[row, 8] = wp.min(me.speed * me.speed / (p.top_speed * p.top_speed), 4.0)
    obs.state[row, 9] = wp.min(foe.speed * foe.speed / (p.top_speed * p.top_speed), 4.0)
    obs.state[row, 10] = float(p.slots - d.fired[row]) / float(p.slots)
    obs.state[row, 11] = ready
    obs.state[row, 12] = wp.min(d.time[i] / 240.0, 4.0)
    obs.state[row, 13] = d.rudder[row]
    obs.state[row, 14] = wp.clamp(cross2(r, v) / away / 1000.0, -2.0, 2.0)
    for slot in range(p.slots):
        observe_token(p, d, obs, row, row, me, foe, slot, slot)
        observe_token(p, d, obs, row, other, me, me, slot, p.slots + slot)
    values = obs.mask.shape[1]  # fire or not; of the discrete form, three rudders times that
    for k in range(values):
        obs.mask[row, k] = k % 2 == 0 or ready > 0.5
