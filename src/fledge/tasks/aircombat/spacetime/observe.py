"""The observation `spacetime`; see `observations.py` for the columns. One thread per duel, for both of its rows.

Time to decide: how long both sides may hold their course before turning away no longer saves a side from a shot fired then.
The search looks up the table in steps that get shorter as the range nears R_tr; if the range grows, the search
ends without a limit.
"""

import warp as wp

from fledge.tasks.aircombat.observations import Spacetime
from fledge.tasks.aircombat.physics.airframe import Flyer, move
from fledge.tasks.aircombat.physics.structs import FAR, Duels, Obs, Physics, Result, fighter_of, limits_of, missile_of
from fledge.tasks.aircombat.spacetime.flyout import fly_out
from fledge.tasks.aircombat.spacetime.manoeuvres import Manoeuvre, left_angle, time_to_go
from fledge.tasks.aircombat.spacetime.table import ReachTable, lookup, lookup_turning

NEVER = wp.constant(1.0e6)  # s
HORIZON = wp.constant(120.0)  # s, longest time to decide that is searched
MAX_LOOKUPS = wp.constant(8)  # of the table, for one time to decide
SLACK = wp.constant(100.0)  # m/s by which r_tr may grow while sides hold their course
FLY_OUT_DT = wp.constant(0.25)  # s, at least
FLY_OUT_SHARE = wp.constant(0.2)  # of the time to go
COLUMNS = wp.constant(len(Spacetime))
LIMITS = limits_of(Spacetime)


@wp.struct
class Pair:
    """Shot ranges of two fighters, and for each the time until turning away no longer saves it (time to decide)."""

    by_one: wp.vec3  # m, R_max, R_tr, R_ne of a shot of one at two
    by_two: wp.vec3  # m, the same of a shot of two at one
    times: wp.vec2  # s, time to decide of one, and of two


@wp.func
def both_reaches(t: ReachTable, one: Flyer, two: Flyer) -> wp.vec2:
    """Return R_tr of a shot of `one` at `two`, and R_tr of a shot of `two` at `one`, m."""
    r = two.pos - one.pos
    off_one = left_angle(one.dir, r)
    off_two = left_angle(two.dir, -r)
    by_one = lookup_turning(t, one.speed, two.speed, off_one, off_two)
    by_two = lookup_turning(t, two.speed, one.speed, off_two, off_one)
    return wp.vec2(by_one, by_two)


@wp.func
def crossing(before: float, after: float, start: float, step: float) -> float:
    """Return the time, s, at which a quantity reaches zero that falls linearly from `before` to `after` during a step.

    The step begins at time `start` and lasts `step` seconds. If `before` is not positive, return `start`.
    """
    if before <= 0.0:
        return start
    return start + step * before / (before - after)


@wp.func
def times_to_decide(p: Physics, t: ReachTable, first: Flyer, second: Flyer, reach: wp.vec2) -> wp.vec2:
    """Return for each side the seconds until turning away no longer saves it.

    `reach` is the result of `both_reaches` for `first` and `second`.
    """
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
    for _k in range(MAX_LOOKUPS):
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
def judge_pair(p: Physics, t: ReachTable, one: Flyer, two: Flyer) -> Pair:
    """Return from the table the shot ranges of two fighters, and for each the time until turning away no longer saves it."""
    r = two.pos - one.pos
    off_one = left_angle(one.dir, r)
    off_two = left_angle(two.dir, -r)
    out = Pair()
    out.by_one = lookup(t, one.speed, two.speed, off_one, off_two)
    out.by_two = lookup(t, two.speed, one.speed, off_two, off_one)
    out.times = times_to_decide(p, t, one, two, wp.vec2(out.by_one[1], out.by_two[1]))
    return out


@wp.func
def most_dangerous(d: Duels, shooter: int, me: Flyer) -> int:
    """Return the slot of the incoming missile that arrives first; -1 if none is in flight."""
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
def observe_row(
    p: Physics, d: Duels, obs: Obs, row: int, me: Flyer, mine: wp.vec3, theirs: wp.vec3, away: float, times: wp.vec2
):
    """Write the observation `spacetime` of a row.

    `mine` and `theirs` are R_max, R_tr, R_ne of this side's and of the enemy's shot, m; `away` is the distance between the
    fighters, m; `times` are this side's and the enemy's time to decide, s.
    """
    for k in range(3):
        obs.spacetime[row, Spacetime.OVER_R_MAX + k] = away / mine[k]
        obs.spacetime[row, Spacetime.ENEMY_OVER_R_MAX + k] = away / theirs[k]
    obs.spacetime[row, Spacetime.TIME_TO_DECIDE] = times[0]
    obs.spacetime[row, Spacetime.ENEMY_TIME_TO_DECIDE] = times[1]
    obs.spacetime[row, Spacetime.MISS_HOLD] = FAR
    obs.spacetime[row, Spacetime.MISS_AWAY] = FAR
    shooter = row + 1 - 2 * (row % 2)
    slot = most_dangerous(d, shooter, me)
    if slot >= 0:
        missile = missile_of(d, shooter, slot)
        burn = d.m_burn[shooter, slot]
        holding = fly_out(p, missile, burn, me, Manoeuvre.HOLD, FLY_OUT_DT, FLY_OUT_SHARE)
        turning = fly_out(p, missile, burn, me, Manoeuvre.AWAY, FLY_OUT_DT, FLY_OUT_SHARE)
        obs.spacetime[row, Spacetime.MISS_HOLD] = holding.miss
        obs.spacetime[row, Spacetime.MISS_AWAY] = turning.miss
    for k in range(COLUMNS):
        obs.spacetime[row, k] = wp.clamp(obs.spacetime[row, k] / LIMITS[0, k], LIMITS[1, k], LIMITS[2, k])


@wp.kernel(enable_backward=False)
def observe_spacetime(first: int, only_ended: int, p: Physics, t: ReachTable, d: Duels, result: Result, obs: Obs):
    """Write the observation `spacetime`; if `only_ended` is 1, only for fights that have just restarted.

    `first` is the duel of the launch's first thread.
    """
    i = first + wp.tid()
    a = 2 * i
    b = a + 1
    if only_ended == 1 and not (result.terminated[a] or result.truncated[a]):
        return
    one = fighter_of(d, a)
    two = fighter_of(d, b)
    away = wp.length(two.pos - one.pos)
    pair = judge_pair(p, t, one, two)
    observe_row(p, d, obs, a, one, pair.by_one, pair.by_two, away, pair.times)
    observe_row(p, d, obs, b, two, pair.by_two, pair.by_one, away, wp.vec2(pair.times[1], pair.times[0]))
