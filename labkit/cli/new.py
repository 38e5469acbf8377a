"""labkit new exercise, card or drill: its files, to fill in. docs/adding_*.md say how."""

import difflib
import keyword
import re
from pathlib import Path
from typing import Annotated

import typer

from labkit.arguments import UserError
from labkit.cli.terminal import console
from labkit.grade import catalog
from labkit.grade.catalog import load_catalog, load_subjects
from labkit.grade.stubs import write_stubs
from labkit.grade.workspace import Workspace
from labkit.interview.cards import Topic, load_bank, load_topics
from labkit.interview.drills import DRILLS

new = typer.Typer(help="Start something new: see docs/.", no_args_is_help=True)

_SOLUTION = '''"""TITLE: a few words.

An interviewer asks: "..."

Write `NAME(x, group)`: return ...

Contract
    x       shape and dtype; the same shape on every rank
    returns a new tensor of ...; `x` is left alone
    group   `group.rank`, `group.size`, and `group.all_reduce(tensor)`, which returns the sum

Budget, on every rank
    collectives  one all_reduce
"""

import torch

from labkit.comm import Group


def NAME(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Return ...

    Wire: 2(n-1)/n of x's bytes per rank.
    """
    ### BEGIN SOLUTION
    return group.all_reduce(x)
    ### END SOLUTION
'''

_GRADER = '''"""Grade NAME: what is compared, and what is counted."""

import torch

from labkit.grade import grader as g


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Inputs by rank, simple ones first."""
    return [g.Case("7 elements", draw(7)), g.Case("no elements", draw(0))]


def right(xs: g.ByRank) -> torch.Tensor:
    """The result on every rank, written another way than the solution."""
    return torch.stack(tuple(xs)).sum(0)


def budget(s: g.Observed) -> g.Budget:
    """What an answer may use."""
    return g.Budget(collectives=1)


MISTAKES = [
    g.Mistake(
        "forgets the other ranks",
        "Each rank returns its own x. One sentence that helps a learner who did this.",
        g.patch("return group.all_reduce(x)", "return x.clone()"),
        hint=1,
    ),
]  # six to ten of them

GRADER = g.OnRanks(
    cases=cases,
    right=right,
    budget=budget,
    mistakes=MISTAKES,
    allowed=("all_reduce",),
    shown="every rank has the sum, with one all-reduce",
)
'''

_ENTRY = """\
title = "A few words"
notebook = "01_ranks_and_collectives"
difficulty = 2
hints = [
  "The concept: ...",
  "The invariant: ...",
  "Look at these lines first. (1) ...",
]
say = "What to say about it in an interview."
follow_ups = ["What might be asked next?"]
"""


_CARD = """
+++
id = "ID"
difficulty = 2
kind = "concept"
roles = ["ml", "infrastructure", "research"]
prompt = "The question, as an interviewer asks it?"
evidence = [
  { says = "14 steps", proof = "calc.collective('all_reduce', 'ring', 8).steps" },
]
rubric = [
  "one thing that an interviewer listens for",
  "another one",
  "a third one",
]
follow_ups = ["What might be asked next?", "And after that?"]
sources = ["Author and year, title, where to find it"]
+++
**In a minute.** One sentence that defines the thing. Then what to say aloud, in 80 to 150 words and
with at most three numbers: 14 steps.

**Deeper.** What a good interviewer asks next, in 120 words or more.

**The common mistake.** What people say instead, and why it is wrong.
"""

_IMPORTS = '''"""Drills on SUBJECT."""

from labkit import calc
from labkit.interview.drills.drill import drill
from labkit.interview.drills.question import Solution, Trap
'''

_DRILL = '''

@drill(
    "TOPIC",
    "A few words",
    difficulty=1,
    notebook=None,
    prompt="{ranks} ranks all-reduce {megabytes} MB on a ring. How much does each of them send?",
    draws={"ranks": (4, 8, 16, 32, 64), "megabytes": (100, 150, 250, 350, 400)},
    unit="MB",
    between=("100 MB", "1 GB"),
)
def NAME(ranks: int, megabytes: int) -> Solution:
    """What gives the answer, in a few words."""
    size = megabytes * 1e6
    sent = calc.collective("all_reduce", "ring", ranks, size).sent_bytes
    return Solution(
        sent,
        [
            f"A reduce-scatter sends {ranks - 1}/{ranks} of the tensor, and an all-gather as much.",
            f"2 x {ranks - 1}/{ranks} x {megabytes} MB = {sent / 1e6:g} MB.",
        ],
        [
            Trap("forgot the second half", sent / 2, "An all-gather follows the reduce-scatter."),
            Trap("the whole in each step", 2 * (ranks - 1) * size, "A step sends one chunk."),
        ],
    )
'''


