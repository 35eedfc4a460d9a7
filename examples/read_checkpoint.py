"""Read a checkpoint without Fledge: it is a zip file with a JSON manifest and bytes.

    python examples/read_checkpoint.py run/checkpoint_100.pt.fledge     prints every tensor's name, dtype, shape and sum

Files of compression level 0 need only zipfile, json and NumPy; other levels need the packages blosc2 and pcodec.
Checksums are not checked (docs/reference/checkpoint_format.md describes the whole format). bfloat16 is returned as uint16,
float8 as uint8. A delta needs its base file in the same folder.
"""

import json
import struct
import sys
import zipfile
from pathlib import Path

import numpy as np


def read(path):  # returns {name of the leaf: array}
    archive = zipfile.ZipFile(path)
    manifest = json.loads(archive.read("manifest.json"))
    base = read(Path(path).parent / manifest["base"]["file"]) if manifest["base"] else {}
    arrays = {}
    for leaf in manifest["leaves"]:
        kind = leaf["dtype"] if leaf["kind"] == "tensor" else "uint8" if leaf["kind"] == "bytes" else leaf["dtype"]
        dtype = np.dtype(
            {"bfloat16": "u2", "complex32": "u4"}.get(kind, "uint8" if kind.startswith("float8") else kind)
        )
        word = {"c": dtype.itemsize // 2, "U": 4, "S": 1}.get(dtype.kind, dtype.itemsize)
        shape = [leaf["shape"][axis] for axis in leaf.get("order", range(len(leaf["shape"])))]
        size, member = int(np.prod(shape)) * dtype.itemsize, archive.read(leaf["name"])
        data, place = member[:size] if leaf["codec"] == "raw" else b"", 0
        while len(data) < size:  # chunks: a length, then the compressed bytes
            (length,) = struct.unpack_from("<I", member, place)
            chunk, place = member[place + 4 : place + 4 + length], place + 4 + length
            if leaf["codec"] == "pco":
                from pcodec import standalone

                data += standalone.simple_decompress(chunk).tobytes()
            else:
                import blosc2

                data += blosc2.decompress2(chunk)
        words = np.frombuffer(data, f"<u{word}")
        if "base_name" in leaf:  # a delta: zig-zag code of the difference from the base's words
            old = base[leaf["base_name"]].transpose(leaf.get("order")).reshape(-1).view(words.dtype)
            words = old + ((words >> 1) ^ (0 - (words & 1)))
        array = words.view(dtype).reshape(shape)
        arrays[leaf["name"]] = array.transpose(np.argsort(leaf["order"])) if "order" in leaf else array
    return arrays


if __name__ == "__main__":
    for name, array in read(sys.argv[1]).items():
        total = array.astype(complex).sum() if array.dtype.kind in "biufc" else ""
        print(
            f"{name}  {array.dtype}  {array.shape}  {total:.6g}"
            if array.size and total != ""
            else f"{name}  {array.dtype}"
        )
