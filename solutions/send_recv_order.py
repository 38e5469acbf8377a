"""An order of blocking sends and receives for 1F1B that has no deadlock.

An interviewer asks: "Here is 1F1B with blocking sends and receives: each rank receives what an
operation needs, computes, and sends the result. It hangs in the first step. Why? Repair it, and
keep the order of the computations."

A blocking send returns when the other rank has received; nothing is buffered on the way. With the
plain order, 1F1B on two ranks comes to a point where both ranks send and no rank receives:

    rank 0   F0  send F0  F1  send F1 ...  then  recv B0
    rank 1   recv F0  F0  B0  send B0 ...  then  recv F1

Write `send_recv_order(rank, p, m, row)`: the list of actions of one rank. It is called once for
each rank of a pipeline.

    rank     0 to p - 1
    p        ranks, 1 or more
    m        microbatches, 1 or more; m may be smaller than p
    row      the operations of this rank in the order of 1F1B, such as
             ["F0", "F1", "B0", "F2", "B1", "B2"]: first F of p - rank - 1 microbatches (of all m if
             there are fewer), then F and B in turn, then the remaining B
    returns  a list of actions, or a generator of them. An action is one of
             "F0"               compute it
             ("send", "F0", 2)  send the result of F0 to rank 2; returns when rank 2 has received it
             ("recv", "F0", 0)  receive the result that F0 has on rank 0
             a list of sends and receives, such as [("send", "F1", 2), ("recv", "B0", 2)]: all are
             posted in this order without waiting, then the rank waits for all of them. An empty
             list does nothing

Contract
    compute   all of row, in its order: the order of 1F1B limits the activations that are held
    messages  F of a microbatch needs the result of the same F on rank - 1, except on rank 0. B
              needs the result of the same B on rank + 1, except on the last rank. Each of these
              messages is sent once, after it is computed, and received once, before it is needed
    order     the first send from one rank to another meets the first receive there, the second
              send meets the second receive, and so on
    end       all rows together come to their end. A check simulates blocking messages on up to 8
              ranks, and looks for ranks that wait for each other
    never     labkit.pipeline
"""

from collections.abc import Iterable

Message = tuple[str, str, int]
Action = str | Message | list[Message]


def send_recv_order(rank: int, p: int, m: int, row: list[str]) -> Iterable[Action]:
    """Return the actions of one rank: compute, send, receive."""
    ### BEGIN SOLUTION
    actions: list[Action] = []
    for op in row:
        source, destination = (rank - 1, rank + 1) if op[0] == "F" else (rank + 1, rank - 1)
        if 0 <= source < p:
            receive = ("recv", op, source)
            last = actions[-1] if actions else ""
            # Send to a rank, then receive from it: that rank may do the same at this point. Post
            # both messages before waiting, so that neither rank waits for the other to receive.
            if isinstance(last, tuple) and last[0] == "send" and last[2] == source:
                actions[-1] = [last, receive]
            else:
                actions.append(receive)
        actions.append(op)
        if 0 <= destination < p:
            actions.append(("send", op, destination))
    return actions
    ### END SOLUTION
