"""Grade quantize_by_group: weights that are made from codes and scales, so both are known."""

from typing import Any

import torch

from labkit.grade import grader as g

QUANTIZE, DEQUANTIZE, ZEROS = "quantize", "dequantize", "a group of zeros"
SIZES = {
    "one group to a row": (5, 8, 8),
    "several groups": (6, 24, 4),
    "an odd number of inputs": (4, 15, 3),
    "a short last group": (7, 20, 8),
    "a last group of one": (4, 13, 4),
    "groups longer than a row": (3, 10, 16),
    ZEROS: (4, 18, 6),
}


def cases(draw: g.Draw) -> list[g.Case]:
    """Draw codes and scales, and weights at most 0.49 steps off. Each group has a code 7 or -7."""
    forth, back = [], []
    for what, (num_outputs, num_inputs, group) in SIZES.items():
        starts = range(0, num_inputs, group)
        largest = [draw.rng.randrange(i, min(i + group, num_inputs)) for i in starts]
        codes = draw(num_outputs, num_inputs, low=-6, high=7)[0]
        codes[:, largest] = 7 - 14 * draw(num_outputs, len(starts), low=0, high=2)[0]
        jitter = draw.same(num_outputs, num_inputs).clamp(-0.49, 0.49)
        jitter[:, largest] = 0
        scales = draw.same(num_outputs, len(starts)).exp() / 50
        scales[0] *= 1e-7  # tiny weights
        if what == ZEROS:
            codes[1, :group] = jitter[1, :group] = scales[1, 0] = 0
        steps = scales[:, torch.arange(num_inputs) // group]
        label = f"{what}: {num_outputs} outputs, {num_inputs} inputs, groups of {group}"
        made, weight = (packed(codes), scales), (codes + jitter) * steps
        forth.append(g.Case(label, weight, group, function=QUANTIZE, known=made))
        its = *made, num_inputs, group
        back.append(g.Case(label, *its, function=DEQUANTIZE, known=codes * steps))
    return forth + back


def packed(codes: torch.Tensor) -> torch.Tensor:
    """Pack two codes into a byte, each plus 8."""
    stored = torch.nn.functional.pad(codes + 8, (0, codes.shape[1] % 2)).unflatten(1, (-1, 2))
    return (stored @ torch.tensor([1.0, 16.0])).to(torch.uint8)


def right(*args: Any, known: Any) -> Any:
    """Return the values that the weights were made from."""
    return known


def same(got: Any, right: Any, case: g.Case) -> bool:
    """Compare results; a group of zeros may have any scale that is not NaN or infinite."""
    if case.function == QUANTIZE and isinstance(got, tuple | list) and len(got) == 2:
        codes, scales = got
        if isinstance(scales, torch.Tensor) and scales.shape == right[1].shape:
            got = codes, scales.where(right[1] > 0, 0 * scales)
    return g.close(got, right)


def is_wrong_for_tiny_weights(s: g.Observed) -> bool:
    """Return whether only the first row is wrong, whose weights are tiny."""
    both = [[each[1:] for each in its] for its in (s.y, s.right[0])]
    return s.case.function == QUANTIZE and same(*both, s.case)


def is_wrong_behind_an_odd_row(s: g.Observed) -> bool:
    """Return whether only the padding is wrong: the high 4 bits of each row's last byte."""
    (codes, scales), (packed, _) = s.y, s.right[0]
    mask = torch.full_like(packed, 255)
    mask[:, -1] = 15
    is_odd = s.case.function == QUANTIZE and s.xs.shape[1] % 2 == 1
    return is_odd and same((codes & mask, scales), (packed & mask, s.right[0][1]), s.case)


AMAX = "each.abs().amax(1)"
MISTAKES = [
    g.Mistake(
        "has one scale for more than a group",
        "Each group of inputs of each output has a scale of its own. With one for a row or for the "
        "whole tensor, one large weight makes the error of all others large.",
        g.patches(AMAX, "weight_OI.abs().amax(1)", "weight_OI.abs().max().expand(len(weight_OI))"),
    ),
    g.Mistake(
        "takes the largest weight, not the largest absolute one",
        "A weight of -0.9 needs as large a scale as one of 0.9. With the maximum it gets a code "
        "below -7, which does not fit.",
        g.patches(AMAX, "each.amax(1)", "each.amax(1).abs()"),
        # Codes are not compared: programs differ in what they do with a code that does not fit.
        wrong=lambda s: g.close(
            s.y[1].abs(),
            torch.stack([x.amax(1).abs() / 7 for x in s.xs.split(s.args[1], dim=1)], 1),
        ),
        hint=3,
    ),
    g.Mistake(
        "divides by another number than 7",
        "The largest weight of a group gets the largest code, 7. 8 is not a code, and 15 is how "
        "many codes there are.",
        g.patch("for each in groups], 1) / 7", "for each in groups], 1) / 8"),
        wrong=lambda s: any(g.close(s.y[1], s.right[0][1] * 7 / n) for n in (7.5, 8, 15, 16)),
        hint=2,
    ),
    g.Mistake(
        "divides zeros by a scale of 0",
        "0 / 0 is NaN, and NaN as a whole number is anything. Where the scale is 0, divide by 1.",
        g.patch("scales_OG.where(scales_OG > 0, 1.0)", "scales_OG"),
        # The zeros are in row 1.
        wrong=lambda s: ZEROS in s.label and torch.equal(s.y[0][::2], s.right[0][0][::2]),
        hint=3,
    ),
    g.Mistake(
        "does not let a scale be as small as it is",
        "Tiny weights have a tiny scale. With clamp(min=1e-8), or with an epsilon that is added, "
        "their scale is too large, and they become zeros. Replace only a scale of 0.",
        g.patches(
            f"torch.stack([{AMAX} for each in groups], 1) / 7",
            f"torch.stack([{AMAX} for each in groups], 1).clamp(min=1e-5) / 7",
            f"torch.stack([{AMAX} for each in groups], 1) / 7 + 1e-8",
            f"(torch.stack([{AMAX} for each in groups], 1) / 7).clamp(min=1e-8)",
        ),
        wrong=is_wrong_for_tiny_weights,
        hint=3,
    ),
    g.Mistake(
        "fills up an odd row with bits that are not 0",
        "If I is odd, the last high 4 bits hold no code, so they are 0 and not 0 + 8. Pad what is "
        "stored, with the 8 added, not the weights or the codes.",
        g.patch(
            *("(codes_OI + 8).to", "(torch.nn.functional.pad(codes_OI, (0, odd)) + 8).to"),
            *(
                "    stored_OI = torch.nn.functional.pad(stored_OI, (0, weight_OI.shape[1] % 2))\n",
                "",
            ),
            *("    codes_OI = (weight", "    odd = weight_OI.shape[1] % 2\n    codes_OI = (weight"),
        ),
        wrong=is_wrong_behind_an_odd_row,
        hint=3,
    ),
    g.Mistake(
        "cuts off instead of rounding",
        "A conversion to a whole type drops the digits, floor() rounds down and ceil() up. round() "
        "first.",
        g.patches("group)).round()", "group)).trunc()", "group)).floor()", "group)).ceil()"),
        hint=3,
    ),
    g.Mistake(
        "has the first of two in the high half",
        "Input 2 b is in the low 4 bits of byte b, and input 2 b + 1 in the high ones.",
        g.patch("stored_OI[:, 1::2] << 4", "stored_OI[:, 1::2]", "::2] |", "::2] << 4 |"),
        hint=2,
    ),
    g.Mistake(
        "loses the sign of codes",
        "Neither 4 bits nor a uint8 have a sign: the bits hold code + 8. Add 8 before packing. "
        "To unpack, convert first, then subtract 8: as a uint8, 3 - 8 is 251.",
        [
            g.patch("(codes_OI + 8).to", "15 & codes_OI.to(torch.int8).to"),
            g.patch("stored_OI.float() - 8", "(stored_OI - 8).float()"),
        ],
        hint=3,
    ),
    g.Mistake(
        "multiplies with another group's scale",
        "Input i is in group i // group. repeat_interleave(group) gives a scale to `group` inputs "
        "that follow each other; repeat gives neighbours different ones. Only the last group is "
        "shorter, where `group` does not divide the inputs.",
        g.patches(
            "* _per_input(scales_OG, num_inputs, group)",
            "* scales_OG.repeat(1, group)[:, :num_inputs]",
            "* _per_input(scales_OG, num_inputs, -(-num_inputs // scales_OG.shape[1]))",
        ),
        hint=3,
    ),
]

GRADER = g.Questions(
    functions=(QUANTIZE, DEQUANTIZE),
    cases=cases,
    right=right,
    same=same,
    mistakes=MISTAKES,
    closed=("labkit.serving",),
    shown="every weight is restored within half a step of its group, in 4 bits, with short last "
    "groups and groups of zeros",
)
