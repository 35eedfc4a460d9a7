"""Every kind of file that Fledge reads, for `fuzz`: how to read it, and what it held when it was saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from fledge.agents.policy_file import read_policy
from fledge.core.errors import FormatError
from fledge.replay import DictReplayBuffer
from fledge.storage import CheckpointHistory, Recording, RolloutStorage, load_checkpoint, save_checkpoint
from fledge.storage.format.reader import CheckpointFile
from fledge.storage.format.rollout import read_rollout
from tests.replay.counters import KEYS as ROLLOUT_KEYS
from tests.replay.counters import Counters
from tests.replay.plain import KEYS, make_episode
from tests.storage.recordings.flights import write
from tests.storage.states import assert_same, copy_state, state_at


@dataclass
class Kind:
    """A file to mutate."""

    reader: Callable[[Path], Any]
    content: Any
    path: Path | None = None
    target: Path | None = None  # where mutants are written, if their place matters
    always: bool = False  # reading succeeds whatever the file holds
    same: Callable[[Any, Any], None] = assert_same

    def read(self, path: Path | None = None) -> Any:
        return self.reader(path or self.path)

    def check(self, content: Any) -> None:
        self.same(content, copy_state(self.content))


def all_kinds(folder: Path, known: dict[Path, Kind]) -> dict[Path, Kind]:
    """The files to mutate, by the path of the intact file."""
    kinds = dict(known)
    for path, kind in {**history(folder / "history"), **replay(folder)}.items():
        kinds[path] = kind
    policy = {"model": {"w": torch.randn(8, 4)}, "policy": {"kind": "x", "hidden": [4]}, "task": "navigation"}
    policy["world"] = {"env": {"a": 1}, "decision_s": 0.1}
    kinds[save_checkpoint(policy, folder / "policy")] = Kind(read_policy, policy)
    rollout = {"obs": {"x": torch.randn(6, 3, 4)}, "done": torch.zeros(6, 3, dtype=torch.bool)}
    with RolloutStorage(folder / "rollouts") as storage:
        data = TensorDict({**rollout, "note": "text"}, [6, 3])
        data["each"] = [["a", "b", "c"]] * 6
        saved = storage.save(data, 7)
        kinds[Path(saved.path)] = Kind(read_rollout_file, read_rollout_file(Path(saved.wait())))
    write(folder / "x.frec", [30, 25, 3], block_frames=20)
    kinds[folder / "x.frec"] = Kind(read_recording, read_recording(folder / "x.frec"), same=assert_begins)
    for path, kind in kinds.items():
        kind.path = path
    return kinds


def history(folder: Path) -> dict[Path, Kind]:
    """A history of two checkpoints: if the newer one is damaged, the older one must be loaded."""
    whole = folder / "whole"
    for place, steps in ((whole, (1, 2)), (folder / "mutant", (1,))):
        for step in steps:
            CheckpointHistory(place).save(state_at(step, size=400), step, metric=0.5, metadata={"a": 1})
    newest = CheckpointHistory(whole).entries()[-1].path

    def read(path: Path) -> Any:
        state, entry = CheckpointHistory(path.parent).load_latest()
        assert entry.step == 1 or path.name == entry.path.name
        return state

    def same(got: Any, _: Any) -> None:
        assert_same(got, state_at(2 if got["step"] == 2 else 1, size=400))

    return {newest: Kind(read, None, target=folder / "mutant" / newest.name, always=True, same=same)}


def replay(folder: Path) -> dict[Path, Kind]:
    """States of replay buffers: of every layout, with priorities, and with open episodes."""
    found = {}
    for layout in ("frame", "chunk", "episode"):
        options: dict[str, Any] = {"layout": layout, "prioritized": layout == "chunk"}
        buffer = DictReplayBuffer(90, KEYS, seed=3, **options)
        for number, length in enumerate([20, 35, 7, 30, 18]):  # the first is evicted
            buffer.add(make_episode(number + 1, length))
        found |= replay_kind(folder / f"replay_{layout}", buffer, lambda o=options: DictReplayBuffer(90, KEYS, **o))
    buffer = DictReplayBuffer(500, ROLLOUT_KEYS)
    buffer.add_rollout(Counters(3, 1, 0.1).rollout(15))
    return found | replay_kind(folder / "replay_open", buffer, lambda: DictReplayBuffer(500, ROLLOUT_KEYS))


def replay_kind(path: Path, buffer: DictReplayBuffer, new: Callable[[], DictReplayBuffer]) -> dict[Path, Kind]:
    def read(path: Path) -> Any:
        with new() as other:
            state = load_checkpoint(path)
            if not isinstance(state, dict) or "replay" not in state:
                raise FormatError("no replay")
            other.load_state_dict(state["replay"])
            other.flush()
            batch = dict(other.get(np.arange(other.index.evicted_total, other.index.evicted_total + len(other))))
            other.sample(4)
            other.stats()
            return batch

    saved = save_checkpoint({"replay": buffer.state_dict()}, path)
    return {saved: Kind(read, read(saved))}


def read_rollout_file(path: Path) -> Any:
    with CheckpointFile(path) as opened:
        data = read_rollout(opened)
        return {str(key): value for key, value in data.to_dict().items()}


def read_recording(path: Path) -> list[Any]:
    """The episodes up to the damage, if there is any."""
    found = []
    with Recording(path) as recording:
        recording.outcomes()
        for episode in recording:
            found.append([episode.scene, episode.facts, episode.frames(), episode.outcome, episode.total_return])
            assert len(episode.index()) == len(episode.times()) == episode.recorded
    return found


def assert_begins(got: list[Any], expected: list[Any]) -> None:
    """Fail unless a recording is the beginning of the expected one."""
    assert len(got) <= len(expected)
    for one, other in zip(got, expected, strict=False):
        assert_same(one[0:2], other[0:2])
        for name, values in one[2].items():
            assert np.array_equal(values, other[2][name][: len(values)])
        assert one[3:] in (other[3:], [None, None])
