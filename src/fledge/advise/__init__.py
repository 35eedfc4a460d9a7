"""`fledge advise`: whether to compress, archive or pipeline, and how often to save, measured on this machine.

    measured = measure(cfg, ...)          the cost and gain of each choice
    decided = decide(measured, budget)    a pure function of these figures

Three schemes for rollouts: A, none, training is unchanged; B, chosen rollouts are archived on disk; C, their LiDAR is kept
compressed in memory. Checkpoints are compressed or not with any of them.
"""
