"""Learners, tasks and views of a user's own that break their contract get one sentence, and lose nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fledge.core.code import find_object
from fledge.core.errors import ConfigError, FledgeError, InputError, NumericsError
from fledge.envs.placement import EnvPlacement
from fledge.evaluation.episodes import evaluate
from fledge.evaluation.tables import results_table
from fledge.storage import CheckpointHistory
from fledge.tasks.base import Task
from fledge.tasks.metrics import TaskMetrics
from fledge.tasks.registry import find_task
from fledge.tasks.view.base import TaskView
from fledge.training.command import run_training
from fledge.training.learner_checks import check_report, check_state

LEARNER = """
import torch
from dataclasses import dataclass
from fledge.core.settings import setting
from fledge.learn.base import Learner

@dataclass
class Config:
    rollout_steps: int = setting(4, at_least=1)

class Mine(Learner):
    config = Config

    def __init__(self, policy, cfg, ranks=1):
        self.policy, self.optimizers = policy, {}

    def update(self, rollout, progress=0.0):
        RETURN
"""
SMALL = ["env.num_envs=4", "total_frames=32", "ranks=1", "tensorboard=false", "save_interval=1"]
HOVER = str(Path(__file__).parents[2] / "examples" / "hover.py")


def learner(path: Path, body: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(LEARNER.replace("RETURN", body))
    return f"algo={path}:Mine"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('return "done"', "but returned a str"),
        ("return {1: 2.0}", "must return a dict of numbers by name"),
        ('return {"loss": torch.ones(3)}', "must return one number for each name"),
        ('return {"loss": float("nan")}', "NaN or infinity in the metrics loss"),
        ('return {"return": 1.0}', "returned the metrics return, which the run logs itself"),
        ("raise KeyError('oops')", r"failed in .*mine.py, line \d+: KeyError"),
    ],
)
def test_a_learner_that_breaks_its_contract_gets_a_sentence(tmp_path: Path, body: str, said: str) -> None:
    algo = learner(tmp_path / "mine.py", body)
    with pytest.raises(FledgeError, match=said):
        run_training(find_task(HOVER), None, [*SMALL, algo], tmp_path / "run")


def test_weights_that_are_not_finite_do_not_replace_a_checkpoint(tmp_path: Path) -> None:
    spoil = """
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls == 2:
            torch.nn.init.constant_(next(self.policy.parameters()), float("nan"))
        return {"loss": 0.0}
