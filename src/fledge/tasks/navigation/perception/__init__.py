"""Faulty perception: what policies and the planner read, where it differs from the truth."""
