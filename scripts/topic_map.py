"""The map of topics: every notebook, and for each topic its cards, drills, exercises and section.

    python -m scripts.topic_map > notebooks/README.md

The order of notebooks and their titles come from the notebooks, topics, cards, drills and exercises
from labkit/course; what none of them knows is in scripts/topic_map.toml.
"""

import argparse
import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from labkit.grade.catalog import load_subjects
from labkit.interview.cards import Topic, load_bank, load_topics
from labkit.interview.cards.card import anchor
from labkit.interview.drills import DRILLS

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "notebooks"
_HEADING = re.compile(r"^(#{1,4}) +(.+?) *$", re.M)
_COURSE = "../labkit/course"
_COLUMNS = ("topic", "shown in", "cards", "drills", "exercises")
_INTRO = """\
<!-- Written by `python -m scripts.topic_map > notebooks/README.md`: change what it reads. -->
# The notebooks and their topics

Each notebook begins with the question that an interviewer asks and ends with the answer to say.
Between them you commit to a number, run the code on real processes, measure it, break it, and
write a part of it yourself. Read the notebooks in order, or each alone. `make lab` opens them.

* [In order](#in-order): what each is good for.
* [Where to begin](#where-to-begin): three ways through them.
* [By topic](#by-topic): what interviews ask, where it is shown, and what there is to practise it.
"""
_BY_TOPIC = """\
A **card** is a question to answer aloud in a minute, and each number of its answer is proved:
`labkit cards co-2`. A **drill** asks for a number, with other givens each time: `labkit drill
ring_seconds`. An **exercise** is a function that you write, and a check runs it on real ranks:
`labkit check ring_all_reduce`. `labkit progress` shows what you have practised and what is due, by
the groups below."""


@dataclass(frozen=True, slots=True)
class Notebook:
    """One notebook, as the map needs it."""

    name: str
    """The file without .ipynb; it begins with the number."""
    title: str
    headings: tuple[str, ...]

    @property
    def number(self) -> str:
        return self.name.partition("_")[0]

    @property
    def link(self) -> str:
        return f"[{self.number} {self.title}]({self.name}.ipynb)"


def read_notebooks(folder: Path = NOTEBOOKS) -> dict[str, Notebook]:
    """Return every notebook of a folder by name, in reading order."""
    return {path.stem: _notebook(path) for path in sorted(folder.glob("*.ipynb"))}


def _notebook(path: Path) -> Notebook:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    (_, title), *rest = (match.groups() for text in texts for match in _HEADING.finditer(text))
    return Notebook(path.stem, title, tuple(heading for _, heading in rest))


def topic_map() -> str:
    """Return the page."""
    notebooks = read_notebooks()
    texts = tomllib.loads((ROOT / "scripts" / "topic_map.toml").read_text(encoding="utf-8"))
    sections = [
        _INTRO,
        "## In order\n",
        *_in_order(notebooks, texts["says"]),
        "\n## Where to begin",
        *_paths(notebooks, texts["paths"]),
        "\n## By topic\n",
        _BY_TOPIC,
        *_by_topic(notebooks),
    ]
    return "\n".join(sections) + "\n"


def _in_order(notebooks: dict[str, Notebook], says: dict[str, str]) -> Iterator[str]:
    yield from _head("notebook", "afterwards you can say")
    for name, notebook in notebooks.items():
        if name not in says:
            raise SystemExit(f"scripts/topic_map.toml: [says] has no {name}; write its sentence")
        yield f"| {notebook.link} | {says[name]} |"


def _paths(notebooks: dict[str, Notebook], paths: list[dict[str, Any]]) -> Iterator[str]:
    by_number = {notebook.number: notebook for notebook in notebooks.values()}
    for path in paths:
        yield f"\n**{path['title']}.** {path['for']}\n"
        for step in path["steps"]:
            if unknown := [each for each in step["notebooks"] if each not in by_number]:
                raise SystemExit(
                    f"scripts/topic_map.toml: the path {path['title']!r} names {unknown}, and no "
                    f"notebook begins so; there are {', '.join(by_number)}"
                )
            links = [by_number[each].link for each in step["notebooks"]]
            yield f"1. {step['why']}: {', '.join(links)}."


def _by_topic(notebooks: dict[str, Notebook]) -> Iterator[str]:
    by_subject = groupby(load_topics().values(), key=lambda topic: topic.subject)
    for name, topics in by_subject:
        subject = load_subjects()[name]
        yield f"\n### {subject.title}\n"
        answers = f"[{name}/cards.md]({_COURSE}/{name}/cards.md)"
        yield f"`labkit cards {name}` asks what is due. The answers: {answers}.\n"
        yield from _head(*_COLUMNS)
        shown: set[str] = set()
        for topic in topics:
            exercises = _exercises(topic)
            shown.update(exercises)
            yield _row(topic, notebooks, exercises)
        if more := [exercise for exercise in subject.exercises if exercise not in shown]:
            yield f"\nMore exercises: {_links(more)}."


def _row(topic: Topic, notebooks: dict[str, Notebook], exercises: Iterable[str]) -> str:
    cards = _codes(card.id for card in load_bank().values() if card.topic == topic.id)
    drills = _codes(drill.name for drill in DRILLS.values() if drill.topic == topic.id)
    notebook = notebooks.get(topic.notebook)
    where = ""
    if notebook is not None:
        where = (
            f"[{notebook.number} {topic.section}]({notebook.name}.ipynb#{anchor(topic.section)})"
        )
    return f"| {topic.title} | {where} | {cards} | {drills} | {_links(exercises)} |"


def _exercises(topic: Topic) -> list[str]:
    """Return the exercises that the topic's cards name, each once."""
    named = (card.exercise for card in load_bank().values() if card.topic == topic.id)
    return list(dict.fromkeys(name for name in named if name))


def _head(*columns: str) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{' --- |' * len(columns)}"


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _links(exercises: Iterable[str]) -> str:
    return ", ".join(f"[`{name}`](../exercises/{name}.py)" for name in exercises)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    print(topic_map(), end="")
