"""Policies as files: ONNX and TorchScript that map an observation to an action, checked for parity, and .fledge.

inputs   state [B, 8], lidar [B, 1, H, V], dynamic_obstacle [B, 1, 5, 10]   (layouts of the navigation env)
output   action [B, 3] in [0, 1]: the mean action, goal frame
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fledge.agents.actor_critic import ActorCritic
from fledge.agents.navrl import NavRLPolicy
from fledge.agents.navrl_policy import NavRLActorCritic
from fledge.core.errors import ConfigError, FledgeError
from fledge.train.policies import load_policy, load_policy_state, save_policy

TOLERANCE = 1e-5
INPUTS = ("state", "lidar", "dynamic_obstacle")


class ExportedPolicy(nn.Module):
    """Observation tensors in, mean action out: nothing else of the policy."""

    def __init__(self, policy: ActorCritic | NavRLPolicy) -> None:
        super().__init__()
        # the fast LiDAR encoder is for training; other programs get the Conv2d it equals
        self.policy = policy.published() if isinstance(policy, NavRLActorCritic) else policy

    def forward(self, state: Tensor, lidar: Tensor, dynamic_obstacle: Tensor) -> Tensor:
        obs = {"state": state, "lidar": lidar, "dynamic_obstacle": dynamic_obstacle}
        if isinstance(self.policy, NavRLPolicy):
            alpha, beta, _ = self.policy.network(obs)
            return alpha / (alpha + beta)
        params, _ = self.policy(self.policy.encode(obs))
        return self.policy.head.to_env(self.policy.head.mean(params))


def export_policy(name: str, path: Path) -> dict[str, Any]:
    """Write the policy called `name` to `path` (.onnx, .ts or .fledge) and return the parity measured.

    Raises:
        FledgeError: when the written file does not reproduce the policy to 1e-5; the file is removed.
    """
    if path.suffix == ".fledge":
        save_policy(load_policy_state(name), path)
        return {"file": str(path), "bytes": path.stat().st_size, "max_difference": same_weights(name, path)}
    policy = load_policy(name)
    if not isinstance(policy, ActorCritic | NavRLPolicy):
        raise ConfigError(f"{name} is a scripted pilot; only learned policies can be exported.")
    if path.suffix not in (".onnx", ".ts"):
        raise ConfigError(
            f"{path.name} ends in {path.suffix or 'nothing'}, but must end in .onnx or .ts (TorchScript)."
        )
    module = ExportedPolicy(policy).eval()
    lidar = policy.lidar_shape if isinstance(policy, ActorCritic) else (36, 4)
    sample = example_inputs(4, lidar)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".ts":
        with _quiet():
            torch.jit.trace(module, sample).save(str(path))
    else:
        write_onnx(module, sample, path)
    error = parity(module, path, lidar)
    if not error <= TOLERANCE:
        path.unlink()
        raise FledgeError(f"The exported file differs from the policy by {error:.2e}, more than {TOLERANCE:.0e}.")
    return {"file": str(path), "bytes": path.stat().st_size, "max_difference": error, "inputs": list(INPUTS)}


def same_weights(name: str, path: Path) -> float:
    """Largest difference between the weights of a policy and those in a policy file."""
    ours, theirs = load_policy_state(name)["model"], load_policy_state(str(path))["model"]
    return max(float((ours[k].float() - theirs[k].float()).abs().max()) for k in ours if ours[k].numel())


def example_inputs(batch: int, lidar: tuple[int, int], seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Random observations in the ranges a drone meets."""
    g = torch.Generator().manual_seed(seed)
    state = torch.randn(batch, 8, generator=g)
    beams = (torch.rand(batch, 1, *lidar, generator=g) * 6 - 2).clamp(0, 3.9)
    obstacles = torch.randn(batch, 1, 5, 10, generator=g)
    obstacles[..., 3] = obstacles[..., 3].abs() * (torch.rand(batch, 1, 5, generator=g) > 0.3)
    obstacles[..., 8] = torch.randint(0, 4, (batch, 1, 5), generator=g).float()
    obstacles[..., 9] = torch.randint(0, 2, (batch, 1, 5), generator=g).float()
    return state, beams, obstacles


def write_onnx(module: nn.Module, sample: tuple[Tensor, ...], path: Path) -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ConfigError("ONNX export needs onnx and onnxscript: pip install 'fledge[export]'.") from error
    batch = torch.export.Dim("batch", min=1, max=1 << 20)
    with _quiet():
        program = torch.onnx.export(
            module,
            sample,
            dynamo=True,
            input_names=list(INPUTS),
            output_names=["action"],
            dynamic_shapes={name: {0: batch} for name in INPUTS},
        )
    assert program is not None
    program.save(str(path))


def parity(module: nn.Module, path: Path, lidar: tuple[int, int]) -> float:
    """Largest difference between a written file and the policy over batches of 1, 7 and 512."""
    worst = 0.0
    for batch in (1, 7, 512):
        inputs = example_inputs(batch, lidar, seed=batch)
        with torch.no_grad():
            expected = module(*inputs).numpy()
        worst = max(worst, float(np.abs(expected - run_file(path, inputs)).max()))
    return worst


def run_file(path: Path, inputs: tuple[Tensor, ...]) -> np.ndarray:
    """Actions of an exported file."""
    if path.suffix == ".ts":
        with torch.no_grad(), _quiet():
            return torch.jit.load(str(path))(*inputs).numpy()
    try:
        import onnxruntime
    except ImportError as error:
        raise ConfigError("The parity check needs onnxruntime: pip install 'fledge[export]'.") from error
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feeds = {name: tensor.numpy() for name, tensor in zip(INPUTS, inputs, strict=True)}
    return session.run(["action"], feeds)[0]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Exporters chat on stdout, warnings and loggers about things that do not concern the user."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
