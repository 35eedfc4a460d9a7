"""Files of every format version are read by this one; those of its own it writes in the same bytes."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from fledge.core.errors import FormatError
from fledge.storage import inspect_checkpoint, load_checkpoint
from fledge.storage.format.codecs import CODEC_NAMES
from fledge.storage.history.thinning import write_thin
from tests.storage import golden
from tests.storage.forgery import pack, unpack
from tests.storage.states import assert_same, copy_state

SHA256 = {
    "golden_v1_raw.fledge": "f9168b06644dadc68421b4f29c5e06047c89377f5cad5a15977af0cb004047c9",
    "golden_v1.fledge": "fc66f17432eb351fed048122f74e33cb26adce816c42751e7cd289b84cb894e7",
    "golden_v1_delta.fledge": "9453d81e6b941711aa5621b58ba47c284871d8860937671a85a230bf2c0164ee",
    "golden_v2_raw.fledge": "af649a62db0ff17890d66b2899977edf782534aea0f48b54e1b92d4025092e11",
    "golden_v2.fledge": "661df3349af966e735894ba5f4a89e8e3dbceb807508f039ff426e78935fda62",
    "golden_v2_delta.fledge": "492f3d02f3e97af1baa9b1599bd8c1e58046a4e2e3cd62b2d48d417e312a3360",
}


@pytest.mark.parametrize("name", list(SHA256))
def test_the_golden_files_were_not_touched(name: str) -> None:
    assert hashlib.sha256((golden.FOLDER / name).read_bytes()).hexdigest() == SHA256[name]


@pytest.mark.parametrize("files", [golden.OLD, (golden.RAW, golden.PACKED, golden.DELTA)])
def test_every_version_is_read(files: tuple[Path, ...]) -> None:
    for path, shift in zip(files, (0, 0, 3), strict=True):
        assert_same(load_checkpoint(path), copy_state(golden.golden_state(shift)))


def test_a_delta_may_have_a_base_of_an_older_version(tmp_path: Path) -> None:
    base = Path(shutil.copy(golden.OLD[1], tmp_path))
    golden.write(tmp_path / "new.fledge", shift=3, base=base)
    rows = inspect_checkpoint(tmp_path / "new.fledge")["tensors"]
    assert any("delta" in row["codec"] for row in rows)
    assert_same(load_checkpoint(tmp_path / "new.fledge"), copy_state(golden.golden_state(3)))


def test_an_older_version_is_thinned(tmp_path: Path) -> None:
    old = Path(shutil.copy(golden.OLD[1], tmp_path / "old.fledge"))
    write_thin(old, ("model",))
    rows = inspect_checkpoint(old)["tensors"]
    assert {row["checksum"].partition(":")[0] for row in rows} == {"sha256"}  # copied, not packed anew
    assert_same(load_checkpoint(old)["model"], copy_state(golden.golden_state())["model"])


def test_an_older_file_that_was_altered_is_refused(tmp_path: Path) -> None:
    old = Path(shutil.copy(golden.OLD[0], tmp_path / "old.fledge"))
    members, manifest = unpack(old)
    members["model/pco"] = bytes(len(members["model/pco"]))
    old.write_bytes(pack(list(members.items()), manifest, version=1))
    with pytest.raises(FormatError, match="checksum"):
        load_checkpoint(old)


def test_every_codec_is_in_a_golden_file() -> None:
    rows = inspect_checkpoint(golden.PACKED)["tensors"]
    assert {row["codec"] for row in rows} == set(CODEC_NAMES)
    assert any("delta" in row["codec"] for row in inspect_checkpoint(golden.DELTA)["tensors"])


def test_raw_files_are_written_in_the_same_bytes(tmp_path: Path) -> None:
    golden.write(tmp_path / "a", level=0)
    assert (tmp_path / "a").read_bytes() == golden.RAW.read_bytes()


def test_packed_files_are_written_in_the_same_bytes_by_the_same_encoders(tmp_path: Path) -> None:
    if inspect_checkpoint(golden.PACKED)["metadata"]["encoders"] != golden.encoders():
        pytest.skip("other versions of blosc2, pcodec or zlib may pack the same data differently")
    golden.write_all(tmp_path)
    for path in (golden.PACKED, golden.DELTA):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
