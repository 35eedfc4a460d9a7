"""Air combat: the mid-range duel. Other packages use it through `task.py`; docs/worlds/aircombat.md has the rules."""
