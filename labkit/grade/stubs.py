"""A stub is its solution with the answer cut out.

    solutions/scan.py                      exercises/scan.py

    def scan(x, group):                    def scan(x, group):
        \"\"\"The sum of ...\"\"\"                   \"\"\"The sum of ...\"\"\"
        ### BEGIN SOLUTION                     raise NotImplementedError("...")
        total = x.clone()
        ...
        ### END SOLUTION

Where the stub is a program to repair, that follows the answer, as comments:

        ### INSTEAD
        # return x                             return x
        ### END SOLUTION

`python -m labkit.grade.stubs` writes the stub of every exercise into exercises/; a test fails when
what git holds there is not what would be written.
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
    """The text of `solution` with everything between the markers replaced: by what stands below
    INSTEAD, or by PLACEHOLDER.

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
    """The stub of the exercise `name`, cut from its solution."""
    return cut_stub(workspace.solution_text(name), workspace.shown(workspace.solution(name)))


def is_unattempted(source: str, function: str, stub: str) -> bool:
    """Return whether `function` is as in `stub`; comments and its docstring may differ.

    False where `source` does not parse or has no such function.
    """
    code = _code_of(function, source)
    return code is not None and code == _code_of(function, stub)


def _code_of(function: str, source: str) -> list[str] | None:
    """The statements of a function or class below its docstring; None where there is none."""
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
    """Write the stubs of `names` (all) into exercises/, over what is there; returns the names."""
    names = names or list(load_catalog())
    for name in names:
        workspace.exercise(name).write_text(stub_of(name, workspace), encoding="utf-8")
    return names


if __name__ == "__main__":
    print("wrote the stubs of", *write_stubs(find_workspace(), sys.argv[1:]))
