"""Mutant: odd ranks receive first, but the last one sends.

outcome: "wrong"
diagnosis: "stands still for an even number of ranks"
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
    for at in range(len(actions) - 1):
        one, other = actions[at : at + 2]
        if (
            (one[0], other[0], one[2:]) == ("send", "recv", other[2:])
            and rank % 2 == 1
            and rank < p - 1
            and (one[1][0] == "B" or int(one[1][1:]) >= p - rank - 1)
        ):
            actions[at : at + 2] = [other, one]
    return actions
