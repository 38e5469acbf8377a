"""labkit start FOLDER: a copy of the course to write in. labkit update: what is new, for that copy.

    exercises/    a stub for each exercise: the learner's own files
    solutions/    what `labkit solution` and `labkit reset` read
    notebooks/    the pages: `labkit lab` opens them in JupyterLab
    labkit, docs  links to the package's own files, for reading; from a clone also examples, tests
    AGENTS.md     how a coding assistant helps without giving the answer away
    earlier/      pages that the last update has replaced, as the learner left them
    .course.json  the digest of each file as the course had it

An update compares each file with its digest in .course.json. For a notebook only the cells count,
so a page that was run is the course's still:

    the learner's file       the course's file    after the update
    as the course had it     changed              the new one; a page is kept in earlier/
    as the course had it     gone                 in earlier/
    changed by the learner   changed              the learner's, with NAME.new.ipynb beside a page
    changed by the learner   gone                 the learner's
    deleted                  any                  the course's

Solutions are never the learner's.
"""

import hashlib
import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from labkit.cli.terminal import console
from labkit.grade.catalog import load_catalog
from labkit.grade.stubs import stub_of
from labkit.grade.workspace import COPY, Workspace, find_packages_workspace

HOW_TO_MAKE_ONE = f"`labkit start` writes the exercises and the notebooks into the folder {COPY}."
_DIGESTS, _EARLIER = ".course.json", "earlier"
_PACKAGE = Path(__file__).resolve().parents[1]


def start(
    folder: Annotated[Path, typer.Argument(help="A new folder.")] = Path(COPY),
) -> None:
    """Write a copy of the course into a folder, to work in.

    No update of labkit changes the folder; `labkit update` brings the new pages into it.
    """
    write_copy(folder)
    out = console()
    out.print(Text(f"Next: labkit lab {shlex.quote(str(folder))}"), soft_wrap=True)
    first = next(iter(load_catalog()))
    out.print(Text(f"In that folder, `labkit check {first}` grades an exercise."), soft_wrap=True)


def write_copy(folder: Path) -> None:
    """Write a copy of the course, and print how many files it has.

    Raises typer.BadParameter for a folder that holds something.
    """
    source, own = find_packages_workspace(), Workspace(folder.resolve())
    if source.root == own.root:
        raise typer.BadParameter(f"{folder} is the lab itself, and has all files already")
    if (own.root / _DIGESTS).exists():
        raise typer.BadParameter(f"{folder} is a copy already: `labkit update {folder}` renews it")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise typer.BadParameter(f"{folder} holds something else: name a new folder")
    renewed = _renew(source, own)
    console().print(Text(f"{renewed.num_written} files written into {folder}"), soft_wrap=True)


def update(
    folder: Annotated[Path, typer.Argument(help="The copy; here, or above.")] = Path(),
) -> None:
    """Bring what is new in the course into your copy. Your answers and notes stay."""
    found = find_copy(folder)
    if found is None:
        raise typer.BadParameter(f"{folder} is no copy of the course. {HOW_TO_MAKE_ONE}")
    out = console()
    for line in _renew(find_packages_workspace(), Workspace(found)).lines():
        out.print(Text(line), soft_wrap=True)


def find_copy(folder: Path) -> Path | None:
    """Return the copy of the course at `folder`, in its my-lab, or above it; None without one."""
    here = folder.resolve()
    places = (here, here / COPY, *here.parents)
    return next((each for each in places if (each / _DIGESTS).is_file()), None)


@dataclass(slots=True)
class _Renewed:
    """Changes that an update made, by paths relative to the copy."""

    num_written: int = 0
    earlier: list[str] = field(default_factory=list)
    """Pages that were replaced, and files that the course has no more."""
    kept: list[str] = field(default_factory=list)
    """Files of the learner's, of which the course has another version."""
    beside: list[str] = field(default_factory=list)
    """New pages beside pages with notes of the learner's."""

    def lines(self) -> Iterator[str]:
        yield f"{self.num_written} files are new" if self.num_written else "Nothing is new."
        if self.earlier:
            yield f"{_EARLIER}/ keeps the pages that were replaced: {', '.join(self.earlier)}"
        if self.kept:
            yield f"Yours are left alone, and the course's are new: {', '.join(self.kept)}"
            yield "`labkit reset NAME` fetches the new stub of an exercise, and keeps your file."
        if self.beside:
            yield f"New pages lie beside yours: {', '.join(self.beside)}"


