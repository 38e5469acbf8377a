"""Right sums whose bytes went over the wrong links, and the design that each pattern gives away."""

from labkit.grade import ledger
from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.hierarchical_inputs import tiers_of
from labkit.grade.graders.hierarchical_traffic import Tier, fast_tier, slow_tier
from labkit.grade.graders.sums import Recognised
from labkit.grade.outcome import Finding, Outcome


def over_budget(evidence: CaseEvidence) -> Finding | None:
    """What is wrong with the messages of a case whose sums are right, or None."""
    fast, slow = fast_tier(evidence), slow_tier(evidence)
    for tier in (slow, fast):
        if not tier.has_its_bytes:
            found = (
                _flat_ring(evidence)
                or _swapped(fast, slow, evidence)
                or _leader(tier, evidence)
                or _whole_tensors(tier, evidence)
                or _padding(tier)
                or _other_bytes(tier)
            )
            return _finding(found, tier, evidence)
    for tier in (slow, fast):
        most = max(map(len, tier.sent))
        if most > tier.most_messages:
            found = (
                "too many messages",
                f"a rank sends {most} messages {tier.links}, where {tier.most_messages} are "
                "enough. Each costs a latency, whatever its size",
                1,
            )
            return _finding(found, tier, evidence)
    return None


def _finding(found: Recognised, tier: Tier, evidence: CaseEvidence) -> Finding:
    name, explanation, hint = found
    sent = ", ".join(f"{nbytes:,}" for nbytes in tier.sent_bytes)
    is_less = sum(tier.sizes) < tier.total_bytes
    return Finding(
        Outcome.WRONG if is_less else Outcome.OVER_BUDGET,
        name,
        f"{explanation}. {tier.budget}",
        f"{evidence.label}: bytes sent {tier.links}, by rank: {sent}",
        hint,
    )


def _flat_ring(evidence: CaseEvidence) -> Recognised | None:
    """Every rank sends to one of its two neighbours among all ranks."""
    n, (ranks_per_host, num_hosts) = evidence.world_size, tiers_of(evidence)
    peers = [{message.peer for message in messages} for messages in ledger.sends(evidence)]
    is_ring = any(
        all(each == {(rank + way) % n} for rank, each in enumerate(peers)) for way in (1, -1)
    )
    if not is_ring or 1 in (ranks_per_host, num_hosts):
        return None
    return (
        "a flat ring over both tiers",
        "every rank sends to its neighbour among all ranks, so nearly twice the whole tensor goes "
        f"over each slow link, in {2 * (n - 1)} steps, and the fast links wait for the slow ones "
        f"in every one of them. After a reduce-scatter within the host, each of its "
        f"{ranks_per_host} ranks needs to carry only one part in {ranks_per_host} across",
        1,
    )


def _swapped(fast: Tier, slow: Tier, evidence: CaseEvidence) -> Recognised | None:
    """Bytes that would be right if hosts were the ranks with the same place."""
    ranks_per_host, num_hosts = tiers_of(evidence)
    if 1 in (ranks_per_host, num_hosts):
        return None
    if sum(slow.sizes) != ranks_per_host * slow.total_bytes:
        return None
    if sum(fast.sizes) * num_hosts != fast.total_bytes:
        return None
    return (
        "the two tiers are swapped",
        "the whole tensor is reduced between the hosts, and only a part of it within them. The "
        "sums are right, and the bytes on the wrong links: reduce-scatter on the fast links "
        "first. The ranks of a host are rank // ranks_per_host",
        2,
    )


def _leader(tier: Tier, evidence: CaseEvidence) -> Recognised | None:
    """One rank of each host sends, or receives, all that it is about."""
    ranks_per_host, num_hosts = tiers_of(evidence)
    if ranks_per_host == 1:
        return None
    for by_rank in (tier.sent_bytes, tier.received_bytes):
        hosts = [by_rank[h * ranks_per_host : (h + 1) * ranks_per_host] for h in range(num_hosts)]
        if tier.sizes and all(sum(nbytes > 0 for nbytes in host) <= 1 for host in hosts):
            return (
                "one leader per host carries it all",
                f"one rank of each host moves the whole tensor {tier.links}, while the links of "
                f"its other ranks are idle: that takes {ranks_per_host} times as long. Every rank "
                "has a link of its own: give each a segment to carry",
                1,
            )
    return None


def _whole_tensors(tier: Tier, evidence: CaseEvidence) -> Recognised | None:
    ranks_per_host, num_hosts = tiers_of(evidence)
    x, sent = evidence.case.arguments[0][0], sum(tier.sizes)
    is_slow = tier.links == "between hosts"
    if set(tier.sizes) == {x.nbytes} and max(map(len, tier.sent)) >= ranks_per_host - 1 > 0:
        return (
            "gathers whole tensors, then adds",
            f"whole tensors travel {tier.links}, and are added where they arrive: that grows with "
            "every rank. Cut x up, let every rank add up one part, and hand the results around",
            1,
        )
    if is_slow and ranks_per_host > 1 and sent == ranks_per_host * tier.total_bytes:
        return (
            "every rank carries the whole tensor across",
            f"the whole tensor goes between hosts {ranks_per_host} times, once for each rank of a "
            "host, though they all have the same sum to bring. Let each carry its own segment "
            "only: reduce-scatter within the host leaves it with one",
            1,
        )
    if is_slow and sent == num_hosts * (num_hosts - 1) * x.nbytes:
        return (
            "gathers across hosts, then adds",
            f"every host's segment goes to every other host: {num_hosts - 1} segments out of each "
            f"rank, where an all-reduce sends 2(H-1)/H = {2 * (num_hosts - 1)}/{num_hosts} of one",
            1,
        )
    return None


def _padding(tier: Tier) -> Recognised | None:
    sent = sum(tier.sizes)
    if len(set(tier.sizes)) != 1 or not tier.total_bytes < sent:
        return None
    if len(tier.sizes) > len(tier.sent) * tier.most_messages:
        return None
    return (
        "padding on the wire",
        f"all messages {tier.links} have {tier.sizes[0]:,} bytes, {sent:,} in all: what is sent "
        "was padded to a size that comes out even",
        3,
    )


def _other_bytes(tier: Tier) -> Recognised:
    sent = sum(tier.sizes)
    if sent < tier.total_bytes:
        return (
            f"fewer bytes {tier.links} than a sum needs",
            f"{sent:,} bytes are too few for what the results show: it was learned in another way, "
            "or sent as something smaller than it is",
            1,
        )
    if sent > tier.total_bytes:
        return (f"too many bytes {tier.links}", f"{sent:,} bytes are sent there", 1)
    return (
        f"one rank has more than its part {tier.links}",
        f"the bytes are right in all, but not shared out evenly: out of the busiest rank go "
        f"{max(tier.sent_bytes):,}, and into the busiest {max(tier.received_bytes):,}",
        1,
    )
