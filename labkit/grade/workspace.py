"""The workspace: where the exercises are on this machine.

A clone, or a copy that `labkit start` has written, has the learner's files. An installed package
has the originals in labkit/course_files, where setup.py copies them: enough to list exercises, to
show hints and solutions and to grade a file from elsewhere.
"""

from dataclasses import dataclass
from pathlib import Path

from labkit.arguments import UserError
from labkit.grade.catalog import load_catalog

COPY = "my-lab"
"""The folder that `labkit start` and `make lab` write where no other is named."""


class WorkspaceNotFound(UserError, FileNotFoundError):
    """No folder with the lab's exercises was found."""


class SolutionNotReadable(UserError, OSError):
    """A solution is missing, or is not text in UTF-8."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """A folder with `exercises/` (the learner's files), `solutions/` and `notebooks/`."""

    root: Path

    @property
    def has_learners_files(self) -> bool:
        """True except in an installed package."""
        return self.root != _installed()

    @property
    def has_solutions(self) -> bool:
        """True if there is any solution. That marks a workspace: learners may delete other files,
        but seldom all solutions."""
        return any(self.solution(name).is_file() for name in load_catalog())

    @property
    def exercises(self) -> Path:
        """The folder of the learner's files."""
        return self.root / "exercises"

    @property
    def backups(self) -> Path:
        """The folder where `reset` keeps the files that it replaces."""
        return self.exercises / "backups"

    def exercise(self, name: str) -> Path:
        """The learner's own file."""
        return self.exercises / f"{name}.py"

    def solution(self, name: str) -> Path:
        """The tested solution, from which the stub is cut."""
        return self.root / "solutions" / f"{name}.py"

    def solution_text(self, name: str) -> str:
        """Read the solution. Raises SolutionNotReadable."""
        path = self.solution(name)
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SolutionNotReadable(
                f"{self.shown(path)} cannot be read: {error}; `git checkout {self.shown(path)}` in "
                "a clone, or `labkit update` in a copy of the course, restores it"
            ) from error

    def shown(self, path: Path) -> str:
        """Return `path` as messages show it: relative to the workspace if it is inside."""
        return str(path.relative_to(self.root) if path.is_relative_to(self.root) else path)


def find_workspace(start: Path | None = None) -> Workspace:
    """Find the nearest folder with solutions, from `start` (default: the current one) upwards.

    A copy of the course inside of `start`, under its usual name, comes before `start` itself.

    If there is none, return the repository of this package, or the files installed with it.
    Raises WorkspaceNotFound.
    """
    here = (start or Path.cwd()).resolve()
    for folder in (here / COPY, here, *here.parents, _repository(), _installed()):
        if Workspace(folder).has_solutions:
            return Workspace(folder)
    raise WorkspaceNotFound(
        f"found no solutions/ of the lab's exercises in {here} or any folder above it, nor in "
        f"{_repository()}; change into the folder that you cloned the lab into and try again"
    )


def find_packages_workspace() -> Workspace:
    """Return the folder that this package is part of: the repository, or the installed files."""
    installed = _installed()
    return Workspace(installed if installed.is_dir() else _repository())


def find_learners_workspace(workspace: Workspace | None = None) -> Workspace:
    """Return `workspace`, or the nearest one. WorkspaceNotFound if it has no learner's files."""
    found = workspace or find_workspace()
    if not found.has_learners_files:
        raise WorkspaceNotFound(
            f"found no exercises in {Path.cwd()} or any folder above it: change into your folder "
            f"of the course. To make one: `labkit start` writes it into the folder {COPY}"
        )
    return found


def _repository() -> Path:
    return Path(__file__).resolve().parents[2]


def _installed() -> Path:
    return Path(__file__).resolve().parents[1] / "course_files"
