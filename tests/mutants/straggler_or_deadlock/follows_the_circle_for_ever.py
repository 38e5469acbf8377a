"""Mutant: follows the waits, and never notices that it was there before.

outcome: "hung"
diagnosis: "does not come to an end"
"""


def diagnose(ranks):
    def waits_for(one):
        if one["state"] != "blocked":
            return []
        if one["peer"] is not None:
            return [one["peer"]]
        group, number = one["group"], one["number"]
        return [m for m in one["members"] if ranks[m]["posted"].get(group, 0) < number]

    rank = next(one["rank"] for one in ranks if one["state"] == "blocked")
    while waits_for(ranks[rank]):
        rank = waits_for(ranks[rank])[0]
    return ("straggler" if ranks[rank]["state"] == "running" else "deadlock", rank)
