"""Air combat: the mid-range duel. `task.py` is what the rest of the house asks; docs/worlds/aircombat.md has the rules."""
