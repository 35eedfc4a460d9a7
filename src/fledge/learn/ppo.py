"""Proximal policy optimisation (Schulman et al. 2017) on time-major rollouts, data-parallel over ranks.

The collector owns the rollouts; PPO only reads these entries:

    input [T, N, F]   raw_action [T, N, A]   log_prob, value, next_value, reward, terminated, truncated [T, N]
    hidden [T, N, H]  of a recurrent policy, whose minibatches are sequences (`learn.sequences`), not single decisions

`value` and `next_value` are in reward units. Every rank learns from its own rollout; gradients, advantage statistics
and value statistics are averaged over ranks, so all ranks hold the same weights at all times.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from fledge.agents.actor_critic import ActorCritic
from fledge.agents.distributions import Params
from fledge.core.errors import ConfigError, NumericsError
from fledge.core.settings import check_settings
from fledge.learn.base import Learner, finite_report
from fledge.learn.flat import FlatParameters, average_over_ranks, copy_optimizer
from fledge.learn.gradient_steps import GradientSteps
from fledge.learn.noise_scale import NoiseScale
from fledge.learn.objective import objective
from fledge.learn.ppo_config import PPOConfig, Precision
from fledge.learn.returns import gae
from fledge.learn.sequences import cut, cut_states, find_begins, sequence_length, take

NEEDED = ("input", "log_prob", "value", "next_value", "reward", "terminated", "truncated")
SPLIT_EVERY = 8  # minibatches of the first epoch, for the noise scale on one rank
MAX_WEIGHT = 2.0  # largest weight of a sample whose action has become more likely since it was collected
MOST_UNLIKELY = 20.0  # nats by which an action may be less likely than when it was taken


def find_raw_action(rollout: Any) -> Any:
    """Return the rollout's `raw_action`; archives of earlier versions call it `raw`."""
    return rollout["raw_action" if "raw_action" in rollout.keys() else "raw"]  # noqa: SIM118 - a TensorDict is no dict


