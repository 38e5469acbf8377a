"""find_the_deadlock: what the grader works out for the five programs is what real runs show."""

import runpy
from pathlib import Path

import pytest

from labkit import run
from labkit.course.diagnosis.exercises.find_the_deadlock import waits
from labkit.doctor.waiting import blocked_in
from labkit.launch.errors import Deadlock

SOLUTION = Path(__file__).parents[2] / "solutions" / "find_the_deadlock.py"
PROGRAMS = runpy.run_path(str(SOLUTION), run_name="programs")


def stuck_in(program, n):
    """Ranks that wait when a real run ends, and in what."""
    try:
        run(PROGRAMS[program], n, timeout=600, stall=1, device="cpu")
    except Deadlock as error:
        blocked = [blocked_in(timeline.operations) for timeline in error.timeline]
        words = {"send": "send to {}", "recv": "recv from {}"}
        return {
            rank: words.get(operation.kind, operation.kind).format(operation.peer)
            for rank, operation in enumerate(blocked)
            if operation is not None
        }
    return {}


@pytest.mark.parametrize(
    ("program", "n"),
    [
        ("shift", 3),
        ("pass_it_on", 2),
        ("pass_it_on", 4),
        ("log_the_loss", 3),
        ("epoch", 4),
        ("epoch", 5),
        ("two_groups", 5),
        ("two_groups", 6),
    ],
)
def test_a_real_run_ends_as_the_grader_says(program, n):
    # A run is ended once a deadlock is proved. Some ranks may not be stuck yet by then.
    assert any(stuck_in(program, n) == waits(program, n) for _ in range(5))
