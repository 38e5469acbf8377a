"""Case files: a job with a hidden fault, on real ranks, and the question which fault it is.

    case = CASES["case_2"].question(seed=7)      real runs with a fault and without: slow_case.py
    case.judge("straggler, rank 2, 28%")         a Ruling, like that of a drill
    case = CASES["rl_case_2"].question(seed=7)   a job of reinforcement learning: rl_case.py
    case.judge("sleep")

Room "slow": what slows the job down, on which rank, and by how much?

difficulty    seconds of the fault, as a share of a step       the answer has
1             40%, an obvious cause                            cause, gain
2             40%, on one rank                                 cause, rank, gain
3             20%, any cause, any strategy                     cause, rank, gain
4             12%, and every layer's time varies a little      cause, rank, gain
5             40% and 15%: two faults                          cause, rank, gain of the larger

Room "rl": the policy learns less than it should, or nothing at all. Which of nine faults is it?

difficulty    versions that answers may be behind                the fault begins
1             0: synchronous                                     with the first update
2             1: one step off                                    later
3             2, partial answers, and one engine is slow         later still

As with a drill there are two tries. Answers at difficulty 2 are stored as "case/2" and "case/rl-2".
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
    """Cases of one room and difficulty."""

    room: str = "slow"

    @property
    def subject(self) -> str:
        """Name under which answers are stored."""
        room = "" if self.room == "slow" else f"{self.room}-"
        return f"case/{room}{self.difficulty}"

    @property
    def command(self) -> str:
        """Command that opens another case."""
        room = "" if self.room == "slow" else f" --room {self.room}"
        return f"labkit case{room} --difficulty {self.difficulty}"

    def question(self, seed: int) -> Question:
        """Run the case of this seed on 4 ranks, which takes seconds."""
        if self.room == "rl":
            from labkit.interview import rl_case

            return rl_case.open_case(self.difficulty, seed)
        from labkit.interview import slow_case  # imports all strategies

        return slow_case.open_case(self.difficulty, seed)

    def judge(self, question: Any, text: str) -> Ruling:
        """Judge an answer: all its parts, or the name of the fault."""
        ruling: Ruling = question.judge(text)
        return ruling


def _cases(room: str, prefix: str, topic: str, asks: str, most: int) -> dict[str, CaseFiles]:
    return {
        f"{prefix}_{number}": CaseFiles(
            f"{prefix}_{number}", topic, f"{asks} Difficulty {number} of {most}", number, None, room
        )
        for number in range(1, most + 1)
    }


_ROOMS = {
    "slow": _cases("slow", "case", "di-1", "Why is this run slow?", 5),
    "rl": _cases("rl", "rl_case", "rl-4", "What is wrong with this training?", 3),
}
CASES: Mapping[str, CaseFiles] = MappingProxyType(
    {name: each for of in _ROOMS.values() for name, each in of.items()}
)
"""The cases by name, the easiest of each room first."""


def case_of_room(room: str, difficulty: int) -> CaseFiles:
    """Return the cases of a room and difficulty. ValueError for others, with those there are."""
    if room not in _ROOMS:
        raise ValueError(f"room={room!r:.60}: give one of {', '.join(_ROOMS)}")
    cases = list(_ROOMS[room].values())
    if not 1 <= difficulty <= len(cases):
        raise ValueError(f"difficulty={difficulty}: room {room} has 1 to {len(cases)}")
    return cases[difficulty - 1]
