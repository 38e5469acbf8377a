"""Find subjects and exercises by the folders of labkit/course; import each when it is used.

load_subjects()["zero"]                  order, title, topics, and the names of its exercises
load_catalog()["zero1_step"]             an exercise: title, hints, what to say after a pass
load_graders("zero1_step")               labkit/course/zero/exercises/zero1_step.py, imported
load_module("zero", "evidence")          any other module of a subject
"""

import difflib
import functools
import importlib
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any

from labkit.arguments import UserError

COURSE = Path(__file__).resolve().parents[1] / "course"
NUM_HINTS = 3


class UnknownExercise(UserError, LookupError):
    """No exercise has that name. The message lists the closest name, or all names."""


class CatalogError(UserError, ValueError):
    """A TOML file of labkit/course cannot be read, or its entries are not the expected ones."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A folder of labkit/course, as its subject.toml describes it."""

    name: str
    """The folder's name."""
    title: str
    order: int
    exercises: tuple[str, ...]
    """Names, in reading order."""
    topics: tuple[dict[str, Any], ...]
    """The subject's topics in interviews: see labkit.interview.cards.Topic."""

    @property
    def folder(self) -> Path:
        """The subject's folder."""
        return COURSE / self.name


@dataclass(frozen=True, slots=True)
class Exercise:
    """A function to write, as the TOML file beside its grader describes it."""

    name: str
    subject: str
    """The folder's name."""
    title: str
    notebook: str
    difficulty: int
    """1 to 5."""
    hints: tuple[str, ...]
    """Three: the concept, the invariant, the first line that goes wrong."""
    say: str
    """The answer to give in an interview."""
    follow_ups: tuple[str, ...]


def load_subjects() -> dict[str, Subject]:
    """Return every subject by its folder's name, in reading order. Raises CatalogError."""
    return _subjects(COURSE)


def load_catalog() -> dict[str, Exercise]:
    """Return every exercise by name, in reading order. Raises CatalogError."""
    return _exercises(COURSE)


def get_exercise(name: str) -> Exercise:
    """Return the exercise called `name`. Raises UnknownExercise."""
    catalog = load_catalog()
    if name in catalog:
        return catalog[name]
    close = difflib.get_close_matches(str(name), catalog, n=1, cutoff=0.4)
    advice = f"Did you mean {close[0]!r}?" if close else f"The exercises are: {', '.join(catalog)}."
    raise UnknownExercise(f"there is no exercise {name!r}. {advice}")


def load_module(subject: str, *names: str) -> ModuleType:
    """Import labkit.course.<subject>.<names>."""
    return importlib.import_module(".".join(("labkit.course", subject, *names)))


def load_modules(subject: str, name: str) -> list[ModuleType]:
    """Import <name>.py of a subject, or all modules of its folder <name>; [] without either."""
    folder = load_subjects()[subject].folder
    if (folder / f"{name}.py").is_file():
        return [load_module(subject, name)]
    return [load_module(subject, name, path.stem) for path in sorted((folder / name).glob("*.py"))]


@functools.cache
def _subjects(course: Path) -> dict[str, Subject]:
    found = [
        Subject(name=path.parent.name, **_entries(path, Subject, "name"))
        for path in course.glob("*/subject.toml")
    ]
    return {each.name: each for each in sorted(found, key=lambda each: each.order)}


@functools.cache
def _exercises(course: Path) -> dict[str, Exercise]:
    found = {}
    for subject in _subjects(course).values():
        for name in subject.exercises:
            path = course / subject.name / "exercises" / f"{name}.toml"
            entries = _entries(path, Exercise, "name", "subject")
            found[name] = Exercise(name=name, subject=subject.name, **entries)
    return found


def _entries(path: Path, of: type, *given: str) -> dict[str, Any]:
    """Read a TOML file whose keys are the fields of the class `of`, except those in `given`."""
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CatalogError(f"{path} cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise CatalogError(f"{path} is no text in UTF-8: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise CatalogError(f"{path} is not valid TOML: {error}") from error
    wanted = [field.name for field in fields(of) if field.name not in given]
    if set(entries) != set(wanted):
        raise CatalogError(f"{path} needs exactly {', '.join(wanted)}; it has {sorted(entries)}")
    return {key: tuple(each) if isinstance(each, list) else each for key, each in entries.items()}
