"""Trainings whose rollouts come from actors: they come and go, the learner is killed, strangers attack."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fledge.collect.remote import NoExperienceError
from fledge.core.errors import ConfigError
from fledge.storage import CheckpointHistory, exchange
from fledge.storage.exchange import ExchangeClient, Kind, Refused, Unreachable, read_token
from fledge.storage.stream import pack_rollout
from fledge.tasks.registry import find_task
from fledge.training import collectors
from fledge.training.actor import Actor, ActorOptions, Flight
from fledge.training.command import check_before_start
from fledge.training.config import make_config
from fledge.training.loop import train
from fledge.training.ranks import Ranks
from tests.reference import toy_worlds

TOY = str(Path(toy_worlds.__file__))
N, T, ITERATIONS = 8, 4, 6
WORDS = ["actors.listen=127.0.0.1:0", f"env.num_envs={N}", f"ppo.rollout_steps={T}", "ppo.minibatch=16"]
WORDS += ["policy.hidden=[8]", "tensorboard=false", "save_interval=1", "keep_checkpoints=99", "ranks=1"]
WORDS += [f"total_frames={ITERATIONS * N * T}", "actors.max_lag=99"]


class Learning:
    """A training in a thread of this process."""

    def __init__(self, folder: Path, *words: str, resume: bool = False) -> None:
        self.folder, self.found, self.error = folder, dict[str, float](), None
        self.cfg = make_config(TOY, None, [*WORDS, *words])
        self.task = find_task(TOY)
        self.servers: list[Any] = []
        self.thread = threading.Thread(target=self._train, args=(resume,), daemon=True)

    def start(self, monkeypatch: pytest.MonkeyPatch) -> Learning:
        make = collectors.ExchangeServer

        def note(*args: Any) -> Any:
            self.servers.append(make(*args))
            return self.servers[-1]

        monkeypatch.setattr(collectors, "ExchangeServer", note)
        self.thread.start()
        wait_for(lambda: bool(self.servers) or not self.thread.is_alive())
        return self

    def _train(self, resume: bool) -> None:
        try:
            self.found = train(self.cfg, self.folder, Ranks(), resume, self.task, quiet=True)
        except Exception as error:
            self.error = error

    @property
    def options(self) -> ActorOptions:
        token = read_token(self.folder / "actors.token")
        return ActorOptions(self.servers[0].address, token, envs=N // 2, device="cpu", threads=1, minutes=0.0)

    def join(self) -> dict[str, float]:
        self.thread.join(60)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.found

    def rows(self) -> list[dict[str, float]]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def weights(self) -> dict[str, torch.Tensor]:
        return CheckpointHistory(self.folder / "checkpoints").load_latest()[0]["model"]


def wait_for(what: Callable[[], bool], seconds: float = 60.0) -> None:
    limit = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < limit, "it did not happen"
        time.sleep(0.01)


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def job_of(cfg: Any, number: int = 1) -> dict[str, Any]:
    """Return the job that a learner with this config gives to an actor."""
    from omegaconf import OmegaConf

    entries = ["input", "raw_action", "log_prob", "value", "next_value", "reward"]
    entries += ["terminated", "truncated", "outcome", "episode_return", "episode_length"]
    config = OmegaConf.to_yaml(OmegaConf.structured(cfg))
    return {"config": config, "run": "r", "envs": N, "rows": 1, "entries": entries, "number": number}


# ---- a training ------------------------------------------------------------------------------------------------------


def test_two_actors_train_a_policy_and_end_with_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learning = Learning(tmp_path / "run").start(monkeypatch)
    lines: list[list[str]] = [[], []]
    actors = [Actor(learning.options, find_task(TOY), say=own.append) for own in lines]
    threads = [threading.Thread(target=actor.run) for actor in actors]
    for thread in threads:
        thread.start()
    found = learning.join()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert all("Training has finished" in own[-1] for own in lines), lines
    assert {own[0].split()[1] for own in lines} <= {"1", "2"}
    rows = learning.rows()
    assert [row["step"] for row in rows] == [*range(1, ITERATIONS + 1)]
    assert sum(actor.frames for actor in actors) >= ITERATIONS * N * T
    assert found["episodes"] == pytest.approx(rows[-1]["episodes"])
    assert max(row["actors/connected"] for row in rows) >= 1
    assert all(row["actors/lag"] >= 0 and row["actors/discarded"] == 0 for row in rows)
    assert sum(row["actors/bytes_per_second"] for row in rows) > 0


def test_actors_fly_with_their_own_random_numbers_and_the_learners_progress() -> None:
    cfg = make_config(TOY, None, WORDS)
    options = ActorOptions("here:1", b"x" * 32, envs=4, device="cpu", threads=1)
    one, again, other = (Flight(job_of(cfg, number), options, find_task(TOY), ()) for number in (1, 1, 2))
    for flight in (again, other):
        flight.policy.load_state_dict(one.policy.state_dict())
    first, same_again, second = (flight.fly()[0] for flight in (one, again, other))
    assert all(torch.equal(first[name], same_again[name]) for name in first.keys())  # noqa: SIM118
    assert not (first["input"][:-1] == second["input"][:-1]).all(-1).any()
    assert first.batch_size == (T + 1, 4)
    following = one.fly()[0]
    assert torch.equal(following["input"][0], first["input"][-1]), "the extra row is the next observation"


def test_settings_that_actors_cannot_work_with_are_named(tmp_path: Path) -> None:
    def refusal(*words: str, ranks: int = 1) -> str:
        cfg = make_config("gym:CartPole-v1", None, ["actors.listen=127.0.0.1:0", "env.num_envs=8", *words])
        with pytest.raises(ConfigError) as caught:
            check_before_start(find_task("gym:CartPole-v1"), cfg, ranks)
        return str(caught.value)

    assert "works with one rank, but there are 2: set ranks=1" in refusal(ranks=2)
    assert "algo=dqn" in refusal("algo=dqn", "replay.warm_up=0")
    assert "collect.mode" in refusal("collect.mode=pipelined")
    assert "leaves nothing to actors" in refusal("actors.local_share=0.99", "env.num_envs=1")
    assert "less than 1" in refusal("actors.local_share=1.0")
    assert "is not an address" in refusal("actors.listen=7000")


def test_a_run_that_waits_for_actors_stops_saves_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learning = Learning(tmp_path / "run", "actors.wait_minutes=0.005").start(monkeypatch)
    with pytest.raises(Exception, match=r"No actor has sent a rollout for 0\.005 minutes"):
        learning.join()
    assert learning.weights()
    resumed = Learning(tmp_path / "run", resume=True).start(monkeypatch)
    Actor(resumed.options, find_task(TOY)).run()
    assert resumed.join()["frames"] == ITERATIONS * N * T


@pytest.mark.parametrize("share", ["0", "0.5"])
def test_a_run_goes_on_without_actors_and_with_actors_again(
    share: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["actors.wait_minutes=0.0005", f"actors.local_share={share}"]
    with pytest.raises(NoExperienceError):
        Learning(tmp_path / "run", *words).start(monkeypatch).join()
    alone = Learning(tmp_path / "run", "actors.listen=", "max_minutes=1e-9", resume=True)
    alone._train(True)
    assert alone.error is None
    again = Learning(tmp_path / "run", *words, resume=True).start(monkeypatch)
    with pytest.raises(NoExperienceError):
        again.join()


# ---- an actor --------------------------------------------------------------------------------------------------------


def test_code_that_only_the_learner_names_does_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(mark)!r}, 'w')\ndef pay(*args): return 0.0\n")
    options = ActorOptions("here:1", b"x" * 32, device="cpu")
    cfg = make_config("gym:CartPole-v1", None, ["env.num_envs=8"])
    cfg.task = f"{evil}"
    with pytest.raises(ConfigError, match="code"):
        Flight(job_of(cfg), options, None, ())
    cfg = make_config("gym:CartPole-v1", None, ["env.num_envs=8"])
    cfg.reward = f"{evil}:pay"
    with pytest.raises(ConfigError, match="is not run unless you name it"):
        Flight(job_of(cfg), options, None, ())
    assert not mark.exists()


def test_an_actor_takes_no_settings_that_are_the_learners() -> None:
    cfg = make_config(TOY, None, WORDS)
    options = ActorOptions("here:1", b"x" * 32, device="cpu", threads=1)
    with pytest.raises(ConfigError, match=r"ppo\.lr is the learner's to set"):
        Flight(job_of(cfg), options, find_task(TOY), ["ppo.lr=1e-3"])
    flight = Flight(job_of(cfg), options, find_task(TOY), ["env.steps=3"])
    assert flight.env.max_steps == 3  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="--envs is 99, but must be a multiple of 1 from 1 to 8"):
        Flight(job_of(cfg), ActorOptions("here:1", b"x" * 32, envs=99), find_task(TOY), ())


def test_an_actor_gives_up_when_the_learner_stays_away_and_at_once_for_a_wrong_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unreachable, match=r"cannot be reached.*--minutes"):
        Actor(ActorOptions("127.0.0.1:9", b"x" * 32, minutes=0.0)).run()
    learning = Learning(tmp_path / "run", "total_frames=32").start(monkeypatch)
    wrong = learning.options
    wrong.token, wrong.minutes = b"x" * 32, 60.0
    with pytest.raises(Refused, match="refused the token"):
        Actor(wrong).run()
    Actor(learning.options, find_task(TOY)).run()
    learning.join()


# ---- attacks ---------------------------------------------------------------------------------------------------------


def script(cfg: Any) -> Iterator[bytes]:
    """Yield the same messages each time: rollouts of an actor that never takes over a newer policy."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        options = ActorOptions("here:1", b"x" * 32, envs=N // 2, device="cpu", threads=1)
        flight = Flight(job_of(cfg), options, find_task(TOY), ())
        for _ in range(ITERATIONS):
            yield pack_rollout(flight.fly()[0])


