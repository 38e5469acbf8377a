"""Pipeline parallelism: the layers are cut into stages, the batch into microbatches.

Read in this order, and start here:

    plain.py        1F1B with one stage per rank: its order, and its sends and receives

Then schedules are data:

    op.py           Op(kind, stage, microbatch), Schedule, plan; schedules as text and from text
    schedules.py    naive, gpipe, one_f_one_b, interleaved; zero bubble: H1, H2 and V
    validation.py   check that a schedule is a training step, and find an order to perform it in
    simulation.py   when each operation runs: makespan, idle time, bubble; microbatches in flight

    executor.py     Pipeline: a schedule performed by real stages on real ranks; tied weights;
                    pipeline_checks.py checks its arguments, deferred.py splits its backward
    stage_messages.py  the messages between its stages, in an order without deadlock
    gpt_pp.py       the lab's GPT cut into stages, which layers go where, and its training
    emulated.py     operations that sleep for a given time: schedules measured on few cores
    pipedream.py    updates without a flush, with weight stashing

    messages.py     a schedule as receive, compute, send; deadlocks that occur if sends block

    schedule = plan(one_f_one_b, num_ranks=4, num_microbatches=8)
    simulate(schedule).bubble()         # 0.2727..., 3/11
    in_flight(schedule)                 # [4, 3, 2, 1]

examples/one_file/one_f_one_b.py is 1F1B in plain torch.distributed, without labkit.
"""

from typing import TYPE_CHECKING

from labkit.lazy import lazy

if TYPE_CHECKING:
    from labkit.pipeline.emulated import EmulatedPipeline, emulated_step
    from labkit.pipeline.executor import Pipeline, Step, WeightedLoss, execute
    from labkit.pipeline.gpt_pp import (
        GPTStage,
        PipelineGPT,
        balanced_stages,
        even_stages,
        gather_full_state,
        layer_costs,
        stage_costs,
        token_loss,
        train,
        train_step,
    )
    from labkit.pipeline.op import Kind, Op, Row, Schedule, parse, plan, text
    from labkit.pipeline.pipedream import PipeDream, stale_weights, weight_versions
    from labkit.pipeline.schedules import (
        gpipe,
        interleaved,
        naive,
        one_f_one_b,
        zero_bubble_h1,
        zero_bubble_h2,
        zero_bubble_v,
    )
    from labkit.pipeline.simulation import (
        Costs,
        Span,
        Timing,
        in_flight,
        in_time,
        measured,
        peak_memory,
        simulate,
    )
    from labkit.pipeline.validation import ScheduleError, validate

__getattr__, __dir__, __all__ = lazy(__name__)
