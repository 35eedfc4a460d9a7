"""The web server: pages, access control, timeouts."""
