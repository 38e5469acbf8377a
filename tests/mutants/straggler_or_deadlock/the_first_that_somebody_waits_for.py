"""Mutant: looks at whom somebody waits for, and for no circle.

outcome: "wrong"
diagnosis: "names a rank that leads into a circle"
"""


def diagnose(ranks):
    awaited = set()
    for one in ranks:
        if one["state"] == "blocked" and one["peer"] is not None:
            awaited.add(one["peer"])
        elif one["state"] == "blocked":
            group, number = one["group"], one["number"]
            awaited |= {m for m in one["members"] if ranks[m]["posted"].get(group, 0) < number}
    for state in ("running", "returned", "blocked"):
        for one in ranks:
            if one["state"] == state and one["rank"] in awaited:
                return ("straggler" if state == "running" else "deadlock", one["rank"])
