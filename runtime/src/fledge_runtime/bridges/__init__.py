"""Connections to flight controllers and robots; each needs a package of its own, named in its module."""
