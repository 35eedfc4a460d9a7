"""Online learning: a policy goes on learning from new experience, and keeps what it could do before."""
