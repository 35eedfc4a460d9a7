"""Files of format version 1 are read by this version, and written by it in the same bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from fledge.storage import inspect_checkpoint, load_checkpoint
from fledge.storage.codecs import CODEC_NAMES
from tests.storage import golden
from tests.storage.states import assert_same, copy_state

SHA256 = {
    "golden_v1_raw.fledge": "f9168b06644dadc68421b4f29c5e06047c89377f5cad5a15977af0cb004047c9",
    "golden_v1.fledge": "fc66f17432eb351fed048122f74e33cb26adce816c42751e7cd289b84cb894e7",
    "golden_v1_delta.fledge": "9453d81e6b941711aa5621b58ba47c284871d8860937671a85a230bf2c0164ee",
}


@pytest.mark.parametrize("name", list(SHA256))
def test_the_golden_files_were_not_touched(name: str) -> None:
    assert hashlib.sha256((golden.FOLDER / name).read_bytes()).hexdigest() == SHA256[name]


@pytest.mark.parametrize(("path", "shift"), [(golden.RAW, 0), (golden.PACKED, 0), (golden.DELTA, 3)])
def test_version_1_is_read(path: Path, shift: int) -> None:
    assert_same(load_checkpoint(path), copy_state(golden.golden_state(shift)))


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
