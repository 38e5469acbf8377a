"""The exercises: names, titles, hints and what to say after a pass, from exercises/catalog.toml."""

import difflib
import functools
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from labkit.arguments import UserError
from labkit.grade.workspace import Workspace, find_workspace

NUM_HINTS = 3


class UnknownExercise(UserError, LookupError):
    """No exercise has that name. The message says the closest; without one, all that there are."""


class CatalogError(UserError, ValueError):
    """exercises/catalog.toml is not what it should be."""


@dataclass(frozen=True, slots=True)
class Exercise:
    """One entry of the catalog."""

    name: str
    title: str
    topic: str
    notebook: str
    difficulty: int
    """1 to 5."""
    hints: tuple[str, ...]
    """Three: the concept, the invariant, the first line that goes wrong."""
    say: str
    """What to say about it in an interview."""
    follow_ups: tuple[str, ...]


def load_catalog(workspace: Workspace | None = None) -> dict[str, Exercise]:
    """Every exercise by name, in the catalog's order.

    Raises CatalogError for a file that is not TOML or an entry that lacks a field.
    """
    path = (workspace or find_workspace()).catalog
    try:
        return dict(_exercises(path.read_text(encoding="utf-8"), path))
    except UnicodeDecodeError as error:
        raise CatalogError(f"{path} is no text in UTF-8: {error}") from error


@functools.lru_cache(maxsize=8)  # a text is parsed once: each card and each check asks for it
def _exercises(text: str, path: Path) -> dict[str, Exercise]:
    try:
        entries = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CatalogError(f"{path} is not valid TOML: {error}") from error
    return {name: _exercise(name, entry, path) for name, entry in entries.items()}


def get_exercise(name: str, workspace: Workspace | None = None) -> Exercise:
    """The exercise called `name`. Raises UnknownExercise, with the closest name, or with all."""
    catalog = load_catalog(workspace)
    if name in catalog:
        return catalog[name]
    close = difflib.get_close_matches(str(name), catalog, n=1, cutoff=0.4)
    advice = f"Did you mean {close[0]!r}?" if close else f"The exercises are: {', '.join(catalog)}."
    raise UnknownExercise(f"there is no exercise {name!r}. {advice}")


def _exercise(name: str, entry: Any, path: Path) -> Exercise:
    wanted = [field.name for field in fields(Exercise) if field.name != "name"]
    if not isinstance(entry, dict) or set(entry) != set(wanted):
        found = sorted(entry) if isinstance(entry, dict) else entry
        raise CatalogError(f"{path}: [{name}] needs exactly {', '.join(wanted)}; it has {found}")
    tuples = {key: tuple(entry[key]) for key in ("hints", "follow_ups")}
    return Exercise(name=name, **{**entry, **tuples})
