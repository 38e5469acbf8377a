"""The code under test, as it travels to fresh processes, and how one of those loads it."""

import inspect
import linecache
import os
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class SubmissionError(Exception):
    """The code under test does not have a function that it should have."""


@dataclass(frozen=True, slots=True)
class Code:
    """A file's text, or functions from a notebook's cells."""

    functions: tuple[str, ...]
    """The names of the functions that are graded."""
    source: str | None
    """The file's text, or what is known of the objects'."""
    filename: str
    objects: tuple[Callable[..., Any], ...] = ()
    """The functions themselves, in the order of `functions`; empty for a file."""

    def load(self, name: str, num_arguments: int) -> Callable[..., Any]:
        """The function `name`. Executes the code the first time: never in the driver.

        Raises SubmissionError where there is none, or it does not take `num_arguments`.
        """
        if self.objects:
            function: Any = self.objects[self.functions.index(name)]
        else:
            function = getattr(self._module(), name, None)
        if not callable(function):
            raise SubmissionError(
                f"{self.filename} defines no function {name}; keep the name of the stub"
            )
        try:
            inspect.signature(function).bind(*range(num_arguments))
        except TypeError as error:
            arguments = "1 argument" if num_arguments == 1 else f"{num_arguments} arguments"
            raise SubmissionError(
                f"{name}{inspect.signature(function)} cannot be called with {arguments}: {error}; "
                "keep the signature of the stub"
            ) from None
        except ValueError:  # written in C, with a signature that nobody knows
            pass
        return function

    def _module(self) -> types.ModuleType:
        """The learner's file as it was when `check` read it."""
        if "submission" in sys.modules:
            return sys.modules["submission"]
        source = self.source or ""
        lines = source.splitlines(keepends=True)
        linecache.cache[self.filename] = (len(source), None, lines, self.filename)
        module = types.ModuleType("submission")
        module.__file__ = self.filename
        sys.modules["submission"] = module  # dataclasses look their module up
        sys.path.insert(0, os.path.dirname(self.filename))
        exec(compile(source, self.filename, "exec"), module.__dict__)
        return module
