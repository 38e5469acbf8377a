"""Files in which the answer can be read: labkit's source, and the solutions.

Who has run the text of one under another file's name has called the answer, and no stack shows it.
An audit hook sees every file that is opened. Imports of labkit are fine: what they bring keeps its
file's name. Tracebacks and warnings are, too: they show lines, and hand none on.
"""

import os
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch

_LABKIT = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARY = (os.path.dirname(os.__file__) + os.sep, "<frozen ")
_TORCH = os.path.dirname(torch.__file__) + os.sep
_SHOW_LINES = ("traceback", "warnings", "logging")
_IMPORTS = ("exec_module", "_find_and_load", "find_spec")


def opened_answer(event: str, arguments: Sequence[Any]) -> str | None:
    """The file with an answer that an audit event says the learner's code opens, or None.

    Called by an audit hook, directly.
    """
    if event != "open" or not isinstance(arguments[0], str | bytes):
        return None
    path = os.path.abspath(os.fsdecode(arguments[0]))
    is_labkits = path.startswith(_LABKIT)
    if not path.endswith((".py", ".pyc")) or not (is_labkits or _is_solution(path)):
        return None
    return path if _is_the_learners(sys._getframe(2), may_import=is_labkits) else None


def _is_solution(path: str) -> bool:
    """Whether a file lies in the folder beside exercises/, or in that one's __pycache__."""
    folder = os.path.dirname(path)
    if os.path.basename(folder) == "__pycache__":
        folder = os.path.dirname(folder)
    catalog = os.path.join(os.path.dirname(folder), "exercises", "catalog.toml")
    return os.path.basename(folder) == "solutions" and os.path.exists(catalog)


def _is_the_learners(frame: FrameType | None, may_import: bool) -> bool:
    """Whether code that is neither Python's, labkit's nor torch's has asked for the file."""
    while frame is not None:
        file, code = frame.f_code.co_filename, frame.f_code
        if file.startswith((_LABKIT, _TORCH)):
            return False
        if not file.startswith(_LIBRARY):
            return True
        if may_import and file.startswith("<frozen importlib") and code.co_name in _IMPORTS:
            return False
        if frame.f_globals.get("__name__", "").startswith(_SHOW_LINES):
            return False
        frame = frame.f_back
    return False
