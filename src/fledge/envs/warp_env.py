"""WarpEnv: base class of envs simulated in Warp. A subclass adds its physics.

This class has the launcher, the state tensors, recorded kernel launches for each set of the caller's buffers, its own
buffers for calls without `out`, checks of loaded states, the NaN guard and the memory check. A subclass implements

    observation_spec, action_spec      as any TensorEnv
    make_programs(tensors)             launches that advance, restart and observe, writing into one set of buffers
    restart_call(mask)                 the launch that begins new episodes where a mask is true
    set_duration(seconds)              if decisions may last longer or shorter than decision_s
    before_advance(), after_advance()  further work of a step, before and after the envs move
    observe_more(obs)                  write observations that are added to those of the launches
    identity(), state_parts(), load_parts()
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn, TypeVar

import torch
import warp as wp
from tensordict import TensorDict, TensorDictBase

from fledge.core.cuda_graphs import CudaGraphs
from fledge.core.errors import InputError, MemoryBudgetError, NumericsError
from fledge.core.machine import available_bytes, default_threads, pick_device
from fledge.core.settings import refuse_code
from fledge.envs.base import Action, TensorEnv, check_begun, check_duration, clear_results
from fledge.envs.launch import Call, Launcher, Program
from fledge.envs.nan_dump import load_dump, save_dump
from fledge.envs.programs import Programs, Tensors

MAX_BINDINGS = 1024  # sets of caller's buffers whose launches are kept
W = TypeVar("W", bound="WarpEnv")


class WarpEnv(TensorEnv):
    """Many envs of one task, stepped by recorded kernel launches.

    Args:
        cfg: Settings of the env, with `num_envs`, `nan_guard` and `nan_dump_dir`.
        num_threads: CPU threads; results do not depend on it.
        env_offset: Global index of the first env, if the envs of several WarpEnvs (of several ranks) belong together.
        total_envs: Number of envs of all these WarpEnvs.
    """

    config: ClassVar[type]
    """Class of `cfg`."""
    unit: ClassVar[str] = "envs"
    """Name of one env in messages."""
    observed_copies: ClassVar[int] = 4
    """Copies of an observation in memory: obs and final_obs, in the env's and in the caller's buffers."""
    parts: ClassVar[tuple[str, ...]]
    """Keys of `state_parts`."""
    captures: bool = True
    """Whether `advance` and `restart` may be captured as CUDA graphs, as `core.cuda_graphs` says."""

    def __init__(
        self, cfg: Any, device: str, seed: int, num_threads: int | None, env_offset: int, total_envs: int | None
    ) -> None:
        super().__init__(cfg.num_envs, device, seed)
        self.cfg = cfg
        self.env_offset, self.total_envs = env_offset, total_envs or cfg.num_envs
        self._check_memory()
        self.launcher = Launcher(device, num_threads or default_threads())
        self._graphs = CudaGraphs(self.device)
        self.state: dict[str, torch.Tensor] = {}
        self._clock = 0
        self._spare = self.make_buffers()  # final_obs and results for calls that do not pass them
        leaves = self._spare.items(include_nested=True, leaves_only=True)  # slow, so not in every step
        self._leaves: Tensors = {path if isinstance(path, tuple) else (path,): tensor for path, tensor in leaves}
        self._bindings: OrderedDict[tuple[int, ...], Programs] = OrderedDict()
        self._has_reset = self._closed = False

    def __reduce__(self) -> NoReturn:
        raise InputError(
            f"A {type(self).__name__} cannot be pickled, copied or sent to another process: make the env there, for example "
            "with fledge.make_env in the function that the process calls."
        )

    # ---- implemented by subclasses ----------------------------------------------------------------------------------

    def make_programs(self, tensors: Tensors) -> Programs:
        raise NotImplementedError

    def restart_call(self, mask: Any) -> Call:
        """Return the launch that begins new episodes where `mask`, a Warp array of bool, is true."""
        raise NotImplementedError

    def record(self, calls: Sequence[Call]) -> Program:
        """Return the program that launches these kernels over all groups of rows; by default one thread per group."""
        return self.launcher.record(calls, self.num_envs // self.group)

    def take_action(self, action: Action) -> None:
        """Copy a checked action to the buffer that the launches read."""
        raise NotImplementedError

    def set_duration(self, seconds: float) -> None:
        """Set the duration of the next decision, s; raise InputError if the env does not support it."""
        check_duration(seconds, self.decision_s, "leave dt out, or set env.decimation")

    def before_advance(self) -> None:
        """Advance the clock, and do other work of the host."""

    def advance(self, programs: Programs) -> None:
        """Move every env by one decision; work of the device only."""
        self.launcher.run(programs.advance)

    def after_advance(self, programs: Programs) -> None:
        """Prepare the restart of the episodes that ended."""

    def observe_more(self, obs: Mapping[str, torch.Tensor]) -> None:
        """Write the observations that the kernels do not write, for all rows; they must depend on the state only.

        Called after a reset, in a step before ended episodes restart (WarpEnv copies these values to `final_obs`), and
        again after they restarted.
        """

    def before_reset(self, env_mask: torch.Tensor) -> None:
        """Prepare the start of episodes where the mask is true."""

    def identity(self) -> dict[str, int]:
        """Return by name the values that a saved state must have in common with this env, so that the env can load it."""
        return {"seed": self.seed, "env_offset": self.env_offset, "total_envs": self.total_envs}

    def state_parts(self) -> dict[str, Any]:
        """Return a copy of the complete state, in parts by name."""
        raise NotImplementedError

    def load_parts(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state_parts`; if it does not match this env, raise InputError and change nothing."""
        raise NotImplementedError

    # ---- reset and step -----------------------------------------------------------------------------------------------

    def reset(self, env_mask: torch.Tensor | None = None, out: TensorDict | None = None) -> TensorDict:
        self._refuse_closed("reset")
        env_mask = self.check_mask(env_mask, self._has_reset)
        into = self._scratch() if out is None else out
        programs = self._programs(into)
        self.before_reset(env_mask)
        begin = self.restart_call(wp.from_torch(env_mask.contiguous()))
        self.launcher.run(self.record([begin]))
        self.launcher.run(programs.observe)
        self._observe_more(programs, False)
        clear_results(into)
        self._has_reset = True
        return into.clone() if out is None else into

    def step(self, action: Action, dt: float | None = None, out: TensorDict | None = None) -> TensorDict:
        self._refuse_closed("step")
        check_begun(self._has_reset)
        self.check_action(action)
        self.set_duration(self.decision_s if dt is None else dt)
        before = self.state_dict() if self.cfg.nan_guard else None
        into = self._scratch() if out is None else out
        programs = self._programs(into)
        graphs = self._graphs if self.captures else None
        self.take_action(action)
        self.before_advance()
        programs.run(self.advance, graphs)
        self._observe_more(programs, True)
        self.after_advance(programs)
        programs.run(self.restart_ended, graphs)
        self._observe_more(programs, False)
        if before is not None:
            self._guard(before, action, into)
        return into.clone() if out is None else into

    def _observe_more(self, programs: Programs, is_final: bool) -> None:
        """Call `observe_more`. With `is_final`, before ended episodes restart, also copy their observations to final_obs."""
        if type(self).observe_more is WarpEnv.observe_more:
            return
        names = [path[1] for path in programs.tensors if path[0] == "obs"]
        obs = {name: programs.tensors[("obs", name)] for name in names}
        self.observe_more(obs)
        if is_final and bool((ended := programs.ended()).any()):
            for name in names:
                programs.tensors[("final_obs", name)][ended] = obs[name][ended]

    def _refuse_closed(self, call: str) -> None:
        if self._closed:
            raise InputError(f"{call}() was called after close(): make a new env.")

    def _scratch(self) -> TensorDict:
        """Return the env's own buffers, set to zero. Copying them is faster than recording launches for buffers used once."""
        return self._spare.zero_()

    def restart_ended(self, programs: Programs) -> None:
        """Begin the next episode where one ended. On the CPU, thread ranges without an ended episode are skipped."""
        program = programs.restart
        if self.device.type == "cpu":
            ended = programs.ended().numpy().reshape(-1, self.group)[:, 0]
            shards = self.launcher.shards(len(ended))
            program = [p for p, (a, n) in zip(program, shards, strict=True) if ended[a : a + n].any()]
        if program:
            self.launcher.run(program)

    def close(self) -> None:
        self._closed = True
        self.launcher.close()

    # ---- the caller's buffers --------------------------------------------------------------------------------------

    def _programs(self, out: TensorDict) -> Programs:
        """Return the recorded launches that write into the caller's buffers; they are recorded once and reused."""
        tensors = self._buffers_of(out)
        key = tuple(t.data_ptr() for t in tensors.values())
        if key not in self._bindings:
            self._bindings[key] = self.make_programs(tensors)
            if len(self._bindings) > MAX_BINDINGS:
                self._bindings.popitem(last=False)
        return self._bindings[key]

    def _buffers_of(self, out: TensorDict) -> Tensors:
        """Return the caller's tensors by path, after checking them; for missing ones, the env's own buffers."""
        if not isinstance(out, TensorDictBase):
            raise InputError(
                f"out is a {type(out).__name__}, but must be a TensorDict: make it with env.make_buffers()."
            )
        found: Tensors = {}
        for path, spare in self._leaves.items():
            tensor = out.get(path if len(path) > 1 else path[0], None)
            if tensor is None:
                if path[0] == "obs":
                    raise InputError(f"out has no entry {'.'.join(path)}: make it with env.make_buffers().")
                tensor = spare
            if tensor.shape != spare.shape or tensor.dtype != spare.dtype or tensor.device != spare.device:
                raise InputError(
                    f"out[{'.'.join(path)}] is {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}, "
                    f"but must be {spare.dtype} {tuple(spare.shape)} on {spare.device}: make it with env.make_buffers()."
                )
            if not tensor.is_contiguous():
                raise InputError(f"out[{'.'.join(path)}] is not contiguous: make it with env.make_buffers().")
            found[path] = tensor
        return found

    # ---- state -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {**self.state_parts(), "clock": self._clock, **self.identity(), "has_reset": self._has_reset}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_state(state, (*self.parts, "clock", "has_reset"), **self.identity())
        self.load_parts(state)
        self._clock = int(state["clock"])
        self._has_reset = bool(state["has_reset"])

    def check_shapes(self, saved: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor] | None = None) -> None:
        """Raise InputError unless a saved part has the shapes of this env's state tensors (or of `own`)."""
        for name, tensor in (self.state if own is None else own).items():
            found = saved.get(name)
            if found is None or tuple(found.shape) != tuple(tensor.shape):
                got = "nothing" if found is None else f"shape {tuple(found.shape)}"
                raise InputError(
                    f"The saved state has {got} for {name}, but this env needs shape {tuple(tensor.shape)}: "
                    "make the env with the saved settings."
                )

    # ---- memory, NaN -----------------------------------------------------------------------------------------------

    def counted(self) -> tuple[str, int]:
        """Return what env.num_envs counts (such as "drones", for messages), and the number of rows per counted item."""
        return self.unit, 1

    def state_bytes(self) -> int:
        """Return the approximate size of one row's state, bytes."""
        return 400

    def _check_memory(self) -> None:
        """Raise MemoryBudgetError if observations and states of all envs do not fit into memory."""
        unit, rows = self.counted()
        observed = sum(math.prod(s.shape) * s.dtype.itemsize for s in self.observation_spec.values())
        each = rows * (self.observed_copies * observed + self.state_bytes())
        count = self.num_envs // rows
        need, have = each * count, available_bytes(self.device)
        if need > 0.8 * have:
            most = int(0.8 * have / each) // self.group * self.group
            fix = f"lower env.num_envs to at most {most:,}" if most else "choose smaller observations"
            raise MemoryBudgetError(
                f"{count:,} {unit} need {need / 2**30:.1f} GiB, but {have / 2**30:.1f} GiB are available: {fix}."
            )

    def _guard(self, before: dict[str, Any], action: Action, out: TensorDict) -> None:
        looked_at = [*self.state.items(), *out["obs"].items(), ("reward", out["reward"])]
        bad = [k for k, v in looked_at if v.is_floating_point() and not torch.isfinite(v).all()]
        if bad:
            path = Path(self.cfg.nan_dump_dir) / f"nan_dump_step{before['clock']}.npz"
            save_dump(path, self.cfg, {**before, "device": self.device.type}, action)
            raise NumericsError(
                f"NaN or infinity in {', '.join(sorted(set(bad)))} at physics step {before['clock']}. The state before "
                f"the step is in {path}: fledge.{type(self).__name__}.replay_dump(path) repeats the step.",
                dump=str(path),
            )

    @classmethod
    def replay_dump(cls: type[W], path: str | Path, device: str | None = None) -> TensorDict:
        """Repeat a step that the NaN guard dumped, without the guard, and return its result.

        `device` is "cpu", "cuda" or "cuda:N"; by default the kind of device that the env was on.
        """
        cfg, state, action = load_dump(path, cls.config)
        refuse_code(cfg, prefix="env.")
        cfg.nan_guard = False
        place = pick_device(device or str(state.pop("device", "cpu")), torch.cuda.device_count())
        env = cls.from_identity(cfg, state, place)
        try:
            env.load_state_dict(state)
            return env.step(
                action.to(place) if isinstance(action, torch.Tensor) else {k: v.to(place) for k, v in action.items()}
            )
        finally:
            env.close()

    @classmethod
    def from_identity(cls: type[W], cfg: Any, state: Mapping[str, Any], device: str) -> W:
        """Return an env with the seed and numbers of envs of a saved state, so that it can load the state."""
        place: dict[str, Any] = {k: int(state[k]) for k in ("seed", "env_offset", "total_envs")}
        return cls(cfg, device=device, **place)
