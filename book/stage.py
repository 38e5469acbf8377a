"""Write build/book/stage, which Sphinx reads: `python -m book.stage`.

    notebooks/, docs/, ...      the repository's own pages, with links to other pages of the site
    cards/, claims/, exercises/ written from the course: see practice.py
    try/                        the parts that run in the page: see trying.py
    code/                       a page for each source file and folder that a page links to
    files/                      those sources
    static/                     pictures inside of outputs, and the parts that run in the page

Nothing is executed: pages show what the notebooks store.
"""

import ast
import contextlib
import filecmp
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from book.links import ROOT, DeadLink, Links, page_of
from book.notebook import staged, with_cards, without_asking

STAGE = ROOT / "build" / "book" / "stage"
_LANGUAGES = {
    ".py": "python",
    ".toml": "toml",
    ".mjs": "javascript",
    ".js": "javascript",
    ".css": "css",
    ".json": "json",
    ".sh": "bash",
    ".sbatch": "bash",
    ".yml": "yaml",
}
_SHEET = "docs/numbers_to_know"
_ABOUT = [f"docs/{path.stem}" for path in sorted((ROOT / "docs").glob("*.md"))]
_ABOUT = [each for each in _ABOUT if each != _SHEET] + ["CONTRIBUTING", "CHANGELOG"]
_NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# Files that are no pages: pictures, and what a reader may keep.
_COPIED = (".png", ".svg", ".pdf", ".html")


def stage(folder: Path = STAGE) -> int:
    """Replace the folder by a new one. Returns the number of pages; raises DeadLink."""
    new, num_pages = folder.with_suffix(".new"), 0
    shutil.rmtree(new, ignore_errors=True)
    with _no_progress():
        for page, text in _pages(new):
            (new / page).parent.mkdir(parents=True, exist_ok=True)
            (new / page).write_text(text, encoding="utf-8")
            num_pages += 1
    for file in filter(Path.is_file, new.rglob("*")):
        before = folder / file.relative_to(new)
        if before.is_file() and filecmp.cmp(file, before, shallow=False):
            shutil.copystat(before, file)  # Sphinx reads newer files again
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)
    return num_pages


@contextlib.contextmanager
def _no_progress() -> Iterator[None]:
    """Keep the progress of the person who builds the site out of its pages."""
    before = os.environ.get("LABKIT_HOME")
    with tempfile.TemporaryDirectory() as home:
        os.environ["LABKIT_HOME"] = home
        try:
            yield
        finally:
            del os.environ["LABKIT_HOME"]
            if before is not None:
                os.environ["LABKIT_HOME"] = before


def _pages(folder: Path) -> Iterator[tuple[str, str]]:
    from book.practice import card_pages, claim_pages, exercise_pages
    from book.trying import try_pages

    links, pictures = Links(), folder / "static" / "pictures"
    pictures.mkdir(parents=True)
    _copy_what_runs(folder / "static" / "live")
    done: set[str] = set()

    def once(pages: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        for page, text in pages:
            done.add(page)
            yield page, text

    yield from once(iter([("index.md", _index(links))]))
    yield from once(card_pages(links))
    yield from once(claim_pages(links))
    yield from once(exercise_pages(links))
    yield from once(try_pages(links, pictures))
    listed = [f"{each}.md" for each in ("notebooks/README", "notebooks/glossary", _SHEET, *_ABOUT)]
    listed += [f"notebooks/{path.name}" for path in _NOTEBOOKS]
    links.wanted |= set(listed)
    seen: set[str] = set()
    while left := sorted(links.wanted - seen):  # pages lead to further pages
        seen |= set(left)
        for path in left:
            if page_of(path) not in done:
                done.add(page_of(path))
                yield from _own(path, folder, links, pictures, is_listed=path in listed)


def _own(
    path: str, folder: Path, links: Links, pictures: Path, is_listed: bool
) -> Iterator[tuple[str, str]]:
    """Yield the page of a file or folder of the repository; copy a picture."""
    source, page = ROOT / path, page_of(path)
    if path.endswith(_COPIED):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, folder / path)
    elif path.endswith(".ipynb"):
        notebook = json.loads(source.read_text("utf-8"))
        yield page, json.dumps(staged(path, notebook, links, pictures))
    elif path.endswith(".md"):
        text = links.in_markdown(path, source.read_text("utf-8"))
        if path == "notebooks/README.md":  # the map of topics
            text = with_cards(text)
        yield page, text if is_listed else f"---\norphan: true\n---\n\n{text}"
    elif source.is_dir():
        yield page, _folder_page(path, page, links)
    else:
        yield page, _code_page(path, page, folder)


