"""Worlds of voxels, from a user's file or a generator: reading, checking, drawing and storing them, and routes in them."""