class PPO(Learner):
    """PPO learner, which trains an `ActorCritic`.

    Args:
        stale_policy: Whether rollouts come from older weights (collect.mode=pipelined). If so, values are computed again,
            samples and advantages (`gae`) are weighted by the probability ratio of the present to the older policy, and
            updates stay close to the present policy (decoupled PPO, Hilton et al. 2022).
    """

    config = PPOConfig
    corrects_stale = True
    supports_recurrent = True

    def __init__(self, policy: ActorCritic, cfg: PPOConfig, ranks: int = 1, stale_policy: bool = False) -> None:
        check_settings(cfg, "ppo.")
        self.policy, self.cfg, self.ranks, self.stale_policy = policy, cfg, ranks, stale_policy
        sequence_length(cfg.rollout_steps, cfg.sequence_length)  # raises if it does not divide the rollout
        if cfg.sequence_length and not policy.hidden_size:
            raise ConfigError(
                f"ppo.sequence_length={cfg.sequence_length} works only with a recurrent policy: set policy.gru_size, or "
                "leave ppo.sequence_length out."
            )
        self.flat = FlatParameters(policy)
        self.clipped = [self.flat.part(m) for m in (policy.head, policy.critic)] if cfg.clip_heads else None
        device = self.flat.values.device
        self.bf16 = cfg.precision is Precision.bf16 or (cfg.precision is Precision.auto and device.type == "cuda")
        own = all(getattr(type(self), name) is getattr(PPO, name) for name in ("losses", "_evaluate"))
        self.steps = GradientSteps(device, self._find_gradient, self._apply_gradient, own and policy.captures)
        self.rate = cfg.lr
        self.lr: float | Tensor = self.steps.variable(cfg.lr)
        self.entropy_coef: float | Tensor = self.steps.variable(cfg.entropy_coef)
        self.optimizer = torch.optim.Adam(
            [self.flat.values], lr=self.lr, eps=cfg.adam_eps, fused=True, capturable=device.type == "cuda"
        )
        self.optimizer._warned_capturable_if_run_uncaptured = True  # the first step of a size always is
        self.optimizers = {"policy": self.optimizer}
        self._sums, self._metrics = torch.zeros(8, device=device), torch.ones(8, device=device)
        self.noise_scale, self.splits = NoiseScale(device), False
        """`splits`: measure the noise scale on one rank too, where it costs half a minibatch's gradient now and then."""
        self.schedule(0.0)  # the first rollout needs the exploration spread of the first update

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self._plain(self.optimizer.state_dict()), "noise_scale": self.noise_scale.parts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps.forget()  # the optimiser has new tensors
        group = self.optimizer.param_groups[0]
        self.rate = float(group["lr"])
        self.lr = self.steps.variable(self.rate)
        group.update(lr=self.lr, capturable=self.flat.values.device.type == "cuda")
        if "noise_scale" in state:
            self.noise_scale.parts = state["noise_scale"].to(self.flat.values.device, copy=True)

    def _plain(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return an optimizer's state with the learning rate as a number, also on a GPU, where it is a tensor."""
        return {**state, "param_groups": [{**group, "lr": self.rate} for group in state["param_groups"]]}

    def snapshot(self) -> dict[str, Any]:
        model = {k: v.clone() for k, v in self.policy.state_dict().items()}
        return {**super().snapshot(), "model": model, "optimizer": self._plain(copy_optimizer(self.optimizer))}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.policy.load_state_dict(state["model"])
        super().restore(state)

    def repeat(self, cause: Mapping[str, Any]) -> dict[str, float]:
        self.restore(cause["learner"])
        rollout = TensorDict(cause["rollout"], cause["rollout"]["reward"].shape).to(self.placement())
        return self.update(rollout, float(cause["progress"]))

    def schedule(self, progress: float) -> None:
        """Set learning rate, entropy bonus and limit of the standard deviation for `progress`, the share of training done."""
        cfg = self.cfg
        self.rate = cfg.lr * (1 + (cfg.lr_final_share - 1) * progress)
        self.lr = self.steps.variable(self.rate, self.lr)
        self.optimizer.param_groups[0]["lr"] = self.lr
        entropy_coef = cfg.entropy_coef * (1 + (cfg.entropy_final_share - 1) * progress)
        self.entropy_coef = self.steps.variable(entropy_coef, self.entropy_coef)
        self.policy.head.limit_spread(cfg.log_std_max + (cfg.log_std_max_final - cfg.log_std_max) * progress)

    def update(self, rollout: TensorDictBase, progress: float = 0.0) -> dict[str, float]:
        """Learn from one rollout; return mean losses and diagnostics."""
        cfg = self.cfg
        before = self.snapshot()
        log_prob, value, next_value = (rollout[name] for name in ("log_prob", "value", "next_value"))
        hidden = rollout["hidden"] if self.policy.hidden_size else None
        weight = None
        if self.stale_policy:
            log_prob, value, next_value, hidden = self._evaluate_again(rollout)
            # of an action that the policy no longer takes: its ratio would overflow once the policy moves
            log_prob = torch.maximum(log_prob, rollout["log_prob"] - MOST_UNLIKELY)
            weight = (log_prob - rollout["log_prob"]).exp()
        self.schedule(progress)  # only now: the log-probabilities above need the spread before this update
        reward, terminated, truncated = (rollout[name] for name in ("reward", "terminated", "truncated"))
        share = None if weight is None else weight.clamp(max=1.0)
        advantage, target = gae(reward, value, next_value, terminated, truncated, cfg.gamma, cfg.gae_lambda, share)
        moments = [target.mean(), target.square().mean(), advantage.mean(), advantage.square().mean()]
        mean, square, adv_mean, adv_square = average_over_ranks(torch.stack(moments), self.ranks)
        norm = self.policy.value_norm
        # values are clipped around the network's output before its first step, which PopArt moves with the norm
        if cfg.popart:
            norm.update_preserving(mean, square, self.policy.critic)
            value = norm.normalize(value)
        else:
            value = norm.normalize(value)
            norm.update(mean, square)
        if cfg.normalize_advantage:
            advantage = (advantage - adv_mean) / ((adv_square - adv_mean**2).clamp(min=0).sqrt() + 1e-8)
        if weight is not None:
            advantage = advantage * weight.clamp(max=MAX_WEIGHT)
        inputs = rollout["input"]
        batch = {
            "input": inputs,
            "raw_action": find_raw_action(rollout),
            "log_prob": log_prob,
            "advantage": advantage,
            "target": norm.normalize(target),
            "value": value,
        }
        minibatch = int(cfg.minibatch * (1 + (cfg.minibatch_final_scale - 1) * progress))
        self._sums.zero_()
        if hidden is None:
            samples = {name: entry.flatten(0, 1) for name, entry in batch.items()}
            size, part = log_prob.numel(), minibatch // self.ranks
            self._learn(
                lambda index: {name: entry.index_select(0, index) for name, entry in samples.items()}, size, part
            )
        else:
            length = sequence_length(len(reward), cfg.sequence_length)
            batch["begins"] = find_begins(terminated, truncated)
            sequences, states = {name: cut(entry, length) for name, entry in batch.items()}, cut_states(hidden, length)
            self._learn(partial(take, sequences, states), len(states), minibatch // self.ranks // length, length)
        self.policy.learn_inputs(inputs.flatten(0, 1), partial(average_over_ranks, ranks=self.ranks))
        try:
            return self._report()
        except NumericsError as error:  # attach what `repeat` needs
            needed = {"raw_action": find_raw_action(rollout), **{name: rollout[name] for name in NEEDED}}
            needed |= {"hidden": rollout["hidden"]} if self.policy.hidden_size else {}
            error.cause = {"learner": before, "rollout": needed, "progress": progress}
            raise

    def _learn(self, pick: Callable[[Tensor], dict[str, Tensor]], size: int, part: int, length: int = 1) -> None:
        """Make the gradient steps of all epochs on minibatches of `part` of the `size` samples, which `pick` returns.

        A sample is a sequence of `length` decisions.
        """
        part = max(1, min(part, size))
        splits = self.splits and self.ranks == 1 and part % 2 == 0
        for epoch in range(self.cfg.epochs):
            order = torch.randperm(size, device=self.flat.values.device)
            for first in range(0, size - part + 1, part):
                half = None
                if splits and epoch == 0 and first // part % SPLIT_EVERY == 0:
                    half = pick(order[first : first + part // 2])
                self._step(pick(order[first : first + part]), epoch == 0 and self.ranks > 1, half)
        groups, samples = (self.ranks, part) if self.ranks > 1 else (2, part // 2)
        self.noise_scale.finish(groups, samples * length, self.ranks)

    @torch.no_grad()
    def _evaluate_again(self, rollout: TensorDictBase) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return log-probabilities, values and next values [T, N], computed with the present weights.

        At the last step of an episode or of the rollout, the next value is the collected one. The fourth result is the
        hidden state with which each decision begins, [T, N, H]; None for a policy without memory.
        """
        log_probs, values, states = list[Tensor](), list[Tensor](), list[Tensor]()
        ended = rollout["terminated"] | rollout["truncated"]
        hidden = rollout["hidden"][0] if self.policy.hidden_size else None
        for t, (x, raw_action) in enumerate(zip(rollout["input"], find_raw_action(rollout), strict=True)):
            if hidden is not None:
                hidden = hidden.masked_fill(ended[t - 1][:, None], 0.0) if t else hidden
                states.append(hidden)
            params, value, hidden = self.policy.step(x, hidden)
            log_probs.append(self.policy.head.log_prob(params, raw_action))
            values.append(self.policy.value_norm.denormalize(value))
        value, next_value = torch.stack(values), rollout["next_value"].clone()
        next_value[:-1] = torch.where(~ended[:-1], value[1:], next_value[:-1])
        return torch.stack(log_probs), value, next_value, torch.stack(states) if states else None

    def _evaluate(self, batch: dict[str, Tensor]) -> tuple[Params, Tensor]:
        """Return action parameters and normalised values of a minibatch, [B, ...]."""
        if not self.policy.hidden_size:
            return self.policy(batch["input"])
        params, value, _ = self.policy.unroll(batch["input"], batch["hidden"], batch["begins"])
        return params, value

    def losses(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the loss of a minibatch, and its metrics: policy loss, value loss, entropy, KL divergence, clipped share."""
        with torch.autocast(self.flat.values.device.type, torch.bfloat16) if self.bf16 else contextlib.nullcontext():
            params, value = self._evaluate(batch)
        params, value = tuple(p.float() for p in params), value.float()
        log_prob, entropy = self.policy.head.evaluate(params, batch["raw_action"])
        return objective(log_prob, value, entropy, batch, self.cfg, self.entropy_coef)

    @property
    def last_loss(self) -> Tensor:
        """Loss of the last minibatch."""
        return self._metrics[6]

    def _step(self, batch: dict[str, Tensor], measures: bool = False, half: dict[str, Tensor] | None = None) -> None:
        """Make a gradient step; for the noise scale, compare it with this rank's gradient (`measures`) or that of `half`."""
        grads = self.flat.grads
        if half is not None:
            self.steps.find(half)
            first = grads.clone()
        self.steps.find(batch)
        if half is not None:
            other = torch.sub(2 * grads, first)  # of the other half
            self.noise_scale.add((first.dot(first) + other.dot(other)) / 2, grads.dot(grads))
        own = grads.dot(grads) if measures else None
        self.flat.average_grads(self.ranks)
        if own is not None:
            self.noise_scale.add(own, grads.dot(grads))
        self.steps.apply()

    def _find_gradient(self, batch: dict[str, Tensor]) -> None:
        self.flat.zero_grad()
        loss, parts = self.losses(batch)
        loss.backward()
        self._metrics[:5].copy_(parts)
        self._metrics[6].copy_(loss.detach())

    def _apply_gradient(self) -> None:
        self._metrics[5].copy_(self.flat.clip_grad_norm(self.cfg.max_grad_norm, self.clipped))
        self.optimizer.step()
        self._sums += self._metrics

    def _report(self) -> dict[str, float]:
        """Return the mean of each metric that `_step` summed; raise NumericsError if one is not finite.

        No other part of an update reads from the device, because reading waits for the device.
        """
        names = ("policy_loss", "value_loss", "entropy", "kl", "clip_share", "grad_norm", "total_loss")
        values = torch.cat([self._sums[:7] / self._sums[7], self.noise_scale.value()[None]])
        report = finite_report((*names, "ppo/noise_scale"), values)
        if not report["ppo/noise_scale"]:  # unknown
            del report["ppo/noise_scale"]
        return report | {"lr": self.rate}
