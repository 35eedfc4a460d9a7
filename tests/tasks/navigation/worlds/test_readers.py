"""Every reader, against a room whose voxels are known."""

import base64
import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fledge.core.errors import ConfigError, FormatError
from fledge.tasks.navigation.worlds.triangles import cells_of_triangles
from fledge.tasks.navigation.worlds.world import World, load_world
from tests.tasks.navigation.worlds.rooms import SHAPE, box, centres, room, room_of_triangles, room_triangles

trimesh = pytest.importorskip("trimesh")
ORIGIN = (-1.0, 0.5, -0.1)
# the room at ORIGIN: every third free voxel known as free, written by octomap 1.10, and the points, by pypcd4 1.5
OCTOMAP = (
    "eNrNF0uOmzDUSndWpFzh1dm0UtUycqseo5tmFrNjEtNByqcKtFJ7Aq6QHZvZzClyAKS5CjdwnyEefoYQYGhMwM/Pfn/7+WUO35b+bmP/xP77Xg"
    "i4d7f2/g847lrQObxzhFiDoyb8HdirFXyC5YO9/SFgudtsxNb3PsD9Lx/Wwv6Nax4EUu49HLtbAbYHrg+u9/Y9nVN3dRJBPfevgBvr65fPdC88"
    "sD7e0JXt2zSOydTwRESSI35D8kRihMMEespBET5pn+Jl0qdwM9SVUtNNCa2hmuEMPX3fGB5FZbbGjL3EqrYrObFyEngtt+Eln/fZ+RW8RmNeXm"
    "/cVJGUx2MUhaHDwpA5CmJMjeJYyhDbgiyI6rFbVDGzBKOxxVGEzWEOw5+ThxhLAJZBEpuiUM+pW3TDkAzTCKU2M0dZm1mPNs+0ZaovjVr4Q9mc"
    "mMQU3wyq+gFNzuxohgbyjZTXHJG8btMpxZZpk47b6TSb0VPLIJM807prjl5eN+2for/MOpns7OpHqc9NkiGyExTHTXmg6UwlVlV2nykKaFzLnd"
    "Q6MuR/Ss/LftnvhfiaZZrj0i7uxgsYW/9c359D24zzGAq4o7eT8BEEvZvctss4ShcASicTTZ+fGzvX9b9n+nOoyWBS+1X769JMdj4+4+dOzi1L"
    "e+AQpB4IDs8JJgg0nnNFeQjUq+bVW8VEMsCmscURSnnW3FPeVakoJdK8FG1p1EIDKcffsdcqsc9tP4qE0Wu865A4aNXx6hI473/2TRxylWVhbV"
    "5y32xQ5lD0Rp0++Ke7c83WndJc0TTezRffUUPXaZxYVvmmKGd5zpt2RmOEySvUtSNx7FOJDs+Rk+5RKFPmpNecrX/7L0kT"
)
COMPRESSED_PCD = (
    "eNrVU01sE0cUnmZBq+5GONJKXSG32kmIiIqlYLSQnPCu412vl1AcsS4mWVVLCbEUoQaEkWh6MWqlXnr0IUouzq0XbjlEORSnagWVSC7NgYMP3k"
    "3CX4CkqSk/ymF44zErDintgQuaN/t9++a9mdH33pwxTzt29hSO9/YLads8aTj4WzyJv8PjE1fHJorjVycFxx4x8VE2hNzwkInTbAip7JencvgI"
    "G0LeNnIZrKp9cSFj2lYGVoQztpkfytoQFe+Nh/PIWxym0IxwWKqRzCXx+fGJr69MeqOXvrl8ZaxYHLsg/LYXIfQnQntUtVhVfcIFhN/dBL5tZn"
    "qYRrTzbQjpLVYoHGyx5aV2xrhC4f5NSkW+TVXnwpTrLTYzvb8VuLx08hdK9/HoOJYp+4PvVlCCsjt8j0JxiT+ksPCYw7C3gjS2fbzOPGor4pjH"
    "sK8c3u7HFlPVcniR2fDGN8IrLYQZt8KMlTDDDzOehBmv3qVWO/9SlHxLeumOvnB/fu4+fu4e/sctPnPnG+5Ow9X+dn/Ydm9vu+JfbnbLLW+6dz"
    "lV5XQ/z8HOH/tnOTi0g0Kh8AmF5aVPKajqAQoz05+zkDgL6QN4ZA36Ytb2MiRTyWhW3SpZSrqa9kxiVkzNqBslI5qqprwBMlAZ0JL1ZCkgCtgq"
    "0daI9/tP66T0a8Tneerl5cUI4O7/snLigO9wJ0pw2Q1SfyySwKnpbpCv6V5A6mCbpLJFqutEWReVe0RrEGWjh57DLOB5PxJ5KpfgWLBV3mo633"
    "Xkv/wnFaoX7cWznF0FPlSHj0c/zXo3JZoFyBNwfUGjcxpbXGGLPtP2CRP1FcCbMuQrbO//KsII3bpVgmY/Y67jOHR4Avo9Ad2fgMeQsKO2lJnP"
    "OFbDKlv96bvpYloy58y88cKYMvpTK6liSh6Yx9C9o53RgMRWSX4N1COD98i1+0R7QC4+JFOPOjx71B/kNqrRYDCqO6BCUvRFjqohRnXpf//XFL"
    "+2Fog1XfJrO0CTd8DLKPM2dnTiy83ESA/rkiACRZNpod4Lr8IDvv2ZBgXQQH0NpNeo7tD6Okiug9768vdQ5xhYVwwNd8X2FDV4zJhH5U4ZzXal"
    "0A0sowUsoVtYYnEgF4iG2rt70MHufqBrXykInYM6dF5DCItIxxy6DnMW5iLmdOQTEFvW0SqRwD5g9KSPFvXXbUPOqQ=="
)


