"""Recordings for the player: read them, pack episodes into bytes, and keep recordings open on the server."""
