"""Sampling of discrete actions without a wait for the device."""

import torch

from fledge.agents.distributions import sample_index


def test_it_is_multinomial_number_for_number_and_leaves_the_same_random_state() -> None:
    for seed in range(20):
        torch.manual_seed(seed)
        weights = torch.rand(257, 6) * (torch.rand(257, 6) > 0.3) + torch.eye(6)[seed % 6] * 1e-3
        start = torch.get_rng_state()
        want = torch.multinomial(weights, 1).squeeze(-1)
        after = torch.get_rng_state()
        torch.set_rng_state(start)
        assert torch.equal(sample_index(weights), want)
        assert torch.equal(torch.get_rng_state(), after)


def test_a_masked_choice_is_never_drawn_and_nan_gives_an_index_in_range() -> None:
    weights = torch.tensor([[0.0, 1.0, 0.0, 2.0]]).expand(1000, -1)
    assert set(sample_index(weights).tolist()) == {1, 3}
    assert all(0 <= index < 4 for index in sample_index(torch.full((5, 4), torch.nan)).tolist())
