"""The Python API: train, Run, evaluate, load_policy, make_env, benchmark, export and report, as users call them."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import fledge
from fledge.core.errors import ConfigError, InputError
from fledge.envs.base import TensorEnv
from fledge.tasks.loaded_policy import LoadedPolicy

SMALL: dict[str, Any] = {
    "env": {"num_envs": 8, "num_maps": 1, "static_obstacles": 5, "moving_obstacles": 2},
    "ppo": {"rollout_steps": 8, "minibatch": 32},
    "total_frames": 128,
    "tensorboard": False,
}
FEW = {"num_maps": 1, "static_obstacles": 5, "moving_obstacles": 2, "max_episode_steps": 60}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fledge.Run:
    return fledge.train("navigation", folder=tmp_path_factory.mktemp("api") / "run", ranks=1, progress=False, **SMALL)


@pytest.fixture(scope="module")
def env() -> Iterator[TensorEnv]:
    made = fledge.make_env("navigation", num_envs=4, device="cpu", **FEW)
    yield made
    made.close()


# ---- the package -------------------------------------------------------------------------------------------------------


def test_the_stub_has_every_lazy_name_from_the_same_module() -> None:
    tree = ast.parse(Path(fledge.__file__).with_suffix(".pyi").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    stub = {alias.asname: node.module for node in imports for alias in node.names}
    assert stub == fledge._HOMES


@pytest.mark.parametrize("name", ["train", "evaluate", "load_policy", "make_env", "benchmark", "export", "report"])
def test_every_function_is_typed_and_documented_with_an_example(name: str) -> None:
    function = getattr(fledge, name)
    doc = inspect.getdoc(function) or ""
    assert "Example:" in doc
    signature = inspect.signature(function)
    assert all(each.annotation is not inspect.Parameter.empty for each in signature.parameters.values())
    listed = set(re.findall(r"^    (\w+):", doc.split("Args:")[1], re.MULTILINE))
    assert set(signature.parameters) <= listed


# ---- train and Run -----------------------------------------------------------------------------------------------------


def test_train_returns_a_run_with_settings_metrics_policy_and_figures(run: fledge.Run) -> None:
    assert run.folder.is_dir()
    assert run.interrupted is False
    assert run.settings["env"]["num_envs"] == 8
    assert len(run.metrics) == 2
    assert run.metrics["frames"].tolist() == [64, 128]
    assert isinstance(run.policy, LoadedPolicy)
    assert run.final_metrics["frames"] == 128
    assert len(run.checkpoints) == 1
    assert type(run.plot()).__name__ == "Figure"
    assert list(run.figures) == ["curves"]
    assert repr(run).count("\n") == 0
    assert "128 decisions" in repr(run)
    assert "<table>" in run._repr_html_()


def test_any_run_can_be_opened_and_another_folder_is_refused(run: fledge.Run, tmp_path: Path) -> None:
    again = fledge.Run(str(run.folder))
    assert again.metrics["frames"].tolist() == [64, 128]
    assert again.task.name == "navigation"
    with pytest.raises(ConfigError, match=r"is not a run: it has no config\.yaml"):
        fledge.Run(tmp_path)


def test_settings_are_nested_dotted_or_other_projects_names(tmp_path: Path) -> None:
    given = {"env": {"num_envs": 8, "num_maps": 1}, "env.num_obstacles": 7, "ppo.lr": 1e-3, "policy": {"hidden": [16]}}
    found = fledge.train(folder=tmp_path / "run", ranks=1, progress=False, **{**SMALL, "total_frames": 64, **given})
    assert found.settings["env"]["static_obstacles"] == 7
    assert found.settings["ppo"]["lr"] == 1e-3
    assert found.settings["policy"]["hidden"] == [16]
    plain = {name: value for name, value in SMALL.items() if name != "env"}
    short = fledge.train(
        folder=tmp_path / "short", num_envs=4, ranks=1, progress=False, **{**plain, "total_frames": 32}
    )
    assert short.settings["env"]["num_envs"] == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"env": {"num_env": 4}}, r"no setting env\.num_env\. Did you mean env\.num_envs"),
        ({"total_frames": "many"}, "total_frames takes a whole number"),
        ({"ppo": {"lr": object()}}, "cannot be the value of a setting"),
        ({"resume": True}, "resume=True needs the folder of the run"),
        ({"task": "naviation"}, "Did you mean navigation"),
        ({"task": 3}, "task is 3, but must be a name"),
        ({"preset": "nowhere"}, "no train preset 'nowhere'"),
    ],
)
def test_wrong_input_gets_the_command_lines_error(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        fledge.train(**settings)


def test_resume_takes_the_task_from_the_folder_and_a_folder_is_not_overwritten(run: fledge.Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="already holds a run"):
        fledge.train(folder=run.folder, progress=False, **SMALL)
    with pytest.raises(ConfigError, match="is a run of the task navigation, not of aircombat"):
        fledge.train("aircombat", folder=run.folder, resume=True, progress=False)
    first = fledge.train("gym:CartPole-v1", folder=tmp_path / "g", ranks=1, progress=False, total_frames=64, **GYM)
    more = fledge.train(folder=first.folder, resume=True, total_frames=128, progress=False)
    assert more.settings["task"] == "gym:CartPole-v1"
    assert more.metrics["frames"].tolist() == [64, 128]


GYM: dict[str, Any] = {"env": {"num_envs": 8}, "ppo": {"rollout_steps": 8, "minibatch": 32}, "tensorboard": False}


def test_a_quiet_training_prints_nothing_and_restores_torchs_threads(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = torch.get_num_threads()
    fledge.train(
        "gym:CartPole-v1", folder=tmp_path / "run", ranks=1, threads=before + 1, progress=False, total_frames=64, **GYM
    )
    assert capfd.readouterr() == ("", "")
    assert torch.get_num_threads() == before


def test_a_new_run_gets_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda _: "now")
    runs = [fledge.train("gym:CartPole-v1", ranks=1, progress=False, total_frames=64, **GYM) for _ in range(2)]
    assert [run.folder for run in runs] == [Path("runs/now"), Path("runs/now-2")]


def make_local_task() -> Any:
    """A task that no module holds, as in a notebook's cell."""
    from fledge.tasks.gym.task import GymTask

    class Local(GymTask):
        def __init__(self, name: str) -> None:
            super().__init__(name)
            self.name = self.reference = "local"

    return Local("CartPole-v1")


