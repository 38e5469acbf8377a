"""Formulas that predict what a run will measure, imported by no strategy and importing none.

from labkit import calc
calc.collective("all_reduce", "ring", 4, 40, rank=0).sent_bytes                # 56, exactly
calc.collective("all_reduce", "ring", 8, 1e9).seconds(5e-6, 1 / 360e9)         # 4.93 ms
calc.model_state_bytes(7.5e9, "zero_paper", zero=1, dp=64)                     # 31.4 GB
calc.num_parameters("llama3-8b").explain()                                     # tensor by tensor
"""

from labkit.calc.bandwidth import algbw, busbw
from labkit.calc.checkpoints import checkpoint_interval, lost_share, mean_time_between_interruptions
from labkit.calc.choice import Choice, choose_algorithm, crossover_bytes
from labkit.calc.compute.flops import flops_per_token, training_flops
from labkit.calc.compute.training_time import mfu, training_days
from labkit.calc.expert_capacity import dropped_choices, expert_capacity
from labkit.calc.hardware.cluster import CLUSTERS, Cluster, Tier, cluster
from labkit.calc.hardware.gpu import GPU, GPUS
from labkit.calc.layout import Layout
from labkit.calc.memory.activations import activation_bytes
from labkit.calc.memory.fit import Change, changes_that_fit, smallest_change
from labkit.calc.memory.footprint import TrainingSetup, footprint, footprints
from labkit.calc.memory.head import head_input_bytes, logits_bytes, loss_gradient_bytes
from labkit.calc.memory.kv_cache import kv_cache_bytes_per_token
from labkit.calc.memory.model_state import model_state_bytes
from labkit.calc.memory.offload import offload_bandwidth, offload_traffic_bytes
from labkit.calc.memory.recipe import RECIPES, Recipe
from labkit.calc.models.config import ModelConfig
from labkit.calc.models.lora import lora_parameters
from labkit.calc.models.parameters import active_parameters, num_parameters
from labkit.calc.models.presets import MODELS
from labkit.calc.outage import lost_gpu_hours
from labkit.calc.pieces import Pieces
from labkit.calc.pipeline.bubble import bubble_fraction, in_flight_microbatches
from labkit.calc.planner import (
    Assumptions,
    Estimate,
    Job,
    LayoutChange,
    Losers,
    Plan,
    Verdict,
    estimate,
    layout_memory,
    layouts,
    plan,
    refusal,
    smallest_layout_change,
    verdict,
)
from labkit.calc.planner import pieces as step_pieces
from labkit.calc.result import Result, amount
from labkit.calc.simulation.disturbance import (
    Disturbance,
    Jitter,
    SlowLink,
    SlowNode,
    Straggler,
)
from labkit.calc.simulation.failing_run import Spares
from labkit.calc.simulation.simulate_step import simulate_step
from labkit.calc.simulation.simulated_step import RankClass, SimulatedStep, StepSpan
from labkit.calc.simulation.weeks import simulate_weeks
from labkit.calc.simulation.weeks_result import SimulatedWeeks
from labkit.calc.slowest import asynchronous_samples_per_s, synchronous_samples_per_s
from labkit.calc.traffic.collective import collective
from labkit.calc.traffic.collective_cost import Collective
from labkit.calc.traffic.combined import combined_traffic_bytes
from labkit.calc.traffic.context import (
    context_score_elements,
    context_shard_tokens,
    context_traffic_bytes,
    ring_attention_messages,
)
from labkit.calc.traffic.expert_traffic import (
    balanced_expert_traffic_bytes,
    expert_parallel_traffic_bytes,
    expert_rows,
    padded_expert_traffic_bytes,
)
from labkit.calc.traffic.pipeline import pipeline_traffic_bytes
from labkit.calc.traffic.segments import segment_numels
from labkit.calc.traffic.step_traffic import step_traffic_bytes, step_traffic_volume
from labkit.calc.traffic.tensor import (
    tensor_parallel_collectives,
    tensor_parallel_traffic_bytes,
    two_layers_traffic_bytes,
)
from labkit.calc.units import (
    GB,
    KB,
    MB,
    TB,
    GiB,
    KiB,
    MiB,
    Quantity,
    TiB,
    bytes_text,
    count_text,
    exact_bytes_text,
    number_text,
    parse_quantity,
    quantity_text,
    seconds_text,
    size_text,
)

__all__ = [
    "algbw",
    "busbw",
    "collective",
    "Collective",
    "Assumptions",
    "CLUSTERS",
    "Change",
    "Choice",
    "Cluster",
    "Estimate",
    "estimate",
    "Disturbance",
    "GB",
    "GPU",
    "GPUS",
    "GiB",
    "Job",
    "Jitter",
    "KB",
    "KiB",
    "Layout",
    "layout_memory",
    "LayoutChange",
    "layouts",
    "Losers",
    "MB",
    "MODELS",
    "MiB",
    "ModelConfig",
    "Pieces",
    "Plan",
    "plan",
    "Quantity",
    "RankClass",
    "RECIPES",
    "Recipe",
    "refusal",
    "Result",
    "smallest_layout_change",
    "step_pieces",
    "SimulatedStep",
    "SimulatedWeeks",
    "SlowLink",
    "SlowNode",
    "Spares",
    "StepSpan",
    "Straggler",
    "TB",
    "Tier",
    "TiB",
    "TrainingSetup",
    "activation_bytes",
    "active_parameters",
    "amount",
    "asynchronous_samples_per_s",
    "balanced_expert_traffic_bytes",
    "bubble_fraction",
    "bytes_text",
    "changes_that_fit",
    "checkpoint_interval",
    "choose_algorithm",
    "cluster",
    "combined_traffic_bytes",
    "context_score_elements",
    "context_shard_tokens",
    "context_traffic_bytes",
    "count_text",
    "crossover_bytes",
    "dropped_choices",
    "exact_bytes_text",
    "expert_capacity",
    "expert_parallel_traffic_bytes",
    "expert_rows",
    "flops_per_token",
    "footprint",
    "footprints",
    "head_input_bytes",
    "in_flight_microbatches",
    "kv_cache_bytes_per_token",
    "logits_bytes",
    "lora_parameters",
    "loss_gradient_bytes",
    "lost_gpu_hours",
    "lost_share",
    "mean_time_between_interruptions",
    "mfu",
    "model_state_bytes",
    "num_parameters",
    "offload_bandwidth",
    "offload_traffic_bytes",
    "number_text",
    "padded_expert_traffic_bytes",
    "parse_quantity",
    "pipeline_traffic_bytes",
    "quantity_text",
    "ring_attention_messages",
    "seconds_text",
    "segment_numels",
    "simulate_step",
    "simulate_weeks",
    "size_text",
    "smallest_change",
    "step_traffic_bytes",
    "step_traffic_volume",
    "synchronous_samples_per_s",
    "tensor_parallel_collectives",
    "tensor_parallel_traffic_bytes",
    "training_days",
    "training_flops",
    "two_layers_traffic_bytes",
    "Verdict",
    "verdict",
]
