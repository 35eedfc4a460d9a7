"""Recordings, pictures and browser view of navigation."""
