"""Updates in bf16 run for every network, and stay near those in fp32."""

from __future__ import annotations

import pytest
import torch

from fledge.training.config import make_config
from fledge.training.ranks import Ranks
from fledge.training.run import TrainingState

SMALL = ["env.num_envs=16", "ppo.rollout_steps=8", "ppo.minibatch=64", "ppo.epochs=1", "total_frames=1280"]
FOREST = [*SMALL, "env.num_maps=1", "env.static_obstacles=10"]


@pytest.mark.parametrize(
    ("task", "preset", "words"),
    [
        ("navigation", "", FOREST),
        ("navigation", "", [*FOREST, "policy.gru_size=8"]),
        ("navigation", "navrl", FOREST),
        ("aircombat", "", SMALL),
        ("gym:CartPole-v1", "", SMALL),
    ],
)
def test_an_update_in_bf16_is_near_that_in_fp32(task: str, preset: str, words: list[str]) -> None:
    found = {}
    for precision in ("fp32", "bf16"):
        run = TrainingState(make_config(task, preset, [*words, f"ppo.precision={precision}"]), Ranks())
        before = run.learner.flat.values.detach().clone()  # type: ignore[attr-defined]
        losses = run.learn(run.collect())
        found[precision] = (losses["total_loss"], run.learner.flat.values.detach() - before)  # type: ignore[attr-defined]
        run.close()
    assert found["bf16"][0] == pytest.approx(found["fp32"][0], abs=0.15)
    assert not torch.equal(found["bf16"][1], found["fp32"][1])  # it is not the same arithmetic
    assert torch.cosine_similarity(found["bf16"][1], found["fp32"][1], dim=0) > 0.5
