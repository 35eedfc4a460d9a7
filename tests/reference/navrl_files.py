"""A file with the layout of NavRL's released checkpoint, for tests that run without it."""

from __future__ import annotations

from pathlib import Path

import torch

from fledge.tasks.navigation.networks.navrl import NavRLPolicy, navrl_key


def write_navrl_checkpoint(path: Path, seed: int = 1) -> Path:
    """Write untrained weights under NavRL's keys, with the entries that Fledge does not read; return the path."""
    torch.manual_seed(seed)
    policy = NavRLPolicy()
    saved = {navrl_key(ours): tensor for ours, tensor in policy.network.state_dict().items()}
    scales = {"running_mean": torch.tensor([2.0]), "running_mean_sq": torch.tensor([20.0]), "debiasing_term": 0.5}
    saved |= {f"value_norm.{name}": torch.as_tensor(value) for name, value in scales.items()}
    saved |= {"gae.gamma": torch.tensor(0.99), "gae.lmbda": torch.tensor(0.95)}
    torch.save(saved, path)
    return path
