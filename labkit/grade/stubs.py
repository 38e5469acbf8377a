"""Cut stubs from solutions: a stub is its solution without the answer.

    solutions/scan.py                      exercises/scan.py

    def scan(x, group):                    def scan(x, group):
        \"\"\"The sum of ...\"\"\"                   \"\"\"The sum of ...\"\"\"
        ### BEGIN SOLUTION                     raise NotImplementedError("...")
        total = x.clone()
        ...
        ### END SOLUTION

If the stub is a program to repair, the program follows the answer as comments:

        ### INSTEAD
        # return x                             return x
        ### END SOLUTION

`python -m labkit.grade.stubs` writes the stub of every exercise into exercises/. A test fails if a
file in exercises/ differs from its stub.
"""

import ast
import re
import sys

from labkit.grade.catalog import load_catalog
from labkit.grade.workspace import Workspace, find_workspace

PLACEHOLDER = 'raise NotImplementedError("not attempted yet: your code replaces this line")'

_MARKER = re.compile(r"^[ \t]*### (BEGIN SOLUTION|INSTEAD|END SOLUTION)$", re.MULTILINE)
_ANSWER = re.compile(
    r"^([ \t]*)### BEGIN SOLUTION\n.*?(?:^[ \t]*### INSTEAD\n(.*?))?^[ \t]*### END SOLUTION\n",
    re.MULTILINE | re.DOTALL,
)
_COMMENT = re.compile(r"^([ \t]*)# |^[ \t]*#$", re.MULTILINE)


class StubError(ValueError):
    """A solution whose markers do not pair up."""


def cut_stub(solution: str, name: str = "this solution") -> str:
    """Replace each answer between the markers by the comments below INSTEAD, or by PLACEHOLDER.

    Raises StubError where a marker is missing, doubled or out of order.
    """
    markers = " ".join(_MARKER.findall(solution))
    if not re.fullmatch("(BEGIN SOLUTION (INSTEAD )?END SOLUTION ?)+", markers):
        raise StubError(
            f"{name} has the markers: {markers or 'none'}; write ### BEGIN SOLUTION, perhaps "
            "### INSTEAD, and ### END SOLUTION, in this order"
        )

    def stub(answer: re.Match[str]) -> str:
        indent, instead = answer.groups()
        return f"{indent}{PLACEHOLDER}\n" if instead is None else _COMMENT.sub(r"\1", instead)

    return _ANSWER.sub(stub, solution)


def stub_of(name: str, workspace: Workspace) -> str:
    """Return the stub of the exercise `name`, cut from its solution."""
    return cut_stub(workspace.solution_text(name), workspace.shown(workspace.solution(name)))


def is_unattempted(source: str, function: str, stub: str) -> bool:
    """Return whether `function` is as in `stub`; comments and its docstring may differ.

    False where `source` does not parse or has no such function.
    """
    code = _code_of(function, source)
    return code is not None and code == _code_of(function, stub)


def _code_of(function: str, source: str) -> list[str] | None:
    """Return the statements of a function or class after its docstring; None if it is not there."""
    try:
        statements = ast.parse(source).body
    except (SyntaxError, ValueError):  # ValueError: a null byte, before Python 3.12
        return None
    for node in statements:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == function:
            has_docstring = ast.get_docstring(node) is not None
            return [ast.dump(each) for each in node.body[has_docstring:]]
    return None


def write_stubs(workspace: Workspace, names: list[str] | None = None) -> list[str]:
    """Write the stubs of `names` (default: all) over the files in exercises/; return the names."""
    names = names or list(load_catalog())
    for name in names:
        workspace.exercise(name).write_text(stub_of(name, workspace), encoding="utf-8")
    return names


if __name__ == "__main__":
    print("wrote the stubs of", *write_stubs(find_workspace(), sys.argv[1:]))
