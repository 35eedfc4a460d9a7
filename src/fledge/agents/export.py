"""Policies for other programs: ONNX and TorchScript files that map observations to an action, checked for parity.

The policy defines inputs and outputs (`BaseAgent.observes`, `outputs`, `exported`, `example_inputs`). The task defines their
meaning: its contract (`Task.contract`) is stored in the file as JSON. The file of a recurrent policy also has the input
`state_in` and the output `state_out`, which the contract explains under `memory`.

    .onnx    metadata "contract": session.get_modelmeta().custom_metadata_map["contract"]
    .ts      extra file "contract.json": torch.jit.load(path, _extra_files={"contract.json": ""})
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fledge.agents.base import STATE_IN, STATE_OUT, BaseAgent
from fledge.core.errors import ConfigError, FledgeError
from fledge.core.extras import extra
from fledge.core.machine import package_version

TOLERANCE = 1e-5
OPSET, IR_VERSION = 18, 8  # read by onnxruntime 1.14 and later, which robots with Python 3.8 have


def export_agent(agent: BaseAgent, path: Path, contract: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Write an agent to `path` (.onnx or .ts), with its task's contract, and return facts about the file.

    The facts include the largest difference between the actions of the file and of the agent. If that is above 1e-5,
    remove the file and raise FledgeError.
    """
    if path.suffix not in (".onnx", ".ts"):
        ending = path.suffix or "nothing"
        raise ConfigError(f"{path.name} ends in {ending}, but must end in .onnx or .ts (TorchScript), or .fledge.")
    module = agent.exported().eval()
    inputs = examples(agent, 4)
    path.parent.mkdir(parents=True, exist_ok=True)
    told = contract_of(agent, contract or {})
    if path.suffix == ".ts":
        with _quiet():
            traced = torch.jit.trace(module, tuple(inputs.values()))
            path.write_bytes(traced.save_to_buffer(_extra_files={"contract.json": json.dumps(told)}))
    else:
        write_onnx(module, inputs, agent.export_outputs, path, json.dumps(told))
    error = parity(agent, module, path)
    if not error <= TOLERANCE:
        path.unlink()
        raise FledgeError(
            f"The actions of {path.name} differ from the policy's by {error:.2e}, more than {TOLERANCE:.0e}, so it was "
            "removed: export to the other format (.onnx or .ts)."
        )
    names = {"inputs": list(agent.export_inputs), "outputs": list(agent.export_outputs)}
    return {"file": str(path), "bytes": path.stat().st_size, "max_difference": error, **names, "contract": told}


def contract_of(agent: BaseAgent, contract: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task's contract, limited to the observations that this agent reads."""
    told = {
        "fledge": package_version("fledge"),
        **contract,
        "inputs": list(agent.export_inputs),
        "outputs": list(agent.export_outputs),
    }
    if agent.hidden_size:
        told["memory"] = {
            "input": STATE_IN,
            "output": STATE_OUT,
            "shape": [agent.hidden_size],
            "dtype": "float32",
            "doc": f"the policy's memory: pass zeros as {STATE_IN} at the first decision of an episode, then the {STATE_OUT} "
            "of the decision before",
        }
    if "observation" in told:
        told["observation"] = {name: told["observation"][name] for name in agent.observes}
    return told


def write_golden(agent: BaseAgent, file: Path, observed: Mapping[str, Tensor], path: Path) -> int:
    """Write observations and the agent's actions for them to an .npz, so that programs that run `file` can test themselves.

    Arrays have the names of the file's inputs and outputs, with one row per case. Returns the number of cases. If the
    exported file gives different actions, raise FledgeError and write nothing.

    Args:
        observed: Values of the agent's `export_inputs`, [cases, ...]; for a recurrent policy also the state of each case.
    """
    inputs = {name: observed[name].cpu() for name in agent.export_inputs}
    expected, error = compare(agent.exported().eval(), file, inputs, agent.export_outputs)
    if not error <= TOLERANCE:
        raise FledgeError(
            f"{file} and the policy give different actions for the same observations: export the policy again."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in inputs.items()}
    arrays |= dict(zip(agent.export_outputs, expected, strict=True))
    np.savez_compressed(path, **arrays)
    return len(expected[0])


def write_onnx(module: nn.Module, inputs: dict[str, Tensor], outputs: Sequence[str], path: Path, contract: str) -> None:
    with extra("export"):
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    batch = torch.export.Dim("batch", min=1, max=1 << 20)
    with _quiet():
        program = torch.onnx.export(
            module,
            tuple(inputs.values()),
            dynamo=True,
            opset_version=OPSET,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes=(tuple({0: batch} for _ in inputs),),
        )
    assert program is not None
    program.model.metadata_props["contract"] = contract
    program.model.ir_version = IR_VERSION
    program.save(str(path))


def parity(agent: BaseAgent, module: nn.Module, path: Path) -> float:
    """Return the largest difference between the outputs of a written file and of `module`, the agent's exported module.

    Both run on the agent's example inputs, in batches of 1, 7 and 512.
    """
    cases = [examples(agent, batch, seed=batch) for batch in (1, 7, 512)]
    return max(compare(module, path, inputs, agent.export_outputs)[1] for inputs in cases)


def examples(agent: BaseAgent, batch: int, seed: int = 0) -> dict[str, Tensor]:
    """Return values of the agent's `export_inputs`, [batch, ...]: realistic observations and, if it has one, a state."""
    every = agent.example_inputs(batch, seed)
    if agent.hidden_size:
        g = torch.Generator().manual_seed(seed)
        every[STATE_IN] = torch.rand(batch, agent.hidden_size, generator=g) * 2.0 - 1.0
    return {name: every[name] for name in agent.export_inputs}


def compare(module: nn.Module, path: Path, inputs: dict[str, Tensor], names: Sequence[str]) -> tuple[list[Any], float]:
    """Return the outputs of a module, and their largest difference from those of a written file."""
    with torch.no_grad():
        expected = [out.numpy() for out in module(*inputs.values())]
    pairs = zip(expected, run_file(path, inputs, names), strict=True)
    return expected, float(np.max([np.abs(ours.astype(np.float64) - theirs).max() for ours, theirs in pairs]))


def run_file(path: Path, inputs: dict[str, Tensor], outputs: Sequence[str]) -> list[np.ndarray]:
    """Run an exported file and return its outputs."""
    if path.suffix == ".ts":
        with torch.no_grad(), _quiet():
            return [out.numpy() for out in torch.jit.load(str(path))(*inputs.values())]
    with extra("export"):
        import onnxruntime
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(list(outputs), {name: tensor.numpy() for name, tensor in inputs.items()})


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporters' output, warnings and logs, which do not concern the user."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
