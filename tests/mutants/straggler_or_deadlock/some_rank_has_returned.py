"""Mutant: takes a rank that returned for the only kind of deadlock.

outcome: "wrong"
diagnosis: "looks only for ranks that have returned"
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
    returned = [one["rank"] for one in ranks if one["state"] == "returned"]
    return ("deadlock", returned[0]) if returned else ("straggler", truth(ranks)[1])
