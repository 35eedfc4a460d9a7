"""Sensors: the table of observations, ray casting and the observation kernels."""

from fledge.core.warp_start import start_warp

start_warp()
