"""Mutant: takes a member for missing because its last operation is in another group.

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
        return [
            m for m in one["members"] if ranks[m]["group"] != group or ranks[m]["number"] < number
        ]

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
    return truth(ranks)
