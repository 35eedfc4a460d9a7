"""The exchange between a learner and its clients: what it carries, who is let in, and what hostile peers can do: nothing."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from fledge.core.errors import ConfigError, FormatError, InputError, StorageError
from fledge.storage import exchange, exchange_server
from fledge.storage.exchange import ExchangeClient, Kind, Refused, Sealer, Unreachable, make_token, proof, read_token
from fledge.storage.exchange_server import ExchangeServer
from fledge.storage.stream import pack_rollout, pack_state, unpack_rollout, unpack_state

TOKEN = b"0123456789abcdef" * 2


class Learner:
    """A server that keeps what it accepts, refuses bodies that begin with b"bad", and has room while `open` is set."""

    def __init__(self, **options: Any) -> None:
        self.came: list[tuple[dict[str, Any], dict[str, Any], bytes]] = []
        self.lines: list[str] = []
        self.open, self.joins = threading.Event(), 0
        self.open.set()
        given = {"max_body": 10_000, "has_room": self.open.is_set, "log": self.lines.append, **options}
        self.server = ExchangeServer("127.0.0.1:0", TOKEN, self.join, self.accept, **given)
        self.server.publish({"version": 0}, b"weights 0")

    def join(self, note: dict[str, Any]) -> dict[str, Any]:
        self.joins += 1
        return {"number": self.joins, "hello": note.get("hello")}

    def accept(self, job: dict[str, Any], note: dict[str, Any], body: bytes) -> None:
        if body.startswith(b"bad"):
            raise InputError("the experience is bad: send better.")
        self.came.append((job, note, body))

    def client(self) -> ExchangeClient:
        client = ExchangeClient(self.server.address, TOKEN)
        client.request(Kind.JOIN, {"hello": "x"})
        return client

    def raw(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", int(self.server.address.rpartition(":")[2])), 10)

    def handshake(self) -> tuple[socket.socket, Sealer]:
        """Return an admitted connection that has not joined."""
        connection = self.raw()
        nonces = take(connection, 36)[4:] + secrets.token_bytes(32)
        connection.sendall(nonces[32:] + proof(TOKEN, b"client", nonces))
        assert take(connection, 33)[:1] == exchange.ADMITTED
        return connection, Sealer(TOKEN, nonces, b"client", b"server")


def take(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count and (part := connection.recv(count - len(found))):
        found += part
    return found


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side closes the connection, after anything that it still says."""
    try:
        while connection.recv(1000):
            pass
    except ConnectionError:
        pass
    return True


def wait_for(what: Callable[[], bool]) -> None:
    limit = time.monotonic() + 20
    while not what():
        assert time.monotonic() < limit, "it did not happen"
        time.sleep(0.01)


@pytest.fixture
def learner() -> Iterator[Learner]:
    made = Learner()
    yield made
    made.server.close()


# ---- what it carries -----------------------------------------------------------------------------------------------


def test_a_client_joins_sends_experience_and_gets_each_new_policy_once(learner: Learner) -> None:
    rollout = TensorDict({"x": torch.arange(12.0).view(3, 4)}, [3, 4])
    with ExchangeClient(learner.server.address, TOKEN) as client:
        kind, job, _ = client.request(Kind.JOIN, {"hello": "there"})
        assert (kind, job) == (Kind.JOB, {"number": 1, "hello": "there"})
        assert client.request(Kind.POLL, {"version": None}) == (Kind.POLICY, {"version": 0}, b"weights 0")
        assert client.request(Kind.EXPERIENCE, {"version": 0}, pack_rollout(rollout))[0] is Kind.SAME
        learner.server.publish({"version": 1, "more": 0.5}, b"weights 1")
        answer = client.request(Kind.EXPERIENCE, {"version": 0}, b"second")
        assert answer == (Kind.POLICY, {"version": 1, "more": 0.5}, b"weights 1")
    assert torch.equal(unpack_rollout(learner.came[0][2])["x"], rollout["x"])
    assert [job["number"] for job, _, _ in learner.came] == [1, 1]
    wait_for(lambda: not learner.server.clients)


