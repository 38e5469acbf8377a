"""Exercises that ask for a pipeline's schedule, row by row: graded on what the schedule is worth.

Rows are asked for one by one, and put together here. No listing is compared with: a schedule is
right that is a step, keeps to the exercise's own rules, and needs no more time and memory than the
best. Times are simulated, so they are the same on every machine. Only where something is wrong are
the rows compared with those of known mistakes, to name it.
"""

import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from labkit.grade.answers import Answers, Question
from labkit.grade.graders.schedule_answers import schedule_of, wrong_form
from labkit.grade.graders.schedule_budget import holds_more, takes_longer
from labkit.grade.graders.schedule_pipelines import Pipeline, Row, draw
from labkit.grade.graders.schedule_validity import invalid
from labkit.grade.outcome import Finding
from labkit.pipeline import Costs, Kind, Op, Schedule

# Forwards as long as backwards, half as long, and twice as long.
EQUAL = Costs(forward=1, input_gradient=0.5, weight_gradient=0.5)
FORWARD_AND_BACKWARD = (EQUAL, Costs(), Costs(forward=4))


@dataclass(frozen=True)
class Mistake:
    """A wrong schedule by name: what it makes of a row."""

    name: str
    explanation: str
    row: Callable[[Pipeline, int], Iterable[Op]]
    hint: int = 2


class Schedules(Answers[Row]):
    """A grader of one function that writes a rank's row."""

    answers_are_in: Sequence[str] = ("pipeline", "calc", "viz", "grade/graders")
    takes_iterators = True
    kinds: Sequence[Kind] = (Kind.F, Kind.B)
    """What a cell may be."""
    names_stages: bool = False
    """Whether a cell must name its stage."""
    costs: Sequence[Costs] = FORWARD_AND_BACKWARD
    """For which it is simulated; in the first, operations have whole lengths."""
    mistakes: Sequence[Mistake]
    """In the order in which they are tried."""

    def pipelines(self, rng: random.Random) -> list[Pipeline]:
        """Fresh ones, as many for every seed."""
        return draw(rng)

    def arguments(self, row: Row) -> tuple[Any, ...]:
        """Of the call that asks for a row."""
        return row.rank, row.pipeline.num_ranks, row.pipeline.num_microbatches

    def makespan(self, pipeline: Pipeline, costs: Costs) -> float:
        """The time that is enough, in closed form."""
        raise NotImplementedError

    def most_in_flight(self, pipeline: Pipeline) -> Sequence[int] | None:
        """By rank, the microbatches that are enough; None: as many as there are."""
        return None

    def breaks_a_rule(self, pipeline: Pipeline, schedule: Schedule) -> Finding | None:
        """Of the exercise's own, by a schedule that is a step."""
        return None

    def questions(self, rng: random.Random) -> list[Question[Row]]:
        """Every rank's row."""
        rows = [Row(each, r) for each in self.pipelines(rng) for r in range(each.num_ranks)]
        return [
            Question(
                self.functions[0],
                self.arguments(row),
                f"the row of rank {row.rank} of {row.pipeline}",
                row,
            )
            for row in rows
        ]

    def judge(self, questions: Sequence[Question[Row]], answers: Sequence[Any]) -> Finding | None:
        """Form first; then pipeline by pipeline."""
        for question, answer in zip(questions, answers, strict=True):
            finding = wrong_form(
                question.known, answer, _called(question), self.kinds, self.names_stages
            )
            if finding is not None:
                return finding
        schedules = self._put_together(questions, answers)
        for pipeline, schedule in schedules:
            finding = self._wrong(pipeline, schedule)
            if finding is not None:
                return self._named(finding, schedules)
        return None

    def tried(self, questions: Sequence[Question[Row]]) -> str:
        """`12 pipelines`: twice the same is possible, and counts twice."""
        return f"{sum(question.known.rank == 0 for question in questions)} pipelines"

    def _put_together(
        self, questions: Sequence[Question[Row]], answers: Sequence[Any]
    ) -> list[tuple[Pipeline, Schedule]]:
        rows, schedules = list(zip(questions, answers, strict=True)), []
        while rows:
            pipeline = rows[0][0].known.pipeline
            cells = [answer for _, answer in itertools.islice(rows, pipeline.num_ranks)]
            schedules.append((pipeline, schedule_of(pipeline, cells, self.functions[0])))
            rows = rows[pipeline.num_ranks :]
        return schedules

    def _wrong(self, pipeline: Pipeline, schedule: Schedule) -> Finding | None:
        finding = invalid(pipeline, schedule) or self.breaks_a_rule(pipeline, schedule)
        most = self.most_in_flight(pipeline)
        if finding is None and most is not None:
            finding = holds_more(pipeline, schedule, most)
        for costs in self.costs:
            finding = finding or takes_longer(
                pipeline, schedule, costs, self.makespan(pipeline, costs), self.kinds
            )
        return finding

    def _named(self, finding: Finding, schedules: Sequence[tuple[Pipeline, Schedule]]) -> Finding:
        """The mistake whose rows all of these are, in the place of what it leads to."""
        for mistake in self.mistakes:
            if all(
                row == tuple(mistake.row(pipeline, rank))
                for pipeline, schedule in schedules
                for rank, row in enumerate(schedule.rows)
            ):
                return replace(
                    finding,
                    diagnosis=mistake.name,
                    explanation=mistake.explanation,
                    hint=mistake.hint,
                )
        return finding


def _called(question: Question[Row]) -> str:
    return f"{question.function}({', '.join(map(str, question.arguments))}), {question.label}"
