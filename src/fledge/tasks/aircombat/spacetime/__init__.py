"""The space-time graph: where a missile really gets to, and when, from fly-outs with the simulator's own missile."""
