"""The module `tensor_env` of midrangeRL: TensorEnv over Fledge's duels.

    env = TensorEnv(config, num_envs=32, device="cpu")
    obs = env.reset()                                           {"p1": {...}, "p2": {...}}, all [num_envs]
    obs, rewards, dones, infos = env.step(actions, dt=time_scale / 60)
    obs = env.reset(env_mask=dones)                             only where the mask is true; the others continue

There is no auto-reset: a fight that has ended does not change, and stays `done`, until it is reset.

It is also a `fledge.TensorEnv`, so that collectors accept it. There the policy controls one side of each duel, `opponent`
controls the other, and ended fights restart. These fights are separate from those of `reset` and `step` above.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from fledge.compat.base_env import BaseEnv, Observations
from fledge.compat.devices import usable_device
from fledge.compat.midrange.config import read_config
from fledge.compat.midrange.states import FIRST_MISSILE, P1, P2, ManualResetDuels, side_observations, slots_of
from fledge.core.errors import ConfigError, InputError
from fledge.core.specs import ActionSpec, TensorSpec
from fledge.envs import base
from fledge.envs.placement import EnvPlacement
from fledge.tasks.aircombat.config import ActionForm, AircombatConfig
from fledge.tasks.aircombat.physics.structs import Outcome

__all__ = ["BaseEnv", "TensorEnv"]

FRAME_S = 1.0 / 60.0
DEFAULTS = {"rudder": 0.0, "throttle": 1.0, "fire": 0.0}  # values of missing parts of an action


class TensorEnv(BaseEnv, base.TensorEnv):
    """Duels in which the caller controls both sides; in a collector, the policy controls one side, `opponent` the other.

    Args:
        config: Dict of midrangeRL's or Fledge's settings by name, or an AircombatConfig.
        num_envs: Number of duels.
        max_entities_per_env: Number of slots in `states`; at least one for each fighter and each missile carried.
        device: "cpu", "cuda" (if there is none, the CPU with a printed warning), or "auto".
        seed: Seed of random starts.
        opponent: Scripted policy (by name) or policy file that controls the other side in a collector.
    """

    outcomes = ManualResetDuels.outcomes

    P1_IDX, P2_IDX, FIRST_MISSILE_IDX = P1, P2, FIRST_MISSILE

    def __init__(
        self,
        config: Mapping[str, Any] | AircombatConfig | None = None,
        num_envs: int = 1,
        max_entities_per_env: int = 20,
        device: str | torch.device = "auto",
        seed: int = 0,
        num_threads: int | None = None,
        opponent: str = "placeholder",
    ) -> None:
        self.config, self.num_threads, self.opponent = config, num_threads, opponent
        self._given = read_config(config, num_envs)
        cfg = self._given.cfg
        if cfg.action_form is ActionForm.discrete:
            raise ConfigError(
                "action_form must be continuous, because TensorEnv's actions are rudder, throttle and fire."
            )
        needed = FIRST_MISSILE + 2 * cfg.missile.carried
        if max_entities_per_env < needed:
            raise ConfigError(
                f"max_entities_per_env is {max_entities_per_env}, but two fighters with {cfg.missile.carried} missiles each "
                f"need {needed}: set it to {needed} or more."
            )
        base.TensorEnv.__init__(self, num_envs, str(usable_device(device)), seed)
        self.max_entities, self.decision_s = max_entities_per_env, cfg.decision_s
        self.duel = ManualResetDuels(cfg, str(self.device), seed, num_threads)
        self.device = self.duel.device
        self.reward_config = dict(self._given.rewards)
        self.done = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        self.winner = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self._buffers = self.duel.make_buffers()
        self.reset()

    @property
    def states(self) -> dict[str, Tensor]:
        """State of all entities by quantity, copied, [num_envs, slots] each (`midrange/states.py` lists slots and units)."""
        return slots_of(self.duel, self._given.origin_m, self.max_entities)

    def reset(self, env_mask: Tensor | None = None, out: TensorDict | None = None) -> Any:
        """Start new fights in all envs, or only where the mask [num_envs] is true; return the observations of all fights.

        With `out`, as collectors call it, reset the fights of `one_sided` instead.
        """
        if out is not None:
            return self.one_sided.reset(env_mask, out=out)
        if env_mask is None:
            env_mask = torch.ones_like(self.done)
        if not isinstance(env_mask, Tensor) or env_mask.dtype != torch.bool or env_mask.shape != self.done.shape:
            is_tensor = isinstance(env_mask, Tensor)
            given = f"{env_mask.dtype} {tuple(env_mask.shape)}" if is_tensor else type(env_mask).__name__
            raise InputError(f"env_mask is {given}, but must be a bool tensor of shape ({self.num_envs},).")
        env_mask = env_mask.to(self.device)
        self.duel.reset(env_mask.repeat_interleave(2), out=self._buffers)
        self.done = self.done & ~env_mask
        self.winner = self.winner.masked_fill(env_mask, 0)
        return self.get_observations()

    def step(  # type: ignore[override]
        self, actions: Mapping[str, Any], dt: float | None = None, out: TensorDict | None = None
    ) -> Any:
        """Advance all fights that are not done by `dt` seconds; return observations, rewards, dones, infos.

        Args:
            actions: p1_rudder, p1_throttle, p1_fire, and the same for p2: tensors [num_envs], or one number for all
                envs. Defaults: rudder 0, full throttle, no shot.
            dt: Duration of the step, s; 1/60 by default.
            out: Buffers of a collector; then step the fights of `one_sided` instead.

        Returns:
            Rewards of "p1" and "p2"; dones [num_envs], which stay true until a reset; infos with winner (0: draw or not
            decided, 1, 2), p1_alive, p2_alive, truncated, and outcome, terminated and shots, which Fledge's rewards read:
            P1's at the top level, and each side's under "p1" and "p2".
        """
        if out is not None:
            return self.one_sided.step(actions, dt, out=out)
        standing = self.done.repeat_interleave(2)
        tensors = [*self.duel.state.values(), *self._buffers["obs"].values()]
        before = [tensor.clone() for tensor in tensors] if self.done.any() else []
        self.duel.step(self._read(actions), FRAME_S if dt is None else dt, out=self._buffers)
        for tensor, old in zip(tensors, before, strict=False):  # fights that are done stay as they were
            rows = self.done if len(old) == self.num_envs else standing
            tensor[rows] = old[rows]
        outcome = self._buffers["outcome"].masked_fill(standing, int(Outcome.RUNNING))
        ended = outcome[0::2] != Outcome.RUNNING
        truncated = outcome[0::2] == Outcome.TIMEOUT
        won, lost = outcome[0::2] == Outcome.WIN, outcome[0::2] == Outcome.LOSS
        self.winner = torch.where(ended, won.long() + 2 * lost.long(), self.winner)
        self.done = self.done | ended
        rewards = self.compute_rewards(ended & ~truncated, self.winner)
        alive = (self.duel.state["alive"] > 0).view(-1, 2)
        infos: dict[str, Any] = {"winner": self.winner.clone(), "p1_alive": alive[:, 0].clone()}
        infos |= {"p2_alive": alive[:, 1].clone(), "truncated": truncated}
        for row, name in enumerate(("p1", "p2")):
            shots = self.duel.shots[row::2].clone()
            infos[name] = {"outcome": outcome[row::2], "terminated": ended & ~truncated, "shots": shots}
        return self.get_observations(), rewards, self.done.clone(), infos | infos["p1"]

    def compute_rewards(self, done_mask: Tensor, winner_mask: Tensor | None = None) -> dict[str, Tensor]:
        """Return the rewards of "p1" and "p2": for the result of fights in `done_mask`, and for being alive in the others.

        Args:
            winner_mask: 0 for a draw, 1 or 2 for the winner; by default the winners that the env determined.
        """
        winner = self.winner if winner_mask is None else winner_mask
        values, alive = self.reward_config, (self.duel.state["alive"] > 0).view(-1, 2)
        draw = (done_mask & (winner == 0)).float() * values["draw"]
        rewards = {}
        for row, name in enumerate(("p1", "p2")):
            won, lost = done_mask & (winner == row + 1), done_mask & (winner == 2 - row)
            survives = (alive[:, row] & ~self.done).float() * values["survive"]
            rewards[name] = won.float() * values["win"] + lost.float() * values["lose"] + draw + survives
        return rewards

    def get_observations(self) -> Observations:
        """Return the observations of "p1" and "p2": midrangeRL's, and Fledge's state, missile_tokens, spacetime and mask."""
        return side_observations(self.duel, self._buffers["obs"], self._given.origin_m, self._given.size_m)

    def close(self) -> None:
        """Stop the env's threads."""
        self.duel.close()
        if "one_sided" in self.__dict__:
            self.one_sided.close()

    # ---- as a fledge.TensorEnv, for collectors ---------------------------------------------------------------------

    @functools.cached_property
    def one_sided(self) -> base.TensorEnv:
        """Duels of a collector, with its policy on one side and `opponent` on the other; they restart when they end."""
        from fledge.tasks.aircombat.task import AircombatTask

        cfg = dataclasses.replace(
            self._given.cfg, num_envs=self.num_envs, opponent=self.opponent, reward=AircombatConfig.reward
        )
        return AircombatTask().make_env(cfg, EnvPlacement(str(self.device), self.seed, num_threads=self.num_threads))

    @property
    def observation_spec(self) -> dict[str, TensorSpec]:
        return self.duel.observation_spec

    @property
    def action_spec(self) -> ActionSpec:
        return self.duel.action_spec

    def make_buffers(self) -> TensorDict:
        return self.one_sided.make_buffers()

    def take_log(self) -> base.Log:
        return self.one_sided.take_log()

    def state_dict(self) -> dict[str, Any]:
        return self.one_sided.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.one_sided.load_state_dict(state)

    # ---- actions ---------------------------------------------------------------------------------------------------

    def _read(self, actions: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return rudder, throttle and fire of both sides, [2 num_envs] each; rows alternate between P1 and P2."""
        if not isinstance(actions, Mapping):
            raise InputError(
                f"actions is a {type(actions).__name__}, but must be a dict: p1_rudder, p1_throttle and so on."
            )
        names = [f"{side}_{part}" for side in ("p1", "p2") for part in DEFAULTS]
        if unknown := [str(name) for name in actions if name not in names]:
            raise InputError(f"actions has {', '.join(unknown)}, but only {', '.join(names)} are allowed.")
        rows = {
            part: torch.stack([self._one(actions.get(f"{side}_{part}"), part) for side in ("p1", "p2")], 1).flatten()
            for part in DEFAULTS
        }
        return rows | {"fire": (rows["fire"] > 0.5).long()}

    def _one(self, value: Any, part: str) -> Tensor:
        try:
            given = DEFAULTS[part] if value is None else value
            return torch.as_tensor(given, dtype=torch.float32, device=self.device).expand(self.num_envs)
        except (TypeError, ValueError, RuntimeError) as error:
            given = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise InputError(f"{part} is {given}, but must be a number or a tensor ({self.num_envs},).") from error
