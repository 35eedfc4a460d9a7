"""Helpers of `tensor_env`: midrangeRL's config, and states and observations of a fight in midrangeRL's form."""
