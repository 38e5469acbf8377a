"""Mutant: sends the second forward before the first.

outcome: "wrong"
diagnosis: "sends and receives do not pair"
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
    for at in range(len(actions) - 2, -1, -1):
        one, other = actions[at : at + 2]
        if (one[0], other[0], one[2:]) == ("send", "recv", other[2:]):
            actions[at : at + 2] = [[one, other]]
    first, second = ("send", "F0", rank + 1), ("send", "F1", rank + 1)
    if first in actions and second in actions:
        actions.remove(first)
        actions.insert(actions.index(second) + 1, first)
    return actions
