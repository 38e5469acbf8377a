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
_STANDARD = os.path.dirname(os.__file__) + os.sep
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_IMPORTS = "<frozen importlib"
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
    """The innermost line of a stack that is the learner's.

    None also where that line imports a library, which takes as long as the machine makes it.
    """
    blocks = _blocks(text)
    own = [index for index, (file, _) in enumerate(blocks) if _is_learners(file)]
    if not own or any(file.startswith(_IMPORTS) for file, _ in blocks[own[-1] :]):
        return None
    frame = _FRAME.match(blocks[own[-1]][1])
    assert frame is not None, "a block with a file begins with its frame"
    return Site(frame["file"] or frame["cell"], int(frame["line"]), frame["function"])


def innermost_line(text: str) -> str:
    """The source line that raised, where it is the learner's; empty where it is not."""
    frames = [(file, block) for file, block in _blocks(text) if file]
    if not frames or not _is_own(frames[-1][0]):
        return ""
    return "".join(frames[-1][1].splitlines()[1:2]).strip()


def _is_own(file: str) -> bool:
    return bool(file) and not file.startswith(_MACHINERY)


def _is_learners(file: str) -> bool:
    """Not Python's own either, which also stands below labkit: a rank's threads begin there.

    Nor one of an installed package.
    """
    return _is_own(file) and not file.startswith(_STANDARD) and not _INSTALLED.search(file)


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
