"""Kernels of faulty perception: they change observations after rewards were computed from the true ones.

`perceive` writes the same observation however often it runs in a state, so that masked resets change no other drone;
`advance_faults` moves the faults on, once per decision.
"""

import warp as wp

from fledge.core.random import Purpose
from fledge.envs.kernel_random import TWO_PI, normal2, uniform4
from fledge.tasks.navigation.perception.config import MAX_GHOSTS
from fledge.tasks.navigation.perception.movers import (
    DRIFT,
    DRIFT_YAW,
    SCAN_DELAY,
    advance_ghosts,
    advance_tracks,
    level,
    perceive_movers,
)
from fledge.tasks.navigation.perception.structs import Faults
from fledge.tasks.navigation.physics.crowd import Crowd
from fledge.tasks.navigation.physics.structs import (
    Drones,
    Maps,
    Obs,
    Params,
    Result,
    goal_frame,
    to_goal_frame,
    turned,
)
from fledge.tasks.navigation.sensing.observe import FLAT, HEIGHT, TO_GOAL, UP, VEL, YAW, takes_part

P_DRIFT = wp.uint32(int(Purpose.DRIFT))


@wp.kernel(enable_backward=False)
def remember_crowd(first: int, clock: wp.array(dtype=wp.int32), f: Faults, crowd: Crowd):
    """Store the movers' positions after each physics step of a decision, one thread per mover.

    `clock` is still that of the decision's beginning.
    """
    tid = wp.tid()
    slot = first + tid / crowd.origin.shape[1]
    j = tid - (slot - first) * crowd.origin.shape[1]
    for k in range(crowd.trail.shape[0]):
        f.trail[(clock[0] + k + 1) % f.trail.shape[0], slot, j] = crowd.trail[k, slot, j]


@wp.func
def advance_drift(i: int, p: Params, f: Faults, maps: Maps, drones: Drones):
    """Sum up the drone's motion along its estimated heading, and let position and yaw walk at random."""
    if f.drift_m + f.drift_yaw == 0.0:
        return
    drone = wp.uint32(i + p.env_offset)
    episode = wp.uint32(drones.episode[i])
    a = uniform4(drone, wp.uint32(maps.clock[0]), P_DRIFT, episode, p.seed)
    n0 = normal2(a[0], a[1])
    n1 = normal2(a[2], a[3])
    pos = drones.pos[i]
    moved = pos - f.odometer[i]
    f.odometer[i] = pos
    drift = drones.drift[i]
    root = wp.sqrt(drones.elapsed[i])
    walk = f.drift_m * level(f, p, drones, i, DRIFT) * root
    yaw = f.drift_yaw * level(f, p, drones, i, DRIFT_YAW) * root
    error = turned(moved, drift[3]) - moved + walk * wp.vec3(n0[0], n0[1], n1[0])
    drones.drift[i] = drift + wp.vec4(error[0], error[1], error[2], yaw * n1[1])


@wp.kernel(enable_backward=False)
def advance_faults(first: int, p: Params, f: Faults, maps: Maps, drones: Drones):
    """Move odometry, tracks and ghosts on by one decision."""
    i = first + wp.tid()
    advance_drift(i, p, f, maps, drones)
    advance_tracks(i, p, f, maps, drones)
    advance_ghosts(i, p, f, maps, drones, False)


@wp.func
def begin_faults(i: int, p: Params, f: Faults, maps: Maps, drones: Drones):
    """Begin an episode: odometry is exact, all tracks are held, ghosts are drawn."""
    f.odometer[i] = drones.pos[i]
    for j in range(f.lost.shape[1]):
        f.lost[i, j] = 0
    for g in range(MAX_GHOSTS):
        f.ghost_kind[i, g] = -1
    advance_ghosts(i, p, f, maps, drones, True)


@wp.func
def hold_scan(i: int, p: Params, f: Faults, drones: Drones, obs: Obs):
    """Store drone i's scan if one is due, and write the last one that has arrived to `lidar` and `attitude`."""
    size = f.scans.shape[1]
    if size == 0:
        return
    decision = (drones.step[i] + p.decimation - 1) / p.decimation
    rays = obs.lidar.shape[1]
    if decision % f.scan_every == 0:
        row = decision / f.scan_every % size
        for n in range(rays):
            f.scans[i, row, n] = obs.lidar[i, n]
        for n in range(obs.attitude.shape[1]):
            f.scans[i, row, rays + n] = obs.attitude[i, n]
    late = int(wp.round(float(f.scan_delay) * level(f, p, drones, i, SCAN_DELAY)))
    row = wp.max(decision - late, 0) / f.scan_every % size
    for n in range(rays):
        obs.lidar[i, n] = f.scans[i, row, n]
    for n in range(obs.attitude.shape[1]):
        obs.attitude[i, n] = f.scans[i, row, rays + n]


@wp.func
def perceive_self(i: int, f: Faults, drones: Drones, obs: Obs):
    """Change the observations `state` and `pose` of drone i to those of its estimated position and yaw."""
    if f.drift_m + f.drift_yaw == 0.0:
        return
    drift = drones.drift[i]
    flat = obs.state[i, FLAT]
    up = obs.state[i, UP]
    length = wp.sqrt(flat * flat + up * up)
    x_axis = goal_frame(drones.start[i], drones.goal[i])
    to_goal = length * wp.vec3(obs.state[i, TO_GOAL], obs.state[i, TO_GOAL + 1], obs.state[i, TO_GOAL + 2])
    to_goal = to_goal - to_goal_frame(wp.vec3(drift[0], drift[1], drift[2]), x_axis)
    vel = turned(wp.vec3(obs.state[i, VEL], obs.state[i, VEL + 1], obs.state[i, VEL + 2]), drift[3])
    unit = to_goal / wp.max(wp.length(to_goal), 1.0e-6)
    for k in range(3):
        obs.state[i, TO_GOAL + k] = unit[k]
        obs.state[i, VEL + k] = vel[k]
    obs.state[i, FLAT] = wp.sqrt(to_goal[0] * to_goal[0] + to_goal[1] * to_goal[1])
    obs.state[i, UP] = to_goal[2]
    if obs.pose.shape[1] > 0:
        yaw = obs.pose[i, YAW] + drift[3]
        obs.pose[i, YAW] = yaw - TWO_PI * wp.floor(yaw / TWO_PI + 0.5)
        obs.pose[i, HEIGHT] = obs.pose[i, HEIGHT] + drift[2]


@wp.kernel(enable_backward=False)
def perceive(first: int, only_ended: int, p: Params, f: Faults, maps: Maps, drones: Drones, result: Result, obs: Obs):
    """Replace the true observations of all drones, or of those whose episode ended, by faulty ones."""
    i = first + wp.tid()
    if not takes_part(i, only_ended, result):
        return
    if drones.step[i] == 0:
        begin_faults(i, p, f, maps, drones)
    hold_scan(i, p, f, drones, obs)
    perceive_movers(i, p, f, maps, drones, obs)
    perceive_self(i, f, drones, obs)
