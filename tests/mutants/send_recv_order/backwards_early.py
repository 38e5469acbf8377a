"""Mutant: gradients first, as soon as there are some.

outcome: "wrong"
diagnosis: "computes in another order"
"""


def send_recv_order(rank, p, m, row):
    row = [each for pair in zip(row[1::2], row[::2]) for each in pair] + row[len(row) // 2 * 2 :]
    actions = []
    for op in row:
        source, destination = (rank - 1, rank + 1) if op[0] == "F" else (rank + 1, rank - 1)
        if 0 <= source < p:
            actions.append(("recv", op, source))
        actions.append(op)
        if 0 <= destination < p:
            actions.append(("send", op, destination))
    return actions
