"""Grade exposed_communication: drawn traces, looked at microsecond by microsecond."""

from collections.abc import Iterator

from labkit.grade.grader import Case, Draw, Mistake, Questions, patch, patches

Span = tuple[int, int]
Spans = list[Span]


def cases(draw: Draw) -> Iterator[Case]:
    """One kernel of each kind first, then what each rule is about, then drawn traces."""
    rng = draw.rng

    def drawn(longest: int) -> Spans:
        starts = [rng.randrange(970, 1199) for _ in range(rng.randrange(3, 8))]
        return [(start, start + rng.randrange(2, longest)) for start in starts]

    for label, compute, communication in [
        ("one kernel each", [(1010, 1060)], [(1040, 1100)]),
        ("hidden completely", [(1010, 1160)], [(1040, 1100)]),
        ("one after the other", [(1010, 1040)], [(1040, 1100)]),
        ("nothing communicates", [(1010, 1040)], []),
        ("nothing computes", [], [(1010, 1040), (1030, 1070)]),
        ("outside the step", [(1010, 1040)], [(900, 1000), (1200, 1210)]),
        ("over the step's edges", [(950, 1020)], [(980, 1050), (1170, 1300)]),
        ("a kernel inside another", [(1110, 1150)], [(1010, 1190), (1020, 1060)]),
        ("two computing streams", [(1010, 1090), (1020, 1100)], [(1030, 1150)]),
        *((f"drawn trace {number}", drawn(60), drawn(70)) for number in range(12)),
    ]:
        yield Case(label, compute, communication, (1000, 1200))


def during(spans: Spans, step: Span) -> set[int]:
    """Return the microseconds of the step in which a span runs."""
    return {at for start, end in spans for at in range(max(start, step[0]), min(end, step[1]))}


def right(compute: Spans, communication: Spans, step: Span) -> tuple[int, int, float]:
    """Counted microseconds."""
    both = during(communication, step)
    exposed = both - during(compute, step)
    return len(both), len(exposed), (len(both) - len(exposed)) / len(both) if both else 0


EXPOSED = "exposed = either - length(merged(compute))"
TOTAL = "length(merged(communication))"
MERGED = "merged(compute)", "merged(communication)"
OTHER_TOTALS = ("(step[1] - step[0])", "either", "max(1, length(merged(compute)))")
ADDED_UP = "sum(length(merged([each])) for each in communication)"


def less_pairs(compute: str, communication: str = "communication") -> str:
    """Communication without what it has in common with computing, pair by pair of kernels."""
    both = f"merged([(max(a, c), min(b, d))]) for a, b in {communication} for c, d in {compute}"
    return f"exposed = communicating - sum(map(length, ({both})))"


MISTAKES = [
    Mistake(
        "adds up kernels that run at the same time",
        "Two streams may communicate at the same time. Merge the kernels first: a microsecond "
        "counts once, however many kernels run in it.",
        [
            patch(TOTAL, "length(communication)"),
            patch(TOTAL, ADDED_UP),
            patch(TOTAL, ADDED_UP, EXPOSED, less_pairs("merged(compute)")),
            patch(
                TOTAL,
                ADDED_UP,
                EXPOSED,
                "exposed = communicating - length(merged(communication)) + either"
                " - length(merged(compute))",
            ),
        ],
    ),
    Mistake(
        "a kernel inside another one cuts it short",
        "In order of their starts, the later of two kernels may end first. Both together end at "
        "the larger of the two ends.",
        [
            patch("max(apart[-1][1], end)", "end"),
            patch("max(apart[-1][1], end)", "end", EXPOSED, less_pairs(*MERGED)),
        ],
        hint=2,
    ),
    Mistake(
        "counts time outside the step",
        "If a kernel crosses an edge of the step, only the part inside counts: from "
        "max(start, step start) to min(end, step end), if that is not empty.",
        patch("(max(start, step[0]), min(end, step[1])) for start", "(start, end) for start"),
        hint=2,
    ),
    Mistake(
        "subtracts computing from communication",
        "The totals do not say when something ran. One second of each may overlap completely or "
        "not at all. Ask for each moment what runs in it.",
        patches(
            EXPOSED,
            "exposed = communicating - length(merged(compute))",
            "exposed = max(0, communicating - length(merged(compute)))",
        ),
    ),
    Mistake(
        "counts idle time as exposed",
        "A moment without any kernel is idle, not exposed communication. Its cause may be the data "
        "loader or the launches. Exposed is only time in which a communication kernel runs.",
        patch(EXPOSED, "exposed = step[1] - step[0] - length(merged(compute))"),
    ),
    Mistake(
        "subtracts hidden time twice",
        "Where two computing kernels run during one communication kernel, that time is hidden "
        "once. Merge both lists before you intersect them.",
        patches(
            EXPOSED,
            less_pairs("compute"),
            f"{less_pairs('compute', MERGED[1])}\n    exposed = max(0, exposed)",
        ),
        hint=2,
    ),
    Mistake(
        "overlap is a share of something else",
        "The overlap is the hidden communication divided by all communication: 1 if all of it is "
        "hidden. It is no share of the step or of computing, and not per cent.",
        patches(
            "(communicating - exposed) / communicating if",
            "exposed / communicating if",
            "100 * (communicating - exposed) / communicating if",
            *(f"(communicating - exposed) / {other} if" for other in OTHER_TOTALS),
            "1 - exposed / (step[1] - step[0]) if",
        ),
    ),
]

GRADER = Questions(
    cases=cases,
    right=right,
    mistakes=MISTAKES,
    picture=lambda s: "compute {}\ncommunication {}\nstep {}".format(*s.args),
    closed=("labkit.profile",),
    shown="you merge kernels of all streams, cut them at the step, and count as exposed only the "
    "communication during which nothing computes",
)
