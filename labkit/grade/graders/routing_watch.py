"""What computes routing in the place of code that should: labkit's own, graders included.

On the rank, around the code under test. Seen by the stack under functions of torch.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from labkit.grade import gate as gate_module
from labkit.grade.gate import Gate
from labkit.grade.rules import CalledTheAnswer, labkit_function_in_between, learner_site

_GRADERS = os.path.dirname(os.path.abspath(__file__)) + os.sep
# Between the function that is called and who called it.
_BETWEEN = (gate_module.__file__, os.path.dirname(torch.__file__) + os.sep)


class OwnRouting(TorchFunctionMode):
    """Inside `with gate.watching(OwnRouting(gate)):`, what labkit computes for the learner is
    refused.

    but_for: files of graders that the learner is given functions of.
    """

    def __init__(self, gate: Gate, but_for: Sequence[str] = ()) -> None:
        super().__init__()
        self._gate, self._but_for = gate, tuple(but_for)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Perform `func`, unless labkit calls it."""
        if not self._gate.is_open:  # else a group is communicating
            caller = labkit_function_in_between() or self._grader_in_between()
            if caller is not None:
                message = f"{caller} is the answer itself; write it with functions of torch"
                raise self._gate.refuse(CalledTheAnswer(message, learner_site()))
        return func(*args, **(kwargs or {}))

    def _grader_in_between(self) -> str | None:
        """A grader's function that the learner called: below it on the stack the learner is."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            file = frame.f_code.co_filename
            if file.startswith(_BETWEEN):
                frame = frame.f_back
                continue
            if not file.startswith(_GRADERS):
                return None  # the learner's own line: looked at from the inside out
            if file not in self._but_for:
                return f"{frame.f_globals.get('__name__', 'labkit')}.{frame.f_code.co_name}"
            frame = frame.f_back
        return None
