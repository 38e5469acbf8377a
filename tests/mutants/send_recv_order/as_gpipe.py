"""Mutant: all forwards first, which does not stand still.

outcome: "wrong"
diagnosis: "turns 1F1B into GPipe"
"""


def send_recv_order(rank, p, m, row):
    row = sorted(row, key=lambda op: (op[0] == "B", int(op[1:])))
    actions = []
    for op in row:
        source, destination = (rank - 1, rank + 1) if op[0] == "F" else (rank + 1, rank - 1)
        if 0 <= source < p:
            actions.append(("recv", op, source))
        actions.append(op)
        if 0 <= destination < p:
            actions.append(("send", op, destination))
    return actions