def test_a_task_of_the_calling_program_trains_on_one_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fledge.training.command.default_ranks", lambda *_: 2)
    task = make_local_task()
    found = fledge.train(task, folder=tmp_path / "run", ranks=0, total_frames=64, **GYM)
    assert "Local is defined in the calling program, so training uses 1 rank" in capfd.readouterr().err
    assert found.policy.task is task
    assert fledge.evaluate(found, episodes=4, progress=False).episodes == 4
    with pytest.raises(ConfigError, match="which is code and is not run unless you name it"):
        fledge.Run(found.folder).task  # noqa: B018
    assert fledge.Run(found.folder, task).policy.task is task
    with pytest.raises(ConfigError, match="put it into a Python file"):
        fledge.train(make_local_task(), folder=tmp_path / "two", ranks=2, total_frames=64, **GYM)


SCRIPT = """
import sys, torch, fledge
before = torch.get_num_threads()
small = dict(env={"num_envs": 8}, ppo={"rollout_steps": 8, "minibatch": 32}, tensorboard=False, progress=False)
run = fledge.train("gym:CartPole-v1", folder="two", ranks=2, total_frames=128, **small)
try:
    fledge.train("gym:CartPole-v1", folder="bad", ranks=2, total_frames=128, algo="dqn", **{**small, "env": {"num_envs": 7}})
except fledge.FledgeError as error:
    print("error:", error)
task = fledge.find_task("gym:CartPole-v1")
task.reference = "gym:Nowhere-v0"  # other ranks do not find it
try:
    fledge.train(task, folder="bad", ranks=2, total_frames=128, **small)
except fledge.FledgeError as error:
    print("error of a rank:", error)
task.reference = "gym:CartPole-v1"
again = fledge.train("gym:CartPole-v1", folder="one", ranks=1, total_frames=64, **small)
assert torch.get_num_threads() == before
assert sys.excepthook is sys.__excepthook__
assert not torch.distributed.is_initialized()
print("done", len(run.metrics), len(again.metrics), run.settings["ranks"])
"""


