"""Who is met next: ladders of pilots, past selves, and ratings."""
