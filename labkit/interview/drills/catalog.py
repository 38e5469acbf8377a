"""All drills by name, found by the name of a drill, a topic, or a group of topics."""

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from labkit import arguments
from labkit.arguments import UserError
from labkit.grade.catalog import load_modules, load_subjects
from labkit.interview.cards.card import load_topics
from labkit.interview.drills.drill import Drill


class UnknownDrill(UserError, ValueError):
    """A word that is neither a drill nor a topic; the message lists similar ones."""


def _all() -> dict[str, Drill]:
    """Return all drills in the order of topics, and within a topic in the order of the file."""
    found = {
        value.name: value
        for subject in load_subjects()
        for module in load_modules(subject, "drills")
        for value in vars(module).values()
        if isinstance(value, Drill)
    }
    order = list(load_topics())
    return dict(sorted(found.items(), key=lambda each: order.index(each[1].topic)))


DRILLS: Mapping[str, Drill] = MappingProxyType(_all())
"""All drills by name."""


def get_drill(name: str) -> Drill:
    """Return a drill by its name. UnknownDrill lists similar names."""
    if name in DRILLS:
        return DRILLS[name]
    raise UnknownDrill(f"no drill is called {name!r}; {_near(name, list(DRILLS))}")


def drills_of(word: str | None = None) -> list[Drill]:
    """Return the drills of a topic ("pp-2"), of a group ("pp"), or of this name; None: all.

    Capitals and blanks around it do not matter. UnknownDrill for any other word, TypeError for
    anything but text.
    """
    if word is None:
        return list(DRILLS.values())
    arguments.instance("drill", word, str, 'name a drill, "bubble_of_total", or a topic, "pp"')
    asked, word = word, word.strip().lower()
    if word in DRILLS:
        return [DRILLS[word]]
    found = [each for each in DRILLS.values() if word in (each.topic, each.topic.partition("-")[0])]
    if found:
        return found
    topics = sorted({each.topic for each in DRILLS.values()})
    raise UnknownDrill(
        f"{asked!r} is no drill and no topic with drills; {_near(word, [*DRILLS, *topics])}"
    )


def _near(word: str, names: list[str]) -> str:
    near = difflib.get_close_matches(word.lower(), names, n=4, cutoff=0.4)
    near += [name for name in names if word.lower() in name and name not in near][:4]
    near += [
        each.name
        for each in DRILLS.values()
        if word.lower() in f"{each.title} {each.notebook}".lower() and each.name not in near
    ][:4]
    if near:
        return f"near it: {', '.join(near)}"
    return "labkit drill --list shows them all"
