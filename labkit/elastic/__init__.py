"""Go on after failures: restart, go on from a partner's memory, or go on without a restart.

Read in this order:

    restarts.py          run: a job in attempts, each with new ranks
    partner_memory.py    PartnerMemory: the newest state in the memory of two hosts
    heartbeat.py         HeartbeatSender, HeartbeatMonitor: alive, slow, frozen, dead
    quorum.py            Coordinator: who takes part in a step, and whether it counts
    healing.py           the state of a replica, received from another one
    replica_steps.py     Replica: go on without the dead one, and take it back
    run_replicas.py      run_replicas: each replica a process that restarts alone
    goodput.py           measure_goodput: failures at random moments, and where the time goes
"""

from labkit.elastic.goodput import Goodput, measure_goodput
from labkit.elastic.heartbeat import HeartbeatMonitor, HeartbeatSender, false_alarms
from labkit.elastic.partner_memory import PartnerMemory, load_newest
from labkit.elastic.quorum import NoReplicaLeft
from labkit.elastic.replica_steps import Replica
from labkit.elastic.restarts import Attempt, ElasticRun, Restart, run, seconds_lost
from labkit.elastic.run_replicas import ReplicasRun, run_replicas

__all__ = [
    "Attempt",
    "ElasticRun",
    "Goodput",
    "HeartbeatMonitor",
    "HeartbeatSender",
    "NoReplicaLeft",
    "PartnerMemory",
    "Replica",
    "ReplicasRun",
    "Restart",
    "false_alarms",
    "load_newest",
    "measure_goodput",
    "run",
    "run_replicas",
    "seconds_lost",
]
