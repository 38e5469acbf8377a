"""Measure how much communication computing does not hide.

An interviewer asks: "A step takes 500 ms, and your profile has 300 ms of NCCL kernels in it. Is the
network what makes it slow? Which number do you take from the trace?"

Write `exposed_communication(compute, communication, step)` for the trace of one rank.

    compute        |=== k1 ===|      |====== k2 ======|
                           |== k3 ==|                              another stream
    communication       |------ all_reduce ------|  |---- all_gather ----|
                                                      |-- send --|
    exposed                         ||                |==================|
    step           |<------------------------------------------------------->|

Contract
    compute        a list of (start, end), one pair for each computing kernel
    communication  the same for each communication kernel
    step           (start, end)
                   All times are ints, in microseconds, with start < end. The kernels are in no
                   order. Kernels of several streams run at the same time, also kernels of one kind.
                   A list may be empty. A kernel may begin before the step or end after it. Only the
                   time inside the step counts
    returns        a tuple (communication, exposed, overlap)
                   communication: microseconds in which at least one communication kernel runs
                   exposed: of these, microseconds in which no computing kernel runs
                   overlap: a float, (communication - exposed) / communication, within 1e-9, from
                   0 to 1; HTA (Holistic Trace Analysis) prints it in percent. It is 0 where nothing
                   communicates

Code: https://github.com/facebookresearch/HolisticTraceAnalysis, get_comm_comp_overlap.
"""

Spans = list[tuple[int, int]]


def exposed_communication(
    compute: Spans, communication: Spans, step: tuple[int, int]
) -> tuple[int, int, float]:
    raise NotImplementedError("not attempted yet: your code replaces this line")
