"""NavRL's PPO: one object that acts in collectors and learns from their rollouts.

    policy = PPO(cfg.algo, env.observation_spec, env.action_spec, cfg.device)
    collector = SyncDataCollector(env, policy, frames_per_batch=32768)
    for data in collector:
        losses = policy.train(data)

`fledge.PPO` is the learner alone, for a network of your choice; `fledge.train` runs the whole loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from fledge.agents.actor_critic import ActorCritic, MLPActorCritic
from fledge.agents.base import Action, BaseAgent, Obs
from fledge.collect.compressed import CompressedBatch
from fledge.collect.exploration import is_deterministic
from fledge.compat import compressed_learner
from fledge.compat.layout import find_observations, time_major
from fledge.core.errors import ConfigError, InputError
from fledge.core.specs import ActionSpec, TensorSpec
from fledge.learn import ppo as native
from fledge.learn.ppo import PPOConfig

NAVRL_SETTINGS = {
    "training_frame_num": "rollout_steps",
    "training_epoch_num": "epochs",
    "entropy_loss_coefficient": "entropy_coef",
    "actor.learning_rate": "lr",
    "actor.clip_ratio": "clip",
    "critic.clip_ratio": "value_clip",
}


def of_network(name: str) -> Any:
    """Return a property that reads the attribute `name` of `self.network`."""
    return property(lambda self: getattr(self.network, name))


class PPO(ActorCritic):
    """A policy and its PPO learner.

    `train(data)` learns from a rollout and returns the losses; `train()`, `train(True)` and `train(False)` set the
    mode of the module, as in any `nn.Module`.

    Args:
        cfg: `PPOConfig`, or a mapping or object with its fields or NavRL's `algo` names (training_epoch_num, num_minibatches,
            actor.learning_rate, ...). Other entries are ignored; None means the defaults.
        observation_spec: Observation spec of the env. With NavRL's observations the network is NavRL's, otherwise two MLPs.
        action_spec: Action spec of the env.
        device: Device of the network.
        network: Network to use instead of the one that the specs imply.
    """

    learner_class: type[native.PPO] = native.PPO

    def __init__(
        self,
        cfg: Any = None,
        observation_spec: Mapping[str, TensorSpec] | None = None,
        action_spec: ActionSpec | None = None,
        device: str | torch.device = "cpu",
        network: ActorCritic | None = None,
    ) -> None:
        BaseAgent.__init__(self)
        if network is None:
            if observation_spec is None or action_spec is None:
                raise ConfigError(
                    "PPO needs observation_spec and action_spec: pass env.observation_spec, env.action_spec."
                )
            network = _make_network(observation_spec, action_spec)
        if network.hidden_size:
            raise ConfigError(
                "PPO got a recurrent network, but NavRL's loop passes no hidden states: use fledge.PPO or fledge.train, or a "
                "network without memory (policy.gru_size=0)."
            )
        self.network = network.to(device)
        self.cfg, self.num_minibatches = _read_config(cfg)
        self.learner = self.learner_class(self.network, self.cfg)

    # ---- learning ---------------------------------------------------------------------------------------------------

    def train(self, data: bool | TensorDictBase | CompressedBatch = True) -> Any:
        """Learn from a rollout and return the mean losses; if `data` is a bool, set the module's mode and return the module.

        A rollout is [N, T] with an axis named "time", or [T, N]. A minibatch of transitions [B] has no
        sequences, so its advantages are one-step.
        """
        if isinstance(data, bool):
            return super().train(data)
        if "learner" not in vars(self):  # of a copy
            self.learner = self.learner_class(self.network, self.cfg)
        rollout = self._rollout(data)
        size = rollout["log_prob"].numel()
        if self.num_minibatches:
            self.cfg.minibatch = max(1, size // self.num_minibatches)
        return self.learner.update(rollout)

    def _rollout(self, data: TensorDictBase | CompressedBatch) -> Any:
        """Return the entries that learning needs, decoded, as [T, N]."""
        if isinstance(data, CompressedBatch):
            data = data.decode()
        if not isinstance(data, TensorDictBase):
            raise InputError(f"data is a {type(data).__name__}, but must be a TensorDict from a collector, or a bool.")
        names = data.keys()
        needed = [name for name in native.NEEDED if name not in names]
        if needed or not {"raw_action", "raw"} & set(names):
            raise InputError(f"The rollout lacks {needed or ['raw_action']}: train on batches of SyncDataCollector.")
        if len(data.batch_size) not in (1, 2):
            raise InputError(f"The rollout has batch size {[*data.batch_size]}, but must have [N, T], [T, N] or [B].")
        entries = data.select(*native.NEEDED, "raw_action", "raw", strict=False)
        if len(data.batch_size) == 1:
            return entries.unsqueeze(0)
        return time_major(entries)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load a state dict of this class, or that of NavRL's own PPO (its released checkpoint), into the network."""
        if any(name.startswith("feature_extractor.") for name in state_dict):
            from fledge.tasks.navigation.networks.navrl import NavRLActorCritic, navrl_policy

            if not isinstance(self.network, NavRLActorCritic):
                raise InputError(
                    "The state dict is from NavRL's network, but this policy has another network: "
                    "pass the observation_spec and action_spec of NavigationEnv(NavigationConfig()) to PPO."
                )
            theirs = NavRLActorCritic.from_navrl(navrl_policy(state_dict, "The state dict"))
            return self.network.load_state_dict(theirs.state_dict(), assign=assign)
        return super().load_state_dict(state_dict, strict, assign)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies, without the learner: a collector's frozen copy only acts."""
        return {name: value for name, value in super().__getstate__().items() if name != "learner"}

    # ---- acting -----------------------------------------------------------------------------------------------------

    def forward(self, x: Any) -> Any:
        """Apply the network: to encoded observations [B, F], or to the observations in a dict or TensorDict.

        For a tensor, return the parameters of the action distribution and the values. For a dict, which must have
        observations where `find_observations` looks, add "action" (and ("agents", "action") if the dict has "agents"),
        "sample_log_prob" and "state_value", and return the dict.
        """
        return self.network(x) if isinstance(x, Tensor) else self._fill_actions(x, find_observations(x))

    @torch.no_grad()
    def _fill_actions(self, data: Any, observations: Any) -> Any:
        batch = data.batch_size if isinstance(data, TensorDictBase) else _batch_of(observations, self.network)
        flat = {k: v.reshape(-1, *v.shape[len(batch) :]).to(self.device) for k, v in _tensors(observations)}
        params, value = self.network(self.network.encode(flat))
        raw_action = self.head.mean(params) if is_deterministic(False) else self.head.sample(params)
        action = self.head.to_env(raw_action)
        if isinstance(action, Tensor):
            action = action.reshape(*batch, *action.shape[1:])
        else:
            action = {name: part.reshape(*batch, *part.shape[1:]) for name, part in action.items()}
        data["action"] = action
        if "agents" in data.keys():  # noqa: SIM118 - a TensorDict is no dict
            data["agents"]["action"] = action
        data["sample_log_prob"] = self.head.log_prob(params, raw_action).reshape(batch)
        data["state_value"] = self.value_norm.denormalize(value).reshape(*batch, 1)
        return data

    def act(self, obs: Obs, deterministic: bool = True) -> Action:
        return self.network.act(obs, deterministic)

    def encode(self, obs: Obs) -> Tensor:
        return self.network.encode(obs)

    def learn_inputs(self, x: Tensor, average: Callable[[Tensor], Tensor]) -> None:
        self.network.learn_inputs(x, average)

    def respond(self, obs: Obs) -> tuple[Tensor, ...]:
        return self.network.respond(obs)

    def exported(self) -> nn.Module:
        return self.network.exported()

    def example_inputs(self, batch: int, seed: int = 0) -> dict[str, Tensor]:
        return self.network.example_inputs(batch, seed)

    head, critic, value_norm = of_network("head"), of_network("critic"), of_network("value_norm")
    inputs, observes, outputs = of_network("inputs"), of_network("observes"), of_network("outputs")


