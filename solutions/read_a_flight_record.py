"""Say from the Flight Recorder's dumps why a job hangs.

An interviewer asks: "The job hung in the night. NCCL's watchdog left a Flight Recorder dump of each
rank. There are several process groups in it, thousands of entries, and the oldest are gone. Which
collective do you look at, and which rank?"

Write `read_a_flight_record(dumps)`. dumps[r] is the dump of rank r, as torch writes it for NCCL,
without the fields that the question does not need.

Contract
    dumps    a list of dicts, by rank
             pg_config  the groups of this rank, by name, such as {"0": {"name": "0", "desc":
                        "default_pg", "ranks": "[0, 1, 2, 3]"}}. The members are text
             entries    what the rank has called, the oldest first. Each entry is a dict:
                process_group      (name, description), such as ("0", "default_pg")
                collective_seq_id  the collective's number in its group, from 1
                profiling_name     "nccl:all_reduce", "nccl:all_to_all", ...
                input_sizes        such as [[4096]]
                input_dtypes       such as ["Float"]
                state              "scheduled" (called, but not started on the GPU), "started" or
                                   "completed"
                is_p2p             True for a send or recv. It is no collective, and its
                                   collective_seq_id is that of the collective before it. No rank
                                   hangs because of one
             The recorder is a ring buffer. It has dropped the oldest entries, more on some ranks
             than on others. It still has all entries that are not completed, and the last
             collective that the rank has called in each group. A rank without an entry in a group
             has called nothing there
    returns  a tuple (what, group, number, ranks): the group's name, the collective_seq_id, and
             ranks in ascending order. `what` is one of
             "missing"   these members have not called the collective
             "mismatch"  all members have called it, and more than half agree. These differ from
                         them in profiling_name, input_dtypes or input_sizes. In an all_to_all every
                         rank may have other sizes: that is no mismatch
             "running"   all members have called it, and agree: ask the network. `ranks` is []
    A rank waits in all its collectives that are not completed. It may have called several without
    waiting for the first. No member has completed a collective in which another waits, and at least
    one rank waits. In each group the first collective in which a member waits is the one to
    look at. There may be one in several groups: a member that is missing in one may itself wait in
    another. Return the only one at which no missing member waits in another collective.
"""

import json


def read_a_flight_record(dumps: list[dict]) -> tuple[str, str, int, list[int]]:
    ### BEGIN SOLUTION
    collectives = [[each for each in dump["entries"] if not each["is_p2p"]] for dump in dumps]
    waits = [any(each["state"] != "completed" for each in its) for its in collectives]
    configs = {name: each for dump in dumps for name, each in dump["pg_config"].items()}
    for group, config in configs.items():
        members = json.loads(config["ranks"])
        called = {
            rank: {
                each["collective_seq_id"]: each
                for each in collectives[rank]
                if each["process_group"][0] == group
            }
            for rank in members
        }
        pending = [
            number
            for its in called.values()
            for number, each in its.items()
            if each["state"] != "completed"
        ]
        number = min(pending, default=0)
        # Old entries may be gone, so the last one says how far a rank has come.
        missing = [rank for rank in members if max(called[rank], default=0) < number]
        if not pending or any(waits[rank] for rank in missing):
            continue
        if missing:
            return ("missing", group, number, missing)

        meanings = []
        for rank in members:
            each = called[rank][number]
            is_uneven = each["profiling_name"] == "nccl:all_to_all"
            sizes = None if is_uneven else each["input_sizes"]
            meanings.append((each["profiling_name"], each["input_dtypes"], sizes))
        usual = max(meanings, key=meanings.count)
        odd = [rank for rank, its in zip(members, meanings) if its != usual]
        return ("mismatch" if odd else "running", group, number, odd)
    ### END SOLUTION
