"""What online_softmax keeps in memory: blocks that it has seen, scores of blocks, and what else."""

from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.attention_work import Needed, outside_of_torch
from labkit.grade.graders.softmax_inputs import MANY, Given
from labkit.grade.graders.softmax_watch import Seen
from labkit.grade.outcome import Finding, Outcome

_MOST_BLOCKS = 2
_MOST_TENSORS = 8


def keeps_blocks(evidence: CaseEvidence, given: Given, seen: Seen) -> Finding | None:
    """More blocks in memory than the one in hand and the one before it."""
    if seen.most_blocks <= _MOST_BLOCKS:
        return None
    return Finding(
        Outcome.OVER_BUDGET,
        "keeps blocks that it has seen",
        f"the values are right, and {seen.most_blocks} of {len(given.blocks)} blocks were in "
        "memory together: all that the next block needs of those before is the maximum, the sum "
        "and the output of each query. No list, no torch.cat",
        evidence.label,
        hint=1,
    )


def more_bytes(evidence: CaseEvidence, given: Given, seen: Seen) -> Finding | None:
    """More at the peak than blocks in hand, and 8 tensors of the size of one block's scores."""
    num_blocks, itemsize = len(given.blocks), given.q.element_size()
    scores_bytes = max(mask.numel() for _, _, mask in given.blocks) * itemsize
    block_bytes = max(2 * k.nbytes + mask.nbytes for k, _, mask in given.blocks)
    # Masks of a block, turned around and the like, are not numbers: an eighth of them each.
    budget = _MOST_TENSORS * scores_bytes + _MOST_BLOCKS * block_bytes + scores_bytes // 2
    if num_blocks < MANY or seen.peak_bytes <= budget:
        return None
    name, why = (
        "keeps something of every block",
        "something grows with each block, such as a list of their outputs: add it up as they come",
    )
    if seen.kept_bytes >= num_blocks * scores_bytes:
        name, why = (
            "keeps the scores of all blocks",
            "scores, or weights, of one block are needed while it is in hand, and never again",
        )
    return Finding(
        Outcome.OVER_BUDGET,
        name,
        f"the values are right, and at the peak there are {seen.peak_bytes:,} bytes, where two "
        f"blocks and {_MOST_TENSORS} (T, S) tensors have {budget:,}, and the scores of all blocks "
        f"{num_blocks * scores_bytes:,}: {why}",
        evidence.label,
        hint=1,
    )


def computes_outside(evidence: CaseEvidence, given: Given, seen: Seen) -> Finding | None:
    """Less than attention takes, as far as torch knows."""
    pairs = sum(int(mask.sum()) for _, _, mask in given.blocks)
    needed = Needed(pairs, 1, given.q.shape[1])
    if needed.has_products(seen.work) or needed.has_exponentials(seen.work):
        return None
    reason = "what is in memory while it computes is part of the task"
    return outside_of_torch(seen.work, needed, evidence.label, reason)


def other_passes(evidence: CaseEvidence, given: Given, seen: Seen) -> Finding | None:
    """Blocks that are asked for again, or changed."""
    if seen.num_after_end > 1:
        return Finding(
            Outcome.WRONG,
            "goes through the blocks twice",
            f"after the last of {len(given.blocks)} blocks the iterator was asked again, "
            f"{seen.num_after_end - 1} times: an iterator gives each block once, and a second "
            "loop over it finds nothing. Maximum, sum and output are updated in one loop",
            evidence.label,
            hint=1,
        )
    if seen.has_changed_blocks:
        return Finding(
            Outcome.WRONG,
            "changes the blocks",
            "a block is not what it was when it was given: keys, values and masks are the "
            "caller's, who gives them to other heads as well. Work with new tensors",
            evidence.label,
            hint=3,
        )
    return None
