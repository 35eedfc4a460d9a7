"""NavRL's network against the spec's figures, and its loader against every kind of bad file."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from fledge.core.errors import FormatError
from fledge.tasks.navigation.networks.navrl import NavRLPolicy, load_navrl_checkpoint, navrl_key

RELEASED = Path(__file__).resolve().parents[5] / "shared" / "data" / "navrl_checkpoint.pt"
needs_released_file = pytest.mark.skipif(
    not RELEASED.is_file(), reason=f"NavRL's released checkpoint is not at {RELEASED}"
)


def observation_a() -> dict[str, torch.Tensor]:
    """Nothing around, 30 m to go, at cruise speed."""
    state = torch.tensor([[1.0, 0, 0, 30, 0, 1.76, 0, 0]])
    return {"lidar": torch.zeros(1, 1, 36, 4), "dynamic_obstacle": torch.zeros(1, 1, 5, 10), "state": state}


def observation_b() -> dict[str, torch.Tensor]:
    """A pattern that gives every input its own value."""
    lidar = torch.tensor([[((7 * i + 3 * j) % 11) / 11 for j in range(4)] for i in range(36)])
    obstacles = torch.tensor([[((3 * k + 5 * m) % 7) / 7 if k < 3 else 0.0 for m in range(10)] for k in range(5)])
    state = torch.tensor([[0.8, 0.6, 0, 12.5, -0.3, 1.2, 0.4, -0.1]])
    return {"lidar": lidar[None, None], "dynamic_obstacle": obstacles[None, None], "state": state}


def random_observations(n: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "lidar": torch.rand(n, 1, 36, 4) * 4,
        "dynamic_obstacle": torch.randn(n, 1, 5, 10),
        "state": torch.randn(n, 8),
    }


def navrl_state_dict(policy: NavRLPolicy) -> dict[str, torch.Tensor]:
    """The policy under NavRL's own key names."""
    saved = {navrl_key(ours): tensor for ours, tensor in policy.network.state_dict().items()}
    saved["value_norm.running_mean"] = policy.value_norm.mean_avg
    saved["value_norm.running_mean_sq"] = policy.value_norm.square_avg
    saved["value_norm.debiasing_term"] = policy.value_norm.weight
    return saved


def random_policy() -> NavRLPolicy:
    torch.manual_seed(1)
    policy = NavRLPolicy()
    policy.value_norm.mean_avg.fill_(2.0)
    policy.value_norm.square_avg.fill_(20.0)
    policy.value_norm.weight.fill_(0.5)
    return policy


# ---- the released weights ------------------------------------------------------------------------------------------


@needs_released_file
@pytest.mark.parametrize(
    ("observation", "alpha", "beta", "value"),
    [
        (observation_a(), (1704.66, 192.47, 151.06), (34.626, 189.96, 135.27), 551.149),
        (observation_b(), (22.998, 1.0043, 2.5390), (1.0007, 5.1077, 1.0212), 89.205),
    ],
    ids=["a", "b"],
)
def test_released_policy_gives_the_specs_values(observation: dict, alpha: tuple, beta: tuple, value: float) -> None:
    with torch.no_grad():
        got_alpha, got_beta, got_value = load_navrl_checkpoint(RELEASED)(observation)
    torch.testing.assert_close(got_alpha[0], torch.tensor(alpha), rtol=1e-4, atol=0)
    torch.testing.assert_close(got_beta[0], torch.tensor(beta), rtol=1e-4, atol=0)
    torch.testing.assert_close(got_value[0], torch.tensor(value), rtol=1e-4, atol=0)


@needs_released_file
def test_released_value_scale_is_the_specs() -> None:
    mean, std = load_navrl_checkpoint(RELEASED).value_norm.mean_std()
    assert float(mean) == pytest.approx(447.2, abs=0.05)
    assert float(std) == pytest.approx(70.4, abs=0.05)


@needs_released_file
def test_released_file_has_as_many_words_as_the_spec_says() -> None:
    saved = torch.load(RELEASED, map_location="cpu", weights_only=True)
    assert sum(t.numel() for t in saved.values()) == 177_388
    policy = load_navrl_checkpoint(RELEASED)
    loaded = sum(p.numel() for p in policy.parameters()) + sum(b.numel() for b in policy.buffers())
    assert loaded == 177_388 - 2  # all but gamma and lambda of its training
    assert float(saved["gae.gamma"]) == pytest.approx(0.99)
    assert float(saved["gae.lmbda"]) == pytest.approx(0.95)


# ---- the network ---------------------------------------------------------------------------------------------------