class CannotBegin(UserError, ValueError):
    """There is such a thing already, its name cannot be one, or this is no clone of the lab."""


@new.command()
def exercise(
    name: Annotated[str, typer.Argument(help="A name for a Python function.")],
    subject: Annotated[str, typer.Option(help="A folder of labkit/course.")],
) -> None:
    """Write a solution, a stub, a grader and its description, to fill in."""
    workspace, folder = _clone(), _folder(subject) / "exercises"
    _check_name(name)
    if name in load_catalog():
        raise CannotBegin(f"there is an exercise {name} already; choose another name")
    order = folder.parent / "subject.toml"
    texts = {
        workspace.solution(name): _SOLUTION.replace("NAME", name),
        folder / f"{name}.py": _GRADER.replace("NAME", name),
        folder / f"{name}.toml": _ENTRY,
        order: _with_exercise(name, order.read_text(encoding="utf-8")),
    }
    folder.mkdir(exist_ok=True)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    write_stubs(workspace, [name])
    for path in (*texts, workspace.exercise(name)):
        console().print(workspace.shown(path), highlight=False)
    console().print(f"Fill them in, then: pytest tests/grade -k {name}", highlight=False)


@new.command()
def card(
    id: Annotated[str, typer.Argument(help="A topic's id, co-8, or that and a letter: co-8b.")],
) -> None:
    """Write a question card to fill in."""
    if id in load_bank():
        raise CannotBegin(f"there is a card {id} already; a second one on a topic is {id}b")
    path = _folder(_topic(id.rstrip("bcdefghijklmnopqrstuvwxyz")).subject) / "cards.md"
    tests = "wrong_with or exercises"
    checks = f"labkit bank --run --only {id}, and pytest tests/unit/test_bank.py -k '{tests}'"
    _append(path, _CARD.replace("ID", id), checks)


@new.command()
def drill(
    name: Annotated[str, typer.Argument(help="A name for a Python function.")],
    topic: Annotated[str, typer.Option(help="The topic, such as co-2.")],
) -> None:
    """Write a drill to fill in."""
    _check_name(name)
    if name in DRILLS:
        raise CannotBegin(f"there is a drill {name} already; choose another name")
    folder = _folder(_topic(topic).subject)
    path = next(iter(sorted((folder / "drills").glob("*.py"))), folder / "drills.py")
    if not path.exists():
        path.write_text(_IMPORTS.replace("SUBJECT", folder.name), encoding="utf-8")
    text = _DRILL.replace("TOPIC", topic).replace("NAME", name)
    _append(path, text, f"pytest tests/unit/test_drills.py -k {name}")


def _check_name(name: str) -> None:
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise CannotBegin(f"{name!r} is no name for a function; try one such as my_exercise")


def _topic(id: str) -> Topic:
    topics = load_topics()
    if id not in topics:
        near = difflib.get_close_matches(id, topics, 3) or list(topics)
        raise CannotBegin(
            f"there is no topic {id!r}; take {' or '.join(near)}, or write it into subject.toml"
        )
    return topics[id]


def _append(path: Path, text: str, checks: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
    console().print(_clone().shown(path), highlight=False)
    console().print(f"Fill in what is new at its end, then: {checks}", highlight=False)


def _folder(subject: str) -> Path:
    """The folder of a subject, where it can be written to."""
    if subject not in load_subjects():
        raise CannotBegin(
            f"there is no subject {subject!r}; take one of {', '.join(load_subjects())}"
        )
    if not _clone().has_solutions:
        raise CannotBegin(
            f"this labkit is installed in {catalog.COURSE.parent}, which is no clone of the lab: "
            "clone it, and `make lab` there"
        )
    return catalog.COURSE / subject


def _clone() -> Workspace:
    """The lab that this labkit runs from, wherever the author is."""
    return Workspace(catalog.COURSE.parents[1])


def _with_exercise(name: str, text: str) -> str:
    """A subject.toml with one more exercise, at the end of its list."""
    return re.sub(r"^(exercises = \[[^\]]*?)\s*\]", rf'\1\n  "{name}",\n]', text, flags=re.M)
