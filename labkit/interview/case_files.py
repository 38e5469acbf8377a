"""Case files: a slow job, with the question for the cause, its rank, and the gain without it.

    case = CASES["case_2"].question(seed=7)      real runs with a fault and without: slow_case.py
    case.judge("straggler, rank 2, 28%")         a Ruling, like that of a drill

difficulty    the fault                                        asked for
1             40% of a step, an obvious cause                  cause, gain
2             40%, on one rank                                 cause, rank, gain
3             20%, any cause, any strategy                     cause, rank, gain
4             12%, while layers take uneven times by nature    cause, rank, gain
5             40% and 15% at once                              the same, of what costs more

A case is asked like a drill, with two tries. Its answers are stored as "case/2".
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
        from labkit.interview import slow_case  # with it come all strategies

        return slow_case.open_case(self.difficulty, seed)

    def judge(self, question: Any, text: str) -> Ruling:
        """Rule on cause, rank and gain."""
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
"""By name, the easiest first."""
