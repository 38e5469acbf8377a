"""Tell a straggler from a deadlock, and find the rank to look at.

An interviewer asks: "A job on 512 GPUs has printed nothing for ten minutes. You have one line per
rank: the last operation that it posted, whether it is blocked, its CPU, the top of its stack. Is it
slow, or will it never end? Which of the 512 do you look at first?"

Write `diagnose(ranks)`. It gets what a cluster's tools show of one job, such as NCCL's Flight
Recorder, py-spy and top. It returns the fault and the rank to look at. Each check asks about many
jobs of 5 to 8 ranks. They got stuck in different ways, and the culprits are drawn at random.

Contract
    ranks    a list with one dict per rank, in order:
             rank       its number
             state      "blocked" (in its last operation), "running" or "returned"
             operation  the last operation that it posted: "all_reduce", "barrier", "send" or "recv"
             peer       of a send: the destination; of a recv: the source; of a collective: None
             group      the name of the operation's group
             members    the ranks of that group
             number     of a collective: its number in that group, from 1; of a message: its number
                        from this sender to this receiver, from 1
             posted     a dict: for each group, the number of the last collective that this rank has
                        posted in it. A group in which it has posted none is absent
             seconds    since it posted that operation; once that is complete, since then
             cpu        cores in use by its process, data loader included: 0.0 to 1.0 or more
             stack      the line of code that it is at; "" after it has returned
             `peer` and `members` are numbers as in `rank`, also where the group is not the world.
    returns  a pair (fault, rank):
             ("straggler", rank)  the rank is running, and blocked ranks wait for it, directly or
                                  through other blocked ranks. Nothing else is wrong
             ("deadlock", rank)   blocked ranks wait for something that cannot come. Either they
                                  wait for a rank that has returned: name that rank. Or ranks wait
                                  for each other in a cycle: name any rank of the cycle. A rank that
                                  only waits for the cycle is wrong

    A blocked send waits until its peer has posted the recv, and a blocked recv until its peer has
    posted the send. A blocked collective waits until all members have posted it. Every job has one
    fault, and at least one blocked rank. A rank for which no rank waits may be running, or may have
    returned: that is no fault.
"""


def diagnose(ranks: list[dict]) -> tuple[str, int]:
    ### BEGIN SOLUTION
    def waits_for(one: dict) -> list[int]:
        if one["state"] != "blocked":
            return []
        if one["peer"] is not None:
            return [one["peer"]]
        # A collective waits for those members that have not posted it yet, in its own group.
        return [
            member
            for member in one["members"]
            if ranks[member]["posted"].get(one["group"], 0) < one["number"]
        ]

    # Start at any blocked rank and follow the waits: to a rank that is not blocked, or in a cycle.
    rank = next(one["rank"] for one in ranks if one["state"] == "blocked")
    path: list[int] = []
    while rank not in path:
        path.append(rank)
        following = waits_for(ranks[rank])
        if not following:
            break
        rank = following[0]
    # All ranks of a cycle are blocked.
    is_slow = ranks[rank]["state"] == "running"
    return ("straggler" if is_slow else "deadlock", rank)
    ### END SOLUTION
