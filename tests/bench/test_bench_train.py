"""The training benchmark compares results before it times anything."""

import pytest
import torch

from fledge.bench import train as bench
from fledge.core.errors import FledgeError
from fledge.tasks.navigation.navrl_actor_critic import NavRLActorCritic

pytest.importorskip("torchrl")


def test_both_designs_compute_the_same_outputs_and_loss() -> None:
    agreement = bench.check_agreement(seed=0)
    assert agreement["network_max_difference"] < 1e-5
    assert agreement["loss_fledge"] == pytest.approx(agreement["loss_prior"], rel=1e-3)


def test_a_wrong_network_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = NavRLActorCritic.from_navrl

    def wrong(policy: object) -> NavRLActorCritic:
        twin = right(policy)  # type: ignore[arg-type]
        with torch.no_grad():
            twin.lidar.linear.weight.mul_(1.01)
        return twin

    monkeypatch.setattr(NavRLActorCritic, "from_navrl", wrong)
    with pytest.raises(FledgeError, match="disagree"):
        bench.check_agreement(seed=0)


def test_the_tables_show_the_ratio() -> None:
    loop = {"frames_per_second": 2e4, "p10": 1e4, "p90": 3e4, "collect_s": 1.0, "learn_s": 2.0, "ranks": 2}
    loop["shares"] = {"simulate": 0.2, "act": 0.1, "learn": 0.7}
    result = {"num_envs": 8, "fledge": loop, "prior": loop, "fast": loop, "ratio": 2.5, "ratio_collect": 3.0}
    result |= {"ratio_learn": 2.2, "matmul_peak_gflops": 300.0, "update_share_of_peak": {"fledge": 0.2, "prior": 0.1}}
    text = [line for line in bench.render(result) if isinstance(line, str)]
    assert any("2.50" in line for line in text)
