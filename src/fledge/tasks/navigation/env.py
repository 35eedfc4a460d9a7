"""NavigationEnv: drones fly by LiDAR through a forest and a crowd of moving obstacles. `TensorEnv` defines the interface."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import warp as wp

from fledge.core.random import split_seed
from fledge.core.settings import check_settings
from fledge.core.specs import TensorSpec
from fledge.envs.base import Action
from fledge.envs.launch import Call, Program
from fledge.envs.warp_env import Programs, Tensors, WarpEnv
from fledge.tasks.navigation import compact_maps
from fledge.tasks.navigation.config import SIMULATED, ActionForm, NavigationConfig, Starts
from fledge.tasks.navigation.networks.feature_policy import VELOCITY
from fledge.tasks.navigation.perception import kernels as perception
from fledge.tasks.navigation.perception.structs import faults_bytes, make_faults
from fledge.tasks.navigation.physics import episode, flight, meetings
from fledge.tasks.navigation.physics.maps import MapBank
from fledge.tasks.navigation.physics.near_boxes import scans_objects
from fledge.tasks.navigation.physics.quadrotor import ROTOR_FILTER
from fledge.tasks.navigation.physics.structs import Beams, Drones, Obs, Outcome, Result, allocate, bind, make_params
from fledge.tasks.navigation.physics.voxel_worlds import is_scene
from fledge.tasks.navigation.planner.identify import STATE as RESPONSE_STATE
from fledge.tasks.navigation.planner.kernel import ALL, BEGUN, ENDED
from fledge.tasks.navigation.planner.local_map import LocalMap
from fledge.tasks.navigation.planner.reader import ObservedPlan, plan_bytes
from fledge.tasks.navigation.rewards import TERMS
from fledge.tasks.navigation.sensing import observe as sense
from fledge.tasks.navigation.sensing.mover_beams import scan_movers
from fledge.tasks.navigation.sensing.observations import OBSERVATIONS, POSE
from fledge.tasks.navigation.sensing.rays import azimuths_deg, bin_deg, directions, elevations_deg
from fledge.tasks.navigation.sensing.scan_boxes import scan_boxes
from fledge.tasks.navigation.sensing.scan_columns import scan_columns
from fledge.tasks.navigation.sensing.scan_rays import scan_rays
from fledge.tasks.navigation.simulators.trail import ExternalFlight, no_trail
from fledge.tasks.navigation.tracking.structs import tracker_bytes
from fledge.tasks.navigation.tracking.tracker import MoverTracker

NOMINAL = {"tuning": torch.tensor([1.0, 1.0, 1.0, ROTOR_FILTER])}  # of states that are not 0 without randomisation
LARGE = ("plan_cells", "tracker_grid", "tracker_free")  # maps of each drone, which are saved compactly
BODY_ELEVATIONS_DEG = (-10.0, 0.0, 10.0, 20.0)  # of the beams that detect collisions with columns


class NavigationEnv(WarpEnv):
    """Many drones in parallel, each on one of the maps in a map bank.

    Args:
        cfg: Settings of the env.
        bank: Number of the map bank; banks with different numbers have no map in common.
        device, seed, num_threads, env_offset, total_envs: As `WarpEnv` says.
    """

    outcomes: Mapping[int, str] = {int(o): o.name.lower() for o in Outcome}
    config, unit, parts = NavigationConfig, "drones", ("drones", "maps")
    cfg: NavigationConfig

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
        check_settings(cfg, "env.")
        self.group = cfg.drones
        super().__init__(cfg, device, seed, num_threads, env_offset, total_envs)
        self.decision_s = cfg.dt_s * cfg.decimation
        self.one_clock = is_scene(cfg) or (cfg.starts is not Starts.crossing and not cfg.world)
        self.bank = MapBank(cfg, self.device, seed, bank, self.launcher)
        self.params = make_params(
            cfg,
            seed=wp.vec2ui(*split_seed(seed)),
            env_offset=env_offset,
            total_envs=self.total_envs,
            slots=self.bank.slots,
            active=self.bank.active,
            map_refresh_steps=cfg.refresh_steps,
            voxels=int(self.bank.worlds is not None),
            scene=int(self.bank.scene is not None),
        )
        self.beams = self._make_beams()
        self.scans_objects = scans_objects(cfg, self.device)
        n, ring = self.num_envs, cfg.randomize.latency_steps + 1
        track = (n, cfg.decimation + 1 if cfg.drones > 1 else 0)
        self.drones, self.state = allocate(Drones, {1: (n,), 2: (n, ring), "track": track}, self.device)
        self.state["episode"].fill_(-1)
        self.state["quat"][:, 3] = 1.0
        action_width = 1 if cfg.action_form is ActionForm.headings else 3
        self._action = torch.zeros((n, action_width), device=self.device)
        self.reward_terms = torch.zeros((n, len(TERMS)), device=self.device)
        """Terms of the last step's reward, in the order of `rewards.TERMS`; 0 for terms that the chosen reward kind lacks."""
        self.tracker = MoverTracker(cfg, self.state["step"]) if cfg.tracks_movers else None
        self.plan = ObservedPlan(cfg, self._action, self.state["step"], self.tracker) if cfg.plan else None
        self._pose = torch.zeros((n, POSE.width if cfg.plan or cfg.tracks_movers else 0), device=self.device)
        self.faults: Any = None
        self.fault_state: dict[str, torch.Tensor] = {}
        crowd = self.bank.crowd_calls()
        if cfg.perception.active:
            self.faults, self.fault_state = make_faults(cfg, self.bank.slots, self.device)
            if crowd and len(self.fault_state["trail"]):
                args = [self.bank.maps.clock, self.faults, self.bank.maps.crowd]
                crowd.append(Call(perception.remember_crowd, args, cfg.moving_obstacles))
        self.external = ExternalFlight(cfg, self.state) if cfg.dynamics in SIMULATED else None
        self.captures = self.external is None
        self.trail = self.external.trail if self.external else no_trail(self.device)
        if self.external is not None:
            args = [self.params, wp.from_torch(self._action), self.drones, self.external.commands_array]
            self._command = self.record([Call(flight.command, args)])
        self._crowd = self.launcher.record(crowd, self.bank.slots) if crowd else []
        self._tick = self.launcher.record([Call(episode.tick, [cfg.decimation, self.bank.maps.clock])], 1)

    # ---- specs -------------------------------------------------------------------------------------------------

    @property
    def observation_spec(self) -> dict[str, TensorSpec]:
        return self.declared()

    def declared(self) -> dict[str, TensorSpec]:
        """Return the specs of the observations that the kernels write, without those that a subclass adds."""
        return {o.name: o.spec(self.cfg) for o in OBSERVATIONS if o.enabled(self.cfg)}

    @property
    def action_spec(self) -> TensorSpec:
        if self.cfg.action_form is ActionForm.headings:
            return TensorSpec((), torch.int64, 0, self.cfg.num_headings - 1, num_values=self.cfg.num_headings)
        return VELOCITY

    # ---- a step ------------------------------------------------------------------------------------------------

    def take_action(self, action: Action) -> None:
        assert isinstance(action, torch.Tensor)
        self._action.copy_(action.reshape(self.num_envs, -1))

    def before_advance(self) -> None:
        self.bank.before_step(self._clock)
        self._clock += self.cfg.decimation

    def advance(self, programs: Programs) -> None:
        if self._crowd:
            self.launcher.run(self._crowd)
        # From here on the clock belongs to the new state. Sensor noise and the choice of maps depend on it, so that a
        # masked reset after this step observes the other drones exactly as the step did.
        self.launcher.run(self._tick)
        if self.external is not None:
            self.launcher.run(self._command)
            self.external.fly()
        super().advance(programs)

    def after_advance(self, programs: Programs) -> None:
        if self.cfg.fresh_maps:
            self.before_reset(programs.ended())
        self.bank.before_step(self._clock)

    def before_reset(self, env_mask: torch.Tensor) -> None:
        """Build a new map for each episode that begins, if `env.fresh_maps` is on."""
        if self.cfg.fresh_maps and bool(env_mask.any()):
            envs = env_mask.nonzero().flatten().cpu().numpy()
            episodes = self.state["episode"].cpu().numpy()[envs] + 1
            self.bank.build_for_episodes(envs, envs + self.env_offset, episodes, self._clock)

    def record(self, calls: Sequence[Call]) -> Program:
        """Return the program that launches these kernels over all drones; drones of one world stay in one thread range."""
        return self.launcher.record(calls, self.num_envs // self.group, self.group)

    def restart_call(self, mask: Any) -> Call:
        return Call(episode.restart, [self.params, self.bank.maps, self.drones, mask, mask])

    def make_programs(self, tensors: Tensors) -> Programs:
        views = self._obs_views(tensors)
        results = {path[0]: tensor for path, tensor in tensors.items() if len(path) == 1}
        obs, result = bind(Obs, views), bind(Result, {**results, "terms": self.reward_terms})
        p, maps, beams, drones, cfg = self.params, self.bank.maps, self.beams, self.drones, self.cfg

        def observe_calls(only_ended: int) -> list[Call]:
            args = [only_ended, p, maps, beams, drones, result, obs]
            scan = scan_rays if cfg.casts_single_rays else sense.scan
            calls = [Call(scan, args, cfg.lidar_azimuths)]
            if self.scans_objects:
                calls = [Call(scan_boxes if cfg.world else scan_columns, args)]
            if cfg.lidar_sees_movers and not cfg.casts_single_rays:
                calls.append(Call(scan_movers, args))
            if cfg.grid_map:
                calls.append(Call(sense.draw_grid, [only_ended, p, maps, drones, result, obs], cfg.grid_size))
            return calls

        def perceive(only_ended: int) -> list[Call]:
            args = [only_ended, p, self.faults, maps, drones, result, obs]
            return [Call(perception.perceive, args)] if self.faults is not None else []

        def finish(only_ended: int) -> list[Call]:
            return [Call(episode.observe, [only_ended, p, maps, drones, result, obs]), *perceive(only_ended)]

        def plan(which: int) -> list[Call]:
            track = [self.tracker.call(which, result, views)] if self.tracker else []
            return [*track, *([self.plan.call(which, result, views, views["plan"])] if self.plan else [])]

        fly = Call(flight.fly, [p, maps, beams, wp.from_torch(self._action), drones, self.trail])
        conclude = Call(episode.conclude, [p, maps, drones, result, obs])
        keep = [Call(episode.keep_final, [result, *as_bytes(tensors, name)]) for name in self.declared()]
        restart = Call(episode.restart, [p, maps, drones, result.terminated, result.truncated])
        advance = [Call(perception.advance_faults, [p, self.faults, maps, drones])] if self.faults is not None else []
        together = cfg.drones > 1
        meet = [Call(meetings.meet, [p, drones])] if together else []
        end = [Call(episode.end_together, [p, drones, result])] if together else []
        record = self.record
        return Programs(
            tensors,
            advance=record([fly, *meet, *advance, *observe_calls(0), conclude, *end, *perceive(0), *plan(ALL)]),
            restart=record([*keep, restart, *observe_calls(1), *finish(1), *plan(ENDED)]),
            observe=record([*observe_calls(0), *finish(0), *plan(BEGUN)]),
        )

    # ---- state -------------------------------------------------------------------------------------------------

    def identity(self) -> dict[str, int]:
        return {**super().identity(), "bank": self.bank.number}

    def state_parts(self) -> dict[str, Any]:
        drones = {k: v.clone() for k, v in {**self.state, **self._other_state()}.items() if k not in LARGE}
        packed = [compact_maps.pack(*part) for part in self._large()]
        return {"drones": drones | dict(ChainMap(*packed)), "maps": self.bank.state_dict()}

    def _large(self) -> list[tuple[str, torch.Tensor, LocalMap | None]]:
        """Return the arguments of `compact_maps.pack` for the maps in the drones' state."""
        tensors = {k: v for k, v in self._other_state().items() if k in LARGE}
        return [(k, v, self.plan.planner.map if self.plan and k == "plan_cells" else None) for k, v in tensors.items()]

    def _other_state(self) -> dict[str, torch.Tensor]:
        """Return the state of the plan, of the faults, of the tracker and of the external simulator."""
        tracker = {} if self.tracker is None else {f"tracker_{k}": v for k, v in self.tracker.state.items()}
        plan = {} if self.plan is None else {f"plan_{k}": v for k, v in self.plan.state.items()}
        external = {} if self.external is None else {f"external_{k}": v for k, v in self.external.state().items()}
        return plan | tracker | external | {f"fault_{k}": v for k, v in self.fault_state.items()}

    def load_parts(self, state: Mapping[str, Any]) -> None:
        saved = dict(state["drones"])
        saved.setdefault("progress", saved.get("gain"))  # its name in older checkpoints
        saved.setdefault("route", (saved["goal"] - saved["start"]).norm(dim=-1))  # which they lack
        for name in ("tuning", "wind", "drift", "gap"):  # older checkpoints lack them
            saved.setdefault(name, NOMINAL.get(name, torch.tensor(0.0)).expand_as(self.state[name]))
        own = {**self.state, **self._other_state()}
        packed = [part for part in self._large() if part[0] not in saved]  # older checkpoints have whole maps
        for name, tensor, _ in packed:
            compact_maps.check(name, saved, tensor)
            del own[name]
        for name in (
            "track",
            *(f"plan_{n}" for n in ("drawn", "stay_pos", "stay", "place", "motion", "unseen", *RESPONSE_STATE)),
        ):
            saved.setdefault(name, own.get(name))
        self.check_shapes(saved, own)
        self.bank.load_state_dict(state["maps"])
        for name, tensor in own.items():
            tensor.copy_(saved[name])
        for name, tensor, local_map in packed:
            compact_maps.unpack(name, saved, tensor, local_map)
        if self.external is not None:
            self.external.plant.restored()

    def state_bytes(self) -> int:
        faults = faults_bytes(self.cfg) if self.cfg.perception.active else 0
        return super().state_bytes() + faults + tracker_bytes(self.cfg) + (plan_bytes(self.cfg) if self.cfg.plan else 0)

    def close(self) -> None:
        if self.external is not None:
            self.external.close()
        super().close()

    @classmethod
    def from_identity(cls, cfg: NavigationConfig, state: Mapping[str, Any], device: str) -> NavigationEnv:
        place: dict[str, Any] = {k: int(state[k]) for k in ("seed", "env_offset", "total_envs", "bank")}
        return cls(cfg, device=device, **place)

    # ---- construction ------------------------------------------------------------------------------------------

    def _make_beams(self) -> Beams:
        cfg = self.cfg
        around, angles = np.radians(azimuths_deg(cfg)), np.radians(elevations_deg(cfg))
        padded = np.concatenate([angles, np.full(-len(angles) % 4, angles[-1])]).reshape(-1, 4)

        def array(values: np.ndarray, dtype: Any) -> Any:
            return wp.array(values.astype(np.float32), dtype=dtype, device=str(self.device))

        beams = Beams()
        beams.around = array(np.stack([np.cos(around), np.sin(around)], axis=1), wp.vec2)
        beams.rise = array(np.stack([np.tan(angles), np.cos(angles)], axis=1), wp.vec2)
        beams.slope, beams.cosine = array(np.tan(padded), wp.vec4), array(np.cos(padded), wp.vec4)
        body = np.radians(np.asarray(BODY_ELEVATIONS_DEG))
        beams.body_slope, beams.body_cosine = wp.vec4(*np.tan(body).tolist()), wp.vec4(*np.cos(body).tolist())
        beams.rays = array(directions(cfg).reshape(-1, 3)[: None if cfg.casts_single_rays else 0], wp.vec3)
        width, height = (math.radians(x) for x in bin_deg(cfg))
        beams.first, beams.bin = wp.vec2(around[0] - width / 2, angles[0] - height / 2), wp.vec2(width, height)
        return beams

    def _obs_views(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        """Return every observation flattened to two axes, [N, numbers per drone]; [N, 0] if it is disabled."""
        n = self.num_envs
        views = {o.name: torch.zeros((n, 0), dtype=getattr(torch, o.dtype), device=self.device) for o in OBSERVATIONS}
        views[POSE.name] = self._pose  # if `pose` is not observed
        return {**views, **{name: tensors[("obs", name)].view(n, -1) for name in self.declared()}}


def as_bytes(tensors: Tensors, name: str) -> list[Any]:
    """Return the buffers obs.NAME and final_obs.NAME as Warp arrays of bytes, each of shape [N, bytes per drone]."""
    buffers = (tensors[(root, name)] for root in ("obs", "final_obs"))
    return [wp.from_torch(buffer.view(len(buffer), -1).view(torch.uint8)) for buffer in buffers]
