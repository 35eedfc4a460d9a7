"""ExchangeServer: the learner's side of `storage.exchange`, in one thread, for any number of clients.

    server = ExchangeServer("127.0.0.1:7000", token, join=..., accept=..., has_room=...)
    server.publish({"version": 3}, pack_state(weights))       clients with an older version get it with their next answer
    server.close(end=True)                                    tell the clients that there is nothing more to do

What clients send is not trusted. `join` and `accept` check it, and raise a FledgeError to refuse it: the client is told why,
its connection is closed and one line is logged; nothing else changes. Both run in a thread of the server, one call at a time.
Before a client has proved that it knows the token, it can make the server read 64 bytes and wait HANDSHAKE_S seconds; of more
than MAX_PENDING such clients the oldest is dropped. Every frame has a time limit; a client that sends none for IDLE_S seconds
is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fledge.core.closing import Closing
from fledge.core.errors import ConfigError, FledgeError, FormatError, harmless
from fledge.storage.exchange import (
    ADMITTED,
    FULL,
    HANDSHAKE_S,
    HEAD,
    MAGIC,
    NONCE,
    PROOF,
    REFUSED_TOKEN,
    WAIT_S,
    Kind,
    Sealer,
    frame_seconds,
    keep_alive,
    proof,
    rest_of,
    split_address,
)

MAX_CLIENTS = 64
MAX_PENDING = 128  # connections that have not proved that they know the token
IDLE_S = 1800.0  # longest time between two requests of a client
LINGER_S = 5.0  # how long `close(end=True)` waits for the clients to leave
QUIET_S = 10.0  # at most one line about clients without a token in this time
POLL_S = 0.02  # between two looks for room

Note = dict[str, Any]


class _Client:
    """One connection."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.peer = "{}:{}".format(*(writer.get_extra_info("peername") or ("?", "?"))[:2])
        self.sealer: Sealer | None = None  # None until it is admitted
        self.joined: Note | None = None  # its job, once it has joined
        self.answering = self.ended = False

    async def send(self, kind: Kind, note: Note, body: bytes = b"") -> None:
        assert self.sealer is not None
        async with asyncio.timeout(frame_seconds(len(body))):
            self.writer.writelines(self.sealer.seal(kind, note, body))
            await self.writer.drain()


