"""Two ends of a message, of which one looked before the other was there."""

from labkit.comm.mismatch_detector import RECEIVER, SENDER, Pairs
from labkit.comm.shared_rows import ROWS_PER_FILE


class JournalEvidence:
    """Notes what it is asked about."""

    def __init__(self):
        self.asked = []

    def raise_if_message_differs(self, number, peer, *, sends):
        self.asked.append((number, peer, sends))

    def raise_if_collective_differs(self, number, peer):
        self.asked.append((number, peer))


def ends_in(folder):
    """The sender's pairs, the receiver's, and whom the sender asks."""
    evidence = JournalEvidence()
    sender = Pairs(f"{folder}/world", evidence, 0, [1])
    return sender, Pairs(f"{folder}/world", JournalEvidence(), 1, [0]), evidence


def test_an_end_that_comes_later_is_looked_at_in_the_end(tmp_path):
    sender, receiver, evidence = ends_in(tmp_path)
    sender.declare_message(1, SENDER, 1, b"float32")
    sender.compare_messages(1, SENDER)
    receiver.declare_message(0, RECEIVER, 1, b"int64")
    assert evidence.asked == []
    sender.compare_remaining()
    assert evidence.asked == [(1, 1, True)]


def test_nobody_on_another_host_is_looked_at(tmp_path):
    evidence = JournalEvidence()
    pairs = Pairs(f"{tmp_path}/world", evidence, 0, [])
    pairs.declare_message(1, SENDER, 1, b"float32")
    pairs.compare_messages(1, SENDER)
    assert evidence.asked == [] and not list(tmp_path.iterdir())


def test_tables_of_rows_that_are_over_are_closed(tmp_path):
    pairs = Pairs(f"{tmp_path}/world", JournalEvidence(), 0, [1])
    for number in range(1, 5 * ROWS_PER_FILE, 2):  # something else comes in between
        pairs.declare_rows(number, [0, 1], [0, 1])
        pairs.compare_rows(number)
    assert all(len(table._maps) == 1 for table in pairs._rows.values())
