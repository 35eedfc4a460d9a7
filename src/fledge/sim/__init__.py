"""Simulation: state and Warp kernels. Importing this room starts Warp, quietly."""

import warp as wp

wp.config.log_level = wp.LOG_ERROR
wp.config.enable_backward = False
