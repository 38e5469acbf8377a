"""Exercises whose functions answer questions about runs, in one process that sees no run.

    driver: questions, with data from real runs -> a fresh process: the learner's functions
    driver: what the runs show, against what came back

What the runs show never enters the process that answers.
"""

import ast
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from labkit.comm.operation import Site
from labkit.comm.words import listed
from labkit.grade import own_code
from labkit.grade.answering import QUESTION, Answer, Questions, answer, read_answer
from labkit.grade.crash import explain_crash
from labkit.grade.exchange import new_exchange
from labkit.grade.hang import NEVER_BEGAN, NOT_BEGUN, OF_A_BUSY_MACHINE, STILL_AT_WORK
from labkit.grade.moving import was_moving
from labkit.grade.outcome import Finding, Graded, Outcome
from labkit.grade.submission import Submission
from labkit.launch import launch
from labkit.launch.errors import RankError, RunError, RunTimeout

Known = TypeVar("Known")
_MORE_PATIENCE = 4.0
_STILL_AT_WORK = (
    "not all is answered within {timeout_s:g} s, but there was no standstill: this question had "
    "only been asked a short while ago. The function takes long for each of many questions, or the "
    "machine is busy with something else. Check again, or give it longer with timeout_s"
)


@dataclass(frozen=True, slots=True)
class Question(Generic[Known]):
    """One call of a function of the learner's, and what the grader knows of it."""

    function: str
    arguments: tuple[Any, ...]
    """Plain data."""
    label: str
    """The question in words: `epoch on 3 ranks`."""
    known: Known
    """For the driver only: what a run has shown, or which run will."""


class Answers(Generic[Known]):
    """A grader of functions that are asked questions."""

    functions: Sequence[str]
    shown_by_a_pass: str
    answers_are_in: Sequence[str] = ()
    """Packages of labkit whose functions must not be called: they are what is asked."""
    arguments_stay: bool = False
    """Whether the functions must leave their arguments as they are."""
    takes_iterators: bool = False
    """Whether they may be generators, which answer with the list of what they yield."""

    def questions(self, rng: random.Random) -> list[Question[Known]]:
        """Fresh ones. Everything random comes from `rng`."""
        raise NotImplementedError

    def judge(self, questions: Sequence[Question[Known]], answers: Sequence[Any]) -> Finding | None:
        """The first mistake in the answers, which are plain data; or None."""
        raise NotImplementedError

    def tried(self, questions: Sequence[Question[Known]]) -> str:
        """What was asked, in words."""
        raise NotImplementedError

    def grade(self, code: Submission, seed: int, timeout_s: float) -> Graded:
        """Ask for all answers in one process, and judge them."""
        asked = [
            question
            for question in self.questions(random.Random(seed))
            if question.function not in code.unwritten
        ]
        rules = (self.answers_are_in, self.arguments_stay, self.takes_iterators)
        answers = ask_patiently(code, asked, timeout_s, *rules)
        finding = answers if isinstance(answers, Finding) else self.judge(asked, answers)
        if finding is None and code.unwritten:
            finding = Finding(
                Outcome.NOT_ATTEMPTED,
                "a part is still to be written",
                f"what there is, is right; write {listed(code.unwritten)} and check again",
            )
        return Graded(finding, self.tried(asked))


def ask_patiently(
    code: Submission, questions: Sequence[Question[Any]], timeout_s: float, *rules: Any
) -> list[Any] | Finding:
    """As `ask`; a machine too busy for it is given longer, once."""
    answers = ask(code, questions, timeout_s, *rules)
    if isinstance(answers, Finding) and answers.diagnosis in OF_A_BUSY_MACHINE:
        answers = ask(code, questions, _MORE_PATIENCE * timeout_s, *rules)
    return answers


def ask(
    code: Submission,
    questions: Sequence[Question[Any]],
    timeout_s: float,
    answers_are_in: Sequence[str] = (),
    arguments_stay: bool = False,
    takes_iterators: bool = False,
) -> list[Any] | Finding:
    """The answers, in order; or why there is not one to each question.

    answers_are_in: packages of labkit that the code must not call. arguments_stay: it must not
    change what it is given. takes_iterators: a generator is asked for all that it yields.
    """
    calls = tuple((question.function, question.arguments) for question in questions)
    with new_exchange() as exchange:
        job = Questions(
            code.code,
            calls,
            exchange.folder,
            tuple(answers_are_in),
            arguments_stay,
            takes_iterators,
        )
        failure = None
        try:
            launch(answer, 1, [(job,)], timeout=timeout_s, device="cpu", echo=False)
        except RunError as error:
            failure = error
        told = [read_answer(exchange.folder, index) for index in range(len(calls))]
    if isinstance(failure, RunTimeout) and None in told:
        num_over = _num_over(failure)
        told = told[:num_over] + [None] * (len(told) - num_over)
    values = []
    for question, each in zip(questions, told, strict=True):
        if each is None:
            assert failure is not None, "a process that ended well has answered everything"
            return _no_answer(failure, _call(question), timeout_s)
        value = _value(each, _call(question))
        if isinstance(value, Finding):
            return value
        values.append(value)
    return values


def _value(told: Answer, call: str) -> Any:
    """The answer as plain data, or a Finding where it is none."""
    if told.rule_site is not None:
        return Finding(
            Outcome.WRONG,
            told.rule,
            told.rule_message,
            first_seen=call,
            where=Site(*told.rule_site),
        )
    try:
        return ast.literal_eval(told.text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return Finding(
            Outcome.WRONG,
            "returns something that is no plain data",
            f"the function returns a {told.type} that is not made of dicts, lists, tuples, "
            "strings and finite numbers alone; float(x) makes a plain number of a Fraction or of a "
            "tensor of one",
            first_seen=call,
            hint=3,
        )


def _num_over(failure: RunTimeout) -> int:
    """How many questions were over when the journal was read; answers may have come since."""
    regions = [region for timeline in failure.timeline for region in timeline.regions]
    return sum(each.name == QUESTION and each.end_s is not None for each in regions)


def _no_answer(failure: RunError, call: str, timeout_s: float) -> Finding:
    if isinstance(failure, RankError):
        return explain_crash(failure, call, who="it")
    stack = failure.stacks[0]
    where = own_code.site_in_stack(stack)
    name = "does not come to an end"
    why = f"no answer within {timeout_s:g} s: the function loops, or waits for something"
    if where is None:
        name, why = NEVER_BEGAN, NOT_BEGUN
    elif was_moving(failure, timeout_s):
        name, why, where = STILL_AT_WORK, _STILL_AT_WORK.format(timeout_s=timeout_s), None
    details = own_code.of_stack(stack)
    return Finding(Outcome.HUNG, name, why, first_seen=call, where=where, details=details)


def _call(question: Question[Any]) -> str:
    """`waits_in_epoch(3)`; large arguments are left out."""
    arguments = ", ".join(map(repr, question.arguments))
    return f"{question.function}({arguments if len(arguments) < 40 else '...'}), {question.label}"
