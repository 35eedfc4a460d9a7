"""The duel under midrangeRL's names: a thin layer over AircombatEnv."""
