"""Wrong results of a broadcast, and the mistake that each kind of them comes from."""

import torch

from labkit.grade.evidence import CaseEvidence
from labkit.grade.exact import differ_at, differ_in_one_element, is_same
from labkit.grade.graders.broadcast_inputs import inputs_of, root_of
from labkit.grade.graders.broadcast_tree import children_of, steps_of
from labkit.grade.outcome import Finding, Outcome

Tensor = torch.Tensor
_Recognised = tuple[str, str, int]  # diagnosis, explanation, hint


def wrong_values(evidence: CaseEvidence) -> Finding | None:
    """What is wrong with the results, or None where every rank has the root's x, bit for bit."""
    inputs, root = inputs_of(evidence), root_of(evidence)
    outputs = _outputs(evidence)
    wrong = [rank for rank, out in enumerate(outputs) if not is_same(out, inputs[root])]
    if not wrong:
        return None
    rank = wrong[0]
    name, explanation, hint = (
        _nothing_is_sent(evidence)
        or _own_x_counts(inputs, outputs, root)
        or _calculates(inputs[root], [outputs[each] for each in wrong])
        or _reads_too_early(outputs)
        or _ignores_root(inputs, outputs, root)
        or _never_receives(evidence, wrong)
        or _from_another_rank(evidence, inputs, outputs, wrong)
        or (
            "not the root's values",
            f"what rank {rank} returns is not what rank {root} has, nor what another rank has",
            2,
        )
    )
    index = int(differ_at(outputs[rank], inputs[root]).nonzero()[0])
    got, wanted = (x.flatten()[index].item() for x in (outputs[rank], inputs[root]))
    seen = f"{evidence.label}: rank {rank}, index {index}: got {got:g}, expected {wanted:g}"
    return Finding(Outcome.WRONG, name, explanation, seen, hint)


def not_from_messages(evidence: CaseEvidence) -> Finding | None:
    """Results that are the same although a message was changed on its way, or None.

    A rank has what it received, and so have all that it sends to, and theirs: all of them the same
    other x. Which element of x it is that changes, and to what, depends on how x travels: as bytes,
    or from its end to its beginning, will do.
    """
    assert evidence.case.altered is not None
    rank, _ = evidence.case.altered
    x, outputs = inputs_of(evidence)[root_of(evidence)], _outputs(evidence)
    is_changed = differ_in_one_element(outputs[rank], x)
    below = steps_of(children_of(evidence), rank)
    for each, output in enumerate(outputs):
        if not is_changed or not is_same(output, outputs[rank] if each in below else x):
            break
    else:
        return None
    each = each if is_changed else rank
    return Finding(
        Outcome.WRONG,
        "the result does not come from the messages",
        f"one was added to the first element of the message that rank {rank} receives, so it, and "
        f"every rank that has x through it, should return another x than the root's; rank {each} "
        "does not return what the messages brought. Everything that a rank knows of the root "
        "comes to it through `group`",
        first_seen=evidence.label,
        hint=1,
    )


def _outputs(evidence: CaseEvidence) -> list[Tensor]:
    """By rank; their form has been looked at before."""
    return [record.output for record in evidence.completed if record.output is not None]


def _nothing_is_sent(evidence: CaseEvidence) -> _Recognised | None:
    if evidence.world_size == 1 or any(children_of(evidence)):
        return None
    return ("nothing is sent", "no rank can know what the root has", 1)


def _own_x_counts(inputs: list[Tensor], outputs: list[Tensor], root: int) -> _Recognised | None:
    """NaN that comes from what a rank has in x's place."""
    for rank, (own, output) in enumerate(zip(inputs, outputs, strict=True)):
        is_from_own = output.isnan() & own.isnan() & ~inputs[root].isnan()
        if is_from_own.any():
            return (
                "lets its own x count",
                f"what rank {rank} returns is NaN where its own x is, and the root's is not: its x "
                "went into the result, if only as x * 0 or x - x, which is 0 for numbers and NaN "
                "for NaN. What x holds on other ranks than the root must not matter: it may be "
                "memory that nobody has written to",
                3,
            )
    return None


def _calculates(x: Tensor, wrong: list[Tensor]) -> _Recognised | None:
    """Results that are right, but for values that arithmetic does not leave alone."""
    is_odd = ~x.isfinite() | (x == 0)
    if not all(is_odd.flatten()[differ_at(output, x)].all() for output in wrong):
        return None
    return (
        "calculates where it should copy",
        "the numbers arrive, and -0.0, NaN or infinities come out as something else: 0.0 + -0.0 is "
        "0.0, and inf * 0 is NaN. A broadcast copies bits: receive into a buffer, and return that "
        "buffer, without adding anything to it or multiplying it",
        3,
    )


def _reads_too_early(outputs: list[Tensor]) -> _Recognised | None:
    if not any(output.isnan().any() for output in outputs):
        return None
    return (
        "reads a buffer before its receive completed",
        "there is NaN in the result, and none in x. While a check runs, a buffer given to irecv "
        "holds NaN until its wait() returns: something read it, or passed it on, before that",
        3,
    )


def _ignores_root(inputs: list[Tensor], outputs: list[Tensor], root: int) -> _Recognised | None:
    if root == 0 or not all(is_same(output, inputs[0]) for output in outputs):
        return None
    return (
        "ignores root",
        f"every rank has what rank 0 has, and the root is rank {root}. Count positions from the "
        "root, (rank - root) % n, build the tree in positions, and turn a position back into a "
        "rank, (position + root) % n, where you call send or recv",
        2,
    )


def _never_receives(evidence: CaseEvidence, wrong: list[int]) -> _Recognised | None:
    received = {child for children in children_of(evidence) for child in children}
    missing = [rank for rank in wrong if rank not in received and rank != root_of(evidence)]
    if not missing:
        return None
    n = evidence.world_size
    return (
        "a rank that nobody sends to",
        f"rank {missing[0]} receives nothing. There are {n} ranks, so {n - 1} messages in all, one "
        "to each rank but the root. Write down for each rank which one sends to it",
        2,
    )


def _from_another_rank(
    evidence: CaseEvidence, inputs: list[Tensor], outputs: list[Tensor], wrong: list[int]
) -> _Recognised | None:
    rank, root = wrong[0], root_of(evidence)
    owner = next((r for r, x in enumerate(inputs) if is_same(x, outputs[rank])), None)
    if owner is None:
        return None
    if owner == rank:
        return (
            "receives, and returns its own x",
            f"rank {rank} returns what it was given as x, though a message came to it. x counts on "
            "the root only: return the buffer that recv filled",
            3,
        )
    if rank == root:
        return (
            "the root's x is overwritten",
            f"rank {root}, the root, returns rank {owner}'s x: it received something, and has lost "
            "the only right copy. The root sends, and never receives",
            2,
        )
    return (
        "sends before it has received",
        f"rank {rank} has what rank {owner} was given as x: rank {owner} sent before the root's x "
        "had come to it. Every rank but the root receives first, and sends afterwards",
        2,
    )
