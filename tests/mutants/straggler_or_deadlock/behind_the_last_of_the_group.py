"""Mutant: takes all for missing that are behind the first in a group.

outcome: "wrong"
diagnosis: "compares with the group's last collective"
"""


def diagnose(ranks):
    def waits_for(one):
        if one["state"] != "blocked":
            return []
        if one["peer"] is not None:
            return [one["peer"]]
        group = one["group"]
        last = max(each["posted"].get(group, 0) for each in ranks)
        return [m for m in one["members"] if ranks[m]["posted"].get(group, 0) < last]

    rank = next(one["rank"] for one in ranks if one["state"] == "blocked")
    path = []
    while rank not in path:
        path.append(rank)
        following = waits_for(ranks[rank])
        if not following:
            return ("straggler" if ranks[rank]["state"] == "running" else "deadlock", rank)
        rank = following[0]
    return ("deadlock", rank)
