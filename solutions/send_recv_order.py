"""Send and receive in an order that never stands still.

An interviewer asks: "Here is 1F1B with blocking sends and receives: each rank receives what an
operation needs, computes, and sends the result. On the first step it hangs. Why? Repair it, without
changing what is computed when."

1F1B on two ranks, in that plain order. A send returns when the other side has received; nothing is
kept on the way. Both ranks come to a send, and nobody to a receive:

    rank 0   F0  send F0  F1  send F1 ...  then  recv B0
    rank 1   recv F0  F0  B0  send B0 ...  then  recv F1

Write `send_recv_order(rank, p, m, row)`: what `rank` does on the wire. It is asked once for each
rank, for p ranks and m microbatches (also for m < p, and for p = 1), and all rows together must
come to their end.

    row      the operations of this rank, in order, 1F1B's: F of the first p - rank - 1 microbatches
             (or all m), then F and B in turn, then the B that are left; such as
             ["F0", "F1", "B0", "F2", "B1", "B2"]
    returns  a list of actions, or a generator of them, each of them one of
             "F0"               compute it
             ("send", "F0", 2)  send what F0 has yielded to rank 2; returns when that has received
             ("recv", "F0", 0)  receive what F0 has yielded on rank 0
             a list of sends and receives, such as [("send", "F1", 2), ("recv", "B0", 2)]: all are
             posted at once, in this order, and then all are waited for; an empty one is
             nothing to do

Contract
    compute   all of row, in its order: it is 1F1B for the sake of memory
    messages  F of a microbatch needs what the same F has yielded on rank - 1, but for rank 0; B
              what the same B has yielded on rank + 1, but for the last rank. Each of these messages
              is sent once, after it is computed, and received once, before it is needed
    order     from one rank to another the first send meets the first receive, and so on
    never     labkit.pipeline. Each check looks for ranks that wait in a circle, and then performs
              your rows on real ranks, with blocking messages
"""

from collections.abc import Iterable

Message = tuple[str, str, int]
Action = str | Message | list[Message]


def send_recv_order(rank: int, p: int, m: int, row: list[str]) -> Iterable[Action]:
    """What a rank does: compute, send, receive; with all ranks together it comes to its end."""
    ### BEGIN SOLUTION
    actions: list[Action] = []
    for op in row:
        source, destination = (rank - 1, rank + 1) if op[0] == "F" else (rank + 1, rank - 1)
        if 0 <= source < p:
            receive = ("recv", op, source)
            last = actions[-1] if actions else ""
            # What has just been computed goes to the rank from which the next message comes. That
            # one may be at the same point, the other way round: so neither of us waits for one
            # message before the other is posted.
            if isinstance(last, tuple) and last[0] == "send" and last[2] == source:
                actions[-1] = [last, receive]
            else:
                actions.append(receive)
        actions.append(op)
        if 0 <= destination < p:
            actions.append(("send", op, destination))
    return actions
    ### END SOLUTION
