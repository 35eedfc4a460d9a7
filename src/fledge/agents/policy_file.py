"""Policy files: Fledge checkpoints with the entries that are needed to use a policy.

    model     the weights
    policy    the description of the network, which the task builds
    task      reference of the task: its name, `gym:ID`, or a Python file or module (loaded only if the user names it)
    world     {"env": settings by dotted key, "decision_s": seconds per decision}: the env that the policy was trained in

Checkpoints of a run have these entries too; older ones have the run's `config` instead of `world`. A run with a
league also keeps past selves, which are earlier versions of its policy: RUN#3 means the third, the file
RUN/selves/self_3.fledge. Older runs have their past selves in the checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from fledge.agents.build import LearnedPolicy
from fledge.core.errors import ConfigError, FledgeError, FormatError
from fledge.storage import CheckpointHistory, load_checkpoint, save_checkpoint

LONGEST = 1000  # items of a list in a description, for example layers
ENTRIES = ("model", "policy", "task", "world")
STORED = ("model?", "policy?", "task?", "world?", "config?")  # paths in a checkpoint; any may be missing


def past_self_file(run: Path, number: int | str) -> Path:
    """Return the file of a past self (earlier version of the policy) of a run; they are numbered from 1."""
    return run / "selves" / f"self_{number}.fledge"


def is_past_self(path: Path) -> bool:
    """Return whether a path names a past self, such as RUN#3: it does not exist, but the folder before the # does."""
    name = path.name.rpartition("#")[0]
    return bool(name) and not path.exists() and path.with_name(name).is_dir()


def read_past_self(path: Path) -> dict[str, Any]:
    """Return the policy entries (`ENTRIES`) of a past self such as RUN#3."""
    name, _, number = path.name.rpartition("#")
    run = path.with_name(name)
    entries, history = read_policy(run), CheckpointHistory(run / "checkpoints")
    state, _ = history.load_latest(keys=("curriculum/names?", "curriculum/pilots?", "curriculum/selves?"))
    league = state.get("curriculum", {})
    selves = league.get("selves", {})
    pilots = league.get("pilots", len(league.get("names", ())) - len(selves))
    count = len(league.get("names", ())) - pilots
    if not number.isdecimal() or not 1 <= int(number) <= count:
        raise ConfigError(
            f"{path} must end in the number of an earlier policy that {run} keeps as an opponent, 1 to {count}; "
            f"got {number or 'none'}."
        )
    if (written := past_self_file(run, int(number))).exists():
        return read_policy(written)
    if (weights := selves.get(str(pilots + int(number) - 1))) is None:
        raise ConfigError(
            f"{path} is an earlier policy, but its file {written} does not exist: choose another (1 to {count})."
        )
    return {**entries, "model": weights}


def read_policy(path: Path) -> dict[str, Any]:
    """Return the policy entries (`ENTRIES`) of a run's newest checkpoint (a folder), of a past self (RUN#3), or of a file."""
    if is_past_self(path):
        return read_past_self(path)
    if path.is_dir():
        if not (path / "checkpoints").is_dir() and not (path / "config.yaml").is_file():
            raise ConfigError(f"{path} is not a run: it has no checkpoints folder.")
        history = CheckpointHistory(path / "checkpoints")
        if history.is_empty:
            raise ConfigError(f"{path} is a run without a checkpoint: `fledge train --resume {path}` starts it again.")
        state, _ = history.load_latest(keys=STORED, allow_weights_only=True)
    else:
        state = load_checkpoint(path, keys=STORED)
    return policy_entries(state, str(path))


def policy_entries(state: Any, name: str) -> dict[str, Any]:
    """Return the policy entries (`ENTRIES`) of a loaded state; raise FormatError if it holds no policy."""
    if not isinstance(state, Mapping) or not {"model", "policy", "task"} <= set(state):
        raise FormatError(
            f"{name} holds no policy: it lacks an entry 'model', 'policy' or 'task'. Pass a run or a policy file."
        )
    kinds = {"model": Mapping, "policy": Mapping, "task": str, "world": Mapping}
    found = {key: state[key] for key in ENTRIES if key in state}
    if wrong := [key for key, value in found.items() if not isinstance(value, kinds[key]) or not value]:
        raise FormatError(
            f"{name} holds no policy: its entry {wrong[0]!r} is empty or has a wrong type. Pass another file."
        )
    if "world" not in found and isinstance(state.get("config"), Mapping):
        settings = {k.removeprefix("env."): v for k, v in state["config"].items() if k.startswith("env.")}
        found["world"] = {"env": settings, "decision_s": None}
    return found


def write_policy(entries: Mapping[str, Any], path: Path) -> None:
    """Write a policy file."""
    save_checkpoint({key: entries[key] for key in ENTRIES if key in entries}, path)


def build_policy(build: Callable[[Mapping[str, Any]], LearnedPolicy], entries: Mapping[str, Any], name: str) -> Any:
    """Build the policy that a file's entries describe, and load its weights; return it in evaluation mode.

    The network is first built on the meta device, without allocating memory. Its shapes must equal those of the file's
    tensors, so a damaged description cannot allocate more memory than the file's weights take.

    Raises:
        FormatError: The network cannot be built, or the weights do not match it.
    """
    if long := [key for key, value in entries["policy"].items() if isinstance(value, list) and len(value) > LONGEST]:
        raise FormatError(
            f"The network that {name} describes cannot be built: {long[0]} has more than {LONGEST} items. "
            "Use another file."
        )
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            outline = build(entries["policy"])
    except (RuntimeError, ArithmeticError, LookupError, AttributeError, TypeError, ValueError) as error:
        if isinstance(error, FledgeError):
            raise
        raise FormatError(
            f"The network that {name} describes cannot be built: {str(error).splitlines()[0]}. Use another file."
        ) from error
    check_shapes(outline, entries["model"], name)
    return load_weights(build(entries["policy"]), entries["model"], name).eval()


def check_shapes(policy: LearnedPolicy, model: Mapping[str, Any], name: str) -> None:
    """Raise FormatError unless weights have the names and shapes of a policy's parameters and buffers."""
    own = policy.state_dict()
    wrong = [f"the file has no {key}" for key in own if key not in model]
    wrong += [f"the network has no {key}" for key in model if key not in own]
    wrong += [f"{key} is not a tensor" for key in own if not isinstance(model.get(key, own[key]), torch.Tensor)]
    wrong += [
        f"{key} is {tuple(model[key].shape)} in the file, but {tuple(value.shape)} in the network"
        for key, value in own.items()
        if isinstance(model.get(key), torch.Tensor) and tuple(model[key].shape) != tuple(value.shape)
    ]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise FormatError(f"The weights in {name} do not match its network: {wrong[0]}{more}. Use another file.")


def load_weights(policy: LearnedPolicy, model: Mapping[str, Any], name: str) -> LearnedPolicy:
    """Load weights into a policy; raise FormatError if they do not match its network or contain NaN."""
    check_shapes(policy, model, name)
    own = policy.state_dict()
    if spoiled := [key for key in own if own[key].is_floating_point() and bool(model[key].isnan().any())]:
        raise FormatError(f"The weights in {name} contain NaN (in {spoiled[0]}): use an earlier checkpoint.")
    policy.load_state_dict(model)
    return policy
