"""The duel under the names that midrangeRL's users write: a thin face over AircombatEnv."""
