"""Exercises whose function runs on ranks: random cases, real launches, a judge in the driver."""

import random
from collections.abc import Sequence

from labkit.grade.evidence import Attempt, Case, CaseEvidence, collect
from labkit.grade.exchange import new_exchange
from labkit.grade.hang import OF_A_BUSY_MACHINE
from labkit.grade.harness import Call, Job, attempt_cases, directly
from labkit.grade.judge import judge
from labkit.grade.outcome import Finding, Graded
from labkit.grade.submission import Submission
from labkit.launch import launch
from labkit.launch.errors import RunError
from labkit.launch.result import Run

_MORE_PATIENCE = 4.0
_STALL_S = 2.0  # all ranks wait and no journal grows: a deadlock


class OnRanks:
    """A grader of one function that is called on every rank, with a group as its last argument."""

    functions: Sequence[str]
    """The one function's name."""
    allowed: Sequence[str]
    """Operations of the group that code under test may use."""
    # 3 first: with 2 ranks the left and the right neighbour are the same one, and mistakes cancel.
    world_sizes: Sequence[int] = (3, 2, 4, 1)
    """In the order in which they are tried; a check stops at the first that goes wrong."""
    call: Call = staticmethod(directly)
    """How the function is called, where its arguments are made on the rank, such as modules."""
    num_arguments: int | None = None
    """Of the function, the group included; None: a case's inputs and the group."""
    shown_by_a_pass: str
    """What has been checked, for the verdict of a pass."""

    def cases(self, world_size: int, rng: random.Random) -> list[Case]:
        """Fresh inputs, simple ones first. Everything random comes from `rng`."""
        raise NotImplementedError

    def judge(self, evidence: CaseEvidence) -> Finding | None:
        """The mistake in a case that every rank came back from, or None."""
        raise NotImplementedError

    def refine(self, finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
        """A better name for a mistake, in the light of the cases before it; or `finding`."""
        return finding

    def compare(self, finding: Finding, world_size: int, passed: Sequence[int]) -> Finding:
        """A better name for a mistake, in the light of the world sizes that `passed`; or itself."""
        return finding

    def grade(self, code: Submission, seed: int, timeout_s: float) -> Graded:
        """Launch by launch, until one shows a mistake."""
        finding, tried, num_cases = None, [], 0
        for world_size in self.world_sizes:
            cases = self.cases(world_size, random.Random(f"{seed}/{world_size}"))
            tried.append(world_size)
            num_cases += len(cases)
            finding = self._tried(code, cases, world_size, timeout_s)
            if finding is not None:
                if finding.diagnosis not in OF_A_BUSY_MACHINE:
                    finding = self.compare(finding, world_size, tried[:-1])
                break
        sizes = ", ".join(map(str, sorted(tried)))
        ranks = "1 rank" if sizes == "1" else f"{sizes} ranks"
        return Graded(finding, f"{num_cases} cases on {ranks}")

    def _tried(
        self, code: Submission, cases: Sequence[Case], world_size: int, timeout_s: float
    ) -> Finding | None:
        """The mistake in one launch; a machine too busy for it is given longer, once."""
        finding = judge(self._attempt(code, cases, world_size, timeout_s), self)
        if finding is not None and finding.diagnosis in OF_A_BUSY_MACHINE:
            attempt = self._attempt(code, cases, world_size, timeout_s, _MORE_PATIENCE)
            finding = judge(attempt, self)
        return finding

    def _attempt(
        self,
        code: Submission,
        cases: Sequence[Case],
        world_size: int,
        timeout_s: float,
        patience: float = 1.0,
    ) -> Attempt:
        """One launch: all cases of one world size, with `patience` times the usual time."""
        with new_exchange() as exchange:
            for rank in range(world_size):
                exchange.put_arguments(rank, [case.arguments[rank] for case in cases])
            job = Job(
                exchange,
                code.code,
                tuple(self.allowed),
                tuple(case.delays_s for case in cases),
                tuple(case.altered for case in cases),
                self.call,
                self.num_arguments,
            )
            try:
                ended: Run | RunError = launch(
                    attempt_cases,
                    world_size,
                    [(job,)],
                    timeout=patience * timeout_s,
                    device="cpu",
                    stall=patience * _STALL_S,
                    echo=False,
                )
            except RunError as error:
                ended = error
            return collect(cases, world_size, exchange, ended, patience * timeout_s)
