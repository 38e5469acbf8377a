"""Pictures of a run, and a trace of it for Perfetto.

    from labkit import viz
    viz.timeline(result)                             # computing, waiting and operations in flight
    viz.compared_timelines({"a": run, "b": other})   # several runs on one time axis
    viz.moves({"all_reduce": result.values})         # movement of data, from the tensors themselves
    viz.ring_steps(result)                           # a ring, step by step
    viz.traffic_matrix(result)                       # bytes from each rank to each other
    viz.latency_bandwidth(curves, world_size)        # time and bandwidth over size
    viz.memory_timeline(usage)                       # live bytes by kind, and the peak
    viz.memory_bar(footprints, capacity)             # use of each GPU's memory, by part
    viz.memory_steps({"ddp": usage.bytes_of, ...})   # live bytes of several steps on one scale
    viz.held_states({"zero1": held_by_rank}, ...)    # parameters, gradients and states by rank
    viz.unit_timeline(timeline, {"step": "step 0"})  # units of ZeRO-3 gathered, used and freed
    viz.shards({"up": ((256, 64), cut)}, num_ranks)  # which rank holds which rows and columns
    viz.over_links(measured, predicted)              # time over the bandwidth of the link
    viz.schedule(timing, measured)                   # a pipeline's step as a grid: rank by time
    viz.in_flight(timing)                            # microbatches that each rank holds meanwhile
    viz.mesh_map({"dp": 2, "pp": 2, "tp": 2}, rank)  # ranks by node, and the groups of one
    viz.causal_work({"zigzag": zigzag}, num_ranks)   # whose scores under a causal mask
    viz.load_of_experts(expert_load(...))            # who computes how many tokens, and who waits
    viz.imbalance_curves({"a loss": by_step}, most=4)  # busiest expert over the mean, in training
    viz.bandwidth_map(measure.pairs(8))              # how fast each pair of ranks is
    viz.scaling_curves(strong, weak, law)            # speedup over ranks, and the parts of steps
    viz.roofline(operations, flops_per_s, bytes_per_s)  # the bound of each operation
    viz.step_terms({"healthy": trace})               # a step's terms by rank, side by side
    viz.simulated_step(step)                         # a simulated step: classes of ranks by time
    viz.extents({"saved": extents, "loaded": ...})   # who holds which elements, in several layouts
    viz.power_cuts(operations, found)                # a save's operations, and results of loads
    viz.goodput(measured, predicted, optima)         # share of useful time over the interval
    viz.cache_map(cache, {0: "The cat"})             # whose keys and values are in which slot
    viz.slot_use({"paged": uses})                    # cached, reserved and wasted slots over passes
    viz.passes({"continuous": recorded.passes})      # which request computes what in which pass
    viz.latency_throughput({"TTFT": points})         # latency over tokens per second, by load
    viz.curves({"panel": {"line": points}}, ...)     # lines in panels that share their axes
    viz.staleness({"equal": arrivals}, title)        # ages of the gradients that a server used
    viz.exponents(gradients, title)                  # numbers by power of two, and float16's limits
    viz.loss_scale(powers, made, title)              # a loss scale, and the steps that it skipped
    viz.returns({"PPO": history}, title=...)         # returns against samples and against seconds
    viz.idle_by_rank({"PPO": history}, title=...)    # the share of the time in which a rank waited
    viz.policy_lag({"IMPALA": history}, title=...)   # how many versions old samples were
    viz.rollout_figures(trained.figures, title=...)  # reinforcement learning of a language model
    viz.chrome_trace.write(result, "trace.json")     # no matplotlib needed for this one

Each kind of picture has a file; style.py, picture.py and journals.py are shared. Of a run:
timelines.py, lanes.py, rings.py, traffic.py, movement.py. Of schedules: schedule_grid.py,
in_flight_curve.py, schedule_parts.py, schedule_drawing.py, schedule_input.py. Of layouts:
shard_map.py, mesh.py, mesh_places.py, extents_picture.py, expert_load.py, causal_mask.py. Of
numbers: size_curves.py, link_curves.py, memory.py, steps.py, performance.py, failures.py,
serving.py, training.py, actors.py, rl_figures.py. Of ZeRO: zero.py, compiled_figures.py.

Names load when first used: a machine without matplotlib can still write traces (chrome_trace.py).
"""

from typing import TYPE_CHECKING

from labkit.lazy import lazy

if TYPE_CHECKING:
    from labkit.viz import chrome_trace
    from labkit.viz.actors import idle_by_rank, policy_lag, returns
    from labkit.viz.causal_mask import causal_work
    from labkit.viz.compiled_figures import graph_orders
    from labkit.viz.expert_load import imbalance_curves, load_of_experts
    from labkit.viz.extents_picture import extents
    from labkit.viz.failures import goodput, power_cuts, recovery
    from labkit.viz.in_flight_curve import in_flight
    from labkit.viz.link_curves import over_links
    from labkit.viz.memory import memory_bar, memory_timeline
    from labkit.viz.mesh import mesh_map
    from labkit.viz.movement import moves
    from labkit.viz.performance import bandwidth_map, roofline, scaling_curves
    from labkit.viz.picture import Picture
    from labkit.viz.rings import ring_steps, tagged
    from labkit.viz.rl_figures import rollout_figures
    from labkit.viz.schedule_grid import schedule
    from labkit.viz.serving import cache_map, latency_throughput, passes, slot_use
    from labkit.viz.shard_map import shards
    from labkit.viz.size_curves import Curve, Mark, latency_bandwidth
    from labkit.viz.steps import simulated_step, step_terms
    from labkit.viz.timelines import compared_timelines, timeline
    from labkit.viz.traffic import traffic_matrix
    from labkit.viz.training import curves, exponents, loss_scale, staleness
    from labkit.viz.zero import held_states, memory_steps, unit_timeline

__getattr__, __dir__, __all__ = lazy(__name__)
