"""Folders fly in the oldest and the newest supported Python, with nothing but NumPy and onnxruntime.

Interpreters are found as `python3.8`, or among those of pyenv; without one, or without packages for it, a test is skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import fledge
from tests.deployment.test_deploy import boat

pytestmark = pytest.mark.slow
OLDEST, NEWEST = ["numpy==1.21.6", "onnxruntime==1.14.0"], ["numpy", "onnxruntime"]
ENVIRONMENTS = {"3.8 oldest": ("3.8", OLDEST), "3.8 newest": ("3.8", NEWEST), "3.13 newest": ("3.13", NEWEST)}
FOLDERS = {"nav": "fledge-nav", "reflex": "fledge-reflex", "scan": "fledge-scan"}


def interpreter(version: str) -> str:
    """Return a Python of this version; skip the test if there is none."""
    found = shutil.which(f"python{version}")
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [found] if found else []
    candidates += [str(path) for path in sorted(root.glob(f"versions/{version}.*/bin/python"))]
    for path in candidates:
        asked = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        if subprocess.run(asked, capture_output=True, text=True).stdout.strip() == version:
            return path
    pytest.skip(f"there is no Python {version}")


@pytest.fixture(scope="module", params=ENVIRONMENTS)
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of a virtual environment with NumPy and onnxruntime alone."""
    version, packages = ENVIRONMENTS[request.param]
    place = tmp_path_factory.mktemp("venv") / "env"
    subprocess.run([interpreter(version), "-m", "venv", str(place)], check=True)
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=500)
    if done.returncode:
        pytest.skip(f"packages cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    return place / "bin" / "python"


@pytest.fixture(scope="module", params=[*FOLDERS, "boat"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    policy = FOLDERS.get(request.param) or boat(gru_size=8)
    return fledge.deploy(policy, tmp_path_factory.mktemp("deployed") / request.param, progress=False).path


def verify(python: Path, folder: Path) -> dict:
    words = [str(python), "-E", "-m", "fledge_runtime", "verify", ".", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_golden_sequences_fly_in_this_python(python: Path, folder: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(folder, tmp_path / "robot", ignore=shutil.ignore_patterns("*.so", "__pycache__")))
    facts = verify(python, place)
    assert facts["sequences"] >= 64
    assert max(facts["largest_difference"].values()) < 5e-5
    if facts["planner"] is not None and shutil.which("cc"):
        assert facts["planner"] == "numpy"
        built = [str(python), "-E", "-m", "fledge_runtime", "build"]
        subprocess.run(built, check=True, cwd=place, capture_output=True)
        assert verify(python, place)["planner"] == "c"
