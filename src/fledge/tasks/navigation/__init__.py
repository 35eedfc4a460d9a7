"""Drone navigation among static and moving obstacles: the world, its pilots and networks, and how it is judged and drawn."""
