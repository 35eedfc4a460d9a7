"""Rows 196 to 248: duels, agents, rewards and tuning, typed as document 004 has them."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

import fledge
from fledge.agents.actor_critic import MLPActorCritic
from fledge.cli import main
from fledge.compat.async_checkpoint import AsyncCheckpointSaver, load_checkpoint
from fledge.compat.base_agent import BaseAgent, PlaceholderAgent, create_agent
from fledge.compat.base_reward import BaseReward, ZeroReward, create_reward
from fledge.compat.checkpoint_utils import PerformanceMonitor
from fledge.compat.gym_wrapper import GymWrapper
from fledge.compat.tensor_env import BaseEnv, TensorEnv
from fledge.learn.ppo import Precision
from fledge.training.config import make_config
from fledge.training.memory import BLOCKS, MemoryWatch
from tests.compat.conformance.rows import covers

CONFIG = {"FIGHTER_MISSILES": 6, "MISSILE_ENGINE_DURATION": 10.0, "BATTLEFIELD_SIZE": 50000, "spacetime": False}
ACTION = {"rudder", "throttle", "fire"}


def make_env(num_envs: int = 4, device: str = "cpu") -> TensorEnv:
    return TensorEnv(CONFIG, num_envs=num_envs, device=device, num_threads=1)


# ---- envs --------------------------------------------------------------------------------------------------------------


@covers(196, 197, 198, 213)
def test_tensor_env_is_made_as_documented_and_is_what_it_says() -> None:
    env = TensorEnv(CONFIG, num_envs=3, device="cpu")
    assert isinstance(env, TensorEnv)
    assert isinstance(env, BaseEnv)
    assert isinstance(env, fledge.TensorEnv)
    assert (env.num_envs, env.device) == (3, torch.device("cpu"))
    assert env.states["missile_count"][:, :2].tolist() == [[6, 6]] * 3
    env.close()


def test_tensor_env_can_be_flown_by_a_collector_and_learned_from() -> None:
    env = make_env(4)
    policy = MLPActorCritic(env.observation_spec, env.action_spec, hidden=(8,))
    collector = fledge.SyncDataCollector(env, policy, frames_per_batch=4 * 6)
    data = collector.rollout()
    assert data.batch_size == (6, 4)
    assert "policy_loss" in fledge.PPO(policy, fledge.PPOConfig(minibatch=8)).train(data)
    again = make_env(4)
    again.load_state_dict(env.state_dict())
    again.close()
    env.close()


@covers(199, 200, 201, 202, 203, 204, 221)
def test_an_env_resets_steps_and_pays_as_documented() -> None:
    time_scale = 4.0
    dt = (1.0 / 60.0) * time_scale
    env = make_env(3)
    obs = env.reset()
    assert set(obs) == {"p1", "p2"}
    full_action = {f"{side}_{part}": torch.zeros(3) for side in ("p1", "p2") for part in ACTION}
    next_obs, _rewards, dones, infos = env.step(full_action, dt=dt)
    assert env.duel.state["time"].tolist() == pytest.approx([dt] * 3)
    assert set(infos) >= {"winner", "p1_alive", "p2_alive"}
    assert dones.shape == (3,)
    assert torch.equal(env.get_observations()["p1"]["x"], next_obs["p1"]["x"])
    paid = env.compute_rewards(torch.tensor([True, True, True]), torch.tensor([0, 1, 2]))
    assert paid["p1"].tolist() == pytest.approx([-49.9, 500.1, -499.9])
    env.reset(torch.tensor([True, False, False]))
    assert env.duel.state["time"].tolist() == pytest.approx([0.0, dt, dt])
    assert env.states["x"].shape == (3, 20)
    env.close()


@covers(212)
def test_gym_wrapper_takes_an_env_or_a_config() -> None:
    env = GymWrapper(make_env(2))
    obs, info = env.reset(seed=1)
    assert all(isinstance(value, np.ndarray) for value in obs.values())
    assert info["p1_alive"].tolist() == [True, True]
    obs, rewards, dones, _, info = env.step(env.action_space.sample())
    assert rewards["p1"].shape == dones.shape == info["winner"].shape == (2,)
    assert (env.num_envs, env.config) == (2, CONFIG)
    env.close()
    other = GymWrapper(config=CONFIG, num_envs=2, device="cpu")
    assert other.reset()[0]["x"].shape == (2,)
    other.close()


@covers(217)
def test_thousands_of_envs_step_together() -> None:
    env = make_env(4096)
    assert env.step({"p1_fire": True}, dt=1.0)[2].shape == (4096,)
    env.close()


# ---- agents and rewards ------------------------------------------------------------------------------------------------


@covers(205, 206, 207, 208)
def test_agents_have_the_documented_interface() -> None:
    class Turning(BaseAgent):
        def act(self, observation: dict[str, Tensor]) -> dict[str, Tensor]:  # type: ignore[override]
            still = torch.zeros(observation["x"].shape[0], device=self.device)
            return {"rudder": still + 1.0, "throttle": still + 1.0, "fire": still.bool()}

    observation = {"x": torch.zeros(5)}
    for agent in (Turning(device="cpu"), PlaceholderAgent(device="cpu"), PlaceholderAgent("cpu")):
        agent.num_envs = 5
        assert (agent.device, agent.num_envs) == (torch.device("cpu"), 5)
        assert set(agent.act(observation)) == set(agent.act(observation=observation)) == ACTION
        assert agent.reset() is None
        assert agent.reset(env_mask=torch.ones(5, dtype=torch.bool)) is None
        assert agent.to("cpu") is agent.train() is agent.eval() is agent
    assert PlaceholderAgent("cpu").act(observation)["fire"].tolist() == [False] * 5


@covers(209, 210, 211)
def test_rewards_take_five_values_or_three() -> None:
    class Closer(BaseReward):
        def compute(self, obs_before: Any, obs_after: Any, action: Any, done: Any = None, info: Any = None) -> Tensor:
            return obs_before["enemy_distance"] - obs_after["enemy_distance"]

    env = make_env(3)
    obs_before = env.reset()["p1"]
    action = {"rudder": torch.zeros(3), "throttle": torch.ones(3), "fire": torch.ones(3, dtype=torch.bool)}
    next_obs, _, done, info = env.step({f"p1_{name}": value for name, value in action.items()}, dt=1.0)
    obs_after = next_obs["p1"]
    for reward in (Closer(device="cpu"), ZeroReward(device="cpu"), create_reward("win_loss+0.5*shaped-0.1*shots")):
        reward.reset()
        assert reward.to("cpu") is reward
        whole = reward.compute(obs_before, obs_after, action, done, info)
        assert reward.compute(obs_before=obs_before, obs_after=obs_after, action=action).shape == whole.shape == (3,)
    assert (Closer("cpu").compute(obs_before, obs_after, action) > 0).all()
    assert create_reward("shots", "cpu").compute(obs_before, obs_after, action, done, info).tolist() == [1.0] * 3
    env.close()


@covers(214, 215, 216)
def test_the_whole_training_loop_runs_as_typed() -> None:
    num_envs, device, max_steps = 8, "cpu", 20
    env = TensorEnv({**CONFIG, "max_episode_s": 8.0}, num_envs=num_envs, device=device)
    agent = create_agent("placeholder", device, num_envs)
    opponent = create_agent("random", device, num_envs)
    reward_fn = create_reward("zero", device)
    obs = env.reset()
    obs_p1, obs_p2 = obs["p1"], obs["p2"]
    agent.reset()
    opponent.reset()
    reward_fn.reset()
    episode_count = 0
    for _ in range(max_steps):
        action_p1, action_p2 = agent.act(obs_p1), opponent.act(obs_p2)
        full_action = {f"p1_{k}": v for k, v in action_p1.items()} | {f"p2_{k}": v for k, v in action_p2.items()}
        obs_before_p1 = {k: v.clone() for k, v in obs_p1.items()}
        next_obs, env_rewards, dones, infos = env.step(full_action, dt=0.5)
        custom_reward = reward_fn.compute(
            obs_before=obs_before_p1, obs_after=next_obs["p1"], action=action_p1, done=dones, info=infos
        )
        assert (env_rewards["p1"] + custom_reward).shape == (num_envs,)
        obs_p1, obs_p2 = next_obs["p1"], next_obs["p2"]
        if dones.any():
            episode_count += int(dones.sum())
            env.reset(env_mask=dones)
            agent.reset(env_mask=dones)
            opponent.reset(env_mask=dones)
            obs_p1, obs_p2 = env.get_observations()["p1"], env.get_observations()["p2"]
    assert episode_count == num_envs
    env.close()


# ---- devices, sizes, flags ---------------------------------------------------------------------------------------------


@covers(220)
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_falls_back_to_the_cpu_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    env = make_env(1, device="cuda")
    made = [env, create_agent("placeholder", "cuda", 1), create_reward("zero", "cuda"), PlaceholderAgent(device="cuda")]
    assert [thing.device.type for thing in made] == ["cpu"] * 4
    line = "[Warning] device=cuda, but PyTorch sees no CUDA device here: using the CPU."
    assert capsys.readouterr().out.splitlines() == [line] * 4
    env.close()


@covers(219, 223)
@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_the_documented_flags_are_understood(device: str) -> None:
    flags = (
        f"--device {device} --time-scale 4.0 --num-envs 256 --batch-size 64 --agent ppo --opponent crank --reward zero"
    )
    shown = CliRunner().invoke(main, ["train", "aircombat", *flags.split(), "--help-config"])
    assert shown.exit_code == 0, shown.output
    told = {line.split("  #")[0] for line in shown.output.splitlines() if not line.startswith(" ")}
    expected = "env.time_scale=4.0 env.num_envs=256 ppo.minibatch=64 env.opponent=crank env.reward=zero"
    assert set(expected.split()) <= told


@covers(224, 225, 226)
@pytest.mark.parametrize(
    ("card", "num_envs", "batch", "precision"),
    [("RTX 3060", 8, 32, "fp32"), ("RTX 4070", 32, 64, "mixed"), ("RTX 4090", 128, 128, "mixed")],
)
def test_graphics_cards_have_their_documented_sizes(card: str, num_envs: int, batch: int, precision: str) -> None:
    for name in (card, card.lower().replace(" ", "")):
        cfg = make_config("aircombat", None, [f"hardware={name}"])
        assert (cfg.env.num_envs, cfg.ppo.minibatch, cfg.ppo.precision) == (num_envs, batch, Precision[precision])
        assert make_config("navigation", None, [f"hardware={name}"]).env.num_envs >= 2048  # sizes of our own


@covers(227, 228)
@pytest.mark.parametrize("task", ["aircombat", "navigation"])
def test_precision_and_batch_are_settings(task: str) -> None:
    cfg = make_config(task, None, ["precision=mixed", "batch=128"])
    assert (cfg.ppo.precision, cfg.ppo.minibatch) == (Precision.auto, 128)
    policy = MLPActorCritic(make_env(1).observation_spec, make_env(1).action_spec, hidden=(8,))
    fledge.PPO(policy, cfg.ppo)  # on a CPU, mixed is fp32


# ---- memory ------------------------------------------------------------------------------------------------------------


@covers(229, 230)
def test_rollouts_and_gradients_use_the_same_memory_again() -> None:
    env = make_env(4)
    policy = MLPActorCritic(env.observation_spec, env.action_spec, hidden=(8,))
    collector, learner = (
        fledge.SyncDataCollector(env, policy, frames_per_batch=8),
        fledge.PPO(policy, fledge.PPOConfig()),
    )
    places = set()
    for _ in range(3):
        data = collector.rollout()
        learner.train(data)
        places.add((data["reward"].data_ptr(), *(p.grad.data_ptr() for p in policy.parameters() if p.grad is not None)))
    assert len(places) == 1
    env.close()


@covers(231)
def test_memory_that_keeps_growing_is_cleaned_up_and_then_reported() -> None:
    watch = MemoryWatch(block=5)
    leak = [watch.add(k, 1000.0 + 8.0 * k) for k in range(2 * BLOCKS * 5)]
    assert [k for k, text in enumerate(leak) if text] == [2 * BLOCKS * 5 - 1]  # first a cleaning, then a warning
    assert "grew by 120 MB in 20 iterations" in leak[-1]
    assert "at iteration 39 it is 1296 MB" in leak[-1]
    for steady in (lambda k: 1000.0 + (k % 7), lambda k: 1000.0 + min(8.0 * k, 100.0), lambda k: 1000.0 + 0.5 * k):
        watch = MemoryWatch(block=5)
        assert not any(watch.add(k, steady(k)) for k in range(100))


@covers(233)
def test_a_large_file_is_mapped_into_memory(tmp_path: Path) -> None:
    with AsyncCheckpointSaver() as saver:
        saver.save_async({"rollout": torch.ones(8_000_000)}, tmp_path / "big.pt", compress=False)
    rollout = load_checkpoint(tmp_path / "big.pt", mmap=True)["rollout"]
    maps = Path("/proc/self/maps").read_text()
    assert str(tmp_path / "big.pt") in maps
    assert rollout.sum() == 8_000_000
    del rollout
    gc.collect()
    assert str(tmp_path / "big.pt") not in Path("/proc/self/maps").read_text()


@covers(242)
def test_the_batch_grows_with_progress() -> None:
    env = make_env(8)
    policy = MLPActorCritic(env.observation_spec, env.action_spec, hidden=(8,))
    learner = fledge.PPO(policy, fledge.PPOConfig(minibatch=8, minibatch_final_scale=4.0, epochs=1))
    rollout = fledge.SyncDataCollector(env, policy, frames_per_batch=64).rollout()
    steps = []
    learner.optimizer.register_step_post_hook(lambda *_: steps.append(1))
    for progress, expected in ((0.0, 8), (0.5, 3), (1.0, 2)):
        steps.clear()
        learner.train(rollout, progress)
        assert len(steps) == expected
    env.close()


@covers(238)
def test_a_loop_is_profiled_by_name() -> None:
    monitor = PerformanceMonitor()
    env = make_env(1)
    with monitor.timer("env_step"):
        env.step({})
    assert monitor.get_summary().splitlines()[1].startswith("env_step                 :")
    env.close()


@pytest.mark.slow
@covers(244)
def test_two_nodes_train_one_run(tmp_path: Path) -> None:
    """One launcher per node, as on two machines; here both are on this one."""
    words = ["navigation", "env.num_envs=16", "env.num_maps=1", "ppo.rollout_steps=4", "ppo.minibatch=32"]
    words += ["total_frames=128", "policy.hidden=[16]", "tensorboard=false", "--folder", str(tmp_path / "run")]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    launch += ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    nodes = [
        subprocess.Popen([*launch, f"--node-rank={rank}", "-m", "fledge.cli", "train", *words], stderr=subprocess.PIPE)
        for rank in (0, 1)
    ]
    told = [node.communicate(timeout=300)[1].decode() for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], told
    assert fledge.Run(tmp_path / "run").metrics["frames"][-1] == 128
    state = fledge.load_checkpoint(fledge.Run(tmp_path / "run").checkpoints[-1])
    assert len(state["ranks"]) == 2


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
