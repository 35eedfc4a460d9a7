"""The air-combat task: what the rest of the house may ask about duels."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fledge.agents import build
from fledge.agents.base import Action, BaseAgent
from fledge.agents.build import LearnedPolicy
from fledge.core.code import find_object
from fledge.core.errors import ConfigError
from fledge.core.random import Purpose, derive_seed
from fledge.envs.base import TensorEnv
from fledge.envs.opponent_wrapper import OpponentWrapper
from fledge.tasks.aircombat.config import AircombatConfig, AircombatPolicyConfig, Scenario
from fledge.tasks.aircombat.env import AircombatEnv
from fledge.tasks.aircombat.match_stats import MERGE_M, DuelStats, figures_of
from fledge.tasks.aircombat.pilots import OTHER_NAMES, PILOTS, make_pilot
from fledge.tasks.aircombat.policy import build_duel_policy, describe_duel_policy
from fledge.tasks.aircombat.rewards import BaseReward, create_reward
from fledge.tasks.aircombat.spacetime.along import physics_settings
from fledge.tasks.aircombat.view import controls as cockpit
from fledge.tasks.aircombat.view.loss_reason import explain_loss
from fledge.tasks.aircombat.view.stage import fight_instruments, with_energy
from fledge.tasks.base import LossReason, Task, Trajectory
from fledge.tasks.match import MatchStats
from fledge.tasks.view.controls import Control
from fledge.tasks.view.objects import SceneObject
from fledge.tasks.view.stage import Instrument, Stage

HERE = Path(__file__).parent
CLASSES = tuple(kind.value for kind in Scenario if kind is not Scenario.mixed)
EVAL_DUELS = 512


def duel_of(env: TensorEnv) -> AircombatEnv:
    """The duels behind an env, both sides."""
    world = env.unwrapped
    duel = world.both if isinstance(world, OpponentWrapper) else world
    assert isinstance(duel, AircombatEnv)
    return duel


class AircombatTask(Task):
    """Two fighters with guided missiles."""

    name = "aircombat"
    config = AircombatConfig
    policy_config = AircombatPolicyConfig
    presets = HERE / "presets"
    policies = HERE / "policies"
    page = HERE / "view" / "page"
    primary_metric = "win"
    sides = 2
    classes = CLASSES
    unit = "duels"
    labels = {"win": "win", "loss": "loss", "draw": "both die", "spent": "spent", "timeout": "time"}
    behaviours = {
        "shots": "shots",
        "outside_r_max": "shots outside R_max, %",
        "shots_per_kill": "shots per kill",
        "first_shot_s": "first shot, s",
        "merge_speed": "merge, m/s",
        "merge_lead": "lead, kJ/kg",
        "survived": "survived, %",
    }
    key_metrics = ("outside_r_max", "shots_per_kill")
    behaviour_legend = (
        "Outside R_max: share of the shots that a target could outlast by keeping its course. First shot: seconds into the "
        f"fight. Merge: the first decision within {MERGE_M / 1000:.0f} km, where they began farther apart; speed there, and "
        "specific energy (v²/2, as there is no altitude) more than the enemy's."
    )
    training = {"env": {"opponent": "pursuit"}}
    aliases = {
        # midrangeRL's names for our settings
        "agent": "algo",
        "opponent": "env.opponent",
        "reward": "env.reward",
        "num_envs": "env.num_envs",
        "time_scale": "env.time_scale",
        "max_steps": "total_frames * env.num_envs",  # there a step is one of all envs
        "episode_max_steps": "env.max_episode_s * env.time_scale / 60",  # there a step lasts time_scale / 60 s
        "lr": "ppo.lr",
        "learning_rate": "ppo.lr",
        "n_steps": "ppo.rollout_steps",
        "batch_size": "ppo.minibatch",
        "n_epochs": "ppo.epochs",
        "gamma": "ppo.gamma",
        "gae_lambda": "ppo.gae_lambda",
        "clip_epsilon": "ppo.clip",
        "value_loss_coef": "ppo.value_coef",
        "entropy_coef": "ppo.entropy_coef",
        "verbose": "",  # every fight is counted in the log
        "render": "",  # there is no window
    }
    faces = {"TensorEnv": "fledge.compat.midrange.env:MidrangeEnv"}

    def make_env(
        self,
        cfg: AircombatConfig,
        *,
        device: str = "cpu",
        seed: int = 0,
        num_threads: int | None = None,
        env_offset: int = 0,
        total_envs: int | None = None,
        rank: int = 0,
        held_out: bool = False,
    ) -> TensorEnv:
        """Against `cfg.opponent`, or in self-play."""
        if held_out:
            seed = derive_seed(seed, Purpose.HELD_OUT)
        if not cfg.opponent:
            return AircombatEnv(cfg, device, seed, num_threads, env_offset, total_envs)
        rows, total = dataclasses.replace(cfg, num_envs=2 * cfg.num_envs), 2 * (total_envs or cfg.num_envs)
        opponent = self.make_opponent(cfg.opponent, cfg.num_envs).to(device)
        both = AircombatEnv(rows, device, seed, num_threads, 2 * env_offset, total)
        try:
            self.check_fit(opponent, both)
        except ConfigError:
            both.close()
            raise
        return OpponentWrapper(both, [opponent], env_offset=env_offset)

    def with_reward(self, cfg: AircombatConfig, reference: str) -> AircombatConfig | None:
        """One that pays by a BaseReward."""
        found = find_object(reference)
        if not (isinstance(found, type) and issubclass(found, BaseReward)):
            return None
        create_reward(reference)  # refuses one that cannot be made
        return dataclasses.replace(cfg, reward=reference)

    def make_opponent(self, name: str, num_envs: int) -> BaseAgent:
        """A pilot by name, a shipped policy, or the one in a file."""
        return self.find_agent(name) or make_pilot(name, num_envs)

    def describe_policy(self, algo: str, env: AircombatConfig, policy: AircombatPolicyConfig) -> dict[str, Any]:
        """The duel's own network for PPO, general ones for learning from replay."""
        observation, action = self.specs(dataclasses.replace(env, opponent="placeholder"))
        if algo != "ppo":
            return build.describe(algo, observation, action, policy.hidden)
        return describe_duel_policy(env.missile.carried, env.spacetime and policy.spacetime, action, policy)

    def build_policy(self, description: Mapping[str, Any]) -> LearnedPolicy:
        return (
            build_duel_policy(description) if description.get("kind") == "duel" else super().build_policy(description)
        )

    def evaluation(self, cfg: AircombatConfig) -> AircombatConfig:
        """The same world, against the same opponent."""
        return dataclasses.replace(cfg, num_envs=EVAL_DUELS * (1 if cfg.opponent else 2))

    def matches(self, cfg: AircombatConfig, count: int) -> AircombatConfig:
        return dataclasses.replace(cfg, num_envs=2 * count, opponent="")

    def world_facts(self, cfg: AircombatConfig) -> dict[str, Any]:
        return {"scenario": cfg.scenario.value, "opponent": cfg.opponent or "self-play"}

    def world_label(self, cfg: AircombatConfig) -> str:
        return f"{cfg.scenario.value} vs {cfg.opponent}" if cfg.opponent else cfg.scenario.value

    def pilots(self) -> Mapping[str, Callable[[], BaseAgent]]:
        return {name: functools.partial(make_pilot, name) for name in PILOTS}

    def find_pilot(self, name: str) -> BaseAgent | None:
        return make_pilot(name) if name.partition("(")[0].strip() in {*PILOTS, *OTHER_NAMES} else None

    # ---- judging and showing ---------------------------------------------------------------------------------------

    def classify(self, env: TensorEnv) -> Tensor:
        """By how the fight began."""
        duel = duel_of(env)
        names = list(Scenario)
        index = torch.tensor([CLASSES.index(kind.value) if kind.value in CLASSES else 0 for kind in names])
        kinds = index[duel.state["kind"].cpu().long()]
        return kinds.repeat_interleave(env.num_envs // duel.num_duels)

    def match_stats(self, env: TensorEnv) -> MatchStats:
        return DuelStats(duel_of(env))

    def behaviour(self, notes: Mapping[str, np.ndarray]) -> dict[str, float | None]:
        return figures_of(notes)

    def scene(self, env: TensorEnv, ids: Sequence[int]) -> list[dict[str, Any]]:
        """How the fight began, the kill radius, and where the physics are not the usual ones."""
        duel = duel_of(env)
        per = env.num_envs // duel.num_duels
        kinds, names = duel.state["kind"].cpu().tolist(), list(Scenario)
        world: dict[str, Any] = {"kill_radius_m": duel.cfg.missile.kill_radius_m}
        world |= {"physics": changed} if (changed := physics_settings(duel.cfg)) else {}
        return [{"scenario": names[kinds[i // per]].value, **world} for i in ids]

    def snapshot(self, env: TensorEnv, ids: Sequence[int]) -> dict[str, np.ndarray]:
        """Both fighters and all missiles of some rows' duels, the row's own side first: [n, 2, ...], missiles [n, 2, S, ...].

        m, rad, m/s, s.
        """
        duel = duel_of(env)
        n = duel.num_duels
        world = env.unwrapped
        rows = world.mine.cpu()[list(ids)] if isinstance(world, OpponentWrapper) else torch.tensor(list(ids))
        duels, seats = rows // 2, torch.stack([rows % 2, 1 - rows % 2], dim=1)
        s = {name: value.cpu() for name, value in duel.state.items()}

        def sides(name: str) -> Tensor:
            return s[name].view(n, 2, *s[name].shape[1:])[duels[:, None], seats]

        def heading(name: str) -> Tensor:
            return torch.atan2(sides(name)[..., 1], sides(name)[..., 0])

        seen = {
            "pos": sides("pos"),
            "heading": heading("dir"),
            "speed": sides("speed"),
            "alive": sides("alive") > 0,
            "missile_pos": sides("m_pos"),
            "missile_heading": heading("m_dir"),
            "missile_speed": sides("m_speed"),
            "missile_motor_s": sides("m_burn"),
            "missile_alive": sides("m_flying") > 0,
            "missiles_left": duel.cfg.missile.carried - sides("fired"),
            "rudder": sides("rudder"),
            "time_s": s["time"][duels],
        }
        return {name: value.numpy() for name, value in seen.items()}

    def objects(self, track: Trajectory) -> list[SceneObject]:
        """Fighters, and missiles with their energy; who died is destroyed at the end."""
        found = super().objects(with_energy(track))
        lost = {"win": (1,), "loss": (0,), "draw": (0, 1)}.get(track.outcome, ())
        for side in (0, 1):
            found[side].name, found[side].destroyed = ("blue", "red")[side], side in lost
        return found

    def stage(self, scene: Mapping[str, Any]) -> Stage:
        return Stage(flat=True)

    def instruments(self, track: Trajectory) -> list[Instrument]:
        return fight_instruments(track)

    def draw(self, tracks: Sequence[Trajectory], title: str = "") -> Any:
        from fledge.tasks.aircombat.view.picture import fights_figure  # Matplotlib takes a while to load

        return fights_figure(tracks, title)

    def draw_closely(self, track: Trajectory, title: str = "") -> Any:
        from fledge.tasks.aircombat.view.picture import fight_figure

        return fight_figure(track, title)

    def explain(self, track: Trajectory, side: int = 0) -> LossReason | None:
        return explain_loss(track, side)

    def controls(self, env: TensorEnv) -> Sequence[Control]:
        return cockpit.CONTROLS

    def command(self, env: TensorEnv, values: Mapping[str, float]) -> Action:
        return cockpit.command_duel(duel_of(env).cfg, values)

    def hold(self, env: TensorEnv, action: Action) -> Action:
        return cockpit.hold_duel(action)

    def graph(self, cfg: AircombatConfig, frame: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """The space-time graph (`spacetime/moment.py`)."""
        return cockpit.graph_duel(cfg, frame)
