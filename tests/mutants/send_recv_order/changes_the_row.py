"""Mutant: takes operations out of the row.

outcome: "wrong"
diagnosis: "changes what it is given"
"""


def send_recv_order(rank, p, m, row):
    actions = []
    while row:
        op = row.pop(0)
        source, destination = (rank - 1, rank + 1) if op[0] == "F" else (rank + 1, rank - 1)
        if 0 <= source < p:
            actions.append(("recv", op, source))
        actions.append(op)
        if 0 <= destination < p:
            actions.append(("send", op, destination))
    for at in range(len(actions) - 2, -1, -1):
        one, other = actions[at : at + 2]
        if (one[0], other[0], one[2:]) == ("send", "recv", other[2:]):
            actions[at : at + 2] = [[one, other]]
    return actions
