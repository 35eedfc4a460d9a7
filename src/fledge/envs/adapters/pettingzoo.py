"""A TensorEnv whose rows share one episode as a PettingZoo parallel env: one agent per row, with NumPy arrays.

The caller must reset the env: the step that ends the episode returns every agent's last observation, and clears `agents`.
`infos[agent]` has "action_mask" for `action_space(agent).sample(mask=...)` if actions have a mask, and at the end `outcome`
(how the episode ended, such as "win" or "timeout"), `outcome_code`, `episode_return` and `episode_length`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gymnasium import spaces

from fledge.core.errors import InputError
from fledge.core.extras import extra
from fledge.envs.adapters.gymnasium import (
    Array,
    SeededAdapter,
    action_space_of,
    copies,
    episode_figures,
    masks_in,
    read_actions,
    space_of,
)
from fledge.envs.base import TensorEnv

with extra("pettingzoo"):
    from pettingzoo import ParallelEnv

Obs = dict[str, Array]


class PettingZooEnv(SeededAdapter, ParallelEnv):
    """PettingZoo parallel env over a TensorEnv of one episode with several agents.

    Args:
        env: An env whose rows all share one episode (`num_envs` equals `group`), such as one duel; closed by `close()`.
        make_env: Makes the same env for another seed.
        agents: Names of the agents, in the order of the rows; p1, p2, and so on by default.
    """

    def __init__(
        self, env: TensorEnv, make_env: Callable[[int], TensorEnv] | None = None, agents: tuple[str, ...] | None = None
    ) -> None:
        if env.group < 2 or env.num_envs != env.group:
            raise InputError(
                f"The env has {env.num_envs} rows and {env.group} per episode, but a parallel env needs one episode of at "
                "least two rows: for a duel, set num_envs=2 and no opponent; for drones in one world, num_envs=drones."
            )
        names = list(agents or (f"p{number}" for number in range(1, env.group + 1)))
        if len(set(names)) != env.group:
            raise InputError(f"agents is {names}, but must be {env.group} different names, one for each row.")
        self._hold(env, make_env)
        self.metadata = {"name": type(env).__name__, "render_modes": [], "is_parallelizable": True}
        self.render_mode = None
        self.possible_agents: list[str] = names
        self.agents: list[str] = []
        seen, taken = env.observation_spec, env.action_spec
        self.observation_spaces = {a: spaces.Dict({k: space_of(s) for k, s in seen.items()}) for a in names}
        self.action_spaces = {a: action_space_of(taken) for a in names}
        self._rows = spaces.Dict(self.action_spaces)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Obs], dict[str, dict[str, Any]]]:
        """Begin an episode and return observations and infos; with a seed, begin as a new env of this seed would.

        `options` is ignored.
        """
        self._begin_episode(seed)
        self.agents = list(self.possible_agents)
        obs = self._observations("obs")
        return obs, {agent: masks_in(seen, self.env.action_spec) for agent, seen in obs.items()}

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Advance by one decision; return observations, rewards, terminations, truncations, infos, each by agent."""
        if not self.agents:
            if actions:
                raise InputError("The episode is over: call reset() before the next step().")
            return {}, {}, {}, {}, {}
        if not isinstance(actions, Mapping) or set(actions) != set(self.agents):
            came = ", ".join(map(str, actions)) if isinstance(actions, Mapping) else type(actions).__name__
            raise InputError(
                f"step got actions for {came or 'no agent'}: pass a dict with an action for each of {', '.join(self.agents)}."
            )
        out = self.env.step(read_actions(self._stacked(actions), self.env, self._rows), out=self._buffers)
        self._waiting = bool((out["terminated"] | out["truncated"]).any())
        obs = self._observations("final_obs" if self._waiting else "obs")
        infos = {agent: masks_in(seen, self.env.action_spec) for agent, seen in obs.items()}
        if self._waiting:
            for row, agent in enumerate(self.possible_agents):
                infos[agent] |= episode_figures(self.env, out, row)
            self.agents = []
        results = [out[name].tolist() for name in ("reward", "terminated", "truncated")]
        return obs, *(dict(zip(self.possible_agents, values, strict=True)) for values in results), infos

    def _stacked(self, actions: Mapping[str, Any]) -> Any:
        """Return one batch of the agents' actions, in the order of the env's rows: a list, or a dict of lists."""
        rows = [actions[agent] for agent in self.possible_agents]
        if not isinstance(rows[0], Mapping):
            return rows
        if any(not isinstance(row, Mapping) or row.keys() != rows[0].keys() for row in rows):
            space = self._rows[self.possible_agents[0]]
            raise InputError(
                "The actions of all agents must be dicts with the same keys: "
                f"pass for each agent a value of the space {space}."
            )
        return {name: [row[name] for row in rows] for name in rows[0]}

    def _observations(self, name: str) -> dict[str, Obs]:
        whole = copies(self._buffers[name])
        return {agent: {k: v[row] for k, v in whole.items()} for row, agent in enumerate(self.possible_agents)}
