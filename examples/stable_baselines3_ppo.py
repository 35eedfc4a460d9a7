"""PPO of Stable-Baselines3 on the navigation env, as a VecEnv.

    pip install stable-baselines3
    python examples/stable_baselines3_ppo.py

Prints how flights through a light forest end during training: finally about half reach their goal, after two minutes on
two busy cores. Observations are a Dict space, so the policy is "MultiInputPolicy".
"""

from __future__ import annotations

import argparse
from collections import Counter, deque

from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecNormalize

from fledge.core.overrides import from_plain
from fledge.envs.adapters.stable_baselines3 import StableBaselinesVecEnv
from fledge.envs.base import TensorEnv
from fledge.envs.placement import EnvPlacement
from fledge.tasks.registry import find_task

LIGHT_FOREST = {"static_obstacles": 60, "moving_obstacles": 0, "num_maps": 16, "decimation": 5, "starts": "mixed"}
LIGHT_FOREST |= {"reward": {"time": 0.5}}


class Outcomes(BaseCallback):
    """Counts how the last flights ended."""

    def __init__(self) -> None:
        super().__init__()
        self.last: deque[str] = deque(maxlen=500)

    def _on_step(self) -> bool:
        self.last.extend(info["outcome"] for info in self.locals["infos"] if info)
        return True

    def _on_rollout_end(self) -> None:
        shares = {name: round(count / len(self.last), 2) for name, count in Counter(self.last).most_common()}
        print(f"{self.num_timesteps:9,d} decisions  {shares}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--rollout", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    task = find_task("navigation")
    cfg = from_plain(task.config, {**LIGHT_FOREST, "num_envs": args.num_envs})

    def make_env(seed: int) -> TensorEnv:
        return task.make_env(cfg, EnvPlacement(seed=seed))

    env = VecNormalize(StableBaselinesVecEnv(make_env(args.seed), make_env))
    model = PPO(
        "MultiInputPolicy",
        env,
        n_steps=args.rollout,
        batch_size=min(2048, args.rollout * args.num_envs),
        n_epochs=4,
        learning_rate=5e-4,
        policy_kwargs={"log_std_init": -0.7},
        seed=args.seed,
        device="cpu",
        verbose=0,
    )
    model.learn(args.steps, callback=Outcomes())
    env.close()


if __name__ == "__main__":
    main()