def test_a_state_comes_back_as_it_was() -> None:
    state = {"a": torch.randn(3), "b": [torch.tensor(2, dtype=torch.uint8), "text", None]}
    back = unpack_state(pack_state(state))
    assert torch.equal(back["a"], state["a"])  # type: ignore[arg-type]
    assert back["b"][1:] == ["text", None]
    with pytest.raises(FormatError):
        unpack_state(b"garbage" * 100)


def test_a_client_gets_no_answer_until_there_is_room(learner: Learner) -> None:
    client = learner.client()
    learner.open.clear()
    done = threading.Event()
    thread = threading.Thread(target=lambda: (client.request(Kind.EXPERIENCE, {"version": 0}, b"x"), done.set()))
    thread.start()
    wait_for(lambda: len(learner.came) == 1)
    assert not done.wait(0.2)
    learner.open.set()
    assert done.wait(20)
    thread.join()


def test_a_waiting_client_is_told_that_the_server_is_alive(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_server, "WAIT_S", 0.05)
    monkeypatch.setattr(exchange, "FRAME_S", 0.2)
    monkeypatch.setattr(exchange, "WAIT_S", 0.2)
    client = learner.client()
    learner.open.clear()
    threading.Timer(1.0, learner.open.set).start()  # longer than the client waits for one frame
    assert client.request(Kind.EXPERIENCE, {"version": 0}, b"x")[0] is Kind.SAME


def test_the_end_reaches_clients_that_wait_fly_and_send(learner: Learner) -> None:
    learner.open.clear()
    waiting, flying = learner.client(), learner.client()
    answers = []
    thread = threading.Thread(target=lambda: answers.append(waiting.request(Kind.EXPERIENCE, {"version": 0}, b"x")))
    thread.start()
    wait_for(lambda: len(learner.came) == 1)
    closing = threading.Thread(target=lambda: learner.server.close(end=True))
    closing.start()
    thread.join(20)
    assert [kind for kind, _, _ in answers] == [Kind.END]
    waiting.close()
    wait_for(lambda: len(learner.server._clients) <= 1)
    assert flying.request(Kind.EXPERIENCE, {"version": 0}, b"y")[0] is Kind.END
    flying.close()
    closing.join(20)
    assert not closing.is_alive()


def test_a_server_that_closes_without_the_end_can_be_reached_again(learner: Learner) -> None:
    client = learner.client()
    learner.server.close()
    with pytest.raises(Unreachable):
        client.request(Kind.EXPERIENCE, {"version": 0}, b"x")
    with pytest.raises(Unreachable, match="cannot be reached"):
        ExchangeClient(learner.server.address, TOKEN)


def test_more_clients_than_allowed_are_told_to_come_again() -> None:
    learner = Learner(max_clients=1)
    first = learner.client()
    with pytest.raises(Unreachable, match="as many clients as it allows"):
        learner.client()
    first.close()
    wait_for(lambda: not learner.server._clients)
    learner.client().close()
    learner.server.close()


# ---- tokens and addresses --------------------------------------------------------------------------------------------


