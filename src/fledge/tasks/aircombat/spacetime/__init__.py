"""The space-time graph: where a missile really gets to, and when, from fly-outs with the simulator's own missile."""

from fledge.core.warp_start import start_warp

start_warp()
