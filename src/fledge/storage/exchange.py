"""Exchange experience and policies over the network: a server at the learner, clients that come and go.

    client                                          server
                                                <-  b"FLX1", nonce (32 bytes)
    nonce (32), proof (32)                      ->
                                                <-  1 byte: admitted, refused or full; if admitted, proof (32)
    JOIN note                                   ->
                                                <-  JOB note
    EXPERIENCE note, body   or   POLL note      ->
                                                <-  POLICY note, body: a newer policy;  or SAME;  or END

    proof = HMAC-SHA256(token, role, both nonces)        role: b"client" or b"server"
    frame = kind (uint8), length of the note (uint32), of the body (uint64), note (JSON object), body, MAC (16 bytes)
    MAC   = BLAKE2b keyed by HMAC-SHA256(token, b"frames", both nonces), of the role, the frame's number and the frame

Integers are little-endian. Every request gets one answer, before it any number of WAIT frames (the server is alive, but has
no room yet), or REFUSED with {"why"}, after which the server closes the connection. END may come at any time: do not connect
again.

Both sides prove that they know the token, which never travels; a recorded handshake or frame is worthless in another
connection. Frames are authenticated, not encrypted: use SSH or WireGuard where others may not read the traffic. Neither side
trusts lengths: each is compared with a limit, and memory grows only as bytes arrive. No pickle: notes are JSON, bodies are
files of `storage.stream` (`pack_rollout`, `pack_state`). `exchange_server` has the server.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from fledge.core.closing import Closing
from fledge.core.errors import ConfigError, FledgeError, FormatError, StorageError

MAGIC = b"FLX1"
NONCE = PROOF = 32
MAC = 16
HEAD = struct.Struct("<BIQ")
MAX_NOTE = 2**20
MAX_POLICY = 2**30
LEAST_TOKEN = 16  # characters
ADMITTED, REFUSED_TOKEN, FULL = b"\1", b"\2", b"\3"
HANDSHAKE_S = 10.0  # for a whole handshake
FRAME_S, SLOWEST = 30.0, 50e3  # a frame may take FRAME_S, and 1 s more for each SLOWEST bytes
WAIT_S = 10.0  # between two WAIT frames


class Kind(enum.IntEnum):
    """Kinds of frames."""

    JOIN = 1
    JOB = 2
    EXPERIENCE = 3
    POLL = 4
    POLICY = 5
    SAME = 6
    WAIT = 7
    END = 8
    REFUSED = 9


Frame = tuple[Kind, dict[str, Any], bytes]


class Unreachable(StorageError):
    """The connection failed or was lost; connecting again may help."""


class Refused(FledgeError):
    """The server refused this client or what it sent; trying again does not help."""


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of "HOST:PORT" or "[IPv6]:PORT"; raise ConfigError if the text is neither."""
    host, sign, port = address.rpartition(":")
    if not sign or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{address!r} is not an address: write HOST:PORT, for example 127.0.0.1:7000.")
    return host.strip("[]"), int(port)


def check_token(text: str, source: str) -> bytes:
    """Return a token as bytes; raise ConfigError if it is too short. `source` says where it comes from."""
    token = text.strip().encode()
    if len(token) < LEAST_TOKEN:
        raise ConfigError(f"The token in {source} has {len(token)} characters, but must have at least {LEAST_TOKEN}.")
    return token


def proof(token: bytes, role: bytes, nonces: bytes) -> bytes:
    """Return the bytes by which a side proves that it knows the token."""
    return hmac.digest(token, role + nonces, "sha256")


def frame_seconds(size: int) -> float:
    """Return the longest time that a frame of `size` bytes may take, s."""
    return FRAME_S + size / SLOWEST


class Sealer:
    """Makes and checks the frames of one connection."""

    def __init__(self, token: bytes, nonces: bytes, own: bytes, other: bytes) -> None:
        self.key = proof(token, b"frames", nonces)
        self.roles, self.counts = {True: own, False: other}, {True: 0, False: 0}

    def _mac(self, own: bool, head: bytes, note: bytes, body: bytes) -> bytes:
        mac = hashlib.blake2b(self.roles[own], key=self.key, digest_size=MAC)
        mac.update(struct.pack("<Q", self.counts[own]) + head + note)
        mac.update(body)
        self.counts[own] += 1
        return mac.digest()

    def seal(self, kind: Kind, note: dict[str, Any], body: bytes = b"") -> list[bytes]:
        """Return the parts of the next frame to send."""
        text = json.dumps(note).encode()
        head = HEAD.pack(kind, len(text), len(body))
        return [head + text, body, self._mac(True, head, text, body)]

    def open(self, head: bytes, rest: bytes) -> Frame:
        """Return the frame of a head and the bytes after it; raise FormatError if it is forged or malformed."""
        number, length, size = HEAD.unpack(head)
        note, body, mac = rest[:length], rest[length : length + size], rest[length + size :]
        if not hmac.compare_digest(mac, self._mac(False, head, note, body)):
            raise FormatError("a frame was altered on the way: its MAC is wrong.")
        try:
            found = json.loads(note)
            kind = Kind(number)
        except (ValueError, RecursionError) as error:
            raise FormatError("a frame has an unknown kind, or a note that is not JSON.") from error
        if not isinstance(found, dict):
            raise FormatError("the note of a frame is not a JSON object.")
        return kind, found, body


