"""Grade continuous_batching: what to do in random states of a server with a small cache."""

import itertools
from collections import namedtuple
from typing import Any

from labkit.grade import grader as g

Request = namedtuple("Request", ("id", "num_tokens", "num_pages", "longest"))


def cases(draw: g.Draw) -> list[g.Case]:
    """Draw random states, small ones first. Each request fits into the empty cache. A running
    request has pages for all of its tokens but the last."""
    rng, listed = draw.rng, []
    for _ in range(200):
        size, num_running = rng.randint(1, 4), rng.randint(0, 6)
        num_waiting = rng.randint(int(num_running == 0), 5)
        num_free = rng.randint(int(num_running < 2), 6)
        tokens = [rng.randint(2, 3 * size + 1) for _ in range(num_running)]
        pages = [-(-(num - 1) // size) for num in tokens] + [0] * num_waiting
        room = (num_free + sum(pages)) * size
        tokens += [rng.randint(1, min(4 * size, room)) for _ in range(num_waiting)]
        longest = [min(room, num + rng.randint(1, 3 * size)) for num in tokens]
        requests = [Request(*its) for its in zip(itertools.count(5), tokens, pages, longest)]
        queues = requests[num_running:], requests[:num_running]
        most = max(1, num_running + rng.randint(0, 4))
        label = f"waiting: {in_words(queues[0])}; running: {in_words(queues[1])}; "
        label += f"{num_free} free pages of {size} tokens, at most {most} run"
        listed.append(g.Case(label, *queues, num_free, size, most))
    return sorted(listed, key=lambda case: len(case.args[0] + case.args[1]))


def in_words(requests: list[Any]) -> str:
    """Describe requests for a label."""
    words = (f"{r.id} ({r.num_tokens} tokens, {r.num_pages} pages)" for r in requests)
    return ", ".join(words) or "none"


def right(
    waiting: list[Any], running: list[Any], num_free: int, size: int, most: int
) -> tuple[list[int], list[int]]:
    """Return the preempted requests (the fewest), and the computed ones (the most that fit)."""

    def fits(*requests: Any) -> bool:
        held = sum(r.num_pages for r in running)
        return sum(-(-r.num_tokens // size) for r in requests) <= num_free + held

    num_kept = max(k for k in range(len(running) + 1) if fits(*running[:k]))
    joins = waiting[: most - len(running)] if num_kept == len(running) else []
    num_joins = max(k for k in range(len(joins) + 1) if k == 0 or fits(*running, *joins[:k]))
    computed = running[:num_kept] + joins[:num_joins]
    return [r.id for r in running[num_kept:]], [r.id for r in computed]


JOINS, CEIL = "    for request in waiting[", "-(-request.num_tokens // page_size)"
PLACES, FLOOR = "max_running - len(going_on)", "request.num_tokens // page_size"
LONGEST = CEIL.replace("num_tokens", "longest")
TAKES = "room -= missing(request)", f"room -= {LONGEST}"
KEPT = f"    room = num_free + sum(request.num_pages - {LONGEST} for request in going_on)\n"
MISTAKES = [
    g.Mistake(
        "admits nobody while others run",
        "A place is idle from the end of one answer until the end of the longest one. Admit in "
        "every pass.",
        g.patch("    if preempted:", "    if preempted or running:"),
    ),
    g.Mistake(
        "lets a small request overtake",
        "While small requests take the pages, a large one may never find enough of them. Stop at "
        "the first that does not fit, and at once after a preemption.",
        [
            g.patch(
                *(f"waiting[: {PLACES}]", "waiting"),
                *("if room < 0:", "if room < 0 or len(computed) == max_running:"),
                *("break\n", "room += missing(request)\n            continue\n"),
            ),
            g.patch("    if preempted:", "    if False:"),
            g.patch("in waiting[", "in sorted(waiting, key=lambda each: each.num_tokens)["),
        ],
    ),
    g.Mistake(
        "keeps pages free for the longest answer",
        "Most answers are much shorter than allowed, so most of these pages stay empty. Admit by "
        "the tokens that are there, and preempt in the rare case.",
        [g.patch(*TAKES), g.patch(*TAKES, JOINS, KEPT + JOINS), g.patch(CEIL, LONGEST)],
    ),
    g.Mistake(
        "gives away pages that running requests need",
        "Some running requests need a page in this pass. Take these off the free pages first, then "
        "what each takes that joins.",
        g.patch(JOINS, f"    room = num_free\n{JOINS}"),
        hint=3,
    ),
    g.Mistake(
        "counts more or fewer pages than a pass needs",
        "A pass needs ceil(num_tokens / page_size) pages for each request: the new token gets its "
        "place in the next pass. The next request joins if its pages are free. The last page "
        "counts, too.",
        [
            *g.patches("if room < 0", "if room < 1", "if room < 2", "if room < len(computed)"),
            *g.patches(CEIL, FLOOR, f"{FLOOR} + 1", f"1 + {CEIL}"),
            *g.patches("-= missing(request)", "-= 1", f"-= {FLOOR} + 1"),
        ],
        hint=3,
    ),
    g.Mistake(
        "computes more requests than max_running",
        "The places of those that go on are taken. What is left of max_running can join.",
        g.patches(PLACES, "max_running", f"{PLACES} + 1"),
    ),
    g.Mistake(
        "does not preempt when pages run out",
        "A pass in which a running request has no page for its next token cannot be computed. "
        "Preempt the last arrival, so that the others go on.",
        g.patch("while room < 0:", "while False:"),
        wrong=lambda s: s.right[0][0] and not s.y[0],
    ),
    g.Mistake(
        "preempts another one than the last arrival",
        "If the first can be preempted, each can be preempted again and again, and perhaps none "
        "ends. The last arrival has also lost the least.",
        g.patch("going_on.pop()", "going_on.pop(0)"),
        wrong=lambda s: s.y[0] and s.args[1][-1].id not in s.y[0],
        hint=2,
    ),
    g.Mistake(
        "preempts more than needed",
        "Each preempted request computes all its tokens again. Stop as soon as there is room: a "
        "request that is preempted gives up its pages, and needs no new one.",
        g.patch("room += missing(last) + last.num_pages", "room += missing(last)"),
        wrong=lambda s: {*s.right[0][0]} < {*s.y[0]} <= {r.id for r in s.args[1]},
        hint=2,
    ),
]

GRADER = g.Questions(
    functions=("next_pass",),
    cases=cases,
    right=right,
    same=lambda got, right, case: [*map(sorted, got)] == [*map(sorted, right)],
    mistakes=MISTAKES,
    closed=("labkit.serving",),
    describe=lambda s: f"got {s.y}, expected {s.right[0]}",
    unexplained=("a pass computes other requests", "Follow this pass by hand, page by page."),
    shown="no pass has an idle place that a waiting request could fill, no page is taken twice, "
    "and every request ends",
)
