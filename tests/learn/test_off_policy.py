"""SAC, TD3 and DQN against plain ones, over compressed and uncompressed replay, and their failures."""

import dataclasses
import functools
from typing import Any

import pytest
import torch

from fledge.agents.squashed import TwinCritic
from fledge.collect.experience import ExperienceCollector
from fledge.core.errors import ConfigError, NumericsError
from fledge.learn.dqn import DQN, DQNConfig
from fledge.learn.off_policy import ReplayConfig
from fledge.learn.sac import SAC, SACConfig
from fledge.learn.td3 import TD3, TD3Config
from fledge.replay import DictReplayBuffer
from fledge.tasks.navigation.config import ActionForm, NavigationConfig, Starts
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.networks.feature_policy import FeatureActor
from fledge.tasks.navigation.networks.grid_q import GridQ
from tests.reference.plain_off_policy import PlainDQN, PlainSAC, PlainTD3
from tests.reference.plain_replay import PlainReplay

ENV = NavigationConfig(
    num_envs=12, num_maps=2, decimation=5, moving_obstacles=16, starts=Starts.mixed, inside_share=1.0
)
ENV.max_episode_steps = 90  # truncations within the test
GRID = dataclasses.replace(ENV, grid_map=True, grid_size=16, action_form=ActionForm.headings, num_headings=8)
SEEN, MAPPED = FeatureActor.observes, GridQ.observes
REPLAY = ReplayConfig(size=500, batch=48, steps=6, updates=3, warm_up=0, n_step=3, segment=8)


def make_buffer(observed: tuple[str, ...], replay: ReplayConfig = REPLAY, layout: Any = "chunk") -> DictReplayBuffer:
    keys = [*observed, *(f"next_{k}" for k in observed), "action", "reward", "terminated", "truncated"]
    options = {"segment_frames": replay.segment, "n_step": replay.n_step, "decode_threads": 1}
    return DictReplayBuffer(replay.size, keys, layout=layout, seed=5, gamma=0.99, **options)


def plain_buffer(observed: tuple[str, ...], replay: ReplayConfig = REPLAY) -> PlainReplay:
    return PlainReplay(replay.size, observed, replay.segment, replay.n_step, 0.99, seed=5)


def small_actor() -> FeatureActor:
    torch.manual_seed(0)
    return FeatureActor(hidden=(32, 16))


def make_sac(buffer: Any) -> SAC:
    return SAC(small_actor(), SACConfig(critic_hidden=[24, 16], lr_final_share=1.0), REPLAY, buffer)


def make_td3(buffer: Any) -> TD3:
    return TD3(small_actor(), TD3Config(critic_hidden=[24, 16], lr_final_share=1.0), REPLAY, buffer)


def make_dqn(buffer: Any) -> DQN:
    torch.manual_seed(0)
    return DQN(GridQ(16, 8, (24,)), DQNConfig(lr_final_share=1.0), REPLAY, buffer)


def fly_and_learn(learner: Any, env: NavigationConfig, iterations: int) -> list[dict[str, float]]:
    torch.manual_seed(1)
    collector = ExperienceCollector(NavigationEnv(env, seed=3, num_threads=1), learner.explore, REPLAY.steps)
    reports = [learner.update(collector.rollout()) for _ in range(iterations)]
    collector.shutdown()
    return reports


CASES = {
    "sac": (make_sac, SEEN, ENV),
    "td3": (make_td3, SEEN, ENV),
    "dqn": (make_dqn, MAPPED, GRID),
}


@pytest.mark.parametrize("name", CASES)
def test_steps_equal_the_plain_reference(name: str) -> None:
    make, observed, env = CASES[name]
    buffer = make_buffer(observed)
    fly_and_learn(make(buffer), env, 12)  # only to fill the buffer
    learner = make(buffer)
    plain: Any = {
        "sac": lambda: PlainSAC(learner.actor, learner.critic, learner.cfg),
        "td3": lambda: PlainTD3(learner.actor, learner.critic, learner.cfg),
        "dqn": lambda: PlainDQN(learner.online, learner.cfg),
    }[name]()
    batches = [buffer.sample(40) for _ in range(8)]
    assert any(batch["terminated"].any() for batch in batches)
    torch.manual_seed(9)
    ours = []
    for batch in batches:
        ours.append(learner.step(batch).tolist())
        learner.steps_done += 1
    torch.manual_seed(9)
    theirs = [[x.item() for x in plain.step(batch)] for batch in batches]
    for mine, reference in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(reference, rel=1e-3, abs=2e-5)
    network = plain.online if name == "dqn" else plain.actor
    for a, b in zip(learner.policy.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-5)


