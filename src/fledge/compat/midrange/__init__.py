"""Helpers of `tensor_env`: midrangeRL's config, and its view of a fight."""
