"""The TorchRL adapter: TorchRL's own checks, rollouts and collectors see every episode of the env, each once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

pytest.importorskip("torchrl")

from torchrl.collectors import Collector
from torchrl.envs import StepCounter, TransformedEnv
from torchrl.envs.utils import check_env_specs, step_mdp

from fledge.core.errors import InputError
from fledge.core.specs import TensorSpec
from fledge.envs.adapters.torchrl import TorchRLEnv
from fledge.tasks.navigation.config import ActionForm, Dynamics, NavigationConfig
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.physics.structs import Outcome

N = 16
LIMIT = 9
KEYS = ("state", "lidar", "direction", "dynamic_obstacle")


def make(seed: int = 3, **options: Any) -> NavigationEnv:
    """Fast drones in low space: some crash early, the others are cut off after LIMIT steps."""
    small: dict[str, Any] = {"num_envs": N, "num_maps": 2, "static_obstacles": 60, "moving_obstacles": 16}
    small |= {"max_episode_steps": LIMIT, "dynamics": Dynamics.first_order, "speed_limit": 100.0}
    return NavigationEnv(NavigationConfig(**(small | options)), seed=seed, num_threads=2)


@pytest.fixture
def env() -> Iterator[TorchRLEnv]:
    env = TorchRLEnv(make(), make)
    yield env
    env.close()


class Script:
    """A policy that flies the same actions every time: action of step t is a function of t alone."""

    def __init__(self) -> None:
        self.t = 0

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        tensordict["action"] = self.action(self.t)
        self.t += 1
        return tensordict

    @staticmethod
    def action(t: int) -> Tensor:
        return torch.rand(N, 3, generator=torch.Generator().manual_seed(t // 4))


def truth(steps: int, **options: Any) -> list[TensorDict]:
    """Return the outputs of the env itself for the scripted actions: reset, then steps."""
    env = make(**options)
    results = [env.reset()] + [env.step(Script.action(t)) for t in range(steps)]
    env.close()
    return results


def expect_truth(data: TensorDictBase, steps: int) -> None:
    """Check a [N, steps] rollout against the env itself: roots, last observations, flags, figures."""
    expected = truth(steps)
    ends = 0
    for t in range(steps):
        now, then = expected[t], expected[t + 1]
        ended = then["terminated"] | then["truncated"]
        ends += int(ended.sum())
        for key in KEYS:
            assert torch.equal(data[key][:, t], now["obs"][key]), f"{key} before step {t}"
            last = data["next", key][:, t]
            assert torch.equal(last[ended], then["final_obs"][key][ended]), f"last {key} at step {t}"
            assert torch.equal(last[~ended], then["obs"][key][~ended]), f"{key} after step {t}"
        for key in ("reward", "terminated", "truncated", "outcome"):
            assert torch.equal(data["next", key][:, t, 0], then[key]), f"{key} at step {t}"
        assert torch.equal(data["next", "done"][:, t, 0], ended)
        for key in ("episode_return", "episode_length"):
            assert torch.equal(data["next", key][:, t, 0], torch.where(ended, then[key], 0).to(then[key].dtype))
        for key in ("done", "terminated", "truncated", "outcome"):
            assert not data[key][:, t].any(), f"{key} before step {t}"
    assert ends > 2 * N


def test_torchrl_finds_nothing_wrong_with_the_specs(env: TorchRLEnv) -> None:
    check_env_specs(env)
    check_env_specs(env, seed=5, break_when_any_done="both")
    assert env.batch_size == torch.Size([N])
    assert {"done", "terminated", "truncated"} == set(env.full_done_spec.keys())


def test_headings_and_grids_have_specs_too() -> None:
    env = TorchRLEnv(make(action_form=ActionForm.headings, num_headings=7, grid_map=True, grid_size=8))
    check_env_specs(env)
    assert env.action_spec.space.n == 7
    assert env.observation_spec["grid_map"].dtype == torch.uint8
    env.close()


def test_a_rollout_is_what_the_env_itself_returns_and_no_episode_is_lost(env: TorchRLEnv) -> None:
    steps = 4 * LIMIT
    data = env.rollout(steps, Script(), break_when_any_done=False)
    expect_truth(data, steps)


def test_no_episode_is_begun_twice(env: TorchRLEnv) -> None:
    data = env.rollout(4 * LIMIT, Script(), break_when_any_done=False)
    ended = data["next", "done"].sum(dim=(1, 2)).int()
    assert torch.equal(env.tensor_env.state["episode"], ended)
    assert (ended >= 4).all()


def test_the_collector_sees_what_the_env_itself_returns(env: TorchRLEnv) -> None:
    steps, batches = 12, 3
    script = Script()
    collector = Collector(env, script, frames_per_batch=N * steps, total_frames=N * steps * batches)
    script.t = 0  # the collector tried the policy on fake data first
    data = torch.cat([batch.clone() for batch in collector], dim=1)
    assert data.shape == (N, steps * batches)
    expect_truth(data, steps * batches)
    ids = data["collector", "traj_ids"]
    changed = ids[:, 1:] != ids[:, :-1]
    assert torch.equal(changed, data["next", "done"][:, :-1, 0])
    collector.shutdown()


def test_episodes_cut_by_a_transform_begin_anew_in_the_env_below(env: TorchRLEnv) -> None:
    counted = TransformedEnv(env, StepCounter(max_steps=4))
    data = counted.rollout(12, Script(), break_when_any_done=False)
    below = data["next", "outcome"][..., 0] > 0
    done = data["next", "done"][..., 0]
    assert done[:, 3].all()
    assert (done & ~below).any()
    # The last done of the rollout is not reset any more where the transform caused it.
    begun = done.sum(1) - (done[:, -1] & ~below[:, -1]).int()
    assert torch.equal(env.tensor_env.state["episode"], begun.int())
    starts = data["state"][:, 1:][done[:, :-1]]
    assert (starts[:, 5:] == 0).all()  # new episodes begin at rest


def test_a_full_reset_keeps_episodes_that_wait_and_begins_the_others(env: TorchRLEnv) -> None:
    expected = truth(LIMIT)
    data = env.reset()
    for t in range(LIMIT):
        data["action"] = Script.action(t)
        data = env.step(data)
        if t < LIMIT - 1:
            data = env.maybe_reset(step_mdp(data))
    waiting = data["next", "done"][:, 0]
    assert waiting.any()
    assert not waiting.all()
    episodes = env.tensor_env.state["episode"].clone()
    first = env.reset()
    assert torch.equal(first["state"][waiting], expected[-1]["obs"]["state"][waiting])
    assert torch.equal(env.tensor_env.state["episode"], episodes + (~waiting).int())
    env.reset()
    assert torch.equal(env.tensor_env.state["episode"], episodes + (~waiting).int() + 1)


def test_stepping_on_without_a_reset_forgets_what_waited(env: TorchRLEnv) -> None:
    data = env.reset()
    for t in range(LIMIT):
        data["action"] = Script.action(t)
        data = step_mdp(env.step(data))
    data["action"] = Script.action(LIMIT)
    data = env.step(data)
    running = ~data["next", "done"][:, 0]
    episodes = env.tensor_env.state["episode"].clone()
    env.reset()
    assert torch.equal(env.tensor_env.state["episode"][running], episodes[running] + 1)


def test_a_rollout_until_all_are_done_holds_those_that_ended(env: TorchRLEnv) -> None:
    data = env.rollout(LIMIT + 5, Script(), break_when_all_done=True)
    expected = truth(LIMIT)
    assert data.shape == (N, LIMIT)
    done = data["next", "done"][..., 0]
    assert done[:, -1].all()
    early = done[:, : LIMIT - 1].any(1)
    assert early.any()
    for i in early.nonzero().flatten().tolist():
        end = int(done[i].int().argmax())
        assert done[i, end:].all()
        for t in range(end, LIMIT):
            assert torch.equal(data["next", "state"][i, t], expected[end + 1]["final_obs"]["state"][i])
    again = env.rollout(3, Script(), break_when_all_done=True)
    assert (again["state"][:, 0, 5:] == 0).all()  # all at rest: nobody starts in the middle of an unseen flight


def test_what_a_step_returned_stays_as_it_was(env: TorchRLEnv) -> None:
    data = env.reset()
    kept, copies = [data], [data.clone()]
    for t in range(2 * LIMIT):
        data = data.copy()
        data["action"] = Script.action(t)
        step, data = env.step_and_maybe_reset(data)
        kept += [step, data]
        copies += [step.clone(), data.clone()]
    for a, b in zip(kept, copies, strict=True):
        shared = set(a.keys(True, True)) & set(b.keys(True, True))
        assert all(torch.equal(a[k], b[k]) for k in shared)


def test_the_same_seed_starts_over_and_another_makes_other_envs(env: TorchRLEnv) -> None:
    def fly(seed: int) -> TensorDictBase:
        env.set_seed(seed)
        return env.rollout(2 * LIMIT, Script(), break_when_any_done=False)

    first, repeated, other, again = fly(3), fly(3), fly(4), fly(3)
    assert (first == repeated).all()
    assert (first == again).all()
    assert not torch.equal(first["state"], other["state"])
    expected = make(4)
    assert torch.equal(other["state"][:, 0], expected.reset()["obs"]["state"])
    expected.close()


def test_another_seed_without_make_env_is_refused_but_the_own_seed_is_not() -> None:
    env = TorchRLEnv(make(seed=3))
    env.set_seed(3)
    with pytest.raises(InputError, match="built for seed 3"):
        env.set_seed(4)
    env.close()


def test_a_make_env_that_makes_another_size_is_refused() -> None:
    env = TorchRLEnv(make(), lambda seed: make(seed, num_envs=4))
    with pytest.raises(InputError, match="another num_envs or other specs"):
        env.set_seed(9)
    env.close()


def test_outcomes_name_how_episodes_ended(env: TorchRLEnv) -> None:
    data = env.rollout(4 * LIMIT, Script(), break_when_any_done=False)
    outcome, length = data["next", "outcome"], data["next", "episode_length"]
    assert torch.equal(outcome == Outcome.TIMEOUT, data["next", "truncated"])
    assert (length[data["next", "truncated"]] == LIMIT).all()
    assert data["next", "truncated"].any()
    assert data["next", "terminated"].any()


def test_an_env_whose_keys_clash_with_torchrls_is_refused() -> None:
    class Clash(NavigationEnv):
        @property
        def observation_spec(self) -> dict[str, TensorSpec]:
            return super().observation_spec | {"reward": TensorSpec((), torch.float32)}

    with pytest.raises(InputError, match="reward"):
        TorchRLEnv(Clash(NavigationConfig(num_envs=2, num_maps=1, static_obstacles=1, moving_obstacles=0)))
