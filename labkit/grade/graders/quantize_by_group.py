"""Grade quantize_by_group: weights that are made from codes and scales, so both are known."""

from collections.abc import Callable
from typing import Any

import torch

from labkit.grade.grader import Case, Draw, Mistake, Observed, Outcome, Questions, close, patch

Tensor = torch.Tensor
FUNCTIONS = QUANTIZE, DEQUANTIZE = "quantize", "dequantize"
ZEROS = "a group of zeros"
SIZES = {
    "one group to a row": (5, 8, 8),
    "several groups": (6, 24, 4),
    "an odd number of inputs": (4, 15, 3),
    "a short last group": (7, 20, 8),
    "a last group of one": (4, 13, 4),
    "groups longer than a row": (3, 10, 16),
    ZEROS: (4, 18, 6),
}


def cases(draw: Draw) -> list[Case]:
    """Each weight is at most 0.45 steps from its code, and each group has a code of 7 or -7."""
    forth, back = [], []
    for what, (num_outputs, num_inputs, group) in SIZES.items():
        label = f"{what}: {num_outputs} outputs, {num_inputs} inputs, groups of {group}"
        codes = draw(num_outputs, num_inputs, low=-6, high=7)[0]
        jitter = draw.same(num_outputs, num_inputs).clamp(-0.45, 0.45)
        scales = draw.same(num_outputs, -(-num_inputs // group)).exp() / 50
        for row in range(num_outputs):
            for start in range(0, num_inputs, group):
                place = draw.rng.randrange(start, min(num_inputs, start + group))
                codes[row, place], jitter[row, place] = draw.rng.choice((-7, -7, 7)), 0
        if what == ZEROS:
            codes[1, :group] = jitter[1, :group] = scales[1, 0] = 0
        of_each = each(scales, num_inputs, group)
        made, weight = (packed(codes), scales), (codes + jitter) * of_each
        forth.append(Case(label, weight, group, function=QUANTIZE, known=made))
        its = (*made, num_inputs, group)
        back.append(Case(label, *its, function=DEQUANTIZE, known=codes * of_each))
    return forth + back


def each(scales: Tensor, num_inputs: int, group: int) -> Tensor:
    """The scale of each weight."""
    return scales[:, torch.arange(num_inputs) // group]


def packed(codes: Tensor) -> Tensor:
    """Two codes to a byte, each plus 8."""
    stored = torch.nn.functional.pad(codes + 8, (0, codes.shape[1] % 2)).unflatten(1, (-1, 2))
    return (stored @ torch.tensor([1.0, 16.0])).to(torch.uint8)


def unpacked(stored: Tensor, num_inputs: int) -> Tensor:
    """The codes."""
    return torch.stack([stored % 16, stored // 16], 2).flatten(1)[:, :num_inputs].float() - 8


def swapped(stored: Tensor) -> Tensor:
    """The halves of each byte in the other order."""
    return stored % 16 * 16 + stored // 16


def right(*args: Any, known: Any) -> Any:
    """What the weights were made from."""
    return known


def same(got: Any, right: Any, case: Case) -> bool:
    """A group of zeros may have any scale that is a number."""
    if case.function == QUANTIZE and isinstance(got, tuple | list) and len(got) == 2:
        codes, scales = got
        if isinstance(scales, Tensor) and scales.shape == right[1].shape:
            got = codes, scales.where(right[1] > 0, 0 * scales)
    return close(got, right)


def has_scales(*wrong: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Observed], bool]:
    """A predicate of quantize: the scales, as functions of all weights and those of a group."""

    def seen(s: Observed) -> bool:
        weight, group = s.args
        parts = weight.split(group, 1)
        found = [torch.stack([of(weight, part) for part in parts], 1) for of in wrong]
        return any(close(s.y[1].expand_as(x), x / 7) for x in found)

    return seen


def cuts_off(s: Observed) -> bool:
    """Whether codes are rounded towards 0, or down."""
    weight, group = s.args
    quotients = weight / each(s.right[0][1], weight.shape[1], group)
    # The others are whole but for rounding, or 0 / 0.
    is_between = (quotients - quotients.round()).abs() > 1e-3
    codes = unpacked(s.y[0], weight.shape[1])[is_between]
    return any(torch.equal(codes, x[is_between]) for x in (quotients.trunc(), quotients.floor()))


def zeros_are_wrong(s: Observed) -> bool:
    """Whether only the group of zeros went wrong."""
    others = torch.arange(len(s.xs)) != 1
    return ZEROS in s.label and torch.equal(s.y[0][others], s.right[0][0][others])


def is_packed(s: Observed, wrong: Callable[[Tensor], Tensor]) -> bool:
    """Whether the bytes of quantize are a function of the right ones."""
    return s.case.function == QUANTIZE and torch.equal(s.y[0], wrong(s.right[0][0]))


def returns(
    s: Observed,
    codes: Callable[[Tensor, int], Tensor] = unpacked,
    scales: Callable[[Tensor, int, int], Tensor] = each,
) -> bool:
    """Whether dequantize multiplies these codes with these scales."""
    stored, scales_OG, num_inputs, group = s.args
    return close(s.y, codes(stored, num_inputs) * scales(scales_OG, num_inputs, group))


AMAX, SPLIT = "each.abs().amax(1)", "weight_OI.split(group, dim=1)"
ROUND, PACK = "group)).round()", "stored_OI[:, ::2] | stored_OI[:, 1::2] << 4"
MISTAKES = [
    Mistake(
        "has one scale for more than a group",
        "Each group of inputs of each output has a scale of its own. With one for a row or for the "
        "whole tensor, one large weight makes the error of all others large.",
        seen=has_scales(
            lambda weight, _: weight.abs().amax(1),
            lambda weight, _: weight.abs().amax().expand(len(weight)),
            lambda weight, part: part.abs().amax().expand(len(weight)),
        ),
        made_by=patch(AMAX, "weight_OI.abs().max().expand(len(weight_OI))"),
    ),
    Mistake(
        "takes the largest weight, not the largest absolute one",
        "A weight of -0.9 needs as large a scale as one of 0.9. With the maximum it gets a code "
        "below -7, which does not fit.",
        hint=3,
        seen=has_scales(lambda _, part: part.amax(1)),
        made_by=patch(AMAX, "each.amax(1)"),
    ),
    Mistake(
        "divides by another number than 7",
        "The largest weight of a group gets the largest code, 7. 8 is not a code, and 15 is how "
        "many codes there are.",
        hint=2,
        seen=lambda s: any(close(s.y[1], s.right[0][1] * 7 / n) for n in (7.5, 8, 15, 16)),
        made_by=patch("for each in groups], 1) / 7", "for each in groups], 1) / 8"),
    ),
    Mistake(
        "makes groups of outputs",
        "A group is inputs of one output, along dim 1. The products of a run of inputs are added "
        "up, so they can share a scale.",
        seen=lambda s: close(
            s.y[1], torch.stack([x.abs().amax(0) / 7 for x in s.xs.split(s.args[1])])
        ),
        made_by=patch(
            *(SPLIT, "weight_OI.split(group)"),
            *(f"[{AMAX} for each in groups], 1)", "[each.abs().amax(0) for each in groups])"),
            *(
                "_per_input(steps_OG, weight_OI.shape[1], group)).round()",
                "steps_OG.repeat_interleave(group, 0)[: len(weight_OI)]).round()",
            ),
        ),
    ),
    Mistake(
        "has no short last group",
        "If `group` does not divide the inputs, the last group has what is left. split makes it, "
        "and a reshape fails.",
        hint=3,
        outcome=Outcome.CRASHED,
        seen=lambda s: bool(s.error) and s.xs.shape[1] % s.args[1] != 0,
        made_by=patch(SPLIT, "weight_OI.unflatten(1, (-1, group)).unbind(1)"),
    ),
    Mistake(
        "divides zeros by a scale of 0",
        "0 / 0 is NaN, and NaN as a whole number is anything. Where the scale is 0, divide by 1.",
        hint=3,
        seen=zeros_are_wrong,
        made_by=patch("scales_OG.where(scales_OG > 0, 1.0)", "scales_OG"),
    ),
    Mistake(
        "cuts off instead of rounding",
        "A conversion to a whole type drops the digits: the error reaches a whole step, and "
        "weights get smaller on average. round() first.",
        hint=3,
        seen=cuts_off,
        made_by=patch(ROUND, "group)).trunc()"),
    ),
    Mistake(
        "has the first of two in the high half",
        "Input 2 b is in the low 4 bits of byte b, and input 2 b + 1 in the high ones.",
        hint=2,
        seen=lambda s: (
            is_packed(s, swapped) or returns(s, lambda stored, n: unpacked(swapped(stored), n))
        ),
        made_by=patch(PACK, "stored_OI[:, ::2] << 4 | stored_OI[:, 1::2]"),
    ),
    Mistake(
        "forgets the 8",
        "The 4 bits have no sign: they hold code + 8. Add 8 before packing, and subtract it after "
        "unpacking.",
        hint=2,
        seen=lambda s: (
            is_packed(s, lambda stored: stored ^ 0x88)
            or returns(s, lambda stored, n: unpacked(stored, n) + 8)
        ),
        made_by=patch("stored_OI.float() - 8", "stored_OI.float()"),
    ),
    Mistake(
        "subtracts 8 from a uint8",
        "uint8 has no sign, so 3 - 8 is 251. Convert first, then subtract.",
        hint=3,
        seen=lambda s: returns(s, lambda stored, n: unpacked(stored, n) % 256),
        made_by=patch("stored_OI.float() - 8", "(stored_OI - 8).float()"),
    ),
    Mistake(
        "multiplies with another group's scale",
        "Input i is in group i // group. repeat_interleave(group) gives a scale to `group` inputs "
        "that follow each other; repeat gives neighbours different ones. A short last group does "
        "not make the others shorter.",
        hint=3,
        seen=lambda s: (
            returns(s, scales=lambda scales, n, group: scales.repeat(1, group)[:, :n])
            or returns(s, scales=lambda scales, n, _: each(scales, n, -(-n // scales.shape[1])))
        ),
        made_by=patch(
            "return codes_OI * _per_input(scales_OG, num_inputs, group)",
            "return codes_OI * scales_OG.repeat(1, group)[:, :num_inputs]",
        ),
    ),
]

GRADER = Questions(
    name="quantize_by_group",
    functions=FUNCTIONS,
    cases=cases,
    right=right,
    same=same,
    mistakes=MISTAKES,
    closed=("labkit.serving",),
    shown="every weight comes back within half a step of its own group, in 4 bits, with short last "
    "groups and groups of zeros",
)
