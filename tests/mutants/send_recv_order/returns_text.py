"""Mutant: the actions as one line of text.

outcome: "wrong"
diagnosis: "returns something else"
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
    return " ".join(map(str, actions))
