"""Loads mutated files of every kind, in a process with little memory: each is refused, or gives exactly what was saved.

Half of the cases change bytes of the file; the other half change members, the manifest, a pickle or a header and then make
every checksum and size fit again, so that the change reaches the decoders. Whatever crashes, hangs or fills the memory
becomes a case of test_hostile.py or test_memory.py. Run: python -m tests.storage.format.fuzz CASES SEED
"""

from __future__ import annotations

import copy
import io
import json
import logging
import random
import resource
import sys
import tempfile
import time
import traceback
import zipfile
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import torch

from fledge.core.errors import FledgeError
from fledge.storage import inspect_checkpoint, load_checkpoint, save_checkpoint
from fledge.storage.format.codecs import CODEC_NAMES
from tests.storage.format.forgery import pack, unpack
from tests.storage.format.fuzz_kinds import Kind, all_kinds
from tests.storage.recordings.test_hostile import records, seal
from tests.storage.states import copy_state

MEMORY = 3 * 2**30  # of address space, torch's libraries included
SECONDS = 20.0  # per file; a real one takes milliseconds


def seeds(folder: Path) -> dict[Path, Any]:
    """Files to mutate, with what they hold."""
    torch.manual_seed(0)
    smooth = torch.cumsum(torch.randn(64, 40), 0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    state: dict[str, Any] = {
        "net": net.state_dict(),  # an OrderedDict with versions
        "kinds": [Counter({1: 2}), defaultdict(list, a=[1]), OrderedDict(b=torch.ones(2)), torch.Size([2, 3])],
        "model": {"w": torch.randn(40, 50) * 0.02, "b": torch.zeros(300), "i": torch.arange(900), "s": smooth},
        "opt": {0: {"step": torch.tensor(3.0), "m": torch.randn(500).to(torch.bfloat16)}},
        "plain": [1, 2.5, None, "x", (1, 2), float("nan"), 2**70, b"bytes", np.arange(50)],
    }
    files = {}
    for level in (0, 2, 5, 9):
        files[save_checkpoint(state, folder / f"level{level}", compression_level=level)] = state
    changed = copy_state(state)
    changed["model"]["w"] += 1e-4
    base = folder / "level9.fledge"
    files[save_checkpoint(changed, folder / "delta", base=base)] = changed
    flat = {"w": state["model"]["w"], "b": state["model"]["b"]}
    torch.save(flat, folder / "x.pt")
    (folder / "x.pt.lz4").write_bytes(lz4.frame.compress((folder / "x.pt").read_bytes(), content_checksum=True))
    files[folder / "x.pt.lz4"] = files[folder / "x.pt"] = flat
    torch.save(flat, folder / "old.pth", _use_new_zipfile_serialization=False)
    files[folder / "old.pth"] = flat
    files[save_checkpoint(flat, folder / "flat", codec="safetensors")] = flat
    files[save_checkpoint(state, folder / "tree", codec="safetensors")] = state
    for golden in Path(__file__).parent.glob("golden_v2*.fledge"):  # what an older version wrote
        (folder / golden.name).write_bytes(golden.read_bytes())
    files |= {path: load_checkpoint(path) for path in folder.glob("golden_v2*.fledge") if "delta" not in path.name}
    return files


CHECKED = (".fledge", ".lz4", ".frec")  # the others have no checksum: damage may change their numbers


def flip_bytes(data: bytes, rng: random.Random) -> bytes:
    """Damage: bits flipped, bytes set, ranges cut, doubled, zeroed or swapped, the end torn off."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at, size = rng.randrange(len(out)), rng.choice((1, 4, 30, 500))
        match rng.randrange(7):
            case 0:
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                out[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                del out[at : at + size]
            case 3:
                out[at:at] = out[at : at + size]
            case 4:
                out[at : at + size] = bytes(len(out[at : at + size]))
            case 5:
                out[at : at + size] = rng.randbytes(len(out[at : at + size]))
            case _:
                del out[at:]
        if not out:
            return b"P"
    return bytes(out)


def deep(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


TWICE = "has its first key twice"  # replaced in the text of the JSON
ODD_VALUES = (
    0, -1, 1, 2**31, 2**40, 2**63, -(2**63), 10**400, 1.5, 1e300, float("nan"), float("inf"), "", "x", "x" * 100_000, "raw",
    "pco", "zstd-shuffle", "float64", "uint8", "<f8", "../x", None, True, deep(50), deep(400), TWICE,
    [], {}, [0], [2**40], [1, 2, 3], {"leaf": 0}, {"leaf": 1}, {"leaf": 99}, {"dict": {}}, {"items": [[1, 2]]},
    {"tuple": [{"leaf": 1}]}, {"ordered": {"leaf": 0}}, {"module": [{"dict": {}}, 3]}, {"counter": {"items": []}},
    {"default": ["eval", {"dict": {}}]}, {"size": [-1]}, {"size": [2**62, 2**62]}, {"complex": [10**400, 0]},
    {"complex": [1, 2]}, {"int": "f" * 400}, {"float": "7ff8000000000001"}, {"items": [[{"complex": [10**400, 0]}, 1]]},
)  # fmt: skip


def change_json(value: Any, rng: random.Random, depth: int = 0) -> Any:
    """The same JSON with one place changed."""
    if isinstance(value, dict) and value and (depth < 1 or rng.random() < 0.93):
        key = rng.choice(list(value))
        if rng.random() < 0.03:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: change_json(value[key], rng, depth + 1)}
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        return [*value[:at], change_json(value[at], rng, depth + 1), *value[at + 1 :]]
    return rng.choice(ODD_VALUES)


def json_text(value: Any) -> bytes:
    """The text of a value; one that is `TWICE` becomes a dict with the same key twice."""
    return json.dumps(value).replace(json.dumps(TWICE), '{"dict":{"a":1,"a":2},"dict":{}}').encode()


def forge_bytes(path: Path, rng: random.Random) -> bytes:
    """A file that lies in its inside, with all checksums and sizes of the container right."""
    if path.suffix == ".safetensors":
        return forge_safetensors(path.read_bytes(), rng)
    if path.suffix == ".lz4":
        return lz4.frame.compress(forge_pt(lz4.frame.decompress(path.read_bytes()), rng), content_checksum=True)
    if path.suffix == ".pt":
        return forge_pt(path.read_bytes(), rng)
    if path.suffix == ".pth":
        return flip_bytes(path.read_bytes(), rng)
    if path.suffix == ".frec":
        return forge_recording(path.read_bytes(), rng)
    return forge_native(path, rng)


def forge_pt(data: bytes, rng: random.Random) -> bytes:
    """The zip of torch.save with a changed pickle or storage in it."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(stream, "w") as new:
        chosen = rng.choice([name for name in old.namelist() if name.endswith("data.pkl") or rng.random() < 0.2])
        for name in old.namelist():
            new.writestr(name, flip_bytes(old.read(name), rng) if name == chosen else old.read(name))
    return stream.getvalue()


def forge_safetensors(data: bytes, rng: random.Random) -> bytes:
    """A changed header, or a changed tree of ours in it, before the same numbers."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    if rng.random() < 0.5:
        tree = json.loads(header["__metadata__"]["fledge.tree"])
        header["__metadata__"]["fledge.tree"] = json_text(change_json(tree, rng)).decode()
    else:
        header = change_json(header, rng)
    text = json_text(header)
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def forge_native(path: Path, rng: random.Random) -> bytes:
    """A file whose manifest or members lie."""
    members, manifest = unpack(path)
    manifest = copy.deepcopy(manifest)
    for _ in range(rng.choice((1, 1, 3))):
        if rng.random() < 0.6:
            whole = not isinstance(manifest, dict) or "tree" not in manifest or rng.random() < 0.4
            manifest = change_json(manifest, rng) if whole else manifest | {"tree": change_json(manifest["tree"], rng)}
        else:
            name = rng.choice(list(members))
            members[name] = flip_bytes(members[name], rng) if members[name] else b"x"
            if rng.random() < 0.2:
                leaves = manifest.get("leaves") if isinstance(manifest, dict) else None
                for leaf in leaves if isinstance(leaves, list) else []:
                    if isinstance(leaf, dict) and leaf.get("name") == name:
                        leaf["codec"] = rng.choice(CODEC_NAMES)
    return pack(list(members.items()), json_text(manifest), deflate=rng.random() < 0.3)


def forge_recording(data: bytes, rng: random.Random) -> bytes:
    """A recording with one or two records changed, and all checksums right."""
    found = records(data)
    for _ in range(rng.choice((1, 2))):
        k = rng.randrange(len(found))
        head, payload = found[k]
        if rng.random() < 0.2:
            field = rng.choice(["kind", "episode", "first", "frames"])
            head = head._replace(**{field: rng.randrange(7 if field == "kind" else rng.choice([4, 100, 2**31]))})
        elif not payload.startswith(b"{"):
            payload = flip_bytes(payload, rng)
        else:
            payload = json_text(change_json(json.loads(payload), rng))
        found[k] = (head, payload)
    return seal(found)


def run(cases: int, seed: int) -> dict[str, int]:
    """Counts of what became of the mutated files; raises on anything but a refusal or the saved content."""
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    failures: list[str] = []
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kinds = all_kinds(folder, {path: Kind(load_and_inspect, state) for path, state in seeds(folder).items()})
        for kind in kinds.values():
            kind.check(kind.read())
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        for case in range(cases):
            source = rng.choice(list(kinds))
            kind, forged = kinds[source], rng.random() < 0.6
            data = forge_bytes(source, rng) if forged else flip_bytes(source.read_bytes(), rng)
            target = kind.target or folder / f"mutant{source.suffix}"
            target.write_bytes(data)
            start = time.perf_counter()
            try:
                counts[outcome(kind, target, check=not forged and source.suffix in CHECKED)] += 1
                assert time.perf_counter() - start < SECONDS, "it took too long"
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                what = f"case {case} of seed {seed}: {source.name}, {'forged' if forged else 'damaged'}"
                failures.append(f"{what}\n{''.join(traceback.format_exception(error)[-4:])}")
    if failures:
        raise AssertionError(f"{len(failures)} of {cases} cases failed\n" + "\n".join(failures[:12]))
    return {"cases": cases, **counts}


def outcome(kind: Kind, path: Path, check: bool) -> str:
    """Read a mutant; return whether it was loaded or refused."""
    try:
        content = kind.read(path)
    except FledgeError as error:
        text = str(error)
        if kind.always:
            raise RuntimeError("a damaged newest file stops a resume") from error
        if len(text) > 1500 or "\n" in text:
            raise RuntimeError("the error is not one sentence") from error
        return "refused"
    if check:  # whoever forges a file may write any content; damage may not change it
        kind.check(content)
    return "loaded"


def load_and_inspect(path: Path) -> Any:
    inspect_checkpoint(path)
    return load_checkpoint(path)


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]))))