def attack(address: str, token: bytes, good: bytes, stop: threading.Event) -> None:
    """Attack a learner until `stop`, in turns: garbage, claims, forged and impossible rollouts, silence, crowds."""
    host, port = exchange.split_address(address)
    kept: list[socket.socket] = []

    def raw() -> socket.socket:
        kept.append(socket.create_connection((host, port), 5))
        return kept[-1]

    def joined() -> ExchangeClient:
        client = ExchangeClient(address, token)
        client.request(Kind.JOIN, {"number": None})
        return client

    def rollout(change: Callable[[Any], None]) -> bytes:
        from fledge.storage.stream import unpack_rollout

        data: Any = unpack_rollout(good)
        change(data)
        return pack_rollout(data)

    bad = [
        rollout(lambda d: d["input"].fill_(float("nan"))),
        rollout(lambda d: d["reward"].fill_(float("inf"))),
        rollout(lambda d: d["log_prob"].fill_(1e30)),
        rollout(lambda d: d["raw_action"].fill_(-7.0)),
        rollout(lambda d: d.set("input", d["input"][..., :1])),
        b"garbage" * 50,
    ]
    turns: list[Callable[[], Any]] = [
        lambda: raw().sendall(secrets.token_bytes(5000)),
        lambda: raw().sendall(exchange.HEAD.pack(Kind.EXPERIENCE, 2, 2**30)),
        lambda: ExchangeClient(address, b"x" * 32),
        lambda: [raw() for _ in range(50)],
        *(lambda body=body: joined().request(Kind.EXPERIENCE, {"version": 1, "log": {}}, body) for body in bad),
        lambda: joined().request(Kind.EXPERIENCE, {"version": 10**6, "log": {}}, good),
        lambda: joined().request(Kind.EXPERIENCE, {"version": 1, "log": {"x": ["y", 1]}}, good),
        lambda: joined().request(Kind.POLICY, {}),
        lambda: joined()._write([b"\x03" * 5], time.monotonic() + 5),  # part of a head, then silence
    ]
    while not stop.is_set():
        for turn in turns:
            with contextlib.suppress(OSError, exchange.FledgeError):
                turn()
    for connection in kept:
        connection.close()