def test_a_new_token_is_readable_by_its_owner_only_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = make_token(path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert len(token) == 64
    assert make_token(path) == read_token(path) == token
    (tmp_path / "short").write_text("secret\n")
    with pytest.raises(ConfigError, match="has 6 characters, but must have at least 16"):
        read_token(tmp_path / "short")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_token(tmp_path / "none")
    with pytest.raises(StorageError, match="cannot be written"):
        make_token(tmp_path / "none" / "token")


@pytest.mark.parametrize("address", ["", "7000", "host:", "host:x", "host:99999", ":7000"])
def test_a_wrong_address_is_named(address: str) -> None:
    with pytest.raises(ConfigError, match="is not an address: write HOST:PORT"):
        ExchangeClient(address, TOKEN)


def test_a_port_in_use_is_named(learner: Learner) -> None:
    with pytest.raises(ConfigError, match="cannot be listened on"):
        ExchangeServer(learner.server.address, TOKEN, lambda note: note, lambda *_: None)


# ---- hostile peers ---------------------------------------------------------------------------------------------------


def test_the_token_never_travels(learner: Learner) -> None:
    """A listener between client and server sees neither the token nor anything that it could derive a frame from."""
    heard, front = [], socket.create_server(("127.0.0.1", 0))

    def listen() -> None:
        near, _ = front.accept()
        far = learner.raw()

        def pump(source: socket.socket, sink: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while part := source.recv(1000):
                    heard.append(part)
                    sink.sendall(part)

        back = threading.Thread(target=pump, args=(far, near), daemon=True)
        back.start()
        pump(near, far)

    threading.Thread(target=listen, daemon=True).start()
    with ExchangeClient(f"127.0.0.1:{front.getsockname()[1]}", TOKEN) as client:
        assert client.request(Kind.JOIN, {"hello": "there"})[0] is Kind.JOB
    said = b"".join(heard)
    assert b"there" in said, "the listener hears notes: frames are not encrypted"
    assert TOKEN not in said


def test_a_wrong_token_is_refused_by_the_server_and_a_wrong_server_by_the_client(learner: Learner) -> None:
    with pytest.raises(Refused, match="refused the token"):
        ExchangeClient(learner.server.address, b"x" * 32)
    fake = socket.create_server(("127.0.0.1", 0))

    def pretend() -> None:
        connection, _ = fake.accept()
        connection.sendall(exchange.MAGIC + bytes(32))
        take(connection, 64)
        connection.sendall(exchange.ADMITTED + bytes(32))

    threading.Thread(target=pretend, daemon=True).start()
    with pytest.raises(Refused, match="does not know the token"):
        ExchangeClient(f"127.0.0.1:{fake.getsockname()[1]}", TOKEN)


def test_a_replayed_handshake_is_refused(learner: Learner) -> None:
    first = learner.raw()
    nonces = take(first, 36)[4:] + bytes(32)
    recorded = nonces[32:] + proof(TOKEN, b"client", nonces)
    first.sendall(recorded)
    assert take(first, 1) == exchange.ADMITTED
    again = learner.raw()
    take(again, 36)
    again.sendall(recorded)
    assert take(again, 1) == exchange.REFUSED_TOKEN
    assert is_closed(again)


def test_the_servers_own_proof_does_not_admit_a_client(learner: Learner) -> None:
    """Reflection: the proofs of both sides differ by role."""
    connection = learner.raw()
    nonces = take(connection, 36)[4:] + bytes(32)
    connection.sendall(nonces[32:] + proof(TOKEN, b"server", nonces))
    assert take(connection, 1) == exchange.REFUSED_TOKEN


def test_a_replayed_or_altered_frame_is_refused(learner: Learner) -> None:
    for change in ("replay", "alter"):
        connection, sealer = learner.handshake()
        connection.sendall(b"".join(sealer.seal(Kind.JOIN, {})))
        frame = b"".join(sealer.seal(Kind.EXPERIENCE, {"version": 0}, b"once"))
        connection.sendall(frame if change == "replay" else frame.replace(b"once", b"evil"))
        connection.sendall(frame)
        assert is_closed(connection)
    assert [body for _, _, body in learner.came] == [b"once"]


def hostile_frames(sealer: Sealer) -> Iterator[bytes]:
    """Yield what a client that knows the token might send instead of a proper frame."""
    yield exchange.HEAD.pack(Kind.EXPERIENCE, 10, 2**30) + b"x" * 100  # claims 1 GB
    yield exchange.HEAD.pack(Kind.EXPERIENCE, 2**31, 10)
    yield exchange.HEAD.pack(Kind.EXPERIENCE, 10, 2**63)
    yield exchange.HEAD.pack(99, 2, 0) + b"{}" + bytes(16)
    yield exchange.HEAD.pack(Kind.JOIN, 2, 0) + b"{}" + bytes(16)  # a wrong MAC
    for text in (b"[" * 100_000, b"not JSON", b"[]", b"\xff\xfe"):
        head = exchange.HEAD.pack(Kind.JOIN, len(text), 0)
        yield head + text + sealer._mac(True, head, text, b"")
    yield b"".join(sealer.seal(Kind.EXPERIENCE, {}, b"before it has joined"))
    yield b"".join(sealer.seal(Kind.POLICY, {}))


@pytest.mark.parametrize("number", range(11))
def test_a_hostile_frame_costs_its_sender_the_connection_and_nothing_else(learner: Learner, number: int) -> None:
    other = learner.client()
    connection, sealer = learner.handshake()
    connection.sendall(list(hostile_frames(sealer))[number])
    assert is_closed(connection)
    assert other.request(Kind.EXPERIENCE, {"version": 0}, b"fine")[0] is Kind.SAME
    assert [body for _, _, body in learner.came] == [b"fine"]


def test_refused_experience_is_explained_to_its_sender_and_logged_once(learner: Learner) -> None:
    client = learner.client()
    with pytest.raises(Refused, match="the experience is bad: send better"):
        client.request(Kind.EXPERIENCE, {"version": 0}, b"bad")
    with pytest.raises(Unreachable):
        client.request(Kind.EXPERIENCE, {"version": 0}, b"good")
    wait_for(lambda: learner.server.refused == 1)
    assert sum("the experience is bad" in line for line in learner.lines) == 1
    assert not learner.came


def test_garbage_and_silence_are_dropped_in_time(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_server, "HANDSHAKE_S", 0.3)
    silent, slow, loud, (half, sealer) = learner.raw(), learner.raw(), learner.raw(), learner.handshake()
    loud.sendall(os.urandom(100_000))
    half.sendall(b"".join(sealer.seal(Kind.JOIN, {}))[:5])  # slow after the handshake
    for _ in range(10):
        with contextlib.suppress(OSError):
            slow.sendall(b"x")  # a byte at a time
        time.sleep(0.05)
    assert all(map(is_closed, (silent, slow, loud, half)))
    wait_for(lambda: not learner.server._clients)
    assert learner.client().request(Kind.EXPERIENCE, {"version": 0}, b"fine")[0] is Kind.SAME


def test_1000_silent_connections_neither_keep_a_client_out_nor_make_threads(learner: Learner) -> None:
    threads, other = threading.active_count(), learner.client()
    crowd = []
    for _ in range(1000):
        with contextlib.suppress(OSError):  # this process may have too few file descriptors
            crowd.append(learner.raw())
    late = learner.client()
    for client in (other, late):
        assert client.request(Kind.EXPERIENCE, {"version": 0}, b"fine")[0] is Kind.SAME
    assert threading.active_count() <= threads + 1
    assert len(learner.server._clients) <= exchange_server.MAX_PENDING + 3
    assert len(learner.lines) < 20, "a flood must not fill the log"
    for connection in crowd:
        connection.close()


def test_a_declared_size_takes_no_memory_before_bytes_arrive(learner: Learner) -> None:
    learner.server.max_body = 2**34
    client, (connection, sealer) = learner.client(), learner.handshake()
    connection.sendall(b"".join(sealer.seal(Kind.JOIN, {})))
    before = resident()
    connection.sendall(exchange.HEAD.pack(Kind.EXPERIENCE, 2, 2**33) + b"{}" + bytes(1000))
    assert client.request(Kind.EXPERIENCE, {"version": 0}, b"fine")[0] is Kind.SAME
    assert resident() - before < 2**27
    connection.close()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_client_does_not_trust_the_sizes_that_a_server_claims() -> None:
    with pytest.raises(FormatError, match="declares"):
        exchange.rest_of(struct.pack("<BIQ", Kind.POLICY, 10, 2**40), exchange.MAX_POLICY)
