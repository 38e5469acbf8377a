"""What each exercise is graded on: one module per exercise, each with a GRADER."""

import importlib
import random
from collections.abc import Sequence
from typing import Protocol

from labkit.grade.evidence import Attempt, Case, CaseEvidence
from labkit.grade.outcome import Finding


class Grader(Protocol):
    """The cases of an exercise, and how it tells right from wrong."""

    allowed: Sequence[str]
    """Operations of the group that code under test may use: of isend, irecv, send, recv."""
    world_sizes: Sequence[int]
    """In the order in which they are tried; a check stops at the first that goes wrong."""
    shown_by_a_pass: str
    """What has been checked, for the verdict of a pass."""

    def cases(self, world_size: int, rng: random.Random) -> list[Case]:
        """Fresh inputs, simple ones first. Everything random comes from `rng`."""

    def judge(self, evidence: CaseEvidence) -> Finding | None:
        """The mistake in a case that every rank came back from, or None."""

    def refine(self, finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
        """A better name for a mistake, in the light of the cases before it; or `finding`."""


def load_grader(name: str) -> Grader:
    """The grader of the exercise `name`."""
    grader: Grader = importlib.import_module(f"{__name__}.{name}").GRADER
    return grader
