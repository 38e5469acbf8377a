"""The puzzles, easy ones first: a scheduling problem, a memory budget, the least time within it.

Makespan and memory of each are what tests/least_makespan.py finds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from labkit.arguments import UserError
from labkit.comm.operation import listed
from labkit.pipeline import Costs, Kind


@dataclass(frozen=True)
class Problem:
    """The work to schedule: placement[stage] is the rank that holds it.

    Costs and memory are whole numbers, so that times and sums are exact. is_split: every backward
    is I and W; otherwise it is B. activation: of one microbatch on one stage, a whole number or one
    per stage. kept_for_weights: the share of it that an I leaves for its W.
    """

    placement: tuple[int, ...]
    num_microbatches: int
    costs: Costs = field(default_factory=Costs)
    is_split: bool = False
    activation: int | tuple[int, ...] = 1
    kept_for_weights: float = 1.0

    @property
    def num_stages(self) -> int:
        """Number of stages of the whole pipeline."""
        return len(self.placement)

    @property
    def num_ranks(self) -> int:
        """p."""
        return 1 + max(self.placement)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The operations of a step: F and B, or F, I and W."""
        return (Kind.F, Kind.I, Kind.W) if self.is_split else (Kind.F, Kind.B)

    @property
    def held(self) -> list[int]:
        """By stage, the memory of one microbatch between its F and the end of its backward."""
        if isinstance(self.activation, int):
            return [self.activation] * self.num_stages
        return list(self.activation)

    def change(self, kind: Kind, stage: int) -> int:
        """Return what an operation adds to the memory of its rank, once it has ended."""
        held = self.held[stage]
        kept = round(held * self.kept_for_weights)
        return {Kind.F: held, Kind.B: -held, Kind.I: kept - held, Kind.W: -kept}[kind]

    def cost(self, kind: Kind, stage: int) -> int:
        """The time of one operation."""
        return int(self.costs.of(kind, self.num_stages)[stage])

    def send_cost(self, stage: int) -> int:
        """From a stage to the next, or back; 0 where both are on one rank."""
        if self.placement[stage] == self.placement[stage + 1]:
            return 0
        return int(self.costs.of_sends(self.num_stages)[stage])


