"""Jobs on several hosts, torchrun, and Runs that are kept as folders.

A job on several hosts, from its start to its verdict:

    hosted_job.py    one process that torchrun started: which rank it is, where the Run goes
    environment.py   what torchrun says of that rank, in environment variables
    rendezvous.py    how the ranks of all hosts find each other, and connect
    board.py         notes between hosts, in torch's TCPStore
    hosted_rank.py   the rank that it forks, which calls the function in FILE; a port that
                     other hosts probe to learn whether it still lives
    attend.py        the attendant stands by the rank until the run is confirmed, or each host has a
                     verdict
    blocked_job.py   whether the job can still end
    post_mortem.py   why the run failed, from the records of its ranks

What is kept, and how it travels:

    saved_run.py     the folder: Run.save, Run.load
    attempts.py      the folders in it, one for each start of a job, and a failure's verdict
    rank_record.py   what is kept of one rank
    records.py       records on their way between hosts
    typed_json.py    dataclasses and timelines from JSON

On one host: torchrun.py is `labkit.run(..., engine="torchrun")`.
"""
