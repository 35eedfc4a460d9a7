"""Files from an enemy: refused with one clear error, in bounded time and memory, and nothing in them is run."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import lz4.frame
import pytest
import torch

from fledge.core.errors import FormatError
from fledge.storage import CheckpointHistory, inspect_checkpoint, load_checkpoint, save_checkpoint
from tests.storage.format.forgery import forge, pack, unpack
from tests.storage.states import state_at

ROOT = Path(__file__).parents[3]


@pytest.fixture
def honest(tmp_path: Path) -> Path:
    return save_checkpoint(state_at(1, size=400), tmp_path / "a")


def refused(path: Path, match: str | None = None) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=match):
            load_checkpoint(path)
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    finally:
        tracemalloc.stop()


class Bomb:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("kind", ["pt", "legacy pt", "lz4", "pickle"])
def test_a_pickle_bomb_does_not_go_off(tmp_path: Path, kind: str) -> None:
    trace, path = tmp_path / "trace", tmp_path / "x.pt"
    if kind == "pickle":
        path.write_bytes(pickle.dumps(Bomb(trace)))
    else:
        torch.save({"a": Bomb(trace)}, path, _use_new_zipfile_serialization=kind != "legacy pt")
    if kind == "lz4":
        path = tmp_path / "x.pt.lz4"
        path.write_bytes(lz4.frame.compress((tmp_path / "x.pt").read_bytes()))
    why = r"plain tensors \(.*\)" if kind == "pickle" else r"calls or refers to posix\.system"
    refused(path, rf"{why}, and Fledge does not run code in files: if you .* with torch\.save\.$")
    assert not trace.exists()


def test_a_bomb_named_like_ours_is_refused(tmp_path: Path) -> None:
    torch.save({"a": Bomb(tmp_path / "trace")}, tmp_path / "x.fledge")
    refused(tmp_path / "x.fledge", r"zip without manifest\.json|encrypted or compressed in a way")
    assert not (tmp_path / "trace").exists()


def change_leaf(path: Path, **fields: Any) -> None:
    forge(path, lambda _, manifest: manifest["leaves"][0].update(fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"shape": [2**40]}, {"shape": [2**31, 2**31, 2**31]}, {"shape": [-1]}, {"shape": [1.5]}, {"shape": "400"},
        {"shape": [1] * 1000}, {"shape": [True]}, {"shape": None}, {"shape": [10**30]},
        {"shape": [0, 2**48, 2**48]}, {"kind": "array", "dtype": "<U0", "shape": [2**40]},
        {"dtype": "object"}, {"dtype": "__class__"}, {"dtype": None}, {"dtype": ["float32"]},
        {"kind": "array", "dtype": "|O8"}, {"kind": "array", "dtype": "<U999999999"}, {"kind": "pickle"},
        {"kind": "array", "dtype": "<M8[zz]"},
        {"codec": "pickle"}, {"codec": None}, {"codec": "raw"}, {"codec": "pco", "shape": [399]},
        {"name": "../../x"}, {"name": "/etc/passwd"}, {"name": "manifest.json"}, {"name": "nothing"}, {"name": 3},
        {"checksum": "xxh3:" + "0" * 32}, {"checksum": None}, {"checksum": "md5:0"}, {"checksum": ""}, {"checksum": 5},
        {"order": [1]}, {"order": [0, 0]}, {"order": ["0"]},
        {"lossy_from": "os.system"}, {"base_name": "model/bias", "base_checksum": "x"},
    ],
)  # fmt: skip
def test_a_leaf_that_lies_is_refused(honest: Path, fields: dict[str, Any]) -> None:
    change_leaf(honest, **fields)
    refused(honest, rf"^{re.escape(str(honest))}.*\.$")  # a sentence that names the file


def nest(levels: int) -> Any:
    node: Any = 1
    for _ in range(levels):
        node = [node]
    return node


@pytest.mark.parametrize(
    "tree",
    [
        {"leaf": 10**9}, {"leaf": -1}, {"leaf": "0"}, {"leaf": True}, {"eval": "1"}, {"dict": [1]}, {"items": [[1]]},
        {"items": [[{"leaf": 0}, 1]]}, {"items": [[[1], 2]]}, {"float": "zz"}, {"int": "1" * 200_000}, {"complex": [1]},
        {"complex": ["a", 1]}, {"complex": [10**400, 0]}, {"complex": [{"int": "f" * 400}, 0]}, {},
        {"dict": {}, "leaf": 0}, nest(600),
    ],
)  # fmt: skip
def test_a_tree_that_lies_is_refused(honest: Path, tree: Any) -> None:
    forge(honest, lambda _, manifest: manifest.update(tree=tree))
    refused(honest, rf"^{re.escape(str(honest))}.*\.$")


@pytest.mark.parametrize(
    "base",
    [
        {"file": "../a.fledge", "id": "x", "depth": 1}, {"file": "/etc/passwd", "id": "x", "depth": 1}, {"file": "a"}, [],
        {"file": "a.fledge", "id": "x", "depth": 10**9}, {"file": "a.fledge", "id": "x", "depth": 0}, "a.fledge",
    ],
)  # fmt: skip
def test_a_base_that_lies_is_refused(honest: Path, base: Any) -> None:
    forge(honest, lambda _, manifest: manifest.update(base=base))
    refused(honest)


def test_a_file_that_is_its_own_base_ends(honest: Path) -> None:
    def own_base(_: dict[str, bytes], manifest: dict[str, Any]) -> None:
        manifest["base"] = {"file": honest.name, "id": "x", "depth": 3}
        leaf = manifest["leaves"][0]
        leaf["base_name"], leaf["base_checksum"] = leaf["name"], leaf["checksum"]

    forge(honest, own_base)
    refused(honest, "of a chain")


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000, b'{"format": "fledge-checkpoint"}', b"1" * 9000]
)
def test_a_manifest_that_is_none_is_refused(honest: Path, text: bytes) -> None:
    honest.write_bytes(pack(list(unpack(honest)[0].items()), text))
    refused(honest)


def test_a_newer_version_says_update(honest: Path) -> None:
    forge(honest, lambda _, manifest: manifest.update(version=4))
    refused(honest, "has format version 4; this Fledge reads versions 2 and 3: update Fledge")


def as_version_1(path: Path) -> None:
    """Rewrite a file as format version 1 would have it: SHA-256 under other names, and a 1 where there is a 2."""
    members, manifest = unpack(path)
    for leaf in manifest["leaves"]:
        leaf["sha256"] = hashlib.sha256(members[leaf["name"]]).hexdigest()[:32]
        del leaf["checksum"]
    path.write_bytes(pack(list(members.items()), {**manifest, "version": 1}, version=1))


OLD = r"but this Fledge reads only versions 2 and 3: convert it with Fledge 0\.1 \(fledge convert"


def test_version_1_says_what_it_is_and_how_to_convert_it(honest: Path) -> None:
    as_version_1(honest)
    refused(honest, rf"a\.fledge has format version 1, {OLD}")
    with pytest.raises(FormatError, match=OLD):
        inspect_checkpoint(honest)


def test_a_member_copied_from_version_1_says_how_to_convert_it(honest: Path) -> None:
    change_leaf(honest, checksum="sha256:" + "0" * 32)
    refused(honest, rf"a\.fledge stores 'model/weight' in format version 1, {OLD}")


def test_resuming_passes_over_version_1_and_says_why(tmp_path: Path) -> None:
    history = CheckpointHistory(tmp_path)
    for step in (1, 2):
        history.save(state_at(step, size=400), step)
    as_version_1(history.entries()[-1].path)
    info = history.load_latest()[1]
    assert info.step == 1
    assert "convert it with Fledge 0.1" in info.skipped[0][1]


def test_resuming_passes_over_a_file_with_a_number_that_no_float_holds(tmp_path: Path) -> None:
    history = CheckpointHistory(tmp_path)
    for step in (1, 2):
        history.save(state_at(step, size=400), step)
    path = history.entries()[-1].path
    forge(path, lambda _, manifest: manifest["tree"]["dict"].update(x={"complex": [10**400, 0]}))
    assert CheckpointHistory(tmp_path).load_latest()[1].step == 1
    forge(path, lambda _, manifest: manifest["metadata"]["dict"].update(user=3))
    assert CheckpointHistory(tmp_path).load_latest()[1].step == 1


def test_chunks_of_another_size_are_refused(honest: Path) -> None:
    forge(honest, lambda _, manifest: manifest.update(chunk_bytes=1))
    refused(honest, "declares chunks of 1 bytes")


def test_a_manifest_bomb_is_refused(honest: Path) -> None:
    text = b"[" + b"[]," * 20_000_000 + b"[]]"  # deflates to 60 kB
    honest.write_bytes(pack([], text, deflate=True))
    refused(honest, "has more than")


def test_a_bomb_of_zeros_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    path = save_checkpoint({"a": torch.zeros(2**20)}, tmp_path / "z")

    def shrink(members: dict[str, bytes], manifest: dict[str, Any]) -> None:
        members["a"] = members["a"][:64]
        manifest["leaves"][0]["shape"] = [2**34]

    forge(path, shrink)
    refused(path, "declares")


@pytest.mark.parametrize("name", ["../../evil", "/abs", "a\\b", "c:evil", "a/../b", ".", "a//b"])
def test_members_that_would_unpack_elsewhere_are_refused(honest: Path, name: str) -> None:
    members, manifest = unpack(honest)
    honest.write_bytes(pack([*members.items(), (name, b"x")], manifest))
    refused(honest, "only plain relative names")


def test_duplicate_members_are_refused(honest: Path) -> None:
    members, manifest = unpack(honest)
    honest.write_bytes(pack([*members.items(), ("model/bias", bytes(28))], manifest))
    refused(honest, "two members of the same name")
    members, manifest = unpack(save_checkpoint(state_at(1), honest.parent / "b"))
    honest.write_bytes(pack([*members.items(), ("manifest.json", b"{}")], manifest))
    refused(honest, "two members of the same name")


def test_a_deflated_tensor_is_refused(honest: Path) -> None:
    _, manifest = unpack(honest)
    with zipfile.ZipFile(honest, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model/weight", bytes(2**24))
        archive.writestr("manifest.json", json.dumps(manifest))
    refused(honest)


def test_a_pt_with_packed_members_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(2**20)}, tmp_path / "x.pt")
    with (
        zipfile.ZipFile(tmp_path / "x.pt") as old,
        zipfile.ZipFile(tmp_path / "y.pt", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    refused(tmp_path / "y.pt", "compressed members")


def test_a_pt_with_a_tensor_of_absurd_shape_is_refused(tmp_path: Path) -> None:
    torch.save({"a": [torch.ones(1).expand(10**6, 10**6)]}, tmp_path / "x.pt")
    refused(tmp_path / "x.pt", "that repeats 4 bytes")


def test_a_pt_whose_directory_points_beside_its_pickle_is_refused(tmp_path: Path) -> None:
    """Found by the fuzz: the error was zipfile's own."""
    torch.save({"a": torch.zeros(20)}, tmp_path / "x.pt")
    content = bytearray((tmp_path / "x.pt").read_bytes())
    content[content.index(b"PK\x01\x02") + 42] += 1
    (tmp_path / "x.pt").write_bytes(content)
    refused(tmp_path / "x.pt", r"data\.pkl' cannot be read")


