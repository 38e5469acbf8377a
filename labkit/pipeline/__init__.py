"""Pipeline parallelism: the model cut by layers, the batch by sequences, the order as data.

op             Op(kind, stage, microbatch), Schedule, plan
schedules      naive, gpipe, one_f_one_b, interleaved
zero_bubble    zero_bubble_h1
validate       is it a step, and can it be performed? An error marks the cell
simulate       when does everything run
occupancy      microbatches in flight, and their memory
text           a schedule as text, and back
in_time        its times as text, a column per unit

schedule = plan(one_f_one_b, num_ranks=4, num_microbatches=8)
simulate(schedule).bubble()         # 0.2727..., 3/11
in_flight(schedule)                 # [4, 3, 2, 1]
"""

from labkit.pipeline.balance import balance, even, stage_costs
from labkit.pipeline.in_time import in_time
from labkit.pipeline.occupancy import in_flight, peak_memory
from labkit.pipeline.op import Kind, Op, Schedule, plan
from labkit.pipeline.schedules import gpipe, interleaved, naive, one_f_one_b
from labkit.pipeline.simulate import Costs, simulate
from labkit.pipeline.text import parse, text
from labkit.pipeline.timing import Span, Timing
from labkit.pipeline.validate import ScheduleError, validate
from labkit.pipeline.zero_bubble import zero_bubble_h1

__all__ = [
    "Costs",
    "Kind",
    "Op",
    "Schedule",
    "ScheduleError",
    "Span",
    "Timing",
    "balance",
    "even",
    "gpipe",
    "in_flight",
    "in_time",
    "interleaved",
    "naive",
    "one_f_one_b",
    "parse",
    "peak_memory",
    "plan",
    "simulate",
    "stage_costs",
    "text",
    "validate",
    "zero_bubble_h1",
]
