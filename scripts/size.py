"""Print lines and statements of Python by room, today and at another commit.

    python scripts/size.py            today beside the commit before the last 20
    python scripts/size.py 4964b7d    today beside that commit

A statement is what Python calls one: joining two lines into one does not make fewer of them.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

Sizes = dict[str, tuple[int, int, int]]


def main() -> None:
    """Print one row for each room that is there today, or was."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("revision", nargs="?", default="HEAD~20", help="beside it; HEAD~20")
    revision = parser.parse_args().revision
    if not is_commit(revision):
        parser.error(f"{revision} is no commit of this repository")
    before, now = sizes(files_at(revision)), sizes(files_today())
    print(f"{'':34}{revision[:12]:>24}{'today':>24}")
    print(f"{'room':34}" + f"{'files':>6}{'lines':>9}{'stmts':>9}" * 2)
    rooms = sorted({*before, *now}, key=lambda room: (room.split("/")[0], room))
    for room in [*rooms, "all"]:
        columns = [
            each.get(room, (0, 0, 0)) if room != "all" else total(each) for each in (before, now)
        ]
        print(f"{room:34}" + "".join(f"{f:6,}{n:9,}{s:9,}" for f, n, s in columns))


def total(each: Sizes) -> tuple[int, int, int]:
    """Files, lines and statements of all rooms."""
    files, lines, statements = zip(*each.values(), strict=True)
    return sum(files), sum(lines), sum(statements)


def sizes(files: Iterator[tuple[str, str]]) -> Sizes:
    """By room: files, lines, statements. A room is a folder of labkit or tests, or of the top."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for path, text in files:
        parts = path.split("/")
        room = "/".join(parts[:2]) if parts[0] in ("labkit", "tests") else parts[0]
        tree = ast.parse(text)
        statements = sum(isinstance(node, ast.stmt) for node in ast.walk(tree))
        for i, number in enumerate((1, text.count("\n"), statements)):
            counts[room][i] += number
    return {room: (files, lines, statements) for room, (files, lines, statements) in counts.items()}


def files_today() -> Iterator[tuple[str, str]]:
    """Path and text of each Python file that git tracks or would track."""
    listed = git("ls-files", "--cached", "--others", "--exclude-standard", "*.py")
    for path in listed.splitlines():
        if Path(path).exists():
            yield path, Path(path).read_text(encoding="utf-8")


def files_at(revision: str) -> Iterator[tuple[str, str]]:
    """Yield the same, of a commit."""
    paths = [
        p for p in git("ls-tree", "-r", "--name-only", revision).splitlines() if p[-3:] == ".py"
    ]
    asked = "".join(f"{revision}:{path}\n" for path in paths).encode()
    batch = subprocess.run(
        ["git", "cat-file", "--batch"], input=asked, capture_output=True, check=True
    ).stdout
    for path in paths:
        header, _, batch = batch.partition(b"\n")
        size = int(header.split()[2])
        try:
            text = batch[:size].decode()
            ast.parse(text)
            yield path, text
        except (SyntaxError, ValueError):
            pass  # the old wrong programs had some on purpose
        batch = batch[size + 1 :]


def is_commit(revision: str) -> bool:
    """Return whether git knows a commit of that name."""
    command = ["git", "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"]
    return subprocess.run(command, capture_output=True).returncode == 0


def git(*arguments: str) -> str:
    """Return git's output."""
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
