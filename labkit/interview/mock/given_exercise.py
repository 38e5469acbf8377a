"""The file of an exercise as it was when an interview asked for it: code from before is no answer.

given = GivenExercise("ring_all_reduce")
given.notice        "" for a stub; else what to do first, such as labkit reset
given.is_new()      whether a pass would be of something that was written since
"""

import ast

from labkit import progress
from labkit.grade.desk import has_passed
from labkit.grade.grader import functions_of
from labkit.grade.submission import NothingToGrade, Submission
from labkit.grade.verdict import Outcome
from labkit.grade.workspace import find_workspace


class GivenExercise:
    """Made when the exercise is shown."""

    def __init__(self, name: str) -> None:
        """Raises UnknownExercise and WorkspaceNotFound."""
        self.name = name
        self._num_resets = self._count_resets()
        self._before = _code_of(name)
        """None: a stub, or nothing that can be read."""

    @property
    def notice(self) -> str:
        """To be said before the learner begins; "" where there is nothing to say."""
        if self._before is None:
            return ""
        if has_passed(self.name):
            return f"`labkit reset {self.name}` first: it is solved already."
        return (
            f"exercises/{self.name}.py has code in it from before, which does not count as it is. "
            f"`labkit reset {self.name}` puts the stub back, and keeps what you had."
        )

    @property
    def refusal(self) -> str:
        """What is said to a pass that is not new."""
        return (
            "It passes, and was in the file before it was asked for: this does not count. "
            f"`labkit reset {self.name}`, write it again, and check; or skip it."
        )

    def is_new(self) -> bool:
        """Whether the code is another than it was, or was reset since; comments are no code."""
        if self._before is None or self._count_resets() > self._num_resets:
            return True
        return _code_of(self.name) != self._before

    def _count_resets(self) -> int:
        return len(progress.events(self.name, "reset"))


def _code_of(name: str) -> str | None:
    """The learner's code without comments and spacing; None for a stub, or where there is none."""
    workspace = find_workspace()
    try:
        found = Submission.read(None, name, functions_of(name), workspace)
    except NothingToGrade:
        return None
    finding = found.finding_before_running()
    if finding is not None and finding.outcome is Outcome.NOT_ATTEMPTED:
        return None
    text = found.code.source
    return text if finding is not None else ast.dump(ast.parse(text))