class ExchangeServer(Closing):
    """Listens for clients, takes in their experience and hands out the newest policy.

    Args:
        address: HOST:PORT to listen on; port 0 chooses a free one (`self.address`).
        token: The shared secret.
        join: Returns the job, a JSON-able dict, of a client that sent this note.
        accept: Takes in experience: called with the client's job, the note and the body.
        has_room: Whether more experience is welcome; a client gets no answer before it is, and so does not send more.
        max_body: Largest body of a client's frame, bytes.
        log: Called with a line of text for each client that comes, goes or is refused.
        max_clients: Largest number of clients at a time.
    """

    def __init__(
        self,
        address: str,
        token: bytes,
        join: Callable[[Note], Note],
        accept: Callable[[Note, Note, bytes], None],
        has_room: Callable[[], bool] = lambda: True,
        max_body: int = 2**30,
        log: Callable[[str], None] = lambda line: None,
        max_clients: int = MAX_CLIENTS,
    ) -> None:
        self._token, self._join, self._accept, self._has_room = token, join, accept, has_room
        self.max_body, self.max_clients, self._log = max_body, max_clients, log
        self.bytes_received = self.refused = 0
        self._clients: dict[asyncio.Task[Any], _Client] = {}  # oldest first
        self._policy: tuple[Note, bytes] = ({"version": -1}, b"")
        self._complained, self._unsaid, self._ended = -QUIET_S, 0, False
        host, port = split_address(address)
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family, backlog=256)
        except OSError as error:
            raise ConfigError(
                f"{address} cannot be listened on ({error.strerror or error}): choose a free port, and an address of this "
                "machine or 0.0.0.0."
            ) from error
        self.address = f"{f'[{host}]' if ':' in host else host}:{self._socket.getsockname()[1]}"
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fledge-exchange")
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="fledge-exchange", daemon=True)
        self._thread.start()

    @property
    def clients(self) -> list[Note]:
        """The jobs of the clients that are connected and have joined."""
        return [client.joined for client in list(self._clients.values()) if client.joined is not None]

    def publish(self, note: Note, body: bytes) -> None:
        """Hand out this policy from now on; `note` has its "version", which must grow."""
        self._policy = note, body

    def close(self, end: bool = False) -> None:
        """Close all connections; with `end`, first tell the clients not to connect again."""
        if self._thread.is_alive():
            self._ended = end
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        self._pool.shutdown(wait=True)

    # ---- in the server's thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._listen())
        finally:
            self._loop.close()
            self._socket.close()

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._serve, sock=self._socket, limit=2**22)
        await self._stop.wait()
        server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if self._ended and tasks:
            for client in list(self._clients.values()):
                if client.sealer is not None and not client.answering:
                    with contextlib.suppress(OSError, TimeoutError, RuntimeError):
                        await self._end(client)
            await asyncio.wait(tasks, timeout=LINGER_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _end(self, client: _Client) -> None:
        client.ended = True
        await client.send(Kind.END, {})
        client.writer.write_eof()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        client = self._clients[task] = _Client(writer)
        pending = [each for each, other in self._clients.items() if other.sealer is None]
        if len(pending) > MAX_PENDING:
            self._clients.pop(pending[0])
            pending[0].cancel()
        why = ""
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                client.sealer = await self._admit(reader, client)
            while not self._stop.is_set() or client.ended:
                await self._answer(client, *await self._receive(reader, client))
        except FledgeError as error:
            why = str(error)
            if client.sealer is not None and not client.ended:
                with contextlib.suppress(OSError, TimeoutError, RuntimeError):
                    await client.send(Kind.REFUSED, {"why": why})
        except TimeoutError:
            why = "it took too long"
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # it left, or had to
        finally:
            self._clients.pop(task, None)
            if why:
                self.refused += 1
                self._complain(client, why)
            if why and client.sealer is None:
                writer.transport.abort()
            with contextlib.suppress(OSError, RuntimeError):
                writer.close()
            if client.joined is not None and not self._stop.is_set():
                self._log(f"{client.peer} left; {len(self.clients)} connected.")

    def _complain(self, client: _Client, why: str) -> None:
        if client.sealer is None and time.monotonic() - self._complained < QUIET_S:
            self._unsaid += 1
            return
        also = f" ({self._unsaid} more before)" if self._unsaid else ""
        if client.sealer is None:
            self._complained, self._unsaid = time.monotonic(), 0
        self._log(f"{client.peer} was refused, and its connection closed: {harmless(why)}{also}")

    async def _admit(self, reader: asyncio.StreamReader, client: _Client) -> Sealer:
        keep_alive(client.writer.get_extra_info("socket"))
        nonce = secrets.token_bytes(NONCE)
        client.writer.write(MAGIC + nonce)
        answer = await reader.readexactly(NONCE + PROOF)
        nonces = nonce + answer[:NONCE]
        if not hmac.compare_digest(answer[NONCE:], proof(self._token, b"client", nonces)):
            client.writer.write(REFUSED_TOKEN)
            await client.writer.drain()
            client.writer.close()
            raise FormatError("it does not know the token.")
        if sum(other.sealer is not None for other in self._clients.values()) >= self.max_clients:
            client.writer.write(FULL)
            await client.writer.drain()
            client.writer.close()
            raise FormatError(f"{self.max_clients} clients are connected already.")
        client.writer.write(ADMITTED + proof(self._token, b"server", nonces))
        return Sealer(self._token, nonces, b"server", b"client")

    async def _receive(self, reader: asyncio.StreamReader, client: _Client) -> tuple[Kind, Note, bytes]:
        assert client.sealer is not None
        async with asyncio.timeout(IDLE_S if client.joined is not None else HANDSHAKE_S):
            head = await reader.readexactly(1)
        async with asyncio.timeout(HANDSHAKE_S):
            head += await reader.readexactly(HEAD.size - 1)
        size = rest_of(head, self.max_body if client.joined is not None else 0)
        async with asyncio.timeout(frame_seconds(size)):
            rest = await reader.readexactly(size)
        self.bytes_received += HEAD.size + size
        return client.sealer.open(head, rest)

    async def _answer(self, client: _Client, kind: Kind, note: Note, body: bytes) -> None:
        if client.ended:
            return
        client.answering = True
        if kind is Kind.JOIN and client.joined is None:
            client.joined = await self._loop.run_in_executor(self._pool, self._join, note)
            self._log(f"{client.peer} joined; {len(self.clients)} connected.")
            await client.send(Kind.JOB, client.joined)
        elif kind in (Kind.EXPERIENCE, Kind.POLL) and client.joined is not None:
            if kind is Kind.EXPERIENCE:
                await self._loop.run_in_executor(self._pool, self._accept, client.joined, note, body)
            await self._wait_for_room(client)
            newest, weights = self._policy
            if self._stop.is_set():
                if self._ended:
                    await self._end(client)
            elif newest["version"] != note.get("version"):
                await client.send(Kind.POLICY, newest, weights)
            else:
                await client.send(Kind.SAME, {})
        else:
            raise FormatError(f"it sent a frame of kind {kind.name}, which is not expected here.")
        client.answering = False

    async def _wait_for_room(self, client: _Client) -> None:
        """Wait until there is a policy and room for experience; tell the client every WAIT_S seconds that it must wait."""
        told = time.monotonic()
        while not self._stop.is_set() and (self._policy[0]["version"] < 0 or not self._has_room()):
            await asyncio.sleep(POLL_S)
            if time.monotonic() - told > WAIT_S:
                told = time.monotonic()
                await client.send(Kind.WAIT, {})