@functools.cache
def losses_of_plain_replay(name: str) -> list[dict[str, float]]:
    make, observed, env = CASES[name]
    return fly_and_learn(make(plain_buffer(observed)), env, 15)


@pytest.mark.parametrize("layout", ["chunk", "frame", "episode"])
@pytest.mark.parametrize("name", CASES)
def test_compressed_replay_gives_the_same_losses_bit_for_bit(name: str, layout: str) -> None:
    make, observed, env = CASES[name]
    plain = losses_of_plain_replay(name)
    compressed = fly_and_learn(make(make_buffer(observed, layout=layout)), env, 15)
    assert plain == compressed
    assert len({report[make(plain_buffer(observed)).names[0]] for report in plain}) > 5  # it did learn


@pytest.mark.parametrize("make", [make_sac, make_td3])
def test_learning_continues_bit_for_bit_from_a_saved_state(make: Any) -> None:
    straight = make(make_buffer(SEEN))
    fly_and_learn(straight, ENV, 10)

    def go_on(learner: Any, steps: int = 3) -> dict[str, float]:
        return learner.learn([learner.buffer.sample(32) for _ in range(steps)])

    go_on(straight, 2 - straight.steps_done % 2)  # the next step is one without TD3's actor, which reports the last
    state, own = straight.snapshot(), straight.rank_state()

    first = go_on(straight)
    other = make(make_buffer(SEEN))
    other.load_rank_state(own)
    other.restore(state)
    assert go_on(other) == first
    assert other.steps_done == straight.steps_done
    assert torch.equal(other.flats["actor"].values, straight.flats["actor"].values)
    other.restore(state)  # which learning has left alone
    other.load_rank_state(own)
    assert go_on(other) == first


def test_nothing_is_learned_before_the_warm_up() -> None:
    learner = make_sac(make_buffer(SEEN))
    learner.replay = dataclasses.replace(REPLAY, warm_up=10_000)
    before = learner.state_dict()["weights"]["actor"]
    reports = fly_and_learn(learner, ENV, 4)
    assert all(value == 0.0 for report in reports for value in report.values())
    assert torch.equal(learner.state_dict()["weights"]["actor"], before)


def test_learning_rates_fall_linearly_and_the_temperatures_stays() -> None:
    learner = make_sac(make_buffer(SEEN))
    learner.rates["actor"] = (1e-3, 2e-4)
    learner.schedule(0.5)
    rates = {name: optimizer.param_groups[0]["lr"] for name, optimizer in learner.optimizers.items()}
    assert rates == pytest.approx({"actor": 6e-4, "critic": 5e-4, "temperature": 5e-4})


@pytest.mark.parametrize(("asked", "aim"), [(None, -3.0), (-7.5, -7.5), (0.0, 0.0)])
def test_the_temperature_aims_at_minus_the_number_of_actions_or_what_is_asked(asked: float | None, aim: float) -> None:
    learner = SAC(small_actor(), SACConfig(target_entropy=asked), REPLAY, make_buffer(SEEN))
    assert learner.target_entropy == aim


def test_truncation_bootstraps_and_termination_does_not() -> None:
    learner = make_sac(make_buffer(SEEN))
    batch = {"terminated": torch.tensor([True, False]), "truncated": torch.tensor([False, True])}
    assert learner.discount(batch).tolist() == pytest.approx([0.0, 0.99])
    assert learner.discount(batch | {"discount": torch.tensor([0.5, 0.25])}).tolist() == pytest.approx([0.0, 0.25])


