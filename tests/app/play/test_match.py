"""A match without a browser: people come and go, do sense and nonsense, and the socket tells them what they have not seen."""

from __future__ import annotations

import json
import random
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fledge import find_task
from fledge.app.play import match as match_module
from fledge.app.play.match import Match
from fledge.app.play.match_manager import MAX_MATCHES, MatchManager, read_play_args
from fledge.app.play.roster import Roster
from fledge.app.runs.file_index import FileIndex
from fledge.app.runs.runs import RunCache
from fledge.core.errors import ConfigError

ANN, BOB, EVE = "ann-00000001", "bob-00000002", "eve-00000003"


@pytest.fixture(scope="module")
def roster() -> Roster:
    return Roster(find_task("aircombat"))


@pytest.fixture
def begin(roster: Roster) -> Iterator[Callable[..., Match]]:
    made: list[Match] = []

    def make(*names: str, seed: int = 5, start: str | None = "head_on") -> Match:
        made.append(Match(roster, names, start, seed))
        return made[-1]

    yield make
    for match in made:
        match.close()


def until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def test_a_person_flies_and_fires(begin: Callable[..., Match]) -> None:
    match = begin("you", "placeholder")
    time.sleep(0.2)
    assert match.fight.tick == 0  # nobody is here
    match.enter(ANN)
    assert match.state(ANN)["seats"][0]["yours"]
    match.do(ANN, {"do": "hands", "rudder": 1.0, "fire": 1})
    until(lambda: match.fight.tick > 20)
    match.do(ANN, {"do": "pause"})
    frame = match.fight.frame_at(match.fight.tick)
    assert frame["missiles_left"].tolist() == [5, 6]
    assert frame["rudder"][0] == 1.0
    graph = until(lambda: match.graph_for(ANN) if match.graph_for(ANN) else None)
    assert len(graph[2]["sides"]) == 2


def test_two_people_and_one_leaves(begin: Callable[..., Match]) -> None:
    match = begin("you", "you")
    match.enter(ANN)
    assert match.waiting_for() == [1]
    match.enter(BOB)
    assert [seat["yours"] for seat in match.state(BOB)["seats"]] == [False, True]
    match.enter(EVE)  # no seat is left: she watches
    assert not any(seat["yours"] for seat in match.state(EVE)["seats"])
    match.do(EVE, {"do": "hands", "rudder": 1.0})
    match.do(BOB, {"do": "hands", "rudder": -1.0})
    until(lambda: match.fight.tick > 5)
    match.leave(BOB)
    tick = match.fight.tick
    assert match.state(ANN)["waiting"] == [1]
    time.sleep(0.2)
    assert match.fight.tick == tick  # it waits
    match.do(EVE, {"do": "take", "seat": 1})
    assert match.state(EVE)["note"] == "Another person has this seat: ask them to leave it."
    match.enter(BOB)  # and has the seat again
    assert match.state(BOB)["seats"][1]["yours"]
    until(lambda: match.fight.tick > tick)
    match.leave(BOB)
    match.do(ANN, {"do": "give", "seat": 1, "to": "crank"})
    assert match.state(ANN)["waiting"] == []
    assert match.fight.frame_at(3)["rudder"].tolist() == [0.0, -1.0]


