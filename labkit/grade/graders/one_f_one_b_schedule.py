"""one_f_one_b_schedule is graded on validity, the bubble, and microbatches in flight."""

from collections.abc import Sequence

from labkit import calc
from labkit.grade.graders.one_f_one_b_mistakes import MISTAKES
from labkit.grade.graders.schedule_pipelines import Pipeline, cost_of
from labkit.grade.graders.schedules import Schedules
from labkit.pipeline import Costs, Kind


class OneFOneB(Schedules):
    """The grader of one_f_one_b_schedule."""

    functions: Sequence[str] = ("one_f_one_b_schedule",)
    mistakes = MISTAKES
    shown_by_a_pass = (
        "every stage takes each microbatch forward and back, the bubble is GPipe's, (p - 1)/m of "
        "the ideal time, and rank r holds p - r microbatches at most, however many there are"
    )

    def makespan(self, pipeline: Pipeline, costs: Costs) -> float:
        """GPipe's."""
        p, m = pipeline.num_ranks, pipeline.num_microbatches
        return (m + p - 1) * (cost_of(costs, Kind.F) + cost_of(costs, Kind.B))

    def most_in_flight(self, pipeline: Pipeline) -> Sequence[int]:
        """As many as there are ranks from this one on."""
        return calc.in_flight_microbatches(pipeline.num_ranks, pipeline.num_microbatches, "1f1b")


GRADER = OneFOneB()
