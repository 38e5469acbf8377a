"""split_attention_heads is graded on shares, compared bit by bit, on errors, and on copies.

The weights are cut for all ranks of a layout in one process; the second function answers questions.
"""

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

from labkit.grade import diagnosis
from labkit.grade.answers import Question
from labkit.grade.by_theory import ByTheory
from labkit.grade.evidence import Attempt, Case, CaseEvidence
from labkit.grade.graders.copies_theories import THEORIES
from labkit.grade.graders.heads_layouts import Holder, draw_holders, given_in, random_cases
from labkit.grade.graders.heads_shares import copies
from labkit.grade.graders.heads_verdicts import wrong_form, wrong_refusals, wrong_shares
from labkit.grade.graders.heads_watch import on_all_ranks, seen_in
from labkit.grade.on_ranks import OnRanks
from labkit.grade.outcome import Finding, Graded, Outcome
from labkit.grade.submission import Submission


class Shares(OnRanks):
    """The grader of the first function."""

    functions: Sequence[str] = ("split_attention_heads",)
    allowed: Sequence[str] = ()
    world_sizes: Sequence[int] = (1,)
    call = staticmethod(on_all_ranks)
    num_arguments = 8
    shown_by_a_pass = "shares of heads"

    def cases(self, world_size: int, rng: random.Random) -> list[Case]:
        """A layout each."""
        return random_cases(rng)

    def judge(self, evidence: CaseEvidence) -> Finding | None:
        """The first thing wrong: form, then shares or errors."""
        given, seen = given_in(evidence.case), seen_in(evidence)
        finding = diagnosis.unlisted_operation(evidence, self.allowed) or wrong_form(seen)
        if finding is None and given.layout.is_even:
            finding = wrong_shares(given, seen.answers)
        elif finding is None:
            finding = wrong_refusals(given.layout, seen.answers)
        return finding and _with_label(finding, evidence)

    def refine(self, finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
        """Crashes where an error was wanted."""
        # An attempt's label says that there is one rank: the one that asks.
        label = evidence.case.label
        is_crash = finding.outcome is Outcome.CRASHED and "raises" in finding.diagnosis
        if evidence.completed or not is_crash:
            return finding
        if given_in(evidence.case).layout.is_even:
            return dataclasses.replace(finding, first_seen=label)
        return dataclasses.replace(
            finding,
            diagnosis="another error than ValueError",
            explanation="these ranks cannot share the heads, and whoever asks is told so by a "
            f"ValueError, with the numbers of ranks that can. {finding.explanation}",
            first_seen=label,
        )


def _with_label(finding: Finding, evidence: CaseEvidence) -> Finding:
    seen = ": ".join(filter(None, (evidence.case.label, finding.first_seen)))
    return dataclasses.replace(finding, first_seen=seen)


class SplitAttentionHeads(ByTheory[Holder]):
    """The grader of split_attention_heads: of its first function, then of the second."""

    functions: Sequence[str] = ("split_attention_heads", "kv_copies")
    answers_are_in: Sequence[str] = ("tensor_parallel", "grade/graders")
    rights = {"kv_copies": copies}
    theories = {"kv_copies": THEORIES}
    shown_by_a_pass = (
        "every rank has whole heads, and the key-value heads that they read, copied where there "
        "are fewer than ranks; ranks that cannot share the heads are told which can; and copies "
        "are known"
    )

    def questions(self, rng: random.Random) -> list[Question[Holder]]:
        """Of kv_copies."""
        return draw_holders(rng)

    def wrong_form(self, function: str, answer: Any) -> str:
        """A list of ranks."""
        is_list = isinstance(answer, list | tuple) and all(type(each) is int for each in answer)
        return "" if is_list else "a list of ranks, such as [2, 3]"

    def unexplained(self, function: str, pairs: Sequence[tuple[Holder, Any]]) -> tuple[str, str]:
        """Where ranks have no copies, or where they have."""
        wrong = [holder for holder, answer in pairs if list(answer) != copies(holder)]
        without = [each for each in wrong if each.num_ranks <= each.num_kv_heads]
        where = "there are copies only where n is larger than G, and [rank] is all there is else"
        if not without:
            where = "n/G ranks side by side have the same key-value head, the rank among them"
        return "other ranks than those with copies", where

    def grade(self, code: Submission, seed: int, timeout_s: float) -> Graded:
        """Shares; then copies."""
        shares = Graded()
        if self.functions[0] not in code.unwritten:
            shares = Shares().grade(_only_shares(code), seed, timeout_s)
            if shares.finding is not None:
                return shares
        graded = super().grade(code, seed, timeout_s)
        return Graded(graded.finding, "; ".join(filter(None, (_layouts(shares), graded.tried))))

    def tried(self, questions: Sequence[Question[Holder]]) -> str:
        """`38 ranks that may hold copies`"""
        return f"{len(questions)} ranks that may hold copies" if questions else ""


def _layouts(graded: Graded) -> str:
    """`10 layouts`, from `10 cases on 1 rank`."""
    return graded.tried.replace("cases on 1 rank", "layouts of heads on ranks")


def _only_shares(code: Submission) -> Submission:
    """The same code, of which the first function is called."""
    objects, functions = code.code.objects[:1], code.code.functions[:1]
    only = dataclasses.replace(code.code, functions=functions, objects=objects)
    return dataclasses.replace(code, code=only)


GRADER = SplitAttentionHeads()