def test_a_seat_is_free_after_a_while(begin: Callable[..., Match], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(match_module, "RESERVED_S", 0.0)
    match = begin("you", "crank")
    match.enter(ANN)
    match.leave(ANN)
    match.enter(BOB)
    assert match.state(BOB)["seats"][0]["yours"]


def test_going_back_and_taking_over(begin: Callable[..., Match]) -> None:
    match = begin("envelope", "crank")
    match.enter(ANN)
    match.do(ANN, {"do": "speed", "to": 4})
    until(lambda: match.fight.tick > 60)
    match.do(ANN, {"do": "rewind", "tick": 30, "paused": True})
    assert match.fight.tick == 30
    match.do(ANN, {"do": "take", "seat": 1})
    match.do(ANN, {"do": "pause", "on": False})
    told = match.state(ANN)
    assert told["seats"][1]["yours"]
    assert told["seats"][0]["name"] == "envelope"
    match.do(ANN, {"do": "take", "seat": 0})  # changes places
    told = match.state(ANN)
    assert told["seats"][0]["yours"]
    assert told["seats"][1]["name"] == "envelope"
    match.do(ANN, {"do": "rewind", "tick": 5, "paused": True})
    assert match.state(ANN)["seats"][0]["yours"]  # who sits now stays
    match.do(ANN, {"do": "restart", "seed": 9, "start": "chase"})
    assert (match.fight.seed, match.start, match.fight.scene["scenario"]) == (9, "chase", "chase")


@pytest.mark.parametrize(
    "message",
    [
        {}, {"do": None}, {"do": "close"}, {"do": "__init__"}, {"do": ["hands"]},
        {"do": "rewind"}, {"do": "rewind", "tick": -1}, {"do": "rewind", "tick": 1e300}, {"do": "rewind", "tick": "1"},
        {"do": "speed", "to": "fast"}, {"do": "speed", "to": float("nan")}, {"do": "take", "seat": 2},
        {"do": "take", "seat": True},
        {"do": "give", "seat": 1, "to": "/etc/passwd"}, {"do": "give", "seat": 1, "to": "x" * 4000},
        {"do": "give", "seat": 1, "to": None}, {"do": "restart", "seed": -1}, {"do": "restart", "start": "../x"},
        {"do": "restart", "start": "head_on.yaml"}, {"do": "restart", "start": 3}, {"do": "look", "tick": "x"},
        {"do": "hands", "rudder": {"a": 1}, "fire": [1]},
    ],
)  # fmt: skip
def test_nonsense_changes_nothing(begin: Callable[..., Match], message: dict[str, Any]) -> None:
    match = begin("you", "crank")
    match.do(ANN, {"do": "pause"})
    match.enter(ANN)
    match.do(ANN, message)
    assert match.fight.tick == 0
    assert [seat.name for seat in match.fight.seats] == ["you", "crank"]
    assert (match.fight.seed, match.fight.speed) == (5, 1.0)
    assert len(json.dumps(match.state(ANN))) < 4000


def test_only_the_roster_can_be_met(roster: Roster, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a known pilot or policy"):
        roster.seat(str(tmp_path))
    with pytest.raises(ConfigError, match="no parameter"):
        roster.seat("crank(x=3)")
    assert roster.seat("crank(shot=0.8)").agent.shot == 0.8
    with pytest.raises(ConfigError, match="is not a known start"):
        roster.begin(["you", "crank"], "secret.yaml")
    roster.put("crank", "elsewhere")  # a run cannot be called as a pilot is
    assert "crank" not in roster._files


def test_a_manager_has_room_for_a_few_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    matches = MatchManager()
    try:
        names = [matches.begin(["placeholder", "placeholder"]) for _ in range(MAX_MATCHES)]
        with pytest.raises(ConfigError, match="matches already"):
            matches.begin(["placeholder", "placeholder"])
        matches.matches[names[0]].used -= 60.0  # unused for a minute
        matches.begin(["placeholder", "placeholder"])
        assert names[0] not in matches.matches
        assert len(matches.listed()) == MAX_MATCHES
    finally:
        matches.close()
    with pytest.raises(ConfigError, match="a match needs 2"):
        MatchManager("navigation")


def test_no_person_enters_a_match_that_is_being_closed(begin: Callable[..., Match]) -> None:
    match = begin("you", "placeholder")
    match.enter(ANN)
    assert not match.close_if_idle(-1.0), "a person is in it"
    match.leave(ANN)
    assert not match.close_if_idle(60.0), "one was in it a moment ago"
    assert match.close_if_idle(-1.0)
    with pytest.raises(ConfigError, match="was closed"):
        match.enter(BOB)
    env, tick = match.fight.env, match.fight.tick
    for verb in ("restart", "step", "hands", "rewind"):
        match.do(BOB, {"do": verb, "tick": 0})
    assert (match.fight.env, match.fight.tick, match.people) == (env, tick, {})


def test_people_who_come_and_go_at_once_leave_nothing_behind(begin: Callable[..., Match]) -> None:
    match = begin("you", "you")

    def visit(who: str) -> None:
        rng = random.Random(who)
        for _ in range(15):
            match.enter(who)
            for verb in ("take", "give", "rewind", "restart", "step", "look", "pause"):
                match.do(who, {"do": verb, "seat": rng.randrange(3), "tick": rng.randrange(4), "to": "placeholder"})
            match.state(who)
            match.leave(who)

    visitors = [threading.Thread(target=visit, args=(f"visitor-{number % 6}",)) for number in range(12)]
    for thread in visitors:
        thread.start()
    for thread in visitors:
        thread.join(60)
    assert (match.people, match.looking) == ({}, {})
    assert len(match.graphs) <= 8
    match.enter(ANN)
    match.do(ANN, {"do": "pause", "on": False})
    assert "The match stopped" not in match.note


def test_the_arguments_of_play() -> None:
    matches, path = read_play_args(
        ["aircombat", "opponent=crank(shot=0.9)", "seed=7", "start=chase", "env.missile.carried=2"]
    )
    assert path == "/play?blue=you&red=crank%28shot%3D0.9%29&start=chase&seed=7"
    assert matches.roster.overrides == ["env.missile.carried=2"]
    assert read_play_args([])[1] == "/play"
    for words, told in (
        (["opponent=nobody"], "no policy 'nobody'"),
        (["seed=x"], "whole number"),
        (["start=up"], "start='up' is not a known start"),
        (["red=crank", "opponent=drag"], "both name the red side"),
        (["navigation"], "a match needs 2"),
        (["env.speed=3"], "speed"),
        (["env.reward=os:system"], "not a known reward"),
    ):
        with pytest.raises(ConfigError, match=told):
            read_play_args(words)


# ---- the socket --------------------------------------------------------------------------------------------------------


def test_a_spectator_decides_nothing_while_a_person_flies(begin: Callable[..., Match]) -> None:
    match = begin("you", "placeholder")
    match.enter(ANN)
    match.enter(EVE)
    until(lambda: match.fight.tick > 2)
    match.do(ANN, {"do": "pause"})
    before = match.fight.tick, match.fight.branch, match.fight.speed
    for message in (
        {"do": "pause", "on": False},
        {"do": "speed", "to": 4},
        {"do": "step"},
        {"do": "rewind", "tick": 0},
        {"do": "restart", "seed": 9},
        {"do": "give", "seat": 1, "to": "crank"},
    ):
        match.do(EVE, message)
        assert match.state(EVE)["note"].startswith("You are watching, and only people who fly can")
    assert (match.fight.tick, match.fight.branch, match.fight.speed) == before
    assert match.fight.paused
    assert match.fight.seats[1].name == "placeholder"
    match.leave(ANN)
    match.do(EVE, {"do": "speed", "to": 4})  # nobody flies any more
    assert match.fight.speed == 4.0


def test_a_number_beyond_floats_is_the_greatest_there_is(begin: Callable[..., Match]) -> None:
    match = begin("you", "placeholder")
    match.enter(ANN)
    match.do(ANN, {"do": "pause"})
    match.do(ANN, {"do": "speed", "to": 10**400})
    assert match.fight.speed == 4.0
    match.do(ANN, {"do": "hands", "rudder": -(10**400)})
    assert match.fight.hands[0].values["rudder"] == -1.0


@pytest.fixture
def talk(begin: Callable[..., Match]) -> Callable[..., Any]:
    """A match behind a real websocket route, and a way to open it."""
    pytest.importorskip("nicegui")
    from starlette.applications import Starlette
    from starlette.routing import WebSocketRoute
    from starlette.testclient import TestClient

    from fledge.app.play.socket import serve_player

    matches = {"m": begin("you", "placeholder")}

    async def route(websocket: Any) -> None:
        await serve_player(websocket, matches.get(websocket.path_params["name"]))

    client = TestClient(Starlette(routes=[WebSocketRoute("/{name}", route)]))
    return lambda name="m": (client.websocket_connect(f"/{name}"), matches["m"])


def hear(socket: Any, what: str) -> Any:
    """The next message of a kind; frames are "frames"."""
    for _ in range(500):
        message = socket.receive()
        if message.get("bytes"):
            told: Any = {"say": "frames", "bytes": message["bytes"]}
        elif message.get("text"):
            told = json.loads(message["text"])
        else:
            told = {"say": "closed"}
        if told["say"] == what:
            return told
    raise AssertionError(f"no {what} came")


def test_a_page_is_told_everything_it_has_not_seen(talk: Callable[..., Any]) -> None:
    opened, match = talk()
    with opened as socket:
        socket.send_text(json.dumps({"do": "hello", "who": ANN}))
        told = hear(socket, "welcome")
        width = sum(int(np.prod(shape)) for _, shape in told["layout"])
        assert [control["name"] for control in told["controls"]] == ["rudder", "throttle", "fire"]
        frames = hear(socket, "frames")["bytes"]
        branch, first = struct.unpack("<II", frames[:8])
        assert (branch, first, (len(frames) - 8) % (4 * width)) == (match.fight.branch, 0, 0)
        assert hear(socket, "state")["seats"][0]["yours"]
        assert hear(socket, "graph")["graph"]["sides"]
        socket.send_text(json.dumps({"do": "rewind", "tick": 0}))
        assert hear(socket, "cut")["tick"] == 0
    until(lambda: not match.people)
    again, _ = talk()
    with again as socket:  # comes back, and gets the whole fight and the seat
        socket.send_text(json.dumps({"do": "hello", "who": ANN}))
        assert struct.unpack("<II", hear(socket, "frames")["bytes"][:8])[1] == 0
        assert hear(socket, "state")["seats"][0]["yours"]


@pytest.mark.parametrize(
    "first",
    ["", "[]", "{", '{"do": "hello"}', '{"do": "hello", "who": "<b>"}', '{"do": "pause"}', "[" * 4000, "x" * 100_000],
)
def test_who_does_not_say_hello_is_left(talk: Callable[..., Any], first: str) -> None:
    opened, match = talk()
    with opened as socket:
        socket.send_text(first)
        hear(socket, "gone")
        assert socket.receive()["type"] == "websocket.close"
    assert not match.people


def test_a_page_that_says_nothing_is_left(talk: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fledge.app.play.socket.HELLO_S", 0.1)
    opened, match = talk()
    with opened as socket:
        assert socket.receive()["type"] == "websocket.close"
    assert not match.people


@pytest.mark.parametrize("then", ["x" * 5000, "{", "3"])
def test_who_sends_nonsense_later_is_left(talk: Callable[..., Any], then: str) -> None:
    opened, match = talk()
    with opened as socket:
        socket.send_text(json.dumps({"do": "hello", "who": ANN}))
        hear(socket, "welcome")
        socket.send_text(then)
        hear(socket, "closed")
    until(lambda: not match.people)


def test_who_sends_bytes_is_left(talk: Callable[..., Any]) -> None:
    opened, match = talk()
    with opened as socket:
        socket.send_text(json.dumps({"do": "hello", "who": ANN}))
        hear(socket, "welcome")
        socket.send_bytes(b"\x00\xff")
        hear(socket, "closed")
    until(lambda: not match.people)


def test_a_page_does_not_hold_up_others_while_its_fight_is_busy(talk: Callable[..., Any]) -> None:
    import asyncio

    from fledge.app.play.socket import Sender

    _, match = talk()
    held, free = threading.Event(), threading.Event()

    def hold() -> None:
        with match.lock:
            held.set()
            free.wait(30)

    class Ear:
        sent: list[Any] = []

        async def send_text(self, text: str) -> None:
            self.sent.append(json.loads(text)["say"])

        async def send_bytes(self, data: bytes) -> None:
            self.sent.append("frames")

    async def listen() -> None:
        sender = asyncio.create_task(Sender(Ear(), match, ANN).run())
        for _ in range(5):  # this loop would stand still
            await asyncio.sleep(0.01)
        assert Ear.sent == ["welcome"]
        free.set()
        while "state" not in Ear.sent:
            await asyncio.sleep(0.01)
        sender.cancel()

    threading.Thread(target=hold, daemon=True).start()
    held.wait(10)
    asyncio.run(asyncio.wait_for(listen(), 20))


def test_who_sends_too_much_is_left(talk: Callable[..., Any]) -> None:
    opened, match = talk()
    with opened as socket:
        socket.send_text(json.dumps({"do": "hello", "who": ANN}))
        hear(socket, "welcome")
        for _ in range(2000):
            socket.send_text('{"do": "hands"}')
        hear(socket, "closed")
    until(lambda: not match.people)


def test_there_is_no_match_of_that_name(talk: Callable[..., Any]) -> None:
    opened, _ = talk("other")
    with opened as socket:
        socket.send_text(json.dumps({"do": "hello", "who": ANN}))
        hear(socket, "gone")


def test_only_runs_of_the_played_task_are_offered(tmp_path: Path) -> None:
    pytest.importorskip("nicegui")
    from fledge.app.pages.play import matches_of

    for name, task in (("duel", "aircombat"), ("flight", "navigation")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(f"task: {task}\n")
    roster = Roster(find_task("aircombat"))
    server: Any = SimpleNamespace(matches=SimpleNamespace(roster=roster), files=FileIndex([tmp_path]), runs=RunCache())
    assert matches_of(server).roster.names()[-1] == "duel"
    assert "flight" not in roster.names()
