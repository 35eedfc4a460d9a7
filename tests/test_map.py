"""docs/design/map.md lists the files that one frame crosses; the files that a small run really calls are all on it."""

import inspect
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import fledge
from fledge.app.recordings.episode_payload import pack_episode
from fledge.envs.placement import EnvPlacement
from fledge.evaluation.comparison import EvalRequest, row_of
from fledge.evaluation.env_config import eval_env
from fledge.evaluation.episodes import evaluate
from fledge.evaluation.recordings import save_recording
from fledge.evaluation.report import Report, read_curves, write_report
from fledge.monitor import PerformanceMonitor
from fledge.storage import Recording
from fledge.tasks.policy_loader import load_policy
from fledge.training.config import make_config
from fledge.training.loop import start_run, take_state
from fledge.training.outputs import RunOutputs
from fledge.training.ranks import Ranks
from fledge.training.run import TrainingState

SRC = Path(fledge.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "design" / "map.md"
SMALL = ["env.num_envs=32", "env.num_maps=2", "ppo.rollout_steps=32", "ppo.minibatch=512", "total_frames=4096"]
SMALL += ["ranks=1", "threads=1", "tensorboard=false"]


def listed(heading: str) -> list[str]:
    """Return the files of src/fledge that a section of the page names."""
    section = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"`([\w/]+\.(?:py|js))`", section)


class Tracer:
    """Collects the files of Fledge in which functions are called; kernels run outside Python and are not seen."""

    def __init__(self) -> None:
        self.files: set[str] = set()

    def note(self, frame: Any, event: str, arg: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_flags & inspect.CO_OPTIMIZED and code.co_filename.startswith(f"{SRC}/"):
            self.files.add(code.co_filename[len(str(SRC)) + 1 :])

    @contextmanager
    def on(self) -> Iterator[None]:
        threading.setprofile(self.note)
        sys.setprofile(self.note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


@pytest.fixture(scope="module")
def crossed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Train, save, resume, evaluate, report and show a small run; return the files that were called."""
    folder, tracer, monitor = tmp_path_factory.mktemp("walk"), Tracer(), PerformanceMonitor()
    cfg = make_config("navigation", "fast", SMALL)
    run = TrainingState(cfg, Ranks())
    outputs = start_run(run, folder / "run", resume=False)
    assert outputs is not None
    for name in ("data_collection", "policy_training"):
        with monitor.timer(name):
            pass
    with tracer.on():
        rollout = run.collect()
        metrics = run.learn(rollout) | run.episode_metrics(rollout)
        outputs.log(metrics, monitor)
        outputs.save(run.state_dict())
        outputs.saver.fence()
    outputs.finish(metrics)
    outputs.close()
    run.close()
    run = TrainingState(cfg, Ranks())
    outputs = RunOutputs(run, folder / "run")
    with tracer.on():
        take_state(run, outputs.load(True), True)
    outputs.close()
    run.close()
    policy = load_policy(str(folder / "run"))
    flight = eval_env(policy)
    made = policy.task.make_env(flight.cfg, EnvPlacement())  # what making an env calls is not the walk
    made.close()
    with pytest.MonkeyPatch.context() as patch:
        make_env = policy.task.make_env

        def untraced(*args: Any) -> Any:
            sys.setprofile(None)
            env = make_env(*args)
            sys.setprofile(tracer.note)
            return env

        patch.setattr(policy.task, "make_env", untraced, raising=False)
        with tracer.on():
            result = evaluate(policy.agent, policy.task, flight.cfg, 8, record=4, highlights=2)
    with tracer.on():
        row = row_of(policy, flight, result, EvalRequest([]), "run")
        report = Report("run", "", "fledge report", policy.task, rows=[row], curves=read_curves(folder / "run"))
        report.trajectories = [("flights", result.trajectories)]
        write_report(folder / "report.html", report)
        save_recording(folder / "e.frec", policy.task, result.highlights, result.decision_s, {})
        with Recording(folder / "e.frec") as recording:
            pack_episode(recording, policy.task, 0)
    return tracer.files


def test_the_walk_has_at_most_55_files_and_all_exist() -> None:
    walk = set(listed("The walk of one frame"))
    assert 40 <= len(walk) <= 55
    assert [name for name in [*walk, *listed("Below the walk")] if not (SRC / name).is_file()] == []


def test_what_a_run_calls_is_on_the_map(crossed: set[str]) -> None:
    assert len(crossed) > 40
    assert sorted(crossed - {*listed("The walk of one frame"), *listed("Below the walk")}) == []
