"""Collectors of a training run, and the learner's side of actors on other machines (`actors.listen`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fledge.agents.actor_critic import ActorCritic
from fledge.agents.build import LearnedPolicy
from fledge.collect.base import Collector
from fledge.collect.compressed import CompressedDataCollector
from fledge.collect.config import CollectConfig, CollectMode
from fledge.collect.experience import ExperienceCollector
from fledge.collect.halves import HalvesDataCollector
from fledge.collect.pipelined import PipelinedDataCollector
from fledge.collect.remote import RemoteCollector
from fledge.collect.sync import SyncDataCollector
from fledge.core.errors import ConfigError
from fledge.envs.base import TensorEnv
from fledge.learn.base import Learner
from fledge.learn.off_policy import OffPolicy
from fledge.storage.exchange import make_token, read_token, split_address
from fledge.storage.exchange_server import ExchangeServer
from fledge.tasks.base import Task
from fledge.training.config import TrainConfig


def make_collector(
    task: Task, cfg: TrainConfig, envs: Sequence[TensorEnv], policy: LearnedPolicy, learner: Learner
) -> Collector:
    """Make the collector that gathers experience for a learner."""
    if isinstance(learner, OffPolicy):
        return ExperienceCollector(envs[0], learner.explore, cfg.steps)
    assert isinstance(policy, ActorCritic)
    frames = sum(env.num_envs for env in envs) * cfg.steps
    kind = HalvesDataCollector if cfg.collect.mode is CollectMode.halves else SyncDataCollector
    collector: Any = kind(envs, policy, frames)
    if cfg.actors.listen:
        own = collector.num_envs if cfg.actors.local_share else 0
        return RemoteCollector(collector, cfg.env.num_envs, own, cfg.actors.max_lag, 60 * cfg.actors.wait_minutes)
    if cfg.collect.mode is CollectMode.pipelined:
        collector = PipelinedDataCollector(collector)
    level = cfg.collect.compression_level
    return CompressedDataCollector(collector, level) if level else collector


def local_envs(task: Task, cfg: TrainConfig) -> int:
    """Return the number of envs to make here: all of them, or with actors the local share, at least the rows of an episode."""
    if not cfg.actors.listen:
        return int(cfg.env.num_envs)
    rows = task.match.rows(cfg.env)
    return max(int(cfg.env.num_envs * cfg.actors.local_share) // rows, 1) * rows


def check_actors(task: Task, cfg: TrainConfig, ranks: int) -> None:
    """Raise ConfigError if the config listens for actors, but cannot learn from them."""
    if not cfg.actors.listen:
        return
    split_address(cfg.actors.listen)
    if cfg.actors.token_file:
        read_token(cfg.actors.token_file)
    if cfg.off_policy or not cfg.learner.corrects_stale:
        raise ConfigError(
            f"actors.listen needs an algorithm that corrects for older weights, such as ppo, but algo={cfg.algo}: change "
            "algo, or leave actors.listen out."
        )
    if ranks > 1:
        raise ConfigError(f"actors.listen works with one rank, but there are {ranks}: set ranks=1.")
    if cfg.auto:
        raise ConfigError(
            f"actors.listen does not work with {cfg.auto[0]}=auto, as actors are not measured: leave one of them out."
        )
    if cfg.collect != CollectConfig():
        raise ConfigError(
            "actors.listen does not work with collect.mode or collect.compression_level: leave these out."
        )
    if cfg.league.ladder:
        raise ConfigError("actors.listen does not work with league.ladder: leave one of them out.")
    if local_envs(task, cfg) >= cfg.env.num_envs:
        raise ConfigError(
            f"actors.local_share={cfg.actors.local_share} of env.num_envs={cfg.env.num_envs} leaves nothing to actors: lower "
            "actors.local_share, or raise env.num_envs."
        )


def listen(collector: RemoteCollector, task: Task, cfg: TrainConfig, folder: Path, say: Callable[[str], None]) -> None:
    """Begin to listen for actors, and say how to start one."""
    path = Path(cfg.actors.token_file or folder / "actors.token")
    token = read_token(path) if cfg.actors.token_file else make_token(path)
    job = {
        "config": OmegaConf.to_yaml(OmegaConf.structured(cfg)),
        "run": folder.name,
        "envs": cfg.env.num_envs - collector.local_envs,
        "rows": task.match.rows(cfg.env),
        "entries": list(collector.entries),
    }

    def join(note: Mapping[str, Any]) -> dict[str, Any]:
        used = {each["number"] for each in server.clients}
        return {**job, "number": collector.give_number(note.get("number"), used)}

    server = ExchangeServer(
        cfg.actors.listen,
        token,
        join,
        collector.accept,
        collector.has_room,
        collector.max_body,
        lambda line: say(f"actors: {line}"),
    )
    collector.server, collector.say = server, say
    say(f"Listening for actors. On other machines: fledge actor --learner {server.address} --token-file {path}")
