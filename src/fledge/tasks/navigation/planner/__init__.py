"""A sampling planner on the drone's own sensors: local map, candidates, the scripted policy. See docs/worlds/planner.md."""

from fledge.core.warp_start import start_warp

start_warp()
