"""Case files: a slow job, and the question what slows it down, on which rank, and by how much.

    case = CASES["case_2"].question(seed=7)      real runs with a fault and without: slow_case.py
    case.judge("straggler, rank 2, 28%")         a Ruling, like that of a drill

difficulty    seconds of the fault, as a share of a step       the answer has
1             40%, an obvious cause                            cause, gain
2             40%, on one rank                                 cause, rank, gain
3             20%, any cause, any strategy                     cause, rank, gain
4             12%, and every layer's time varies a little      cause, rank, gain
5             40% and 15%: two faults                          cause, rank, gain of the larger

As with a drill there are two tries. Answers at difficulty 2 are stored as "case/2".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from labkit.interview.drills import Ruling
from labkit.interview.drills.drill import Kind
from labkit.interview.drills.question import Question


@dataclass(frozen=True)
class CaseFiles(Kind):
    """Cases of one difficulty."""

    @property
    def subject(self) -> str:
        """Name under which answers are stored."""
        return f"case/{self.difficulty}"

    @property
    def command(self) -> str:
        """Command that opens another case."""
        return f"labkit case --difficulty {self.difficulty}"

    def question(self, seed: int) -> Question:
        """Run the case of this seed on 4 ranks, which takes seconds."""
        from labkit.interview import slow_case  # imports all strategies

        return slow_case.open_case(self.difficulty, seed)

    def judge(self, question: Any, text: str) -> Ruling:
        """Judge an answer's cause, rank and gain."""
        ruling: Ruling = question.judge(text)
        return ruling


CASES: Mapping[str, CaseFiles] = MappingProxyType(
    {
        f"case_{number}": CaseFiles(
            f"case_{number}",
            "di-1",
            f"Why is this run slow? Difficulty {number} of 5",
            number,
            None,
        )
        for number in range(1, 6)
    }
)
"""The cases by name, the easiest first."""
