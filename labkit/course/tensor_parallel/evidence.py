"""Short runs behind the cards on tensor and sequence parallelism: four ranks, one layer.

Each function returns one number that ranks have counted. Rank 0 is the one that is asked: all
ranks send alike here.
"""

from __future__ import annotations

from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit import Group
from labkit.comm.operation import Operation
from labkit.interview.real_run import real_run, run
from labkit.launch.run_result import Run
from labkit.memory import Meter
from labkit.model import GPT, MLP, Block, GPTConfig
from labkit.tensor_parallel import (
    LIBRARY,
    RING,
    CollectiveBackend,
    ColumnLinear,
    ParallelMLP,
    Replicated,
    RowLinear,
    SequenceSharded,
    gather_features,
    leave_parallel_region,
    share_features,
    vocab_cross_entropy,
)
from labkit.tensor_parallel.activation_layout import ActivationLayout
from labkit.tensor_parallel.gpt_tp import ParallelBlock

_RANKS = 4
_CONFIG = GPTConfig(num_layers=1, hidden=64, num_heads=8, num_kv_heads=4)
_TOKENS = 64


@real_run
def all_reduces_of_a_block(phase: str) -> int:
    """Return all-reduces that a rank calls in one tensor-parallel block, "forward" or
    "backward"."""
    block = run(partial(_one_block, sequence_parallel=False, backend=LIBRARY), _RANKS)
    return sum(each.kind == "all_reduce" for each in _of_phase(block, phase))


@real_run
def sequence_parallel_bytes_ratio(phase: str) -> float:
    """Bytes that a rank sends in a phase of a block, sequence-sharded over replicated."""
    with_shards, without = (_sent(_block(shards), phase) for shards in (True, False))
    return with_shards / without


@real_run
def kept_share_of_a_block(sequence_parallel: bool) -> float:
    """Activations that one of four ranks keeps of a block, over what one rank alone keeps."""
    return max(_block(sequence_parallel).values) / max(_block(sequence_parallel, 1).values)


@real_run
def row_first_bytes_ratio(gated: bool = False) -> float:
    """Bytes of an MLP cut row-then-column, over those of column-then-row.

    4 D features inside; gated: 3.5 D of gate and of up each, as Llama 3's, and SwiGLU.
    """
    row_first, column_first = (
        run(partial(_mlp, row_first=order, gated=gated), _RANKS).traffic[0]
        for order in (True, False)
    )
    return row_first.sent_bytes / column_first.sent_bytes


@real_run
def loss_payload_bytes_per_token() -> float:
    """Bytes that a rank passes to all-reduces for one token of a vocabulary-parallel loss."""
    result = run(_split_loss, _RANKS)
    return sum(each.payload_bytes for each in _of_phase(result, "loss")) / _TOKENS


@real_run
def gradient_without_f() -> float:
    """Norm of x's gradient on rank 0 where f is left out, over the right one."""
    return run(_without_f, _RANKS).values[0]


def _of_phase(result: Run, phase: str) -> list[Operation]:
    """Return the operations that rank 0 posted in its region of this name."""
    return result.timeline[0].within(phase)


def _sent(result: Run, phase: str) -> int:
    return sum(each.sent_bytes for each in _of_phase(result, phase))


@cache
def _block(sequence_parallel: bool, num_ranks: int = _RANKS) -> Run:
    return run(partial(_one_block, sequence_parallel=sequence_parallel), num_ranks)


def _one_block(world: Group, sequence_parallel: bool, backend: CollectiveBackend = RING) -> int:
    torch.manual_seed(0)
    whole = GPT(_CONFIG).blocks[0]
    assert isinstance(whole, Block)
    block = ParallelBlock(whole, world)
    norms = block.attention_norm.weight, block.mlp_norm.weight
    x_BTD = torch.randn(2, _TOKENS, _CONFIG.hidden)
    layout: ActivationLayout = Replicated(world, backend)
    if sequence_parallel:
        layout = shards = SequenceSharded(world, 2, _TOKENS, backend)
        x_BTD = x_BTD.flatten(0, 1)[shards.rows.start : shards.rows.stop].clone()
    x_BTD.requires_grad_()
    world.barrier()
    with Meter(block) as meter:
        with world.region("forward"):
            y_BTD = block(x_BTD, *norms, layout)
        kept: int = meter.usage.at_end["activations"]
        with world.region("backward"):
            y_BTD.sum().backward()
    return kept


def _mlp(world: Group, row_first: bool, gated: bool) -> None:
    torch.manual_seed(0)
    D = 64
    FFN = D * 7 // 2 if gated else 4 * D
    x = torch.randn(2, _TOKENS, D, requires_grad=True)
    ups = [nn.Linear(D, FFN, bias=False) for _ in range(1 + gated)]
    down = nn.Linear(FFN, D, bias=False)
    if row_first:
        own = share_features(x, world)
        y = _activated([RowLinear(up, world)(own) for up in ups])
        z = gather_features(ColumnLinear(down, world)(y), D, world)
    else:
        # One column layer of all features: the input's gradient is one sum.
        whole = nn.Linear(D, FFN * len(ups), bias=False)
        y = ColumnLinear(whole, world)(x)
        z = RowLinear(down, world)(_activated(list(y.chunk(len(ups), dim=-1))))
    z.sum().backward()


def _activated(ups: list[Tensor]) -> Tensor:
    return F.gelu(ups[0]) if len(ups) == 1 else F.silu(ups[0]) * ups[1]


def _without_f(world: Group) -> float:
    torch.manual_seed(0)
    mlp = ParallelMLP(MLP(_CONFIG), world)
    x = torch.randn(2, 8, _CONFIG.hidden)
    right, wrong = x.clone().requires_grad_(), x.clone().requires_grad_()
    mlp(right).sum().backward()
    y = F.gelu(F.linear(wrong, mlp.up.weight))  # no f: backward sums nothing
    leave_parallel_region(F.linear(y, mlp.down.weight), Replicated(world)).sum().backward()
    assert right.grad is not None and wrong.grad is not None
    return (wrong.grad.norm() / right.grad.norm()).item()


def _split_loss(world: Group) -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(_TOKENS, 1000), torch.randint(1000, (_TOKENS,))
    mine = logits.tensor_split(world.size, 1)[world.rank].clone().requires_grad_()
    with world.region("loss"):
        vocab_cross_entropy(mine, targets, 1000, world).backward()
