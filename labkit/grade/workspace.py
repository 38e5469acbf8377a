"""Where the exercises are on this machine.

A clone, or a folder that `labkit course` has written, has the learner's files. An installed package
has what these are made of, labkit/course_files: enough to list exercises, to show hints and
solutions and to grade a file from elsewhere. setup.py puts it there.

The exercises: names, titles, hints and what to say after a pass, from exercises/catalog.toml.
"""

import difflib
import functools
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from labkit.arguments import UserError

CATALOG = Path("exercises", "catalog.toml")


class WorkspaceNotFound(UserError, FileNotFoundError):
    """There is no exercises/catalog.toml where labkit looks for it."""


class SolutionNotReadable(UserError, OSError):
    """A solution that is missing, or is no text in UTF-8."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """A folder with `exercises/` (the learner's files), `solutions/` and `notebooks/`."""

    root: Path

    @property
    def has_learners_files(self) -> bool:
        """Not in an installed package."""
        return self.root != _installed()

    @property
    def catalog(self) -> Path:
        """exercises/catalog.toml"""
        return self.root / CATALOG

    @property
    def backups(self) -> Path:
        """Where `reset` keeps what it replaces."""
        return self.root / "exercises" / "backups"

    def exercise(self, name: str) -> Path:
        """The learner's own file."""
        return self.root / "exercises" / f"{name}.py"

    def solution(self, name: str) -> Path:
        """The tested solution, from which the stub is cut."""
        return self.root / "solutions" / f"{name}.py"

    def solution_text(self, name: str) -> str:
        """What stands in it. Raises SolutionNotReadable."""
        path = self.solution(name)
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SolutionNotReadable(
                f"{self.shown(path)} cannot be read: {error}; `git checkout {self.shown(path)}` in "
                "a clone, or `labkit course .` in a folder that it has written, restores it"
            ) from error

    def shown(self, path: Path) -> str:
        """`path` as the learner knows it: relative to the workspace where it lies inside."""
        return str(path.relative_to(self.root) if path.is_relative_to(self.root) else path)


def find_workspace(start: Path | None = None) -> Workspace:
    """The nearest folder from `start` (the current one) upwards that has exercises/catalog.toml.

    Failing that, what this package is part of: the repository, or what was installed with it.
    Raises WorkspaceNotFound.
    """
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents, _repository(), _installed()):
        if (folder / CATALOG).is_file():
            return Workspace(folder)
    raise WorkspaceNotFound(
        f"found no {CATALOG} in {here} or any folder above it, nor in {_repository()}; "
        "change into the folder that you cloned the lab into and try again"
    )


def find_packages_workspace() -> Workspace:
    """What this package is part of: the repository, or what was installed with it."""
    installed = _installed()
    return Workspace(installed if (installed / CATALOG).is_file() else _repository())


def find_learners_workspace(workspace: Workspace | None = None) -> Workspace:
    """`workspace`, or the nearest one, if it has the learner's files; WorkspaceNotFound if not."""
    found = workspace or find_workspace()
    if not found.has_learners_files:
        raise WorkspaceNotFound(
            f"found no exercises in {Path.cwd()} or any folder above it: change into your folder "
            "of the course. To make one: `labkit course lab` writes it into the folder lab"
        )
    return found


def _repository() -> Path:
    return Path(__file__).resolve().parents[2]


def _installed() -> Path:
    return Path(__file__).resolve().parents[1] / "course_files"


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
