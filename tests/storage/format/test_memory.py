"""No file makes a loader take more memory, or longer, than its size allows. Each is loaded in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lz4.frame
import pytest
import torch

from fledge.core.errors import InputError
from fledge.storage import convert_checkpoint, inspect_checkpoint, load_checkpoint, save_checkpoint
from fledge.storage.format.reader import MAX_MANIFEST, manifest_limit
from tests.storage.format.forgery import pack, unpack

ROOT = Path(__file__).parents[3]
ALLOWED = 256 * 2**20  # bytes, besides 256 times the file's size
LOAD = """
import json, resource, sys
import torch
from fledge.core.errors import FledgeError
from fledge.storage import load_checkpoint, save_checkpoint
load_checkpoint(save_checkpoint({"w": torch.ones(300)}, sys.argv[1] + ".warm"))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    load_checkpoint(sys.argv[1])
    found = "loaded"
except FledgeError as error:
    found = str(error)
print(json.dumps({"took": 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before), "found": found}))
"""


def load(path: Path) -> dict[str, Any]:
    command = [sys.executable, "-c", LOAD, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def manifest_of(tree: str, rows: str = "[]") -> bytes:
    head = '{"format":"fledge-checkpoint","version":3,"chunk_bytes":4194304,"metadata":{"dict":{}},"base":null,'
    return f'{head}"leaves":{rows},"tree":{tree}}}'.encode()


def filled(part: str, size: int) -> str:
    return "[" + ",".join([part] * (size // (len(part) + 1))) + "]"


BOMBS: dict[str, Callable[[int], bytes]] = {
    "empty lists": lambda size: manifest_of(filled("[]", size)),
    "empty dicts": lambda size: manifest_of(filled('{"dict":{}}', size)),
    "dicts of one": lambda size: manifest_of(filled('{"dict":{"":0}}', size)),
    "empty tuples": lambda size: manifest_of(filled('{"tuple":[]}', size)),
    "counters": lambda size: manifest_of(filled('{"counter":{"dict":{}}}', size)),
    "modules": lambda size: manifest_of(filled('{"module":[{"dict":{}},0]}', size)),
    "floats": lambda size: manifest_of(filled("1e9", size)),
    "rows": lambda size: manifest_of("0", filled("{}", size)),
    "text": lambda size: manifest_of('"' + "\\u00e9" * (size // 6) + '"'),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_manifest_takes_no_more_memory_than_promised(tmp_path: Path, bomb: str) -> None:
    """As large as it may be without costing its size in the file: the worst that a small file can do."""
    path = tmp_path / "bomb.fledge"
    path.write_bytes(pack([], BOMBS[bomb](manifest_limit(0) - 2000), deflate=True))
    assert path.stat().st_size < 200_000
    assert load(path)["took"] < ALLOWED + 256 * path.stat().st_size


def test_a_larger_manifest_must_take_its_size_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "bomb.fledge"
    path.write_bytes(pack([], BOMBS["empty lists"](8 * 2**20), deflate=True))
    report = load(path)
    assert "larger than" in report["found"]
    assert report["took"] < 64 * 2**20
    assert manifest_limit(MAX_MANIFEST) == MAX_MANIFEST


def test_a_member_takes_no_more_than_256_times_its_size(tmp_path: Path) -> None:
    path = save_checkpoint({f"x{i}": torch.zeros(2**20) for i in range(8)}, tmp_path / "zeros")
    assert load(path)["took"] < 64 * 2**20 + 256 * path.stat().st_size


def test_an_lz4_file_larger_than_a_256th_of_the_memory_loads(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"w": torch.randn(8 * 2**20)}, path)
    packed = tmp_path / "x.pt.lz4"
    packed.write_bytes(lz4.frame.compress(path.read_bytes(), content_checksum=True))
    path.unlink()
    body = f"""
import resource
resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30,) * 2)
from fledge.storage import load_checkpoint
print(load_checkpoint({str(packed)!r})["w"].numel())
"""
    done = subprocess.run([sys.executable, "-c", body], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(8 * 2**20), done.stderr[-2000:]


def test_an_lz4_bomb_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.pt.lz4"
    path.write_bytes(lz4.frame.compress(bytes(2**28), block_size=7, content_checksum=False))
    assert load(path)["took"] < 256 * path.stat().st_size + ALLOWED


def nested_lists() -> Any:
    value: Any = []
    for _ in range(60):
        value = [value] * 8
    return value


def own_list() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


def deep_lists() -> Any:
    value: Any = []
    for _ in range(300):
        value = [value]
    return value


@pytest.mark.parametrize("make", [nested_lists, own_list, deep_lists])
def test_a_pt_of_lists_in_lists_loads_or_is_refused_at_once(tmp_path: Path, make: Callable[[], Any]) -> None:
    path = tmp_path / "x.pt"
    torch.save({"w": torch.ones(3), "lists": make()}, path)
    assert path.stat().st_size < 4096
    report = load(path)
    assert report["took"] < ALLOWED
    assert report["found"] == "loaded"
    for use in (lambda: inspect_checkpoint(path), lambda: convert_checkpoint(path, tmp_path / "y.fledge")):
        with pytest.raises(InputError, match="break the cycle"):
            use()
    assert torch.equal(load_checkpoint(path)["w"], torch.ones(3))


def test_a_pt_that_asks_for_memory_by_a_number_is_refused(tmp_path: Path) -> None:
    import pickle

    class Ask:
        def __reduce__(self) -> Any:
            return torch.FloatTensor, (10**9,)

    torch.save({"w": torch.ones(3)}, tmp_path / "honest.pt")
    import zipfile

    with zipfile.ZipFile(tmp_path / "honest.pt") as old, zipfile.ZipFile(tmp_path / "x.pt", "w") as new:
        for name in old.namelist():
            new.writestr(name, pickle.dumps({"w": Ask()}, 2) if name.endswith("data.pkl") else old.read(name))
    report = load(tmp_path / "x.pt")
    assert report["found"] != "loaded"
    assert report["took"] < ALLOWED


def test_honest_files_are_far_from_the_limits(tmp_path: Path) -> None:
    state = {f"layer{i}.{part}": torch.ones(40) for i in range(2000) for part in ("weight", "bias")}
    path = save_checkpoint(state, tmp_path / "many")
    _, manifest = unpack(path)
    assert len(json.dumps(manifest)) < MAX_MANIFEST / 10
    assert load_checkpoint(path).keys() == state.keys()
