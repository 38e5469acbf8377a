"""Mutant: follows two waits, and takes who waits there for part of a circle.

outcome: "wrong"
diagnosis: "takes a slow rank for a deadlock"
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
    while len(path) < 2:
        path.append(rank)
        following = waits_for(ranks[rank])
        if not following:
            return ("straggler" if ranks[rank]["state"] == "running" else "deadlock", rank)
        rank = following[0]
    return ("deadlock", rank)


def diagnose(ranks):
    return truth(ranks)