def test_a_policy_saved_under_navrls_names_loads_back(tmp_path: Path) -> None:
    policy, obs = random_policy(), random_observations(16)
    torch.save(navrl_state_dict(policy), tmp_path / "navrl.pt")
    loaded = load_navrl_checkpoint(tmp_path / "navrl.pt")
    assert not loaded.training
    with torch.no_grad():
        for ours, theirs in zip(policy(obs), loaded(obs), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_trunk_reads_lidar_then_obstacles_then_state() -> None:
    policy = random_policy()
    seen: list[torch.Tensor] = []
    policy.network.trunk[0].register_forward_pre_hook(lambda _module, args: seen.append(args[0]))
    obs = random_observations(4)
    policy(obs)
    network = policy.network
    torch.testing.assert_close(seen[0][:, :128], network.lidar(obs["lidar"]))
    torch.testing.assert_close(seen[0][:, 128:192], network.obstacles(obs["dynamic_obstacle"].flatten(1)))
    torch.testing.assert_close(seen[0][:, 192:], obs["state"])


def test_deterministic_action_is_the_mean_of_the_beta_distribution_and_samples_scatter_around_it() -> None:
    policy, obs = random_policy(), random_observations(1)
    alpha, beta, _ = policy(obs)
    mean = policy.act(obs)
    torch.testing.assert_close(mean, alpha / (alpha + beta))
    many = {k: v.expand(20_000, *v.shape[1:]) for k, v in obs.items()}
    samples = policy.act(many, deterministic=False)
    assert samples.min() >= 0
    assert samples.max() <= 1
    torch.testing.assert_close(samples.mean(0), mean[0], rtol=0, atol=0.01)
    expected = torch.distributions.Beta(alpha[0], beta[0]).stddev
    torch.testing.assert_close(samples.std(0), expected, rtol=0.05, atol=0)


# ---- bad files -----------------------------------------------------------------------------------------------------


class Hostile:
    """Unpickling it would create a file."""

    def __init__(self, evidence: Path) -> None:
        self.evidence = str(evidence)

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(self.evidence),)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"no checkpoint at .*nowhere\.pt"):
        load_navrl_checkpoint(tmp_path / "nowhere.pt")


@pytest.mark.parametrize("size", [0, 1, 64, 4096])
def test_random_bytes_are_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "noise.pt"
    path.write_bytes(
        torch.randint(0, 256, (size,), generator=torch.Generator().manual_seed(size)).byte().numpy().tobytes()
    )
    with pytest.raises(FormatError, match=r"noise\.pt"):
        load_navrl_checkpoint(path)


@pytest.mark.parametrize("cut", [100, 20_000, -1])
def test_a_torn_file_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "torn.pt"
    torch.save(navrl_state_dict(random_policy()), path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(FormatError, match=r"torn\.pt"):
        load_navrl_checkpoint(path)


@pytest.mark.parametrize("form", ["pickle", "torch", "inside a dict"])
def test_a_file_that_would_run_code_is_refused_and_does_not_run(tmp_path: Path, form: str) -> None:
    path, evidence = tmp_path / "hostile.pt", tmp_path / "it-ran"
    if form == "pickle":
        path.write_bytes(pickle.dumps(Hostile(evidence), protocol=2))
    else:
        torch.save(Hostile(evidence) if form == "torch" else {"critic.module.weight": Hostile(evidence)}, path)
    with pytest.raises(FormatError, match=r"hostile\.pt"):
        load_navrl_checkpoint(path)
    assert not evidence.exists()


def test_the_hostile_file_would_run_code_if_unpickled(tmp_path: Path) -> None:
    """That the test above can fail."""
    evidence = tmp_path / "it-ran"
    pickle.loads(pickle.dumps(Hostile(evidence)))
    assert evidence.exists()


@pytest.mark.parametrize("content", [[1, 2, 3], {"a": 1}, torch.zeros(3)], ids=["list", "numbers", "tensor"])
def test_something_other_than_a_dict_of_tensors_is_refused(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "other.pt")
    with pytest.raises(FormatError, match="dict of tensors"):
        load_navrl_checkpoint(tmp_path / "other.pt")


def test_another_networks_weights_are_refused_by_naming_the_missing_entry(tmp_path: Path) -> None:
    saved = navrl_state_dict(random_policy())
    del saved["critic.module.bias"]
    torch.save(saved, tmp_path / "other.pt")
    with pytest.raises(FormatError, match=r"no entry critic\.module\.bias"):
        load_navrl_checkpoint(tmp_path / "other.pt")


@pytest.mark.parametrize("key", ["running_mean", "running_mean_sq", "debiasing_term"])
def test_a_checkpoint_without_its_value_scale_is_refused(tmp_path: Path, key: str) -> None:
    saved = navrl_state_dict(random_policy())
    del saved[f"value_norm.{key}"]
    torch.save(saved, tmp_path / "unscaled.pt")
    with pytest.raises(FormatError, match=f"value_norm.{key}"):
        load_navrl_checkpoint(tmp_path / "unscaled.pt")


def test_another_lidar_size_is_refused_by_naming_both_shapes(tmp_path: Path) -> None:
    saved = navrl_state_dict(random_policy())
    saved["feature_extractor.module.0.module.7.weight"] = torch.zeros(128, 576)
    torch.save(saved, tmp_path / "wide.pt")
    with pytest.raises(FormatError, match=r"\(128, 576\).*\(128, 288\).*NavRL's LiDAR"):
        load_navrl_checkpoint(tmp_path / "wide.pt")