def test_hostile_actors_do_not_change_a_single_bit_of_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, refused = {}, {}
    for name in ("alone", "attacked"):
        learning = Learning(tmp_path / name, "actors.local_share=0.5")
        messages = list(script(make_config(TOY, None, WORDS)))
        learning.start(monkeypatch)
        stop, options = threading.Event(), learning.options
        attacker = threading.Thread(target=attack, args=(options.learner, options.token, messages[0], stop))
        with ExchangeClient(options.learner, options.token) as client:
            assert client.request(Kind.JOIN, {"number": None})[1]["number"] == 1
            client.request(Kind.POLL, {"version": None})
            if name == "attacked":
                attacker.start()
                wait_for(lambda server=learning.servers[0]: server.refused >= 12)  # type: ignore[misc]
            for message in messages:
                client.request(Kind.EXPERIENCE, {"version": 1, "log": {}}, message)
        stop.set()
        if name == "attacked":
            attacker.join(60)
        learning.join()
        found[name], refused[name] = learning.weights(), learning.servers[0].refused
    assert same(found["alone"], found["attacked"])
    assert refused["alone"] == 0
    assert refused["attacked"] >= 12


# ---- processes -------------------------------------------------------------------------------------------------------


def start(*words: object, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fledge.cli", *map(str, words)]
    return subprocess.Popen(command, stdout=log.open("ab"), stderr=subprocess.STDOUT)


@pytest.mark.slow
def test_learner_and_actors_are_killed_and_the_training_goes_on(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    run, frames = tmp_path / "run", 150 * N * T
    words = [*WORDS, f"actors.listen=127.0.0.1:{port}", f"total_frames={frames}", "actors.max_lag=4", "save_interval=5"]
    words = [
        word
        for word in words
        if word not in WORDS or word.partition("=")[0] not in ("actors.listen", "total_frames", "save_interval")
    ]
    learner = start("train", TOY, *words, "--folder", run, log=tmp_path / "learner")
    wait_for((run / "actors.token").exists)
    fly = ["actor", TOY, "--learner", f"127.0.0.1:{port}", "--token-file", run / "actors.token", "--envs", N // 2]
    actors = [start(*fly, "--threads", 1, log=tmp_path / f"actor{k}") for k in range(2)]

    def rows() -> list[dict[str, float]]:
        text = (run / "metrics.jsonl").read_text() if (run / "metrics.jsonl").exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    try:
        wait_for(lambda: len(rows()) > 15)
        actors[0].send_signal(signal.SIGKILL)
        before = len(rows())
        wait_for(lambda: len(rows()) > before + 15)  # with one actor
        learner.kill()
        learner.wait()
        at = int(rows()[-1]["step"])
        time.sleep(2)
        learner = start("train", TOY, "--resume", run, log=tmp_path / "learner")
        wait_for(lambda: bool(rows()) and rows()[-1]["step"] > at + 15)
        learner.send_signal(signal.SIGINT)  # saves and stops
        assert learner.wait(60) in (0, 130)
        os.kill(actors[1].pid, 0)  # is still there
        learner = start("train", TOY, "--resume", run, log=tmp_path / "learner")
        assert learner.wait(120) == 0
        assert actors[1].wait(30) == 0
    finally:
        for process in (learner, *actors):
            process.kill()
    assert [row["step"] for row in rows()] == [*range(1, 151)]
    assert "Training has finished" in (tmp_path / "actor1").read_text()
    assert "rollouts on their way were lost" in (tmp_path / "learner").read_text()
