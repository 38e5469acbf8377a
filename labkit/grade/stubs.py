"""A stub is its solution with the answer cut out.

    solutions/scan.py                      exercises/scan.py

    def scan(x, group):                    def scan(x, group):
        \"\"\"The sum of ...\"\"\"                   \"\"\"The sum of ...\"\"\"
        ### BEGIN SOLUTION                     raise NotImplementedError("...")
        total = x.clone()
        ...
        ### END SOLUTION

`python -m labkit.grade.stubs` writes the stub of every exercise into exercises/; a test fails when
what git holds there is not what would be written.
"""

import ast
import re
import sys
import textwrap

from labkit.grade.catalog import load_catalog
from labkit.grade.workspace import Workspace, find_workspace

PLACEHOLDER = 'raise NotImplementedError("not attempted yet: your code replaces this line")'

_MARKER = re.compile(r"^(?P<indent>[ \t]*)### (?P<which>BEGIN|END) SOLUTION[ \t]*$")


class StubError(ValueError):
    """A solution whose markers do not pair up."""


def cut_stub(solution: str, name: str = "this solution") -> str:
    """The text of `solution` with everything between the markers replaced by PLACEHOLDER.

    Raises StubError where a marker is missing, doubled or out of order.
    """
    kept: list[str] = []
    inside, num_cuts = False, 0
    for number, line in enumerate(solution.splitlines(keepends=True), start=1):
        marker = _MARKER.match(line.rstrip("\r\n"))
        if marker is None:
            if not inside:
                kept.append(line)
        elif (marker["which"] == "END") != inside:
            raise StubError(f"{name}, line {number}: {line.strip()} without its partner before it")
        else:
            inside = not inside
            if inside:
                kept.append(f"{marker['indent']}{PLACEHOLDER}\n")
                num_cuts += 1
    if inside or not num_cuts:
        missing = "END" if inside else "BEGIN"
        raise StubError(f"{name} has no ### {missing} SOLUTION")
    return "".join(kept)


def stub_of(name: str, workspace: Workspace) -> str:
    """The stub of the exercise `name`, cut from its solution."""
    path = workspace.solution(name)
    return cut_stub(path.read_text(encoding="utf-8"), workspace.shown(path))


def is_unattempted(source: str, function: str) -> bool:
    """Whether `function` in `source` is still a stub: nothing in it but a docstring and a refusal.

    `pass`, `...` and `raise NotImplementedError` all count, whatever else the file holds.
    False where `source` does not parse or has no such function.
    """
    try:
        tree = ast.parse(textwrap.dedent(source))
    except SyntaxError:
        return False
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == function:
            return all(_is_nothing(statement) for statement in node.body)
    return False


def _is_nothing(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Raise(exc=ast.Name(id=raised) | ast.Call(func=ast.Name(id=raised))):
            return raised == "NotImplementedError"
        case ast.FunctionDef():  # a method of a class that is to be written
            return all(_is_nothing(inner) for inner in statement.body)
    return False


def write_stubs(workspace: Workspace, names: list[str] | None = None) -> list[str]:
    """Write the stubs of `names` (all) into exercises/, over what is there; returns the names."""
    names = names or list(load_catalog(workspace))
    for name in names:
        workspace.exercise(name).write_text(stub_of(name, workspace), encoding="utf-8")
    return names


if __name__ == "__main__":
    print("wrote the stubs of", *write_stubs(find_workspace(), sys.argv[1:]))
