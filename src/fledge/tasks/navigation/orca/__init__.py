"""Reciprocal velocity obstacles (ORCA): the solver, its kernel and a pilot that uses it."""

from fledge.core.warp_start import start_warp

start_warp()
