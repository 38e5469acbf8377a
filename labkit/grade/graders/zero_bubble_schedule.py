"""zero_bubble_schedule is graded on validity, a makespan, and no more memory than 1F1B's."""

from collections.abc import Sequence

from labkit.grade.graders.schedule_pipelines import Pipeline, cost_of
from labkit.grade.graders.schedules import Schedules
from labkit.grade.graders.zero_bubble_mistakes import MISTAKES
from labkit.pipeline import Costs, Kind


class ZeroBubble(Schedules):
    """The grader of zero_bubble_schedule."""

    functions: Sequence[str] = ("zero_bubble_schedule",)
    mistakes = MISTAKES
    kinds = tuple(Kind)
    # An I as long as F, longer, and shorter: a row that is good for one of them is not for all.
    costs = (
        Costs(),
        Costs(input_gradient=2),
        Costs(forward=2, input_gradient=2),
        Costs(forward=2),
        Costs(forward=4, input_gradient=2),
    )
    shown_by_a_pass = (
        "every stage takes each microbatch forward, and computes both gradients of it, the step is "
        "as fast as ZB-H1's for equal costs and for others, and no rank holds more than p "
        "microbatches"
    )

    def makespan(self, pipeline: Pipeline, costs: Costs) -> float:
        """Of ZB-H1, for a W that takes no longer than an F, and no longer than an I.

        The first F must get to the last rank and the first I back, F + I for each rank on the way;
        and there is a W less to wait for at the end, where there are enough of them to fill it.
        """
        p, m = pipeline.num_ranks, pipeline.num_microbatches
        f, i, w = (cost_of(costs, kind) for kind in (Kind.F, Kind.I, Kind.W))
        return m * (f + i + w) + (p - 1) * (f + i - w) + max(0, p - m) * w

    def most_in_flight(self, pipeline: Pipeline) -> Sequence[int]:
        """On every rank, what 1F1B's first one holds."""
        return [min(pipeline.num_ranks, pipeline.num_microbatches)] * pipeline.num_ranks


GRADER = ZeroBubble()
