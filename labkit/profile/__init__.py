"""Find why a step is slow, from a run or from PyTorch Profiler's traces of any job.

    trace = profile.trace_of_run(run)                        # a labkit run
    trace = profile.read(["rank0.json", "rank1.json"])  # traces of CPU or GPU ranks
    profile.breakdown(trace)[0]                        # the steps of rank 0, by term
    profile.report(trace).words()                      # the critical path, and remedies

Read in this order:

    step_trace      the model: work and exchanges of each rank, on one clock
    recorder        a journal of a run as a trace; record a loop with PyTorch Profiler
    kineto          a trace of PyTorch Profiler; activity: a rank's activity by its journal
    trace_file      reads a file, and checks all of its fields
    communication_kernels, launches     kernels that communicate, and their launches
    matching, trace_notes               matches kernels of several ranks; notes on missing data
    breakdown       a step's time by term; the terms add up to the step
    dependencies    the graph of waits: replay, critical path, slack
    what_if         a replay with one thing changed
    bottleneck      the changes that would gain most
    comparison      two runs: which term of a step grew, and on which rank
    report          the whole report, as text and as one HTML page
    h200_traces     four traces of a GPU as examples
    rl_diagnosis    the fault of a reinforcement learning job, from its figures
"""

from labkit.profile import what_if
from labkit.profile.bottleneck import Finding, diagnose
from labkit.profile.breakdown import Terms, breakdown, figures
from labkit.profile.comparison import Comparison, compare
from labkit.profile.dependencies import Dependencies
from labkit.profile.h200_traces import h200_trace
from labkit.profile.kineto import read
from labkit.profile.recorder import recording, trace_of_run
from labkit.profile.report import Report, page, report
from labkit.profile.rl_diagnosis import name_fault
from labkit.profile.step_trace import Trace

__all__ = [
    "Comparison",
    "Dependencies",
    "Finding",
    "Report",
    "Terms",
    "Trace",
    "breakdown",
    "compare",
    "diagnose",
    "figures",
    "h200_trace",
    "name_fault",
    "page",
    "read",
    "recording",
    "report",
    "trace_of_run",
    "what_if",
]
