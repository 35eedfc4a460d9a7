"""Size of a model, counted by hand, and names of its checkpoints."""

from __future__ import annotations

import pytest
import torch

from fledge.core.errors import InputError
from fledge.monitor import format_checkpoint_name, get_model_size, print_model_info


def model() -> torch.nn.Module:
    made = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    made[0].bias.requires_grad_(False)
    return made


def test_size_counts_parameters_buffers_and_bytes() -> None:
    size = get_model_size(model())
    assert size["parameters"] == 3 * 4 + 4 + 4 + 4
    assert size["trainable"] == 3 * 4 + 4 + 4
    assert size["buffers"] == 4 + 4 + 1
    assert size["bytes"] == 4 * (24 + 8) + 8
    assert size["megabytes"] == size["bytes"] / 1e6


def test_info_lists_the_children(capsys: pytest.CaptureFixture[str]) -> None:
    text = print_model_info(model(), name="policy")
    assert capsys.readouterr().out == text + "\n"
    assert text.splitlines()[0] == "policy: 24 parameters (20 trainable), 9 buffer values, 0.00 MB"
    assert "0 (Linear): 16" in text


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"iteration": 1000}, "checkpoint_1000.pt"),
        ({"iteration": "final"}, "checkpoint_final.pt"),
        ({"iteration": 7, "prefix": "best", "extension": ".fledge", "width": 6}, "best_000007.fledge"),
    ],
)
def test_checkpoint_names(arguments: dict[str, object], name: str) -> None:
    assert format_checkpoint_name(**arguments) == name  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [-1, "", "../x"])
def test_a_name_that_is_no_file_name_is_refused(bad: int | str) -> None:
    with pytest.raises(InputError, match="iteration"):
        format_checkpoint_name(bad)
