"""labkit new exercise NAME: its files, to fill in. docs/adding_an_exercise.md says how."""

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
from labkit.grade.workspace import find_workspace

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


class CannotBegin(UserError, ValueError):
    """There is such a thing already, its name cannot be one, or this is no clone of the lab."""


@new.command()
def exercise(
    name: Annotated[str, typer.Argument(help="A name for a Python function.")],
    subject: Annotated[str, typer.Option(help="A folder of labkit/course.")],
) -> None:
    """Write a solution, a stub, a grader and its description, to fill in."""
    workspace, folder = find_workspace(), _folder(subject) / "exercises"
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise CannotBegin(f"{name!r} is no name for a function; try one such as my_exercise")
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


def _folder(subject: str) -> Path:
    """The folder of a subject, where it can be written to."""
    if subject not in load_subjects():
        raise CannotBegin(
            f"there is no subject {subject!r}; take one of {', '.join(load_subjects())}"
        )
    root = find_workspace().root
    if not catalog.COURSE.is_relative_to(root):
        raise CannotBegin(
            f"{root} is no clone of the lab that this labkit runs from: what is taught lies in "
            f"{catalog.COURSE}"
        )
    return catalog.COURSE / subject


def _with_exercise(name: str, text: str) -> str:
    """A subject.toml with one more exercise, at the end of its list."""
    return re.sub(r"^(exercises = \[[^\]]*?)\s*\]", rf'\1\n  "{name}",\n]', text, flags=re.M)