def run_script(text: str, folder: Path) -> subprocess.Popen[str]:
    (folder / "script.py").write_text(text)
    command = [sys.executable, "script.py"]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_script_without_a_guard_trains_on_two_ranks_and_then_again(tmp_path: Path) -> None:
    out, err = run_script(SCRIPT, tmp_path).communicate(timeout=120)
    assert "done 2 1 2" in out, err
    assert "error: " in out
    assert "error of a rank: Rank 1: " in out
    assert not (tmp_path / "bad").exists()
    assert not [name for name in os.environ if name in ("MASTER_PORT",)]


INTERRUPTED = """
import fledge
small = dict(env={"num_envs": 8}, ppo={"rollout_steps": 8, "minibatch": 32}, tensorboard=False, progress=False)
run = fledge.train("gym:CartPole-v1", folder="run", ranks=1, total_frames=10**9, **small)
assert run.interrupted
assert run.checkpoints
print("interrupted after", len(run.metrics) > 0, flush=True)
"""


def test_the_first_interrupt_saves_and_returns_the_run(tmp_path: Path) -> None:
    process = run_script(INTERRUPTED, tmp_path)
    metrics = tmp_path / "run" / "metrics.jsonl"
    give_up = time.monotonic() + 120
    while not (metrics.exists() and metrics.read_text()) and time.monotonic() < give_up:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert out == "interrupted after True\n", err


def test_a_second_interrupt_raises_keyboard_interrupt() -> None:
    from fledge.training.loop import stop_on_signals

    with stop_on_signals(quiet=True) as stopped:
        assert not stopped()
        os.kill(os.getpid(), signal.SIGINT)
        assert stopped()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_training_inside_a_training_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import fledge\nfledge.train('gym:CartPole-v1')\n")

    def nested(folder: Path) -> None:
        fledge.train("gym:CartPole-v1")

    with pytest.raises(ConfigError, match="while another training runs in this process"):
        fledge.train("gym:CartPole-v1", folder=tmp_path / "run", ranks=1, progress=False, on_start=nested, **GYM)


# ---- evaluate ----------------------------------------------------------------------------------------------------------


def test_several_policies_fly_in_the_env_of_the_first(run: fledge.Run, capfd: pytest.CaptureFixture[str]) -> None:
    result = fledge.evaluate([run, "fledge-nav", fledge.StraightPilot()], episodes=4, max_episode_steps=60)
    told = capfd.readouterr().err
    assert "All fly in the env of run: edges 5/2." in told
    assert "fledge-nav keeps its own env.plan=True, env.decimation=4" in told
    table = result.table()
    assert table["policy"].tolist() == ["run", "fledge-nav", "straight"]
    assert set(table["env"]) == {"edges 5/2"}
    assert {"success", "success_low", "success_high", "episodes", "mean_return"} <= set(table.columns)
    assert type(result.plot()).__name__ == "Figure"
    assert result.plot("control_effort").axes[0].get_xlabel().startswith("control_effort")
    with pytest.raises(ConfigError, match="'nonsense' is not a number in every row"):
        result.plot("nonsense")
    assert "fledge-nav" in str(result)
    assert max(map(len, str(result).splitlines())) <= 100
    assert json.loads(json.dumps(result.to_dict()))["rows"][1]["policy"] == "fledge-nav"
    assert "4 episodes each, seed 7: edges 5/2" in result._repr_html_()
    assert result.results[0].episodes == 4
    with pytest.raises(AttributeError, match="has 3 results"):
        result.returns  # noqa: B018


def test_one_policy_gives_one_row_and_its_own_attributes(run: fledge.Run) -> None:
    for given in (run, [run], str(run.folder), run.folder, run.policy):
        result = fledge.evaluate(given, episodes=2, progress=False, max_episode_steps=30)
        assert len(result.table()) == 1
    assert result.rate("timeout") + result.rate("success") <= 1
    assert result.returns.shape == (2,)


