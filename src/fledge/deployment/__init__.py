"""Deployment folders: what a robot needs to fly a policy without Fledge (`fledge deploy`, docs/guides/deploy.md)."""
