"""Compile every kernel for GPUs, on any machine, as Warp brings NVIDIA's compiler (NVRTC), and compare with a table.

python -m tests.device.kernels               compile for all ARCHS, and print what each kernel needs
python -m tests.device.kernels 75 --write    compile for sm_75, and write its column of kernels.json

`registers` are those of a thread, `stack` its bytes of local memory, which holds arrays that are indexed at run time and
registers that did not fit: both limit how many threads a GPU runs at once. The numbers are of the machine code (cubin) of the
NVRTC in the installed Warp; another version may choose others, so that the comparison allows MARGIN.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_suffix(".json")
ARCHS = (75, 120)  # the oldest GPUs that CUDA 13 supports (Turing), and Blackwell
MARGIN = {"registers": (1.15, 8), "stack": (1.1, 64)}  # a kernel may need this factor more, or this number
HOST_ONLY = (  # modules whose kernels are launched on the CPU, whatever the device
    "fledge.replay.packing.",
    "fledge.tasks.navigation.networks.lidar_native",
    "fledge.tasks.navigation.worlds.",
)
FRAME_SIZE, REGISTERS = 0x11, 0x2F  # attributes in a cubin's section .nv.info: symbol, value


def modules() -> dict[str, Any]:
    """Return Fledge's Warp modules by name, without those that only the CPU runs."""
    import warp as wp

    import fledge

    for found in pkgutil.walk_packages(fledge.__path__, "fledge."):
        if found.name.startswith("fledge.tasks.") and not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    known = wp._src.context.user_modules
    ours = {name: module for name, module in known.items() if name.startswith("fledge.") and module.kernels}
    return {name: ours[name] for name in sorted(ours) if not name.startswith(HOST_ONLY)}


def compile_module(module: Any, arch: int) -> dict[str, dict[str, int]]:
    """Compile a module to machine code for sm_`arch`; return what each kernel needs, by its name."""
    import warp as wp

    with tempfile.TemporaryDirectory() as folder:
        cubin = wp.compile_aot_module(module, arch=[arch], use_ptx=False, module_dir=folder)[0].read_bytes()
    needs = resources(cubin)
    found = {}
    for key in module.kernels:
        names = [name for name in needs if re.fullmatch(rf"{key}_[0-9a-f]+_cuda_kernel_forward", name)]
        assert len(names) == 1, f"{key} is not in the machine code of {module.name}: {sorted(needs)}"
        found[key] = needs[names[0]]
    return found


def resources(cubin: bytes) -> dict[str, dict[str, int]]:
    """Return registers and stack of each kernel in a cubin (an ELF file), by symbol."""
    start, size, count, names_at = (*struct.unpack_from("<Q", cubin, 40), *struct.unpack_from("<3H", cubin, 58))
    sections = [struct.unpack_from("<2I4Q2I2Q", cubin, start + size * k) for k in range(count)]
    names = {text(cubin, sections[names_at][4] + s[0]): s for s in sections}
    symtab, strings = names[".symtab"], names[".strtab"]
    symbols = [
        text(cubin, strings[4] + struct.unpack_from("<I", cubin, at)[0])
        for at in range(symtab[4], symtab[4] + symtab[5], 24)
    ]
    info, found = names[".nv.info"], dict[str, dict[str, int]]()
    at, end = info[4], info[4] + info[5]
    while at < end:
        form, attribute, length = struct.unpack_from("<2BH", cubin, at)
        if form == 4 and attribute in (FRAME_SIZE, REGISTERS):
            symbol, value = struct.unpack_from("<2I", cubin, at + 4)
            found.setdefault(symbols[symbol], {})["stack" if attribute == FRAME_SIZE else "registers"] = value
        at += 4 + (length if form == 4 else 0)
    return found


def text(data: bytes, at: int) -> str:
    return data[at : data.index(0, at)].decode()


def measure(archs: tuple[int, ...] = ARCHS, only: tuple[str, ...] = ()) -> dict[str, dict[str, dict[str, int]]]:
    """Compile all modules, or those named in `only`; return what each kernel needs: [sm_ARCH][module.kernel]."""
    found: dict[str, dict[str, dict[str, int]]] = {f"sm_{arch}": {} for arch in archs}
    for name, module in modules().items():
        if only and name not in only:
            continue
        for arch in archs:
            begun = time.process_time()
            for kernel, needs in compile_module(module, arch).items():
                found[f"sm_{arch}"][f"{name.removeprefix('fledge.')}.{kernel}"] = needs
            print(f"{name} sm_{arch}: {time.process_time() - begun:.1f} s of CPU", file=sys.stderr, flush=True)
    return found


def growth(found: dict[str, dict[str, int]], table: dict[str, dict[str, int]]) -> list[str]:
    """Return a sentence for each kernel that is not in the table, or needs more than it and MARGIN allow."""
    wrong = [
        f"{name} is not in {TABLE.name}: run python -m tests.device.kernels --write"
        for name in found
        if name not in table
    ]
    for name in found.keys() & table.keys():
        for what, (factor, number) in MARGIN.items():
            now, before = found[name][what], table[name][what]
            if now > max(before * factor, before + number):
                wrong.append(
                    f"{name} needs {now} {what}, but needed {before}: look for arrays in local memory and long loops"
                )
    return sorted(wrong)


def as_text(table: dict[str, dict[str, dict[str, int]]]) -> str:
    """Return the table as JSON with a line for each kernel."""
    archs = []
    for arch, needs in table.items():
        lines = [f'  "{name}": {json.dumps(needs[name])}' for name in sorted(needs)]
        archs.append(f' "{arch}": {{\n' + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(archs) + "\n}\n"


if __name__ == "__main__":
    words = sys.argv[1:]
    measured = measure(tuple(int(word) for word in words if word.isdigit()) or ARCHS)
    if "--write" in words:
        kept = json.loads(TABLE.read_text()) if TABLE.exists() else {}
        TABLE.write_text(as_text(kept | measured))
    print(json.dumps(measured, indent=1))
