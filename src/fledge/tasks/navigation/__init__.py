"""Drone navigation among static and moving obstacles: the env, scripted policies, networks, metrics and views."""
