"""Nothing depends on which side one is, on where north is, on threads, or on how a population is split."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.baselines.aircombat.behaviour import Action, Pilots
from fledge.core.errors import InputError
from fledge.tasks.aircombat.config import Scenario
from fledge.tasks.aircombat.env import AircombatEnv
from tests.tasks.aircombat.duels import PLAIN, action, make

VECTORS = ("pos", "dir", "m_pos", "m_dir")
DUELS = 150


def same(t: Tensor) -> Tensor:
    return t


def swapped(t: Tensor) -> Tensor:
    """Both sides of every duel change places."""
    return t.unflatten(0, (-1, 2)).flip(1).flatten(0, 1) if len(t) == 2 * DUELS else t


def mirrored(v: Tensor) -> Tensor:
    return v * torch.tensor([1.0, -1.0])


def quarter_turned(v: Tensor) -> Tensor:
    return torch.stack([-v[..., 1], v[..., 0]], -1)


WORLDS: dict[str, tuple[Callable, Callable, float]] = {  # rows, vectors, sign of the rudder
    "mirrored": (same, mirrored, -1.0),
    "turned by 90 degrees": (same, quarter_turned, 1.0),
    "with sides swapped": (swapped, same, 1.0),
    "mirrored, turned and swapped": (swapped, lambda v: quarter_turned(mirrored(v)), -1.0),
}


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("dt_s", [0.1, 0.2])
def test_fights_in_another_world_agree_bit_for_bit(name: str, dt_s: float) -> None:
    rows, vectors, sign = WORLDS[name]
    changes: dict[str, Any] = {"scenario": Scenario.mixed, "dt_s": dt_s, "decimation": round(1 / dt_s)}
    here, there = make(DUELS, seed=3, **changes), make(DUELS, seed=3, **changes)

    def moved(parts: dict[str, Tensor]) -> dict[str, Tensor]:
        return {k: rows(vectors(v) if k in VECTORS else sign * v if k == "rudder" else v) for k, v in parts.items()}

    state = here.state_dict()
    there.load_state_dict(state | {"duels": moved(state["duels"])})
    out_here, out_there, pilots = here.make_buffers(), there.make_buffers(), Pilots(2 * DUELS, 3)
    on = torch.ones(2 * DUELS, dtype=torch.bool)
    ends = 0
    for _ in range(200):
        given = pilots.act(here)
        here.step(given, out=out_here)
        there.step({k: rows(sign * v if k == "rudder" else v) for k, v in given.items()}, out=out_there)
        assert torch.equal(rows(out_here["outcome"])[rows(on)], out_there["outcome"][rows(on)])
        on &= out_here["outcome"] == 0
        ends += int((out_here["outcome"] > 0).sum())
        want, there_on = moved(here.state), rows(on)
        for key in ("pos", "dir", "speed", "rudder", "fired", "m_pos", "m_dir", "m_speed", "m_flying", "m_least"):
            assert torch.equal(want[key][there_on], there.state[key][there_on]), key
    assert ends > DUELS


def fly(env: AircombatEnv, given: list[Action], part: slice = slice(None)) -> dict[str, Tensor]:
    """Everything that the env gave, decision by decision, and where it is."""
    out, seen = env.make_buffers(), []
    env.reset(out=out)
    for step in given:
        env.step({k: v[part].contiguous() for k, v in step.items()}, out=out)
        seen.append(out.clone())
    flown = {str(k): torch.stack([s[k] for s in seen]) for k in ("reward", "terminated", "truncated", "outcome")}
    flown |= {name: torch.stack([s["obs", name] for s in seen]) for name in env.observation_spec}
    flown |= {f"state.{k}": v.clone() for k, v in env.state.items()}
    env.close()
    return flown


def controls(rows: int, decisions: int = 60) -> list[Action]:
    generator = torch.Generator().manual_seed(1)
    turns = 2 * torch.rand(rows, generator=generator) - 1
    return [
        action(rows, turns, torch.rand(rows, generator=generator), torch.rand(rows, generator=generator) < 0.2)
        for _ in range(decisions)
    ]


MIXED = dataclasses.replace(PLAIN, scenario=Scenario.mixed, max_episode_s=45.0)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    given = controls(94)
    one, *others = (
        fly(AircombatEnv(dataclasses.replace(MIXED, num_envs=94), seed=5, num_threads=n), given) for n in (1, 2, 3, 8)
    )
    assert one["truncated"].any()
    assert one["terminated"].any()
    for other in others:
        for key, value in one.items():
            assert torch.equal(other[key], value), key


def test_results_do_not_depend_on_how_duels_are_split_over_envs() -> None:
    given = controls(60)
    whole = fly(AircombatEnv(dataclasses.replace(MIXED, num_envs=60), seed=5), given)
    for part in (slice(0, 22), slice(22, 60)):
        size = part.stop - part.start
        cfg = dataclasses.replace(MIXED, num_envs=size)
        found = fly(AircombatEnv(cfg, seed=5, env_offset=part.start, total_envs=60), given, part)
        for key, value in found.items():
            dim = 0 if key.startswith("state.") else 1
            per_row = value.shape[dim] == size
            want = whole[key].narrow(dim, part.start if per_row else part.start // 2, value.shape[dim])
            assert torch.equal(value, want), key


def test_a_masked_reset_begins_fights_only_where_it_is_asked_to() -> None:
    env = make(10, scenario=Scenario.mixed)
    for given in controls(20, 5):
        env.step(given)
    before = {k: v.clone() for k, v in env.state.items()}
    chosen = torch.zeros(10, dtype=torch.bool)
    chosen[[2, 7]] = True
    env.reset(chosen.repeat_interleave(2))
    for key, value in env.state.items():
        per_duel = value.reshape(10, -1)
        assert torch.equal(per_duel[~chosen], before[key].reshape(10, -1)[~chosen]), key
    assert (env.state["time"][chosen] == 0).all()
    assert (env.state["episode"] - before["episode"]).tolist() == chosen.int().tolist()
    assert (env.state["alive"] == 1).all()


def test_a_mask_that_splits_a_duel_is_refused() -> None:
    env = make(3)
    with pytest.raises(
        InputError, match="env_mask splits an episode: it must have one value in each group of 2 consecutive rows"
    ):
        env.reset(torch.tensor([True, True, True, False, False, False]))


def test_a_fight_goes_on_exactly_from_a_saved_state() -> None:
    given = controls(40)
    straight, stopped = (AircombatEnv(dataclasses.replace(MIXED, num_envs=40), seed=6) for _ in range(2))
    want = fly(straight, given)
    stopped.reset()
    for step in given[:20]:
        stopped.step(step)
    resumed = AircombatEnv(dataclasses.replace(MIXED, num_envs=40), seed=6)
    resumed.load_state_dict(stopped.state_dict())
    for step in given[20:]:
        resumed.step(step)
    for key, value in resumed.state.items():
        assert torch.equal(value, want[f"state.{key}"]), key
