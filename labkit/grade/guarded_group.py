"""A group that allows less than a Group: the operations that an exercise names, and no other.

A rank can be made slow, at random, before each operation.
"""

import random
import time
from contextlib import AbstractContextManager
from typing import Any

from labkit.comm import Group
from labkit.grade.gate import Gate
from labkit.grade.rules import CalledTheAnswer, labkit_function_in_between, learner_site


class GuardedGroup:
    """`group`, for code under test."""

    def __init__(self, group: Group, gate: Gate, allowed: tuple[str, ...]) -> None:
        """`allowed`: operations that the exercise may use."""
        self.rank, self.size = group.rank, group.size
        self.ranks, self.device = group.ranks, group.device
        self.gate = gate
        self._group = group
        self._allowed = allowed
        self._delay_s, self._random = 0.0, random.Random()

    def begin_case(self, delay_s: float, altered: int | None = None) -> None:
        """Before each operation sleep for up to `delay_s`, at random."""
        self._delay_s = delay_s

    def region(self, name: str) -> AbstractContextManager[None]:
        """As Group.region."""
        return self._group.region(name)

    def label(self, name: str) -> AbstractContextManager[None]:
        """As Group.label: it says what operations are for, and communicates nothing."""
        return self._group.label(name)

    def __getattr__(self, name: str) -> Any:
        """Collectives that are allowed, as Group's own; whatever else a Group has is refused.

        What it does not have is named as such.
        """
        if name.startswith("_") or not hasattr(Group, name):
            raise AttributeError(
                f"a group has no {name!r}; here there are rank, size, device, ranks, region, label "
                f"and {', '.join(self._allowed)}"
            )

        def perform(*args: Any, **options: Any) -> Any:
            """As Group's, if the exercise allows it."""
            self._enter(name)
            if args:
                args = (self._passed(args[0]), *args[1:])
            elif "x" in options:
                options["x"] = self._passed(options["x"])
            return self._perform(name, args, options)

        return perform

    def _perform(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """The collective itself."""
        with self.gate.opened():
            return getattr(self._group, name)(*args, **options)

    def _passed(self, x: Any) -> Any:
        """What a collective gets for the learner's x: here, x itself."""
        return x

    def _enter(self, operation: str) -> None:
        """Raise unless the operation may begin; then be as late as the case wants it."""
        if operation not in self._allowed:
            raise self.gate.forbid(f"group.{operation}")
        function = labkit_function_in_between()
        if function is not None:
            message = f"{function} is the answer itself; write it with {', '.join(self._allowed)}"
            raise self.gate.refuse(CalledTheAnswer(message, learner_site()))
        if self._delay_s:
            time.sleep(self._random.uniform(0, self._delay_s))
