"""NavigationEnv: drones crossing a forest and a crowd on LiDAR. See `TensorEnv` for the contract."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import warp as wp
from tensordict import TensorDict

from fledge.core.errors import InputError, MemoryBudgetError, NumericsError
from fledge.core.random import split_seed
from fledge.core.specs import TensorSpec
from fledge.envs.base import TensorEnv
from fledge.sim.crowd import step_crowd
from fledge.sim.launch import Call, Launcher, Program, default_threads
from fledge.sim.quadrotor import DAMPING
from fledge.tasks.navigation import episode, flight, sense
from fledge.tasks.navigation.config import ActionForm, Dynamics, NavigationConfig, RewardKind, Starts
from fledge.tasks.navigation.dump import save_dump
from fledge.tasks.navigation.maps import MapBank, available_bytes
from fledge.tasks.navigation.structs import NEAREST, OBSTACLE_FEATURES, Beams, Drones, Obs, Outcome, Params, Result

IDENTITY = ("seed", "env_offset", "total_envs", "bank")  # what a saved state must agree in
MAX_BINDINGS = 1024  # sets of caller's buffers whose launches stay prepared


class NavigationEnv(TensorEnv):
    """Thousands of drones, each on a map of the bank.

    Args:
        cfg: The task.
        device: "cpu" or "cuda[:i]".
        seed: Decides maps, starts, goals, crowds and noise.
        num_threads: CPU threads; results do not depend on it.
        env_offset: Global index of the first drone, when several envs share one population.
        total_envs: Size of that population.
        bank: Which bank of maps; two banks of one seed have no map in common.
    """

    outcomes: Mapping[int, str] = {int(o): o.name.lower() for o in Outcome}

    def __init__(
        self,
        cfg: NavigationConfig | None = None,
        device: str = "cpu",
        seed: int = 0,
        num_threads: int | None = None,
        env_offset: int = 0,
        total_envs: int | None = None,
        bank: int = 0,
    ) -> None:
        self.cfg = cfg = cfg or NavigationConfig()
        cfg.validate()
        super().__init__(cfg.num_envs, device, seed)
        self.env_offset = env_offset
        self._check_memory()
        self.launcher = Launcher(device, num_threads or default_threads())
        self.bank = MapBank(cfg, self.device, seed, bank, self.launcher)
        self.total_envs = total_envs or cfg.num_envs
        self.params = self._make_params()
        self.beams = self._make_beams()
        self.state = self._make_state()
        self.drones = self._bind_drones()
        self._clock = 0
        action_width = 1 if cfg.action_form is ActionForm.headings else 3
        self._action = torch.zeros((self.num_envs, action_width), device=self.device)
        self._spare = self.make_buffers()  # final_obs and results of calls that do not pass them
        self._bindings: OrderedDict[tuple[int, ...], _Binding] = OrderedDict()
        crowd_args = [self.bank.maps.keys, self.bank.maps.clock, int(cfg.floating_boxes), cfg.dt_s]
        crowd = Call(step_crowd, [*crowd_args, self.bank.seed, self.bank.maps.crowd], cfg.moving_obstacles)
        self._crowd = self.launcher.record([crowd], self.bank.slots) if cfg.moving_obstacles else []
        self._tick = self.launcher.record([Call(episode.tick, [cfg.decimation, self.bank.maps.clock])], 1)
        self._has_reset = self._closed = False

    # ---- specs -------------------------------------------------------------------------------------------------

    @property
    def observation_spec(self) -> dict[str, TensorSpec]:
        cfg, f32 = self.cfg, torch.float32
        reach = cfg.lidar_range_m
        specs = {
            "state": TensorSpec((8,), f32, doc="unit vector to goal (3), horizontal, vertical distance, velocity (3)"),
            "lidar": TensorSpec((1, cfg.lidar_azimuths, cfg.num_elevations), f32, 0.0, reach, doc="range - distance"),
            "direction": TensorSpec((1, 3), f32, doc="horizontal start to goal, m, world"),
            "dynamic_obstacle": TensorSpec((1, NEAREST, OBSTACLE_FEATURES), f32, doc="five nearest, goal frame"),
        }
        if cfg.grid_map:
            specs["grid_map"] = TensorSpec((1, cfg.grid_size, cfg.grid_size), torch.uint8, 0, 1, doc="1 = occupied")
        return specs

    @property
    def action_spec(self) -> TensorSpec:
        if self.cfg.action_form is ActionForm.headings:
            return TensorSpec((), torch.int64, 0, self.cfg.num_headings - 1, num_values=self.cfg.num_headings)
        return TensorSpec((3,), torch.float32, 0.0, 1.0, doc="velocity in the goal frame, 0.5 = at rest")

    @property
    def decision_s(self) -> float:
        """Simulated seconds per step."""
        return self.cfg.dt_s * self.cfg.decimation

    # ---- life --------------------------------------------------------------------------------------------------

    def reset(self, env_mask: torch.Tensor | None = None, out: TensorDict | None = None) -> TensorDict:
        if env_mask is None:
            env_mask = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        if env_mask.dtype != torch.bool or tuple(env_mask.shape) != (self.num_envs,):
            raise InputError(
                f"env_mask must be bool of shape ({self.num_envs},), not {env_mask.dtype} {tuple(env_mask.shape)}."
            )
        if not self._has_reset and not env_mask.all():
            raise InputError("The first reset must begin an episode in every env: call reset() without a mask first.")
        into = self._scratch() if out is None else out
        binding = self._binding(into)
        self._make_fresh_maps(env_mask)
        mask = wp.from_torch(env_mask.contiguous())
        begin = Call(episode.restart_masked, [self.params, self.bank.maps, self.drones, mask])
        self.launcher.run(self.launcher.record([begin], self.num_envs))
        self.launcher.run(binding.observe)
        for name in ("reward", "terminated", "truncated", "outcome"):
            if name in into.keys():  # noqa: SIM118 - a TensorDict is no dict
                into[name].zero_()
        self._has_reset = True
        return into.clone() if out is None else into

    def step(self, action: torch.Tensor, dt: float | None = None, out: TensorDict | None = None) -> TensorDict:
        if dt is not None and not math.isclose(dt, self.decision_s):
            raise InputError(f"dt is {dt}, but a decision of this env lasts {self.decision_s} s: set env.decimation.")
        if self._closed:
            raise InputError("step() came after close(): make a new env.")
        if not self._has_reset:
            raise InputError("step() came before reset(): call reset() once to begin the first episodes.")
        self.check_action(action)
        before = self.state_dict() if self.cfg.nan_guard else None
        into = self._scratch() if out is None else out
        binding = self._binding(into)
        self._action.copy_(action.reshape(self.num_envs, -1))
        self.bank.before_step(self._clock)
        if self._crowd:
            self.launcher.run(self._crowd)
        # From here on the clock is that of the state reached: sensor noise and dealt maps belong to it, so that a
        # masked reset after this step observes the other drones just as the step did.
        self.launcher.run(self._tick)
        self._clock += self.cfg.decimation
        self.launcher.run(binding.advance)
        if self.cfg.fresh_maps:
            self._make_fresh_maps(binding.ended())
        self.bank.before_step(self._clock)
        self._restart_ended(binding)
        if before is not None:
            self._guard(before, action, into)
        return into.clone() if out is None else into

    def _scratch(self) -> TensorDict:
        """The env's own buffers, zeroed. Copying them costs less than preparing launches for buffers seen only once."""
        return self._spare.zero_()

    def _restart_ended(self, binding: _Binding) -> None:
        """Begin the next episode where one ended. On the CPU, shards without any are skipped."""
        program = binding.restart
        if self.device.type == "cpu":
            ended = binding.ended().numpy()
            shards = self.launcher.shards(self.num_envs)
            program = [p for p, (a, n) in zip(program, shards, strict=True) if ended[a : a + n].any()]
        if program:
            self.launcher.run(program)

    def _make_fresh_maps(self, mask: torch.Tensor) -> None:
        if self.cfg.fresh_maps and bool(mask.any()):
            envs = mask.nonzero().flatten().cpu().numpy()
            episodes = self.state["episode"].cpu().numpy()[envs] + 1
            self.bank.build_for_episodes(envs, envs + self.env_offset, episodes, self._clock)

    def close(self) -> None:
        self._closed = True
        self.launcher.close()

    # ---- state -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {
            "drones": {k: v.clone() for k, v in self.state.items()},
            "maps": self.bank.state_dict(),
            "clock": self._clock,
            "seed": self.seed,
            "env_offset": self.env_offset,
            "total_envs": self.total_envs,
            "bank": self.bank.number,
            "has_reset": self._has_reset,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if missing := [k for k in ("drones", "maps", *IDENTITY, "clock", "has_reset") if k not in state]:
            raise InputError(f"This is not a state of a NavigationEnv: it has no {', '.join(missing)}.")
        saved = state["drones"]
        for name, tensor in self.state.items():
            if name not in saved or tuple(saved[name].shape) != tuple(tensor.shape):
                got = tuple(saved[name].shape) if name in saved else "nothing"
                raise InputError(f"The saved state has {got} for {name}, this env needs {tuple(tensor.shape)}.")
        own = {
            "seed": self.seed,
            "env_offset": self.env_offset,
            "total_envs": self.total_envs,
            "bank": self.bank.number,
        }
        for name in IDENTITY:
            if int(state[name]) != own[name]:
                raise InputError(
                    f"The state was saved by an env with {name} {state[name]}; this one has {own[name]}. "
                    "Make the env with the same to continue."
                )
        self.bank.load_state_dict(state["maps"])
        for name, tensor in self.state.items():
            tensor.copy_(saved[name])
        self._clock = int(state["clock"])
        self._has_reset = bool(state["has_reset"])

    # ---- NaN guard ---------------------------------------------------------------------------------------------

    def _guard(self, before: dict[str, Any], action: torch.Tensor, out: TensorDict) -> None:
        bad = [k for k, v in self.state.items() if v.is_floating_point() and not torch.isfinite(v).all()]
        bad += [k for k, v in out["obs"].items() if v.is_floating_point() and not torch.isfinite(v).all()]
        bad += ["reward"] * (not torch.isfinite(out["reward"]).all())
        if bad:
            path = Path(self.cfg.nan_dump_dir) / f"nan_dump_step{before['clock']}.npz"
            save_dump(path, self.cfg, before, action)
            raise NumericsError(
                f"NaN or infinity in {', '.join(sorted(set(bad)))} at physics step {before['clock']}. The state before "
                f"the step is in {path}: fledge.tasks.navigation.replay_dump(path) repeats it.",
                dump=str(path),
            )

    # ---- construction ------------------------------------------------------------------------------------------

    def _check_memory(self) -> None:
        """Refuse more drones than fit: two sets of observations and the state of each."""
        observed = sum(math.prod(s.shape) * s.dtype.itemsize for s in self.observation_spec.values())
        per_drone = 4 * observed + 400
        need, have = per_drone * self.num_envs, available_bytes(self.device)
        if need > 0.8 * have:
            raise MemoryBudgetError(
                f"{self.num_envs:,} drones need {need / 2**30:.1f} GiB, but {have / 2**30:.1f} GiB are available: "
                f"lower env.num_envs to at most {int(0.8 * have / per_drone):,}."
            )

    def _make_params(self) -> Params:
        cfg, p = self.cfg, Params()
        p.seed = wp.vec2ui(*split_seed(self.seed))
        p.env_offset, p.total_envs = self.env_offset, self.total_envs
        p.dt, p.decimation, p.max_steps, p.damping = cfg.dt_s, cfg.decimation, cfg.max_episode_steps, DAMPING
        p.first_order = int(cfg.dynamics is Dynamics.first_order)
        p.headings = cfg.num_headings if cfg.action_form is ActionForm.headings else 0
        p.speed_limit = cfg.speed_limit
        p.starts = {Starts.edges: 0, Starts.rows: 1, Starts.mixed: 2}[cfg.starts]
        p.inside_share = cfg.inside_share
        p.success_ends = int(cfg.success_ends_episode)
        p.goal_radius, p.radius = cfg.goal_radius_m, cfg.collision_radius_m
        p.min_height, p.max_height = cfg.min_height_m, cfg.max_height_m
        p.range_m, p.azimuths, p.elevations = cfg.lidar_range_m, cfg.lidar_azimuths, cfg.num_elevations
        p.groups = -(-cfg.num_elevations // 4)
        p.see_movers = int(cfg.lidar_sees_movers)
        p.grid_size, p.grid_resolution = cfg.grid_size, cfg.grid_resolution_m
        p.reward_navrl = int(cfg.reward.kind is RewardKind.navrl)
        p.w_height, p.w_near, p.near_m = cfg.reward.height, cfg.reward.near, cfg.reward.near_m
        p.w_crash, p.w_success, p.w_time = cfg.reward.crash, cfg.reward.success, cfg.reward.time
        r = cfg.randomize
        p.r_mass, p.r_thrust, p.r_damping, p.latency = r.mass, r.thrust, r.damping, r.latency_steps
        p.lidar_noise, p.lidar_dropout, p.state_noise = r.lidar_noise_m, r.lidar_dropout, r.state_noise
        p.slots, p.active = self.bank.slots, self.bank.active
        p.refresh, p.fresh = cfg.map_refresh_steps, int(cfg.fresh_maps)
        return p

    def _make_beams(self) -> Beams:
        angles = np.radians(np.asarray(self.cfg.lidar_elevations_deg, dtype=np.float64))
        padded = np.concatenate([angles, np.full(-len(angles) % 4, angles[-1])]).reshape(-1, 4)
        beams = Beams()
        beams.slope = wp.array(np.tan(padded).astype(np.float32), dtype=wp.vec4, device=str(self.device))
        beams.cosine = wp.array(np.cos(padded).astype(np.float32), dtype=wp.vec4, device=str(self.device))
        return beams

    def _make_state(self) -> dict[str, torch.Tensor]:
        n, ring = self.num_envs, self.cfg.randomize.latency_steps + 1
        shapes: dict[str, tuple[int, ...]] = {"quat": (4,), "throttle": (4,), "commands": (ring, 3)}
        for name in ("pos", "vel", "rate", "start", "goal", "frame"):
            shapes[name] = (3,)
        for name in ("gain", "outside", "elapsed", "episode_return"):
            shapes[name] = ()
        state = {k: torch.zeros((n, *s), device=self.device) for k, s in shapes.items()}
        for name in ("latency", "step", "episode", "slot", "reached", "crash"):
            state[name] = torch.zeros(n, dtype=torch.int32, device=self.device)
        state["episode"].fill_(-1)
        state["quat"][:, 3] = 1.0
        return state

    def _bind_drones(self) -> Drones:
        dtypes = {"quat": wp.quat, "throttle": wp.vec4}
        dtypes |= dict.fromkeys(("pos", "vel", "rate", "start", "goal", "frame", "commands"), wp.vec3)
        drones = Drones()
        for name, tensor in self.state.items():
            setattr(drones, name, wp.from_torch(tensor, dtype=dtypes.get(name)))
        return drones

    def _binding(self, out: TensorDict) -> _Binding:
        """Launches prepared for the caller's buffers; made on first sight, kept while they are used."""
        tensors = _buffers_of(self, out)
        key = tuple(t.data_ptr() for t in tensors.values())
        binding = self._bindings.get(key)
        if binding is None:
            binding = _Binding(self, tensors)
            self._bindings[key] = binding
            if len(self._bindings) > MAX_BINDINGS:
                self._bindings.popitem(last=False)
        return binding


class _Binding:
    """Recorded launches that write into one set of buffers. Holds the buffers, so their addresses stay theirs."""

    def __init__(self, env: NavigationEnv, tensors: dict[tuple[str, ...], torch.Tensor]) -> None:
        self.tensors = tensors
        obs, final, result = _bind_obs(env, tensors, "obs"), _bind_obs(env, tensors, "final_obs"), Result()
        for name in ("reward", "terminated", "truncated", "outcome", "episode_return", "episode_length"):
            setattr(result, name, wp.from_torch(tensors[(name,)]))
        p, maps, beams, drones, cfg = env.params, env.bank.maps, env.beams, env.drones, env.cfg

        def look(only_ended: int) -> list[Call]:
            calls = [Call(sense.scan, [only_ended, p, maps, beams, drones, result, obs], cfg.lidar_azimuths)]
            if cfg.grid_map:
                calls.append(Call(sense.draw_grid, [only_ended, p, maps, drones, result, obs], cfg.grid_size))
            return calls

        def finish(only_ended: int) -> Call:
            return Call(episode.observe, [only_ended, p, maps, beams, drones, result, obs])

        fly = Call(flight.fly, [p, maps, beams, wp.from_torch(env._action), drones])
        conclude = Call(episode.conclude, [p, maps, beams, drones, result, obs])
        restart = Call(episode.restart, [p, maps, drones, result, obs, final])
        record, n = env.launcher.record, env.num_envs
        self.advance: Program = record([fly, *look(0), conclude], n)
        self.restart: Program = record([restart, *look(1), finish(1)], n)
        self.observe: Program = record([*look(0), finish(0)], n)

    def ended(self) -> torch.Tensor:
        return self.tensors[("terminated",)] | self.tensors[("truncated",)]


def _buffers_of(env: NavigationEnv, out: TensorDict) -> dict[tuple[str, ...], torch.Tensor]:
    """The caller's tensors by path, checked; what the caller left out comes from the env's spare buffers."""
    found: dict[tuple[str, ...], torch.Tensor] = {}
    for path, spare in env._spare.items(include_nested=True, leaves_only=True):
        path = path if isinstance(path, tuple) else (path,)
        tensor = out.get(path if len(path) > 1 else path[0], None)
        if tensor is None:
            if path[0] == "obs":
                raise InputError(f"out has no entry {'.'.join(path)}: make it with env.make_buffers().")
            tensor = spare
        if tensor.shape != spare.shape or tensor.dtype != spare.dtype or tensor.device != spare.device:
            raise InputError(
                f"out[{'.'.join(path)}] is {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}, "
                f"but must be {spare.dtype} {tuple(spare.shape)} on {spare.device}."
            )
        if not tensor.is_contiguous():
            raise InputError(f"out[{'.'.join(path)}] is not contiguous: pass buffers laid out [num_envs, ...].")
        found[path] = tensor
    return found


def _bind_obs(env: NavigationEnv, tensors: Mapping[tuple[str, ...], torch.Tensor], root: str) -> Obs:
    obs, n = Obs(), env.num_envs
    names = {"state": "state", "lidar": "lidar", "direction": "direction", "obstacles": "dynamic_obstacle"}
    for field, key in names.items():
        setattr(obs, field, wp.from_torch(tensors[(root, key)].view(n, -1)))
    if env.cfg.grid_map:
        obs.grid = wp.from_torch(tensors[(root, "grid_map")].view(n, -1))
    else:
        obs.grid = wp.zeros((n, 0), dtype=wp.uint8, device=str(env.device))
    return obs
