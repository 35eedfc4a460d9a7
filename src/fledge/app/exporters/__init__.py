"""Recordings as files for other programs and people: ACMI, MCAP, HTML, JSON, pictures."""
