"""The notebooks run from top to bottom, with small sizes, and show tables and pictures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

EXAMPLES = Path(__file__).parents[2] / "examples"
SIZES = {
    "drone": "TOTAL_FRAMES, NUM_ENVS, EPISODES = 1024, 16, 2",
    "duel": "FIGHTS = 2",
}
SETTINGS = {  # smaller worlds than a reader would take
    "drone": (
        'env={"num_envs": NUM_ENVS}',
        'env={"num_envs": NUM_ENVS, "num_maps": 2}, ppo={"rollout_steps": 32}, ranks=1',
    ),
}


def run_notebook(name: str, folder: Path) -> Any:
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    (sizes,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ())]
    sizes.source = SIZES[name]
    for cell in notebook.cells:
        cell.source = cell.source.replace(*SETTINGS.get(name, ("", "")))
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}
    )
    client.execute()
    return notebook


def outputs_of(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def test_notebooks_have_no_outputs_in_the_repository() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.ipynb")} == set(SIZES)
    for path in EXAMPLES.glob("*.ipynb"):
        assert not outputs_of(nbformat.read(path, as_version=4))


@pytest.mark.parametrize("name", list(SIZES))
def test_a_notebook_runs_and_shows_tables_and_pictures(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):  # leave nothing in the user's folders
        monkeypatch.setitem(os.environ, variable, str(tmp_path / variable.lower()))
    shown = [output.get("data", {}) for output in outputs_of(run_notebook(name, tmp_path))]
    assert sum("image/png" in data for data in shown) == {"drone": 3, "duel": 4}[name]
    assert any("<table>" in data.get("text/html", "") for data in shown)
    assert any("<progress" in data.get("text/html", "") for data in shown)