def test_episodes_are_drawn_only_if_they_were_kept() -> None:
    result = fledge.evaluate("straight", "empty", episodes=4, progress=False, picture=True, max_episode_steps=60)
    assert type(result.flights()).__name__ == "Figure"
    assert type(result.flight(0)).__name__ == "Figure"
    with pytest.raises(ConfigError, match="picture=True"):
        fledge.evaluate("straight", "empty", episodes=2, progress=False, max_episode_steps=30).flights()


def test_an_env_of_ones_own_takes_loaded_policies_and_agents_and_is_put_back(env: TensorEnv) -> None:
    for result in (
        fledge.evaluate(env, fledge.load_policy("straight"), progress=False),
        fledge.evaluate(env, fledge.StraightPilot(), progress=False),
        fledge.evaluate(["straight"], env=env, progress=False),
        fledge.evaluate(env=env, policy=fledge.StraightPilot(), episodes=4, progress=False),
    ):
        assert result.episodes == 4
        assert result.decision_s == env.decision_s == pytest.approx(0.048)
        assert result.table()["decision_s"].tolist() == [pytest.approx(0.048)]
    with pytest.raises(ConfigError, match="moving_obstacles cannot be used with a TensorEnv"):
        fledge.evaluate("straight", env=env, moving_obstacles=3)


def test_another_decision_rate_than_the_policys_is_told(env: TensorEnv, capfd: pytest.CaptureFixture[str]) -> None:
    fledge.evaluate(env, fledge.load_policy("fledge-reflex"), 4)
    assert "decides every" not in capfd.readouterr().err
    policy = fledge.load_policy("fledge-reflex")
    assert policy.env is not None
    policy.env.decision_s = 0.1
    fledge.evaluate(env, policy, 4)
    assert "fledge-reflex decides every 0.048 s here (trained with 0.1 s)" in capfd.readouterr().err


def test_the_form_with_an_agent_a_task_and_a_config_works() -> None:
    cfg = fledge.NavigationConfig(num_envs=4, **FEW)
    result = fledge.evaluate(fledge.StraightPilot(), fledge.find_task("navigation"), cfg, 4, seed=1, num_threads=1)
    assert result.as_dict()["episodes"] == 4


def test_a_two_player_task_gives_a_cross_table() -> None:
    result = fledge.evaluate(["pursuit", "crank"], task="aircombat", episodes=4, progress=False, picture=True)
    table = result.table()
    assert table["policy"].tolist() == ["pursuit", "crank"]
    assert {"elo", "against pursuit", "against crank"} <= set(table.columns)
    assert result.to_dict()["agents"] == ["pursuit", "crank"]
    assert type(result.plot()).__name__ == type(result.flight(0)).__name__ == "Figure"
    assert "fights a pair" in result._repr_html_()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"policies": "no-such"}, "There is no policy 'no-such'"),
        ({"policies": []}, "Name a policy to fly"),
        ({"policies": 3}, "3 is not a policy"),
        ({"policies": "straight", "movers": 3}, "movers"),
        ({"policies": "straight", "env": "nowhere"}, "no env preset 'nowhere'"),
        ({"policies": "straight", "episodes": 0}, "needs at least 1"),
        ({"policies": "straight", "episodes": "64"}, "must be a whole number"),
    ],
)
def test_wrong_evaluations_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fledge.evaluate(progress=False, **given)


# ---- load_policy and make_env ------------------------------------------------------------------------------------------


def test_a_policy_acts_on_arrays_and_tensors_with_and_without_a_batch_axis() -> None:
    policy = fledge.load_policy("fledge-reflex")
    inputs = policy.agent.example_inputs(3)
    batch = policy.act(inputs)
    assert batch.shape == (3, 3)
    arrays = {name: value.numpy() for name, value in inputs.items()}
    same = policy.act({**arrays, "unread": np.zeros(2)})
    assert isinstance(same, np.ndarray)
    np.testing.assert_array_equal(same, batch.numpy())
    one = policy.act({name: value[1] for name, value in arrays.items()})
    np.testing.assert_allclose(one, same[1], rtol=1e-5)
    assert torch.equal(policy.act(TensorDict(inputs, [3])), batch)
    assert not np.array_equal(policy.act(arrays, deterministic=False), same)


