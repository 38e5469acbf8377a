"""Bytes that torch's own tensor and pipeline parallelism hold beside what others hold.

gathered_inputs is torch's DTensor with sequence parallelism. Autograd saves the gathered input of
linear layers, whole, and not the rank's shard: activations.py. In backward, products that share an
input, such as gate and up, each make a whole gradient of it. Two of them are added, then scattered:

    gathered gradients     2 b D T          b bytes of T tokens with D features

stage_buffers is torch.distributed.pipelining. For m microbatches, of which n are in flight, with A
bytes of one that goes from stage to stage, A = b D T, or / t with sequence parallelism:

    received, forward      A (m - n)        a buffer for each; those in flight are activations
    received, backward     A m              gradients; not on the last stage
    sent                   A n              outputs, until their backward; not on the last stage
    to be returned         b V T m / t      logits of every microbatch, on the last stage

Stages of one rank add up. The loss has counted the logits of one microbatch, unless it frees them.

Sources: torch 2.13, distributed/tensor/parallel/style.py, PrepareModuleInput; distributed/
pipelining/stage.py, forward_one_chunk and _setup_forward_recv_info.
"""

from __future__ import annotations

from labkit.calc.memory.activations import tokens_of_a_rank
from labkit.calc.memory.loss import LOSSES
from labkit.calc.models import ModelConfig
from labkit.calc.result import Result


def gathered_gradient_bytes(
    config: ModelConfig,
    microbatch: int,
    tp: int,
    sequence_parallel: bool,
    cp: int,
    *,
    sequence: int | None,
    itemsize: int,
) -> dict[str, Result]:
    """Return the whole gradients of an input that ranks of tp gathered; {} if they gather none."""
    if tp == 1 or not sequence_parallel:
        return {}
    tokens = tokens_of_a_rank(config, sequence, microbatch, cp, tp)
    nbytes = 2 * tokens * config.hidden * itemsize
    how = f"2 * {tokens:,} tokens * {config.hidden:,} * {itemsize} B"
    name = "gathered gradients"
    return {name: Result(nbytes, "bytes", name, substitution=how)}


def stage_buffer_bytes(
    config: ModelConfig,
    microbatch: int,
    tp: int,
    sequence_parallel: bool,
    cp: int,
    pp: int,
    virtual: int,
    num: int,
    in_flight: float,
    rank: int,
    *,
    sequence: int | None,
    itemsize: int,
    loss: str,
) -> dict[str, Result]:
    """Return the buffers of a rank's stages; {} without a pipeline.

    num: microbatches of a step. in_flight: of them, in all of the rank's layers, where one of v
    virtual stages counts 1/v.
    """
    if pp == 1:
        return {}
    flying, is_last = round(in_flight * virtual), rank == pp - 1
    in_first = min(num, flying) if rank == 0 else 0  # the first stage receives nothing
    received = (virtual - (rank == 0)) * num - (flying - in_first)
    buffers = received + (virtual - is_last) * num + (flying - is_last)
    whole = tp if sequence_parallel else 1
    tokens = tokens_of_a_rank(config, sequence, microbatch, cp, whole)
    nbytes = buffers * tokens * config.hidden * itemsize / whole
    how = f"{buffers} * {tokens:,} tokens * {config.hidden:,} * {itemsize} B"
    how += f" / {whole}" if whole > 1 else ""
    if is_last and loss != "chunked":  # in chunks there are never whole logits
        kept = num - ("logits" in LOSSES[loss].kept)
        nbytes += kept * tokens * -(-config.vocab // tp) * itemsize
        how += f" + {kept} * {tokens:,} tokens * {config.vocab:,} * {itemsize} B"
        how += f" / {tp}" if tp > 1 else ""
    return {"stage buffers": Result(nbytes, "bytes", "stage buffers", substitution=how)}
