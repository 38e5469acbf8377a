"""Counts of one rank: messages on throttled links, and those that came late."""

from __future__ import annotations

from dataclasses import dataclass

LATE_SHARE = 0.1
"""A message is late when it takes this part longer than its link alone would take for it."""


@dataclass(slots=True)
class Lateness:
    """The throttled messages that a rank received, and those of them that came late.

    Late: the rank was waiting, and got the message later than the links allow. That is the
    machine's own time: copying, waking up, a core that another rank is using.
    """

    num_messages: int = 0
    num_late: int = 0
    late_s: float = 0.0
    """By how many seconds those were late, in all."""

    def count(self, lateness_s: float, link_s: float) -> None:
        """Add a message. link_s: what it takes on a link of its own."""
        self.num_messages += 1
        if lateness_s > LATE_SHARE * link_s:
            self.num_late += 1
            self.late_s += lateness_s

    def plus(self, other: Lateness) -> Lateness:
        """Both together."""
        return Lateness(
            self.num_messages + other.num_messages,
            self.num_late + other.num_late,
            self.late_s + other.late_s,
        )
