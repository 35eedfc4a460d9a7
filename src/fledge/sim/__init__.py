"""Simulation: state and Warp kernels. Importing this room starts Warp, quietly."""

import warp as wp

from fledge.core.warp_start import start_warp

wp.config.enable_backward = False
start_warp()