def _folder_page(path: str, page: str, links: Links) -> str:
    init = ROOT / path / "__init__.py"
    about = ast.get_docstring(ast.parse(init.read_text("utf-8"))) if init.is_file() else None
    text = f"---\norphan: true\n---\n\n# {_name(path)}/\n\n"
    text += f"```text\n{about}\n```\n\n" if about else ""
    for each in sorted((ROOT / path).iterdir()):
        name = f"{path}/{each.name}"
        if each.suffix == ".py":
            text += f"- [{_name(each.name)}]({links.to(name, page)})\n"
        elif each.is_file():
            text += f"- {_name(each.name)}\n"
        elif (each / "__init__.py").is_file():  # its docstring says what else is in it
            text += f"- [{_name(each.name)}/]({links.to(f'{name}/__init__.py', page)})\n"
    return text


def _name(path: str) -> str:
    return path.replace("_", "\\_")  # two of them would make it bold


def _code_page(path: str, page: str, folder: Path) -> str:
    """Return a page with a source file, of which it puts a copy into files/."""
    copy = folder / "files" / path
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / path, copy)
    up = os.path.relpath(f"files/{path}", os.path.dirname(page))
    language = _LANGUAGES.get(Path(path).suffix, "text")
    return (
        f"---\norphan: true\n---\n\n# {_name(path)}\n\n"
        f"```{{literalinclude}} {up}\n:language: {language}\n```\n"
    )


def _copy_what_runs(folder: Path) -> None:
    """Copy the modules that a page loads: the live parts, and the moving pictures."""
    (folder / "moving").mkdir(parents=True)
    for source in (ROOT / "book" / "live").iterdir():
        if source.suffix in (".mjs", ".css"):
            shutil.copy(source, folder)
    for source in (ROOT / "labkit" / "notebook" / "moving").glob("*.mjs"):
        shutil.copy(source, folder / "moving")


def _index(links: Links) -> str:
    """Return the first page: index.md and the tree of all pages."""
    text = links.in_markdown("README.md", (ROOT / "book" / "index.md").read_text("utf-8"))
    text = text.replace("<!-- a moving picture -->", _ring())
    trees = {
        "Practise": ["try/index", "cards/index", "claims/index", "exercises/index"],
        "Look up": ["Topics of interviews <notebooks/README>", "notebooks/glossary", _SHEET],
        "Notebooks": [_titled(path) for path in _NOTEBOOKS],
        "The lab": _ABOUT,
    }
    for caption, entries in trees.items():
        tree = "\n".join(entries)
        text += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{tree}\n```\n"
    return text


def _ring() -> str:
    """Return the moving picture that notebook 02 stores, without its line on how to run it."""
    notebook = json.loads(
        (ROOT / "notebooks" / "02_all_reduce_inside_out.ipynb").read_text("utf-8")
    )
    outputs = [each for cell in notebook["cells"] for each in cell.get("outputs", ())]
    htmls = ["".join(each.get("data", {}).get("text/html", "")) for each in outputs]
    (found,) = [html for html in htmls if 'data-picture="ring"' in html]
    return without_asking(found)


def _titled(path: Path) -> str:
    """Return a notebook's entry in the tree, with its number: "00 Start here <...>"."""
    first = "".join(json.loads(path.read_text("utf-8"))["cells"][0]["source"])
    title = first.splitlines()[0].lstrip("# ")
    number = path.name[:2]
    title = title if title.startswith(number) else f"{number} {title}"
    return f"{title} </notebooks/{path.stem}>"


if __name__ == "__main__":
    try:
        print(f"{stage()} pages staged in {STAGE.relative_to(ROOT)}")
    except DeadLink as error:
        sys.exit(f"make book: {error}")
