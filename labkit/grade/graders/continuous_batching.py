"""Grade continuous_batching: traffic of requests, decided pass by pass until all have ended."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from labkit.grade.grader import Case, Draw, Mistake, Observed, Questions, patch, unexplained


class Arrival(NamedTuple):
    """A request comes before this pass, with so many tokens, and gets so many, up to a limit."""

    before: int
    prompt: int
    answer: int
    limit: int


class Request(NamedTuple):
    """What next_pass sees."""

    id: int
    num_tokens: int
    num_pages: int
    longest: int


class Decision(NamedTuple):
    """What a call of next_pass saw, and what it returned: ids to preempt, ids to compute."""

    waiting: list[Request]
    running: list[Request]
    num_free: int
    preempted: list[int]
    computed: list[int]

    @property
    def admitted(self) -> list[int]:
        """Who waited before."""
        return [request.id for request in self.waiting if request.id in self.computed]

    @property
    def running_on(self) -> list[int]:
        """Who ran before, and is in the pass."""
        return [request.id for request in self.running if request.id in self.computed]


def cases(draw: Draw) -> list[Case]:
    """One rule after the other, then random traffic in small caches."""
    asked: list[tuple[list[Arrival], int, int, int]] = [
        ([Arrival(0, 2, n, 8) for n in (8, 2, 2, 8)], 40, 2, 2),
        ([Arrival(0, 4, 3, 9), Arrival(0, 9, 2, 2), Arrival(1, 2, 2, 2)], 6, 2, 4),
        ([Arrival(0, 3, 9, 9), Arrival(0, 4, 9, 9), Arrival(1, 1, 3, 9)], 6, 2, 4),
        ([Arrival(0, 4, 6, 40), Arrival(1, 4, 6, 20), Arrival(2, 4, 6, 20)], 11, 4, 3),
        ([Arrival(0, 4, 4, 4), Arrival(1, 4, 2, 4)], 2, 4, 4),
        ([Arrival(0, 4, 5, 8), Arrival(0, 4, 5, 8), Arrival(1, 3, 2, 4)], 4, 4, 4),
        ([Arrival(0, n, 4, 4) for n in (7, 8, 1, 2)], 9, 4, 8),
    ]
    rng = draw.rng
    for _ in range(14):
        page_size, num_pages = rng.randint(1, 4), rng.randint(5, 8)
        arrivals, before = [], 0
        for _ in range(rng.randint(5, 12)):
            before += rng.choice((0, 0, 1, 2))
            prompt, limit = rng.randint(1, 2 * page_size), rng.randint(1, 3 * page_size)
            arrivals.append(Arrival(before, prompt, rng.randint(1, limit), limit))
        asked.append((arrivals, num_pages, page_size, rng.randint(2, 5)))
    return [
        Case(f"{len(its)} requests, {n} pages of {size}, {most} at once", its, n, size, most)
        for its, n, size, most in asked
    ]


def call(watch: Any, args: tuple[Any, ...]) -> list[Decision]:
    """Serve the traffic as the function says."""
    return serve(watch.function, *args)


def serve(
    decide: Callable[..., Any], arrivals: list[Arrival], pages: int, page_size: int, most: int
) -> list[Decision]:
    """All decisions until every request has ended, or until one that cannot be carried out."""
    lengths, held, made = [its.prompt for its in arrivals], [0] * len(arrivals), []
    longest = [its.prompt + its.limit for its in arrivals]
    left = [its.answer for its in arrivals]
    passes = 0
    while any(left) and passes < 200:
        passes += 1
        here = [n for n, its in enumerate(arrivals) if its.before < passes and left[n]]
        requests = [Request(n, lengths[n], held[n], longest[n]) for n in here]
        waiting, running = ([r for r in requests if bool(r.num_pages) == k] for k in (0, 1))
        if not requests:
            continue
        num_free = pages - sum(held)
        preempted, computed = decide([*waiting], [*running], num_free, page_size, most)
        made.append(Decision(waiting, running, num_free, sorted(preempted), sorted(computed)))
        for n in {*preempted} & {*here}:
            held[n] = 0
        for n in {*computed} & {*here}:
            held[n] = -(-lengths[n] // page_size)
        if sum(held) > pages or not {*preempted, *computed} <= {*here}:
            break
        for n in computed:
            lengths[n], left[n] = lengths[n] + 1, left[n] - 1
            held[n] *= left[n] > 0
    return made


def right(arrivals: list[Arrival], pages: int, page_size: int, most: int) -> list[Decision]:
    """The decisions of the rules."""
    return serve(decided, arrivals, pages, page_size, most)


def missing(request: Request, page_size: int) -> int:
    """Pages that a request takes in this pass."""
    return -(-request.num_tokens // page_size) - request.num_pages


def decided(
    waiting: list[Request],
    running: list[Request],
    num_free: int,
    page_size: int,
    most: int,
    joining: Callable[[Request, int], int] = missing,
    going_on: Callable[[Request, int], int] = missing,
) -> tuple[list[int], list[int]]:
    """Of all that the rules allow, the decision with the fewest preemptions and most admissions.

    joining, going_on: the pages that waiting and running requests take, so that they are admitted.
    """
    allowed = [
        kept
        for kept in range(len(running) + 1)
        if sum(missing(r, page_size) for r in running[:kept])
        <= num_free + sum(r.num_pages for r in running[kept:])
    ]
    gone = running[max(allowed) :]
    room = num_free - sum(going_on(r, page_size) for r in running)
    joins = [
        num
        for num in range(min(len(waiting), most - len(running)) + 1)
        if num == 0 or not gone and sum(joining(r, page_size) for r in waiting[:num]) <= room
    ]
    computed = [*running[: max(allowed)], *waiting[: max(joins)]]
    return [r.id for r in gone], [r.id for r in computed]


def first_wrong(s: Observed) -> tuple[Decision, Decision, int]:
    """The first wrong decision, the right one there, and its number; ValueError without one."""
    number = [a == b for a, b in zip(s.y, s.right[0], strict=False)].index(False)
    *_, preempted, computed = s.y[number]
    right = s.right[0][number]
    return right._replace(preempted=preempted, computed=computed), right, number


def decision_that(
    predicate: Callable[[Decision, Decision], object],
) -> Callable[[Observed], bool]:
    """A predicate: this one holds of the first wrong decision, and the right one there."""
    return lambda s: bool(predicate(*first_wrong(s)[:2]))


def describe(s: Observed) -> str:
    """The first wrong decision."""
    got, right, number = first_wrong(s)
    waiting, running = (
        ", ".join(f"{r.id} ({r.num_tokens} tokens, {r.num_pages} pages)" for r in each) or "none"
        for each in (got.waiting, got.running)
    )
    return (
        f"call {number}, waiting: {waiting}; running: {running}; {got.num_free} pages free: "
        f"got {(got.preempted, got.computed)}, expected {(right.preempted, right.computed)}"
    )


def is_static(s: Observed) -> bool:
    """Whether no request ever joins others that run."""
    got, right, _ = first_wrong(s)
    has_joined = any(
        running and {id for id, *_ in waiting} & {*computed}
        for waiting, running, *_, computed in s.y
    )
    return bool(got.running and right.admitted) and not has_joined


def overtakes(got: Decision, _: Decision) -> bool:
    """Whether one is admitted that has arrived after one that waits, perhaps preempted."""
    first = [request.id for request in got.waiting][: len(got.admitted)]
    return got.admitted != first or bool(got.preempted and got.admitted)


def admits_fewer(s: Observed) -> bool:
    """Whether the same requests go on, and the first ones that should join do, but not all."""
    got, right, _ = first_wrong(s)
    is_same = (got.preempted, got.running_on) == (right.preempted, right.running_on)
    return is_same and {*got.computed} < {*right.computed} and not overtakes(got, right)


def reserves(s: Observed) -> bool:
    """Whether all decisions keep pages for the longest answers: of those that join, or of all."""

    def in_the_end(request: Request, page_size: int) -> int:
        return -(-request.longest // page_size) - request.num_pages

    return any(
        s.y == serve(partial(decided, joining=in_the_end, going_on=going_on), *s.args)
        for going_on in (missing, in_the_end)
    )


def overcommits(s: Observed) -> bool:
    """Whether requests are admitted that need more pages than are free, beside those that run."""
    got, right, _ = first_wrong(s)
    computed = [r for r in (*got.waiting, *got.running) if r.id in got.computed]
    needed = sum(missing(r, s.args[2]) for r in computed)
    return bool(got.admitted) and not right.preempted and needed > got.num_free


MISTAKES = [
    Mistake(
        "waits until all of a batch have ended",
        "A place is idle from the end of one answer until the end of the longest one. Admit in "
        "every pass.",
        seen=is_static,
        made_by=patch("    if preempted:", "    if preempted or running:"),
    ),
    Mistake(
        "lets a small request overtake",
        "While small requests take the pages, a large one may never find enough of them. Stop at "
        "the first that does not fit, and at once after a preemption.",
        seen=decision_that(overtakes),
        made_by=patch(
            "            break", "            room += missing(request)\n            continue"
        ),
    ),
    Mistake(
        "keeps pages free for the longest answer",
        "Most answers are much shorter than allowed, so most of these pages stay empty. Admit by "
        "the tokens that are there, and preempt in the rare case.",
        seen=reserves,
        made_by=patch(
            "    for request in waiting[",
            "    room = num_free - sum(-(-r.longest // page_size) - r.num_pages for r in running)\n"
            "    for request in waiting[",
            "        room -= missing(request)",
            "        room -= -(-request.longest // page_size)",
        ),
    ),
    Mistake(
        "gives away more pages than are free",
        "Some running requests need a page in this pass, and each that joins needs ceil(num_tokens "
        "/ page_size). Take off the free pages first what those that run need, then what each "
        "takes that joins.",
        hint=3,
        seen=overcommits,
        made_by=patch("    if preempted:", "    room = num_free\n    if preempted:"),
    ),
    Mistake(
        "admits fewer than there is room for",
        "Requests join until max_running are in the pass or the next one's pages are not free. The "
        "last place counts, too, and the last page. A page is for tokens that are there: "
        "ceil(num_tokens / page_size), none for later ones.",
        hint=3,
        seen=lambda s: admits_fewer(s) and not is_static(s) and not reserves(s),
        made_by=patch("        if room < 0:\n", "        if room <= 0:\n"),
    ),
    Mistake(
        "leaves out requests that go on",
        "The second list has all requests that the pass computes: those that go on, and those that "
        "join.",
        hint=2,
        seen=decision_that(
            lambda got, right: (
                got.preempted == right.preempted and {*got.running_on} < {*right.running_on}
            )
        ),
        made_by=patch("computed = [request.id for request in going_on]", "computed = []"),
    ),
    Mistake(
        "does not preempt when pages run out",
        "A pass in which a running request has no page for its next token cannot be computed. "
        "Preempt the last arrival, so that the others go on.",
        seen=decision_that(lambda got, right: right.preempted and not got.preempted),
        made_by=patch("while room < 0:", "while room < 0 and not room:"),
    ),
    Mistake(
        "preempts another one than the last arrival",
        "If the first can be preempted, each can be preempted again and again, and perhaps none "
        "ends. The last arrival has also lost the least.",
        hint=2,
        seen=decision_that(
            lambda got, _: got.preempted and got.running[-1].id not in got.preempted
        ),
        made_by=patch("going_on.pop()", "going_on.pop(0)"),
    ),
    Mistake(
        "preempts more than needed",
        "Each preempted request computes all its tokens again. Stop as soon as there is room.",
        hint=2,
        seen=decision_that(
            lambda got, right: (
                {*right.preempted} < {*got.preempted} <= {request.id for request in got.running}
            )
        ),
        made_by=patch("while room < 0:", "while room < 0 or preempted and going_on:"),
    ),
    Mistake(
        "computes more requests than allowed",
        "max_running counts all requests of the pass, also those that run already.",
        hint=3,
        seen=lambda s: len(first_wrong(s)[0].computed) > s.args[3],
        made_by=patch("waiting[: max_running - len(going_on)]", "waiting[:max_running]"),
    ),
]

GRADER = Questions(
    name="continuous_batching",
    functions=("next_pass",),
    cases=cases,
    right=right,
    call=call,
    same=lambda got, right, case: got == right,
    num_arguments=5,
    mistakes=MISTAKES,
    closed=("labkit.serving",),
    describe=describe,
    fault=unexplained(
        "a pass computes other requests",
        "Count the pages of this pass by hand, in order of arrival.",
        describe,
    ),
    shown="no pass has an idle place that a waiting request could fill, no page is taken twice, "
    "and every request ends",
)
