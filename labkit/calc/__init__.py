"""Formulas that predict what a run will measure, imported by no strategy and importing none.

units.py         quantities, typed and printed; result.py: a number with its parts and formula
traffic/         bytes, messages, steps and seconds of collectives; choice.py: which is fastest
models.py        configurations, hf_config.py from a config.json; parameters.py
hardware.py      GPUs and clusters
compute.py       FLOPs, MFU and days; bubble.py: pipelines; experts.py: mixtures of experts
memory/          bytes of a rank while it trains
inference.py     decoding; reliability.py: checkpoints, outages, slow ranks
reinforcement.py models held, weight updates and steps of reinforcement learning
feeding.py         bytes per second that ranks read, shards per reader
layout.py        how many ranks along each axis; pieces.py: the seconds of a step's parts
plan/            the layouts of a job that fit, ranked
simulate/        a step, and weeks of them, simulated
"""

from labkit.calc import plan, simulate, units
from labkit.calc.bubble import bubble_fraction, in_flight_microbatches
from labkit.calc.choice import algbw, busbw, choose_algorithm, crossover_bytes
from labkit.calc.compute import flops_per_token, mfu, training_days, training_flops
from labkit.calc.experts import (
    balanced_expert_traffic_bytes,
    dropped_choices,
    expert_capacity,
    expert_parallel_traffic_bytes,
    padded_expert_traffic_bytes,
)
from labkit.calc.feeding import feed_bytes_per_s, idle_reader_share, sampler_padding
from labkit.calc.hardware import CLUSTERS, GPUS, cluster
from labkit.calc.hf_config import model_from_config
from labkit.calc.inference import (
    PassTime,
    chunk_delay,
    compute_bound_batch,
    pass_time,
    requests_that_fit,
    speculative_speedup,
    speculative_tokens,
)
from labkit.calc.layout import Layout
from labkit.calc.memory.activations import activation_bytes
from labkit.calc.memory.fit import changes_that_fit
from labkit.calc.memory.footprint import TrainingSetup, footprint, footprints
from labkit.calc.memory.kv_cache import (
    cache_bytes,
    contiguous_cache_use,
    kv_cache_bytes_per_token,
    paged_cache_use,
)
from labkit.calc.memory.loss import head_input_bytes, logits_bytes, loss_gradient_bytes
from labkit.calc.memory.model_state import (
    RECIPES,
    Recipe,
    host_state_bytes,
    model_state_bytes,
    offload_bandwidth,
    offload_traffic_bytes,
)
from labkit.calc.models import MODELS, ModelConfig
from labkit.calc.parameters import active_parameters, lora_parameters, num_parameters
from labkit.calc.reinforcement import rl_memory_bytes, rl_step_seconds, weight_update_bytes
from labkit.calc.reliability import (
    checkpoint_interval,
    lost_gpu_hours,
    lost_share,
    mean_time_between_interruptions,
)
from labkit.calc.result import Result, amount
from labkit.calc.traffic.boosting import boosting_level_bytes, histogram_bytes
from labkit.calc.traffic.collective import collective
from labkit.calc.traffic.context import (
    context_score_elements,
    context_shard_tokens,
    context_traffic_bytes,
)
from labkit.calc.traffic.cost import chunk_numels
from labkit.calc.traffic.fsdp import bucket_sizes, fsdp_traffic_bytes, gather_bytes
from labkit.calc.traffic.step import (
    combined_traffic_bytes,
    pipeline_traffic_bytes,
    step_traffic_bytes,
    step_traffic_volume,
    unequal_zero1_traffic_bytes,
)
from labkit.calc.traffic.tensor import tensor_parallel_traffic_bytes, two_layers_traffic_bytes
from labkit.calc.units import bytes_text, count_text, seconds_text

__all__ = [
    "CLUSTERS",
    "GPUS",
    "Layout",
    "MODELS",
    "ModelConfig",
    "PassTime",
    "RECIPES",
    "Recipe",
    "Result",
    "TrainingSetup",
    "activation_bytes",
    "active_parameters",
    "algbw",
    "amount",
    "balanced_expert_traffic_bytes",
    "boosting_level_bytes",
    "bubble_fraction",
    "bucket_sizes",
    "busbw",
    "bytes_text",
    "cache_bytes",
    "changes_that_fit",
    "checkpoint_interval",
    "choose_algorithm",
    "chunk_delay",
    "cluster",
    "collective",
    "combined_traffic_bytes",
    "compute_bound_batch",
    "context_score_elements",
    "context_shard_tokens",
    "context_traffic_bytes",
    "contiguous_cache_use",
    "count_text",
    "crossover_bytes",
    "dropped_choices",
    "expert_capacity",
    "expert_parallel_traffic_bytes",
    "feed_bytes_per_s",
    "flops_per_token",
    "footprint",
    "footprints",
    "fsdp_traffic_bytes",
    "gather_bytes",
    "head_input_bytes",
    "histogram_bytes",
    "host_state_bytes",
    "idle_reader_share",
    "in_flight_microbatches",
    "kv_cache_bytes_per_token",
    "logits_bytes",
    "lora_parameters",
    "loss_gradient_bytes",
    "lost_gpu_hours",
    "lost_share",
    "mean_time_between_interruptions",
    "mfu",
    "model_from_config",
    "model_state_bytes",
    "num_parameters",
    "offload_bandwidth",
    "offload_traffic_bytes",
    "padded_expert_traffic_bytes",
    "paged_cache_use",
    "pass_time",
    "pipeline_traffic_bytes",
    "plan",
    "requests_that_fit",
    "rl_memory_bytes",
    "rl_step_seconds",
    "sampler_padding",
    "seconds_text",
    "chunk_numels",
    "simulate",
    "speculative_speedup",
    "speculative_tokens",
    "step_traffic_bytes",
    "step_traffic_volume",
    "tensor_parallel_traffic_bytes",
    "training_days",
    "training_flops",
    "two_layers_traffic_bytes",
    "unequal_zero1_traffic_bytes",
    "units",
    "weight_update_bytes",
]
