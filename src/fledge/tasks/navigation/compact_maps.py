"""Maps of drones in a checkpoint: only what is not empty, so that a drone takes a few KiB instead of some hundred.

A tensor [N, K, W] of N drones, with K cells of W numbers, becomes three:

    NAME_count   [N] int32      cells of each drone that are not 0
    NAME_at      [R] int32      their places, drone after drone
    NAME_value   [R, W]         their numbers

The planner's local map (`planner.local_map`) is drawn from hits, each of which marks 197 cells. So the hits are saved, and the
words in which the map differs from one drawn with these hits alone: marks of hits that have left the map.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import warp as wp
from torch import Tensor

from fledge.core.errors import InputError
from fledge.envs.streams import on_torch_stream
from fledge.tasks.navigation.planner.local_map import LocalMap, block, cell, draw_hits

BAND_BITS = 0xFFFF  # ring 0 of a cell's first word: the height bands of hits in this cell
CHUNK_BYTES = 2**26  # of maps that are drawn again at a time


def pack(name: str, tensor: Tensor, local_map: LocalMap | None = None) -> dict[str, Tensor]:
    """Return the tensors that stand for `tensor`, the maps [N, ...] called `name` of N drones.

    `local_map` is the planner's map if `tensor` holds its cells.
    """
    if local_map is None:
        return _pack_cells(name, tensor.flatten(2) if tensor.dim() > 2 else tensor.unsqueeze(-1))
    parts: list[dict[str, Tensor]] = []
    for words in _chunks(tensor):
        hits = _pack_cells(f"{name}_hits", (words.view(len(words), -1, 2)[..., :1] & BAND_BITS).int())
        drawn = _draw(f"{name}_hits", hits, torch.zeros_like(words), local_map)
        parts.append(hits | _pack_cells(f"{name}_rest", drawn.bitwise_xor_(words).unsqueeze(-1)))
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}


def unpack(name: str, saved: Mapping[str, Tensor], into: Tensor, local_map: LocalMap | None = None) -> None:
    """Restore the maps `into` from the tensors of `pack`."""
    into.zero_()
    if local_map is None:
        cells = into.flatten(2) if into.dim() > 2 else into.unsqueeze(-1)
        rows, at, value = _unpacked(name, saved, cells)
        cells[rows, at] = value
        return
    _draw(f"{name}_hits", saved, into, local_map)
    rows, at, value = _unpacked(f"{name}_rest", saved, into.unsqueeze(-1))
    into[rows, at] ^= value[:, 0]


def check(name: str, saved: Mapping[str, Tensor], into: Tensor) -> None:
    """Raise InputError unless `unpack` can restore `into`."""
    for part in (f"{name}_hits", f"{name}_rest") if f"{name}_hits_count" in saved else (name,):
        count, at = saved.get(f"{part}_count"), saved.get(f"{part}_at")
        if count is None or at is None or len(count) != len(into) or int(count.sum()) != len(at):
            raise InputError(
                f"The saved state has nothing for {part} of {len(into)} drones: make the env with the saved settings."
            )
        if len(at) and int(at.max()) >= into.shape[1]:
            raise InputError(f"The saved {part} is larger than the env's maps: make the env with the saved settings.")


def _pack_cells(name: str, cells: Tensor) -> dict[str, Tensor]:
    where = cells.any(-1).nonzero()
    rows, at = where.unbind(1)
    count = torch.bincount(rows, minlength=len(cells))
    return {f"{name}_count": count.int(), f"{name}_at": at.int(), f"{name}_value": cells[rows, at]}


def _unpacked(name: str, saved: Mapping[str, Tensor], cells: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return row, place and value of every saved cell."""
    count, at, value = (saved[f"{name}_{part}"].to(cells.device) for part in ("count", "at", "value"))
    return torch.repeat_interleave(torch.arange(len(cells), device=cells.device), count), at.long(), value


def _chunks(tensor: Tensor) -> Iterator[Tensor]:
    yield from tensor.split(max(1, CHUNK_BYTES // (tensor.shape[1] * tensor.element_size())))


def _draw(name: str, saved: Mapping[str, Tensor], words: Tensor, local_map: LocalMap) -> Tensor:
    """Draw saved hits into empty maps, [N, 2 * K] words, and return them."""
    count, at, value = (saved[f"{name}_{part}"].to(words.device).contiguous() for part in ("count", "at", "value"))
    first = torch.zeros(len(count) + 1, dtype=torch.int32, device=words.device)
    first[1:] = count.cumsum(0)
    m = LocalMap()
    m.size, m.stencils = local_map.size, local_map.stencils
    m.cells, m.blocks = (wp.from_torch(words.unflatten(1, (-1, kind._length_)), dtype=kind) for kind in (cell, block))
    arrays = [wp.from_torch(t) for t in (first, at, value[:, 0].contiguous())]
    with on_torch_stream(words.device):
        wp.launch(draw_hits, len(words), [m, *arrays], device=str(words.device))
    return words
