"""Opponents of a learner: a ladder of scripted policies, copies of the learner (past selves), and ratings."""
