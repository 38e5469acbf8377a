"""The words of verdicts, in one place: tests/data/verdicts.txt. Other tests assert facts.

`python -m tests.grade.test_wording` writes the file again; read the difference before you commit.
"""

import re
import tempfile
from pathlib import Path

from labkit.grade.engine import check
from labkit.grade.stubs import stub_of
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
WORDS = WORKSPACE.root / "tests" / "data" / "verdicts.txt"
NAME, OTHER = "ring_all_reduce", "model_state_bytes"
HEAD = "import torch\n\n\ndef ring_all_reduce(x, group):\n"
PROGRAMS = [
    (NAME, stub_of(NAME, WORKSPACE)),
    (NAME, WORKSPACE.solution(NAME).read_text()),
    (NAME, HEAD + "    print('hello')\n    return x.clone()\n"),
    (NAME, HEAD + "    return x.shape['a'] if group.rank == 1 else x.clone()\n"),
    (NAME, HEAD + "    group.send(x, (group.rank + 1) % group.size)\n    return x\n"),
    (NAME, HEAD + "    return group.all_reduce(x)\n"),
    (NAME, HEAD + "    if group.rank == 0:\n        group.recv(x.clone(), 1)\n    return x\n"),
    (OTHER, "def model_state_bytes(num_params, recipe, zero, dp):\n    return 16 * num_params\n"),
    (OTHER, "def model_state_bytes(num_params, recipe, zero, dp)\n    return 16 * num_params\n"),
]


def words():
    """All verdicts, without what differs from run to run."""
    verdicts = []
    for name, program in PROGRAMS:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "answer.py")
            file.write_text(program)
            verdict = check(name, file, seed=7, timeout_s=60, workspace=WORKSPACE)
            verdicts.append(re.sub(re.escape(folder), "...", str(verdict)))
    return "\n\n".join(verdicts) + "\n"


def test_the_words_of_verdicts():
    assert words() == WORDS.read_text(encoding="utf-8")


if __name__ == "__main__":
    WORDS.write_text(words(), encoding="utf-8")
