"""How the drone responds to commands, given or identified from its last seconds of flight, as in native/identify.c."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from fledge_runtime.numpy_engine.floats import ZERO, F, add, sub
from fledge_runtime.numpy_engine.tables import response_tables

FOLLOW, DOUBT = F(0.3), F(0.02)
WORST = F(1.0e30)


class Response:
    """Hypotheses about the response, and their state. Arrays have the axes delay M, rate F, and velocity and acceleration."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.q = response_tables(settings)

    def forget(self, vel: Any) -> None:
        """Begin a flight: no command was flown, and the given response is the likeliest."""
        q = self.q
        self.sent: list[Any] = [(ZERO, ZERO, ZERO)] * (max(q.delays) + 1)
        self.states = [np.zeros((len(q.delays), len(rates), 2, 3), np.float32) for rates in (q.flat, q.upright)]
        for state in self.states:
            state[:, :, 0] = vel
        self.scores = [np.full(state.shape[:2], DOUBT, np.float32) for state in self.states]
        for score in self.scores:
            score[0, 0] = ZERO

    def note(self, command: Any) -> None:
        """Add the command that was flown since the last decision."""
        self.sent = [tuple(command), *self.sent[:-1]]

    def predicted_acc(self, vel: Any, acc: Any) -> Any:
        """Return the predicted acceleration, from velocity and acceleration at the last decision, by the given response."""
        q, command = self.q, self.sent[self.q.delays[0]]
        rows = (q.flat[0, 2], q.flat[0, 2], q.upright[0, 2])
        return tuple(r[0] * vel[k] + r[1] * acc[k] + r[2] * command[k] for k, r in enumerate(rows))

    def identify(self, own: SimpleNamespace, fresh: bool) -> None:
        """Complete the drone's state by its response and, if that is identified, its acceleration."""
        if fresh:
            self.forget(own.vel)
        own.delay = own.flat = own.upright = 0
        if self.q.on:
            if not fresh:
                self.compare(own.vel)
            (flat, up), least = (score.argmin(axis=1) for score in self.scores), WORST
            for m in range(len(self.q.delays)):
                score = self.scores[0][m, flat[m]] + self.scores[1][m, up[m]]
                if score < least:
                    least, own.delay, own.flat, own.upright = score, m, int(flat[m]), int(up[m])
            x, z = self.states[0][own.delay, own.flat], self.states[1][own.delay, own.upright]
            own.acc = (x[1, 0], x[1, 1], z[1, 2])
        own.slower = self.q.slower[own.flat]

    def compare(self, vel: Any) -> None:
        """Advance all hypotheses by one decision, and compare them with the measured velocity."""
        command = np.array([self.sent[delay] for delay in self.q.delays], np.float32)[:, None]
        measured = np.array(vel, np.float32)
        for state, score, rates in zip(self.states, self.scores, (self.q.flat, self.q.upright)):
            v, a = (rates[:, row, :, None] for row in (1, 2))  # [F, 3, 1]
            now, change = state[:, :, 0].copy(), state[:, :, 1].copy()
            for k, r in enumerate((v, a)):
                state[:, :, k] = r[:, 0] * now + r[:, 1] * change + r[:, 2] * command
            error = measured - state[:, :, 0]
            state[:, :, 0] += FOLLOW * error
            square = error * error
            score *= self.q.keep
            score += square[..., 2] if score is self.scores[1] else square[..., 0] + square[..., 1]

    def hastened(self, own: SimpleNamespace, command: Any) -> Any:
        """Return the exaggerated command that makes a slow drone follow `command` faster."""
        if not self.q.hasten:
            return command
        f, u = self.q.flat_shape[own.flat], self.q.up_shape[own.upright]
        away = [r[0] * (command[k] - own.vel[k]) + r[1] * own.acc[k] for k, r in enumerate((f, f, u))]
        return tuple(min(max(own.vel[k] + away[k], -self.q.limit), self.q.limit) for k in range(3))

    def advance(self, own: SimpleNamespace) -> None:
        """Advance the drone's state to the time when a command that is given now takes effect."""
        n, before = self.q.delays[own.delay], own.pos
        f, u = self.q.flat[own.flat], self.q.upright[own.upright]
        own.lead = F(n) * self.q.decision_s
        for command in reversed(self.sent[:n]):
            pos, own.vel, own.acc = (
                tuple(
                    r[0] * own.vel[k] + r[1] * own.acc[k] + r[2] * command[k]
                    for k, r in enumerate((f[row], f[row], u[row]))
                )
                for row in range(3)
            )
            own.pos = add(own.pos, pos)
        own.moved = sub(own.pos, before)
