"""Tracebacks and stacks, less the frames of the machinery around the learner's code."""

import os
import re

import torch

from labkit.comm.operation import Site

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# The last two: as launch/sources.py shows files of these packages.
_MACHINERY = (
    _HERE + os.sep,
    os.path.dirname(torch.__file__) + os.sep,
    "<string>",
    "<frozen",
    "labkit/",
    "torch/",
)
# A frame of a notebook's cell has the cell's number for a file (launch/sources.py).
_FRAME = re.compile(
    r'^  (?:File "(?P<file>[^"]+)"|(?P<cell>Cell \d+)), line (?P<line>\d+),? in (?P<function>\S+)'
)


def of_traceback(text: str) -> str:
    """`text` without the frames of labkit and torch; all of it, where no frame is the learner's."""
    blocks = _blocks(text)
    if not any(_is_own(file) for file, _ in blocks):
        return text
    return "".join(block for file, block in blocks if not file or _is_own(file))


def of_stack(text: str) -> str:
    """The learner's frames of a stack, innermost last; all of it, where there is none."""
    own = [block for file, block in _blocks(text) if _is_own(file)]
    return "".join(own).rstrip("\n") or text


def site_in_stack(text: str) -> Site | None:
    """The innermost line of a stack that is the learner's."""
    own = [_FRAME.match(block) for file, block in _blocks(text) if _is_own(file)]
    if not own or own[-1] is None:
        return None
    return Site(own[-1]["file"] or own[-1]["cell"], int(own[-1]["line"]), own[-1]["function"])


def innermost_line(text: str) -> str:
    """The source line that raised, where it is the learner's; empty where it is not."""
    frames = [(file, block) for file, block in _blocks(text) if file]
    if not frames or not _is_own(frames[-1][0]):
        return ""
    return "".join(frames[-1][1].splitlines()[1:2]).strip()


def _is_own(file: str) -> bool:
    return bool(file) and not file.startswith(_MACHINERY)


def _blocks(text: str) -> list[tuple[str, str]]:
    """Frames with their source lines, as (file, text); other lines have no file."""
    blocks: list[tuple[str, str]] = []
    for line in text.splitlines(keepends=True):
        frame = _FRAME.match(line)
        if frame is not None:
            blocks.append((frame["file"] or frame["cell"], line))
        elif blocks and blocks[-1][0] and line.startswith("    "):
            blocks[-1] = (blocks[-1][0], blocks[-1][1] + line)
        else:
            blocks.append(("", line))
    return blocks
