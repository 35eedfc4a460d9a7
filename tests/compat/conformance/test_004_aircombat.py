"""Rows 196 to 248: duels, agents, rewards and tuning, typed as document 004 has them."""
