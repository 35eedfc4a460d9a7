"""CheckpointHistory: what it keeps, what it thins, and that nothing it keeps is ever unreadable."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from fledge.core.errors import ConfigError, InputError, StorageError
from fledge.storage import AsyncCheckpointSaver, CheckpointHistory, inspect_checkpoint, load_checkpoint
from fledge.storage.history import history as history_module
from tests.storage.states import assert_same, copy_state, state_at, train_step, training


def save_all(history: CheckpointHistory, steps: range, metric: Any = None) -> None:
    for step in steps:
        history.save(state_at(step, 2000), step, metric=metric(step) if metric else None)


def test_the_newest_stay_whole_and_older_keep_their_weights(tmp_path: Path) -> None:
    history = CheckpointHistory(tmp_path, keep_whole=2)
    save_all(history, range(1, 6))
    assert [(entry.step, entry.weights_only) for entry in history.entries()] == [
        (1, True),
        (2, True),
        (3, True),
        (4, False),
        (5, False),
    ]
    thin = load_checkpoint(history.entries()[0].path)
    assert list(thin) == ["model", "step"]  # weights and plain values; no optimiser
    assert_same(thin["model"], state_at(1, 2000)["model"])


def test_the_best_by_metric_are_never_removed_nor_rounded(tmp_path: Path) -> None:
    history = CheckpointHistory(tmp_path, keep_whole=1, keep_best=2, keep_weights_only=0, weights_only_dtype="bfloat16")
    save_all(history, range(1, 9), metric=lambda step: -abs(step - 3.2))
    assert [entry.step for entry in history.entries()] == [3, 4, 8]
    best = history.best()
    assert best is not None
    assert best.step == 3
    assert_same(history.load(best)["model"], state_at(3, 2000)["model"])
    low = CheckpointHistory(tmp_path / "low", keep_whole=1, keep_best=1, keep_weights_only=0, higher_is_better=False)
    save_all(low, range(1, 5), metric=lambda step: abs(step - 2))
    assert [entry.step for entry in low.entries()] == [2, 4]


def test_rounded_weights_are_declared_and_come_back_in_their_dtype(tmp_path: Path) -> None:
    history = CheckpointHistory(tmp_path, keep_whole=1, weights_only_dtype="bfloat16")
    save_all(history, range(1, 3))
    path = history.entries()[0].path
    rows = {row["name"]: row for row in inspect_checkpoint(path)["tensors"]}
    assert (rows["model/weight"]["dtype"], rows["model/weight"]["lossy_from"]) == ("bfloat16", "float32")
    weight = load_checkpoint(path)["model"]["weight"]
    assert_same(weight, state_at(1, 2000)["model"]["weight"].bfloat16().float())


@pytest.mark.parametrize("delta", ["weights_only", "all"])
@pytest.mark.parametrize("keep_weights_only", [None, 2])
def test_deltas_stay_readable_while_others_are_thinned_and_removed(
    tmp_path: Path, delta: Any, keep_weights_only: int | None
) -> None:
    model, optimizer = training(width=64)
    history = CheckpointHistory(
        tmp_path, keep_whole=2, keep_best=1, keep_weights_only=keep_weights_only, delta=delta, max_chain=3
    )
    expected: dict[int, Any] = {}
    for step in range(14):
        train_step(model, optimizer, 64)
        expected[step] = copy_state(model.state_dict())
        history.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step, metric=-abs(step - 5))
        for entry in history.entries():
            assert_same(history.load(entry)["model"], expected[entry.step])
    assert any(entry.base for entry in history.entries())
    assert {12, 13, 5} <= {entry.step for entry in history.entries()}
    assert all("optimizer" in history.load(entry) for entry in history.entries()[-2:])


def test_saving_a_step_again_does_not_break_deltas_to_it(tmp_path: Path) -> None:
    model, optimizer = training(width=64)
    history = CheckpointHistory(tmp_path, keep_whole=4, delta="all")
    for step in (1, 2, 2, 1, 3):
        train_step(model, optimizer, 64)
        history.save({"model": model.state_dict()}, step)
    assert [entry.step for entry in history.entries()] == [2, 1, 3]  # in the order of saving
    for entry in history.entries():
        history.load(entry)
    assert history.load_latest()[1].step == 3


def test_latest_moves_only_once_the_file_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = CheckpointHistory(tmp_path)
    history.save(state_at(1, 100), 1)

    def fail(*_: Any, **__: Any) -> None:
        raise StorageError("no room")

    monkeypatch.setattr(history_module, "write_state", fail)
    with pytest.raises(StorageError):
        history.save(state_at(2, 100), 2)
    assert json.loads((tmp_path / "latest").read_text()) == {"file": "checkpoint_000000001.fledge", "step": 1}


def test_resume_goes_by_the_order_of_saving_not_by_the_step(tmp_path: Path) -> None:
    history = CheckpointHistory(tmp_path)
    save_all(history, range(5, 8))
    again = CheckpointHistory(tmp_path)  # a run that went back to an earlier point
    again.save(state_at(6, 2000), 6)
    assert again.load_latest()[1].step == 6


def test_resume_skips_what_does_not_verify_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    history = CheckpointHistory(tmp_path)
    save_all(history, range(1, 4))
    for entry in history.entries()[1:]:
        entry.path.write_bytes(entry.path.read_bytes()[:-20])
    state, info = history.load_latest()
    assert info.step == 1
    assert_same(state, state_at(1, 2000))
    assert {name for name, _ in info.skipped} == {"checkpoint_000000002.fledge", "checkpoint_000000003.fledge"}
    assert "cannot be used" in caplog.text


def test_an_empty_folder_says_that_there_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no checkpoint to resume from"):
        CheckpointHistory(tmp_path / "none").load_latest()
    assert CheckpointHistory(tmp_path / "none").latest() is None
    assert not (tmp_path / "none").exists()


def test_a_thin_checkpoint_is_not_resumed_from_unless_asked(tmp_path: Path) -> None:
    history = CheckpointHistory(tmp_path, keep_whole=1)
    save_all(history, range(1, 3))
    os.unlink(history.entries()[-1].path)
    with pytest.raises(StorageError):
        history.load_latest()
    assert history.load_latest(allow_weights_only=True)[1].step == 1


def test_with_a_saver_it_works_in_the_background(tmp_path: Path) -> None:
    model, optimizer = training()
    with AsyncCheckpointSaver() as saver:
        saver.attach(optimizer)
        history = CheckpointHistory(tmp_path, saver=saver, keep_whole=2)
        for step in range(6):
            expected = copy_state(model.state_dict())
            handle = history.save(
                {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step, metadata={"x": step}
            )
            train_step(model, optimizer)
        handle.wait(60)
    state, info = history.load_latest(keys=["model"])
    assert (info.step, info.metadata) == (5, {"x": 5})
    assert_same(state, {"model": expected})
    assert [entry.weights_only for entry in history.entries()] == [True] * 4 + [False] * 2


def test_bad_settings_and_states_are_refused(tmp_path: Path) -> None:
    for bad in (
        {"keep_whole": 0},
        {"keep_best": -1},
        {"delta": "some"},
        {"weights_only_dtype": "int4"},
        {"max_chain": 99},
    ):
        with pytest.raises(ConfigError):
            CheckpointHistory(tmp_path, **bad)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"needs one of weights=\['model'\]"):
        CheckpointHistory(tmp_path).save({"policy": torch.ones(1)}, 1)


def test_a_folder_of_damaged_files_is_not_an_empty_one(tmp_path: Path) -> None:
    history = CheckpointHistory(tmp_path)
    assert history.is_empty
    assert history.latest() is None
    history.save({"model": {"w": torch.zeros(3)}}, step=4)
    path = tmp_path / "checkpoint_000000004.fledge"
    path.write_bytes(path.read_bytes()[:100])
    assert not history.is_empty
    with pytest.raises(StorageError, match=r"None of the 1 checkpoints .* can be read: checkpoint_000000004"):
        history.latest()


@pytest.mark.parametrize("step", [-1, "a", 1.5, None])
def test_a_step_that_is_no_whole_number_is_refused(tmp_path: Path, step: Any) -> None:
    with pytest.raises(InputError, match="must be a whole number of at least 0"):
        CheckpointHistory(tmp_path).save({"model": {}}, step=step)


def test_misuse_gets_a_sentence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    history = CheckpointHistory(tmp_path)
    for wrong, sentence in (
        ({"step": True}, "step is True, but must be a whole number"),
        ({"step": 1, "metric": "0.5"}, "metric is '0.5', but must be a number"),
        ({"step": 1, "metric": [1, 2]}, r"metric is '\[1, 2\]', but must be a number"),
    ):
        with pytest.raises(InputError, match=sentence):
            history.save(state_at(1), **wrong)
    assert history.is_empty
    history.save(state_at(1), 1)
    with pytest.raises(InputError, match=r"entry is None: pass one of entries.* best\(\) is None if no metric"):
        history.load(history.best())  # type: ignore[arg-type]
    with AsyncCheckpointSaver(codec="pt", find_optimizers=False) as saver:
        CheckpointHistory(tmp_path, saver=saver)
    assert "codec 'pt' is ignored" in caplog.text
