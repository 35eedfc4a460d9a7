"""Gradients averaged over ranks are the same bits with shared memory and without it: ranks are added in their order."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, sys, torch, torch.distributed as dist
from torch import nn
from fledge.learn import shared_average
from fledge.learn.flat import FlatParameters
rank, ranks, port, fault = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
dist.init_process_group("gloo", init_method=f"file://{port}", rank=rank, world_size=ranks)
if fault == "no folder":
    shared_average.FOLDER = "/nowhere"
if fault == "another machine" and rank == 1:
    os.open = lambda *args: (_ for _ in ()).throw(FileNotFoundError())
before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
flat = FlatParameters(nn.Linear(256, 100))
for turn in range(5):
    rows = [torch.randn(flat.grads.numel(), generator=torch.Generator().manual_seed(10 * turn + r)) for r in range(ranks)]
    flat.grads.copy_(rows[rank])
    flat.average_grads(ranks)
    total = rows[0]
    for row in rows[1:]:
        total = total + row
    assert torch.equal(flat.grads, total / ranks)
    everywhere = [torch.empty_like(flat.grads) for _ in range(ranks)]
    dist.all_gather(everywhere, flat.grads)
    assert all(torch.equal(row, flat.grads) for row in everywhere)
print(type(flat._average).__name__)
assert rank or not {f for f in os.listdir("/dev/shm") if f.startswith("fledge_")} - before
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("ranks", "fault", "way"),
    [
        (3, "", "SharedAverage"),
        (2, "no folder", "ExchangedAverage"),
        (2, "another machine", "ExchangedAverage"),
        (3, "another machine", "ExchangedAverage"),
    ],
)
def test_all_ranks_get_the_sum_in_rank_order_and_no_file_is_left(ranks: int, fault: str, way: str, tmp_path) -> None:
    command = [sys.executable, "-c", PROGRAM]
    args = [str(ranks), str(tmp_path / "meet"), fault]
    started = [
        subprocess.Popen([*command, str(rank), *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(ranks)
    ]
    for process in started:
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0, out
        assert out.split()[-1] == way
