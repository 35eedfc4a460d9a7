"""Kernels that start fights. `first` is the duel of a launch's first thread.

How a fight starts depends only on the seed, the global index of the duel, and the index of the fight in that duel."""

import warp as wp

from fledge.core.random import Purpose
from fledge.envs.kernel_random import uniform4
from fledge.tasks.aircombat.config import Scenario
from fledge.tasks.aircombat.physics.airframe import flyer
from fledge.tasks.aircombat.physics.missile import fly_missile, unit
from fledge.tasks.aircombat.physics.structs import FAR, SCENARIOS, Duels, Obs, Params, Result

HEAD_ON, RANDOM, DEFENSIVE, CHASE, REFERENCE, MIXED = (wp.constant(SCENARIOS[kind]) for kind in Scenario)
P_START = wp.constant(wp.uint32(int(Purpose.START)))
P_GOAL = wp.constant(wp.uint32(int(Purpose.GOAL)))
P_KIND = wp.constant(wp.uint32(int(Purpose.MAP_CHOICE)))
TURN = wp.constant(6.283185307179586)
STEP = wp.constant(0.1)  # s, longest step in which a missile in flight at the start is moved


@wp.func
def place(d: Duels, row: int, pos: wp.vec2, dir: wp.vec2, speed: float):
    d.pos[row] = pos
    d.dir[row] = dir
    d.speed[row] = speed
    d.rudder[row] = 0.0
    d.alive[row] = 1
    d.fired[row] = 0
    d.wait[row] = 0.0


@wp.func
def put_in_flight(p: Params, d: Duels, row: int, seconds: float):
    """Put the first missile of the side `row` in flight, as if fired `seconds` ago and flown straight since."""
    missile = flyer(d.pos[row] - seconds * d.speed[row] * d.dir[row], d.dir[row], d.speed[row])
    burn = p.motor.burn
    steps = int(wp.ceil(seconds / STEP))
    dt = seconds / float(steps)
    for _k in range(steps):
        missile = fly_missile(p.motor, missile, 0.0, burn, dt)
        burn = burn - dt
    d.m_pos[row, 0] = missile.pos
    d.m_dir[row, 0] = missile.dir
    d.m_speed[row, 0] = missile.speed
    d.m_burn[row, 0] = wp.max(burn, 0.0)
    d.m_flying[row, 0] = 1
    d.m_least[row, 0] = FAR
    d.fired[row] = 1


@wp.func
def begin_fight(i: int, p: Params, d: Duels):
    """Start the next fight of duel i."""
    episode = d.episode[i] + 1
    d.episode[i] = episode
    duel = wp.uint32(i + p.env_offset)
    when = wp.uint32(episode)
    kind = p.scenario
    if kind == MIXED:
        choice = int(uniform4(duel, when, P_KIND, wp.uint32(0), p.seed)[0] * 4.0)
        kind = HEAD_ON
        if choice == 1:
            kind = RANDOM
        elif choice == 2:
            kind = DEFENSIVE
        elif choice == 3:
            kind = CHASE
    u = uniform4(duel, when, P_START, wp.uint32(0), p.seed)
    w = uniform4(duel, when, P_GOAL, wp.uint32(0), p.seed)
    better = 2 * i  # the row with the advantage
    if u[3] < 0.5:
        better = 2 * i + 1
    worse = 4 * i + 1 - better
    for side in range(2):
        for slot in range(p.slots):
            d.m_flying[2 * i + side, slot] = 0
            d.m_burn[2 * i + side, slot] = 0.0
            d.m_speed[2 * i + side, slot] = 0.0
            d.m_pos[2 * i + side, slot] = wp.vec2()
            d.m_dir[2 * i + side, slot] = wp.vec2(1.0, 0.0)
            d.m_least[2 * i + side, slot] = FAR
    east = wp.vec2(1.0, 0.0)
    west = wp.vec2(-1.0, 0.0)
    if kind == RANDOM:
        half = 0.5 * (p.min_range + (p.max_range - p.min_range) * u[0])
        place(d, 2 * i, -half * east, unit(TURN * u[1]), p.start_speed * (0.8 + 0.6 * w[0]))
        place(d, 2 * i + 1, half * east, unit(TURN * u[2]), p.start_speed * (0.8 + 0.6 * w[1]))
    elif kind == DEFENSIVE:
        half = 0.5 * (12000.0 + 18000.0 * u[0])
        place(d, better, -half * east, east, p.start_speed * (0.9 + 0.4 * w[0]))
        place(d, worse, half * east, unit(TURN * u[1]), p.start_speed * (0.9 + 0.4 * w[1]))
        put_in_flight(p, d, better, 2.0 + 8.0 * u[2])
    elif kind == CHASE:
        half = 0.5 * (6000.0 + 10000.0 * u[0])
        place(d, better, -half * east, unit(TURN / 12.0 * (u[1] - 0.5)), p.start_speed * (0.9 + 0.4 * w[0]))
        place(d, worse, half * east, unit(TURN / 6.0 * (u[2] - 0.5)), p.start_speed * (0.9 + 0.4 * w[1]))
    elif kind == REFERENCE:  # midrangeRL's start positions on its field of 50 km
        place(d, 2 * i, wp.vec2(10000.0, 25000.0), east, p.start_speed)
        place(d, 2 * i + 1, wp.vec2(40000.0, 25000.0), west, p.start_speed)
    else:
        place(d, 2 * i, 0.5 * p.start_range * west, east, p.start_speed)
        place(d, 2 * i + 1, 0.5 * p.start_range * east, west, p.start_speed)
    d.time[i] = 0.0
    d.decisions[i] = 0
    d.kind[i] = kind
    d.over[i] = 0


@wp.kernel(enable_backward=False)
def restart(first: int, p: Params, d: Duels, result: Result, obs: Obs, final: Obs):
    """For each fight that ended, copy both sides' observations to `final` and start the next fight; one thread per duel."""
    i = first + wp.tid()
    if not (result.terminated[2 * i] or result.truncated[2 * i]):
        return
    for side in range(2):
        row = 2 * i + side
        for k in range(obs.state.shape[1]):
            final.state[row, k] = obs.state[row, k]
        for token in range(obs.missiles.shape[1]):
            for k in range(obs.missiles.shape[2]):
                final.missiles[row, token, k] = obs.missiles[row, token, k]
        for k in range(obs.spacetime.shape[1]):
            final.spacetime[row, k] = obs.spacetime[row, k]
        for k in range(obs.mask.shape[1]):
            final.mask[row, k] = obs.mask[row, k]
    begin_fight(i, p, d)


@wp.kernel(enable_backward=False)
def restart_masked(first: int, p: Params, d: Duels, mask: wp.array(dtype=wp.bool)):
    """Start a new fight of each duel whose `mask` is true (the same in both rows); one thread per duel."""
    i = first + wp.tid()
    if mask[2 * i]:
        begin_fight(i, p, d)
