"""labkit course FOLDER: the exercises, their solutions and the notebooks, as in a clone of the lab.

    exercises/    a stub for each exercise: the learner's own files
    solutions/    what `labkit solution` and `labkit reset` read
    notebooks/    jupyter lab lab/notebooks/00_start_here.ipynb

Written again, after an update of labkit, it brings what is new. Solutions are replaced; stubs
and notebooks that are there are left alone, since a learner works in them.
"""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from labkit.cli.terminal import console
from labkit.grade.catalog import load_catalog
from labkit.grade.stubs import stub_of
from labkit.grade.workspace import Workspace, find_packages_workspace

HOW_TO_MAKE_ONE = "`labkit course lab` writes the exercises and the notebooks into the folder lab."


def course(
    folder: Annotated[Path, typer.Argument(help="A new folder, or one that this command wrote.")],
) -> None:
    """Write the exercises and the notebooks into a folder, to work in.

    In a folder of the course it adds what is new, and leaves your exercises and notebooks alone.
    """
    source, own = find_packages_workspace(), Workspace(folder.resolve())
    if source.root == own.root:
        raise typer.BadParameter(f"{folder} is the lab itself, and has all files already")
    try:
        if folder.is_dir() and any(folder.iterdir()) and not own.has_solutions:
            raise typer.BadParameter(
                f"{folder} holds something else (and no solutions of exercises): name a new folder"
            )
        num_written, num_kept = _write(source, own)
    except OSError as error:
        raise typer.BadParameter(f"{folder} cannot be written: {error}") from None
    out = console()
    kept = f"; {num_kept} that were there are left alone" if num_kept else ""
    where = "this folder" if own.root == Path.cwd() else folder
    out.print(Text(f"{num_written} files written into {where}{kept}"), soft_wrap=True)
    first = next(iter(load_catalog()))
    enter = [] if own.root == Path.cwd() else [f"cd {shlex.quote(str(folder))}"]
    start = [*enter, "jupyter lab notebooks/00_start_here.ipynb"]
    out.print(Text(f"Next: {' && '.join(start)}"), soft_wrap=True)
    out.print(Text(f"In that folder, `labkit check {first}` grades an exercise."), soft_wrap=True)


def _write(source: Workspace, own: Workspace) -> tuple[int, int]:
    """Return how many files were written, and how many were left alone."""
    names = list(load_catalog())
    replaced = {path: path.read_bytes() for path in map(source.solution, names)}
    added = {source.exercise(name): stub_of(name, source).encode() for name in names}
    for path in sorted((source.root / "notebooks").iterdir()):
        if path.suffix in (".ipynb", ".md"):
            added[path] = path.read_bytes()
    num_written = num_kept = 0
    for path, content in {**replaced, **added}.items():
        target = own.root / path.relative_to(source.root)
        if path in added and target.exists():
            num_kept += 1
        elif not target.exists() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            num_written += 1
    return num_written, num_kept
