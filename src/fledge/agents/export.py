"""Policies as files: ONNX and TorchScript that map an observation to an action, checked for parity, and .fledge.

inputs   state [B, 8], lidar [B, 1, H, V], dynamic_obstacle [B, 1, 5, 10]   (layouts of the navigation env)
output   action [B, 3] in [0, 1]: the mean action, goal frame

and for a policy on the grid map (DQN): state [B, 8], grid_map [B, 1, S, S] in, the value of every heading [B, K] out.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fledge.agents.actor_critic import ActorCritic
from fledge.agents.squashed import SquashedActor, to_env
from fledge.core.errors import ConfigError, FledgeError
from fledge.evaluate.policies import load_policy, load_policy_state, save_policy
from fledge.tasks.navigation.grid_q import GridQ
from fledge.tasks.navigation.navrl import NavRLPolicy
from fledge.tasks.navigation.navrl_actor_critic import NavRLActorCritic

TOLERANCE = 1e-5
Exportable = ActorCritic | SquashedActor | GridQ | NavRLPolicy


class ExportedGridPolicy(nn.Module):
    """Observation tensors in, the value of every heading out."""

    inputs = ("state", "grid_map")

    def __init__(self, policy: GridQ) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, state: Tensor, grid_map: Tensor) -> Tensor:
        return self.policy({"state": state, "grid_map": grid_map})


class ExportedPolicy(nn.Module):
    """Observation tensors in, mean action out: nothing else of the policy."""

    inputs = ("state", "lidar", "dynamic_obstacle")

    def __init__(self, policy: ActorCritic | SquashedActor | NavRLPolicy) -> None:
        super().__init__()
        # the fast LiDAR encoder is for training; other programs get the Conv2d it equals
        self.policy = policy.published() if isinstance(policy, NavRLActorCritic) else policy

    def forward(self, state: Tensor, lidar: Tensor, dynamic_obstacle: Tensor) -> Tensor:
        obs = {"state": state, "lidar": lidar, "dynamic_obstacle": dynamic_obstacle}
        if isinstance(self.policy, NavRLPolicy):
            alpha, beta, _ = self.policy.network(obs)
            return alpha / (alpha + beta)
        if isinstance(self.policy, SquashedActor):
            return to_env(self.policy.mean(self.policy.encode(obs)))
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
    if not isinstance(policy, Exportable):
        raise ConfigError(f"{name} is a scripted pilot; only learned policies can be exported.")
    if path.suffix not in (".onnx", ".ts"):
        raise ConfigError(
            f"{path.name} ends in {path.suffix or 'nothing'}, but must end in .onnx or .ts (TorchScript)."
        )
    module = (ExportedGridPolicy(policy) if isinstance(policy, GridQ) else ExportedPolicy(policy)).eval()
    shape = observed_shape(policy)
    sample = example_inputs(module.inputs, 4, shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".ts":
        with _quiet():
            torch.jit.trace(module, sample).save(str(path))
    else:
        write_onnx(module, sample, path)
    error = parity(module, path, shape)
    if not error <= TOLERANCE:
        path.unlink()
        raise FledgeError(f"The exported file differs from the policy by {error:.2e}, more than {TOLERANCE:.0e}.")
    return {"file": str(path), "bytes": path.stat().st_size, "max_difference": error, "inputs": list(module.inputs)}


def same_weights(name: str, path: Path) -> float:
    """Largest difference between the weights of a policy and those in a policy file."""
    ours, theirs = load_policy_state(name)["model"], load_policy_state(str(path))["model"]
    return max(float((ours[k].float() - theirs[k].float()).abs().max()) for k in ours if ours[k].numel())


def observed_shape(policy: Exportable) -> tuple[int, int]:
    """Beams around and up of a policy's LiDAR, or cells of its grid map."""
    if isinstance(policy, GridQ):
        return policy.grid_size, policy.grid_size
    return (36, 4) if isinstance(policy, NavRLPolicy) else policy.lidar_shape


def example_inputs(names: Sequence[str], batch: int, shape: tuple[int, int], seed: int = 0) -> tuple[Tensor, ...]:
    """Random observations in the ranges a drone meets."""
    g = torch.Generator().manual_seed(seed)
    obstacles = torch.randn(batch, 1, 5, 10, generator=g)
    obstacles[..., 3] = obstacles[..., 3].abs() * (torch.rand(batch, 1, 5, generator=g) > 0.3)
    obstacles[..., 8] = torch.randint(0, 4, (batch, 1, 5), generator=g).float()
    obstacles[..., 9] = torch.randint(0, 2, (batch, 1, 5), generator=g).float()
    every = {
        "state": torch.randn(batch, 8, generator=g),
        "lidar": (torch.rand(batch, 1, *shape, generator=g) * 6 - 2).clamp(0, 3.9),
        "grid_map": (torch.rand(batch, 1, *shape, generator=g) < 0.2).to(torch.uint8),
        "dynamic_obstacle": obstacles,
    }
    return tuple(every[name] for name in names)


def write_onnx(module: ExportedPolicy | ExportedGridPolicy, sample: tuple[Tensor, ...], path: Path) -> None:
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
            input_names=list(module.inputs),
            output_names=["action"],
            dynamic_shapes={name: {0: batch} for name in module.inputs},
        )
    assert program is not None
    program.save(str(path))


def parity(module: ExportedPolicy | ExportedGridPolicy, path: Path, shape: tuple[int, int]) -> float:
    """Largest difference between a written file and the policy over batches of 1, 7 and 512."""
    worst = 0.0
    for batch in (1, 7, 512):
        inputs = example_inputs(module.inputs, batch, shape, seed=batch)
        with torch.no_grad():
            expected = module(*inputs).numpy()
        worst = max(worst, float(np.abs(expected - run_file(path, inputs, module.inputs)).max()))
    return worst


def run_file(path: Path, inputs: tuple[Tensor, ...], names: Sequence[str]) -> np.ndarray:
    """What an exported file puts out."""
    if path.suffix == ".ts":
        with torch.no_grad(), _quiet():
            return torch.jit.load(str(path))(*inputs).numpy()
    try:
        import onnxruntime
    except ImportError as error:
        raise ConfigError("The parity check needs onnxruntime: pip install 'fledge[export]'.") from error
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feeds = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}
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
