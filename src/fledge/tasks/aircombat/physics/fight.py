"""One decision of every duel: shots, then physics steps until the fight or the decision is over. One thread per duel.

A physics step computes everything from the state at its beginning, so the order of the sides does not matter. A fighter
within a missile's kill radius during the step dies; if both do, it is a draw.
"""

import warp as wp

from fledge.tasks.aircombat.physics.airframe import Flyer, Leg, advance, after, joined
from fledge.tasks.aircombat.physics.missile import closest_approach, fly_missile, guide
from fledge.tasks.aircombat.physics.structs import (
    FAR,
    Controls,
    Duels,
    Outcome,
    Params,
    Result,
    Timing,
    can_fire,
    fighter_of,
    missile_of,
)

wp.set_module_options({"fuse_fp": False})  # a fused product rounds x and y differently: see airframe.py


@wp.func
def shoot(p: Params, d: Duels, row: int, asked: int):
    """Fire a missile of the side `row` along its nose, if `asked` is 1 and the side can fire now."""
    if asked == 0 or not can_fire(p, d, row):
        return
    slot = d.fired[row]
    d.m_pos[row, slot] = d.pos[row]
    d.m_dir[row, slot] = d.dir[row]
    d.m_speed[row, slot] = d.speed[row]
    d.m_burn[row, slot] = p.motor.burn
    d.m_flying[row, slot] = 1
    d.m_least[row, slot] = FAR
    d.fired[row] = slot + 1
    d.wait[row] = p.interval


@wp.func
def slew(rate: float, now: float, asked: float, dt: float) -> float:
    """Return the next rudder position: from `now` towards `asked` by at most `rate` per second; at once if `rate` is 0."""
    if rate <= 0.0:
        return asked
    return now + wp.clamp(asked - now, -rate * dt, rate * dt)


@wp.func
def fly_missiles(p: Params, d: Duels, row: int, target: Flyer, target_after: Flyer, dt: float) -> wp.vec2i:
    """Move all missiles of the side `row` by one step of dt seconds.

    `target` and `target_after` are the enemy before and after the step. Return whether a missile kills it (1 or 0), and how
    many missiles still fly.
    """
    killed = int(0)
    flying = int(0)
    for slot in range(d.fired[row]):
        if d.m_flying[row, slot] == 1:
            was = missile_of(d, row, slot)
            burn = d.m_burn[row, slot]
            now = fly_missile(p.motor, was, guide(p.motor, was, target), burn, dt)
            miss = closest_approach(target.pos - was.pos, target_after.pos - now.pos)
            burn = wp.max(burn - dt, 0.0)
            d.m_pos[row, slot] = now.pos
            d.m_dir[row, slot] = now.dir
            d.m_speed[row, slot] = now.speed
            d.m_burn[row, slot] = burn
            d.m_least[row, slot] = wp.min(d.m_least[row, slot], miss)
            if miss <= p.motor.kill_radius:
                killed = 1
                d.m_flying[row, slot] = 0
            elif burn <= 0.0 and now.speed < p.motor.min_speed:
                d.m_flying[row, slot] = 0
            else:
                flying = flying + 1
    return wp.vec2i(killed, flying)


@wp.kernel(enable_backward=False)
def fight(first: int, p: Params, timing: Timing, asked: Controls, d: Duels, result: Result):
    """Fly every duel for one decision with the actions `asked`, and write its result; `first` is the launch's first duel."""
    i = first + wp.tid()
    a = 2 * i
    b = a + 1
    shoot(p, d, a, asked.fire[a])
    shoot(p, d, b, asked.fire[b])
    dt = timing.dt[0]
    start_one = fighter_of(d, a)
    start_two = fighter_of(d, b)
    one = start_one
    two = start_two
    leg_one = Leg()
    leg_two = Leg()
    rudder_one = d.rudder[a]
    rudder_two = d.rudder[b]
    asked_one = wp.clamp(asked.rudder[a], -1.0, 1.0)
    asked_two = wp.clamp(asked.rudder[b], -1.0, 1.0)
    thrust_one = wp.clamp(asked.throttle[a], 0.0, 1.0) * p.fighter.thrust
    thrust_two = wp.clamp(asked.throttle[b], 0.0, 1.0) * p.fighter.thrust
    over = int(0)
    elapsed = float(0.0)
    for _k in range(timing.steps[0]):
        if over == 0:
            rudder_one = slew(p.rudder_rate, rudder_one, asked_one, dt)
            rudder_two = slew(p.rudder_rate, rudder_two, asked_two, dt)
            leg_one = joined(leg_one, advance(p.fighter, one.dir, one.speed, rudder_one, thrust_one, dt))
            leg_two = joined(leg_two, advance(p.fighter, two.dir, two.speed, rudder_two, thrust_two, dt))
            one_after = after(start_one, leg_one)
            two_after = after(start_two, leg_two)
            by_one = fly_missiles(p, d, a, two, two_after, dt)
            by_two = fly_missiles(p, d, b, one, one_after, dt)
            one = one_after
            two = two_after
            elapsed = elapsed + dt
            if by_one[0] == 1:
                d.alive[b] = 0
                over = 1
            if by_two[0] == 1:
                d.alive[a] = 0
                over = 1
            if d.fired[a] == p.slots and d.fired[b] == p.slots and by_one[1] + by_two[1] == 0:
                over = 1
    d.pos[a] = one.pos
    d.pos[b] = two.pos
    d.dir[a] = one.dir
    d.dir[b] = two.dir
    d.speed[a] = one.speed
    d.speed[b] = two.speed
    d.rudder[a] = rudder_one
    d.rudder[b] = rudder_two
    d.wait[a] = wp.max(d.wait[a] - elapsed, 0.0)
    d.wait[b] = wp.max(d.wait[b] - elapsed, 0.0)
    time = d.time[i] + elapsed
    d.time[i] = time
    d.decisions[i] = d.decisions[i] + 1
    d.over[i] = over
    late = over == 0 and time >= p.max_time - 1.0e-3
    for side in range(2):
        row = a + side
        outcome = wp.uint8(0)
        if over == 1:
            mine = d.alive[row]
            theirs = d.alive[a + 1 - side]
            if mine == 1 and theirs == 1:
                outcome = wp.uint8(Outcome.SPENT)
            elif mine == 1:
                outcome = wp.uint8(Outcome.WIN)
            elif theirs == 1:
                outcome = wp.uint8(Outcome.LOSS)
            else:
                outcome = wp.uint8(Outcome.DRAW)
        elif late:
            outcome = wp.uint8(Outcome.TIMEOUT)
        result.outcome[row] = outcome
        result.terminated[row] = over == 1
        result.truncated[row] = late
