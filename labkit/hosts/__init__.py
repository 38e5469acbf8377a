"""Several hosts, torchrun, and Runs that are kept as folders.

A job on several hosts, from its start to its verdict:

    hosted_job.py       one process that torchrun started: who it is, where the Run goes
    hosted_rank.py      it forks a rank, which calls the function in FILE
    attend.py           and stands by it until the run is over
    hosted_rank.py             whether processes on other hosts still live
    blocked_job.py      whether the job can still end
    attend.py           all have returned: is the run good? one has failed: a verdict for each host
    post_mortem.py      why the run failed, from the records of its ranks

What is kept, and how it travels:

    saved_run.py        the folder: Run.save, Run.load
    attempts.py         the folders in it, one for each start of a job
    rank_record.py      what is kept of one rank
    attempts.py   what is kept of a failure
    records.py          records on their way between hosts
    typed_json.py       dataclasses and timelines from JSON

On one host: torchrun.py is `labkit.run(..., engine="torchrun")`.

How ranks on several hosts find each other.
"""
