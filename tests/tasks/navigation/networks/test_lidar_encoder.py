"""The LiDAR encoder, natively in training and folded otherwise, is NavRL's three Conv2d, forward and backward."""

import pytest
import torch
from torch import Tensor, nn

from fledge.tasks.navigation.networks.lidar_encoder import LidarEncoder
from fledge.tasks.navigation.networks.navrl import NavRLActorCritic, NavRLNetwork, NavRLPolicy


def make_pair() -> tuple[NavRLPolicy, NavRLActorCritic, dict[str, Tensor]]:
    torch.manual_seed(0)
    published = NavRLPolicy()
    obs = {
        "lidar": torch.rand(257, 1, 36, 4) * 4,
        "dynamic_obstacle": torch.randn(257, 1, 5, 10),
        "state": torch.randn(257, 8),
    }
    return published, NavRLActorCritic.from_navrl(published), obs


def test_outputs_equal_conv2d_to_1e_5() -> None:
    published, folded, obs = make_pair()
    alpha, beta, value = published.network(obs)
    (alpha2, beta2), value2 = folded(folded.encode(obs))
    for a, b in ((alpha, alpha2), (beta, beta2), (value, value2)):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_gradients_equal_conv2d() -> None:
    published, folded, obs = make_pair()
    weights = torch.randn(257, 3)
    alpha, _, value = published.network(obs)
    ((alpha * weights).sum() + value.square().sum()).backward()
    (alpha2, _), value2 = folded(folded.encode(obs))
    ((alpha2 * weights).sum() + value2.square().sum()).backward()
    net = published.network
    pairs = list(zip(folded.lidar.convs, (net.lidar[0], net.lidar[2], net.lidar[4]), strict=True))
    pairs += [(folded.lidar.linear, net.lidar[7]), (folded.trunk[0], net.trunk[0])]
    for ours, theirs in pairs:
        for name in ("weight", "bias"):
            a, b = getattr(ours, name).grad, getattr(theirs, name).grad
            assert float((a - b).abs().max() / b.abs().max()) < 1e-4, name


def test_the_input_gradient_is_right_too() -> None:
    published, folded, obs = make_pair()
    a = obs["lidar"].clone().requires_grad_()
    b = obs["lidar"].flatten(1).clone().requires_grad_()
    published.network.lidar(a).square().sum().backward()
    folded.lidar(b).square().sum().backward()
    assert a.grad is not None
    assert b.grad is not None
    torch.testing.assert_close(a.grad.flatten(1), b.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("batch", [1, 2, 1000])
def test_any_batch_size_works(batch: int) -> None:
    _, folded, _ = make_pair()
    assert folded.lidar(torch.rand(batch, 144)).shape == (batch, 128)


def conv2d_encoder(encoder: LidarEncoder) -> nn.Sequential:
    """Return NavRL's own layers in float64 with the encoder's weights."""
    plain = NavRLNetwork().lidar
    for ours, theirs in zip(encoder.parameters(), plain.parameters(), strict=True):
        theirs.data.copy_(ours.data)
    return plain.double()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("batch", [1, 3, 257])
def test_outputs_and_gradients_equal_conv2d_in_float64(training: bool, batch: int) -> None:
    torch.manual_seed(batch)
    encoder = LidarEncoder().train(training)
    for p in encoder.parameters():
        p.data.mul_(2.0)  # far into both branches of ELU
    plain = conv2d_encoder(encoder)
    rows = 4.0 * torch.randn(batch, 202)  # columns of a wider input, as in training
    weights = torch.randn(batch, 128)
    ours, theirs = encoder(rows[:, 7:151]), plain(rows[:, 7:151].reshape(batch, 1, 36, 4).double())
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=2e-5)
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    for (name, a), b in zip(encoder.named_parameters(), plain.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert float((a.grad - b.grad).abs().max()) < 2e-5 * float(b.grad.abs().max()), name


def test_native_code_runs_in_training_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from fledge.tasks.navigation.networks import lidar_native

    calls: list[int] = []
    right = lidar_native.wp.launch
    monkeypatch.setattr(lidar_native.wp, "launch", lambda *args, **more: (calls.append(1), right(*args, **more)))
    encoder, x = LidarEncoder(), torch.rand(5, 144)
    encoder(x).sum().backward()
    assert len(calls) == 2
    with torch.no_grad():  # as a collector does, with buffers for one sample
        torch.testing.assert_close(encoder(x), encoder.eval()(x), rtol=1e-5, atol=1e-5)
    assert len(calls) == 3
    encoder.train()(x.double().float().requires_grad_()).sum().backward()  # only the folded products have this gradient
    assert len(calls) == 3


def test_nan_stays_nan_in_training_too() -> None:
    torch.manual_seed(0)
    encoder = LidarEncoder()
    lidar = torch.rand(5, 144)
    lidar[2, 70] = torch.nan
    out = encoder(lidar)
    assert (
        out.isnan().any(1).tolist()
        == encoder.eval()(lidar).isnan().any(1).tolist()
        == [False, False, True, False, False]
    )


@pytest.mark.parametrize("width", [100, 143])
def test_scans_of_another_size_are_refused(width: int) -> None:
    with pytest.raises(RuntimeError):
        LidarEncoder()(torch.rand(3, width))
