"""A fight in real time, without a browser: seats, ticks, the past, and what is kept of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fledge import TensorEnv, find_task
from fledge.app.play import session
from fledge.app.play.fight_state import Hands, Seat
from fledge.app.play.session import Fight
from fledge.core.errors import ConfigError, InputError
from fledge.core.specs import TensorSpec
from fledge.envs.placement import EnvPlacement
from fledge.storage import Recording
from fledge.tasks.aircombat.policy import DuelPolicy
from fledge.tasks.policy_loader import make_pilot
from fledge.tasks.view.controls import Control, command_of, controls_of, without_buttons

TASK = find_task("aircombat")


def pilot(name: str) -> Seat:
    return Seat(name, make_pilot(TASK, name), 1.0)


@pytest.fixture
def fights() -> Iterator[Any]:
    made: list[Fight] = []

    def begin(*seats: str, seed: int = 3, **settings: Any) -> Fight:
        sat = [Seat("you") if name == "you" else pilot(name) for name in seats]
        made.append(Fight(TASK, dataclasses.replace(TASK.config(), **settings), sat, seed))
        return made[-1]

    yield begin
    for fight in made:
        fight.close()


def fly(fight: Fight, ticks: int = 10_000) -> np.ndarray:
    for _ in range(ticks):
        fight.step()
    return np.stack(fight.frames)


def test_the_same_seed_and_commands_are_the_same_fight(fights: Any) -> None:
    anywhere = {"scenario": type(TASK.config().scenario)["random"]}
    first, second = fights("envelope", "random", **anywhere), fights("envelope", "random", **anywhere)
    seen = fly(first, 300)
    assert np.array_equal(seen, fly(second, 300))
    first.restart()
    assert np.array_equal(seen, fly(first, 300))
    assert not np.array_equal(seen, fly(fights("envelope", "random", seed=4, **anywhere), 300))


def test_going_back_and_on_is_the_same_fight_bit_for_bit(fights: Any) -> None:
    """Random's stream is part of what is kept; the moment lies between two kept states, and in the middle of a decision."""
    fight = fights("envelope", "random")
    before = fly(fight)
    ending = fight.over
    assert ending is not None
    fight.rewind(333)
    assert fight.tick == 333
    assert fight.over is None
    assert np.array_equal(np.stack(fight.frames), before[:334])
    assert np.array_equal(fight.layout.pack(fight.look()), before[333])
    assert np.array_equal(fly(fight), before)
    assert fight.over == ending
    fight.rewind(0)
    assert np.array_equal(fly(fight), before)


def test_a_recurrent_pilot_goes_back_with_its_memory(fights: Any) -> None:
    fight = fights("placeholder", "placeholder")
    spec = TASK.make_env(fight.cfg, EnvPlacement(num_threads=1))
    torch.manual_seed(0)
    policy = DuelPolicy(fight.cfg.missile.carried, True, spec.action_spec, (16,), 8, gru_size=5).eval()
    spec.close()
    with torch.no_grad():
        policy.head.heads["rudder"].layer.weight *= 100.0  # so that the memory shows in the flight
    fight.sit(0, Seat("recurrent", policy, 0.5))
    seen = fly(fight, 400)
    fight.rewind(333)
    assert np.array_equal(seen, fly(fight, 67))
    fight.rewind(100)
    policy.reset()  # as if it were not part of the fight
    assert not np.array_equal(seen, fly(fight, 300))
    fight.rewind(0)
    assert np.array_equal(seen, fly(fight, 400))


def test_a_taken_over_fight_goes_on_from_its_moment(fights: Any) -> None:
    fight = fights("envelope", "crank")
    before = fly(fight, 400)
    fight.rewind(200)
    fight.sit(0, Seat("you"))
    fight.hands[0].put({"rudder": 1.0, "throttle": 0.5})
    after = fly(fight, 100)
    assert np.array_equal(after[:201], before[:201])
    assert not np.array_equal(after[-1], before[300])
    assert fight.frame_at(300)["rudder"][0] == 1.0
    fight.rewind(250)  # who took over sits there still
    assert fight.seats[0].agent is None
    fight.rewind(150)
    assert fight.seats[0].name == "envelope"
    assert np.array_equal(fly(fight, 250), before)


