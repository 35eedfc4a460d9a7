"""The browser app: watching training, replaying recordings, and playing."""
