"""The module `gym_wrapper` of midrangeRL: TensorEnv with NumPy arrays. The caller controls both sides and sees P1's view.

One object holds many duels: all arrays are [num_envs], and rewards are a dict with "p1" and "p2". To control one side
against an opponent, use `gymnasium.make("fledge/Aircombat-v0", opponent=...)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from fledge.compat.tensor_env import FRAME_S, TensorEnv
from fledge.tasks.aircombat.config import AircombatConfig

LIMITS = dict.fromkeys(("x", "y"), (-np.inf, np.inf))  # limits of observations; fighters may leave the field
LIMITS |= {"angle": (0.0, 1.0), "speed": (0.0, np.inf), "missiles": (0.0, 1.0), "alive": (0.0, 1.0)}
LIMITS |= {"enemy_distance": (0.0, np.inf), "enemy_relative_angle": (-1.0, 1.0)}
LIMITS |= {"enemy_speed": (0.0, np.inf), "enemy_alive": (0.0, 1.0)}
Arrays = dict[str, np.ndarray[Any, Any]]


class GymWrapper(gymnasium.Env):
    """Duels in which the caller controls both sides; a fight that ended does not change until `reset`.

    Args:
        env: A TensorEnv, which `close()` closes too; or a config, from which the wrapper makes a TensorEnv.
        num_envs, device, options: Further arguments of a TensorEnv that the wrapper makes.
        config: The same as a config passed as `env`; ignored if `env` is given.
        time_scale: A step lasts time_scale / 60 s.
    """

    metadata = {"render_modes": [], "render_fps": 60}

    def __init__(
        self,
        env: TensorEnv | Mapping[str, Any] | AircombatConfig | None = None,
        num_envs: int = 1,
        device: str = "auto",
        time_scale: float = 1.0,
        config: Mapping[str, Any] | AircombatConfig | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(env, TensorEnv):
            env = TensorEnv(config if env is None else env, num_envs, device=device, **options)
        self.env = env
        self.config, self.time_scale = self.env.config, time_scale
        self.num_envs = num_envs = self.env.num_envs
        self.device = self.env.device
        self.observation_space = spaces.Dict(
            {name: spaces.Box(*limits, (num_envs,), np.float32) for name, limits in LIMITS.items()}
        )
        actions: dict[str, spaces.Space[Any]] = {}
        for side in ("p1", "p2"):
            actions[f"{side}_rudder"] = spaces.Box(-1.0, 1.0, (num_envs,), np.float32)
            actions[f"{side}_throttle"] = spaces.Box(0.0, 1.0, (num_envs,), np.float32)
            actions[f"{side}_fire"] = spaces.MultiBinary(num_envs)
        self.action_space = spaces.Dict(actions)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Arrays, dict[str, Any]]:
        """Start new fights; return P1's observations, and a dict with p1_alive and p2_alive.

        Args:
            seed: Restart with this seed, like a new env.
            options: {"env_mask": [num_envs] bool} starts new fights only where the mask is true.
        """
        super().reset(seed=seed)
        if seed is not None and seed != self.env.seed:
            self.env.close()
            old = self.env
            self.env = TensorEnv(
                self.config, self.num_envs, old.max_entities, old.device, seed, old.num_threads, old.opponent
            )
        mask = (options or {}).get("env_mask")
        obs = self.env.reset(None if mask is None else self.env.done.new_tensor(mask))
        alive = self.env.states["alive"].cpu().numpy()
        return self._numpy(obs["p1"]), {"p1_alive": alive[:, 0], "p2_alive": alive[:, 1]}

    def step(self, action: Mapping[str, Any]) -> tuple[Arrays, Any, Any, Any, dict[str, Any]]:
        """Advance all duels by one step; return P1's observations, rewards of both sides, dones, truncated and info."""
        tensors = {name: np.asarray(value) for name, value in action.items()}
        obs, rewards, dones, infos = self.env.step(tensors, self.time_scale * FRAME_S)
        known = {name: infos[name].cpu().numpy() for name in ("winner", "p1_alive", "p2_alive")}
        paid = {name: value.cpu().numpy() for name, value in rewards.items()}
        return self._numpy(obs["p1"]), paid, dones.cpu().numpy(), infos["truncated"].cpu().numpy(), known

    def close(self) -> None:
        """Stop the env's threads."""
        self.env.close()

    def _numpy(self, obs: Mapping[str, Any]) -> Arrays:
        return {name: obs[name].cpu().numpy() for name in LIMITS}


MidrangeRLEnv = GymWrapper  # the class's name in midrangeRL's code
