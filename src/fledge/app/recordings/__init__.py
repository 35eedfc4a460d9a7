"""Recordings as data for the player: read, packed into bytes, and kept open on the server."""
