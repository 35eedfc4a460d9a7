"""The gradient noise scale is unbiased, costs no result, and is the same for halves of a minibatch as for ranks."""

from __future__ import annotations

import pytest
import torch

from fledge.learn.noise_scale import LARGEST, NoiseScale
from fledge.training.config import make_config
from fledge.training.ranks import Ranks
from fledge.training.run import TrainingState

SMALL = ["env.num_envs=16", "env.num_maps=1", "env.static_obstacles=10", "env.moving_obstacles=0", "policy.hidden=[8]"]
SMALL += ["ppo.rollout_steps=16", "ppo.minibatch=32", "ppo.epochs=2", "total_frames=2560"]


def plain(gradients: torch.Tensor, samples: int) -> tuple[float, float]:
    """|G|² and tr(S) by appendix A.1 of the paper: B_small is a group of samples, B_big all groups together."""
    small, big = samples, samples * len(gradients)
    g_small = float(gradients.square().sum(1).mean())
    g_big = float(gradients.mean(0).square().sum())
    signal = (big * g_big - small * g_small) / (big - small)
    return signal, (g_small - g_big) / (1 / small - 1 / big)


@pytest.mark.parametrize(("groups", "samples"), [(2, 16), (4, 64)])
def test_a_known_noise_scale_is_found(groups: int, samples: int) -> None:
    generator = torch.Generator().manual_seed(0)
    true, spread = torch.full((200,), 0.1), torch.linspace(0.5, 2.0, 200)  # of one sample's gradient
    known = float(spread.square().sum() / true.square().sum())  # 175
    found = NoiseScale(torch.device("cpu"))
    for _ in range(300):
        for _ in range(8):
            noise = torch.randn(groups, samples, 200, generator=generator).mean(1) * spread
            grads = true + noise
            mean = grads.mean(0)
            found.add(grads.square().sum(1).mean(), mean.dot(mean))
        found.finish(groups, samples)
    assert float(found.value()) == pytest.approx(known, rel=0.1)


def test_one_update_equals_the_formulas_of_the_paper() -> None:
    gradients = torch.randn(4, 50, generator=torch.Generator().manual_seed(1)) + 0.3
    mean, found = gradients.mean(0), NoiseScale(torch.device("cpu"))
    found.add(gradients.square().sum(1).mean(), mean.dot(mean))
    found.finish(4, 32)
    signal, noise = plain(gradients.double(), 32)
    assert (found.parts[:2] / found.parts[2]).tolist() == pytest.approx([signal, noise], rel=1e-4)
    assert float(found.value()) == pytest.approx(noise / signal, rel=1e-4)


def test_gradients_without_a_common_part_give_the_largest_value_and_no_gradients_give_none() -> None:
    found = NoiseScale(torch.device("cpu"))
    found.finish(2, 8)
    assert float(found.value()) == 0.0
    found.add(torch.tensor(1.0), torch.tensor(0.0))
    found.finish(2, 8)
    assert float(found.value()) == pytest.approx(LARGEST)


def weights(splits: bool) -> tuple[torch.Tensor, dict[str, float], TrainingState]:
    run = TrainingState(make_config("navigation", "", SMALL), Ranks())
    run.learner.splits = splits  # type: ignore[attr-defined]
    losses: dict[str, float] = {}
    for _ in range(3):
        losses = run.learn(run.collect())
    run.close()
    return run.learner.flat.values.detach().clone(), losses, run  # type: ignore[attr-defined]


def test_measuring_changes_no_weight_and_resumes_exactly() -> None:
    plain_weights, silent, _ = weights(False)
    measured, losses, run = weights(True)
    assert torch.equal(plain_weights, measured)
    assert "ppo/noise_scale" not in silent
    assert losses["ppo/noise_scale"] > 0
    other = TrainingState(make_config("navigation", "", [*SMALL, "seed=5"]), Ranks())
    other.learner.load_state_dict(run.learner.state_dict())
    assert torch.equal(other.learner.noise_scale.parts, run.learner.noise_scale.parts)  # type: ignore[attr-defined]
    other.close()


def test_the_halves_of_a_minibatch_have_the_gradients_that_autograd_gives() -> None:
    run = TrainingState(make_config("navigation", "", [*SMALL, "ppo.minibatch=256", "ppo.epochs=1"]), Ranks())
    learner, gradients = run.learner, list[torch.Tensor]()
    learner.splits = True  # type: ignore[attr-defined]
    step = learner._step  # type: ignore[attr-defined]

    def note(
        batch: dict[str, torch.Tensor], measures: bool = False, half: dict[str, torch.Tensor] | None = None
    ) -> None:
        for rows in (slice(0, 128), slice(128, 256)):
            learner.flat.zero_grad()  # type: ignore[attr-defined]
            learner.losses({k: v[rows] for k, v in batch.items()})[0].backward()  # type: ignore[attr-defined]
            gradients.append(learner.flat.grads.clone())  # type: ignore[attr-defined]
        step(batch, measures, half)

    learner._step = note  # type: ignore[attr-defined]
    run.learn(run.collect())
    signal, noise = plain(torch.stack(gradients).double(), 128)
    parts = learner.noise_scale.parts  # type: ignore[attr-defined]
    assert (parts[:2] / parts[2]).tolist() == pytest.approx([signal, noise], rel=1e-3)
    run.close()
