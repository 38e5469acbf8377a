"""Writes what runs in a reader's browser: Pyodide's files, and lab.zip, the lab with what it needs.

    python book/python_files.py FOLDER       pyodide.mjs, pyodide.asm.wasm, ..., lab.zip

Pyodide comes from npm, once, into build/pyodide. lab.zip has the rooms of labkit that open without
torch, the packages of PACKAGES as they are installed here, and stand-ins (book/live/python).
"""

import argparse
import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYODIDE = "314.0.7"
FILES = (
    "pyodide.mjs",
    "pyodide.asm.mjs",
    "pyodide.asm.wasm",
    "pyodide-lock.json",
    "python_stdlib.zip",
)
# By the names of modules and of distributions.
PACKAGES = {
    "labkit": "labkit",
    "comm": "comm",  # messages of widgets
    "fsrs": "fsrs",  # when to ask again
    "ipywidgets": "ipywidgets",
    "markdown_it": "markdown-it-py",  # cards as HTML
    "mdurl": "mdurl",  # markdown_it's
    "platformdirs": "platformdirs",  # where progress is kept
    "traitlets": "traitlets",
    "typing_extensions": "typing_extensions",  # fsrs's
}
# They open only with torch, or for a terminal.
ROOMS_LEFT_OUT = set(
    "checkpoint cli combined compiled context_parallel data data_parallel elastic hosts inject "
    "lora measure moe tensor_parallel trees zero".split()
)
TEXT = {".py", ".md", ".toml", ".json", ".mjs"}


def main() -> None:
    """Write the files; print their sizes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(pyodide() / name, folder / name)
    lab_zip(folder / "lab.zip")
    for file in sorted(folder.iterdir()):
        print(f"{file.name:20} {file.stat().st_size:>12,} B")


def pyodide() -> Path:
    """Return the folder of Pyodide, from npm where it is not there yet."""
    home = ROOT / "build" / "pyodide"
    if not (home / f"pyodide-{PYODIDE}.tgz").is_file():
        if shutil.which("npm") is None:
            sys.exit("npm, which fetches Pyodide once, is not there: install Node.js, call again")
        home.mkdir(parents=True, exist_ok=True)
        command = ["npm", "pack", "--silent", f"pyodide@{PYODIDE}", "--pack-destination", str(home)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    if not (home / "package").is_dir():
        with tarfile.open(home / f"pyodide-{PYODIDE}.tgz") as archive:
            archive.extractall(home, filter="data")
    return home / "package"


def lab_zip(target: Path) -> None:
    """Write lab.zip; equal files give an equal archive."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, file in sorted(files()):
            archive.writestr(zipfile.ZipInfo(name), file.read_bytes(), zipfile.ZIP_DEFLATED)


def files() -> Iterator[tuple[str, Path]]:
    """Name in the archive and file, of everything that belongs into it."""
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        origin = Path(spec.origin)
        if origin.name != "__init__.py":
            yield origin.name, origin
            continue
        for file in origin.parent.rglob("*"):
            place = file.relative_to(origin.parent)
            if file.suffix in TEXT and not is_left_out(name, place):
                yield f"{name}/{place.as_posix()}", file
    # Versions, which progress records, and licences.
    for name in PACKAGES.values():
        about = importlib.metadata.distribution(name)
        for each in about.files or ():
            is_licence = "licen" in each.name.lower()
            if ".dist-info" in each.as_posix() and (is_licence or each.name == "METADATA"):
                yield each.as_posix(), Path(str(about.locate_file(each)))
    stand_ins = Path(__file__).parent / "live" / "python"
    for file in stand_ins.rglob("*.py"):
        yield file.relative_to(stand_ins).as_posix(), file


def is_left_out(package: str, place: Path) -> bool:
    """Return whether a file of a package stays out: tests, rooms with torch, graders, real runs."""
    parts = place.parts
    if "tests" in parts or "__pycache__" in parts or "course_files" in parts:
        return True
    if package != "labkit":
        return False
    if parts[0] == "course":
        is_grader = parts[-2] == "exercises" and place.suffix == ".py"
        return is_grader or "evidence" in place.as_posix()
    return parts[0] in ROOMS_LEFT_OUT


if __name__ == "__main__":
    main()
