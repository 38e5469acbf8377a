"""gpipe_schedule is graded on validity, forwards before backwards, and the bubble."""

from collections.abc import Sequence

from labkit.grade.graders.gpipe_mistakes import MISTAKES
from labkit.grade.graders.schedule_pipelines import Pipeline, cost_of
from labkit.grade.graders.schedules import Schedules
from labkit.grade.outcome import Finding, Outcome
from labkit.pipeline import Costs, Kind, Schedule
from labkit.pipeline.text import around


class GPipe(Schedules):
    """The grader of gpipe_schedule."""

    functions: Sequence[str] = ("gpipe_schedule",)
    mistakes = MISTAKES
    shown_by_a_pass = (
        "every stage takes each microbatch forward and back, all forwards come first, and the "
        "bubble is (p - 1)/m of the ideal time, whatever a forward and a backward cost"
    )

    def makespan(self, pipeline: Pipeline, costs: Costs) -> float:
        """m microbatches, and the p - 1 that it takes to fill and to drain."""
        p, m = pipeline.num_ranks, pipeline.num_microbatches
        return (m + p - 1) * (cost_of(costs, Kind.F) + cost_of(costs, Kind.B))

    def breaks_a_rule(self, pipeline: Pipeline, schedule: Schedule) -> Finding | None:
        """A forward behind a backward."""
        for rank, row in enumerate(schedule.rows):
            kinds = [op.kind for op in row]
            first_back = kinds.index(Kind.B)
            if Kind.F not in kinds[first_back:]:
                continue
            index = kinds.index(Kind.F, first_back)
            return Finding(
                Outcome.WRONG,
                "begins backwards before the last forward",
                "GPipe takes all microbatches forward, and then all back",
                first_seen=f"{pipeline}: rank {rank} has {row[index]} behind {row[index - 1]}",
                hint=1,
                picture=around(schedule, {rank: index}),
            )
        return None


GRADER = GPipe()