def test_an_lz4_bomb_is_refused(tmp_path: Path) -> None:
    packed = lz4.frame.compress(b"PK\3\4" + bytes(2**28), block_size=7)
    (tmp_path / "x.pt.lz4").write_bytes(packed[: len(packed) // 8])
    with pytest.raises(FormatError, match="beyond the size in its header"):  # 256 MiB of 132 KB
        load_checkpoint(tmp_path / "x.pt.lz4")
    packed = lz4.frame.compress(b"PK\3\4" + bytes(2**28), block_size=7, store_size=False)
    (tmp_path / "x.pt.lz4").write_bytes(packed[: len(packed) // 8])
    with pytest.raises(FormatError, match="without an end"):
        load_checkpoint(tmp_path / "x.pt.lz4")


@pytest.mark.parametrize("store_size", [True, False])
def test_an_lz4_frame_without_a_checkpoint_is_refused_after_its_first_block(tmp_path: Path, store_size: bool) -> None:
    path = tmp_path / "x.pt.lz4"
    path.write_bytes(lz4.frame.compress(bytes(2**27), block_size=7, store_size=store_size))
    refused(path, "is not a PyTorch checkpoint: it holds neither a zip nor a pickle")


def test_an_lz4_frame_longer_than_its_header_says_is_refused(tmp_path: Path) -> None:
    path, content = tmp_path / "x.pt.lz4", b"PK\3\4" + os.urandom(2**23)
    head = lz4.frame.compress(content[: 5 * 2**20], block_size=7)[:15]  # up to and with the header's checksum
    path.write_bytes(head + lz4.frame.compress(content, block_size=7)[15:])
    refused(path, "beyond the size in its header")


def test_other_files_are_refused(tmp_path: Path) -> None:
    for name, content in {
        "a.fledge": b"",
        "b.fledge": b"hello",
        "c.pt": b"hello",
        "d.safetensors": b"\xff" * 64,
    }.items():
        (tmp_path / name).write_bytes(content)
        refused(tmp_path / name)
    os.mkfifo(tmp_path / "pipe.fledge")
    with pytest.raises(Exception, match="no checkpoint at"):
        load_checkpoint(tmp_path / "pipe.fledge")


def fuzz(cases: int, seed: int) -> dict[str, int]:
    command = [sys.executable, "-m", "tests.storage.format.fuzz", str(cases), str(seed)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3600, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout.splitlines()[-1])


def test_500_mutated_files_are_refused_or_unchanged() -> None:
    counts = fuzz(500, seed=0)
    assert counts["cases"] == 500
    assert counts["refused"] > 300


MUTANTS = int(os.environ.get("FLEDGE_MUTANTS", "24000"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_24000_mutated_files_are_refused_or_unchanged(seed: int) -> None:
    counts = fuzz(MUTANTS // 4, seed)
    print(json.dumps(counts))
    assert counts["cases"] == MUTANTS // 4
    assert counts["refused"] > MUTANTS // 8
