"""Grade exposed_communication: drawn traces, looked at microsecond by microsecond."""

from collections.abc import Callable, Iterator

from labkit.grade.grader import Case, Draw, Mistake, Observed, Outcome, Questions, patch

Span = tuple[int, int]
Spans = list[Span]
Of = Callable[[Spans, Spans, Span], list[float]]
"""Wrong values, from the arguments of a case."""
STEP, ALWAYS = (1000, 1200), (0, 10_000)


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
        yield Case(label, compute, communication, STEP)


def during(spans: Spans, step: Span) -> set[int]:
    """The microseconds of the step in which a span runs."""
    return {at for start, end in spans for at in range(max(start, step[0]), min(end, step[1]))}


def right(compute: Spans, communication: Spans, step: Span) -> tuple[int, int, float]:
    """Counted microseconds."""
    both = during(communication, step)
    exposed = both - during(compute, step)
    return len(both), len(exposed), (len(both) - len(exposed)) / len(both) if both else 0


def first_wrong(place: int, of: Of) -> Callable[[Observed], bool]:
    """Predicate: the value at `place` is one of those, and is the first wrong one."""

    def seen(s: Observed) -> bool:
        is_right = [abs(a - b) < 1e-9 for a, b in zip(s.y, s.right[0], strict=True)]
        near = (abs(s.y[place] - value) < 1e-9 for value in of(*s.args))
        return all(is_right[:place]) and not is_right[place] and any(near)

    return seen


def outside(compute: Spans, communication: Spans, step: Span) -> list[float]:
    """Communication with whole kernels, without those over an edge, or with those that begin in."""
    starting = [span for span in communication if step[0] <= span[0] < step[1]]
    inside = [span for span in starting if span[1] <= step[1]]
    return [len(during(spans, ALWAYS)) for spans in (communication, starting, inside)]


def added_up(compute: Spans, communication: Spans, step: Span) -> list[float]:
    """Lengths of all communication kernels, or of their parts in the step."""
    return [sum(len(during([each], s)) for each in communication) for s in (step, ALWAYS)]


def of_totals(compute: Spans, communication: Spans, step: Span) -> list[float]:
    """Communication less computing."""
    difference = len(during(communication, step)) - len(during(compute, step))
    return [difference, max(0, difference)]


def twice(compute: Spans, communication: Spans, step: Span) -> list[float]:
    """Communication less the overlaps of pairs of kernels."""
    running, computing = during(communication, step), during(compute, step)
    by_one = [during([each], step) for each in communication]
    by_other = [during([each], step) for each in compute]
    hidden = [
        sum(len(one & computing) for one in by_one),
        sum(len(running & other) for other in by_other),
        sum(len(one & other) for one in by_one for other in by_other),
    ]
    return [value for h in hidden for value in (len(running) - h, max(0, len(running) - h))]


def other_share(compute: Spans, communication: Spans, step: Span) -> list[float]:
    """Hidden time as a share of computing or of the step; the exposed share; per cent."""
    total, exposed, overlap = right(compute, communication, step)
    hidden, computing = total - exposed, len(during(compute, step)) or 1
    return [hidden / computing, hidden / (step[1] - step[0]), 1 - overlap, 100 * overlap]


EXPOSED = "exposed = either - length(merged(compute))"
MISTAKES = [
    Mistake(
        "adds up kernels that run at the same time",
        "Two streams may communicate at the same time. Merge the kernels first: a microsecond "
        "counts once, however many kernels run in it.",
        seen=first_wrong(0, added_up),
        made_by=patch("length(merged(communication))", "length(communication)"),
    ),
    Mistake(
        "counts time outside the step",
        "Of a kernel that crosses an edge of the step, the part inside counts: from "
        "max(start, step start) to min(end, step end), if that is not empty.",
        hint=2,
        seen=first_wrong(0, outside),
        made_by=patch("(max(start, step[0]), min(end, step[1]))", "(start, end)"),
    ),
    Mistake(
        "subtracts computing from communication",
        "The totals do not say when something ran. One second of each may overlap completely or "
        "not at all. Ask for each moment what runs in it.",
        seen=first_wrong(1, of_totals),
        made_by=patch(EXPOSED, "exposed = max(0, communicating - length(merged(compute)))"),
    ),
    Mistake(
        "counts idle time as exposed",
        "A moment without any kernel is idle, not exposed communication. Its cause may be the data "
        "loader or the launches. Exposed is only time in which a communication kernel runs.",
        seen=first_wrong(1, lambda p, c, step: [step[1] - step[0] - len(during(p, step))]),
        made_by=patch(EXPOSED, "exposed = step[1] - step[0] - length(merged(compute))"),
    ),
    Mistake(
        "subtracts hidden time twice",
        "Where two computing kernels run during one communication kernel, that time is hidden "
        "once. Merge both lists before you intersect them.",
        hint=2,
        seen=first_wrong(1, twice),
        made_by=patch(
            EXPOSED,
            "exposed = communicating - sum(length(merged([(max(a, c), min(b, d))]))\n"
            "        for a, b in compute for c, d in communication if max(a, c) < min(b, d))",
        ),
    ),
    Mistake(
        "overlap is a share of something else",
        "The overlap is the hidden communication divided by all communication: 1 if all of it is "
        "hidden. It is a share, not per cent.",
        seen=first_wrong(2, other_share),
        made_by=patch("(communicating - exposed) / communicating if", "exposed / communicating if"),
    ),
    Mistake(
        "divides by zero where nothing communicates",
        "A step without communication has overlap 0. Ask before you divide.",
        hint=3,
        outcome=Outcome.CRASHED,
        seen=lambda s: "ZeroDivisionError" in s.error,
        made_by=patch(" if communicating else 0.0", ""),
    ),
]

GRADER = Questions(
    name="exposed_communication",
    cases=cases,
    right=right,
    mistakes=MISTAKES,
    picture=lambda s: "compute {}\ncommunication {}\nstep {}".format(*s.args),
    closed=("labkit.profile",),
    shown="you merge kernels of all streams, cut them at the step, and count as exposed only the "
    "communication during which nothing computes",
)
