"""The network of a deployment folder: observations in, outputs out, with its memory between decisions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fledge_runtime.errors import ContractError, InputError


class Policy:
    """A folder's network; `reset` begins a new episode, `act` returns its outputs for one set of observations."""

    def __init__(self, path: Path, contract: dict[str, Any]) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # the network is small: more threads only wait for each other
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has no common base class for what it raises
            reason = str(error).splitlines()[0]
            raise ContractError(
                f"onnxruntime {onnxruntime.__version__} cannot load {path} ({reason}): install a newer onnxruntime."
            ) from None
        self.outputs = list(contract["outputs"])
        names = [node.name for node in self.session.get_inputs()], [node.name for node in self.session.get_outputs()]
        if names != (list(contract["inputs"]), self.outputs):
            (reads, returns), told = (map(", ".join, part) for part in (names, (contract["inputs"], self.outputs)))
            raise ContractError(
                f"{path} reads {reads} and returns {returns}, but the contract says {' and '.join(told)}: run `fledge deploy` "
                "again."
            )
        memory = contract.get("memory")
        self.memory = None if memory is None else (memory["input"], memory["output"], tuple(memory["shape"]))
        self.shapes = {
            name: (tuple(contract["observation"][name]["shape"]), np.dtype(contract["observation"][name]["dtype"]))
            for name in contract["inputs"]
            if self.memory is None or name != self.memory[0]
        }
        self.reset()

    def reset(self) -> None:
        """Begin a new episode: clear the memory of a recurrent network."""
        if self.memory is not None:
            self.state = np.zeros((1,) + self.memory[2], np.float32)

    def act(self, obs: dict[str, Any]) -> dict[str, np.ndarray]:
        """Return the network's outputs by name for one set of observations, all without a batch axis.

        Raises:
            InputError: if an observation is missing, has a wrong shape or is not finite; the memory stays as it was.
        """
        given = {}
        for name, (shape, dtype) in self.shapes.items():
            if name not in obs:
                raise InputError(f"obs lacks {name}: pass {', '.join(self.shapes)}.")
            value = np.asarray(obs[name], dtype)
            if value.shape != shape:
                raise InputError(f"obs[{name!r}] has shape {list(value.shape)}, but must have {list(shape)}.")
            if dtype.kind == "f" and not np.isfinite(value).all():
                raise InputError(f"obs[{name!r}] has NaN or infinity: pass the last finite reading.")
            given[name] = value[None]
        if self.memory is not None:
            given[self.memory[0]] = self.state
        outputs = dict(zip(self.outputs, self.session.run(self.outputs, given)))
        if self.memory is not None:
            self.state = outputs.pop(self.memory[1])
        return {name: value[0] for name, value in outputs.items()}
