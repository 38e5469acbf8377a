"""Grade paged_cache: after each call, each sequence's tokens and pages, and how many are free."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from labkit.grade.grader import Case, Draw, Mistake, Observed, Questions, patch, unexplained

Call = tuple[Any, ...]  # ("append", sequence, n), ("fork", parent, child) or ("free", sequence)
NAMES = range(4)
EMPTY: list[list[int]] = [[] for _ in NAMES]


class State(NamedTuple):
    """After a call: what it returned, how many pages are free; by sequence its pages, its tokens.

    Tokens are numbered as they are given to append; `tokens` has all slots of the pages.
    """

    returned: Any
    num_free: int
    tables: list[list[int]]
    tokens: list[list[int]]

    @property
    def held(self) -> set[int]:
        """Pages in any table."""
        return {*sum(self.tables, [])}


class Step(NamedTuple):
    """A call, the states before and after it, and what they should be."""

    call: Call
    before: State
    got: State
    right_before: State
    right: State


def cases(draw: Draw) -> list[Case]:
    """One rule after the other, then random calls with pools that are often full."""
    shared = [("append", 0, 6), ("fork", 0, 1), ("append", 1, 1)]
    asked: list[tuple[int, int, list[Call]]] = [
        (6, 4, [("append", 0, 3), ("append", 0, 1), ("append", 0, 1), ("append", 1, 8)]),
        (7, 2, [("append", 0, 4), ("append", 1, 2), ("append", 0, 3), ("free", 0), ("free", 0)]),
        (6, 4, [*shared, ("append", 0, 1), ("free", 0), ("free", 1)]),
        (6, 4, [*shared, ("free", 0), ("append", 1, 1), ("free", 1)]),
        (3, 4, [("append", 0, 5), ("append", 1, 5), ("append", 1, 3), ("append", 2, 4)]),
        (2, 4, [*shared, ("free", 0), ("append", 1, 1)]),
    ]
    rng = draw.rng
    for _ in range(12):
        calls: list[Call] = []
        for _ in range(15):
            a, b = rng.sample(NAMES, 2)
            append = ("append", a, rng.randint(1, 6))
            fork = [("free", b), ("fork", a, b), ("append", b, 1)]
            calls += rng.choice(([append], [append], fork, [("free", a)]))
        asked.append((rng.randint(4, 9), rng.choice((1, 2, 3, 4)), calls))
    return [Case(f"{n} pages of {size}, {len(its)} calls", n, size, its) for n, size, its in asked]


def call(watch: Any, args: tuple[Any, ...]) -> list[State]:
    """Make the calls, and read the slots through the tables after each."""
    num_pages, page_size, calls = args
    slots_NK, states, count = torch.zeros(num_pages * page_size, 3), [], itertools.count(1)
    cache = watch.function(slots_NK, page_size)
    for kind, name, *more in calls:
        if kind == "append":
            rows_n = torch.tensor([next(count) for _ in range(more[0])])
            more = [rows_n[:, None].repeat(1, 3).float()]
        returned = getattr(cache, kind)(name, *more)
        tables = [[int(page) for page in cache.table(each)] for each in NAMES]
        pages_PnK = slots_NK.unflatten(0, (num_pages, page_size))
        tokens = [
            [n for page in its for n in pages_PnK[page].mean(-1).int().tolist()] for its in tables
        ]
        states.append(State(returned, cache.num_free(), tables, tokens))
    return states


def right(num_pages: int, page_size: int, calls: list[Call]) -> list[State]:
    """With a new number for each page that is taken: it fits if the numbers in use are few."""
    tables, tokens, states = [*EMPTY], [*EMPTY], []
    fresh, count = itertools.count(), itertools.count(1)
    for kind, name, *more in calls:
        returned = None
        if kind == "append":
            rows, old = [next(count) for _ in range(more[0])], tables[name]
            is_shared = any(old[-1:] == its[-1:] for n, its in enumerate(tables) if n != name)
            kept = len(old) - (len(tokens[name]) % page_size > 0 and is_shared)
            num_new = -(-(len(tokens[name]) + len(rows)) // page_size) - kept
            table = [*old[:kept], *itertools.islice(fresh, num_new)]
            after = [table if n == name else its for n, its in enumerate(tables)]
            if returned := len({*sum(after, [])}) <= num_pages:
                tables, tokens[name] = after, tokens[name] + rows
        elif kind == "fork":
            tables[more[0]], tokens[more[0]] = tables[name], tokens[name]
        else:
            tables[name], tokens[name] = [], []
        states.append(State(returned, num_pages - len({*sum(tables, [])}), [*tables], [*tokens]))
    return states


def steps(args: tuple[Any, ...], got: list[State], expected: list[State]) -> Iterator[Step]:
    """All calls, in order."""
    new = State(None, args[0], EMPTY, EMPTY)
    states = [new, *(State(*each) for each in got)]
    return map(Step, args[2], states, states[1:], [new, *expected], expected)


def problem(step: Step) -> str:
    """What is wrong after a call, in words; empty for a right state."""
    _, before, got, right_before, right = step
    for name, (mine, its) in enumerate(zip(got.tokens, right.tokens, strict=True)):
        if mine[: len(its)] != its:
            return f"the tokens of sequence {name} are {mine[: len(its)]}, expected {its}"
    if got.returned != right.returned:
        return f"it returned {got.returned}, expected {right.returned}"
    if renumbered(before.tables + got.tables) != renumbered(right_before.tables + right.tables):
        return f"the tables were {before.tables} and are {got.tables}"
    if got.num_free != right.num_free:
        return f"num_free() is {got.num_free}, expected {right.num_free}"
    return ""


def renumbered(tables: list[list[int]]) -> list[list[int]]:
    """With pages numbered in the order in which they first stand there."""
    numbers: dict[int, int] = {}
    return [[numbers.setdefault(page, len(numbers)) for page in its] for its in tables]


def first_wrong(s: Observed) -> Step:
    """The first call after which the state is wrong; StopIteration without one."""
    return next(step for step in steps(s.args, s.y, s.right[0]) if problem(step))


def describe(s: Observed) -> str:
    """The first call that goes wrong."""
    step = first_wrong(s)
    return f"{step.call[0]}({', '.join(map(str, step.call[1:]))}): {problem(step)}"


def append_that(predicate: Callable[..., bool]) -> Callable[[Observed], bool]:
    """A predicate: the first call that goes wrong is an append, for which this one holds.

    It is asked with the name, the states before and after, and what these two should be.
    """

    def seen(s: Observed) -> bool:
        (kind, name, *_), *states = first_wrong(s)
        return kind == "append" and bool(predicate(name, *states))

    return seen


def overwrites(name: int, before: State, got: State, *_: State) -> bool:
    """Whether another sequence that holds the page has other tokens now, in the same table."""
    return any(
        got.tokens[n] != before.tokens[n] and {*got.tables[n]} & {*got.tables[name]}
        for n in NAMES
        if n != name and got.tables[n] == before.tables[n]
    )


def leaks(s: Observed, of_copies: bool) -> bool:
    """Whether too few pages are free: one that was copied is missing, or those of a sequence."""
    copied: set[int] = set()
    for step in steps(s.args, s.y, s.right[0]):
        for old, new in zip(step.before.tables, step.got.tables, strict=True):
            copied |= {a for a, b in zip(old, new, strict=False) if a != b}
        if problem(step):
            too_few = step.got.num_free < step.right.num_free
            is_of_copies = not copied.isdisjoint(step.before.held - step.got.held)
            is_known = is_of_copies or step.call[0] == "free"
            return too_few and is_known and is_of_copies == of_copies
    return False


def writes_elsewhere(name: int, _: State, got: State, right_before: State, right: State) -> bool:
    """Whether there was room, and the new tokens are not where the table says."""
    new = slice(len(right_before.tokens[name]), len(right.tokens[name]))
    is_wrong = got.tokens[name][new] != right.tokens[name][new]
    return got.returned is True and is_wrong and any(map(any, got.tokens))


def copies_at_fork(s: Observed) -> bool:
    """Whether a fork gave the child pages that the parent does not hold."""
    kind, *names = (step := first_wrong(s)).call
    return kind == "fork" and not {*step.got.tables[names[1]]} <= {*step.got.tables[names[0]]}


def keeps_tokens(name: int, got: State, right_before: State) -> bool:
    """Whether the tokens are there that the sequence had before."""
    old = right_before.tokens[name]
    return got.tokens[name][: len(old)] == old


def copies_more(name: int, before: State, got: State, right_before: State, right: State) -> bool:
    """Whether other pages hold the tokens that were there, and it was not needed."""
    old = slice(len(before.tables[name]))
    needs_none = right.tables[name][old] == right_before.tables[name]
    has_copied = got.tables[name][old] != before.tables[name]
    return needs_none and has_copied and keeps_tokens(name, got, right_before)


MISTAKES = [
    Mistake(
        "takes a page before it is needed",
        "T tokens need ceil(T / page_size) pages: a full last page is no reason to take another.",
        hint=2,
        seen=append_that(
            lambda name, before, got, right_before, right: (
                right.returned and len(got.tables[name]) > len(right.tables[name])
            )
        ),
        made_by=patch("while len(pages) * size < end:", "while len(pages) * size <= end:"),
    ),
    Mistake(
        "writes to a page that another sequence holds",
        "After a fork both sequences hold the last page, which may have room. The first one that "
        "writes takes a copy, or the other one reads tokens that are not its own.",
        seen=append_that(overwrites),
        made_by=patch("must_copy = begin % size > 0 and", "must_copy = False and"),
    ),
    Mistake(
        "has one list for two tables",
        "A fork shares the pages. The lists of pages are two, for the sequences go on differently: "
        "copy the list.",
        hint=3,
        seen=append_that(
            lambda name, before, got, *_: any(
                before.tables[n] != got.tables[n] for n in NAMES if n != name
            )
        ),
        made_by=patch(
            *(
                "self.lengths[child] = self.table(parent), ",
                "self.lengths[child] = self.tables.get(parent, []), ",
            ),
            *(
                "size, pages = self.page_size, self.table(sequence)",
                "size, pages = self.page_size, self.tables.get(sequence, [])",
            ),
        ),
    ),
    Mistake(
        "takes a new page without the tokens of the old one",
        "The page holds tokens before the new ones. Copy them, too, or the sequence has lost them.",
        hint=3,
        seen=append_that(
            lambda name, before, got, right_before, _: (
                not {*before.tables[name]} <= {*got.tables[name]}
                and not keeps_tokens(name, got, right_before)
            )
        ),
        made_by=patch("            self.of_page(pages[-1]).copy_(self.of_page(shared))\n", ""),
    ),
    Mistake(
        "copies a page without need",
        "A sequence copies a page that it writes to and others hold. A full page gets no more "
        "tokens, and a page of a single holder is its own.",
        hint=2,
        seen=append_that(copies_more),
        made_by=patch("begin % size > 0 and self", "begin > 0 and self"),
    ),
    Mistake(
        "copies pages at a fork",
        "Most shared pages are never written again. A fork only counts one holder more.",
        seen=copies_at_fork,
        made_by=patch(
            "self.tables[child], self.lengths[child] = self.table(parent), ",
            "rows_nK = self.slots_NK.unflatten(0, (-1, self.page_size))[self.table(parent)]\n"
            "        self.append(child, rows_nK.flatten(0, 1)[: self.lengths.get(parent, 0)])\n"
            "        return\n"
            "        self.tables[child], self.lengths[child] = self.table(parent), ",
        ),
    ),
    Mistake(
        "makes a page free that a sequence still holds",
        "The next sequence takes this page and writes over the tokens. A page is free when its "
        "last holder gives it up.",
        hint=2,
        seen=lambda s: (got := first_wrong(s).got).num_free + len(got.held) > s.args[0],
        made_by=patch("if self.holders[page] == 0:", "if self.holders[page] >= 0:"),
    ),
    Mistake(
        "does not give up the page that it copied",
        "The copy takes the page's place in one table, so the page has one holder less. Otherwise "
        "it is never free again, and each fork leaks a page.",
        hint=3,
        seen=lambda s: leaks(s, of_copies=True),
        made_by=patch("            self.release(shared)\n", ""),
    ),
    Mistake(
        "does not make pages free again",
        "The pages of a sequence that ended go back to the pool. Otherwise it is empty after a "
        "while, and every append returns False.",
        seen=lambda s: leaks(s, of_copies=False),
        made_by=patch("            self.free_pages.append(page)", "            pass"),
    ),
    Mistake(
        "takes pages though there is no room",
        "An append that returns False changes nothing. Count first, then take.",
        hint=3,
        seen=lambda s: (
            (step := first_wrong(s)).got.returned is step.right.returned is False
            and step.got.num_free < step.before.num_free
        ),
        made_by=patch(
            *("- len(pages) + must_copy > self.num_free():", "* 0 + must_copy > self.num_free():"),
            "            pages.append(self.take())",
            "            if not self.free_pages:\n                return False\n"
            "            pages.append(self.take())",
        ),
    ),
    Mistake(
        "writes past the end of a page",
        "The next page of a sequence is anywhere. Compute the slot of each token from the table.",
        hint=3,
        seen=append_that(writes_elsewhere),
        made_by=patch(
            "[[pages[i // size] * size + i % size for i in range(begin, end)]]",
            "[[(pages[begin // size] * size + begin % size + i) % len(self.slots_NK)"
            " for i in range(end - begin)]]",
        ),
    ),
]

GRADER = Questions(
    name="paged_cache",
    functions=("PagedCache",),
    cases=cases,
    right=right,
    same=lambda got, right, case: not any(map(problem, steps(case.args, got, right))),
    call=call,
    num_arguments=2,
    mistakes=MISTAKES,
    closed=("labkit.serving",),
    describe=describe,
    fault=unexplained(
        "a call leaves a wrong state",
        "Follow this call by hand: which pages are taken, copied and given up.",
        describe,
    ),
    shown="after each call all tokens are where the tables say, no sequence holds a page more than "
    "it needs, and a page is free when its last holder has given it up",
)
