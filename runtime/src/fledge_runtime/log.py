"""Flight log: every input and output of a flight with its time, in one file that can be read after a crash.

The file begins with the line `fledge-flight 1`. Records follow; numbers are little-endian:

    2 bytes  89 46
    1, 1     kind (number in KINDS); 0
    4        length of the payload, at most 256 MiB
    4        CRC-32 of the bytes before and of the payload
    payload  a line of JSON {"t": s, "facts": {…}, "arrays": [[name, dtype, shape], …]}, then the arrays' bytes

A record that is cut off or damaged is left out, and reading goes on at the next whole one. Records are appended by a thread
of their own through a bounded queue: a slow disk costs records (counted in the record `dropped`), never time in flight.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import threading
import time
import zlib
from collections import deque
from pathlib import Path
from typing import Any, Callable, Iterator, NamedTuple

import numpy as np

from fledge_runtime.errors import RuntimeFault
from fledge_runtime.inputs import Camera, Inputs, Mount
from fledge_runtime.observe import array_of, mover_rows

FIRST_LINE = b"fledge-flight 1\n"
MARK, HEAD = b"\x89F", struct.Struct("<2sBBI")
KINDS = ("begin", "reset", "inputs", "command", "output", "event", "dropped", "end")
LONGEST = 256 << 20
CHUNK = 1 << 20


class LogError(RuntimeFault):
    """A flight log cannot be read or written."""


class Record(NamedTuple):
    """A record of a log; `time_s` is on the clock of the flight."""

    kind: str
    time_s: float
    facts: dict[str, Any]
    arrays: dict[str, np.ndarray]


def encode(record: Record) -> bytes:
    """Return the bytes of a record."""
    arrays = {name: np.ascontiguousarray(value) for name, value in record.arrays.items()}
    shapes = [[name, value.dtype.newbyteorder("<").str, list(value.shape)] for name, value in arrays.items()]
    line = json.dumps({"t": record.time_s, "facts": record.facts, "arrays": shapes}, separators=(",", ":"))
    parts = [
        line.encode(),
        b"\n",
        *(v.astype(v.dtype.newbyteorder("<"), copy=False).tobytes() for v in arrays.values()),
    ]
    payload = b"".join(parts)
    head = HEAD.pack(MARK, KINDS.index(record.kind), 0, len(payload))
    return b"".join((head, struct.pack("<I", zlib.crc32(payload, zlib.crc32(head))), payload))


def decode(kind: int, payload: bytes) -> Record:
    """Return the record of a payload whose checksum is right."""
    line, _, data = payload.partition(b"\n")
    told, arrays, at = json.loads(line), {}, 0
    for name, dtype, shape in told["arrays"]:
        value = np.zeros(shape, np.dtype(dtype))
        value.ravel()[:] = np.frombuffer(data, value.dtype, value.size, at)
        arrays[name], at = value, at + value.nbytes
    return Record(KINDS[kind], told["t"], told["facts"], arrays)


def read_log(path: str | os.PathLike[str], damaged: list[int] | None = None) -> Iterator[Record]:
    """Yield the records of a log, in order; memory is bounded by the largest record.

    Args:
        damaged: The offsets of bytes that belong to no whole record are appended here, one for each gap.
    """
    try:
        with open(path, "rb") as file:
            if file.read(len(FIRST_LINE)) != FIRST_LINE:
                raise LogError(f"{path} is not a flight log of version 1: its first line is not 'fledge-flight 1'.")
            yield from _records(file, [] if damaged is None else damaged)
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror}.") from None


def _records(file: Any, damaged: list[int]) -> Iterator[Record]:
    at = len(FIRST_LINE)
    while True:
        file.seek(at)
        head = file.read(HEAD.size + 4)
        if not head:
            return
        record = None
        if len(head) == HEAD.size + 4:
            mark, kind, zero, length = HEAD.unpack(head[: HEAD.size])
            if mark == MARK and zero == 0 and kind < len(KINDS) and length <= LONGEST:
                payload = file.read(length)
                if zlib.crc32(payload, zlib.crc32(head[: HEAD.size])) == struct.unpack("<I", head[HEAD.size :])[0]:
                    with contextlib.suppress(Exception):  # whatever another writer put there
                        record = decode(kind, payload)
        if record is not None:
            yield record
            at += len(head) + length
            continue
        damaged.append(at)
        following = _next_mark(file, at + 1)
        if following is None:
            return
        at = following


def _next_mark(file: Any, at: int) -> int | None:
    """Return the offset of the next record that is whole, None if there is none."""
    while True:
        file.seek(at)
        chunk = file.read(CHUNK)
        for found in _offsets(chunk):
            file.seek(at + found)
            head = file.read(HEAD.size + 4)
            if len(head) < HEAD.size + 4:
                return None
            length = HEAD.unpack(head[: HEAD.size])[3]
            if length <= LONGEST:
                right = zlib.crc32(file.read(length), zlib.crc32(head[: HEAD.size]))
                if right == struct.unpack("<I", head[HEAD.size :])[0]:
                    return int(at + found)
        if len(chunk) < CHUNK:
            return None
        at += CHUNK - 1


def _offsets(chunk: bytes) -> Iterator[int]:
    found = chunk.find(MARK)
    while found >= 0:
        yield found
        found = chunk.find(MARK, found + 1)


class FlightLog:
    """Append records to a new file.

    Args:
        path: Must not exist.
        queue_bytes: Memory for records that the disk has not taken yet.
        max_bytes: Size at which logging ends; the flight goes on.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        facts: dict[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
        queue_bytes: int = 64 << 20,
        max_bytes: int = 8 << 30,
    ) -> None:
        self.path, self.clock, self.error = Path(path), clock, ""
        self._room, self._left = queue_bytes, max_bytes
        self._queue: deque[bytes] = deque()
        self._queued = self.dropped = self._untold = 0
        self._wake, self._closing = threading.Condition(), False
        try:
            self._file = open(self.path, "xb", buffering=0)  # noqa: SIM115 (closed by the thread)
        except OSError as error:
            raise LogError(f"The log {path} cannot be written: {error.strerror}. Name a new file.") from None
        try:
            self._file.write(FIRST_LINE)
        except OSError as error:
            self._file.close()
            self.path.unlink()
            raise LogError(f"The log {path} cannot be written: {error.strerror}.") from None
        self._thread = threading.Thread(target=self._drain, name="flight-log", daemon=True)
        self._thread.start()
        self.add("begin", {"wall_time": time.time(), **(facts or {})})

    def add(self, kind: str, facts: dict[str, Any] | None = None, **arrays: Any) -> None:
        """Append a record. Returns at once; the record is dropped if the queue is full."""
        shaped = {name: np.asarray(value) for name, value in arrays.items() if value is not None}
        data = encode(Record(kind, self.clock(), facts or {}, shaped))
        with self._wake:
            if self._closing:
                return
            if self.error:
                self.dropped += kind != "end"
                return
            if self._queued + len(data) > self._room:
                self.dropped, self._untold = self.dropped + 1, self._untold + 1
                return
            if self._untold:
                gap = encode(Record("dropped", self.clock(), {"records": self._untold}, {}))
                self._queue.append(gap)
                self._queued, self._untold = self._queued + len(gap), 0
            self._queue.append(data)
            self._queued += len(data)
            self._wake.notify()

    def inputs(self, inputs: Inputs, engaged: bool = True) -> None:
        """Append the inputs of a decision."""
        arrays, facts = flatten(inputs)
        self.add("inputs", {"engaged": engaged, **facts}, **arrays)

    def _drain(self) -> None:
        synced = time.monotonic()
        with self._file:
            while True:
                with self._wake:
                    self._wake.wait_for(lambda: self._queue or self._closing, timeout=1.0)
                    data = self._queue[0] if self._queue else b""
                    if not data and self._closing:
                        return
                try:
                    if len(data) > self._left:
                        raise OSError(0, "it has reached its largest size")
                    self._left, rest = self._left - len(data), data
                    while rest:  # a disk that is nearly full takes a part
                        rest = rest[self._file.write(rest) :]
                    if time.monotonic() - synced > 1.0:  # a power cut loses a second
                        os.fsync(self._file.fileno())
                        synced = time.monotonic()
                except OSError as error:
                    with self._wake:
                        self.error = f"Logging to {self.path} ended: {error.strerror}."
                        self.dropped += sum(KINDS[one[2]] not in ("dropped", "end") for one in self._queue)
                    return
                if data:
                    with self._wake:
                        self._queue.popleft()
                        self._queued -= len(data)

    def close(self, timeout_s: float = 10.0) -> None:
        """Write what is queued and end the log."""
        self.add("end", {"dropped": self.dropped})
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout_s)

    def __enter__(self) -> FlightLog:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class LoggedPilot:
    """A pilot whose resets and commands are in the log, for `replay`."""

    def __init__(self, pilot: Any, log: FlightLog) -> None:
        self.pilot, self.log = pilot, log

    def reset(self, position_w: Any, goal_w: Any) -> None:
        """Begin a flight."""
        self.log.add("reset", position_w=np.asarray(position_w, float), goal_w=np.asarray(goal_w, float))
        self.pilot.reset(position_w, goal_w)

    def step(self, inputs: Inputs) -> Any:
        """Return the pilot's command for the inputs that were logged last."""
        begun = time.perf_counter()
        try:
            command = self.pilot.step(inputs)
        except Exception as error:
            self.log.add("event", {"error": f"{type(error).__name__}: {error}"})
            raise
        facts = {"inputs_time_s": inputs.time_s, "ms": 1e3 * (time.perf_counter() - begun)}
        response = (getattr(command, "info", None) or {}).get("response")
        facts.update({"response": response} if response else {})
        self.log.add("command", facts, velocity_w=np.asarray(command.velocity_w, float), flown_w=inputs.flown_w)
        return command


