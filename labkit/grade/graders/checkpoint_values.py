"""Outputs and gradients of checkpointed blocks, and the mistakes that make them wrong."""

import dataclasses
from collections.abc import Mapping

import torch

from labkit.grade.graders.checkpoint_inputs import Given, X
from labkit.grade.graders.checkpoint_watch import Seen
from labkit.grade.graders.gradient_values import Gradients, is_close, shown
from labkit.grade.outcome import Finding, Outcome


def wrong_graph(seen: Seen, given: Given) -> Finding | None:
    """An output that is not the block's, or from which there is no way back."""
    y, _ = given.expected()
    if not is_close(seen.y, y):
        return _wrong(
            "returns another output than the block",
            "the output is not block(x), with the random numbers that the generator gives next: "
            "the first pass is the block as it is",
            1,
            f"got {shown(seen.y)}, expected {shown(y)}",
        )
    if not seen.has_graph:
        return _wrong(
            "no gradients where x needs none",
            "the output does not require a gradient, though the block's parameters do: a Function "
            "whose tensors are x alone is left out of the graph where x needs no gradient, as the "
            "first block's does not. The parameters are inputs, too: pass them to apply",
            3,
        )
    return None


def wrong_values(seen: Seen, given: Given) -> Finding | None:
    """Gradients that are not the block's, by what explains them; a generator that is not back."""
    _, right = given.expected()
    wrong = [name for name in right if not is_close(seen.gradients[name], right[name])]
    other = _other_random_numbers(seen)
    if wrong and other is not None:
        return other
    if wrong:
        name = wrong[0]
        values = f"got {shown(seen.gradients[name])}, expected {shown(right[name])}"
        found = _lost(seen, given) or _by_theory(seen, given, right)
        return dataclasses.replace(found, first_seen=f"gradient of {name}: {values}")
    for name in given.frozen:
        if seen.gradients[name] is not None:
            return _wrong(
                "gives a frozen parameter a gradient",
                f"{name} has requires_grad=False, and a gradient now",
                3,
            )
    if seen.switched:
        return _switched(seen.switched, given)
    if not seen.is_generator_restored:
        return _wrong(
            "leaves the generator rewound",
            "the gradients are right, and after backward the generator is not where it was before: "
            "what is drawn next has been drawn already, such as the same dropout in every step. "
            "Put it back, as fork_rng does",
            3,
        )
    return None


def _switched(name: str, given: Given) -> Finding:
    """A tensor of the caller's that needs a gradient now, or none any more."""
    if name == X:
        return _wrong(
            "makes the caller's x need a gradient"
            if not given.x_needs_gradient
            else "makes the caller's x need no gradient",
            "the gradients are right, and x.requires_grad is another than before the call: the "
            "tensor is the caller's, and what is computed from it next would be recorded, or not. "
            "Switch it on for x.detach(), which is a tensor of its own",
            3,
        )
    return _wrong(
        "leaves a frozen parameter trainable" if name in given.frozen else "freezes a parameter",
        f"the gradients are right, and {name}.requires_grad is another than before the call: the "
        "next backward would give it a gradient, or none. ctx.needs_input_grad says which "
        "gradients to ask for",
        3,
    )


def _other_random_numbers(seen: Seen) -> Finding | None:
    """Two passes of a block that did not drop the same."""
    drawn: dict[int, set[int]] = {}
    for block, numbers in seen.passes:
        drawn.setdefault(block, set()).add(numbers)
    differing = [block for block, each in drawn.items() if len(each) > 1]
    if not differing:
        return None
    return _wrong(
        "other random numbers in the second pass",
        f"the passes of block {differing[0]} drop different numbers: the gradients are those of a "
        "block that has never been forward. Keep the generator's state of before the first pass, "
        "and compute again from there",
        2,
    )


def _lost(seen: Seen, given: Given) -> Finding | None:
    """Gradients that are not there at all, or zero."""

    def is_lost(name: str) -> bool:
        gradient = seen.gradients[name]
        return gradient is None or not gradient.any()

    lost = {name for name in given.needed if is_lost(name)}
    if lost == {X} or (given.num_blocks > 1 and lost and _is_earlier(lost)):
        return _wrong(
            "the gradient of x is lost",
            "the block's parameters get their gradients, and what comes before the block gets "
            "none: backward returns a gradient for each input of apply, and x is one",
            2,
        )
    if lost and lost == set(given.needed) - {X}:
        return _wrong(
            "the gradients of the parameters are lost",
            "x gets its gradient, and no parameter of the block does: ask for them as well when "
            "the block has been computed again, and hand them over",
            2,
        )
    return None


def _is_earlier(names: set[str]) -> bool:
    """Whether these are parameters of the first blocks."""
    return all(name.split(".")[0] in ("0", "1") for name in names)


def _by_theory(seen: Seen, given: Given, right: Gradients) -> Finding:
    def explains(gradients: Mapping[str, torch.Tensor]) -> bool:
        return all(is_close(seen.gradients[name], each) for name, each in gradients.items())

    _, of_ones = given.expected(torch.ones_like(given.output_gradient))
    doubled = {name: 2 * each if name == X else each for name, each in right.items()}
    twice = {name: each if name == X else 2 * each for name, each in right.items()}
    if given.num_blocks == 1 and explains(of_ones):
        return _wrong(
            "ignores the gradient that comes in",
            "the gradients are those of the sum of the output: backward gets the gradient of the "
            "output, and all that is behind the block is in it",
            2,
        )
    if explains(doubled):
        return _wrong(
            "goes back beyond the block",
            "x has its gradient twice: the second pass was recorded with x as part of the first "
            "graph, so its backward has gone on into what came before, and then the gradient was "
            "returned as well. Compute again with x.detach()",
            3,
        )
    if explains(twice):
        return _wrong(
            "parameters get their gradients twice",
            "backward() of the second pass has put them into .grad, and they are returned as well",
            3,
        )
    return _wrong(
        "other gradients than the block",
        "they are those of the second pass: of the same parameters, the same x and the same random "
        "numbers, with the gradient of the output that backward gets",
        2,
    )


def crash_by_name(finding: Finding, given: Given) -> Finding:
    """What torch's messages stand for, where they are a mistake of checkpoints."""
    name = None
    if finding.outcome is Outcome.CRASHED and "does not require grad" in finding.explanation:
        if given.frozen:
            name, why = (
                "asks for the gradient of a frozen parameter",
                f"{given.frozen[0]} needs no gradient; ctx.needs_input_grad says which inputs do",
            )
        else:
            name, why = (
                "computes again without recording",
                "a Function's backward runs without a graph, as its forward does: the second pass "
                "has to be within torch.enable_grad(), and x has to require a gradient in it",
            )
    if name is None:
        return finding
    explanation = f"{why}. {finding.explanation}"
    return dataclasses.replace(finding, diagnosis=name, explanation=explanation, hint=3)


def _wrong(name: str, explanation: str, hint: int, seen: str = "") -> Finding:
    return Finding(Outcome.WRONG, name, explanation, seen, hint)
