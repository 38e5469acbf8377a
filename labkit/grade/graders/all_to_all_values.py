"""Wrong rows of an uneven all-to-all, and the mistake that each kind of them comes from."""

import torch

from labkit.grade import ledger
from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.all_to_all_inputs import blocks_of, counts_of, inputs_of
from labkit.grade.graders.sums import Recognised, reads_too_early
from labkit.grade.outcome import Finding, Outcome

Tensor = torch.Tensor
Address = tuple[int, int, int]  # of a row: from which rank, to which, the how-manieth of its block


def expected_of(evidence: CaseEvidence) -> list[Tensor]:
    """By rank: the rows for it, from rank 0, then from rank 1, and so on."""
    return [torch.cat(column) for column in zip(*blocks_of(evidence), strict=True)]


def wrong_form(evidence: CaseEvidence) -> Finding | None:
    """Something else than a tensor of x's dtype with rows like x's."""
    x = inputs_of(evidence)[0]
    for rank, record in enumerate(evidence.completed):
        output = record.output
        if output is None:
            is_none = record.output_type == "NoneType"
            name = "returns nothing" if is_none else "returns something that is no tensor"
            why = f"the function returns a {record.output_type}; it should be a dense CPU tensor"
        elif output.dim() != x.dim() or output.shape[1:] != x.shape[1:]:
            name, why = (
                "returns another shape",
                (
                    f"the result has shape {tuple(output.shape)}; rows have shape "
                    f"{tuple(x.shape[1:])}, in x and in the result"
                ),
            )
        elif output.dtype != x.dtype:
            name = "returns another dtype"
            why = f"the result is {output.dtype}; the contract is x's own, {x.dtype}"
        else:
            continue
        return Finding(Outcome.WRONG, name, why, f"{evidence.label}: rank {rank}", hint=3)
    return None


def wrong_values(evidence: CaseEvidence) -> Finding | None:
    """What is wrong with the rows, or None where all are right."""
    wrong = _wrong_ranks(evidence)
    if not wrong:
        return None
    rank = wrong[0]
    outputs = _outputs(evidence)
    name, explanation, hint = (
        _nothing_is_sent(evidence)
        or reads_too_early(outputs)
        or _padding(evidence, rank)
        or _by_addresses(evidence, rank)
        or ("wrong rows", f"rank {rank} does not have the rows that are for it", 2)
    )
    column = [row[rank] for row in counts_of(evidence)]
    seen = (
        f"{evidence.label}: rank {rank} has {len(outputs[rank])} rows, expected {sum(column)}: "
        f"{' + '.join(map(str, column))}, in rank order"
    )
    return Finding(Outcome.WRONG, name, explanation, seen, hint)


def not_from_messages(evidence: CaseEvidence) -> Finding | None:
    """Rows that are right although one was changed on its way, or None."""
    assert evidence.case.altered is not None
    if _wrong_ranks(evidence):
        return None
    rank, _ = evidence.case.altered
    return Finding(
        Outcome.WRONG,
        "the result does not come from the messages",
        f"one was added to the first number of a block that rank {rank} receives, and its rows are "
        "what they would be without: they came in another way. Everything that a rank knows of "
        "the others comes to it through `group`",
        first_seen=evidence.label,
        hint=1,
    )


def _outputs(evidence: CaseEvidence) -> list[Tensor]:
    """By rank; their form has been looked at before."""
    return [record.output for record in evidence.completed if record.output is not None]


def _wrong_ranks(evidence: CaseEvidence) -> list[int]:
    pairs = zip(_outputs(evidence), expected_of(evidence), strict=True)
    return [rank for rank, (ours, right) in enumerate(pairs) if not torch.equal(ours, right)]


def _nothing_is_sent(evidence: CaseEvidence) -> Recognised | None:
    if evidence.world_size == 1 or any(ledger.sends(evidence)):
        return None
    return ("nothing is sent", "rows can only come to another rank in a message", 1)


def _padding(evidence: CaseEvidence, rank: int) -> Recognised | None:
    """Blocks of one length, each with a right beginning."""
    n, output = evidence.world_size, _outputs(evidence)[rank]
    blocks = [row[rank] for row in blocks_of(evidence)]
    length = len(output) // n
    if len(output) % n or any(len(block) > length for block in blocks):
        return None
    slots = output.split(length) if length else [output] * n
    if not all(torch.equal(slot[: len(block)], block) for slot, block in zip(slots, blocks)):
        return None
    return (
        "padding in the result",
        f"rank {rank} has {n} blocks of {length} rows, and the rest of each is filled up: these "
        "rows are nobody's. The result is as long as what comes",
        3,
    )


def _by_addresses(evidence: CaseEvidence, rank: int) -> Recognised | None:
    """From whom each row comes and whom it is for, where no two rows are equal."""
    known = {
        _bytes(row): (source, destination, i)
        for source, blocks in enumerate(blocks_of(evidence))
        for destination, block in enumerate(blocks)
        for i, row in enumerate(block)
    }
    wanted = sorted(each for each in known.values() if each[1] == rank)
    if len(known) < sum(map(len, inputs_of(evidence))):
        return None
    found = [known.get(_bytes(row)) for row in _outputs(evidence)[rank]]
    addresses = [each for each in found if each is not None]
    if len(addresses) < len(found):
        return (
            "rows that nobody has sent",
            f"{len(found) - len(addresses)} rows of rank {rank} are no rank's: memory that no "
            "message has filled, or something added on the way",
            3,
        )
    return _strangers(addresses, rank) or _order(addresses, wanted, rank)


def _bytes(row: Tensor) -> bytes:
    return bytes(row.contiguous().reshape(-1).view(torch.uint8).tolist())


def _strangers(addresses: list[Address], rank: int) -> Recognised | None:
    strangers = [each for each in addresses if each[1] != rank]
    if not strangers:
        return None
    source, destination, _ = strangers[0]
    return (
        "has rows for another rank",
        f"rank {rank} has rows of rank {source} that are for rank {destination}: what was cut out "
        "of x is not the block that counts say. Block s begins where the blocks before it end, at "
        "sum(counts[:s]); x.split(counts.tolist()) cuts them all",
        2,
    )


def _order(addresses: list[Address], wanted: list[Address], rank: int) -> Recognised | None:
    if len(set(addresses)) < len(addresses):
        return ("a row comes twice", f"rank {rank} has some rows more than once", 2)
    missing = sorted(set(wanted) - set(addresses))
    if missing and all(source == rank for source, _, _ in missing):
        return (
            "its own rows are missing",
            f"rank {rank} has {len(missing)} rows for itself, and they are not in its result. They "
            "need no message, only a copy, to their place in rank order",
            2,
        )
    if missing:
        return (
            "rows are missing",
            f"rank {rank} lacks {len(missing)} rows, the first of them from rank {missing[0][0]}",
            2,
        )
    in_order = all(
        [each for each in addresses if each[0] == source]
        == [each for each in wanted if each[0] == source]
        for source in {source for source, _, _ in wanted}
    )
    sources = list(dict.fromkeys(source for source, _, _ in addresses))
    return (
        "blocks in the wrong order" if in_order else "rows in the wrong order",
        f"rank {rank} has all its rows, first those from rank {sources[0]}, and then from ranks "
        f"{', '.join(map(str, sources[1:]))}. The contract is rank order, its own rows between the "
        "others: whoever sends them back has to know whose they are. Where a block goes does not "
        "depend on when it comes: cut the result up with split(receive_counts), and receive each "
        "block into its place",
        2,
    )