"""
    algo = learner(tmp_path / "mine.py", spoil.strip())
    with pytest.raises(
        NumericsError, match=r"NaN or infinity in the weights .* after iteration 2 .*They were not saved"
    ):
        run_training(find_task(HOVER), None, [*SMALL, algo], tmp_path / "run")
    state, _ = CheckpointHistory(tmp_path / "run" / "checkpoints").load_latest()
    assert state["iteration"] == 1


def test_a_learner_may_return_a_tensor_of_one_number() -> None:
    assert check_report({"loss": torch.tensor(2.0)}, "mine", set()) == {"loss": 2.0}
    with pytest.raises(NumericsError):
        check_report({"loss": torch.tensor(torch.inf)}, "mine", set())


def test_a_state_that_would_overwrite_the_runs_own_is_refused() -> None:
    with pytest.raises(InputError, match="has the entries rng, whose names the run uses itself"):
        check_state({"rng": 1}, "rank_state()", {"rng"})
    with pytest.raises(InputError, match="returned a NoneType"):
        check_state(None, "state_dict()")


def test_a_run_goes_on_when_its_algorithm_has_moved_and_refuses_another_one(tmp_path: Path) -> None:
    old = learner(tmp_path / "mine.py", "return {'loss': 0.0}")
    run_training(find_task(HOVER), None, [*SMALL, old], tmp_path / "run")
    (tmp_path / "mine.py").unlink()
    new = learner(tmp_path / "there" / "mine.py", "return {'loss': 0.0}")
    done = run_training(find_task(HOVER), None, [new, "total_frames=64"], tmp_path / "run", True)
    assert done.metrics["frames"] == 64
    with pytest.raises(ConfigError, match="a resumed run keeps its algorithm"):
        run_training(find_task(HOVER), None, ["algo=ppo"], tmp_path / "run", True)


@pytest.mark.parametrize("part", ["presets", "policy", "curriculum", "view", "metrics", "match"])
def test_a_part_of_another_kind_is_refused(part: str) -> None:
    hover: Any = find_task(HOVER)
    with pytest.raises(ConfigError, match=rf"{part} of task 'x' must be an object of \w+, but is int"):
        Task("x", hover.config, hover.env, **{part: 3})


def hover_like(**parts: Any) -> Task:
    hover: Any = find_task(HOVER)
    return Task("x", hover.config, hover.env, **parts)


class Fewer(Task):
    def make_env(self, cfg: Any, placement: EnvPlacement = EnvPlacement()) -> Any:
        return super().make_env(type(cfg)(num_envs=2), placement)


def fly(task: Task, **options: Any) -> Any:
    class Still(torch.nn.Module):
        observes = ("body",)

        def __getattr__(self, name: str) -> Any:
            return (lambda *a, **k: {}) if name in ("reset", "bind", "figures") else super().__getattr__(name)

        def get_name(self) -> str:
            return "still"

        def act(self, obs: Any, deterministic: bool = True) -> torch.Tensor:
            return torch.zeros(len(obs["body"]), 4)

    return evaluate(Still(), task, task.config(num_envs=4), 4, **options)  # type: ignore[arg-type]


def test_an_env_with_fewer_rows_than_asked_for_is_not_counted_as_if_it_had_all() -> None:
    hover: Any = find_task(HOVER)
    with pytest.raises(ConfigError, match=re.escape("must return cfg.num_envs = 4 envs, but returned 2")):
        fly(Fewer("x", hover.config, hover.env))


def test_classes_out_of_range_are_refused() -> None:
    class Wrong(TaskMetrics):
        classes = ("easy", "hard")

        def classify(self, env: Any) -> torch.Tensor:
            return torch.full((env.num_envs,), 7)

    with pytest.raises(ConfigError, match="from 0 to 1"):
        fly(hover_like(metrics=Wrong()))


def test_a_snapshot_with_a_row_too_many_is_refused() -> None:
    class Wrong(TaskView):
        def snapshot(self, env: Any, ids: Any) -> dict[str, np.ndarray]:
            return {"pos": np.zeros((len(ids) + 1, 3))}

    with pytest.raises(ConfigError, match="a row for each of the 4 envs"):
        fly(hover_like(view=Wrong()), record=4)


def test_positions_without_a_height_are_drawn_from_above() -> None:
    class Flat(TaskView):
        def snapshot(self, env: Any, ids: Any) -> dict[str, np.ndarray]:
            return {"pos": np.zeros((len(ids), 2))}

    task = hover_like(view=Flat())
    assert len(task.view.draw(fly(task, record=4).trajectories).axes) == 1


def test_log_scalar_refuses_what_is_not_a_number() -> None:
    env = find_task(HOVER).make_env(find_task(HOVER).config(num_envs=2))
    with pytest.raises(InputError, match="must get a tensor or a number"):
        env.log_scalar("x", "fast")  # type: ignore[arg-type]


def test_a_run_goes_on_when_the_file_of_its_task_and_its_neighbours_have_moved(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    (old / "my_scale.py").write_text("SCALE = 0.5\n")
    text = Path(HOVER).read_text().replace("\nimport torch\n", "\nimport torch\n\nfrom my_scale import SCALE\n", 1)
    (old / "my_hover.py").write_text(text)
    run_training(find_task(str(old / "my_hover.py")), None, SMALL, tmp_path / "run")
    old.rename(new)
    with pytest.raises(ConfigError, match=r"no longer there, so add --task PATH/my_hover.py with its new place"):
        run_training(None, None, ["total_frames=256"], tmp_path / "run", True)
    done = run_training(find_task(str(new / "my_hover.py")), None, ["total_frames=256"], tmp_path / "run", True)
    assert done.metrics["frames"] == 256


def test_files_of_one_name_in_two_folders_have_their_own_neighbours(tmp_path: Path) -> None:
    for folder, value in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "my_number.py").write_text(f"NUMBER = {value}\n")
        (tmp_path / folder / "mine.py").write_text(
            "from my_number import NUMBER\n\ndef later():\n    import my_number\n    return my_number.NUMBER\n"
        )
    a, b = (str(tmp_path / folder / "mine.py") for folder in "ab")
    assert [find_object(f"{place}:NUMBER") for place in (a, b, a)] == [1, 2, 1]
    assert find_object(f"{a}:later")() == 1
    with pytest.raises(ConfigError, match=r"mine.py has no NUMBR. Did you mean NUMBER\?"):
        find_object(f"{a}:NUMBR")


def test_the_label_of_the_primary_metric_heads_its_column() -> None:
    task = hover_like(metrics=TaskMetrics(labels={"success": "arrived"}), primary_metric="success")
    row = {"policy": "a", "world": "w", "episodes": 2, "seed": 1, "success": 0.5, "success_ci95": (0.1, 0.9)}
    assert "arrived" in results_table([row], task).columns
