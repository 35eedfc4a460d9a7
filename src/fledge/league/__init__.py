"""Opponents of a learner: a ladder of scripted policies, past selves, and ratings."""
