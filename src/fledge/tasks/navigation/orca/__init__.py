"""Reciprocal velocity obstacles (ORCA): the solver, its kernel, and a scripted policy that uses it."""

from fledge.core.warp_start import start_warp

start_warp()
