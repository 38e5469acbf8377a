"""What crosses between hosts, and what stays within them: both to the byte.

Whatever the algorithm: to add up H hosts' sums and hand the total out, D bytes have to cross
2(H-1) times in all, and within each host 2(L-1) times. The rest is balance: no rank sends, or
receives, more than its part.
"""

import math
from dataclasses import dataclass

from labkit.grade import ledger
from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.hierarchical_inputs import tiers_of
from labkit.grade.ledger import Message


@dataclass(frozen=True)
class Tier:
    """The messages on one tier's links, and what they may be."""

    links: str
    """`between hosts`"""
    sent: list[list[Message]]
    """By sender."""
    received_bytes: list[int]
    """By receiver."""
    most_bytes: int
    """Of one rank."""
    most_messages: int
    """Of one rank."""
    total_bytes: int
    """Of all ranks: no less, no more."""

    @property
    def sent_bytes(self) -> list[int]:
        """By sender."""
        return [sum(message.payload_bytes for message in messages) for messages in self.sent]

    @property
    def sizes(self) -> list[int]:
        """Of all messages that are not empty."""
        all_sent = [message.payload_bytes for messages in self.sent for message in messages]
        return [size for size in all_sent if size]

    @property
    def has_its_bytes(self) -> bool:
        """Whether the total is right, and no rank sends or receives more than its part."""
        busiest = max([*self.sent_bytes, *self.received_bytes])
        return sum(self.sizes) == self.total_bytes and busiest <= self.most_bytes

    @property
    def budget(self) -> str:
        """In words."""
        return (
            f"The budget {self.links}: {self.total_bytes:,} bytes for all ranks together, at most "
            f"{self.most_bytes:,} out of a rank and into it, in at most {self.most_messages} "
            "messages"
        )


def fast_tier(evidence: CaseEvidence) -> Tier:
    """Within hosts."""
    ranks_per_host, num_hosts = tiers_of(evidence)
    x = evidence.case.arguments[0][0]
    # Longer than a segment of tensor_split by an element or two, where pieces are cut first.
    segment_bytes = num_hosts * _longest_piece_bytes(evidence)
    steps = 2 * (ranks_per_host - 1)
    sent, received = _messages(evidence, is_slow=False)
    total = num_hosts * steps * x.nbytes
    return Tier("within hosts", sent, received, steps * segment_bytes, steps, total)


def slow_tier(evidence: CaseEvidence) -> Tier:
    """Between hosts."""
    _, num_hosts = tiers_of(evidence)
    x = evidence.case.arguments[0][0]
    piece_bytes = _longest_piece_bytes(evidence)
    steps = 2 * (num_hosts - 1)
    sent, received = _messages(evidence, is_slow=True)
    return Tier("between hosts", sent, received, steps * piece_bytes, steps, steps * x.nbytes)


def _longest_piece_bytes(evidence: CaseEvidence) -> int:
    """One nth of x, rounded up to whole elements."""
    x = evidence.case.arguments[0][0]
    return x.element_size() * math.ceil(x.numel() / evidence.world_size)


def _messages(evidence: CaseEvidence, *, is_slow: bool) -> tuple[list[list[Message]], list[int]]:
    """Of one tier, by sender; and the bytes that each rank receives."""
    ranks_per_host, _ = tiers_of(evidence)
    sent = [
        [m for m in messages if is_slow == (m.peer // ranks_per_host != rank // ranks_per_host)]
        for rank, messages in enumerate(ledger.sends(evidence))
    ]
    received = [0] * evidence.world_size
    for messages in sent:
        for message in messages:
            received[message.peer] += message.payload_bytes
    return sent, received
