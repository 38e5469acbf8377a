"""The time, from one place, and the days of the learner who lives by it."""

import time
from datetime import date, datetime, tzinfo

# Times of events: from 1970 to the year 9000, so that no interval leads past the calendar's end.
EARLIEST_S, LATEST_S = 0.0, 2.2e11


def now_s() -> float:
    """Seconds since 1970. Whatever in this room needs the time asks here."""
    return time.time()


def check_time(at_s: float) -> float:
    """`at_s` as a float. Raises ValueError unless it is a time that a calendar can hold."""
    if not EARLIEST_S <= at_s < LATEST_S:  # not a number is neither
        raise ValueError(
            f"at_s={at_s} is no time of an event; give seconds since 1970, such as time.time()"
        )
    return float(at_s)


def day_of(at_s: float, zone: tzinfo | None = None) -> date:
    """The day on the learner's calendar; `zone` None is the one that this machine is set to.

    From the calendar, and not from a division by 86,400: the days on which clocks change have 23
    and 25 hours.
    """
    return moment_of(at_s, zone).date()


def moment_of(at_s: float, zone: tzinfo | None = None) -> datetime:
    """Day and time on the learner's calendar."""
    return datetime.fromtimestamp(at_s, zone)
