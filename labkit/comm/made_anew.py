"""Process groups whose names were used before: told apart by what the program has destroyed.

torch counts the names of process groups from "0" in every world that it is told to make. So the
same name may mean another group later, which counts its collectives from 1 again:

    torch.distributed/1                                     a group of the run's own world
    torch.distributed/1, made anew (2)                      of the world made after that one
    torch.distributed/1, made anew (2.2)                    after one of this name in that world
    torch.distributed/1, made anew (2 of ranks 0 and 1)     of a world that not all ranks made

Destroyed is what all members destroy, and which world it is they agree on. A rank may have used a
group or not, and so it is not by what was used that they are told apart: each member must say the
same name, and nobody else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass
class _World:
    number: int
    """From 1, the run's own."""
    of: str = ""
    """Its ranks, where they are not all of the run's."""
    destroyed: list[str] = field(default_factory=list)
    """Its groups that are no more, by name, in order."""


class Moment(NamedTuple):
    """How much had been made and destroyed by then."""

    num_worlds: int
    num_destroyed: int


_worlds = [_World(1)]


def now() -> Moment:
    """The present, to ask for what a group was called in it later."""
    return Moment(len(_worlds), len(_worlds[-1].destroyed))


def next_number() -> int:
    """Of a world that is made, as far as this process knows."""
    return _worlds[-1].number


def suffix(name: str, moment: Moment | None = None) -> str:
    """What follows the name of a group that there was at a moment, or is now.

    Empty for the first group of its name.
    """
    num_worlds, num_destroyed = moment or now()
    world = _worlds[num_worlds - 1]
    again = world.destroyed[:num_destroyed].count(name)
    if world.number == 1 and not again:
        return ""
    of = f" of {world.of}" if world.of else ""
    return f", made anew ({world.number}{f'.{again + 1}' * bool(again)}{of})"


def destroyed(name: str | None) -> None:
    """The group of this name is destroyed; None: the default one is, and all others with it."""
    if name is None:
        _worlds.append(_World(_worlds[-1].number + 1))
    else:
        _worlds[-1].destroyed.append(name)


def made(number: int, of: str) -> None:
    """There is a world again; `number`: the highest that a member of it has."""
    _worlds[-1].number, _worlds[-1].of = number, of