def test_missing_and_misshapen_observations_are_named() -> None:
    policy = fledge.load_policy("fledge-reflex")
    inputs = policy.agent.example_inputs(3)
    with pytest.raises(
        InputError, match=r"reads state, lidar, dynamic_obstacle, but obs has state: lidar, dynamic_obst"
    ):
        policy.act({"state": inputs["state"]})
    with pytest.raises(InputError, match=r"obs\['state'\] has shape \(3, 7\), but fledge-reflex reads \[B, 8\]"):
        policy.act({**inputs, "state": inputs["state"][:, :7]})
    with pytest.raises(InputError, match="the same B for all"):
        policy.act({**inputs, "state": inputs["state"][:2]})


def test_a_loaded_policy_makes_its_env_and_shows_itself() -> None:
    policy = fledge.load_policy("fledge-reflex")
    with_env = policy.make_env(2, device="cpu", num_maps=1)
    assert with_env.decision_s == pytest.approx(0.048)
    assert policy.act(with_env.reset()["obs"]).shape == (2, 3)
    with_env.close()
    assert "fledge-reflex" in policy._repr_html_()
    assert "reads state" in repr(policy)
    assert policy.task.name == "navigation"
    assert policy.env is not None
    assert policy.env.settings["decimation"] == 3


def test_make_env_takes_settings_in_every_form(env: TensorEnv) -> None:
    assert env.num_envs == 4
    assert env.unwrapped.cfg.static_obstacles == 5  # type: ignore[attr-defined]
    assert env.reset()["obs"]["lidar"].shape == (4, 1, 36, 4) or env.observation_spec["lidar"].shape
    both = fledge.make_env("navigation", 2, "empty", "cpu", env={"num_maps": 1}, **{"env.reward.crash": 3.0})
    assert both.unwrapped.cfg.reward.crash == 3.0  # type: ignore[attr-defined]
    assert both.unwrapped.cfg.static_obstacles == 0  # type: ignore[attr-defined]
    both.close()
    for wrong, message in (({"num_map": 1}, "num_map"), ({"num_envs": 0}, "num_envs"), ({"preset": "x"}, "preset 'x'")):
        with pytest.raises(ConfigError, match=message):
            fledge.make_env("navigation", **wrong)  # type: ignore[arg-type]


# ---- benchmark, export, report -------------------------------------------------------------------------------------------


def test_export_returns_the_path_and_the_parity(tmp_path: Path, run: fledge.Run) -> None:
    done = fledge.export(run, tmp_path / "policy.ts")
    assert done.path == tmp_path / "policy.ts"
    assert done.path.stat().st_size == done.bytes
    assert done.max_difference <= 1e-5
    assert done.contract["task"] == "navigation"
    assert fledge.export(run, tmp_path / "policy.fledge").max_difference == 0


def test_report_writes_a_page_and_returns_its_path(run: fledge.Run, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "episodes": 2,
        "progress": False,
        "env": {"num_envs": 2, "num_maps": 1},
        "max_episode_steps": 20,
    }
    assert run.report(tmp_path / "page.html", **options) == tmp_path / "page.html"
    assert "<html" in (tmp_path / "page.html").read_text()


def test_benchmark_returns_a_table_with_published_rows(run: fledge.Run) -> None:
    options: dict[str, Any] = {"episodes": 2, "only": True, "progress": False, "max_episode_steps": 20, "num_maps": 1}
    result = fledge.benchmark("navrl", run, **options)
    assert result.table()["policy"][0] == "run"
    assert any("published" in name for name in result.table()["policy"])
    assert type(result.plot()).__name__ == "Figure"
    assert "<table>" in result._repr_html_()
    with pytest.raises(ConfigError, match="no benchmark 'crosing'"):
        fledge.benchmark("crosing")
