"""Drones, forests and crowds: state and Warp kernels. Importing this package starts Warp."""

from fledge.core.warp_start import start_warp

start_warp()