# ---- inputs as arrays --------------------------------------------------------------------------------------------------


def plain(inputs: Inputs) -> Inputs:
    """Return inputs with contiguous arrays, as they are read back: a pilot computes the same from both, bit for bit."""
    return restore(*flatten(inputs))


def flatten(inputs: Inputs) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays and facts that `restore` makes inputs of."""
    arrays = {
        name: np.array(getattr(inputs, name), np.float64) for name in ("position_w", "velocity_w", "quaternion_wxyz")
    }
    for name in ("points_w", "points_b", "depth"):
        if getattr(inputs, name) is not None:
            arrays[name] = np.array(array_of(name, getattr(inputs, name)), order="C")
    if inputs.movers is not None:
        arrays["movers"] = np.array(mover_rows(inputs.movers))
    facts: dict[str, Any] = {"time_s": float(inputs.time_s)}
    if inputs.points_b is not None:
        facts["mount"] = _mount_facts(inputs.mount)
    if inputs.camera is not None:
        camera = inputs.camera
        facts["camera"] = [float(value) for value in (camera.fx, camera.fy, camera.cx, camera.cy)]
        facts["mount"] = _mount_facts(camera.mount)
    return arrays, facts


def _mount_facts(mount: Mount) -> list[list[float]]:
    return [[float(value) for value in part] for part in (mount.position_b, mount.quaternion_wxyz)]


def restore(arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> Inputs:
    """Return the inputs of a record."""
    inputs = Inputs(facts["time_s"], arrays["position_w"], arrays["velocity_w"], arrays["quaternion_wxyz"])
    for name in set(arrays) & {"points_w", "points_b", "depth", "movers"}:
        setattr(inputs, name, arrays[name])
    mount = Mount(*facts["mount"]) if "mount" in facts else Mount()
    if "camera" in facts:
        fx, fy, cx, cy = facts["camera"]
        inputs.camera = Camera(fx, fy, cx, cy, mount)
    else:
        inputs.mount = mount
    return inputs
