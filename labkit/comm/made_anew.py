"""Process groups whose names were used before: told apart by what the program has destroyed.

torch counts the names of process groups from "0" in every world that it is told to make. So the
same name may mean another group later, which counts its collectives from 1 again:

    torch.distributed/1                        the first group of the run's own world
    torch.distributed/1, made anew (2)         that of a world made after one was destroyed
    torch.distributed/1, made anew (2.2)       one made in it after its first one was destroyed

Destroyed is what all members destroy. A rank may have used a group or not, and so it is not by what
was used that they are told apart: each member must say the same name.
"""

from __future__ import annotations

_destroyed: list[str | None] = []
"""By name, in order; None: the default group was, and all others with it."""


def now() -> int:
    """The present, to ask for what a group was called in it later."""
    return len(_destroyed)


def suffix(name: str, moment: int | None = None) -> str:
    """What follows the name of a group that there was at a moment, or is now.

    Empty for the first group of its name.
    """
    past = _destroyed[:moment]
    world = past.count(None)
    in_this_world = past[::-1].index(None) if world else len(past)
    again = past[len(past) - in_this_world :].count(name)
    if not world and not again:
        return ""
    return f", made anew ({world + 1}{f'.{again + 1}' * bool(again)})"


def destroyed(name: str | None) -> None:
    """The group of this name is destroyed; None: the default one is, and all others with it."""
    _destroyed.append(name)
