"""`fledge train`: from words to a run."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from fledge.agents.build import build_from_description
from fledge.core.errors import ConfigError
from fledge.core.overrides import build_config, preset_names
from fledge.evaluate.policies import load_policy_state
from fledge.train.algorithms import describe_policy
from fledge.train.config import CollectMode, TrainConfig
from fledge.train.loop import read_run_config, train
from fledge.train.ranks import default_ranks, joined_ranks
from fledge.train.run import flat_settings, refuse_misfits


def run_training(
    tasks: list[str], preset: str | None, overrides: list[str], folder: Path | None, resume: Path | None
) -> dict[str, Any] | None:
    """Train, starting as many ranks as the config wants. Returns the last metrics on rank 0, None on others."""
    if len(tasks) > 1 or (tasks and tasks[0] != "navigation"):
        raise ConfigError(f"{tasks[-1]!r} is not a task: there is navigation. Settings are written key=value.")
    if resume is not None and folder is not None:
        raise ConfigError("Give --folder for a new run or --resume for an old one, not both.")
    if resume is not None:
        folder, cfg = resume, read_run_config(resume, overrides)
        refuse_misfits(flat_settings(read_run_config(resume, [])), flat_settings(cfg))
    else:
        preset = preset or default_preset(overrides)
        cfg = build_config(TrainConfig, [("train", preset)], overrides)
        folder = folder or Path("runs") / time.strftime("%Y%m%d-%H%M%S")
        if (folder / "config.yaml").exists() and "RANK" not in os.environ:
            raise ConfigError(
                f"{folder} already holds a run: --resume {folder} continues it, or choose another --folder."
            )
    size = int(os.environ.get("WORLD_SIZE", 0)) or cfg.ranks or default_ranks(cfg.device)
    check_before_start(cfg, size)
    mode = ["--resume", str(folder)] if resume is not None else ["--preset", str(preset), "--folder", str(folder)]
    child = ["-m", "fledge.cli", "train", *tasks, *overrides, *mode]
    with joined_ranks(size, cfg.device, child) as ranks:
        if ranks.is_first:
            print(f"run: {folder}  ({ranks.size} ranks, {cfg.env.num_envs} drones)", file=sys.stderr)
        metrics = train(cfg, folder, ranks, resume=resume is not None)
    return {"run": str(folder), **metrics} if ranks.is_first else None


def default_preset(overrides: list[str]) -> str:
    """The preset of the algorithm that the overrides name; PPO's is `fast`."""
    algo = next((word.partition("=")[2].strip() for word in overrides if word.startswith("algo=")), "ppo")
    return algo if algo in preset_names("train") else "fast"


def check_before_start(cfg: TrainConfig, ranks: int) -> None:
    """Refuse what would only fail once every rank has started."""
    cfg.validate()
    if cfg.env.num_envs % ranks:
        raise ConfigError(
            f"env.num_envs is {cfg.env.num_envs}, but must be a multiple of the {ranks} ranks: "
            f"take {cfg.env.num_envs // ranks * ranks or ranks}, or set ranks."
        )
    if cfg.collect.mode is CollectMode.halves and cfg.env.num_envs // ranks % 2:
        raise ConfigError(f"collect.mode=halves needs an even number of drones on each of the {ranks} ranks.")
    build_from_description(describe_policy(cfg))
    if cfg.init_from:
        load_policy_state(cfg.init_from)
    if cfg.device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError("device=cuda, but PyTorch sees no CUDA device here: use device=cpu.")
    if cfg.device not in ("cpu", "cuda") and not cfg.device.startswith("cuda:"):
        raise ConfigError(f"device is {cfg.device!r}, but must be cpu or cuda.")
