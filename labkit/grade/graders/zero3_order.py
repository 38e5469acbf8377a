"""The order of gathers, uses and releases, and what a step of ZeRO-3 sends."""

from collections.abc import Sequence

from labkit.comm.operation import Operation
from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.shard_wire import Why, over_budget
from labkit.grade.graders.zero3_inputs import Given
from labkit.grade.graders.zero3_watch import BACKWARD, FORWARD, Seen, Use
from labkit.grade.outcome import Finding, Outcome

_MOST = 2
_ITEMSIZE = 8
KEPT = "keeps the weights from forward to backward"
_AGAIN = "That is ZeRO-2's memory: release after forward, and gather again"


def other_order(evidence: CaseEvidence, given: Given, seen: Sequence[Seen]) -> Finding | None:
    """Uses that are not each unit forward, then each backward from the last."""
    num_units = len(given.weights)
    order = [(FORWARD, i) for i in range(num_units)]
    order += [(BACKWARD, i) for i in reversed(range(num_units))]
    for rank, each in enumerate(seen):
        uses = [(use.kind, use.unit) for use in each.uses]
        if uses == order:
            continue
        name, why = (
            "uses the units in another order",
            "each unit goes forward once, and then each backward, from the last to the first",
        )
        if uses == order[:num_units] + order[num_units:][::-1] and num_units > 1:
            name, why = (
                "goes backward in the order of forward",
                "the gradient of a unit's output comes from the unit behind it: the last unit goes "
                "backward first",
            )
        elif len(uses) > len(order):
            name, why = ("uses a unit more than once", f"{why}; a pass costs what it computes")
        return Finding(
            Outcome.WRONG,
            name,
            why,
            f"{evidence.label}: rank {rank}: {_said(each.uses)}",
            hint=2,
        )
    return None


def too_many_gathered(evidence: CaseEvidence, given: Given, seen: Sequence[Seen]) -> Finding | None:
    """More than two units' weights in memory, or whole gradients that stay."""
    if evidence.world_size == 1:
        return None
    for rank, each in enumerate(seen):
        for number, use in enumerate(each.uses, start=1):
            in_advance = _gathered(evidence.operations[rank], use) - number
            found = _kept(evidence, given, use, rank, in_advance)
            if found is not None:
                name, why = found
                which = "forward" if use.kind == FORWARD else "backward"
                return Finding(
                    Outcome.OVER_BUDGET,
                    name,
                    f"the values are right. {why}",
                    f"{evidence.label}: rank {rank}, as unit {use.unit} goes {which}",
                    hint=1,
                )
    return None


def _gathered(operations: Sequence[Operation], use: Use) -> int:
    """All-gathers that have begun before."""
    return sum(each.kind == "all_gather" and each.posted_s < use.begun_s for each in operations)


def _kept(
    evidence: CaseEvidence, given: Given, use: Use, rank: int, in_advance: int
) -> tuple[str, str] | None:
    num_gathers = sum(each.kind == "all_gather" for each in evidence.operations[rank])
    num_units = len(given.weights)
    if in_advance > 0 and use.num_weights + in_advance > _MOST:
        return (
            "gathers too many units in advance",
            f"{in_advance} units are gathered that are not in use yet, besides "
            f"{use.num_weights} in memory: one in advance is enough to hide its gather behind the "
            "unit in use, and all of them are what was to be avoided",
        )
    num_weights = max(use.num_weights, use.num_found)
    if num_weights > _MOST and num_gathers < 2 * num_units - 1:
        return (
            KEPT,
            f"The weights of {num_weights} units are in memory, and there are {num_gathers} "
            f"all-gathers for {num_units} units, where two for each are meant: what is gathered "
            f"once is kept until backward. {_AGAIN}",
        )
    if num_weights > _MOST or _is_more_than_weights(evidence, given, use):
        return (
            "never releases what it has gathered",
            f"{use.live_bytes:,} bytes are in memory, and the weights of the largest unit have "
            f"{_largest_bytes(evidence, given):,}: units that have been used are still there. "
            "Something has them: a list, a name, a view",
        )
    num_whole = max(use.num_gradients, _not_reduced(evidence.operations[rank], given, use))
    if use.kind == BACKWARD and num_whole > _MOST:
        return (
            "keeps whole gradients",
            f"The gradients of {num_whole} units are in memory as a whole: reduce-scatter each "
            "when its unit has been backward, and keep the shard's",
        )
    return None


def _largest_bytes(evidence: CaseEvidence, given: Given) -> int:
    return max(given.shard_numels) * evidence.world_size * _ITEMSIZE


def _is_more_than_weights(evidence: CaseEvidence, given: Given, use: Use) -> bool:
    """In forward: weights that were gathered, though others are used, such as copies of them."""
    # Two units, copies of them that are cut, and twice the inputs of all units.
    inputs_bytes = (given.batches[0][0].nbytes + given.batches[0][1].nbytes) * len(given.weights)
    most_bytes = 4 * _largest_bytes(evidence, given) + inputs_bytes
    return use.kind == FORWARD and use.live_bytes > most_bytes


def _not_reduced(operations: Sequence[Operation], given: Given, use: Use) -> int:
    """Units that have been backward before, and of which no reduction has begun."""
    reduced = sum(
        each.payload_bytes
        for each in operations
        if each.kind != "all_gather" and each.posted_s < use.begun_s
    )
    behind = [weights.nbytes for weights in reversed(given.weights[use.unit + 1 :])]
    return sum(sum(behind[: number + 1]) > reduced for number in range(len(behind)))


def too_few_gathered(evidence: CaseEvidence, given: Given) -> Finding | None:
    """Weights that were not gathered again for backward, wherever they were meanwhile."""
    n = evidence.world_size
    if n == 1:
        return None
    # Of two units the weights may be in memory, so that those may be there from forward.
    needed = 2 * sum(given.shard_numels) - sum(sorted(given.shard_numels)[-_MOST:])
    for rank, operations in enumerate(evidence.operations):
        gathered_bytes = sum(
            each.payload_bytes // (n if each.kind == "all_reduce" else 1)
            for each in operations
            if each.kind != "reduce_scatter"
        )
        if gathered_bytes < needed * _ITEMSIZE:
            return Finding(
                Outcome.OVER_BUDGET,
                KEPT,
                f"the values are right. Rank {rank} hands {gathered_bytes:,} bytes of shards to "
                "collectives, and a step that has the weights of two units at a time hands over "
                f"{needed * _ITEMSIZE:,} at least, for forward and for backward: weights of "
                f"forward are still there, in whatever form. {_AGAIN}",
                first_seen=evidence.label,
                hint=1,
            )
    return None


def more_traffic(evidence: CaseEvidence, given: Given) -> Finding | None:
    """More than three times (n-1) k numbers for each unit."""
    return over_budget(
        evidence,
        3 * (evidence.world_size - 1) * sum(given.shard_numels) * _ITEMSIZE,
        "{bytes}, and 3 (n-1) k numbers for each unit are {budget}",
        Why(
            "sends more than three times the parameters",
            "one all-gather in forward, one in backward, one reduce-scatter of the gradients",
        ),
        Why(
            "all-reduces the gradients",
            "an all_reduce gives whole gradients to all ranks, and each keeps an nth: a "
            "reduce_scatter is the half of it that is needed",
        ),
    )


def _said(uses: Sequence[Use]) -> str:
    return ", ".join(f"{'forward' if u.kind == FORWARD else 'backward'} {u.unit}" for u in uses)
