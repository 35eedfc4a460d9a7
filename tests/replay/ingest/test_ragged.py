"""Graph inputs: any number of elements per frame, padded with zeros, with masks that say how many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fledge.core.errors import InputError
from fledge.replay import DictReplayBuffer, KeySpec
from tests.replay.plain import everything

NODES = KeySpec((4, 2), torch.float32, ragged=True)


def graph(final_mask: bool = True) -> dict[str, Any]:
    """T = 3, N = 2: env 0 has 1 node, env 1 has 3; NaN where there is none."""
    nodes, mask = torch.full((3, 2, 4, 2), float("nan")), torch.zeros(3, 2, 4, dtype=torch.bool)
    nodes[:, 0, :1], mask[:, 0, :1] = 1.0, True
    nodes[:, 1, :3], mask[:, 1, :3] = 2.0, True
    rollout = {"nodes": nodes, "nodes_mask": mask, "final_nodes": nodes.clone(), "reward": torch.zeros(3, 2)}
    rollout["done"] = torch.tensor([[0, 0], [0, 0], [1, 1]], dtype=torch.bool)
    return {**rollout, "final_nodes_mask": mask.clone()} if final_mask else rollout


def graph_buffer() -> DictReplayBuffer:
    return DictReplayBuffer(100, {"nodes": NODES, "next_nodes": None, "reward": None})


def test_cells_beyond_a_mask_are_zero() -> None:
    buffer = graph_buffer()
    buffer.add_rollout(graph())
    batch = buffer.get(np.arange(6))
    assert batch["nodes_mask"].sum(-1).tolist() == [1, 1, 1, 3, 3, 3]
    assert batch["next_nodes_mask"].sum(-1).tolist() == [1, 1, 1, 3, 3, 3]
    for name in ("nodes", "next_nodes"):
        expected = batch[f"{name}_mask"] * torch.tensor([1.0] * 3 + [2.0] * 3)[:, None]
        assert torch.equal(batch[name], expected[..., None].expand(6, 4, 2))


def test_masks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="'final_nodes_mask': add it"):
        graph_buffer().add_rollout(graph(final_mask=False))
    with pytest.raises(InputError, match=r"has shape \(3, 4\), but must have \(3, 2, 4\)"):
        graph_buffer().add_rollout({**graph(), "nodes_mask": torch.ones(3, 4, dtype=torch.bool)})
    with pytest.raises(InputError, match="nodes_mask"):
        DictReplayBuffer(100, ["nodes"]).add({"nodes": np.zeros((3, 4)), "nodes_mask": np.ones((3, 4), bool)})


def test_open_graphs_are_flushed_with_their_masks() -> None:
    buffer, rollout = graph_buffer(), graph()
    rollout["done"] = torch.zeros(3, 2, dtype=torch.bool)
    buffer.add_rollout(rollout)
    mask = torch.tensor([[True, True, False, False], [True, False, False, False]])
    assert buffer.flush({"nodes": torch.full((2, 4, 2), 5.0), "nodes_mask": mask}) == 2
    last = buffer.get([2, 5])
    assert last["next_nodes_mask"].sum(-1).tolist() == [2, 1]
    assert last["next_nodes"][..., 0].tolist() == [[5, 5, 0, 0], [5, 0, 0, 0]]


def test_next_graphs_may_come_as_a_batch_has_them() -> None:
    first, second = graph_buffer(), graph_buffer()
    first.add_rollout(graph())
    batch = first.get(np.arange(3, 6))
    del batch["index"]
    second.add(batch)
    again = second.get(np.arange(3))
    assert all(torch.equal(again[name], batch[name]) for name in batch)
    lists = {"nodes": [np.ones((2, 2), np.float32)] * 2, "reward": np.zeros(2, np.float32)}
    third = graph_buffer()
    third.add({**lists, "next_nodes": [np.ones((2, 2), np.float32), np.ones((3, 2), np.float32)]})
    assert third.get([0, 1])["next_nodes_mask"].sum(-1).tolist() == [2, 3]


def test_graph_inputs_come_padded_with_masks() -> None:
    rng = np.random.default_rng(0)
    nodes = [rng.normal(size=(n, 3)).astype(np.float32) for n in (2, 0, 5, 1, 3)]
    keys = {"nodes": KeySpec((5, 3), torch.float32, ragged=True), "id": None, "next_nodes": None}
    with DictReplayBuffer(50, keys) as buffer:
        buffer.add({"nodes": nodes, "id": np.arange(4)})
        batch = everything(buffer)
        for name, shift in (("nodes", 0), ("next_nodes", 1)):
            for t in range(4):
                frame = nodes[t + shift]
                assert batch[f"{name}_mask"][t].tolist() == [i < len(frame) for i in range(5)]
                assert np.array_equal(batch[name][t, : len(frame)], frame)
                assert not batch[name][t, len(frame) :].any()
        padded = torch.zeros(5, 5, 3)
        mask = torch.zeros(5, 5, dtype=torch.bool)
        for t, frame in enumerate(nodes):
            padded[t, : len(frame)], mask[t, : len(frame)] = torch.from_numpy(frame), True
        buffer.add({"nodes": padded, "nodes_mask": mask, "id": np.arange(4)})
        again = everything(buffer)
        assert all(torch.equal(again[k][:4], again[k][4:]) for k in batch if k != "index")
        with pytest.raises(InputError, match="with a shorter first axis"):
            buffer.add({"nodes": [np.zeros((6, 3), np.float32)] * 5, "id": np.arange(4)})
        with pytest.raises(InputError, match="true cells first"):
            buffer.add({"nodes": padded, "nodes_mask": ~mask, "id": np.arange(4)})


def test_graph_inputs_in_rollouts() -> None:
    keys = {"nodes": KeySpec((3, 2), torch.float32, ragged=True), "action": None, "next_nodes": None}
    nodes, mask = torch.ones(4, 2, 3, 2), torch.tensor([True, True, False]).expand(4, 2, 3)
    nodes[:, :, 2] = 0
    done = torch.zeros(4, 2, dtype=torch.bool)
    done[-1] = True
    roll = {"nodes": nodes, "nodes_mask": mask, "final_nodes": nodes, "final_nodes_mask": mask}
    with DictReplayBuffer(50, keys) as buffer:
        assert buffer.add_rollout({**roll, "action": torch.zeros(4, 2), "done": done}) == 2
        batch = buffer.sample(5)
        assert batch["nodes_mask"].tolist() == batch["next_nodes_mask"].tolist() == [[True, True, False]] * 5
