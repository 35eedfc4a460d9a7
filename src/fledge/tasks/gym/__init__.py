"""`gym:ID`: any Gymnasium env as a task."""
