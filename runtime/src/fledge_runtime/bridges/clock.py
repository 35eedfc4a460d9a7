"""The flight controller's clock on ours."""

from __future__ import annotations

TRUSTED_S = 1.0  # longer round trips say nothing
SAMPLES = 10
STEP_S = 0.005  # largest change by a reply: clocks drift slowly


class ClockOffset:
    """Seconds between the flight controller's clock and ours, from TIMESYNC, before its first reply from the fastest message.

    While `locked` (in flight), an offset far from the known one is not believed, so that a jump of the flight controller's
    clock shows in the times of its messages.
    """

    def __init__(self, jump_s: float = 0.1) -> None:
        self.jump_s, self.locked, self.synced = jump_s, False, False
        self.value: float | None = None  # ours minus theirs
        self._samples: list[tuple[float, float]] = []  # round trip, offset

    def message(self, theirs: float, received: float) -> float:
        """Return the time of a message on our clock."""
        offset = received - theirs
        restarted = self.value is not None and not -self.jump_s < offset - self.value < 5.0
        if self.value is None or (restarted and not self.locked):
            self.value, self.synced = offset, False
            del self._samples[:]
        elif not self.synced and not self.locked:
            self.value = min(self.value, offset)
        return theirs + self.value

    def reply(self, sent: float, theirs: float, received: float) -> None:
        """Take a reply to a TIMESYNC request."""
        round_trip, offset = received - sent, 0.5 * (sent + received) - theirs
        far = self.value is not None and abs(offset - self.value) > self.jump_s
        if not 0.0 <= round_trip < TRUSTED_S or (self.locked and far):
            return
        self._samples = [*self._samples[1 - SAMPLES :], (round_trip, offset)]
        best = min(self._samples)[1]
        if self.synced and self.value is not None:
            best = self.value + max(-STEP_S, min(STEP_S, best - self.value))
        self.value, self.synced = best, True
