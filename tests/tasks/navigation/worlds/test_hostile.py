"""Damaged and hostile files end in one clear FledgeError, without much memory or time."""

import contextlib
import io
import json
import resource
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from fledge.core.errors import FledgeError, MemoryBudgetError
from fledge.tasks.navigation.worlds.readers import READERS
from fledge.tasks.navigation.worlds.world import load_world
from tests.tasks.navigation.worlds.rooms import centres, room, room_triangles
from tests.tasks.navigation.worlds.test_readers import (
    OCTOMAP,
    octomap_of,
    put,
    save_mesh,
    unpacked,
    write_las,
    write_pcd,
    write_ply,
    write_ros_map,
    write_sdf,
)

pytest.importorskip("laspy")


def npy(shape: tuple[int, ...], dtype: str = "<f4", data: bytes = b"") -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": dtype, "fortran_order": False, "shape": shape})
    return out.getvalue() + data


def npz(**members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return out.getvalue()


def glb(content: object) -> bytes:
    text = json.dumps(content).encode()
    text += b" " * (-len(text) % 4)
    return b"glTF" + struct.pack("<III4s", 2, 20 + len(text), len(text), b"JSON") + text


def ply(count: int, data: bytes = b"", form: str = "binary_little_endian", more: str = "") -> bytes:
    head = (
        f"ply\nformat {form} 1.0\nelement vertex {count}\nproperty float x\nproperty float y\nproperty float z\n{more}"
    )
    return f"{head}end_header\n".encode() + data


def pcd(
    points: int,
    data: str = "binary",
    body: bytes = b"",
    fields: str = "x y z",
    size: str = "4 4 4",
    kind: str = "F F F",
) -> bytes:
    head = f"VERSION 0.7\nFIELDS {fields}\nSIZE {size}\nTYPE {kind}\nWIDTH {points}\nHEIGHT 1\nPOINTS {points}\nDATA {data}\n"
    return head.encode() + body


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")


def sdf(body: str, before: str = "") -> bytes:
    return f"<?xml version='1.0'?>{before}<sdf><world>{body}</world></sdf>".encode()


LAUGHS = "<!DOCTYPE x [<!ENTITY a 'ha'>" + "".join(
    f"<!ENTITY {b} '{f'&{a};' * 10}'>" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
LINK = "<model><link><collision><geometry>{}</geometry></collision></link></model>"
PYRAMID = {
    "nodes": [{"children": [1]}, {"children": [0]}],
    "scenes": [{"nodes": [0]}],
    "scene": 0,
    "asset": {"version": "2.0"},
}
ACCESSOR = {
    "asset": {"version": "2.0"},
    "meshes": [{"primitives": [{"attributes": {"POSITION": 0}}]}],
    "nodes": [{"mesh": 0}],
}
ACCESSOR |= {"scenes": [{"nodes": [0]}], "accessors": [{"count": 10**10, "type": "VEC3", "componentType": 5126}]}

HOSTILE = {
    "x.npy": {
        "huge header": npy((10**12, 3)),
        "overflow": npy((2**40, 2**40, 2**40)),
        "objects": npy((3, 3, 3), "|O", b"cos\nsystem\n(S'true'\ntR."),
        "text": npy((20, 3), "<U4", b"\0" * 960),
        "empty": npy((0, 3)),
        "four axes": npy((2, 2, 2, 2), data=b"\0" * 64),
        "negative": npy((-5, 3)),
        "no array": b"hello",
        "nan points": npy((20, 3), data=np.full((20, 3), np.nan, "<f4").tobytes()),
        "nan heights": npy((20, 30), data=np.full((20, 30), np.nan, "<f4").tobytes()),
        "far points": npy((20, 3), data=np.full((20, 3), 1e30, "<f4").tobytes()),
        "high heights": npy((20, 30), data=np.full((20, 30), 1e20, "<f4").tobytes()),
    },
    "x.npz": {
        "huge header": npz(solid=npy((2**30, 2, 2), "|b1", b"\0" * 9)),
        "object": npz(solid=npy((3, 3, 3), "|O", b"cos\nsystem\n(S'true'\ntR.")),
        "two arrays": npz(a=npy((2, 2, 2), "|b1", b"\0" * 8), b=npy((2, 2, 2), "|b1", b"\0" * 8)),
        "nothing": npz(),
        "bad origin": npz(solid=npy((2, 2, 2), "|b1", b"\0" * 8), origin=npy((2,), "<f8", b"\0" * 16)),
        "bad cell": npz(solid=npy((2, 2, 2), "|b1", b"\0" * 8), cell_m=npy((1,), "<f8", b"\0" * 8)),
        "no zip": b"PK\3\4 and nothing",
    },
    "x.ply": {
        "huge count": ply(10**15),
        "negative count": ply(-4),
        "huge faces": ply(0, more="element face 4000000000\nproperty list uchar int vertex_indices\n"),
        "short": ply(100, b"\0" * 100),
        "short text": ply(3, b"0 0 0\n1 1 1\n", "ascii"),
        "letters": ply(2, b"0 0 0\na b c\n", "ascii"),
        "no vertices": b"ply\nformat ascii 1.0\nelement face 0\nproperty list uchar int v\nend_header\n",
        "no end": b"ply\nformat ascii 1.0\nelement vertex 5\n",
        "unknown type": ply(1, more="property quad w\n"),
        "twice": ply(1, b"\0" * 16, more="property float x\n"),
        "wrong index": ply(
            3,
            b"\0" * 36 + b"\3" + struct.pack("<3i", 0, 1, 10**6),
            more="element face 1\nproperty list uchar int vertex_indices\n",
        ),
        "empty": ply(0),
    },
    "x.pcd": {
        "huge count": pcd(10**15),
        "negative": pcd(-1),
        "short": pcd(100, body=b"\0" * 100),
        "no z": pcd(1, body=b"\0" * 8, fields="x y", size="4 4", kind="F F"),
        "sizes differ": pcd(1, fields="x y z w"),
        "odd type": pcd(1, size="3 4 4"),
        "unknown data": pcd(1, "zipped"),
        "wrong compressed size": pcd(1, "binary_compressed", struct.pack("<II", 4, 4 * 10**9) + b"\0\0\0\0"),
        "bad compressed": pcd(1, "binary_compressed", struct.pack("<II", 3, 12) + b"\xff\xff\xff"),
        "nan": pcd(2, body=np.full(6, np.nan, "<f4").tobytes()),
        "no header": b"\0" * 300,
    },
    "x.bt": {
        "truncated": octomap_of([3 << 14, 3, 3]),
        "too deep": octomap_of([3] * 40),
        "empty": octomap_of([0]),
        "no nodes": octomap_of([]),
        "free only": octomap_of([1]),
        "tiny resolution": octomap_of([2], 1e-9),
        "nan resolution": octomap_of([2]).replace(b"res 0.5", b"res e"),
        "whole space": octomap_of([0xAAAA]),
        "full map": b"# Octomap OcTree file\nid OcTree\nsize 1\nres 0.1\ndata\n",
    },
    "x.glb": {
        "cycle": glb(PYRAMID),
        "huge accessor": glb(ACCESSOR),
        "no accessor": glb({"accessors": 3}),
        "short": b"glTF" + struct.pack("<III4s", 2, 100, 10**9, b"JSON"),
        "other": b"hello, world! this is no mesh",
    },
    "x.stl": {
        "huge count": b"\0" * 80 + struct.pack("<I", 2**32 - 1) + b"\0" * 50,
        "empty": b"\0" * 84,
        "text": b"solid x\nfacet\nendsolid",
    },
    "x.obj": {
        "no faces": b"v 0 0 0\nv 1 0 0\nv 0 1 0\n",
        "wrong index": b"v 0 0 0\nf 1 2 3\n",
        "nan": b"v nan 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n",
    },
    "x.off": {"huge": b"OFF\n1000000000000 4000000000 0\n0 0 0\n", "none": b"OFF\n0 0 0\n"},
    "x.las": {"header only": b"LASF" + b"\0" * 300, "text": b"not a scan"},
    "x.laz": {"header only": b"LASF" + b"\0" * 300},
    "x.xyz": {
        "letters": b"a b c\nd e f\n",
        "two columns": b"1 2\n3 4\n",
        "ragged": b"1 2 3\n4 5\n",
        "binary": bytes(range(256)) * 20,
        "blank": b"\n\n",
    },
    "x.yaml": {
        "no map": b"a: 1\n",
        "list": b"[1, 2]\n",
        "aliases": b"a: &x [1]\nimage: *x\nresolution: 1\n",
        "no image": b"image: missing.pgm\nresolution: 0.05\norigin: [0, 0, 0]\n",
        "device": b"image: /dev/zero\nresolution: 0.05\norigin: [0, 0, 0]\n",
        "resolution": b"image: x.pgm\nresolution: .nan\n",
        "text resolution": b"image: x.pgm\nresolution: fine\n",
        "broken": b"image: [\n",
    },
    "x.png": {
        "no image": b"\x89PNG\r\n\x1a\nnothing",
        "huge": png(10**6, 10**6),
        "large": png(9000, 9000),
        "short": png(90, 90),
    },
    "x.tif": {"no image": b"II*\0\xff\xff\xff\xff"},
    "x.sdf": {
        "laughs": sdf(LINK.format("<box><size>&i;</size></box>"), LAUGHS + "]>"),
        "external": sdf("&x;", "<!DOCTYPE x [<!ENTITY x SYSTEM 'file:///etc/passwd'>]>"),
        "utf-16 entity": sdf("", LAUGHS + "]>").decode().encode("utf-16"),
        "not xml": b"<sdf><world>",
        "deep": b"<a>" * 1000 + b"</a>" * 1000,
        "words": sdf(LINK.format("<box><size>wide high deep</size></box>")),
        "nan": sdf(LINK.format("<box><size>nan 1 1</size></box>")),
        "two numbers": sdf(LINK.format("<box><size>1 1</size></box>")),
        "nothing": sdf(""),
        "huge box": sdf(LINK.format("<box><size>1e9 1e9 1e9</size></box>")),
        "includes itself": sdf("<include><uri>x.sdf</uri></include>"),
        "outside": sdf("<include><uri>file:///etc/passwd</uri></include><include><uri>../../x</uri></include>"),
    },
}
CASES = [(name, case) for name, cases in HOSTILE.items() for case in cases]


@pytest.fixture
def little_memory():
    """Let the process take only 3 GB more than it has."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    old = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + 3 * 2**30, old[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, old)


@pytest.mark.parametrize(("name", "case"), CASES, ids=[f"{name} {case}" for name, case in CASES])
@pytest.mark.usefixtures("little_memory")
def test_a_hostile_file_is_refused_with_one_sentence(tmp_path: Path, name: str, case: str) -> None:
    path = put(tmp_path / name, HOSTILE[name][case])
    with pytest.raises(FledgeError) as caught:
        load_world(path)
    message = str(caught.value)
    assert len(message) < 600
    assert message.endswith("."), message
    assert "needs more memory than there is" not in message, "a size was not checked before memory was taken"


GOOD = {
    "x.pcd": lambda p: write_pcd(p, centres(room()), "binary"),
    "x.ply": lambda p: write_ply(p, centres(room())),
    "x.las": lambda p: write_las(p, centres(room())),
    "x.laz": lambda p: write_las(p, centres(room())),
    "x.npy": lambda p: np.save(p, room()) or p,
    "x.npz": lambda p: np.savez_compressed(p, room()) or p,
    "x.bt": lambda p: put(p, unpacked(OCTOMAP)),
    "x.stl": lambda p: save_mesh(p, room_triangles()),
    "x.glb": lambda p: save_mesh(p, room_triangles()),
    "x.sdf": lambda p: write_sdf(p.parent).rename(p),
    "map.yaml": lambda p: write_ros_map(p.parent),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_truncated_file_is_refused(tmp_path: Path, name: str) -> None:
    path = GOOD[name](tmp_path / name)
    load_world(path)
    data = path.read_bytes()
    for length in (0, 1, 30, len(data) // 2, len(data) - 60):
        path.write_bytes(data[:length])
        with pytest.raises(FledgeError):
            load_world(path)


@pytest.mark.parametrize("name", [name for name in GOOD if name != "x.laz"])
def test_changed_bytes_give_a_world_or_a_clear_error(tmp_path: Path, name: str) -> None:
    path = GOOD[name](tmp_path / name)
    data = path.read_bytes()
    rng = np.random.default_rng(9)
    for _ in range(15):
        changed = bytearray(data)
        for at in rng.integers(0, min(len(data), 400), 3):
            changed[at] = rng.integers(256)
        path.write_bytes(changed)
        with contextlib.suppress(FledgeError):
            load_world(path, max_bytes=10**7)


def test_a_small_zip_cannot_unpack_to_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "x.npz", npz(solid=npy((100, 100, 400), "|b1", b"\0" * 4_000_000)))
    load_world(path)
    monkeypatch.setattr("fledge.tasks.navigation.worlds.readers.arrays.SLACK", 10_000)
    with pytest.raises(FledgeError, match="declares 4,000,000 bytes"):
        load_world(path)


@pytest.mark.parametrize("ending", READERS)
def test_an_empty_file_is_refused(tmp_path: Path, ending: str) -> None:
    with pytest.raises(FledgeError):
        load_world(put(tmp_path / f"x{ending}", b""))


def test_a_world_that_is_too_large_says_how_to_make_it_fit(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((1000, 3)) * 2000)
    with pytest.raises(MemoryBudgetError, match=r"check the scale, or use voxels of 3.1\d? m"):
        load_world(tmp_path / "x.npy", scale=1.0)
    assert load_world(tmp_path / "x.npy", scale=1.0, cell_m=3.2).cell_m == 3.2


def test_a_wrong_path_or_option_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "room.npy", room())
    for path, options, match in (
        (tmp_path / "romo.npy", {}, "Did you mean"),
        (tmp_path, {}, "is a folder"),
        (put(tmp_path / "x.docx", b""), {}, "ends in .docx, but a world must be one of .fworld, .pcd"),
        (tmp_path / "room.npy", {"up": "x"}, "choose one of auto, z, y"),
        (tmp_path / "room.npy", {"floor": "wood"}, "choose one of auto, add, none"),
        (tmp_path / "room.npy", {"scale": 0.0}, "scale is 0"),
        (tmp_path / "room.npy", {"cell_m": 1e-5}, "must be 0.01 to 10 m"),
        (tmp_path / "room.npy", {"height_m": float("nan")}, "height_m is nan"),
    ):
        with pytest.raises(FledgeError, match=match):
            load_world(path, **options)


@pytest.mark.parametrize("ending", ["las", "laz"])
def test_a_scan_that_declares_billions_of_records_is_refused_before_they_are_read(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"x.{ending}"
    write_las(path, centres(room()))
    data = bytearray(path.read_bytes())
    data[100:104] = b"\xff" * 4
    path.write_bytes(data)
    with pytest.raises(FledgeError, match=r"declares 231,928,233,\d+ bytes"):
        load_world(path)
