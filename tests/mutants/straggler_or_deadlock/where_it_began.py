"""Mutant: names the rank from which it began to follow the waits around a circle.

outcome: "wrong"
diagnosis: "blames a rank that only waits"
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
    kind, rank = truth(ranks)
    if ranks[rank]["state"] == "blocked":
        rank = next(one["rank"] for one in ranks if one["state"] == "blocked")
    return kind, rank
