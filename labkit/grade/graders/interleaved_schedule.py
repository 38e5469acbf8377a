"""interleaved_schedule is graded on validity, the bubble, and stages' activations in flight."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from labkit import calc
from labkit.grade.graders.interleaved_mistakes import MISTAKES
from labkit.grade.graders.schedule_pipelines import (
    Pipeline,
    Row,
    cost_of,
    cost_of_message,
    draw_interleaved,
)
from labkit.grade.graders.schedules import FORWARD_AND_BACKWARD, Schedules
from labkit.pipeline import Costs, Kind


class Interleaved(Schedules):
    """The grader of interleaved_schedule."""

    functions: Sequence[str] = ("interleaved_schedule",)
    mistakes = MISTAKES
    names_stages = True
    costs = (*FORWARD_AND_BACKWARD, *(replace(each, send=1.0) for each in FORWARD_AND_BACKWARD))
    shown_by_a_pass = (
        "every stage takes each microbatch forward and back on its own rank, the bubble is "
        "(p - 1)/(v m) of the ideal time, messages are hidden but for one microbatch's way there "
        "and back, and no rank holds more than it takes to reach that"
    )

    def pipelines(self, rng: random.Random) -> list[Pipeline]:
        """With two to four stages on each rank."""
        return draw_interleaved(rng)

    def arguments(self, row: Row) -> tuple[Any, ...]:
        """Stages per rank come last."""
        return *super().arguments(row), row.pipeline.virtual

    def makespan(self, pipeline: Pipeline, costs: Costs) -> float:
        """Filled and drained with stages of a v-th of the size.

        Of the messages those on one microbatch's way through the model and back: all others are
        under way while the ranks work. (It is so while a message takes no longer than a forward,
        and no longer than a backward.)
        """
        total = pipeline.virtual * pipeline.num_microbatches
        of_both = cost_of(costs, Kind.F) + cost_of(costs, Kind.B)
        working = (total + pipeline.num_ranks - 1) * of_both
        num_boundaries = pipeline.num_stages - 1 if pipeline.num_ranks > 1 else 0
        return working + 2 * num_boundaries * cost_of_message(costs)

    def most_in_flight(self, pipeline: Pipeline) -> Sequence[int]:
        """Of one stage each, a v-th of a rank's layers."""
        p, m = pipeline.num_ranks, pipeline.num_microbatches
        return calc.in_flight_microbatches(p, m, "interleaved", pipeline.virtual)


GRADER = Interleaved()
