"""`fledge advise`: whether to compress, archive or pipeline, and how often to save, measured on this machine.

    measured = measure(cfg, ...)          the cost and gain of each choice
    decided = decide(measured, budget)    a pure function of these figures

Three schemes for rollouts: A, none, training is unchanged; B, chosen rollouts are archived on disk; C, their LiDAR is kept
compressed in memory. Checkpoints are compressed or not with any of them.
"""

from fledge.advise.command import advise
from fledge.advise.decide import decide
from fledge.advise.measure import measure
from fledge.advise.plot import save_plot
from fledge.advise.render import config_line, render, settings_line

__all__ = ["advise", "config_line", "decide", "measure", "render", "save_plot", "settings_line"]
