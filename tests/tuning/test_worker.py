"""Workers: every trial is done once, whatever is killed, stopped or fails. A small program stands for the training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from fledge.core.errors import FledgeError
from fledge.training.launchers import Place, place_from_environment
from fledge.tuning.storage import JOURNAL
from fledge.tuning.sweep import Sweep
from fledge.tuning.worker import copy_run, free_folder
from tests.tuning.tiny import Command, make_sweep, starts, use_program

OTHER = """
import sys
from pathlib import Path
import pytest
from fledge.tuning.sweep import open_sweep
from tests.tuning.tiny import Command, use_program
use_program(pytest.MonkeyPatch(), sys.argv[2])
Command(open_sweep(Path(sys.argv[1]), None, [], {})).run()
"""


def other_process(folder: Path, behaviour: str = "") -> subprocess.Popen[bytes]:
    """Start a worker in a process of its own."""
    return subprocess.Popen([sys.executable, "-c", OTHER, str(folder), behaviour])


def until(check: Callable[[], Any], seconds: float = 300.0) -> None:
    give_up = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < give_up, "it did not happen"
        time.sleep(0.02)


def states(sweep: Sweep) -> list[TrialState]:
    return [trial.state for trial in Command(sweep).search.study.trials]


def test_workers_together_do_exactly_the_trials_of_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_program(monkeypatch)
    sweep = make_sweep(tmp_path, trials=10, pruner="none")
    workers = [Command(sweep) for _ in range(4)]
    threads = [worker.thread() for worker in workers]
    [thread.join() for thread in threads]
    assert sorted(key for worker in workers for key, _ in worker.told) == [f"trial/{k:04d}" for k in range(10)]
    trials = workers[0].search.trials()
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 10
    assert [starts(sweep, k) for k in range(10)] == [1] * 10
    assert len({trial.params["ppo.lr"] for trial in trials}) == 10


def test_the_trial_of_a_killed_worker_is_continued_by_one_other_with_its_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = make_sweep(tmp_path)
    process = other_process(tmp_path, "time.sleep(600)")
    until(lambda: starts(sweep, 0) == 1)
    process.kill()
    process.wait()
    before = Command(sweep).claims.all()["trial/0000"].facts
    use_program(monkeypatch)
    workers = [Command(sweep) for _ in range(3)]
    [thread.join() for thread in [worker.thread() for worker in workers]]
    assert [key for worker in workers for key, _ in worker.told].count("trial/0000") == 1
    assert (starts(sweep, 0), states(sweep)) == (2, [TrialState.COMPLETE] * 6)
    assert workers[0].search.trials()[0].params == before
    orphan = int((tmp_path / "trials" / "0000" / "starts").read_text().splitlines()[0])
    os.kill(orphan, signal.SIGKILL)


def test_a_stopped_worker_that_wakes_up_drops_the_trial_that_another_has_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = make_sweep(tmp_path, trials=2)
    release = tmp_path / "release"
    process = other_process(tmp_path, f"while not os.path.exists({str(release)!r}): time.sleep(0.05)")
    until(lambda: starts(sweep, 0) == 1)
    os.kill(process.pid, signal.SIGSTOP)
    use_program(monkeypatch)
    mine = Command(sweep)
    thread = mine.thread()
    until(lambda: len(mine.told) == 2)  # the stopped process lives, so only its missing signs of life tell
    thread.join()
    release.touch()
    os.kill(process.pid, signal.SIGCONT)
    assert process.wait(300) == 0
    assert states(sweep) == [TrialState.COMPLETE] * 2
    assert mine.claims.all()["trial/0000"].epoch == 1


def test_a_result_whose_worker_was_killed_before_it_told_is_recorded_without_training_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_program(monkeypatch)
    sweep = make_sweep(tmp_path, trials=1)
    killed = Command(sweep)
    claim, _ = killed.worker.next_claim(killed.search)
    assert claim is not None
    job = killed.search.job(claim)
    job.folder.parent.mkdir()
    job.result.write_text(json.dumps({"value": 0.5, "low": 0.4, "high": 0.6, "facts": job.facts}))
    killed.claims.release(claim)
    mine = Command(sweep)
    mine.run()
    assert (mine.search.trials()[0].value, starts(sweep, 0)) == (0.5, 0)


def test_a_killed_worker_between_claim_and_start_loses_no_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_program(monkeypatch)
    sweep = make_sweep(tmp_path, trials=3)
    killed = Command(sweep)
    killed.claims.worker = {"host": "gone", "pid": 1, "start": "1"}
    assert killed.worker.next_claim(killed.search)[0] is not None
    mine = Command(sweep)
    mine.run()
    assert [trial.state for trial in mine.search.trials()] == [TrialState.COMPLETE] * 3


def test_a_failed_trial_is_recorded_with_its_sentence_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = 'if "/0001" in order["folder"]: json.dump({"error": "The loss is NaN."}, open(order["result"], "w")); sys.exit()'
    use_program(monkeypatch, failing)
    mine = Command(make_sweep(tmp_path, trials=4, pruner="none"))
    mine.run()
    trials = mine.search.trials()
    assert [trial.state.name for trial in trials] == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
    assert trials[1].user_attrs["error"] == "The loss is NaN."


def test_a_training_that_a_signal_ends_is_tried_again_and_then_counts_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_program(monkeypatch, 'if "/0001" in order["folder"]: os.kill(os.getpid(), 9)')
    mine = Command(make_sweep(tmp_path, trials=2))
    mine.run()
    assert starts(mine.sweep, 1) == 3
    assert "by signal 9 (9 is often a lack of memory), 3 times" in mine.search.trials()[1].user_attrs["error"]


def test_a_sweep_whose_first_trials_all_fail_stops_with_the_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_program(monkeypatch, 'json.dump({"error": "reward.py:3: no."}, open(order["result"], "w")); sys.exit()')
    mine = Command(make_sweep(tmp_path))
    with pytest.raises(FledgeError, match=r"first 3 trials failed, so the sweep stops: reward.py:3: no\."):
        mine.run()


def test_a_stopped_worker_releases_its_trial_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_program(monkeypatch, "time.sleep(600)")
    mine = Command(make_sweep(tmp_path, heartbeat_s=100.0))
    thread = mine.thread()
    until(lambda: starts(mine.sweep, 0) == 1)
    mine.stop.set()
    thread.join(30)
    other = Command(mine.sweep)
    assert not thread.is_alive()
    assert other.claims.is_stale(other.claims.all()["trial/0000"])


def test_a_poor_trial_is_pruned_and_its_training_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_program(monkeypatch, 'if "/0006" in order["folder"]: time.sleep(600)')
    mine = Command(make_sweep(tmp_path, trials=7, seed=3))
    draw = mine.search.draw
    mine.search.draw = lambda key: {**draw(key), "ppo.lr": 1e-2 if key.endswith("6") else 1e-3}  # type: ignore[method-assign]
    mine.run()
    last = mine.search.trials()[6]
    assert (last.state, starts(mine.sweep, 6)) == (TrialState.PRUNED, 1)
    assert last.value == last.intermediate_values[max(last.intermediate_values)]


def test_a_random_search_draws_the_same_trials_for_any_number_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_program(monkeypatch)
    found = []
    for count in (1, 3):
        sweep = make_sweep(tmp_path / str(count), trials=8, sampler="random", pruner="none")
        workers = [Command(sweep) for _ in range(count)]
        [thread.join() for thread in [worker.thread() for worker in workers]]
        found.append([trial.params for trial in workers[0].search.trials()])
    assert found[0] == found[1]
    assert found[0][0] == {"ppo.lr": 7e-4, "ppo.epochs": 3}  # the preset's


def test_one_worker_with_the_same_seed_repeats_a_tpe_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_program(monkeypatch)
    found = []
    for name in ("a", "b"):
        mine = Command(make_sweep(tmp_path / name, trials=12, pruner="none"))
        mine.run()
        found.append([trial.params for trial in mine.search.trials()])
    assert found[0] == found[1]
    assert len({str(params) for params in found[0]}) == 12


def test_a_copy_of_a_run_is_complete_or_absent_and_made_once(tmp_path: Path) -> None:
    (tmp_path / "0000" / "checkpoints").mkdir(parents=True)
    (tmp_path / "0000" / "checkpoints" / "latest").write_text("a")
    (tmp_path / "0000" / "run.lock").touch()
    threads = [threading.Thread(target=copy_run, args=(tmp_path / "0000", tmp_path / "0004")) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0000", "0004"]
    assert sorted(path.name for path in (tmp_path / "0004").rglob("*")) == ["checkpoints", "latest"]


def test_a_training_that_still_holds_the_folder_of_a_job_taken_over_is_killed_even_if_stopped(tmp_path: Path) -> None:
    hold = "import sys, time; from pathlib import Path; from fledge.training.run_lock import RunLock\n"
    hold += f"lock = RunLock(Path({str(tmp_path / 'run')!r})); print('held', flush=True); time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    os.kill(holder.pid, signal.SIGSTOP)
    free_folder(tmp_path / "run")
    assert holder.wait(10) == -signal.SIGKILL


def test_a_lost_journal_gives_no_result_to_other_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_program(monkeypatch)
    first = Command(make_sweep(tmp_path, trials=3, pruner="none"))
    first.run()
    params = [trial.params for trial in first.search.trials()]
    (tmp_path / JOURNAL).unlink()
    (tmp_path / "trials" / "0002.json").unlink()  # of a run that was not complete
    again = Command(first.sweep)
    kept, drawn = again.search.draw, {"ppo.lr": 5e-3, "ppo.epochs": 1}
    again.search.draw = lambda key: drawn  # type: ignore[method-assign]
    with pytest.raises(FledgeError, match=r"0000\.json was made with other parameters .* restore the storage"):
        again.run()
    claim = again.claims.take("trial/0002", 0, drawn)
    assert claim is not None
    with pytest.raises(FledgeError, match=r"trials/0002 was made with other parameters"):
        again.worker.do(again.search, claim)
    (tmp_path / JOURNAL).unlink()
    last = Command(first.sweep)
    again.search.sweep.seed = 99  # so that the sampler draws others
    last.run()
    assert [kept(f"trial/{k:04d}") for k in range(3)] == params
    assert [trial.params for trial in last.search.trials()] == params
    assert [starts(first.sweep, k) for k in range(3)] == [1, 1, 2]


def test_a_trial_below_srun_or_mpirun_is_the_only_rank_of_its_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for prefix, rank, size in (("SLURM_", "PROCID", "STEP_NUM_TASKS"), ("OMPI_COMM_WORLD_", "RANK", "SIZE")):
        monkeypatch.setenv(prefix + rank, "1")
        monkeypatch.setenv(prefix + size, "2")
    monkeypatch.setenv("PET_NNODES", "2")
    use_program(monkeypatch, 'json.dump(dict(os.environ), open(order["folder"] + "/env", "w"))')
    mine = Command(make_sweep(tmp_path, trials=1))
    mine.run()
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in json.loads((tmp_path / "trials" / "0000" / "env").read_text()).items():
        monkeypatch.setenv(name, value)
    assert place_from_environment() == Place(0, 1, 0)
