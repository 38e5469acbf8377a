"""Find the operations that decide how long a run takes, and the slack of all others.

An interviewer asks: "Rank 3 is busy all the time, and rank 0 ends last. You make a kernel on rank 3
faster by 20 ms, and the step takes as long as before. How do you find what is worth your time?"

Write two functions over the trace of a run: `critical_path(ranks)` and `slack(ranks)`.

    rank 0  |= a =|.............|sum|==== b ====|       . waits in a collective
    rank 1  |======= c =======|.|sum|= d =|             critical path: (2, "e"), (2, "sum"),
    rank 2  |======== e ========|sum|=== f ===|                        (0, "b")

Contract
    ranks    ranks[r] is a list with the operations of rank r, in order. Each is a tuple (kind,
             name, start, end), with times in microseconds, as ints. A rank's first operation starts
             at 0. Each other one starts when the one before it ends
             kind "work": the rank works by itself. No other operation of the rank has the same name
             kind "collective": the rank arrives at `start`, and waits until `end`. It is one
             collective on all ranks that have a collective with this name: its members. Its
             transfer begins when the last member arrives, and ends at the same time on all members
             Each work and each transfer takes more than 0
    critical_path(ranks)
             the chain of operations that decides when the run ends, from time 0 to the end of the
             run, as a list of (rank, name). Of a collective only the transfer is part of it: it
             comes once, with the rank that arrived last. The runs asked about have one such chain
    slack(ranks)
             by how many microseconds each operation alone could take longer without a later end of
             the run. Of a collective: the transfer, so all members have the same slack. The result
             is a list of lists of ints, in the layout of `ranks`
    The run ends with its last operation on any rank. If an operation takes longer, all others take
    as long as before: works and transfers keep their length, and waits become shorter or longer.

Paper: Böhme et al., "Scalable critical-path based performance analysis", IPDPS 2012.
"""

Ranks = list[list[tuple[str, str, int, int]]]


def critical_path(ranks: Ranks) -> list[tuple[int, str]]:
    """Return the (rank, name) of each operation on the longest chain, from first to last."""
    ### BEGIN SOLUTION
    path = []
    rank = max(range(len(ranks)), key=lambda r: ranks[r][-1][3])
    place = len(ranks[rank]) - 1
    while place >= 0:
        kind, name, _, _ = ranks[rank][place]
        if kind == "collective":
            _, rank, place = max(
                (op[2], r, i)
                for r, ops in enumerate(ranks)
                for i, op in enumerate(ops)
                if op[:2] == (kind, name)
            )
        path.append((rank, name))
        place -= 1
    return path[::-1]
    ### END SOLUTION


def slack(ranks: Ranks) -> list[list[int]]:
    """Return for each operation by how much it could take longer without a later end."""
    ### BEGIN SOLUTION
    found = [[0] * len(ops) for ops in ranks]
    members: dict[str, list[tuple[int, int]]] = {}
    for r, ops in enumerate(ranks):
        for i, (kind, name, _, _) in enumerate(ops):
            members.setdefault(name if kind == "collective" else f"{r} {name}", []).append((r, i))

    # From the last operation to the first. next_begin: when at the latest the next one must begin.
    next_begin = [max(ops[-1][3] for ops in ranks)] * len(ranks)
    for places in sorted(members.values(), key=lambda p: -ranks[p[0][0]][p[0][1]][3]):
        arrived = max(ranks[r][i][2] for r, i in places)
        end = ranks[places[0][0]][places[0][1]][3]
        spare = min(next_begin[r] for r, _ in places) - end
        for r, i in places:
            found[r][i] = spare
            next_begin[r] = arrived + spare
    return found
    ### END SOLUTION
