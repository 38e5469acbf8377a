"""What split_attention_heads did for all ranks of a layout: shares, and errors, judged."""

import re
from collections.abc import Sequence

from torch import Tensor

from labkit.grade.exact import is_same
from labkit.grade.graders.heads_layouts import WEIGHTS, Given, Layout
from labkit.grade.graders.heads_mistakes import mistakes
from labkit.grade.graders.heads_shares import right
from labkit.grade.graders.heads_watch import Answer, Seen
from labkit.grade.outcome import Finding, Outcome


def wrong_form(seen: Seen) -> Finding | None:
    """No four tensors, or weights of the caller's that are others now."""
    for rank, answer in enumerate(seen.answers):
        if answer.returned:
            return _wrong(
                "returns something else",
                f"what came back is {answer.returned}; the contract is four dense tensors, the "
                "shares of query, key, value and out",
                f"rank {rank}",
                3,
            )
    if seen.changed:
        return _wrong(
            "changes its arguments",
            f"{seen.changed} has other values than before the call: other ranks' shares are still "
            "to be cut from it",
            "",
            3,
        )
    return None


def wrong_shares(given: Given, answers: Sequence[Answer]) -> Finding | None:
    """Of ranks that can share the heads: the mistake that explains the shares of all of them."""
    for rank, answer in enumerate(answers):
        if answer.refusal is not None:
            return _refused(given.layout, rank, answer.refusal)
    expected = right(given)
    if _all_same([each.shares for each in answers], expected):
        return None
    where = _first_wrong(given, answers, expected)
    for mistake in mistakes(given):
        if _all_same(
            [each.shares for each in answers], [mistake.shares(rank) for rank in _all(given)]
        ):
            return _wrong(mistake.name, mistake.explanation, where, mistake.hint)
    return _wrong(
        "other shares than a rank's",
        "rank r has the r-th block of H/n query heads: their rows of query, their columns of out, "
        "and the rows of key and value of the heads that they read",
        where,
        2,
    )


def wrong_refusals(layout: Layout, answers: Sequence[Answer]) -> Finding | None:
    """Of ranks that cannot share the heads: no error, or one that names other choices."""
    for rank, answer in enumerate(answers):
        if answer.refusal is None:
            return _accepted(layout, rank)
        numbers = [int(each) for each in re.findall(r"\d+", answer.refusal)]
        if not _ends_with(numbers, layout.choices):
            said = f"rank {rank}: ValueError: {answer.refusal[:200]}"
            name, why = _other_choices(layout, numbers)
            would = ", ".join(map(str, layout.choices))
            return _wrong(name, f"{why}. Here these would do: {would}", said, 3)
    return None


def _refused(layout: Layout, rank: int, message: str) -> Finding:
    seen = f"rank {rank}: ValueError: {message[:200]}"
    if layout.num_ranks > layout.num_kv_heads:
        return _wrong(
            "refuses more ranks than key-value heads",
            "G divides n, so that each key-value head is copied to n/G ranks, whose query heads "
            "all read it. With 8 key-value heads that is what 16 ranks do",
            seen,
            1,
        )
    return _wrong(
        "refuses ranks that can share the heads",
        "n divides H, and n divides G: every rank has whole heads, and what these read",
        seen,
        2,
    )


def _accepted(layout: Layout, rank: int) -> Finding:
    n = layout.num_ranks
    if not layout.divides_heads:
        return _wrong(
            "accepts ranks that do not divide the heads",
            f"{layout.num_heads} heads on {n} ranks: some rank has a part of a head, or more "
            "heads than another, or none. The contract is a ValueError with the numbers that do",
            f"rank {rank}",
            2,
        )
    return _wrong(
        "accepts ranks that mix key-value heads",
        f"{n} ranks divide {layout.num_heads} heads, and some rank then has query heads of two of "
        f"{layout.num_kv_heads} key-value heads, neither of them whole: what it needs of key and "
        "value is not an n-th and no copy. n divides G or G divides n, or it is a ValueError",
        f"rank {rank}",
        2,
    )


def _other_choices(layout: Layout, numbers: Sequence[int]) -> tuple[str, str]:
    """From the numbers in a message."""
    of_heads, of_keys = _divisors(layout.num_heads), _divisors(layout.num_kv_heads)
    if _ends_with(numbers, of_heads):
        return (
            "names choices that key-value heads do not allow",
            "the message names all divisors of H, and with some of them a rank's query heads read "
            "parts of two groups: the reader follows the advice into the next error",
        )
    if _ends_with(numbers, of_keys):
        return (
            "names no choices with copies",
            "the message names the divisors of G; multiples of G that divide H do as well, with "
            "copies of key-value heads",
        )
    return (
        "the error does not end with the choices",
        "an error says what would do: all numbers of ranks, ascending, at the end of its message",
    )


def _ends_with(numbers: Sequence[int], choices: Sequence[int]) -> bool:
    return list(numbers[-len(choices) :]) == list(choices)


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def _all(given: Given) -> range:
    return range(given.layout.num_ranks)


def _all_same(got: Sequence[Sequence[Tensor]], expected: Sequence[Sequence[Tensor]]) -> bool:
    return all(
        is_same(one, other)
        for shares, values in zip(got, expected, strict=True)
        for one, other in zip(shares, values, strict=True)
    )


def _first_wrong(
    given: Given, answers: Sequence[Answer], expected: Sequence[Sequence[Tensor]]
) -> str:
    """`rank 1: key: row 0 is row 4 of key, expected row 2`"""
    for rank, (answer, values) in enumerate(zip(answers, expected, strict=True)):
        for name, whole, got, value in zip(
            WEIGHTS, given.weights, answer.shares, values, strict=True
        ):
            if is_same(got, value):
                continue
            seen = f"rank {rank}: {name}: "
            if (got.shape, got.dtype) != (value.shape, value.dtype):
                forms = [f"{tuple(x.shape)}, {x.dtype}" for x in (got, value)]
                return f"{seen}got {forms[0]}, expected {forms[1]}"
            line, lines = ("column", 1) if name == "out" else ("row", 0)
            pairs = zip(got.unbind(lines), value.unbind(lines), strict=True)
            index = next(i for i, (one, other) in enumerate(pairs) if not is_same(one, other))
            places = [_place(x.select(lines, index), whole, lines) for x in (got, value)]
            return f"{seen}{line} {index} is {places[0]}, expected {line} {places[1]} of {name}"
    raise AssertionError("all shares are right")


def _place(line: Tensor, whole: Tensor, dim: int) -> str:
    """The number of the row or column of the whole weight that this is."""
    for index, each in enumerate(whole.unbind(dim)):
        if is_same(line.contiguous(), each.contiguous()):
            return str(index)
    return "none of the weight"


def _wrong(name: str, explanation: str, seen: str, hint: int) -> Finding:
    return Finding(Outcome.WRONG, name, explanation, seen, hint)
