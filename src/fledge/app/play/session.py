"""Simulate a fight in real time, with a history that can be rewound and continued from any moment.

    fight = Fight(task, cfg, [Seat("you"), Seat("crank", agent)], seed=7)
    fight.hands[0].put({"rudder": 1.0})      set a person's controls
    fight.advance(0.05)                      simulate 0.05 s of real time

A tick lasts `tick_s` seconds if the env can simulate such short steps (`env.step(dt=...)`), else as long as a decision of the
env. Agents decide at their own rate, and their command is held in between (`TaskView.hold`); people act in every tick.

Every command is logged, and the complete state is saved every few ticks: physics, observations, agents' memories. A moment is
restored by simulating the log from the last saved state on, so the same seed and commands give the same fight bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fledge.agents.base import Action
from fledge.app.play.fight_state import Checkpoint, Ending, Hands, Layout, Seat
from fledge.core.errors import ConfigError, InputError
from fledge.core.settings import flat_settings
from fledge.envs.base import TensorEnv, make_action_buffer, write_action
from fledge.envs.placement import EnvPlacement
from fledge.storage.recordings.writer import RecordingWriter
from fledge.tasks.base import Task
from fledge.tasks.policy_loader import check_fit

TICK_S = 0.05
KEY_EVERY = 20  # ticks between saved states
MAX_KEYS = 1024  # saved states; if there are more, every second one is dropped
MAX_HISTORY_BYTES = 64 * 2**20  # of frames; if there are more, the first half is dropped
SPEEDS = (0.1, 4.0)
MAX_LAG_S = 0.25  # largest delay that a slow simulation makes up for; the rest is skipped


class Fight:
    """One episode of a task, simulated tick by tick.

    Args:
        task: A task with two sides.
        cfg: Env config of the task; `num_envs` is set here.
        seats: The agent or person that flies each side.
        seed: Seed of the initial state.
        tick_s: Simulated seconds of a tick.
    """

    def __init__(self, task: Task, cfg: Any, seats: Sequence[Seat], seed: int = 0, tick_s: float = TICK_S) -> None:
        if len(seats) != task.match.sides:
            raise ConfigError(
                f"{task.name} has {task.match.sides} sides, but got {len(seats)} seats: pass one for each side."
            )
        self.task, self.wanted_tick_s, self.seats = task, tick_s, list(seats)
        self.speed, self.paused = 1.0, False
        self.cuts: list[int] = []
        """For each branch, the last tick that it shares with the branch before it; -1 for none."""
        self.closed = False
        self.env: TensorEnv
        self.cfg, self.seed = cfg, seed
        self.restart()

    @property
    def branch(self) -> int:
        """Return how many times the fight was started or rewound: the number of its present branch."""
        return len(self.cuts)

    # ---- start and end -----------------------------------------------------------------------------------------------

    def restart(self, cfg: Any = None, seed: int | None = None) -> None:
        """Start the fight again, with another env config or seed if given; the pilots stay."""
        cfg, seed = self.cfg if cfg is None else cfg, self.seed if seed is None else seed
        env = self.task.make_env(self.task.match.match_config(cfg, 1), EnvPlacement(seed=seed, num_threads=1))
        self.controls = list(self.task.view.controls(env))
        for seat in self.seats:
            self._check_seat(seat, env)
        if hasattr(self, "env"):
            self.env.close()
        self.env, self.cfg, self.seed = env, cfg, seed
        self.tick_s = _tick_of(env, self.wanted_tick_s)
        self.hands = [Hands(self.controls) for _ in self.seats]
        self.out = env.make_buffers()
        env.reset(out=self.out)
        self.scene = self.task.view.scene(env, [0])[0]
        for seat in self.seats:
            seat.begin()
        first = self.look()
        self.layout = Layout({name: value.shape for name, value in first.items()})
        self.tick = self.first = 0
        self.frames = [self.layout.pack(first)]
        self.log: list[Any] = []
        self.kept: list[Checkpoint] = []
        self.key_every = KEY_EVERY
        self.held: list[Action | None] = [None] * len(self.seats)
        self.due = [0] * len(self.seats)
        self.over: Ending | None = None
        self._changed, self._owed_s = True, 0.0
        self.cuts.append(-1)

    def close(self) -> None:
        """Close the env."""
        self.env.close()
        self.closed = True

    # ---- time --------------------------------------------------------------------------------------------------------

    @property
    def time_s(self) -> float:
        """Return the simulated seconds since the start."""
        return self.tick * self.tick_s

    def set_speed(self, speed: float) -> None:
        """Set the simulated seconds per real second, clamped to SPEEDS."""
        self.speed = float(min(max(speed, SPEEDS[0]), SPEEDS[1]))

    def advance(self, real_s: float) -> int:
        """Simulate `real_s` seconds of real time, but at most about `MAX_LAG_S`, and return the number of simulated ticks."""
        if self.paused or self.over is not None:
            self._owed_s = 0.0
            return 0
        self._owed_s = min(self._owed_s + max(real_s, 0.0) * self.speed, MAX_LAG_S * self.speed + self.tick_s)
        count = 0
        while self._owed_s >= self.tick_s - 1e-9 and self.over is None:
            self.step()
            self._owed_s -= self.tick_s
            count += 1
        return count

    def step(self) -> None:
        """Simulate one tick, even if the fight is paused."""
        if self.over is not None or self.closed:
            return
        if self._changed or self.tick % self.key_every == 0:
            self._keep()
        actions = make_action_buffer(self.env.action_spec, (len(self.seats),), self.env.device)
        for side, seat in enumerate(self.seats):
            view, row = self.task.view, slice(side, side + 1)
            own = view.command(self.env, self.hands[side].take()) if seat.agent is None else self._decide(side)
            one = isinstance(actions, torch.Tensor)
            write_action(actions[row] if one else {name: part[row] for name, part in actions.items()}, own)
        self._fly(actions)
        self.log.append(actions)
        if self.over is None:
            self.frames.append(self.layout.pack(self.look()))
            self._drop_oldest()

    def _decide(self, side: int) -> Action:
        """Return an agent's command for this tick: a new decision if one is due, else the last command again."""
        seat, held = self.seats[side], self.held[side]
        assert seat.agent is not None
        if held is not None and self.tick < self.due[side]:
            return held
        seen = {name: value[side : side + 1] for name, value in self.out["obs"].items()}
        with torch.no_grad():
            action = seat.agent.act(seen, True)
        self.held[side] = self.task.view.hold(self.env, action)
        self.due[side] = self.tick + max(1, round(seat.decision_s / self.tick_s))
        return action

    def _fly(self, actions: Any) -> None:
        self.env.step(actions, dt=self.tick_s, out=self.out)
        self.tick += 1
        if bool((self.out["terminated"] | self.out["truncated"])[0]):
            names = [self.env.outcomes.get(number, str(number)) for number in self.out["outcome"].tolist()]
            self.over = Ending(names, self.tick)

    def look(self) -> dict[str, np.ndarray]:
        """Return the present frame: the task's snapshot, or the observations if the task has no snapshot."""
        seen = self.task.view.snapshot(self.env, [0])
        if not seen:
            seen = {name: value.cpu().numpy() for name, value in self.out["obs"].items()}
        return {name: np.array(value[0]) for name, value in seen.items()}

    # ---- the past ----------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        now = Checkpoint(
            tick=self.tick,
            env=self.env.state_dict(),
            obs={name: value.clone() for name, value in self.out["obs"].items()},
            seats=list(self.seats),
            memories=[{} if seat.agent is None else seat.agent.episode_state() for seat in self.seats],
            held=list(self.held),
            due=list(self.due),
            change=self._changed,
        )
        if self.kept and self.kept[-1].tick == self.tick:
            now.change = now.change or self.kept.pop().change
        self.kept.append(now)
        self._changed = False
        if len(self.kept) > MAX_KEYS:
            self.key_every *= 2
            self.kept = [kept for kept in self.kept if kept.change or kept.tick % self.key_every == 0 or kept is now]

    def _drop_oldest(self) -> None:
        """If the frames of the history take too much memory, drop about the older half, up to a saved state."""
        if len(self.frames) * self.layout.width * 4 < MAX_HISTORY_BYTES:
            return
        middle = self.first + len(self.frames) // 2
        later = [kept for kept in self.kept if kept.tick >= middle]
        if later:
            self.frames = self.frames[later[0].tick - self.first :]
            self.log = self.log[later[0].tick - self.first :]
            self.kept, self.first = later, later[0].tick

    def rewind(self, tick: int) -> None:
        """Rewind to the beginning of a tick, with the pilots of that time, and drop later ticks.

        Raises:
            InputError: The tick is not in the history.
        """
        last = self.first + len(self.frames) - 1
        if not self.first <= tick <= last:
            raise InputError(f"Tick {tick} is not in the history. Choose a tick from {self.first} to {last}.")
        if not self.kept:  # no tick was simulated yet
            return
        while len(self.kept) > 1 and self.kept[-1].tick > tick:
            self.kept.pop()
        from_here = self.kept[-1]
        self.env.load_state_dict(from_here.env)
        for name, value in self.out["obs"].items():
            value.copy_(from_here.obs[name])
        self.seats, self.held, self.due = list(from_here.seats), list(from_here.held), list(from_here.due)
        for seat, memory in zip(self.seats, from_here.memories, strict=True):
            if seat.agent is not None:
                seat.agent.reset()
                seat.agent.load_episode_state(memory)
        self.tick, self.over = from_here.tick, None
        del self.log[tick - self.first :], self.frames[tick - self.first + 1 :]
        for actions in self.log[self.tick - self.first :]:
            for side, seat in enumerate(self.seats):
                if seat.agent is not None:
                    self._decide(side)  # updates its memory; its command is in the log
            self._fly(actions)
        self.hands = [Hands(self.controls) for _ in self.seats]
        self._owed_s = 0.0
        self.cuts.append(tick)

    def still_holds(self, branch: int) -> int:
        """Return the last tick at which the present history equals that of an earlier branch; -1 if there is none."""
        return min(self.cuts[branch:], default=self.tick)

    def sit(self, side: int, seat: Seat) -> None:
        """Let another agent or person fly a side from the present tick on.

        Raises:
            ConfigError: The agent does not fit the env, or the env has no controls for a person.
        """
        self._check_seat(seat, self.env)
        seat.begin()
        self.seats[side] = seat
        self.held[side], self.due[side] = None, self.tick
        self.hands[side] = Hands(self.controls)
        self._changed = True

    def _check_seat(self, seat: Seat, env: TensorEnv) -> None:
        if seat.agent is not None:
            check_fit(seat.agent, env)
        elif not self.controls:
            raise ConfigError(f"{self.task.name} has no controls for a person: choose policies for both sides.")

    def frame_at(self, tick: int) -> dict[str, np.ndarray]:
        """Return the frame of a tick; if the history lacks the tick, the frame of the nearest tick."""
        return self.layout.unpack(self.frames[min(max(tick - self.first, 0), len(self.frames) - 1)])

    def save(self, path: Path) -> None:
        """Write the history as a recording with one episode."""
        frames = [self.layout.unpack(row) for row in self.frames]
        now = self.look()
        stacked = {n: np.stack([frame[n] for frame in frames]).astype(now[n].dtype) for n in self.layout.shapes}
        names = [seat.name for seat in self.seats]
        settings = json.loads(json.dumps(flat_settings(self.cfg), default=str))
        facts = {"policies": names, "policy": names[0], "seed": self.seed, "settings": settings}
        with RecordingWriter(
            path, self.task.reference, now, self.tick_s, facts=facts, when_full="wait", max_episodes=1
        ) as writer:
            number = writer.begin(self.scene)
            writer.add_many(number, stacked)
            outcome = self.over.outcomes[0] if self.over is not None else "running"
            writer.end(number, outcome=outcome, total_return=0.0)


def _tick_of(env: TensorEnv, wanted: float) -> float:
    """Return the length of a tick, s: `wanted` if the env can simulate such steps, else the time between decisions."""
    if (setter := getattr(env.unwrapped, "set_duration", None)) is not None:
        with suppress(InputError):
            setter(wanted)
            setter(env.decision_s)
            return wanted
    return env.decision_s
