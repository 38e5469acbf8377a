"""Where the exercises are on this machine."""

from dataclasses import dataclass
from pathlib import Path

CATALOG = Path("exercises", "catalog.toml")


class WorkspaceNotFound(FileNotFoundError):
    """There is no exercises/catalog.toml where labkit looks for it."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """A folder with `exercises/` (the learner's files) and `solutions/`."""

    root: Path

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

    def shown(self, path: Path) -> str:
        """`path` as the learner knows it: relative to the workspace where it lies inside."""
        return str(path.relative_to(self.root) if path.is_relative_to(self.root) else path)


def find_workspace(start: Path | None = None) -> Workspace:
    """The nearest folder from `start` (the current one) upwards that has exercises/catalog.toml.

    Failing that, the repository that this package is part of. Raises WorkspaceNotFound.
    """
    here = (start or Path.cwd()).resolve()
    repository = Path(__file__).resolve().parents[2]
    for folder in (here, *here.parents, repository):
        if (folder / CATALOG).is_file():
            return Workspace(folder)
    raise WorkspaceNotFound(
        f"found no {CATALOG} in {here} or any folder above it, nor in {repository}; "
        "change into the folder that you cloned the lab into and try again"
    )
