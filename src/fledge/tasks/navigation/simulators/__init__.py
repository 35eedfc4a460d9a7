"""Flight in simulators other than the env's own: `env.dynamics=iris`, `mujoco` or `pyflyt`.

The env keeps maps, sensors, collisions and episodes. A `Plant` computes the motion of the bodies, in float64 and without Warp,
and `autopilot` flies them: a PX4-like cascade from velocity commands to motor commands.
"""
