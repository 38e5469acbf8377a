"""What the bank must cover: bank/topics.toml."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

_BANK = "labkit.interview"


@dataclass(frozen=True, slots=True)
class Topic:
    """One thing that interviews ask about."""

    id: str
    title: str
    group: str
    """The title of its group."""
    file: str
    """The name of the bank's file that its cards are in, without .md."""
    notebook: str = ""
    """"" where there is none yet."""
    section: str = ""
    """The heading in the notebook under which it is shown."""
    contradicts: bool = False
    """Whether tools and papers count differently here."""


def bank_folder() -> Traversable:
    """The folder with the cards, also inside an installed package."""
    return files(_BANK) / "bank"


@cache
def load_topics() -> dict[str, Topic]:
    """Every topic by its id, in the bank's order."""
    text = (bank_folder() / "topics.toml").read_text(encoding="utf-8")
    topics = [
        Topic(group=group["title"], file=group["file"], **entry)
        for group in tomllib.loads(text)["group"]
        for entry in group["topics"]
    ]
    return {topic.id: topic for topic in topics}
