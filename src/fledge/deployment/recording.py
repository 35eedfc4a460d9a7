"""Record flights of a policy for golden sequences: observations, and readings where the task has them."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from typing import Any

import numpy as np

from fledge.core.errors import FledgeError
from fledge.envs.placement import EnvPlacement
from fledge.tasks.policy_loader import LoadedPolicy, check_fit
from fledge.tasks.robot import Readings

SEQUENCES = 64
LONG = 4  # of them are longer, by this factor too
ROWS = 96
WARM_UP = 60  # decisions before the recording, so that flights from readings are among obstacles
RAYS_PER_DECISION = 4000  # rays of a scan times decisions of a sequence, about: keeps the file small
LENGTHS = 5, 24  # fewest and most decisions of a short sequence
SEED = 1


@dataclasses.dataclass
class Moment:
    """One decision of all rows of an env."""

    obs: dict[str, np.ndarray]  # [N, ...]
    readings: Readings | None
    begins: np.ndarray  # [N] bool: first decision of an episode


def short_length(contract: dict[str, Any]) -> int:
    """Return the decisions of a short golden sequence."""
    sizes = [int(np.prod(told["shape"])) for told in contract["observation"].values()]
    return int(np.clip(RAYS_PER_DECISION // max(sizes), *LENGTHS))


def record(policy: LoadedPolicy, cfg: Any, from_readings: bool, length: int) -> list[Moment]:
    """Fly the policy in held-out envs and return `length` consecutive decisions of all rows."""
    task, agent, rows = policy.task, policy.agent, max(ROWS, policy.task.match.rows(cfg))
    cfg = task.policy.robot.recording_config(cfg) if from_readings else cfg
    made = task.make_env(
        dataclasses.replace(cfg, num_envs=rows - rows % task.match.rows(cfg)), EnvPlacement(seed=SEED, held_out=True)
    )
    moments: list[Moment] = []
    with contextlib.closing(made) as env:
        check_fit(agent, env)
        out, names = env.reset(), [*agent.observes]
        agent.reset()
        begins = np.ones(len(out["obs"][names[0]]) if names else 0, bool)
        for step in range((WARM_UP if from_readings else 0) + length):
            if step >= WARM_UP or not from_readings:
                # every observation, so that the runtime's can be compared with the simulator's
                obs = {name: value.cpu().numpy().copy() for name, value in out["obs"].items()}
                moments.append(Moment(obs, task.policy.robot.read(env, out["obs"]) if from_readings else None, begins))
            out = env.step(agent.act(out["obs"]))
            ended = out["terminated"] | out["truncated"]
            agent.reset(ended)
            begins = ended.cpu().numpy().copy()
    return moments


def choose_sequences(moments: list[Moment], short: int) -> list[tuple[int, range]]:
    """Return (row, moments) of SEQUENCES stretches of flight without the end of an episode, the first LONG of them long."""
    ends = np.stack([moment.begins for moment in moments])  # [T, N]
    ends[0] = False
    total, rows = ends.shape
    whole = [row for row in range(rows) if not ends[:, row].any()][:LONG]
    chosen = [(row, range(total)) for row in whole]
    pieces = []
    for row in (row for row in range(rows) if row not in whole):
        cuts = [0, *np.flatnonzero(ends[:, row]).tolist(), total]
        for first, last in itertools.pairwise(cuts):
            pieces += [(row, range(k, min(k + short, last))) for k in range(first, last, short)]
    pieces.sort(key=lambda piece: (piece[1].start // short, -len(piece[1])))  # many flights before many parts of one
    chosen += pieces[: SEQUENCES - len(chosen)]
    if len(chosen) < SEQUENCES:
        raise FledgeError(f"Only {len(chosen)} sequences could be recorded, of {SEQUENCES}.")
    return chosen
