"""PPO on a dict of a continuous and a masked discrete action, from env to checkpoint."""

from pathlib import Path

import torch

from fledge.agents.actor_critic import MLPActorCritic
from fledge.collect.sync import SyncDataCollector
from fledge.core.overrides import to_plain
from fledge.envs.checker import check_tensor_env
from fledge.evaluation.export import export_policy
from fledge.learn.ppo import PPO
from fledge.tasks.policy_loader import load_policy
from fledge.training.config import make_config
from fledge.training.loop import train
from fledge.training.ranks import Ranks
from tests.reference.toy_worlds import GunneryConfig, GunneryEnv, task

WORDS = ["env.num_envs=64", "ppo.rollout_steps=16", "ppo.minibatch=256", "ppo.epochs=6", "ppo.lr=0.003", "seed=3"]
WORDS += ["tensorboard=false", "ppo.log_std_max_final=-1.5"]


def test_the_toy_world_keeps_the_contract() -> None:
    check_tensor_env(lambda num_envs, seed: GunneryEnv(GunneryConfig(num_envs), seed=seed), steps=24)


def test_forbidden_values_are_never_drawn_and_the_log_probability_knows_it() -> None:
    env = GunneryEnv(GunneryConfig(64), seed=1)
    torch.manual_seed(0)
    policy = MLPActorCritic(env.observation_spec, env.action_spec, (16,))
    rollout = SyncDataCollector(env, policy, 64 * 32).rollout()
    fired, ready = rollout["action", "fire"] == 1, rollout["obs", "allowed"][..., 1]
    assert fired.any()
    assert not (fired & ~ready).any()
    # where only one value is allowed, choosing it is certain: what is left is the Gaussian's
    with torch.no_grad():
        params, _ = policy(rollout["input"][0])
    masked = ~ready[0]
    gaussian = policy.head.parts[1].log_prob(params[1:], rollout["raw_action"][0][:, 1:])
    assert torch.allclose(rollout["log_prob"][0][masked], gaussian[masked], atol=1e-5)
    chances = params[0].exp()[:, 0]
    assert torch.allclose(chances[masked], torch.tensor([1.0, 0.0]))


def test_the_first_update_starts_from_ratios_of_one() -> None:
    env = GunneryEnv(GunneryConfig(32), seed=1)
    torch.manual_seed(0)
    policy = MLPActorCritic(env.observation_spec, env.action_spec, (16,))
    cfg = make_config(task, "", WORDS).ppo
    cfg.epochs, cfg.minibatch = 1, 32 * 16
    learner = PPO(policy, cfg)
    rollout = SyncDataCollector(env, policy, 32 * 16).rollout()
    report = learner.update(rollout)
    assert abs(report["kl"]) < 1e-6
    assert report["clip_share"] == 0.0


def test_ppo_learns_to_aim_and_to_fire_when_it_may(tmp_path: Path) -> None:
    cfg = make_config(task, "", [*WORDS, f"total_frames={64 * 16 * 40}", "save_interval=40"])
    metrics = train(cfg, tmp_path / "run", Ranks(), task=task)
    # the best possible is 1 a decision, and 1 more for the half of them that may fire: 12 in 8 decisions
    assert metrics["return"] > 10.0
    assert metrics["jammed"] == 0.0


def test_a_dict_of_actions_goes_through_checkpoint_evaluation_and_export(tmp_path: Path) -> None:
    cfg = make_config(task, "", [*WORDS, f"total_frames={64 * 16 * 2}"])
    train(cfg, tmp_path / "run", Ranks(), task=task)
    loaded = load_policy(str(tmp_path / "run"), task)
    assert loaded.env is not None
    assert loaded.env.settings["steps"] == to_plain(cfg)["env"]["steps"]
    exported = export_policy(str(tmp_path / "run"), tmp_path / "gun.ts", task)
    assert exported["inputs"] == ["target", "allowed"]
    assert exported["outputs"] == ["fire", "aim"]
    assert exported["max_difference"] == 0.0