@dataclass(frozen=True, slots=True)
class Puzzle:
    """Both budgets are corners of the trade-off: the search finds nothing faster within this
    memory, and with one unit less there is nothing as fast. A test searches again.
    """

    name: str
    difficulty: int
    """1 to 5."""
    story: str
    """The task, and its difficulty."""
    teaches: str
    """The lesson, shown after a pass."""
    problem: Problem
    memory: int
    """The most that activations may take on any rank, in the problem's unit."""
    makespan: int
    """The time in which the step must end."""

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Return the facts that a player needs: (label, text), in order."""
        problem = self.problem
        return [
            ("Stages", _placement(problem)),
            ("Microbatches", f"{problem.num_microbatches}"),
            ("Time", _times(problem)),
            ("Memory", _memory(problem)),
            ("Budget", f"time {self.makespan}, and memory {self.memory} on every rank"),
            ("Write", _form(problem)),
        ]

    def __str__(self) -> str:
        lines = [f"{self.name} (difficulty {self.difficulty} of 5)", self.story]
        return "\n".join([*lines, *(f"  {label}: {text}" for label, text in self.facts)])


def _placement(problem: Problem) -> str:
    if problem.placement == tuple(range(problem.num_ranks)):
        return f"{problem.num_stages}, stage s on rank s"
    held = [
        f"{listed([str(s) for s, holder in enumerate(problem.placement) if holder == rank])} on "
        f"rank {rank}"
        for rank in range(problem.num_ranks)
    ]
    return f"{problem.num_stages}: {'; '.join(held)}"


def _times(problem: Problem) -> str:
    parts = []
    for kind in problem.kinds:
        costs = [problem.cost(kind, stage) for stage in range(problem.num_stages)]
        parts.append(f"{kind} takes {_by_stage(costs)}")
    sends = [problem.send_cost(stage) for stage in range(problem.num_stages - 1)]
    parts.append(
        f"a message between ranks takes {max(sends)}" if any(sends) else "messages take none"
    )
    return ", ".join(parts)


def _memory(problem: Problem) -> str:
    if not problem.is_split:
        return f"F takes {_by_stage(problem.held)} until its B has ended"
    left = [-problem.change(Kind.W, stage) for stage in range(problem.num_stages)]
    if left == problem.held:
        return f"F takes {_by_stage(problem.held)} until its W has ended"
    return f"F takes {_by_stage(problem.held)}, of which {_by_stage(left)} stays from I to W's end"


def _by_stage(numbers: list[int]) -> str:
    if len(set(numbers)) == 1:
        return str(numbers[0])
    return f"{' '.join(map(str, numbers))} (by stage)"


def _form(problem: Problem) -> str:
    last = problem.kinds[-1]
    if problem.num_stages == problem.num_ranks:
        cells = f"F0 F1 ... {last}{problem.num_microbatches - 1}"
    else:
        stage = problem.placement.index(0)
        cells = f"F0@{stage} F1@{stage} ..., with the stage after @"
    split = ""
    if problem.is_split:
        split = "; a backward is I and later W, or both at once as B"
    return f"a line per rank, rank 0 first: {cells}{split}"


_LINE_OF_2, _LINE_OF_3 = (0, 1), (0, 1, 2)
_INTERLEAVED, _FOLDED = (0, 1, 0, 1), (0, 1, 1, 0)


class UnknownPuzzle(UserError, LookupError):
    """No puzzle has that name. The message lists those there are."""


def get_puzzle(name: str) -> Puzzle:
    """Return the puzzle called `name`; hyphens and underscores are spaces. Raises UnknownPuzzle."""
    plain = " ".join(str(name).replace("-", " ").replace("_", " ").split()).lower()
    if plain in PUZZLES:
        return PUZZLES[plain]
    raise UnknownPuzzle(
        f"there is no puzzle {str(name)[:100]!r}. The puzzles are: {', '.join(PUZZLES)}."
    )


_BOOK = [
    Puzzle(
        "two ranks",
        1,
        "Two microbatches through two stages. One after the other takes 12: while one rank works, "
        "the other is idle. Let both work at once.",
        "A rank that has sent a microbatch on takes in the next one at once. GPipe does just that: "
        "all forwards, then all backwards.",
        Problem(_LINE_OF_2, 2),
        memory=2,
        makespan=9,
    ),
    Puzzle(
        "let go",
        1,
        "Four microbatches, and memory for two. GPipe's order is fast enough, and holds all four.",
        "1F1B: once the pipeline is full, a backward before each further forward. It costs no time "
        "and bounds what is held by the number of stages, whatever the number of microbatches.",
        Problem(_LINE_OF_2, 4),
        memory=2,
        makespan=15,
    ),
    Puzzle(
        "slow last stage",
        2,
        "The last stage has the head over the vocabulary and takes twice as long as the others. "
        "1F1B would be in time, and holds three microbatches on rank 0.",
        "The slowest stage sets the pace, and the only question is whether it ever waits. Forwards "
        "that run ahead of it wait in memory and save nothing.",
        Problem(
            _LINE_OF_3,
            4,
            Costs(forward=[1, 1, 2], input_gradient=[1, 1, 2], weight_gradient=[1, 1, 2]),
        ),
        memory=2,
        makespan=30,
    ),
    Puzzle(
        "two of three",
        2,
        "Three ranks, and memory for two microbatches on each, where 1F1B takes three on rank 0. "
        "Some time must be lost; lose as little as possible.",
        "A microbatch is on its way through p stages and back, and with fewer than p of them under "
        "way somebody waits. Which of two orders waits less, only the grid in time shows.",
        Problem(_LINE_OF_3, 4),
        memory=2,
        makespan=21,
    ),
    Puzzle(
        "backward in two",
        2,
        "Each backward is split: I, the gradient of the input, for which the rank before waits, "
        "and W, the gradients of the weights, for which nobody does. 1F1B takes 12.",
        "Zero-bubble schedules send I as early as possible and fill with W the time in which a "
        "rank would be idle.",
        Problem(_LINE_OF_2, 3, is_split=True),
        memory=2,
        makespan=10,
    ),
    Puzzle(
        "slow first stage",
        3,
        "The first stage takes twice as long as the others: it alone has 24 units of work. GPipe "
        "takes 30 and 1F1B 26, since both let it wait.",
        "A bottleneck must always have work. Rank 0 has so only if it runs further ahead than "
        "1F1B lets it, and if the others send gradients back the moment they can.",
        Problem(
            _LINE_OF_3,
            4,
            Costs(forward=[2, 1, 1], input_gradient=[2, 1, 1], weight_gradient=[2, 1, 1]),
        ),
        memory=4,
        makespan=24,
    ),
    Puzzle(
        "slow messages",
        3,
        "A message takes as long as a whole backward, and keeps nobody busy meanwhile. 1F1B takes "
        "23, since it waits for every answer.",
        "Messages under way need more microbatches in flight to hide behind: the warmup is as long "
        "as the round trip, and the memory pays for it.",
        Problem(_LINE_OF_2, 4, Costs(send=2)),
        memory=3,
        makespan=20,
    ),
    Puzzle(
        "virtual stages",
        3,
        "Two stages on each rank: a microbatch goes round twice. The interleaved schedule takes 27 "
        "and holds five on rank 0.",
        "With v stages per rank, filling and draining take a v-th of the time. The interleaved "
        "schedule's warmup holds more than it must where so few microbatches follow.",
        Problem(_INTERLEAVED, 4),
        memory=4,
        makespan=27,
    ),
    Puzzle(
        "zero bubble",
        3,
        "Three ranks, split backwards, and memory for three microbatches on each. Every rank has "
        "12 units of work; no more may be lost than the 2 until the last rank has something to do.",
        "ZB-H1: rank r lags r weight gradients behind and ends with them. All ranks work to the "
        "end, and hold as much as 1F1B's first rank.",
        Problem(_LINE_OF_3, 4, is_split=True),
        memory=3,
        makespan=14,
    ),
    Puzzle(
        "folded",
        4,
        "Four stages folded into a V: rank 0 has the first and the last, and between the stages 1 "
        "and 2 nothing is sent. Backwards are split.",
        "In a V the rank that takes a microbatch in also computes its loss, so its backward begins "
        "where its forward did. ZB-V gets by with 1F1B's memory on every rank for this reason.",
        Problem(_FOLDED, 2, is_split=True),
        memory=4,
        makespan=13,
    ),
    Puzzle(
        "split and tight",
        4,
        "Three ranks, split backwards, and memory for two microbatches: a W that waits holds a "
        "place that a forward could take.",
        "Delaying W buys time with memory. Where memory is scarce, W goes where a rank waits "
        "anyway, and before a forward that needs its place.",
        Problem(_LINE_OF_3, 4, is_split=True),
        memory=2,
        makespan=17,
    ),
    Puzzle(
        "half a microbatch",
        5,
        "Three ranks, and an I lets go of half of what is held: its W needs only the inputs of its "
        "products. Memory is for two and a half microbatches.",
        "A delayed W holds less than a microbatch in flight, so waiting with W "
        "is cheaper than running ahead with F.",
        Problem(_LINE_OF_3, 4, is_split=True, activation=2, kept_for_weights=0.5),
        memory=5,
        makespan=16,
    ),
    Puzzle(
        "all at once",
        5,
        "Split backwards, a last stage whose forward and input gradient take twice as long, "
        "messages that take time, and memory for two microbatches. ZB-H1 takes 26 and holds three.",
        "No schedule with a name is the best one here. Where it matters a program searches: with "
        "measured times, under a memory limit (Qi et al., arXiv:2401.10241, section 3).",
        Problem(
            _LINE_OF_3,
            4,
            Costs(forward=[1, 1, 2], input_gradient=[1, 1, 2], weight_gradient=1, send=1),
            is_split=True,
        ),
        memory=2,
        makespan=30,
    ),
]

PUZZLES: dict[str, Puzzle] = {puzzle.name: puzzle for puzzle in _BOOK}
