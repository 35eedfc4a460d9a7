"""A fight that goes on in real time: ticks, seats, and every moment of it kept, so that one can go back and fly on from there.

    fight = Fight(task, cfg, [Seat("you"), Seat("crank", agent)], seed=7)
    fight.hands[0].put({"rudder": 1.0})      what a person does from now on
    fight.advance(0.05)                      so much real time has passed
    fight.rewind(200)                        back to the state of tick 200; what came after is forgotten
    fight.sit(1, Seat("you"))                somebody else flies a side from here on
    fight.save(path)                         as a recording

Any world will do whose decisions may be cut into ticks (`env.step(dt=...)`); in others a tick is a decision. Agents decide at
their own rate, and their command goes on between (`Task.hold`); people act in every tick.

Every command is logged, and from time to time the whole state is kept: physics, observations, agents' memories. A moment is
reached again by flying the log from the last kept state on, so the same seed and the same commands are the same fight, bit for
bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fledge.agents.base import Action
from fledge.app.play.fight_file import save_fight
from fledge.app.play.moments import Ending, Kept, Layout
from fledge.app.play.seats import Hands, Seat
from fledge.core.errors import ConfigError, InputError
from fledge.envs.base import TensorEnv, make_action_buffer, write_action
from fledge.tasks.base import Task

TICK_S = 0.05
KEY_EVERY = 20  # ticks from one kept state to the next
MAX_KEYS = 1024  # kept states: then every second one goes
MAX_HISTORY_BYTES = 64 * 2**20  # of frames: then the first half goes
SPEEDS = (0.1, 4.0)
MAX_LAG_S = 0.25  # real time that is caught up with


class Fight:
    """One episode of a world, flown tick by tick.

    Args:
        task: The world.
        cfg: Its settings; their number of envs is chosen here.
        seats: Who flies, one for each side.
        seed: Decides how the fight begins.
        tick_s: Simulated seconds of a tick.
    """

    def __init__(self, task: Task, cfg: Any, seats: Sequence[Seat], seed: int = 0, tick_s: float = TICK_S) -> None:
        if len(seats) != task.sides:
            raise ConfigError(f"{len(seats)} seats came, but {task.name} has {task.sides}.")
        self.task, self.wanted_tick_s, self.seats = task, tick_s, list(seats)
        self.speed, self.paused = 1.0, False
        self.branch = 0
        """Grows whenever the past is changed: what was seen of it may no longer be so."""
        self.cuts: list[int] = []
        """For each branch, the last tick of the one before that still holds; -1: none does."""
        self.env: TensorEnv | None = None
        self.cfg: Any = cfg
        self.seed = seed
        self.restart(cfg, seed)

    # ---- beginnings --------------------------------------------------------------------------------------------------

    def restart(self, cfg: Any = None, seed: int | None = None) -> None:
        """Begin again, in another world or with another seed if they are given; who sits stays."""
        cfg, seed = self.cfg if cfg is None else cfg, self.seed if seed is None else seed
        env = self.task.make_env(self.task.matches(cfg, 1), seed=seed, num_threads=1)
        for seat in self.seats:
            if seat.agent is not None:
                self.task.check_fit(seat.agent, env)
        self.controls = list(self.task.controls(env))
        if not self.controls and any(seat.agent is None for seat in self.seats):
            raise ConfigError(f"{self.task.name} cannot be flown by hand: its actions are not made of plain controls.")
        if self.env is not None:
            self.env.close()
        self.env, self.cfg, self.seed = env, cfg, seed
        self.tick_s = _tick_of(env, self.wanted_tick_s)
        self.hands = [Hands(self.controls) for _ in self.seats]
        self.out = env.make_buffers()
        env.reset(out=self.out)
        self.scene = self.task.scene(env, [0])[0]
        for seat in self.seats:
            seat.begin()
        first = self.look()
        self.layout = Layout({name: value.shape for name, value in first.items()})
        self.tick = self.first = 0
        self.frames = [self.layout.pack(first)]
        self.log: list[Any] = []
        self.kept: list[Kept] = []
        self.key_every = KEY_EVERY
        self.held: list[Action | None] = [None] * len(self.seats)
        self.due = [0] * len(self.seats)
        self.over: Ending | None = None
        self._changed, self._owed_s = True, 0.0
        self._branch_off(-1)

    def close(self) -> None:
        """Release the world."""
        if self.env is not None:
            self.env.close()
            self.env = None

    # ---- time --------------------------------------------------------------------------------------------------------

    @property
    def time_s(self) -> float:
        """Simulated seconds since the beginning."""
        return self.tick * self.tick_s

    def set_speed(self, speed: float) -> None:
        """Simulated seconds in a real one."""
        self.speed = float(min(max(speed, SPEEDS[0]), SPEEDS[1]))

    def advance(self, real_s: float) -> int:
        """Fly as far as real time has gone on; how many ticks that were. What cannot be caught up with is let go."""
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
        """Fly one tick, paused or not."""
        if self.over is not None or self.env is None:
            return
        if self._changed or self.tick % self.key_every == 0:
            self._keep()
        actions = make_action_buffer(self.env.action_spec, (len(self.seats),), self.env.device)
        for side, seat in enumerate(self.seats):
            own = self._decide(side) if seat.agent is not None else None
            _put(actions, side, own if own is not None else self.task.command(self.env, self.hands[side].take()))
        self._fly(actions)
        self.log.append(actions)
        if self.over is None:
            self.frames.append(self.layout.pack(self.look()))
            self._forget_the_oldest()

    def _decide(self, side: int) -> Action:
        """An agent's command for this tick: a new one, or the last as it goes on."""
        seat = self.seats[side]
        assert seat.agent is not None
        assert self.env is not None
        held = self.held[side]
        if held is not None and self.tick < self.due[side]:
            return held
        seen = {name: value[side : side + 1] for name, value in self.out["obs"].items()}
        with torch.no_grad():
            action = seat.agent.act(seen, True)
        self.held[side] = self.task.hold(self.env, action)
        self.due[side] = self.tick + max(1, round(seat.decision_s / self.tick_s))
        return action

    def _fly(self, actions: Any) -> None:
        assert self.env is not None
        self.env.step(actions, dt=self.tick_s, out=self.out)
        self.tick += 1
        if bool((self.out["terminated"] | self.out["truncated"])[0]):
            numbers = self.out["outcome"].tolist()
            names = [self.env.outcomes.get(number, str(number)) for number in numbers]
            self.over = Ending(names, self.tick)

    def look(self) -> dict[str, np.ndarray]:
        """What moves, now; of a world that shows nothing, what the first side observes."""
        assert self.env is not None
        seen = self.task.snapshot(self.env, [0])
        if not seen:
            seen = {name: value.cpu().numpy() for name, value in self.out["obs"].items()}
        return {name: np.array(value[0]) for name, value in seen.items()}

    # ---- the past ----------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        assert self.env is not None
        now = Kept(
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

    def _forget_the_oldest(self) -> None:
        """Keep the past bounded: it then begins at the first kept state of its second half."""
        if len(self.frames) * self.layout.width * 4 < MAX_HISTORY_BYTES:
            return
        middle = self.first + len(self.frames) // 2
        later = [kept for kept in self.kept if kept.tick >= middle]
        if later:
            self.frames = self.frames[later[0].tick - self.first :]
            self.log = self.log[later[0].tick - self.first :]
            self.kept, self.first = later, later[0].tick

    def rewind(self, tick: int) -> None:
        """Go back to the beginning of a tick; what came after is forgotten, and who sat there sits there again.

        Raises:
            InputError: when the fight has not been there, or has forgotten it.
        """
        last = self.first + len(self.frames) - 1
        if not self.first <= tick <= last:
            raise InputError(f"tick {tick} cannot be gone back to: this fight remembers {self.first} to {last}.")
        assert self.env is not None
        if not self.kept:  # nothing has been flown
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
                    self._decide(side)  # so that it remembers; what it did is logged
            self._fly(actions)
        self.hands = [Hands(self.controls) for _ in self.seats]
        self._owed_s = 0.0
        self._branch_off(tick)

    def _branch_off(self, tick: int) -> None:
        self.branch += 1
        self.cuts.append(tick)

    def still_holds(self, branch: int) -> int:
        """The last tick that somebody has seen right who saw the fight in a branch; -1: none."""
        return min(self.cuts[branch:], default=self.tick)

    def sit(self, side: int, seat: Seat) -> None:
        """Let somebody else fly a side from here on.

        Raises:
            ConfigError: when that agent cannot fly here, or nobody can by hand.
        """
        assert self.env is not None
        if seat.agent is None and not self.controls:
            raise ConfigError(f"{self.task.name} cannot be flown by hand: its actions are not made of plain controls.")
        if seat.agent is not None:
            self.task.check_fit(seat.agent, self.env)
        seat.begin()
        self.seats[side] = seat
        self.held[side], self.due[side] = None, self.tick
        self.hands[side] = Hands(self.controls)
        self._changed = True

    def frame_at(self, tick: int) -> dict[str, np.ndarray]:
        """What was to be seen at a tick; the nearest that is remembered."""
        return self.layout.unpack(self.frames[min(max(tick - self.first, 0), len(self.frames) - 1)])

    def save(self, path: Path) -> None:
        """Write what is remembered as a recording."""
        save_fight(self, path)


def _tick_of(env: TensorEnv, wanted: float) -> float:
    """The length of a tick: what is wanted, where the world can be cut so fine, else a decision."""
    setter = getattr(env.unwrapped, "set_duration", None)
    if setter is None:
        return env.decision_s
    try:
        setter(wanted)
        setter(env.decision_s)
    except InputError:
        return env.decision_s
    return wanted


def _put(actions: Any, side: int, action: Action) -> None:
    """Copy the action of one row to its place."""
    if isinstance(action, torch.Tensor):
        write_action(actions[side : side + 1], action.to(actions.dtype))
    else:
        for name, part in action.items():
            actions[name][side : side + 1].copy_(part)