def test_branches_say_what_still_holds(fights: Any) -> None:
    fight = fights("crank", "crank")
    seen = fight.branch
    fly(fight, 100)
    assert fight.still_holds(seen) == 100
    fight.rewind(60)
    fly(fight, 10)
    fight.rewind(40)
    assert fight.still_holds(seen) == 40
    assert fight.still_holds(seen + 1) == 40
    fight.restart()
    assert fight.still_holds(seen) == -1
    assert len(fight.frames) == 1


def test_a_press_fires_once_and_held_commands_do_not(fights: Any) -> None:
    fight = fights("you", "placeholder")
    fight.hands[0].put({"fire": 1})
    fly(fight, 40)
    assert fight.frame_at(40)["missiles_left"].tolist() == [5, 6]
    fight.hands[0].put({"fire": True})  # not a number
    fly(fight, 10)
    assert fight.frame_at(50)["missiles_left"][0] == 5


def test_agents_decide_at_their_own_rate(fights: Any) -> None:
    fight = fights("envelope", "placeholder")
    times = []
    act = fight.seats[0].agent.act
    fight.seats[0].agent.act = lambda obs, deterministic=True: times.append(fight.tick) or act(obs, deterministic)
    fly(fight, 61)
    assert times == [0, 20, 40, 60]


def test_an_agents_fight_is_nearly_what_evaluation_flies(fights: Any) -> None:
    """Ticks of half a physics step: both sides stay within a few metres of the plain env for twenty decisions."""
    fight = fights("pursuit", "placeholder", seed=5, scenario=type(TASK.config().scenario)["random"])
    env = TASK.make_env(TASK.match.match_config(fight.cfg, 1), EnvPlacement(seed=5, num_threads=1))
    out = env.reset()
    for _ in range(20):
        rows = [seat.agent.act({k: v[i : i + 1] for k, v in out["obs"].items()}) for i, seat in enumerate(fight.seats)]
        out = env.step({name: torch.cat([row[name] for row in rows]) for name in rows[0]})
    fly(fight, 400)
    apart = np.abs(fight.frame_at(400)["pos"] - TASK.view.snapshot(env, [0])["pos"][0]).max()
    env.close()
    assert apart < 20.0


def test_real_time_is_kept_and_lag_is_let_go(fights: Any) -> None:
    fight = fights("placeholder", "placeholder")
    assert fight.advance(0.12) == 2
    assert fight.advance(0.03) == 1
    assert fight.advance(60.0) <= 6
    fight.set_speed(0.1)
    assert fight.advance(0.2) + fight.advance(0.2) <= 1
    fight.set_speed(100)
    assert fight.speed == 4.0
    fight.paused = True
    assert fight.advance(1.0) == 0
    tick = fight.tick
    fight.step()
    assert fight.tick == tick + 1


def test_it_ends_and_stays_ended(fights: Any) -> None:
    fight = fights("placeholder", "pursuit")
    fly(fight)
    assert fight.over is not None
    assert fight.over.outcomes == ["loss", "win"]
    count = len(fight.frames)
    assert fight.advance(1.0) == 0
    fight.step()
    assert len(fight.frames) == count


