"""What agents see of the space-time graph: the reach of both sides' missiles. One thread a duel, for both of its rows.

    spacetime [10]       0, 1, 2 range over my R_max, R_tr, R_ne     3, 4, 5 over the enemy's against me (all to 4)
                         6 my time to decide / 60 s                  7 the enemy's (to 2; 2: never)
                         8, 9 closest approach / 1 km (to 4; 4: none comes) of the most dangerous incoming missile, the
                         first to be here, if I hold my course, and if I turn away

Time to decide: how long I may keep my course, both holding, before turning away no longer saves me from a shot fired then.
It is found on the table in steps that get shorter as the range gets near R_tr; a range that opens never gets there.
"""

import warp as wp

from fledge.tasks.aircombat.physics.airframe import Flyer, move
from fledge.tasks.aircombat.physics.structs import Duels, Obs, Result, fighter_of, missile_of
from fledge.tasks.aircombat.spacetime.flyout import Physics, fly_out
from fledge.tasks.aircombat.spacetime.manoeuvres import AWAY, FAR, HOLD, left_angle, time_to_go
from fledge.tasks.aircombat.spacetime.table import ReachTable, lookup, lookup_turning

NEVER = wp.constant(1.0e6)  # s
HORIZON = wp.constant(120.0)  # s, how far times to decide are sought
LOOKS = wp.constant(8)  # at most
SLACK = wp.constant(100.0)  # m/s by which r_tr may grow while sides hold their course
FLY_OUT_DT = wp.constant(0.25)  # s, at least
FLY_OUT_SHARE = wp.constant(0.2)  # of the time to go


@wp.func
def both_reaches(t: ReachTable, one: Flyer, two: Flyer) -> wp.vec2:
    """R_tr of one's shot at two, and of two's at one."""
    r = two.pos - one.pos
    off_one = left_angle(one.dir, r)
    off_two = left_angle(two.dir, -r)
    by_one = lookup_turning(t, one.speed, two.speed, off_one, off_two)
    by_two = lookup_turning(t, two.speed, one.speed, off_two, off_one)
    return wp.vec2(by_one, by_two)


@wp.func
def crossing(before: float, after: float, start: float, step: float) -> float:
    """When a line from `before` at the start of a step to `after` at its end is zero."""
    if before <= 0.0:
        return start
    return start + step * before / (before - after)


@wp.func
def times_to_decide(p: Physics, t: ReachTable, first: Flyer, second: Flyer, reach: wp.vec2) -> wp.vec2:
    """Seconds until the first, and the second, can no longer turn away; `reach` is what `both_reaches` says now."""
    one = first
    two = second
    away = wp.length(two.pos - one.pos)
    spare_one = away - reach[1]  # m that one is outside of two's reach
    spare_two = away - reach[0]
    time_one = float(NEVER)
    time_two = float(NEVER)
    if spare_one <= 0.0:
        time_one = 0.0
    if spare_two <= 0.0:
        time_two = 0.0
    time = float(0.0)
    for _k in range(LOOKS):
        r = two.pos - one.pos
        closing = wp.dot(one.speed * one.dir - two.speed * two.dir, r) / wp.max(wp.length(r), 1.0)
        spare = float(FAR)
        if time_one == NEVER:
            spare = spare_one
        if time_two == NEVER:
            spare = wp.min(spare, spare_two)
        if spare < FAR and closing > 0.0 and time < HORIZON:
            step = wp.clamp(spare / (closing + SLACK), 2.0, 30.0)
            one = move(p.fighter, one, 0.0, p.fighter.thrust, step)
            two = move(p.fighter, two, 0.0, p.fighter.thrust, step)
            away = wp.length(two.pos - one.pos)
            next = both_reaches(t, one, two)
            if time_one == NEVER and away <= next[1]:
                time_one = crossing(spare_one, away - next[1], time, step)
            if time_two == NEVER and away <= next[0]:
                time_two = crossing(spare_two, away - next[0], time, step)
            spare_one = away - next[1]
            spare_two = away - next[0]
            time = time + step
        else:
            return wp.vec2(time_one, time_two)
    return wp.vec2(time_one, time_two)


@wp.func
def most_dangerous(d: Duels, row: int, shooter: int, me: Flyer) -> int:
    """Slot of the incoming missile that is here first; -1 if none is in the air."""
    found = int(-1)
    least = float(FAR)
    for slot in range(d.fired[shooter]):
        if d.m_flying[shooter, slot] == 1:
            togo = time_to_go(missile_of(d, shooter, slot), me)
            if found < 0 or togo < least:
                found = slot
                least = togo
    return found


@wp.func
def observe_incoming(p: Physics, d: Duels, obs: Obs, row: int, shooter: int, me: Flyer):
    """Predicted misses of the most dangerous missile."""
    slot = most_dangerous(d, row, shooter, me)
    obs.spacetime[row, 8] = 4.0
    obs.spacetime[row, 9] = 4.0
    if slot >= 0:
        missile = missile_of(d, shooter, slot)
        burn = d.m_burn[shooter, slot]
        holding = fly_out(p, missile, burn, me, HOLD, FLY_OUT_DT, FLY_OUT_SHARE)
        turning = fly_out(p, missile, burn, me, AWAY, FLY_OUT_DT, FLY_OUT_SHARE)
        obs.spacetime[row, 8] = wp.min(holding.miss / 1000.0, 4.0)
        obs.spacetime[row, 9] = wp.min(turning.miss / 1000.0, 4.0)


@wp.func
def observe_reach(obs: Obs, row: int, mine: wp.vec3, theirs: wp.vec3, away: float, my_time: float, their_time: float):
    for k in range(3):
        obs.spacetime[row, k] = wp.min(away / mine[k], 4.0)
        obs.spacetime[row, 3 + k] = wp.min(away / theirs[k], 4.0)
    obs.spacetime[row, 6] = wp.min(my_time / 60.0, 2.0)
    obs.spacetime[row, 7] = wp.min(their_time / 60.0, 2.0)


@wp.kernel(enable_backward=False)
def observe_spacetime(first: int, only_ended: int, p: Physics, t: ReachTable, d: Duels, result: Result, obs: Obs):
    """Fill `obs.spacetime`; where `only_ended`, of fights that have just begun again."""
    i = first + wp.tid()
    a = 2 * i
    b = a + 1
    if only_ended == 1 and not (result.terminated[a] or result.truncated[a]):
        return
    one = fighter_of(d, a)
    two = fighter_of(d, b)
    r = two.pos - one.pos
    off_one = left_angle(one.dir, r)
    off_two = left_angle(two.dir, -r)
    by_one = lookup(t, one.speed, two.speed, off_one, off_two)
    by_two = lookup(t, two.speed, one.speed, off_two, off_one)
    times = times_to_decide(p, t, one, two, wp.vec2(by_one[1], by_two[1]))
    away = wp.length(r)
    observe_reach(obs, a, by_one, by_two, away, times[0], times[1])
    observe_reach(obs, b, by_two, by_one, away, times[1], times[0])
    observe_incoming(p, d, obs, a, b, one)
    observe_incoming(p, d, obs, b, a, two)
