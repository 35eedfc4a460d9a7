"""AircombatEnv: duels with both sides controlled by the caller. `OpponentWrapper` lets an opponent fly one side.

Rows 2 i and 2 i + 1 are the two sides of duel i. Each side observes the fight from its own fighter, so one network can fly
either side. An episode ends for both sides at once (`group` is 2).
"""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Mapping
from typing import Any

import torch
import warp as wp

from fledge.core.errors import InputError
from fledge.core.random import split_seed
from fledge.core.settings import check_settings
from fledge.core.specs import ActionSpec, TensorSpec
from fledge.envs.base import Action, TensorEnv, make_action_buffer, write_action
from fledge.envs.launch import Call
from fledge.envs.opponent_wrapper import OpponentWrapper
from fledge.envs.reward_wrapper import call_reward, check_reward
from fledge.envs.warp_env import Programs, Tensors, WarpEnv
from fledge.tasks.aircombat.config import MAX_DECISION_S, ActionForm, AircombatConfig
from fledge.tasks.aircombat.observations import observation_spec
from fledge.tasks.aircombat.physics import episode, fight, observe
from fledge.tasks.aircombat.physics.structs import (
    SCENARIOS,
    Controls,
    Duels,
    Obs,
    Outcome,
    Params,
    Result,
    Timing,
    physics_of,
)
from fledge.tasks.aircombat.rewards import create_reward, is_built_in
from fledge.tasks.aircombat.spacetime.observe import observe_spacetime
from fledge.tasks.aircombat.spacetime.store import load_table

RUDDERS = (1.0, 0.0, -1.0)  # left, none, right, in the discrete form


