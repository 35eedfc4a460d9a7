"""The pipelined collector: one iteration of lag whatever the timing, nothing lost, nothing left running."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from fledge.agents.actor_critic import ActorCritic
from fledge.collect import HalvesDataCollector, PipelinedDataCollector, SyncDataCollector
from fledge.core.errors import ConfigError, FledgeError, InputError
from fledge.learn.ppo import PPO, PPOConfig
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.networks.feature_policy import FeaturePolicy
from fledge.tasks.navigation.networks.navrl import NavRLActorCritic

N, T = 12, 8
CFG = NavigationConfig(num_envs=N, num_maps=2, decimation=5, static_obstacles=100, moving_obstacles=16)
CFG.max_episode_steps = 100
PPO_CFG = PPOConfig(rollout_steps=T, epochs=2, minibatch=32)
QUIET = {"auto_register_policy_transforms": False}  # what TorchRL warns about otherwise


class Learner:
    """Env, policy, learner and collector from one seed; `pipelined` says which kind of loop."""

    def __init__(self, pipelined: bool = True, policy: type[ActorCritic] = FeaturePolicy, **options: Any) -> None:
        torch.manual_seed(5)
        self.policy = policy()
        self.ppo = PPO(self.policy, PPO_CFG)
        self.env = NavigationEnv(CFG, seed=2, num_threads=1)
        self.sync = SyncDataCollector(self.env, self.policy, N * T, **options)
        seed = int(torch.randint(2**62, ())) if not pipelined else None
        self.collector: Any = PipelinedDataCollector(self.sync) if pipelined else self.sync
        if seed is not None:
            self.sync.policy = copy.deepcopy(self.policy)
            self.sync.draw_from(torch.Generator().manual_seed(seed))
        torch.manual_seed(6)

    def iterate(self, count: int, pause: float = 0.0) -> list[TensorDict]:
        """Collect and learn; returns copies of the batches."""
        batches = []
        for _ in range(count):
            batch = self.collector.rollout()
            batches.append(batch.clone())
            time.sleep(pause)
            self.ppo.update(batch)
        return batches

    def iterate_with_lag_one(self, count: int) -> list[TensorDict]:
        """The same without threads: batch k + 1 is flown when batch k is handed out, before learning from it."""
        self.sync.policy.load_state_dict(self.policy.state_dict())
        ahead, batches = self.sync.rollout().clone(), []
        for _ in range(count):
            batch = ahead
            self.sync.policy.load_state_dict(self.policy.state_dict())
            ahead = self.sync.rollout().clone()
            batches.append(batch.clone())
            self.ppo.update(batch)
        return batches

    def close(self) -> None:
        self.collector.shutdown()


@pytest.fixture
def learner() -> Iterator[Learner]:
    learner = Learner()
    yield learner
    learner.close()


def collecting_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("fledge-collect")]


def assert_same(ours: list[TensorDict], theirs: list[TensorDict]) -> None:
    assert len(ours) == len(theirs)
    for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        for key in a.keys(include_nested=True, leaves_only=True):
            assert torch.equal(a[key], b[key]), (k, key)


@pytest.mark.parametrize("kind", [FeaturePolicy, NavRLActorCritic])
def test_a_run_is_that_of_an_unthreaded_loop_with_a_lag_of_one(kind: type[ActorCritic]) -> None:
    ours = Learner(policy=kind)
    batches = ours.iterate(4)
    plain = Learner(pipelined=False, policy=kind)
    assert_same(batches, plain.iterate_with_lag_one(4))
    for key, value in plain.policy.state_dict().items():
        assert torch.equal(value, ours.policy.state_dict()[key]), key
    ours.close()
    plain.close()


def test_timing_changes_nothing() -> None:
    quick = Learner()
    batches = quick.iterate(3)
    slow = Learner()
    assert_same(batches, slow.iterate(3, pause=0.2))
    quick.close()
    slow.close()


def test_batch_k_plus_1_is_flown_with_the_weights_of_the_moment_batch_k_was_handed_out(learner: Learner) -> None:
    handed_out = []
    for k in range(4):
        batch = learner.collector.rollout()
        params, _ = (handed_out[k - 1] if k else learner.policy)(batch["input"].flatten(0, 1))
        log_prob = learner.policy.head.log_prob(params, batch["raw_action"].flatten(0, 1))
        torch.testing.assert_close(log_prob.detach(), batch["log_prob"].flatten(), rtol=1e-4, atol=1e-4)
        handed_out.append(copy.deepcopy(learner.policy))
        with torch.no_grad():  # a step so large that other weights would show
            learner.policy.head.layer.bias.add_(0.5)


def test_the_background_leaves_torchs_global_generator_alone(learner: Learner) -> None:
    before = torch.get_rng_state()
    for _ in range(3):
        learner.collector.rollout()
    assert torch.equal(torch.get_rng_state(), before)


def test_batches_alternate_between_two_rollouts_without_a_copy(learner: Learner) -> None:
    places = [learner.collector.rollout()["reward"].data_ptr() for _ in range(4)]
    assert places[0] != places[1]
    assert places[:2] == places[2:]


def test_a_handed_out_batch_is_not_written_while_the_learner_has_it(learner: Learner) -> None:
    batch = learner.collector.rollout()
    before = batch.clone()
    learner.collector.wait()  # the next one has landed
    assert_same([batch], [before])


def test_with_several_ahead_a_curriculum_still_comes_before_its_batch(learner: Learner) -> None:
    learner.collector.shutdown()
    env = NavigationEnv(CFG, seed=2, num_threads=1)
    base = SyncDataCollector(env, learner.policy, N * T)
    seen: list[int] = []
    with PipelinedDataCollector(base, prefetch_count=3) as collector:
        for _ in range(3):
            collector.rollout(lambda: seen.append(base._frames))
        collector.wait()
        with pytest.raises(ConfigError, match="prefetch_count=3 and `prepare`"):
            collector.state_dict()
    assert seen == [k * N * T for k in range(6)]


def test_several_ahead_stop_at_total_frames() -> None:
    learner = Learner(total_frames=3 * N * T, return_same_td=False)
    learner.collector.shutdown()
    env = NavigationEnv(CFG, seed=2, num_threads=1)
    base = SyncDataCollector(env, learner.policy, N * T, total_frames=4 * N * T)
    with PipelinedDataCollector(base, prefetch_count=3) as collector:
        assert len(list(collector)) == 4
        assert base._frames == 4 * N * T
        assert not collector._pending


def test_iteration_ends_at_total_frames_with_nothing_in_the_air() -> None:
    learner = Learner(total_frames=3 * N * T, return_same_td=False)
    batches = list(learner.collector)
    assert len(batches) == 3
    assert len({b["reward"].data_ptr() for b in batches}) == 3
    assert not learner.collector._pending
    assert learner.collector._frames == learner.sync._frames == 3 * N * T
    learner.close()


def test_figures_are_those_of_the_batch_handed_out(learner: Learner) -> None:
    batch = learner.collector.rollout()
    assert learner.collector.latest is batch
    assert learner.collector._frames == N * T
    assert learner.collector._fps > 0
    assert learner.collector.simulate_s > 0


def test_prepare_runs_before_the_next_batch_and_on_the_callers_thread(learner: Learner) -> None:
    seen: list[tuple[str, int]] = []

    def prepare() -> None:
        seen.append((threading.current_thread().name, learner.sync._frames))

    for _ in range(2):
        learner.collector.rollout(prepare)
    name = threading.current_thread().name
    assert seen == [(name, 0), (name, N * T), (name, 2 * N * T)]


# ---- state -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_resumed_run_hands_out_the_same_batches_and_learns_the_same(taken: int) -> None:
    first = Learner()
    first.iterate(taken)
    state = first.collector.state_dict()
    learned = first.ppo.snapshot()
    expected = first.iterate(3)
    second = Learner()
    second.iterate(2)  # something else first: loading must undo it
    second.ppo.restore(learned)
    second.collector.load_state_dict(state)
    assert second.collector._frames == taken * N * T
    assert_same(second.iterate(3), expected)
    for key, value in first.policy.state_dict().items():
        assert torch.equal(value, second.policy.state_dict()[key]), key
    first.close()
    second.close()


# ---- errors and shutdown -----------------------------------------------------------------------------------------------


def break_env(env: NavigationEnv, after: int) -> RuntimeError:
    error, right, steps = RuntimeError("a rotor fell off"), env.step, iter(range(10**9))

    def step(*args: Any, **kwargs: Any) -> TensorDict:
        if next(steps) >= after:
            raise error
        return right(*args, **kwargs)

    env.step = step  # type: ignore[method-assign]
    return error


def test_an_error_in_the_background_is_raised_at_the_next_call_with_its_cause(learner: Learner) -> None:
    error = break_env(learner.env, after=T + 3)
    learner.collector.rollout()
    for _ in range(2):  # and again, if asked again
        with pytest.raises(FledgeError, match="a rotor fell off") as caught:
            learner.collector.rollout()
        assert caught.value.__cause__ is error


def test_no_thread_outlives_shutdown() -> None:
    before = threading.active_count()
    learner = Learner()
    learner.collector.rollout()
    assert collecting_threads()
    learner.collector.shutdown()
    learner.collector.shutdown()
    assert not collecting_threads()
    assert threading.active_count() == before
    with pytest.raises(InputError, match="after shutdown"):
        learner.collector.rollout()


def test_no_thread_outlives_a_consumer_that_stops_early_or_fails() -> None:
    learner = Learner()
    with learner.collector as collector:
        for _ in collector:
            break
    assert not collecting_threads()
    learner = Learner()
    break_env(learner.env, after=2)
    with pytest.raises(FledgeError, match="rotor"), learner.collector as collector:
        collector.rollout()
    assert not collecting_threads()


def test_it_flies_halves_too() -> None:
    def make() -> HalvesDataCollector:
        torch.manual_seed(3)
        half = NavigationConfig(num_envs=N // 2, num_maps=2, static_obstacles=50, moving_obstacles=0)
        envs = [NavigationEnv(half, seed=1, num_threads=1, env_offset=k * N // 2, total_envs=N) for k in (0, 1)]
        return HalvesDataCollector(envs, FeaturePolicy(hidden=(16,)), N * T)

    with PipelinedDataCollector(make()) as collector:
        batches = [collector.rollout().clone() for _ in range(2)]
        seed = collector.base_collector.generator.initial_seed()  # type: ignore[union-attr]
    plain = make()
    plain.draw_from(torch.Generator().manual_seed(seed))
    assert_same(batches, [plain.rollout().clone() for _ in range(2)])
    plain.shutdown()
    assert not [t.name for t in threading.enumerate() if t.name.startswith("fledge-")]


# ---- other bases -------------------------------------------------------------------------------------------------------


def test_any_iterable_is_drawn_ahead_to_its_end() -> None:
    asked: list[int] = []

    def source() -> Iterator[TensorDict]:
        reused = TensorDict({"x": torch.zeros(4)}, [4])
        for k in range(3):
            asked.append(k)
            reused["x"].fill_(k)  # in place: what does not say that it is new is copied
            yield reused

    with PipelinedDataCollector(source()) as collector:
        values = []
        for batch in collector:
            collector.wait()
            assert asked[-1] == min(len(values) + 1, 2)
            values.append(batch["x"].tolist())
        assert values == [[0.0] * 4, [1.0] * 4, [2.0] * 4]
        with pytest.raises(InputError, match="no more batches"):
            collector.rollout()
        with pytest.raises(ConfigError, match="cannot be resumed"):
            collector.state_dict()


def test_misuse_is_refused_with_a_sentence(learner: Learner) -> None:
    with pytest.raises(ConfigError, match="prefetch_count is 0"):
        PipelinedDataCollector(learner.sync, prefetch_count=0)
    with pytest.raises(ConfigError, match="wraps another collector"):
        PipelinedDataCollector(learner.collector)


def torchrl_collector(**options: Any) -> Any:
    """TorchRL's collector over our adapter, with a policy whose weights show in the action."""
    pytest.importorskip("torchrl")
    from tensordict.nn import TensorDictModule
    from torchrl.collectors import Collector

    from fledge.envs.adapters.torchrl import TorchRLEnv

    class Actor(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = torch.nn.Parameter(torch.zeros(()))

        def forward(self, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            noise = torch.distributions.Normal(0.5, 0.01).sample((*state.shape[:-1], 3))
            return noise.clamp(0, 1), self.bias.expand(state.shape[:-1])

    policy = TensorDictModule(Actor(), in_keys=["state"], out_keys=["action", "bias"])
    env = TorchRLEnv(NavigationEnv(CFG, seed=2, num_threads=1))
    return Collector(env, policy, frames_per_batch=N * T, total_frames=4 * N * T, **QUIET, **options), policy


def test_torchrls_collector_is_flown_with_a_lag_of_one_and_its_own_randomness() -> None:
    runs: list[list[TensorDictBase]] = []
    for pause in (0.0, 0.05):
        torch.manual_seed(1)
        base, policy = torchrl_collector()
        batches = []
        with PipelinedDataCollector(base) as collector:
            for k, batch in enumerate(collector):
                assert batch["bias"].unique().tolist() == [max(k - 1, 0)]
                batches.append(batch.clone())
                time.sleep(pause)
                torch.rand(k)  # the learner draws meanwhile
                with torch.no_grad():
                    next(policy.parameters()).add_(1.0)
            assert collector._frames == 4 * N * T
        assert len(batches) == 4
        runs.append(batches)
        assert not collecting_threads()
    assert_same(*runs)  # type: ignore[arg-type]


def test_a_torchrl_collector_that_yields_one_object_is_refused() -> None:
    base, _ = torchrl_collector(return_same_td=True)
    with pytest.raises(ConfigError, match="return_same_td=False"):
        PipelinedDataCollector(base)
    base.shutdown()


def test_a_batch_is_not_lost_when_preparing_the_next_fails() -> None:
    plain = Learner()
    wanted = plain.iterate(3)
    ours = Learner()
    got = ours.iterate(1)

    def fail() -> None:
        raise RuntimeError("no curriculum today")

    with pytest.raises(RuntimeError, match="no curriculum"):
        ours.collector.rollout(fail)
    got += ours.iterate(2)
    assert all((a["action"] == b["action"]).all() for a, b in zip(wanted, got, strict=True))
    for learner in (plain, ours):
        learner.collector.shutdown()


def test_shutting_down_while_another_thread_waits_is_told() -> None:
    land, errors = threading.Event(), list[BaseException]()

    def base() -> Iterator[TensorDict]:
        while True:
            land.wait(30)
            yield TensorDict({"x": torch.zeros(2, 3)}, [2, 3])

    collector = PipelinedDataCollector(base())

    def wait_for_a_batch() -> None:
        try:
            collector.rollout()
        except BaseException as error:
            errors.append(error)

    waiting = threading.Thread(target=wait_for_a_batch)
    waiting.start()
    while not collector._pending:
        time.sleep(0.001)
    ending = threading.Thread(target=collector.shutdown)
    ending.start()
    while not collector._closed:
        time.sleep(0.001)
    land.set()
    waiting.join(30)
    ending.join(30)
    assert isinstance(errors[0], InputError)
    assert "shut down" in str(errors[0])
