"""Mutant: all receives, then all the rest.

outcome: "wrong"
diagnosis: "waits for everything before it computes"
"""


def send_recv_order(rank, p, m, row):
    actions = []
    for op in row:
        source, destination = (rank - 1, rank + 1) if op[0] == "F" else (rank + 1, rank - 1)
        if 0 <= source < p:
            actions.append(("recv", op, source))
        actions.append(op)
        if 0 <= destination < p:
            actions.append(("send", op, destination))
    return [each for each in actions if each[0] == "recv"] + [
        each for each in actions if each[0] != "recv"
    ]
