"""Flying against policies in the browser: matches, sessions, seats."""
