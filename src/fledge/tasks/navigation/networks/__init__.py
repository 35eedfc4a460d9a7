"""Policy networks of drone navigation."""
