"""Two ends of a message, of which one looked before the other was there."""

from labkit.comm.agreement.messages import RECEIVER, SENDER
from labkit.comm.agreement.pairs import Pairs


class Witness:
    """Notes what it is asked about."""

    def __init__(self):
        self.asked = []

    def testify_on_message(self, number, peer, *, sends):
        self.asked.append((number, peer, sends))


def test_an_end_that_comes_later_is_looked_at_in_the_end(tmp_path):
    witness = Witness()
    sender = Pairs(f"{tmp_path}/world", witness, 0, [1])
    receiver = Pairs(f"{tmp_path}/world", Witness(), 1, [0])
    sender.declare_message(1, SENDER, 1, b"float32")
    sender.compare_messages(1, SENDER)
    receiver.declare_message(0, RECEIVER, 1, b"int64")
    assert witness.asked == []
    sender.compare_what_is_left()
    assert witness.asked == [(1, 1, True)]


def test_nobody_on_another_host_is_looked_at(tmp_path):
    witness = Witness()
    pairs = Pairs(f"{tmp_path}/world", witness, 0, [])
    pairs.declare_message(1, SENDER, 1, b"float32")
    pairs.compare_messages(1, SENDER)
    assert witness.asked == [] and not list(tmp_path.iterdir())
