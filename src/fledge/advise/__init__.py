"""`fledge advise`: whether to compress, archive or pipeline, and how often to save, measured on this machine.

    measured = measure(cfg, ...)          the cost and gain of each choice
    decided = decide(measured, budget)    a pure function of the measured values

There are three schemes for rollouts. A: neither compress nor archive them. B: archive some rollouts on disk. C: keep their
LiDAR compressed in memory. Whether checkpoints are compressed is decided separately.
"""
