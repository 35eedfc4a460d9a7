"""A sampling planner on the drone's own sensors: local map, candidates, the pilot. See docs/planner.md."""
