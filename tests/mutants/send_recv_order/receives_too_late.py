"""Mutant: receives after computing.

outcome: "wrong"
diagnosis: "computes before the message is there"
"""


def send_recv_order(rank, p, m, row):
    actions = []
    for op in row:
        source, destination = (rank - 1, rank + 1) if op[0] == "F" else (rank + 1, rank - 1)
        actions.append(op)
        if 0 <= source < p:
            actions.append(("recv", op, source))
        if 0 <= destination < p:
            actions.append(("send", op, destination))
    return actions
