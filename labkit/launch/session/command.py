"""What a session asks of its ranks: run a cell, take a value, tell the names of the variables.

A command is made by the driver, travels through the rank's own pipe, and runs in the namespace
that the rank keeps between commands.
"""

from __future__ import annotations

import ast
import keyword
import marshal
import pickle
from dataclasses import dataclass
from typing import Any, Protocol

from labkit import arguments
from labkit.doctor import sources

GIVEN = ("world", "rank", "world_size", "torch", "labkit")
"""The names that every rank starts with."""


class Command(Protocol):
    """Something that a rank does in its namespace; its value is the command's."""

    def run(self, namespace: dict[str, Any]) -> Any:
        """Do it, on the rank."""


@dataclass(frozen=True)
class Cell:
    """A cell's code, and the text that tracebacks show of it."""

    file: str
    lines: list[str]
    body: bytes
    value: bytes | None
    """The last expression, whose value is the cell's own; None where the cell ends otherwise."""

    @classmethod
    def of(cls, source: str, number: int, text: str | None = None, above: int = 0) -> Cell:
        """Compile `source`, which is `text` without its first lines, `above` of them.

        Raises SyntaxError, with the line numbers of `text`, and TypeError for what is no text.
        """
        advice = "give the text of a cell, such as session.execute('rank + 1')"
        arguments.instance("source", source, str, advice)
        file = sources.name_of_cell(number)
        try:
            body, value = _compiled("\n" * above + source, file)
        except (RecursionError, MemoryError):
            raise SyntaxError(
                f"the cell {_start_of(source)!r} is nested too deeply for Python's compiler, such "
                "as a sum of thousands of terms; take it apart, or compute it in a loop"
            ) from None
        except ValueError as error:  # half a pair of surrogates; before Python 3.12 a null byte
            raise SyntaxError(
                f"the cell {_start_of(source)!r} holds a character that Python cannot read "
                f"({error}); write it as an escape, such as '\\x00'"
            ) from None
        # Each ends with a newline, as a file's lines do: carets are one off under a line without.
        lines = [f"{line}\n" for line in (source if text is None else text).splitlines()]
        return cls(file, lines, body, value)

    def run(self, namespace: dict[str, Any]) -> Any:
        """The value of the last expression, or None."""
        sources.remember({self.file: self.lines})
        exec(marshal.loads(self.body), namespace)
        return None if self.value is None else eval(marshal.loads(self.value), namespace)


def _compiled(source: str, file: str) -> tuple[bytes, bytes | None]:
    """The code of all but a last expression, and that of the expression."""
    tree = ast.parse(source, file)
    last = tree.body[-1] if tree.body else None
    value = None
    if isinstance(last, ast.Expr):
        del tree.body[-1]
        expression = ast.Expression(last.value)
        value = marshal.dumps(compile(expression, file, "eval", dont_inherit=True))
    return marshal.dumps(compile(tree, file, "exec", dont_inherit=True)), value


def _start_of(source: str) -> str:
    return source if len(source) <= 40 else f"{source[:37]}..."


@dataclass(frozen=True)
class Push:
    """A value of the driver's for a variable of the ranks."""

    name: str
    data: bytes
    """The value, pickled by the driver."""

    def __post_init__(self) -> None:
        """ValueError or TypeError for a name that no variable can have."""
        _require_variable(self.name)

    def run(self, namespace: dict[str, Any]) -> None:
        """Unpickle the value: each rank has a copy of its own."""
        namespace[self.name] = pickle.loads(self.data)


@dataclass(frozen=True)
class Take:
    """The value of a variable, for the driver."""

    name: str

    def __post_init__(self) -> None:
        """ValueError or TypeError for a name that no variable can have."""
        _require_variable(self.name)

    def run(self, namespace: dict[str, Any]) -> tuple[bool, Any]:
        """(whether there is such a variable, its value)."""
        return self.name in namespace, namespace.get(self.name)


@dataclass(frozen=True)
class Names:
    """The variables that cells have made."""

    def run(self, namespace: dict[str, Any]) -> list[str]:
        """Their names, in alphabetical order."""
        return sorted(name for name in namespace if not name.startswith("_") and name not in GIVEN)


def _require_variable(name: str) -> None:
    """TypeError and ValueError for what a cell can have no variable by."""
    arguments.instance("name", name, str, "give the variable's name as text, such as 'x'")
    if not name.isidentifier():
        raise ValueError(f"{name!r} is not the name of a variable; give one such as 'x'")
    if keyword.iskeyword(name):
        raise ValueError(f"{name!r} is a word of Python's own, and no variable; add a _: '{name}_'")