class PPOWithCompression(PPO):
    """PPO that acts on observations of `CompressedLidarTransform`, and learns from batches of `CompressedDataCollector`.

    A batch [T, N] is decoded one minibatch at a time; a batch [N, T] is decoded as a whole.
    """

    learner_class = compressed_learner.PPOWithCompression

    def forward(self, x: Any) -> Any:
        if isinstance(x, Tensor):
            return self.network(x)
        from fledge.compat.compressed_collector import decompress_observations

        return self._fill_actions(x, decompress_observations(find_observations(x)))

    def _rollout(self, data: TensorDictBase | CompressedBatch) -> Any:
        return data if isinstance(data, CompressedBatch) and data.time_dim == 0 else super()._rollout(data)


def _make_network(observation: Mapping[str, TensorSpec], action: ActionSpec) -> ActorCritic:
    """Return NavRL's network if the specs are NavRL's, otherwise an MLP network that fits the specs."""
    from fledge.tasks.navigation.networks.navrl import READ, VELOCITY, WIDTHS, NavRLActorCritic

    sizes = [
        math.prod(observation[name].shape) for name in ("lidar", "dynamic_obstacle", "state") if name in observation
    ]
    fits = isinstance(action, TensorSpec) and (action.shape, action.low, action.high) == (VELOCITY.shape, 0.0, 1.0)
    if fits and sizes == WIDTHS and set(READ) <= set(observation):
        return NavRLActorCritic()
    return MLPActorCritic(observation, action)


def _read_config(cfg: Any) -> tuple[PPOConfig, int]:
    """Return the learner's config, and the number of minibatches per epoch if the given config has it, else 0."""
    if cfg is None or isinstance(cfg, PPOConfig):
        return cfg or PPOConfig(), 0
    found = PPOConfig()
    for theirs, ours in {**NAVRL_SETTINGS, **{field.name: field.name for field in fields(PPOConfig)}}.items():
        if (value := _entry(cfg, theirs)) is not None:
            setattr(found, ours, value)
    return found, int(_entry(cfg, "num_minibatches") or 0)


def _entry(cfg: Any, path: str) -> Any:
    """Return the entry `a.b` of nested mappings or objects, or None if there is none."""
    for name in path.split("."):
        cfg = cfg.get(name) if hasattr(cfg, "get") else getattr(cfg, name, None)
    return cfg


def _tensors(observations: Any) -> list[tuple[str, Tensor]]:
    return [(key, value) for key, value in observations.items() if isinstance(value, Tensor)]


def _batch_of(observations: Any, network: ActorCritic) -> tuple[int, ...]:
    """Return the batch size (B,) of a plain dict of observations."""
    first = next((value for _, value in _tensors(observations)), None)
    if first is None:
        raise InputError(f"The dict has no observations, but must have {list(network.observes)}.")
    return tuple(first.shape[:1])