class AircombatEnv(WarpEnv):
    """Many duels in parallel; the caller controls both sides.

    Args:
        cfg: Settings of the env; two of its `num_envs` rows make one duel.
        device, seed, num_threads: As in `WarpEnv`.
        env_offset, total_envs: As in `WarpEnv`; both count rows, not duels.
    """

    outcomes: Mapping[int, str] = {int(o): o.name.lower() for o in Outcome}
    config, unit, parts = AircombatConfig, "rows", ("duels",)
    group = 2
    observed_copies = 6  # also the observations before the step, and the rows that OpponentWrapper passes on
    cfg: AircombatConfig

    def __init__(
        self,
        cfg: AircombatConfig | None = None,
        device: str = "cpu",
        seed: int = 0,
        num_threads: int | None = None,
        env_offset: int = 0,
        total_envs: int | None = None,
    ) -> None:
        self.cfg = cfg = cfg or AircombatConfig()
        check_settings(cfg, "env.")
        if cfg.num_envs % 2:
            raise InputError(f"num_envs is {cfg.num_envs}, but must be even: two rows make a duel.")
        super().__init__(cfg, device, seed, num_threads, env_offset, total_envs)
        self.num_duels = self.num_envs // 2
        self.decision_s = cfg.decision_s
        self.physics = physics_of(cfg)
        self.params = self._make_params()
        self.table = load_table(cfg, str(self.device)) if cfg.spacetime else None
        self.state = self._make_state()
        self.duels = bind(Duels(), {k: v for k, v in self.state.items() if k != "episode_return"})
        self.reward = create_reward(cfg.reward, self.device)
        self._timing_tensors = {
            "dt": torch.zeros(1, device=self.device),
            "steps": torch.zeros(1, dtype=torch.int32, device=self.device),
        }
        self._timing = bind(Timing(), self._timing_tensors)
        self._duration = math.nan  # no decision yet
        self._controls = {
            "rudder": torch.zeros(self.num_envs, device=self.device),
            "throttle": torch.ones(self.num_envs, device=self.device),
            "fire": torch.zeros(self.num_envs, dtype=torch.int32, device=self.device),
        }
        self._action: Action = make_action_buffer(self.action_spec, (self.num_envs,), self.device)
        self._rudders = torch.tensor(RUDDERS, device=self.device)
        self._fired_before = self.state["fired"].clone()
        self.captures = is_built_in(self.reward)
        # observations before the step, for rewards that read them
        self._seen = dict(self.make_buffers()["obs"].items()) if self.reward.looks_back else {}

    @functools.cached_property
    def observation_spec(self) -> dict[str, TensorSpec]:  # read in every step
        return observation_spec(self.cfg)

    @property
    def action_spec(self) -> ActionSpec:
        if self.cfg.action_form is ActionForm.discrete:
            return TensorSpec((), torch.int64, 0, 5, num_values=6, mask="mask", doc="2 x (left, none, right) + fire")
        return {
            "rudder": TensorSpec((), torch.float32, -1.0, 1.0, doc="left is positive"),
            "throttle": TensorSpec((), torch.float32, 0.0, 1.0),
            "fire": TensorSpec((), torch.int64, 0, 1, num_values=2, mask="mask"),
        }

    # ---- a step ------------------------------------------------------------------------------------------------

    def set_duration(self, seconds: float) -> None:
        """Set how many simulated seconds each of the next decisions lasts; `step` passes its argument `dt`.

        A decision is divided into equal physics steps of at most `cfg.dt_s` seconds.
        """
        if seconds == self._duration:
            return
        if not (isinstance(seconds, numbers.Real) and math.isfinite(seconds) and 0.0 < seconds <= MAX_DECISION_S):
            raise InputError(f"dt is {seconds!r}, but must be more than 0 and at most {MAX_DECISION_S:g} s.")
        steps = max(1, math.ceil(seconds / self.cfg.dt_s - 1e-6))
        self._timing_tensors["dt"].fill_(seconds / steps)
        self._timing_tensors["steps"].fill_(steps)
        self._duration = seconds

    def take_action(self, action: Action) -> None:
        if self._graphs.enabled and self.captures:
            write_action(self._action, action)  # graphs read it there
        else:
            self._action = action

    def _set_controls(self) -> None:
        action: Any = self._action
        if isinstance(action, torch.Tensor):
            rudder = self._rudders[action.long() // 2]
            action = {"rudder": rudder, "throttle": torch.ones_like(rudder), "fire": action % 2}
        for name, place in self._controls.items():
            place.copy_(action[name])

    def before_advance(self) -> None:
        self._clock += 1

    def advance(self, programs: Programs) -> None:
        self._set_controls()
        self._fired_before.copy_(self.state["fired"])
        super().advance(programs)
        if self.captures:
            self._pay(programs)

    def after_advance(self, programs: Programs) -> None:
        if not self.captures:
            self._pay(programs)

    def _pay(self, programs: Programs) -> None:
        """Compute the rewards of the step, before the next fights start."""
        tensors = programs.tensors
        after = {name: tensors[("obs", name)] for name in self.observation_spec}
        done = programs.ended()
        info = {
            "outcome": tensors[("outcome",)],
            "terminated": tensors[("terminated",)],
            "shots": self.state["fired"] - self._fired_before,
        }
        name = self.reward.get_name()
        computed = call_reward(name, lambda: self.reward.compute(self._seen, after, self._action, done, info))
        reward = check_reward(name, computed, self.num_envs)
        tensors[("reward",)].copy_(reward)
        self.state["episode_return"] += reward
        tensors[("episode_return",)].copy_(self.state["episode_return"])
        tensors[("episode_length",)].copy_(self.state["decisions"].repeat_interleave(2))
        self.state["episode_return"].masked_fill_(done, 0.0)
        self.reward.reset(done)

    def restart_ended(self, programs: Programs) -> None:
        super().restart_ended(programs)
        self._keep_seen(programs)

    def _keep_seen(self, programs: Programs) -> None:
        for name, tensor in self._seen.items():
            tensor.copy_(programs.tensors[("obs", name)])

    def before_reset(self, env_mask: torch.Tensor) -> None:
        self.state["episode_return"].masked_fill_(env_mask, 0.0)
        self.reward.reset(env_mask)

    def reset(self, env_mask: torch.Tensor | None = None, out: Any = None) -> Any:
        result = super().reset(env_mask, out)
        for name, tensor in self._seen.items():
            tensor.copy_(result["obs"][name])
        return result

    def restart_call(self, mask: Any) -> Call:
        return Call(episode.restart_masked, [self.params, self.duels, mask])

    def make_programs(self, tensors: Tensors) -> Programs:
        obs, final = self._bind_obs(tensors, "obs"), self._bind_obs(tensors, "final_obs")
        result = bind(Result(), {name: tensors[(name,)] for name in ("terminated", "truncated", "outcome")})
        controls = bind(Controls(), self._controls)

        def observe_calls(only_ended: int) -> list[Call]:
            calls = [Call(observe.observe, [only_ended, self.params, self.duels, result, obs], 2)]
            if self.cfg.spacetime:
                shared = [self.physics, self.table, self.duels, result, obs]
                calls.append(Call(observe_spacetime, [only_ended, *shared]))
            return calls

        fly = Call(fight.fight, [self.params, self._timing, controls, self.duels, result])
        again = Call(episode.restart, [self.params, self.duels, result, obs, final])
        sequences = (
            [fly, *observe_calls(0)],
            [again, *observe_calls(1)],
            observe_calls(0),
        )  # advance, restart, observe
        return Programs(tensors, *(self.launcher.record(calls, self.num_duels) for calls in sequences))

    # ---- state -------------------------------------------------------------------------------------------------

    def counted(self) -> tuple[str, int]:
        # with an opponent, this env is inside an OpponentWrapper, whose rows are what env.num_envs counts
        return ("duels", 2) if self.cfg.opponent else (self.unit, 1)

    def state_bytes(self) -> int:
        return 128 + 32 * self.cfg.missile.carried

    def state_parts(self) -> dict[str, Any]:
        copies = {k: v.clone() for k, v in self.state.items()}
        return {"duels": copies | {f"reward.{k}": v.clone() for k, v in self.reward.state.items()}}

    def load_parts(self, state: Mapping[str, Any]) -> None:
        saved = state["duels"]
        self.check_shapes(saved)
        slots, fired = self.cfg.missile.carried, saved["fired"]
        if bool(((fired < 0) | (fired > slots)).any()):
            raise InputError(
                f"In the saved state, each side has fired {int(fired.min())} to {int(fired.max())} missiles, but in this env "
                f"a side carries {slots}: set env.missile.carried as in the saved run."
            )
        for name, tensor in self.state.items():
            tensor.copy_(saved[name])
        memory = {k.removeprefix("reward."): v for k, v in saved.items() if k.startswith("reward.")}
        if memory:
            self.reward.state = {name: value.to(self.device).clone() for name, value in memory.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if self._seen and self._has_reset:  # observations are a function of the state
            programs = self._programs(self._scratch())
            self.launcher.run(programs.observe)
            self._keep_seen(programs)

    # ---- construction ------------------------------------------------------------------------------------------

    def _make_params(self) -> Params:
        cfg, physics, p = self.cfg, self.physics, Params()
        p.seed = wp.vec2ui(*split_seed(self.seed))
        p.env_offset = self.env_offset // 2
        p.fighter, p.motor = physics.fighter, physics.motor
        p.rudder_rate, p.top_speed = physics.rudder_rate, physics.top_speed
        p.slots, p.interval, p.max_time = cfg.missile.carried, cfg.missile.interval_s, cfg.max_episode_s
        p.scenario, p.start_speed, p.start_range = SCENARIOS[cfg.scenario], cfg.start_speed, cfg.start_range_m
        p.min_range, p.max_range = cfg.min_range_m, cfg.max_range_m
        return p

    def _make_state(self) -> dict[str, torch.Tensor]:
        n, rows, slots = self.num_duels, self.num_envs, self.cfg.missile.carried
        shapes: dict[str, tuple[int, ...]] = {"pos": (rows, 2), "dir": (rows, 2), "time": (n,)}
        shapes |= dict.fromkeys(("speed", "rudder", "wait", "episode_return"), (rows,))
        shapes |= {"m_pos": (rows, slots, 2), "m_dir": (rows, slots, 2)}
        shapes |= dict.fromkeys(("m_speed", "m_burn", "m_least"), (rows, slots))
        state = {k: torch.zeros(s, device=self.device) for k, s in shapes.items()}
        counts: dict[str, tuple[int, ...]] = {"alive": (rows,), "fired": (rows,), "m_flying": (rows, slots)}
        counts |= dict.fromkeys(("decisions", "episode", "kind", "over"), (n,))
        state |= {k: torch.zeros(s, dtype=torch.int32, device=self.device) for k, s in counts.items()}
        state["episode"].fill_(-1)
        return state

    def _bind_obs(self, tensors: Tensors, root: str) -> Obs:
        obs: Obs = bind(Obs(), {name: tensors[(root, name)] for name in observation_spec(self.cfg)})
        if not self.cfg.spacetime:
            obs.spacetime = wp.zeros((self.num_envs, 0), dtype=wp.float32, device=str(self.device))
        return obs


def bind(struct: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Set each array of a Warp struct to the tensor of the same name, and return the struct."""
    for name, tensor in tensors.items():
        vectors = name in ("pos", "dir", "m_pos", "m_dir")
        setattr(struct, name, wp.from_torch(tensor, dtype=wp.vec2 if vectors else None))
    return struct


def duel_of(env: TensorEnv) -> AircombatEnv:
    """Return the AircombatEnv that `env` is or wraps; it has the rows of both sides of each duel."""
    world = env.unwrapped
    duel = world.both if isinstance(world, OpponentWrapper) else world
    assert isinstance(duel, AircombatEnv)
    return duel
