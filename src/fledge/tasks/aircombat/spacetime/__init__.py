"""The space-time graph: ranges and paths of missiles, from fly-outs, which are shots simulated with the env's own missile."""

from fledge.core.warp_start import start_warp

start_warp()