def rest_of(head: bytes, max_body: int) -> int:
    """Return the number of bytes that follow a frame's head; raise FormatError if it declares more than is allowed."""
    _, length, size = HEAD.unpack(head)
    if length > MAX_NOTE or size > max_body:
        raise FormatError(
            f"a frame declares {length + size:,} bytes, above the limit of {MAX_NOTE:,} for a note, {max_body:,} for a body."
        )
    return int(length + size + MAC)


class ExchangeClient(Closing):
    """A connection to an `ExchangeServer`, for one thread.

    Example:
        >>> with ExchangeClient("learner:7000", token) as client:
        ...     job = client.request(Kind.JOIN, {"role": "actor"})[1]
        ...     kind, note, body = client.request(Kind.EXPERIENCE, {"version": 3}, pack_rollout(rollout))

    Args:
        address: HOST:PORT of the server.
        token: The shared secret.

    Raises:
        Unreachable: The server cannot be reached, or is full.
        Refused: The token is wrong, or the other side is not the learner.
    """

    def __init__(self, address: str, token: bytes) -> None:
        self.address = address
        self.bytes_sent = 0
        try:
            self._socket = socket.create_connection(split_address(address), HANDSHAKE_S)
        except OSError as error:
            raise Unreachable(f"{address} cannot be reached ({error.strerror or error}).") from error
        try:
            keep_alive(self._socket)
            self._sealer = self._handshake(token)
        except BaseException:
            self.close()
            raise

    def _handshake(self, token: bytes) -> Sealer:
        limit = time.monotonic() + HANDSHAKE_S
        hello = self._read(len(MAGIC) + NONCE, limit)
        if not hello.startswith(MAGIC):
            raise Refused(f"{self.address} is not a learner of Fledge: check host and port.")
        nonces = hello[len(MAGIC) :] + secrets.token_bytes(NONCE)
        self._write([nonces[NONCE:] + proof(token, b"client", nonces)], limit)
        answer = self._read(1, limit)
        if answer == FULL:
            raise Unreachable(f"{self.address} has as many clients as it allows.")
        if answer != ADMITTED:
            raise Refused(f"{self.address} refused the token: use the content of the learner's token file.")
        if not hmac.compare_digest(self._read(PROOF, limit), proof(token, b"server", nonces)):
            raise Refused(f"{self.address} does not know the token: it is not the learner that you mean.")
        return Sealer(token, nonces, b"client", b"server")

    def request(self, kind: Kind, note: dict[str, Any], body: bytes = b"") -> Frame:
        """Send a frame and return the answer; return END at once, without sending, if it has come meanwhile.

        Raises:
            Unreachable: The connection was lost; the frame may or may not have arrived.
            Refused: The server refused the frame; the message says why.
        """
        if not self._has_answer():
            self._write(self._sealer.seal(kind, note, body), time.monotonic() + frame_seconds(len(body)))
        while True:
            limit = time.monotonic() + FRAME_S + WAIT_S
            head = self._read(HEAD.size, limit)
            size = rest_of(head, MAX_POLICY)
            answer = self._sealer.open(head, self._read(size, limit + size / SLOWEST))
            if answer[0] is Kind.REFUSED:
                raise Refused(f"{self.address} refused: {answer[1].get('why')}")
            if answer[0] is not Kind.WAIT:
                return answer

    def _has_answer(self) -> bool:
        self._socket.setblocking(False)
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass  # the next read raises it
        return True

    def _read(self, count: int, limit: float) -> bytes:
        found = bytearray()
        while len(found) < count:
            part = self._in_time(limit, self._socket.recv, min(count - len(found), 2**20))
            if not part:
                raise Unreachable(f"{self.address} closed the connection.")
            found += part
        return bytes(found)

    def _write(self, parts: list[bytes], limit: float) -> None:
        for part in parts:
            view = memoryview(part)
            while view:
                sent = self._in_time(limit, self._socket.send, view[: 2**20])
                self.bytes_sent += sent
                view = view[sent:]

    def _in_time(self, limit: float, call: Callable[[Any], Any], argument: Any) -> Any:
        try:
            self._socket.settimeout(max(limit - time.monotonic(), 1e-3))
            return call(argument)
        except OSError as error:
            raise Unreachable(f"the connection to {self.address} was lost ({error.strerror or error}).") from error

    def close(self) -> None:
        self._socket.close()


def keep_alive(connection: socket.socket) -> None:
    """Make the system notice within a minute that the other side has vanished; send small frames at once."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def read_token(path: str | os.PathLike[str]) -> bytes:
    """Return the token in a file."""
    try:
        with open(path, encoding="utf-8") as file:
            return check_token(file.read(1000), str(path))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"The token file {path} cannot be read ({why}): give the learner's token file.") from error


def make_token(path: str | os.PathLike[str]) -> bytes:
    """Return the token in a file; if there is no such file, write a new token to it that only its owner can read."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(f"{secrets.token_hex(32)}\n")
    except FileExistsError:
        pass
    except OSError as error:
        raise StorageError(f"The token file {path} cannot be written ({error.strerror}): check the folder.") from error
    return read_token(path)