def test_nan_stops_with_what_is_needed_to_repeat_it() -> None:
    learner = make_sac(make_buffer(SEEN))
    fly_and_learn(learner, ENV, 8)
    with torch.no_grad():
        learner.flats["critic"].values[0] = float("nan")
    with pytest.raises(NumericsError, match="critic_loss") as caught:
        fly_and_learn(learner, ENV, 1)
    assert caught.value.cause is not None
    assert len(caught.value.cause["batches"]) == REPLAY.updates
    assert torch.isnan(caught.value.cause["learner"]["weights"]["critic"][0])


def test_twin_critics_are_two_independent_ones() -> None:
    torch.manual_seed(0)
    critic = TwinCritic(7, 3, [16, 8])
    x, action = torch.randn(5, 7), torch.randn(5, 3)
    both = critic(x, action)
    assert both.shape == (2, 5)
    assert not torch.allclose(both[0], both[1])
    both[0].sum().backward()
    assert all(p.grad is not None and p.grad[1].abs().sum() == 0 for p in critic.parameters())


def test_the_density_of_squashed_actions_integrates_to_one() -> None:
    actor = small_actor()
    x = torch.randn(1, actor.inputs)
    mean, log_std = actor(x)
    grid = torch.linspace(-0.9999, 0.9999, 200_001)
    noise = torch.zeros(len(grid), actor.actions)
    noise[:, 0] = (torch.atanh(grid) - mean[0, 0]) / log_std[0, 0].exp()
    action, density = actor.sample(x.expand(len(grid), -1), noise)
    torch.testing.assert_close(action[:, 0], grid, atol=1e-4, rtol=0)
    rest = actor.sample(x, torch.zeros(1, actor.actions))[1] - _axis_density(actor, x, 0)
    total = torch.trapezoid((density - rest).exp(), grid)
    assert total.item() == pytest.approx(1.0, abs=0.01)


def _axis_density(actor: FeatureActor, x: torch.Tensor, axis: int) -> torch.Tensor:
    mean, log_std = actor(x)
    normal = torch.distributions.Normal(mean[0, axis], log_std[0, axis].exp())
    return normal.log_prob(mean[0, axis]) - (1 - torch.tanh(mean[0, axis]) ** 2).log()


def test_epsilon_differs_between_drones() -> None:
    learner = make_dqn(make_buffer(MAPPED))
    obs = {"grid_map": torch.zeros(400, 1, 16, 16, dtype=torch.uint8), "state": torch.zeros(400, 8)}
    best = learner.online.act(obs)
    torch.manual_seed(0)
    strays = sum((learner.explore(obs) != best).float() for _ in range(200)) / 200
    assert strays[:20].mean() > 0.25  # 0.4 of which one in eight hits the best by chance
    assert strays[-100:].mean() < 0.02


def test_prioritised_replay_weighs_the_loss_and_learns_priorities_from_errors() -> None:
    keys = [*MAPPED, *(f"next_{k}" for k in MAPPED), "action", "reward", "terminated", "truncated"]
    buffer = DictReplayBuffer(500, keys, prioritized=True, seed=5, n_step=3, decode_threads=1, segment_frames=8)
    learner = make_dqn(buffer)
    fly_and_learn(learner, GRID, 12)
    batch = buffer.sample(40)
    assert batch["weight"].min() < batch["weight"].max() <= 1.0
    torch.manual_seed(2)
    whole = make_dqn(buffer)
    whole.load_state_dict(learner.state_dict())
    weighed, ignored = learner.step(batch)[0], whole.step({k: v for k, v in batch.items() if k != "weight"})[0]
    assert weighed < ignored
    assert torch.isfinite(weighed)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"batch": 0}, "replay.batch"), ({"warm_up": -1}, "replay.warm_up"), ({"size": 4}, "replay.size")],
)
def test_bad_settings_are_refused(change: dict[str, int], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        SAC(small_actor(), SACConfig(), dataclasses.replace(REPLAY, **change), make_buffer(SEEN))


@pytest.mark.parametrize("name", CASES)
def test_targets_begin_as_copies_of_weights_that_were_put_in(name: str) -> None:
    make, observed, _ = CASES[name]
    learner = make(make_buffer(observed))
    with torch.no_grad():
        for p in learner.policy.parameters():
            p.add_(1.0)
    learner.begin()
    assert learner.targets
    for part, target in learner.targets.items():
        assert torch.equal(target.values, learner.flats[part].values), part
    learner.close()
