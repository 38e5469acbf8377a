"""Answers of gradient_buckets, judged: which rule they follow."""

from collections.abc import Sequence
from typing import Any

from labkit.grade.graders.bucket_rules import RULES, Asked, Buckets, right
from labkit.grade.outcome import Finding, Outcome


def wrong_form(asked: Asked, answer: Any) -> Finding | None:
    """Something else than a list of lists of indices."""
    is_form = isinstance(answer, list | tuple) and all(
        isinstance(bucket, list | tuple) and all(type(index) is int for index in bucket)
        for bucket in answer
    )
    if is_form:
        return None
    return Finding(
        Outcome.WRONG,
        "returns no list of lists of indices",
        f"got {str(answer)[:100]}; the contract is such as [[2, 1], [0]]",
        first_seen=told(asked),
        hint=3,
    )


def wrong_buckets(asked: Sequence[Asked], answers: Sequence[Buckets]) -> Finding | None:
    """The first answer that is not the rule's, under the name of the rule that it follows."""
    plain = [[list(bucket) for bucket in answer] for answer in answers]
    wrong = [i for i, each in enumerate(asked) if plain[i] != right(each)]
    if not wrong:
        return None
    first = wrong[0]
    seen = f"{told(asked[first])}: got {plain[first]}, expected {right(asked[first])}"
    for rule in RULES:
        if all(plain[i] == rule.buckets(each) for i, each in enumerate(asked)):
            return Finding(Outcome.WRONG, rule.name, rule.explanation, seen, hint=2)
    name, explanation = _against_the_contract(asked, plain)
    return Finding(Outcome.WRONG, name, explanation, seen, hint=2)


def _against_the_contract(asked: Sequence[Asked], answers: Sequence[Buckets]) -> tuple[str, str]:
    """What no rule explains: the first line of the contract that some answer breaks."""
    for each, answer in zip(asked, answers, strict=True):
        indices = [index for bucket in answer for index in bucket]
        everything = list(range(len(each.numels)))
        if missing := sorted(set(everything) - set(indices)):
            return (
                "leaves gradients out",
                f"{told(each)}: {missing} are in no bucket, so they would not be averaged",
            )
        if sorted(indices) != everything:
            return ("a gradient in more than one bucket", f"{told(each)}: got {answer}")
        if [] in answer:
            return ("an empty bucket", f"{told(each)}: it would be an all-reduce of nothing")
        for bucket in answer:
            if len(bucket) > 1 and each.nbytes(bucket) > each.bucket_bytes:
                return (
                    "fills a bucket beyond its size",
                    f"{told(each)}: {bucket} are {each.nbytes(bucket)} bytes",
                )
        if indices != everything[::-1]:
            return (
                "another order than that of backward",
                f"{told(each)}: gradients go in from the last to the first",
            )
    return (
        "closes a bucket too early",
        "a bucket is closed by a gradient that does not fit any more, and by nothing else",
    )


def told(asked: Asked) -> str:
    """The call, as code."""
    return f"gradient_buckets({list(asked.numels)}, {asked.itemsize}, {asked.bucket_bytes})"