def _renew(source: Workspace, own: Workspace) -> _Renewed:
    """Bring a copy up to date, or make it."""
    done, digests, store = _Renewed(), {}, own.root / _DIGESTS
    try:
        before = json.loads(store.read_bytes()) if store.exists() else {}
        for path, content in _course(source):
            digests[path] = _digest(path, content)
            _renew_file(own.root / path, path, content, before.get(path), done)
        for path in before.keys() - digests.keys():
            target = own.root / path
            if target.exists() and _digest(path, target.read_bytes()) == before[path]:
                _set_aside(own.root, path, done)
        _link(own.root / "labkit", _PACKAGE)
        for name in ("docs", "examples", "benchmarks", "tests"):  # a clone has all of them
            _link(own.root / name, source.root / name)
        store.write_text(json.dumps(digests, indent=1))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{own.root} cannot be written: {error}") from None
    return done


def _renew_file(
    target: Path, path: str, content: bytes, before: str | None, done: _Renewed
) -> None:
    is_new = _digest(path, content) != before
    if target.exists():
        present = target.read_bytes()
        is_learners = not path.startswith("solutions/") and _digest(path, present) != before
        if present == content or not (is_new or target.suffix != ".ipynb"):
            return
        if is_learners:
            if not is_new:
                return
            done.kept.append(path)
            if target.suffix != ".ipynb":
                return
            target = target.with_suffix(".new.ipynb")
            done.beside.append(target.name)
        elif target.suffix == ".ipynb":
            _set_aside(target.parents[1], path, done)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    done.num_written += 1


def _set_aside(root: Path, path: str, done: _Renewed) -> None:
    target = root / _EARLIER / path
    target.parent.mkdir(parents=True, exist_ok=True)
    (root / path).replace(target)
    done.earlier.append(path)


def _course(source: Workspace) -> Iterator[tuple[str, bytes]]:
    """Yield every file of the course: its path in a copy, and its content."""
    for name in load_catalog():
        yield f"solutions/{name}.py", source.solution(name).read_bytes()
        yield f"exercises/{name}.py", stub_of(name, source).encode()
    yield "AGENTS.md", (source.root / "AGENTS.md").read_bytes()
    for path in sorted((source.root / "notebooks").rglob("*")):
        if path.suffix in (".ipynb", ".md", ".svg") and not path.parent.name.startswith("."):
            content = path.read_bytes()
            is_page = path.suffix == ".ipynb"
            yield (
                str(path.relative_to(source.root)),
                _of_this_kernel(content) if is_page else content,
            )


_WIDGETS = {"state": {}, "version_major": 2, "version_minor": 0}


def _of_this_kernel(page: bytes) -> bytes:
    """Write into a page what JupyterLab does when it opens and saves it.

    Otherwise reading a page changes it.
    """
    from ipykernel.ipkernel import IPythonKernel

    notebook = json.loads(page)
    notebook["metadata"]["language_info"] = IPythonKernel.language_info
    notebook["metadata"]["widgets"] = {"application/vnd.jupyter.widget-state+json": _WIDGETS}
    return (json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n").encode()


def _digest(path: str, content: bytes) -> str:
    """Return a digest; of a notebook that of its cells, without what running them adds."""
    if path.endswith(".ipynb"):
        cells = json.loads(content)["cells"]
        texts = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
        content = json.dumps(texts).encode()
    return hashlib.sha256(content).hexdigest()


def _link(link: Path, target: Path) -> None:
    """Make `link` a link to `target`; leave anything else of that name alone."""
    if link.is_symlink():
        link.unlink()
    if target.is_dir() and not link.exists():
        link.symlink_to(target, target_is_directory=True)
