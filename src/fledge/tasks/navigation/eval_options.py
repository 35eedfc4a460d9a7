"""Options that navigation adds to `fledge eval` and `fledge benchmark`."""

from fledge.tasks.eval_options import EvalOption

EVAL_OPTIONS = (
    EvalOption(
        "--navrl-checkpoint",
        "Checkpoint (.pt) of NavRL (github.com/Zhefan-Xu/NavRL), evaluated in the navrl preset.",
        interop=True,
    ),
    EvalOption(
        "--movers",
        "Numbers of moving obstacles to evaluate one after the other, for example 0,40,80.",
        vary="env.moving_obstacles",
    ),
)
