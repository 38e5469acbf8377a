"""Count what is not plain English in Python files, by room: riddles that a reader solves first.

    python scripts/style.py              a table: rooms x docstrings, comments, messages, names
    python scripts/style.py comm tests   the places in these rooms
    python scripts/style.py --check      an error where a room has more than pyproject.toml allows

A riddle is a statement that opens with "What", "Of", "As of", "Those", "Who" or "Whether", and each
use of a word in `INSTEAD`. A question may open with them. A message is an f-string, or any
other string of four words or more that is no docstring. A name counts once in each file.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("docstring", "comment", "message", "name")
OPENINGS = ("What", "Of", "As of", "Those", "Who", "Whether")
OPENING = re.compile(rf"({'|'.join(OPENINGS)})\b")
INSTEAD = {
    "told": "reported, detected, given",
    "begun": "started",
    "anew": "again; `restart`",
    "thawed": "unfrozen",
    "dear": "expensive",
    "whomever": "any caller",
    "testify": "compare, raise",
    "come back": "return",
    "comes back": "returns",
    "is through": "has finished",
    "in the place of": "instead of",
    "stands still": "is idle",
    "token shards": "sequence-sharded",
}
WORD = re.compile(rf"\b({'|'.join(INSTEAD)})\b", re.IGNORECASE)
NAME_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


class Riddle(NamedTuple):
    """A text that is to be said in other words."""

    path: str
    line: int
    kind: str
    text: str


def main() -> None:
    """Print the table, the places in some rooms, or what is above its ceiling."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rooms", nargs="*", help="print the places in these; the table without any")
    parser.add_argument(
        "--check", action="store_true", help="compare with pyproject.toml's ceilings"
    )
    arguments = parser.parse_args()
    found = [
        riddle for path in python_files() for riddle in riddles(path, (ROOT / path).read_text())
    ]
    by_room = Counter((room_of(each.path), each.kind) for each in found)
    sums = {room: sum(by_room[room, kind] for kind in KINDS) for room, _ in by_room}
    if arguments.check:
        tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
        above = [room for room in sums if sums[room] > tool["labkit-style"].get(room, 0)]
        for room in sorted(above):
            print(f"{room}: {sums[room]} riddles, {tool['labkit-style'].get(room, 0)} allowed")
        if above:
            sys.exit(
                f"python scripts/style.py {' '.join(sorted(above))}  prints the places to mend"
            )
    elif arguments.rooms:
        for each in found:
            if room_of(each.path) in arguments.rooms:
                print(f"{each.path}:{each.line}: {each.kind}: {each.text}")
    else:
        print(f"{'room':20}" + "".join(f"{kind + 's':>12}" for kind in KINDS) + f"{'sum':>12}")
        for room in sorted(sums):
            print(
                f"{room:20}"
                + "".join(f"{by_room[room, k]:12,}" for k in KINDS)
                + f"{sums[room]:12,}"
            )
        columns = [sum(n for (_, k), n in by_room.items() if k == kind) for kind in KINDS]
        print(f"{'sum':20}" + "".join(f"{n:12,}" for n in [*columns, len(found)]))


def python_files() -> list[str]:
    """Return every Python file that git tracks, except this one and its test."""
    command = ["git", "ls-files", "*.py"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names_the_words = ("scripts/style.py", "tests/unit/test_style.py")
    return [path for path in listed.splitlines() if path not in names_the_words]


def room_of(path: str) -> str:
    """Return the folder or file directly below labkit/, or the folder at the top."""
    parts = path.removesuffix(".py").split("/")
    return parts[1] if parts[0] == "labkit" else parts[0]


def riddles(path: str, text: str) -> Iterator[Riddle]:
    """Yield the riddles of one file."""
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    for kind, line, said in [*_strings(ast.parse(text)), *_comments(tokens)]:
        opening = said if kind == "message" else said[:1].upper() + said[1:]
        if OPENING.match(opening) and "?" not in re.split(r"[.:!](?=\s|$)", said)[0]:
            yield Riddle(path, line, kind, said.split("\n")[0])
        for word in WORD.finditer(said):
            start = said.rfind("\n", 0, word.start()) + 1
            row = said[start:].split("\n")[0].strip()
            yield Riddle(path, line + said.count("\n", 0, start), kind, f"{word[0]!r} in: {row}")
    names: dict[str, int] = {}
    for token in tokens:
        if token.type == tokenize.NAME:
            names.setdefault(token.string, token.start[0])
    for name, line in names.items():
        if any(part.lower() in INSTEAD for part in NAME_PART.findall(name)):
            yield Riddle(path, line, "name", name)


def _strings(tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    """Yield (kind, line, text) of docstrings, also those of fields, and of messages."""
    seen: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            seen.add(node.value)
            if isinstance(node.value.value, str):
                yield "docstring", node.lineno, node.value.value
        elif isinstance(node, ast.JoinedStr):
            seen |= set(ast.walk(node))
            parts = [p.value if isinstance(p, ast.Constant) else "{}" for p in node.values]
            yield "message", node.lineno, "".join(map(str, parts))
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and len(node.value.split()) >= 4
            and node not in seen
        ):
            yield "message", node.lineno, node.value


def _comments(tokens: list[tokenize.TokenInfo]) -> Iterator[tuple[str, int, str]]:
    """Yield (kind, line, text) of comments; lines directly below each other are one."""
    above: tokenize.TokenInfo | None = None
    block: list[str] = []
    line = 0
    for token in tokens:
        if token.type == tokenize.COMMENT:
            if not above or token.start != (above.start[0] + 1, above.start[1]):
                if block:
                    yield "comment", line, "\n".join(block)
                block, line = [], token.start[0]
            block.append(token.string[1:].strip())
            above = token
    if block:
        yield "comment", line, "\n".join(block)


if __name__ == "__main__":
    main()
