"""Mutant: looks at the rank that uses its core most.

outcome: "wrong"
diagnosis: "blames the busiest rank"
"""


def truth(ranks):
    def waits_for(one):
        if one["state"] != "blocked":
            return []
        if one["peer"] is not None:
            return [one["peer"]]
        group, number = one["group"], one["number"]
        return [m for m in one["members"] if ranks[m]["posted"].get(group, 0) < number]

    rank = next(one["rank"] for one in ranks if one["state"] == "blocked")
    path = []
    while rank not in path:
        path.append(rank)
        following = waits_for(ranks[rank])
        if not following:
            return ("straggler" if ranks[rank]["state"] == "running" else "deadlock", rank)
        rank = following[0]
    return ("deadlock", rank)


def diagnose(ranks):
    kind, _ = truth(ranks)
    return kind, max(ranks, key=lambda one: one["cpu"])["rank"]
