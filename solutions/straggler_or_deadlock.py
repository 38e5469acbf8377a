"""Tell a straggler from a deadlock, and find the rank to look at.

An interviewer asks: "A job on 512 GPUs has printed nothing for ten minutes. You have one line per
rank: the last operation that it posted, whether it is blocked, its CPU, the top of its stack. Is it
slow, or will it never end? Which of the 512 do you look at first?"

Write `diagnose(ranks)`. It gets what a cluster's tools would show of one job (NCCL's Flight
Recorder, py-spy, top), and returns what is the matter. Each check starts jobs of 5 processes that
get stuck in different ways, with culprits drawn at random, and asks about all of them.

Contract
    ranks    a list with a dict for each rank, in order:
             rank       its number
             state      "blocked" (in its last operation), "running" or "returned"
             operation  the last that it posted: "all_reduce", "barrier", "send", "recv", ...
             peer       of a send: to whom; of a recv: from whom; of a collective: None
             group      the name of the operation's group
             members    the ranks of that group
             number     of a collective: its number in that group, from 1; of a message: its number
                        from this sender to this receiver
             posted     for each group: the number of the last collective that this rank has posted
             seconds    since it posted that operation, or since it was complete
             cpu        cores in use by its process, data loader included: 0.0 to 1.0 or more
             stack      the line that it is at
    returns  a pair (what, rank): what is
             "straggler"  nothing is wrong but that others wait for this rank, which is running
             "deadlock"   some ranks wait for what cannot come: for one that has returned (that is
                          the rank to look at), or in a circle (any rank of the circle is right, and
                          one that only waits for the circle is not)

Every job has one fault. Usually a step takes a few milliseconds.
"""


def diagnose(ranks: list[dict]) -> tuple[str, int]:
    ### BEGIN SOLUTION
    def waits_for(one: dict) -> list[int]:
        if one["state"] != "blocked":
            return []
        if one["peer"] is not None:
            return [one["peer"]]
        # A collective needs those members that have not come to it yet, in its own group.
        return [
            member
            for member in one["members"]
            if ranks[member]["posted"].get(one["group"], 0) < one["number"]
        ]

    # From any rank that waits, follow the waits: to a rank that does not wait, or around a circle.
    rank = next(one["rank"] for one in ranks if one["state"] == "blocked")
    path: list[int] = []
    while rank not in path:
        path.append(rank)
        following = waits_for(ranks[rank])
        if not following:
            is_slow = ranks[rank]["state"] == "running"
            return ("straggler" if is_slow else "deadlock", rank)
        rank = following[0]
    return ("deadlock", rank)
    ### END SOLUTION