def test_the_past_is_bounded(fights: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_KEYS", 4)
    whole = fly(fights("random", "placeholder"), 300)
    fight = fights("random", "placeholder")
    fly(fight, 200)
    assert len(fight.kept) <= 5
    monkeypatch.setattr(session, "MAX_HISTORY_BYTES", 100 * 4 * fight.layout.width)
    fly(fight, 100)
    assert len(fight.frames) <= 100 + fight.key_every
    assert fight.first > 0
    with pytest.raises(InputError, match=f"Choose a tick from {fight.first}"):
        fight.rewind(0)
    fight.rewind(fight.first + 7)
    assert np.array_equal(fight.layout.pack(fight.look()), fight.frames[-1])
    assert np.array_equal(np.stack(fight.frames), whole[fight.first : fight.tick + 1])


def test_it_is_saved_as_a_recording(fights: Any, tmp_path: Path) -> None:
    fight = fights("placeholder", "pursuit")
    seen = fly(fight)
    fight.save(tmp_path / "fight.frec")
    with Recording(tmp_path / "fight.frec") as recording:
        (episode,) = list(recording)
        track = recording.track(0)
        assert episode.outcome == "loss"
        assert recording.seconds_per_frame == fight.tick_s
        assert recording.facts["policies"] == ["placeholder", "pursuit"]
        assert recording.facts["seed"] == 3
        assert np.array_equal(track["frames"]["pos"].reshape(len(seen), -1), seen[:, :4])


def test_misuse_is_told_in_a_sentence(fights: Any) -> None:
    with pytest.raises(ConfigError, match="aircombat has 2 sides, but got 1 seats"):
        Fight(TASK, TASK.config(), [Seat("you")])
    fight = fights("you", "crank")
    with pytest.raises(InputError, match="is not in the history"):
        fight.rewind(5)
    blind = make_pilot(TASK, "crank")
    assert blind is not None
    blind.observes = ("lidar",)
    with pytest.raises(ConfigError, match="lidar"):
        fight.sit(1, Seat("blind", blind))
    assert fight.seats[1].name == "crank"


# ---- controls ----------------------------------------------------------------------------------------------------------


def test_hands_take_only_what_is_a_control_and_a_number() -> None:
    hands = Hands([Control("rudder", "stick", -1.0, 1.0), Control("fire", "button")])
    hands.put({"rudder": 7, "fire": 1, "do": "hands", "x": 3})
    assert hands.take() == {"rudder": 1.0, "fire": 1.0}
    assert hands.take() == {"rudder": 1.0, "fire": 0.0}
    for bad in ("1", None, True, float("nan"), [1], {}):
        hands.put({"rudder": bad})
        assert hands.values["rudder"] == 0.0


def test_controls_of_any_world_of_plain_numbers() -> None:
    spec = {
        "turn": TensorSpec((), torch.float32, -2.0, 2.0),
        "push": TensorSpec((), torch.float32, 0.0, 1.0),
        "fire": TensorSpec((), torch.int64, 0, 1, num_values=2),
    }
    controls = controls_of(spec)
    assert [c.kind for c in controls] == ["stick", "lever", "button"]
    action = command_of(spec, {"turn": 1.5, "push": 0.0, "fire": 1.0})
    assert isinstance(action, dict)
    assert action["fire"].tolist() == [1]
    assert without_buttons(controls, action)["fire"].tolist() == [0]
    assert without_buttons(controls, action)["turn"].tolist() == [1.5]
    assert controls_of(TensorSpec((3,), torch.float32, -1.0, 1.0)) == []
    assert controls_of(TensorSpec((), torch.float32)) == []


@pytest.mark.parametrize(("rudder", "fire", "meant"), [(1.0, 0, 0), (0.1, 0, 2), (-0.9, 1, 5), (0.0, 1, 3)])
def test_hands_in_the_discrete_form(rudder: float, fire: int, meant: int) -> None:
    env: TensorEnv = TASK.make_env(TASK.config(num_envs=2, action_form=type(TASK.config().action_form)["discrete"]))
    action = TASK.view.command(env, {"rudder": rudder, "throttle": 0.3, "fire": float(fire)})
    assert action.tolist() == [meant]
    assert TASK.view.hold(env, action).tolist() == [meant - fire]
    env.close()
