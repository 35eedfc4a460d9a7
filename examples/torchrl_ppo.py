"""TorchRL's collector, advantages and PPO loss on the navigation env.

    pip install torchrl
    python examples/torchrl_ppo.py

Prints how flights through a light forest end during training: finally more than half reach their goal, after three minutes
on two busy cores.
"""

from __future__ import annotations

import argparse
import time
from collections import deque

import torch
from tensordict.nn import InteractionType, NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import CatTensors, Compose, FlattenObservation, TransformedEnv
from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from fledge.core.overrides import from_plain
from fledge.envs.adapters.torchrl import TorchRLEnv
from fledge.envs.placement import EnvPlacement
from fledge.tasks.registry import find_task

LIGHT_FOREST = {"static_obstacles": 60, "moving_obstacles": 0, "num_maps": 16, "decimation": 5, "starts": "mixed"}
LIGHT_FOREST |= {"reward": {"time": 0.5}}
KEYS = ["lidar", "direction", "dynamic_obstacle"]  # [N, 1, ...]; state is flat already


def network(inputs: int, outputs: int) -> nn.Sequential:
    """Return a network whose layer norm replaces running statistics of the observations."""
    return nn.Sequential(
        nn.Linear(inputs, 128), nn.LayerNorm(128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, outputs)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--rollout", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    task = find_task("navigation")
    cfg = from_plain(task.config, {**LIGHT_FOREST, "num_envs": args.num_envs})
    flatten = FlattenObservation(-3, -1, in_keys=["lidar", "dynamic_obstacle"])
    flatten_direction = FlattenObservation(-2, -1, in_keys=["direction"])
    join = CatTensors([*KEYS, "state"], "observation", del_keys=True)
    tensor_env = task.make_env(cfg, EnvPlacement(seed=args.seed))
    env = TransformedEnv(TorchRLEnv(tensor_env), Compose(flatten, flatten_direction, join))

    inputs, actions = env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]
    params = nn.Sequential(network(inputs, 2 * actions), NormalParamExtractor(scale_mapping="biased_softplus_0.5"))
    actor = ProbabilisticActor(
        TensorDictModule(params, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=env.action_spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": 0.0, "high": 1.0},
        return_log_prob=True,
        default_interaction_type=InteractionType.RANDOM,
    )
    critic = ValueOperator(network(inputs, 1), in_keys=["observation"])
    gae = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
    ppo = ClipPPOLoss(actor, critic, clip_epsilon=0.2, entropy_coeff=0.001, critic_coeff=0.5)
    optimizer = torch.optim.Adam(ppo.parameters(), lr=5e-4)
    batch_size = args.num_envs * args.rollout
    collector = Collector(
        env, actor, frames_per_batch=batch_size, total_frames=args.frames, auto_register_policy_transforms=False
    )

    ends: deque[int] = deque(maxlen=500)
    begun, frames = time.time(), 0
    for rollout in collector:  # [N, T]
        with torch.no_grad():
            gae(rollout)
        flat = rollout.reshape(-1)
        for index in (i for _ in range(4) for i in torch.randperm(batch_size).split(2048)):
            losses = ppo(flat[index])
            loss = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(ppo.parameters(), 1.0)
            optimizer.step()
        frames += batch_size
        last = rollout["next"]
        ends.extend(last["outcome"][last["done"]].tolist())
        shares = {name: round(ends.count(k) / max(len(ends), 1), 2) for k, name in tensor_env.outcomes.items() if k}
        print(f"{frames:9,d} decisions, {frames / (time.time() - begun):,.0f}/s  {shares}", flush=True)
    collector.shutdown()


if __name__ == "__main__":
    main()
