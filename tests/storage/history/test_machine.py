"""A history under everything that may happen to it, in any order, against a plain model of what it should hold."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from fledge.core.errors import FledgeError, StorageError
from fledge.storage import AsyncCheckpointSaver, CheckpointHistory, load_checkpoint, repair_folder, save_checkpoint
from fledge.storage.disk.durable import TEMP_PREFIX
from fledge.storage.format.reader import CheckpointFile
from fledge.storage.history.retention import bases_of
from tests.storage.faulty_disk import CRASHED, Calls, in_child
from tests.storage.states import assert_same

STEPS = st.integers(0, 6)  # few: most are saved again and again
VALUES = st.integers(0, 10**6)
OPTIONS = st.fixed_dictionaries(
    {
        "delta": st.sampled_from(["none", "weights_only", "all"]),
        "keep_whole": st.integers(1, 3),
        "keep_weights_only": st.sampled_from([None, 0, 1, 2]),
        "keep_best": st.integers(0, 1),
        "max_chain": st.integers(1, 8),
    }
)


def state_of(value: int) -> dict[str, Any]:
    """States that differ little, so that deltas pay."""
    weight = torch.randn(400, generator=torch.Generator().manual_seed(0))
    moment = torch.randn(300, generator=torch.Generator().manual_seed(1))
    return {
        "model": {"weight": weight + value * 1e-9, "value": torch.tensor(value)},
        "optimizer": {0: {"moment": moment + value * 1e-9}},
        "value": value,
    }


class HistoryMachine(RuleBasedStateMachine):
    """Model of a history: the last save of each step, their order, and the damaged files."""

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp())
        self.folder, self.home = self.place / "run", os.getcwd()
        self.saved: dict[int, set[int]] = {}  # values that a step may have: more than one after a save that was cut off
        self.newest: set[int] = set()  # steps that may be the newest
        self.damaged: set[str] = set()
        self.certain = False  # whether something was acknowledged, and nothing damaged since
        self.saver: AsyncCheckpointSaver | None = None

    def teardown(self) -> None:
        os.chdir(self.home)
        if self.saver is not None:
            self.saver.shutdown()
        shutil.rmtree(self.place)

    @initialize(options=OPTIONS, background=st.booleans())
    def open(self, options: dict[str, Any], background: bool) -> None:
        if background:
            self.saver = AsyncCheckpointSaver(handle_signals=False, find_optimizers=False)
        self.options = options
        self.history = CheckpointHistory(self.folder, saver=self.saver, **options)

    @rule(options=OPTIONS)
    def reopen_with_another_policy(self, options: dict[str, Any]) -> None:
        self.open(options, False)

    @rule(saves=st.lists(st.tuples(STEPS, VALUES), min_size=1, max_size=4), fork=st.booleans(), move=st.booleans())
    def save_and_go_on(self, saves: list[tuple[int, int]], fork: bool, move: bool) -> None:
        """Several at once; meanwhile a child is forked, which saves something of its own, and the folder is changed."""
        handles = [self.history.save(state_of(value), step, metric=float(value % 5)) for step, value in saves]
        if fork:
            assert in_child(lambda: save_checkpoint(state_of(3), self.place / "child")) == 0
            assert_same(load_checkpoint(self.place / "child"), state_of(3))
        if move:
            self.change_folder()
        for handle, (step, value) in zip(handles, saves, strict=True):
            handle.wait(60)
            self.acknowledged(step, value)

    @rule()
    def call_the_doctor(self) -> None:
        if not any(self.history._files()):
            return
        report = repair_folder(self.folder)
        assert report.healthy
        assert not any(self.folder.glob(f"{TEMP_PREFIX}*"))
        self.damaged &= {finding.file for finding in report.files}
        shutil.rmtree(self.folder / "aside", ignore_errors=True)

    def acknowledged(self, step: int, value: int) -> None:
        self.saved[step], self.newest, self.certain = {value}, {step}, True
        self.damaged.discard(f"checkpoint_{step:09d}.fledge")

    @rule(step=STEPS, value=VALUES)
    def save(self, step: int, value: int) -> None:
        self.history.save(state_of(value), step, metric=float(value % 5)).wait(60)
        self.acknowledged(step, value)

    @rule(step=STEPS, value=VALUES)
    def save_in_a_forked_child(self, step: int, value: int) -> None:
        assert in_child(lambda: CheckpointHistory(self.folder, **self.options).save(state_of(value), step)) == 0
        self.acknowledged(step, value)

    @rule(step=STEPS, value=VALUES, call=st.integers(0, 60), how=st.sampled_from(["crash", "EIO", "ENOSPC", "short"]))
    def save_on_a_failing_disk(self, step: int, value: int, call: int, how: str) -> None:
        def save() -> None:
            with Calls(self.folder, call, how).watched():
                CheckpointHistory(self.folder, **self.options).save(state_of(value), step)

        if how == "crash":
            code = in_child(save)
            assert code in (0, CRASHED)
            failed = code == CRASHED
        else:
            try:
                save()
                failed = False
            except FledgeError:
                failed = True
        if failed:
            self.saved.setdefault(step, set()).add(value)  # whichever it was, it must be one of them
            self.newest = {*self.newest, step}
        else:
            self.acknowledged(step, value)

    @rule()
    def change_folder(self) -> None:
        os.chdir(self.place if os.getcwd() == self.home else self.home)

    @rule()
    def die_in_the_middle_of_a_file(self) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / f"{TEMP_PREFIX}1-dead").write_bytes(b"half a file")

    @rule(value=VALUES)
    def save_something_else_beside_it(self, value: int) -> None:
        save_checkpoint({"other": value}, self.folder / "checkpoint_best_000000001")
        assert load_checkpoint(self.folder / "checkpoint_best_000000001") == {"other": value}

    @rule(which=st.integers(0, 20), at=st.floats(0, 0.999))
    def damage(self, which: int, at: float) -> None:
        files = self.history._files()
        if not files:
            return
        path = files[which % len(files)]
        entries = self.history.entries()  # before: what needs this file is lost with it, even if that is saved again
        content = bytearray(path.read_bytes())
        content[int(at * len(content))] ^= 4
        path.write_bytes(content)
        self.damaged |= {e.path.name for e in entries if path.name in bases_of({e.path.name}, entries)} | {path.name}
        self.newest, self.certain = set(self.saved), False  # the newest that is left may be any

    def suspect(self, path: Path) -> bool:
        """Whether a file, or one that it needs, was damaged."""
        try:
            with CheckpointFile(path) as opened:
                names = [path.name]
                while opened.base_file is not None:
                    names.append(opened.base_file)
                    opened = opened.base()
        except FledgeError:
            return True
        return any(name in self.damaged for name in names)

    @invariant()
    def every_file_is_what_was_saved_at_its_step(self) -> None:
        for entry in CheckpointHistory(self.folder).entries():
            try:
                state = self.history.load(entry)
            except FledgeError:
                assert self.suspect(entry.path), f"{entry.path.name} is lost"
                continue
            assert state["value"] in self.saved[entry.step]
            expected = state_of(state["value"])
            assert_same(state["model"], expected["model"])
            if not entry.weights_only:
                assert_same(state, expected)

    @invariant()
    def the_newest_that_was_acknowledged_can_be_resumed(self) -> None:
        if not self.saved:
            return
        try:
            _, info = CheckpointHistory(self.folder).load_latest()
        except StorageError:
            assert not self.certain, "nothing is left"
            return
        assert info.step in self.newest

    @invariant()
    def the_folder_stays_small(self) -> None:
        if self.folder.exists() and not self.damaged:
            assert (
                len(os.listdir(self.folder)) <= 7 + 5
            )  # steps, lock, latest, the other file, a dead one, and one more


def run_machine(examples: int, steps: int) -> None:
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    run_state_machine_as_test(
        HistoryMachine,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=checks
        ),
    )


@pytest.mark.slow
def test_a_history_does_what_its_model_says() -> None:
    run_machine(25, 15)


@pytest.mark.slow
def test_a_history_does_what_its_model_says_for_long() -> None:
    run_machine(int(os.environ.get("FLEDGE_EXAMPLES", "600")), 40)
