"""No file makes a loader take more memory, or longer, than its size allows."""

from __future__ import annotations

import codecs
import json
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lz4.frame
import pytest
import torch

from fledge.core.errors import InputError
from fledge.storage import convert_checkpoint, inspect_checkpoint, load_checkpoint, save_checkpoint
from fledge.storage.format import flattening
from fledge.storage.format.reader import MAX_MANIFEST, manifest_limit
from tests.storage.format.forgery import forge, pack, unpack

ROOT = Path(__file__).parents[3]
ALLOWED = 256 * 2**20  # bytes, besides 256 times the file's size
Load = Callable[[Path], dict[str, Any]]
SECONDS = 100  # after which a load counts as hanging; it is no measure
LOADER = """
import json, os, re, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)  # no worker threads: this process forks
from fledge.core.errors import FledgeError
from fledge.storage import load_checkpoint, save_checkpoint
load_checkpoint(save_checkpoint({"w": torch.ones(300)}, sys.argv[1]))
def memory(kind):  # not getrusage: its peak is inherited from the process that started this one
    return 1024 * int(re.search(kind + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
for line in sys.stdin:
    child = os.fork()
    if child:
        status = os.waitpid(child, 0)[1]
        if status:
            print(json.dumps({"took": -1, "found": f"ended with {status}"}), flush=True)
        continue
    signal.alarm(int(sys.argv[2]))
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what it takes now
    before = memory("VmRSS")
    try:
        load_checkpoint(line.strip())
        found = "loaded"
    except FledgeError as error:
        found = str(error)
    print(json.dumps({"took": memory("VmHWM") - before, "found": found}), flush=True)
    os._exit(0)
"""


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    """Loads a file in a process of its own; says what came of it, and how much memory it took."""
    command = [sys.executable, "-c", LOADER, str(tmp_path_factory.mktemp("warm") / "warm"), str(SECONDS)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as loader:
        assert loader.stdin is not None
        assert loader.stdout is not None

        def ask(path: Path) -> dict[str, Any]:
            print(path, file=loader.stdin, flush=True)
            report = json.loads(loader.stdout.readline())
            assert report["took"] >= 0, report["found"]
            return report

        yield ask
        loader.stdin.close()


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


RARE = ("empty dicts", "empty tuples", "counters", "modules")  # nested like "dicts of one"


@pytest.mark.parametrize("bomb", [pytest.param(x, marks=pytest.mark.slow) if x in RARE else x for x in BOMBS])
def test_a_manifest_takes_no_more_memory_than_promised(tmp_path: Path, load: Load, bomb: str) -> None:
    """As large as it may be without costing its size in the file: the worst that a small file can do."""
    path = tmp_path / "bomb.fledge"
    path.write_bytes(pack([], BOMBS[bomb](manifest_limit(0) - 2000), deflate=True))
    assert path.stat().st_size < 200_000
    assert load(path)["took"] < ALLOWED + 256 * path.stat().st_size


def test_a_larger_manifest_must_take_its_size_in_the_file(tmp_path: Path, load: Load) -> None:
    path = tmp_path / "bomb.fledge"
    path.write_bytes(pack([], BOMBS["empty lists"](8 * 2**20), deflate=True))
    report = load(path)
    assert "has more than" in report["found"]
    assert report["took"] < 64 * 2**20
    assert manifest_limit(MAX_MANIFEST) == MAX_MANIFEST


def test_a_member_takes_no_more_than_256_times_its_size(tmp_path: Path, load: Load) -> None:
    path = save_checkpoint({f"x{i}": torch.zeros(2**20) for i in range(8)}, tmp_path / "zeros")
    assert load(path)["took"] < 64 * 2**20 + 256 * path.stat().st_size


MANY = 128 * 2**20 // 4  # numbers


def rounded(folder: Path) -> Path:
    path = save_checkpoint({"w": torch.zeros(2 * MANY, dtype=torch.bfloat16)}, folder / "a")
    forge(path, lambda _, manifest: manifest["leaves"][0].update(lossy_from="float64"))
    return path


def turned(folder: Path) -> Path:
    path = save_checkpoint({"w": torch.zeros(MANY)}, folder / "a")
    forge(path, lambda _, manifest: manifest["leaves"][0].update(shape=[2, MANY // 2], order=[1, 0]))
    return path


def turned_delta(folder: Path) -> Path:
    base = turned(folder)
    forge(base, lambda _, manifest: manifest["leaves"][0].pop("order"))
    path = save_checkpoint({"w": torch.ones(2, MANY // 2)}, folder / "b", base=base)
    forge(path, lambda _, manifest: manifest["leaves"][0].update(order=[1, 0]))
    return path


@pytest.mark.parametrize("make", [rounded, turned, turned_delta])
def test_while_a_tensor_is_read_no_more_than_four_times_that(
    tmp_path: Path, load: Load, make: Callable[[Path], Path]
) -> None:
    path = make(tmp_path)
    assert path.stat().st_size < 2**20
    assert load(path)["took"] < 64 * 2**20 + 4 * 256 * path.stat().st_size


def test_a_file_that_unfolds_over_256_times_its_size_is_refused(tmp_path: Path, load: Load) -> None:
    report = load(rounded(tmp_path))
    assert "in all, more than 256 times the file's size" in report["found"]
    assert report["took"] < 64 * 2**20
    path = save_checkpoint({"w": torch.zeros(300, dtype=torch.uint8)}, tmp_path / "b")
    forge(path, lambda _, manifest: manifest["leaves"][0].update(lossy_from="float64"))
    assert "was rounded from 'float64'" in load(path)["found"]


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


def test_an_lz4_bomb_is_refused_before_it_fills_the_memory(tmp_path: Path, load: Load) -> None:
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
def test_a_pt_of_lists_in_lists_loads_or_is_refused_at_once(
    tmp_path: Path, load: Load, make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flattening, "MAX_NODES", 2**16)  # the millions that are allowed take seconds
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


class Call:
    """Pickles as a call of something that `weights_only` allows."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


LONG = "".join(chr(0x4E00 + i * 7919 % 20_000) for i in range(60_000))
GREEDY = {
    "tensor": Call(torch.FloatTensor, 10**9),
    "bytearray": Call(bytearray, 10**9),
    "bytearrays": [Call(bytearray, 10**7) for _ in range(100)],
    "punycode": Call(codecs.encode, LONG, "punycode"),
    "idna": Call(codecs.encode, LONG, "IDNA"),
}


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("name", GREEDY)
def test_a_pt_that_asks_for_memory_or_time_by_a_number_is_refused(
    tmp_path: Path, load: Load, name: str, legacy: bool
) -> None:
    path = tmp_path / "x.pt"
    torch.save({"w": torch.ones(3)}, tmp_path / "honest.pt")
    if legacy:
        parts = (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, {"w": GREEDY[name]}, [])
        path.write_bytes(b"".join(pickle.dumps(part, 2) for part in parts))
    else:
        with zipfile.ZipFile(tmp_path / "honest.pt") as old, zipfile.ZipFile(path, "w") as new:
            for part in old.namelist():
                made = pickle.dumps({"w": GREEDY[name]}, 2) if part.endswith("data.pkl") else old.read(part)
                new.writestr(part, made)
    report = load(path)
    assert report["found"] != "loaded"
    assert report["took"] < ALLOWED


def test_a_pt_with_bytes_and_such_words_in_its_keys_loads(tmp_path: Path) -> None:
    state = {"gridname.bytearray": torch.ones(3), "raw": b"\xff\x00", "punycode.weight": 1}
    torch.save(state, tmp_path / "x.pt")
    assert load_checkpoint(tmp_path / "x.pt")["raw"] == b"\xff\x00"


def test_honest_files_are_far_from_the_limits(tmp_path: Path) -> None:
    state = {f"layer{i}.{part}": torch.ones(40) for i in range(2000) for part in ("weight", "bias")}
    path = save_checkpoint(state, tmp_path / "many")
    _, manifest = unpack(path)
    assert len(json.dumps(manifest)) < MAX_MANIFEST / 10
    assert load_checkpoint(path).keys() == state.keys()