def unpacked(golden: str) -> bytes:
    return zlib.decompress(base64.b64decode(golden))


def write_ply(path: Path, xyz: np.ndarray, order: str = "<", kind: str = "f4") -> Path:
    form = {"<": "binary_little_endian", ">": "binary_big_endian", "": "ascii"}[order]
    name = {"f4": "float", "f8": "double"}[kind]
    head = f"ply\nformat {form} 1.0\ncomment made by a test\nelement camera 1\nproperty int id\nelement vertex {len(xyz)}\n"
    head += f"property uchar red\nproperty {name} x\nproperty {name} y\nproperty {name} z\nend_header\n"
    if not order:
        return put(path, (head + "7\n" + "".join(f"9 {x} {y} {z}\n" for x, y, z in xyz)).encode())
    rows = np.zeros(len(xyz), [("red", "u1"), *((axis, order + kind) for axis in "xyz")])
    for k, axis in enumerate("xyz"):
        rows[axis] = xyz[:, k]
    return put(path, head.encode() + b"\0\0\0\1" + rows.tobytes())


def put(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def write_las(path: Path, xyz: np.ndarray) -> Path:
    laspy = pytest.importorskip("laspy")
    header = laspy.LasHeader(point_format=3, version="1.2")
    header.offsets, header.scales = np.floor(xyz.min(axis=0)), [0.001] * 3
    las = laspy.LasData(header)
    las.x, las.y, las.z = xyz.T
    las.write(path)
    return path


def write_pcd(path: Path, xyz: np.ndarray, data: str) -> Path:
    head = "# .PCD v.7\nVERSION .7\nFIELDS normal rgb z x y\nSIZE 4 1 4 8 4\nTYPE F U F F F\nCOUNT 3 1 1 1 1\n"
    head += f"WIDTH {len(xyz)}\nHEIGHT 1\nVIEWPOINT 0 0 0 1 0 0 0\nPOINTS {len(xyz)}\nDATA {data}\n"
    if data == "ascii":
        return put(path, (head + "".join(f"1 2 3 4 {z} {x} {y}\n" for x, y, z in xyz)).encode())
    rows = np.zeros(len(xyz), [("n", "<f4", 3), ("rgb", "u1"), ("z", "<f4"), ("x", "<f8"), ("y", "<f4")])
    rows["x"], rows["y"], rows["z"] = xyz.T
    return put(path, head.encode() + rows.tobytes())


CLOUDS = {
    "pcd ascii": lambda folder, xyz: write_pcd(folder / "a room.pcd", xyz, "ascii"),
    "pcd binary": lambda folder, xyz: write_pcd(folder / "a room.pcd", xyz, "binary"),
    "pcd compressed": lambda folder, xyz: put(folder / "a room.pcd", unpacked(COMPRESSED_PCD)),
    "ply": lambda folder, xyz: write_ply(folder / "a room.ply", xyz),
    "ply big endian": lambda folder, xyz: write_ply(folder / "a room.ply", xyz, ">", "f8"),
    "ply ascii": lambda folder, xyz: write_ply(folder / "a room.ply", xyz, ""),
    "las": lambda folder, xyz: write_las(folder / "a room.las", xyz),
    "laz": lambda folder, xyz: write_las(folder / "a room.laz", xyz),
    "npy": lambda folder, xyz: np.save(folder / "a room.npy", np.c_[xyz, xyz[:, :1]]) or folder / "a room.npy",
    "npz": lambda folder, xyz: np.savez(folder / "a room.npz", points=xyz, colour=xyz) or folder / "a room.npz",
    "xyz": lambda folder, xyz: np.savetxt(folder / "a room.xyz", xyz) or folder / "a room.xyz",
    "csv in xyz": lambda folder, xyz: (
        np.savetxt(folder / "a room.csv", xyz, delimiter=",", header="x,y,z", comments="") or folder / "a room.csv"
    ),
}


@pytest.mark.parametrize("kind", CLOUDS)
def test_a_point_cloud_becomes_the_voxels_around_its_points(tmp_path: Path, kind: str) -> None:
    world = load_world(CLOUDS[kind](tmp_path, centres(room(), ORIGIN)))
    np.testing.assert_array_equal(world.solid, room())
    np.testing.assert_allclose(world.origin, ORIGIN, atol=1e-9)
    assert (world.name, world.cell_m, world.triangles) == ("a room", 0.1, None)
    assert not any("floor" in note or "unit" in note for note in world.notes)


def save_mesh(path: Path, triangles: np.ndarray) -> Path:
    mesh = trimesh.Trimesh(triangles.reshape(-1, 3), np.arange(len(triangles) * 3).reshape(-1, 3), process=False)
    mesh.export(path)
    return path


@pytest.mark.parametrize("ending", ["stl", "ply", "off", "obj", "glb"])
def test_a_mesh_becomes_the_voxels_that_it_touches_and_keeps_its_triangles(tmp_path: Path, ending: str) -> None:
    triangles = room_triangles()
    turned = np.stack([triangles[..., 0], triangles[..., 2], -triangles[..., 1]], axis=-1)  # y up
    y_up = ending in ("obj", "glb")
    world = load_world(save_mesh(tmp_path / f"a room.{ending}", turned if y_up else triangles))
    np.testing.assert_array_equal(world.solid, room_of_triangles())
    np.testing.assert_allclose(world.origin, [-0.05, -0.05, -0.05], atol=1e-6)
    assert world.triangles is not None
    assert world.triangles.dtype == np.float32
    np.testing.assert_allclose(world.triangles, triangles, atol=1e-6)
    assert any("y is taken as up" in note for note in world.notes) == y_up


def test_an_ascii_stl_is_read(tmp_path: Path) -> None:
    mesh = trimesh.Trimesh(room_triangles().reshape(-1, 3), np.arange(72).reshape(-1, 3), process=False)
    mesh.export(tmp_path / "x.stl", file_type="stl_ascii")
    np.testing.assert_array_equal(load_world(tmp_path / "x.stl").solid, room_of_triangles())


def test_the_instances_of_a_glb_are_placed_by_their_nodes(tmp_path: Path) -> None:
    scene = trimesh.Scene()
    cube = trimesh.creation.box((1.0, 1.0, 1.0))
    for at in ((0.0, 0.5, 0.0), (4.0, 0.5, 0.0), (0.0, 3.5, -6.0)):
        scene.add_geometry(cube, geom_name="cube", transform=trimesh.transformations.translation_matrix(at))
    scene.export(tmp_path / "x.glb")
    world = load_world(tmp_path / "x.glb")
    assert world.triangles is not None
    assert len(world.triangles) == 36 + 2  # and an added floor
    low, high = world.triangles[:36].min(axis=(0, 1)), world.triangles[:36].max(axis=(0, 1))
    np.testing.assert_allclose(low, [-0.5, -0.5, 0.0], atol=1e-6)
    np.testing.assert_allclose(high, [4.5, 6.5, 4.0], atol=1e-6)


def test_an_octomap_of_its_own_library_is_read(tmp_path: Path) -> None:
    world = load_world(put(tmp_path / "x.bt", unpacked(OCTOMAP)))
    np.testing.assert_array_equal(world.solid, room())
    np.testing.assert_allclose(world.origin, ORIGIN, atol=1e-9)
    assert world.cell_m == 0.1


def octomap_of(nodes: list[int], resolution: float = 0.5) -> bytes:
    head = f"# Octomap OcTree binary file\n# comment\nid OcTree\nsize {len(nodes) + 1}\nres {resolution}\ndata\n"
    return head.encode() + b"".join(struct.pack("<H", node) for node in nodes)


def test_a_large_leaf_of_an_octomap_fills_all_its_voxels(tmp_path: Path) -> None:
    # root -> child 7 (x, y, z from 0 up) -> child 0, 11 times; then a node of sides 8 (4 m) in which child 3 is occupied,
    # child 0 free, and child 4 a node with its first leaf occupied
    down = [3 << 14, *[3] * 11]
    world = load_world(put(tmp_path / "x.bt", octomap_of([*down, 1 | 2 << 6 | 3 << 8, 2])), floor="none")
    expected = np.zeros((16, 16, 12), bool)
    expected[8:16, 8:16, 0:8] = True
    expected[0:4, 0:4, 8:12] = True
    np.testing.assert_array_equal(world.solid, expected)
    np.testing.assert_array_equal(world.origin, np.zeros(3))
    assert world.cell_m == 0.5


ARRAYS = {
    "bool": room(),
    "0 and 1": room().astype(np.int32),
    "bytes": np.where(room(), 200, 100).astype(np.uint8),
    "percent": np.where(room(), 100, -1).astype(np.int8),
    "probabilities": np.where(room(), 0.9, 0.2).astype(np.float32),
    "any numbers": np.where(room(), 3.5, -2.0),
    "fortran": np.asfortranarray(room()),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_an_occupancy_array_is_taken_as_it_is(tmp_path: Path, kind: str) -> None:
    np.save(tmp_path / "x.npy", ARRAYS[kind])
    world = load_world(tmp_path / "x.npy", scale=0.25)
    np.testing.assert_array_equal(world.solid, room())
    assert world.cell_m == 0.25
    assert any("are solid" in note for note in world.notes) == (ARRAYS[kind].dtype != bool)


def test_an_npz_may_hold_the_size_and_place_of_its_voxels(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", solid=room(), resolution=0.2, origin=[1.0, 2.0, 3.0])
    world = load_world(tmp_path / "x.npz")
    np.testing.assert_array_equal(world.solid, room())
    assert (world.cell_m, world.origin.tolist()) == (0.2, [1.0, 2.0, 3.0])
    coarse = load_world(tmp_path / "x.npz", cell_m=0.4)
    expected = room()[:, :, :24].reshape(15, 2, 12, 2, 12, 2).any(axis=(1, 3, 5))
    np.testing.assert_array_equal(coarse.solid[:, :, :12], expected)
    assert "touches a solid one" in coarse.notes[-1]


def test_a_height_map_is_solid_up_to_its_heights(tmp_path: Path) -> None:
    heights = np.zeros((40, 20))
    heights[5:10, 3:6] = 2.4
    heights[30, 15] = 0.31
    np.save(tmp_path / "x.npy", heights)
    world = load_world(tmp_path / "x.npy")
    assert world.solid.shape == (40, 20, 25)  # a layer for the ground at height 0, below it
    top = np.where(heights > 2, 25, np.where(heights > 0, 5, 1))
    np.testing.assert_array_equal(world.solid.sum(axis=2), top)
    assert world.solid[:, :, 0].all()
    np.testing.assert_allclose(world.origin, [0.0, 0.0, -0.1])


@pytest.mark.parametrize(
    ("ending", "mode"), [("png", "L"), ("png", "I;16"), ("tif", "I;16"), ("tif", "F"), ("png", "RGB")]
)
def test_an_image_of_heights_has_x_to_the_right_and_y_up(tmp_path: Path, ending: str, mode: str) -> None:
    height = np.zeros((10, 16))  # rows from the top of the picture
    height[0, 15] = 3.0  # top right
    height[9, 0] = 0.6  # bottom left
    top = 65535 if mode == "I;16" else 255
    values = (
        height.astype(np.float32)
        if mode == "F"
        else (height / 3.0 * top).round().astype("uint16" if top > 255 else "uint8")
    )
    Image.fromarray(values).convert(mode).save(tmp_path / f"x.{ending}")
    world = load_world(tmp_path / f"x.{ending}", scale=0.2)
    tops = world.solid.sum(axis=2)
    assert world.solid.shape[:2] == (32, 20)
    assert (tops[30:, 18:] == 31).all()
    assert (tops[:2, :2] == 7).all()
    assert (np.delete(tops, [0, 1, 30, 31], axis=0) == 1).all()


def write_ros_map(folder: Path, image: str = "map.pgm", **changes: object) -> Path:
    """Write the room seen from above at 0.05 m, with an unknown corner."""
    pixels = np.where(room()[:, :, 5], 0, 254).astype(np.uint8)
    pixels[1:4, 1:4] = 205
    pixels = pixels.repeat(2, axis=0).repeat(2, axis=1)
    Image.fromarray(pixels.T[::-1]).save(folder / Path(image).name)
    about = {"image": image, "resolution": 0.05, "origin": [-1.0, 0.5, 0.0], "negate": 0, "occupied_thresh": 0.65}
    about |= {"free_thresh": 0.196} | changes
    path = folder / "map.yaml"
    path.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in about.items()))
    return path


@pytest.mark.parametrize("image", ["map.pgm", "map.png", "/robot/maps/map.pgm"])
def test_a_ros_map_is_extruded_over_a_floor(tmp_path: Path, image: str) -> None:
    world = load_world(write_ros_map(tmp_path, image), height_m=2.4)
    np.testing.assert_array_equal(world.solid, room())  # the floor is added
    np.testing.assert_allclose(world.origin, [-1.0, 0.5, -0.1])
    assert any("A floor is added" in note for note in world.notes)
    assert any("unknown cells are free" in note for note in world.notes)


def test_a_raw_ros_map_holds_percentages_and_unknown_cells_above_100(tmp_path: Path) -> None:
    path = write_ros_map(tmp_path, mode="raw")
    pixels = np.asarray(Image.open(tmp_path / "map.pgm"))
    Image.fromarray(np.array([100, 255, 0], np.uint8)[np.digitize(pixels, [100, 230])]).save(tmp_path / "map.pgm")
    np.testing.assert_array_equal(load_world(path, height_m=2.4).solid, room())


def test_a_ros_map_with_an_unknown_mode_or_threshold_is_refused_and_one_without_walls_says_so(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="mode is 'grey', but must be trinary, scale, raw"):
        load_world(write_ros_map(tmp_path, mode="grey"))
    with pytest.raises(FormatError, match="occupied_thresh is 65, but must be 0 to 1"):
        load_world(write_ros_map(tmp_path, occupied_thresh=65))
    assert any(
        "No cell of the map is occupied" in note for note in load_world(write_ros_map(tmp_path, mode="raw")).notes
    )


def test_the_image_of_a_ros_map_alone_asks_for_its_yaml(tmp_path: Path) -> None:
    write_ros_map(tmp_path)
    with pytest.raises(ConfigError, match=r"pass the \.yaml beside it"):
        load_world(tmp_path / "map.pgm")


def test_voxels_that_are_no_cubes_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", solid=room(), cell_m=[0.1, 0.1, 0.2])
    with pytest.raises(FormatError, match="voxels are cubes"):
        load_world(tmp_path / "a.npz")


def test_a_gazebo_world_whose_meshes_are_missing_names_them(tmp_path: Path) -> None:
    mesh = "<mesh><uri>model://house/walls.dae</uri></mesh>"
    link = f"<link name='l'><collision name='c'><geometry>{mesh}</geometry></collision></link>"
    (tmp_path / "a.sdf").write_text(f"<sdf version='1.6'><world name='w'><model name='m'>{link}</model></world></sdf>")
    with pytest.raises(FormatError, match=r"The mesh model://house/walls\.dae is left out"):
        load_world(tmp_path / "a.sdf")


def test_a_negated_ros_map_has_bright_walls(tmp_path: Path) -> None:
    path = write_ros_map(tmp_path, negate=1)
    Image.fromarray(255 - np.asarray(Image.open(tmp_path / "map.pgm"))).save(tmp_path / "map.pgm")
    np.testing.assert_array_equal(load_world(path, height_m=2.4).solid, room())


SDF = """<?xml version="1.0"?><sdf version="1.6"><world name="test">
<include><uri>model://a table</uri><pose>1.5 1.2 0 0 0 1.5707963</pose></include>
<model name="ground"><link name="l"><collision name="c"><geometry><plane><normal>0 0 1</normal><size>1 1</size></plane>
</geometry></collision></link></model>
<model name="walls"><pose>1 1 0 0 0 0</pose><link name="l"><pose>0 0 1.5 0 0 0</pose>
<collision name="c"><pose>1 -1 0 0 0 0</pose><geometry><box><size>0.5 1 3</size></box></geometry></collision>
<visual name="v"><geometry><box><size>50 50 50</size></box></geometry></visual></link></model>
<model name="post"><link name="l"><visual name="v"><pose>-2 0 1 0 0 0</pose><geometry><cylinder><radius>0.3</radius>
<length>2</length></cylinder></geometry></visual></link></model>
<model name="ball"><pose>0 3 1 0 0 0</pose><link name="l"><collision name="c"><geometry><sphere><radius>0.5</radius></sphere>
</geometry></collision></link></model>
<model name="part"><pose>3 3 0 0 0 0</pose><link name="l"><collision name="c"><geometry><mesh><uri>meshes/part.stl</uri>
<scale>2 2 2</scale></mesh></geometry></collision></link></model>
<model name="far"><include><uri>https://fuel.example.org/x</uri></include></model>
</world></sdf>"""
TABLE = """<sdf version="1.6"><model name="t"><link name="l"><collision name="c"><pose>0 0 0.8 0 0 0</pose>
<geometry><box><size>2 1 0.1</size></box></geometry></collision></link></model></sdf>"""


def write_sdf(folder: Path) -> Path:
    (folder / "models" / "a table").mkdir(parents=True)
    (folder / "models" / "a table" / "model.sdf").write_text(TABLE)
    (folder / "meshes").mkdir()
    save_mesh(folder / "meshes" / "part.stl", box((0, 0, 0), (0.2, 0.3, 0.4)))
    path = folder / "room.world"
    path.write_text(SDF)
    return path


def test_a_gazebo_world_has_its_shapes_in_their_poses(tmp_path: Path) -> None:
    world = load_world(write_sdf(tmp_path))
    assert world.triangles is not None
    parts = np.split(world.triangles, np.cumsum([12, 12, 6 * 48, 24 * 2 * 48, 12]))
    expected = [
        ((1.0, 0.2, 0.75), (2.0, 2.2, 0.85)),  # the table, turned by 90 degrees
        ((1.75, -0.5, 0.0), (2.25, 0.5, 3.0)),
        ((-2.3, -0.3, 0.0), (-1.7, 0.3, 2.0)),  # the visual, because there is no collision
        ((-0.5, 2.5, 0.5), (0.5, 3.5, 1.5)),
        ((3.0, 3.0, 0.0), (3.4, 3.6, 0.8)),
        ((-4.6, -4.6, 0.0), (4.6, 4.6, 0.0)),  # the ground, 1 m larger than everything else
    ]
    for part, (low, high) in zip(parts, expected, strict=True):
        np.testing.assert_allclose(part.min(axis=(0, 1)), low, atol=1e-5)
        np.testing.assert_allclose(part.max(axis=(0, 1)), high, atol=1e-5)
    assert any("https://fuel.example.org/x is left out" in note for note in world.notes)
    assert solid_at(world, 2.25, 0.0, 1.0)
    assert not solid_at(world, 2.0, 1.0, 1.5)


def solid_at(world: World, *point: float) -> bool:
    return bool(world.solid[tuple(((np.array(point) - world.origin) / world.cell_m).astype(int))])


def test_a_room_in_any_unit_gets_the_same_voxels(tmp_path: Path) -> None:
    for per_metre, unit in ((1.0, None), (100.0, "centimetres"), (1000.0, "millimetres")):
        np.save(tmp_path / "x.npy", centres(room(), ORIGIN) * per_metre)
        world = load_world(tmp_path / "x.npy")
        np.testing.assert_array_equal(world.solid, room())
        assert (
            [note for note in world.notes if "unit" in note] == []
            if unit is None
            else any(unit in n for n in world.notes)
        )
        assert load_world(tmp_path / "x.npy", scale=1 / per_metre).solid.shape == SHAPE


def test_points_far_outside_are_left_out(tmp_path: Path) -> None:
    stray = [[400.0, 0.0, 1.0], [0.0, -90.0, 1.0], [0.0, 1.0, 70.0], [np.nan, 0.0, 0.0]]
    np.save(tmp_path / "x.npy", np.concatenate([centres(room(), ORIGIN), stray]))
    world = load_world(tmp_path / "x.npy")
    np.testing.assert_array_equal(world.solid, room())
    assert any("1 points without finite coordinates" in note for note in world.notes)
    assert any("3 of 3,363 points lie far outside" in note for note in world.notes)


def test_a_world_with_map_coordinates_is_moved_to_the_origin(tmp_path: Path) -> None:
    world = load_world(write_las(tmp_path / "x.las", centres(room(), (500_000.0, 5_400_000.0, 300.0))))
    np.testing.assert_array_equal(world.solid, room())
    assert max(abs(bound).max() for bound in world.bounds) < 5.0
    assert any("is moved by (-500,002, -5,400,001, -300) m" in note for note in world.notes)


def test_a_missing_floor_is_added_and_a_wanted_one_is_not_doubled(tmp_path: Path) -> None:
    bare = room()
    bare[1:-1, 1:-1, 0] = False
    bare[10:13, 8:10, 0] = True
    np.save(tmp_path / "x.npy", bare)
    world = load_world(tmp_path / "x.npy")
    np.testing.assert_array_equal(world.solid[:, :, 1:], bare)
    assert world.solid[:, :, 0].all()
    assert world.origin[2] == -0.1
    np.testing.assert_array_equal(load_world(tmp_path / "x.npy", floor="none").solid, bare)
    np.save(tmp_path / "y.npy", room())
    np.testing.assert_array_equal(load_world(tmp_path / "y.npy").solid, room())
    assert load_world(tmp_path / "y.npy", floor="add").solid.shape[2] == SHAPE[2] + 1


def test_the_floor_of_a_mesh_has_triangles_too(tmp_path: Path) -> None:
    walls = room_triangles()[:24]
    walls = walls[~(walls[..., 2] == 0.0).all(axis=1)]  # without floor
    world = load_world(save_mesh(tmp_path / "x.stl", walls))
    assert world.solid[:, :, 0].all()
    assert world.triangles is not None
    floor = world.triangles[-2:]
    assert (floor[..., 2] == 0.0).all()
    np.testing.assert_array_equal(world.solid, room_of_triangles())


@pytest.mark.parametrize("kind", ["room", "tilted", "flat"])
def test_every_voxel_that_a_triangle_touches_is_solid(tmp_path: Path, kind: str) -> None:
    turn = np.linalg.qr(np.random.default_rng(5).normal(size=(3, 3)))[0]
    triangles = {
        "room": room_triangles(),
        "tilted": room_triangles() @ turn + 0.123,
        "flat": box((0, 0, 0), (4, 3, 0.4)),
    }[kind]
    world = load_world(save_mesh(tmp_path / "x.stl", triangles[2:]), floor="add", cell_m=0.07)
    assert world.triangles is not None
    first, _ = cells_of_triangles(world.triangles, world.origin, world.solid.shape, world.cell_m)
    np.testing.assert_array_equal(world.solid.reshape(-1), first[1:] > first[:-1])


def test_flat_ground_gets_room_to_fly(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((60, 50)) * 0.3)
    world = load_world(tmp_path / "x.npy")
    assert world.solid.shape[2] == 4 + 40
    assert not world.solid[:, :, 4:].any()
    assert any("4.0 m of free space are added on top" in note for note in world.notes)


def test_y_up_turns_voxels_and_points_alike(tmp_path: Path) -> None:
    solid = room()
    solid[3, 4, 5] = True
    y_up = solid.transpose(0, 2, 1)[:, :, ::-1]  # z up: (x, y, z); y up: (x, z, -y)
    np.save(tmp_path / "x.npy", y_up)
    np.testing.assert_array_equal(load_world(tmp_path / "x.npy", up="y").solid, solid)
    np.save(tmp_path / "y.npy", centres(y_up))
    np.testing.assert_array_equal(load_world(tmp_path / "y.npy", up="y").solid, solid)


def test_an_obj_that_is_flat_along_z_keeps_z_up(tmp_path: Path) -> None:
    world = load_world(save_mesh(tmp_path / "x.obj", box((0, 0, 0), (20.0, 10.0, 2.5))))
    assert world.solid.shape == (201, 101, 26)
    assert any("flat along z" in note for note in world.notes)


def test_too_many_triangles_leave_only_voxels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fledge.tasks.navigation.worlds.build.MAX_TRIANGLES", 10)
    world = load_world(save_mesh(tmp_path / "x.stl", room_triangles()))
    assert world.triangles is None
    np.testing.assert_array_equal(world.solid, room_of_triangles())
    assert any("24 triangles, more than 10" in note for note in world.notes)
