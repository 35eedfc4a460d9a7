"""Files written once and for all are read, and written again in the same bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from fledge.storage import inspect_checkpoint, load_checkpoint
from fledge.storage.format.codecs import CODEC_NAMES
from tests.storage.format import golden
from tests.storage.states import assert_same, copy_state

SHA256 = {
    "golden_v2_raw.fledge": "af649a62db0ff17890d66b2899977edf782534aea0f48b54e1b92d4025092e11",
    "golden_v2.fledge": "661df3349af966e735894ba5f4a89e8e3dbceb807508f039ff426e78935fda62",
    "golden_v2_delta.fledge": "492f3d02f3e97af1baa9b1599bd8c1e58046a4e2e3cd62b2d48d417e312a3360",
    "golden_v3_raw.fledge": "fd8f3758ff560837b795f8f6fa4ba55b7007b0278a040528a6125cacdef43c97",
    "golden_v3.fledge": "cb243f14cdd2c5da182b6994a77d9134f787b67a604647c8a49c1da6e121fcf4",
    "golden_v3_delta.fledge": "1569f82a7d26e362baf1e04b49e3f267790f707d803541c6ec7fe67a681e10f5",
}


@pytest.mark.parametrize("name", list(SHA256))
def test_the_golden_files_were_not_touched(name: str) -> None:
    assert hashlib.sha256((golden.FOLDER / name).read_bytes()).hexdigest() == SHA256[name]


@pytest.mark.parametrize("version", [2, 3])
def test_the_golden_files_are_read(version: int) -> None:
    for end, shift in (("_raw", 0), ("", 0), ("_delta", 3)):
        state = load_checkpoint(golden.FOLDER / f"golden_v{version}{end}.fledge")
        assert_same(state, copy_state(golden.golden_state(shift, version)))


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
