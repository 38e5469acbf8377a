"""Bytes of one GPU while it trains: model states, activations, logits, short-lived tensors.

    states        (K_p + K_g + K_o) N / (t p), sharded over d c as zero says        model_state.py
    activations   L/p layers, of each microbatch in flight: p on the first stage,
                  1 on the last, more where stages are virtual, fewer where there
                  are fewer microbatches                                            activations.py
    recomputed    the rest of one layer, while backward goes through it             activations.py
    whole units   zero 2 and 3: before they are reduced, or while gathered          here
    casts         16-bit copies, where the recipe keeps float32 parameters          model_state.py
    head inputs   of the last norm and the head, on the last stage                  loss.py
    logits        and the loss, and as backward begins their gradients: on the
                  last stage                                                        loss.py
    by torch      gathered gradients, stage buffers, where asked for                torch_buffers.py

c ranks of context parallelism shard the tokens, and the states like d ranks of data parallelism.
t ranks of tensor parallelism shard every parameter, and p stages of a pipeline have equally many:
N/(t p) on every GPU. That is a convention: embeddings make the first and the last stage larger, and
norms are not sharded. Parts that are largest at different moments are added. Not in it: CUDA's own
memory, the communication library's buffers, workspaces, and what fragmentation leaves unusable.

ZeRO holds shards, and whole units only for a moment. The most that one rank has of whole units,
with K_p bytes of a parameter in computing and K_g of a gradient, by recipe:

    zero 2    K_g max(layer, table)                      a gradient, before it is reduced
    zero 3    (K_p + K_g) root + 2 (K_p + K_g) layer     the root unit, and two layers in turn
    kept      K_p N/(t p), with a pipeline (K_p + K_g)   zero 3 without reshard_after_forward

A layer is an attention, an MLP and two norms. The root unit belongs to no layer: embedding and
positions on the first stage, last norm and head on the last; on one stage a tied head is the
embedding, and counts once. Zero 3 gathers it for a whole pass, gathers the next layer while one
computes, and reduces the gradient of one while the next one is computed. This is an upper bound:
not all of it is there at once. Tensor parallelism divides all of it by t.

Wire: nothing. Papers: Rajbhandari et al., arXiv:1910.02054; Korthikanti et al., arXiv:2205.05198;
Narayanan et al., arXiv:2104.04473, for what 1F1B keeps in flight; Zhao et al., "PyTorch FSDP",
arXiv:2304.11277, section 3.2.1, for units.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from labkit import arguments
from labkit.calc.bubble import in_flight_microbatches
from labkit.calc.layout import check_shards, keeps_units
from labkit.calc.memory.activations import activation_bytes
from labkit.calc.memory.loss import head_parts
from labkit.calc.memory.model_state import Recipe, model_state_bytes, recipe_of
from labkit.calc.memory.torch_buffers import gathered_gradient_bytes, stage_buffer_bytes
from labkit.calc.models import ModelConfig, model
from labkit.calc.parameters import (
    end_parameters,
    layer_parameters,
    lora_parameters,
    num_parameters,
)
from labkit.calc.result import Result, total
from labkit.calc.traffic.cost import chunk_numels
from labkit.calc.units import number_text

_MAY_BE_NONE = ("sequence", "num_microbatches")


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """A dense model, its training, and the number of GPUs along each axis.

    ValueError for counts that are not whole, and for stages without a layer. Other errors come
    when the footprint is calculated.
    """

    model: ModelConfig | str
    recipe: Recipe | str = "zero_paper"
    zero: int = 0
    dp: int = 1
    tp: int = 1
    pp: int = 1
    microbatch: int = 1
    """Sequences in one microbatch; a pipeline gets at least as many microbatches as stages."""
    sequence: int | None = None
    """Tokens of each; None: the model's context."""
    recompute: str = "none"
    recompute_every: int = 1
    """One layer in this many of a stage recomputes; the others keep all."""
    flash: bool = True
    sequence_parallel: bool = False
    cp: int = 1
    virtual: int = 1
    """Stages that each rank of the pipeline holds; more than 1: interleaved."""
    num_microbatches: int | None = None
    """Microbatches of a rank in a step; None: enough to fill the pipeline."""
    loss: str = "unfused"
    """As `logits_bytes` has it."""
    reshard_after_forward: bool | None = None
    """zero 3 releases units after forward and gathers them again. False: a rank holds all
    parameters from forward to backward, and, with a pipeline, all gradients until the step's last
    microbatch. None: as torchtitan does, True without a pipeline and False with one."""
    shards: int | None = None
    """Ranks that share the states; None: all of dp * cp. Fewer: they have as many copies (HSDP)."""
    offload: tuple[str, ...] = ()
    """States that the host holds: some of model_state.KINDS. See `host_state_bytes`."""
    frozen_bytes: float | None = None
    """Bytes of a frozen weight, beside which adapters are trained: 2, 1, or 0.5 for 4 bits."""
    adapter_rank: int = 0
    adapter_targets: tuple[str, ...] = ("query", "value")
    fused: bool = False
    """True if the gated MLP is fused, as in `activation_bytes`."""
    gathered_inputs: bool = False
    """True if inputs that sequence parallelism gathers are kept whole, as torch's DTensor does."""
    stage_buffers: bool = False
    """True if stages have buffers for every microbatch, as torch.distributed.pipelining has."""

    def __post_init__(self) -> None:
        for name in (
            *("dp", "tp", "pp", "cp", "virtual", "microbatch", "recompute_every"),
            *("sequence", "num_microbatches"),
        ):
            if (count := getattr(self, name)) is not None or name not in _MAY_BE_NONE:
                object.__setattr__(self, name, arguments.counted(name, count))
        if self.pp > self.config.layers:
            raise ValueError(
                f"pp={self.pp} stages for {self.config.layers} layers: some would have none; give "
                f"{self.config.layers} or fewer"
            )
        check_shards(self.shards, self.dp, self.cp)
        if (self.frozen_bytes is None) != (self.adapter_rank == 0):
            raise ValueError(
                f"frozen_bytes={self.frozen_bytes} with adapter_rank={self.adapter_rank}: adapters "
                "are trained beside frozen weights; give both or none"
            )

    @property
    def keeps_units(self) -> bool:
        """Return whether zero 3 holds gathered parameters from forward to backward."""
        return keeps_units(self.zero, self.pp, self.reshard_after_forward)

    @property
    def num_shards(self) -> int:
        """Ranks that share the states."""
        return self.shards or self.dp * self.cp

    @property
    def config(self) -> ModelConfig:
        """The model's configuration."""
        return model(self.model)

    @property
    def num_gpus(self) -> int:
        """Number of GPUs: d t p c."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def itemsize(self) -> int:
        """Bytes of one number of an activation, by the recipe. ValueError if not whole."""
        return recipe_of(self.recipe).activation_itemsize


def footprint(setup: TrainingSetup, stage: int | None = None) -> Result:
    """Return the bytes of one GPU, by part. stage: of the pipeline; None: the fullest one.

    footprint(TrainingSetup(model="llama2-7b", recompute="full"))["moments"]    53.9 GB
    ValueError for models without a formula, such as those with experts, for uneven shards, and for
    more tokens than learned positions; TypeError for anything but a TrainingSetup.
    """
    check_setup(setup)
    if stage is None:
        return max(footprints(setup))
    stage = arguments.rank("stage", stage, setup.pp)
    parts = {
        **_states(setup),
        **_passing(setup, stage),
        **_of_microbatches(setup, stage),
    }
    return total(
        f"one GPU of {setup.num_gpus:,}, stage {stage} of {setup.pp}",
        parts,
        formula="states N/(t p) + activations of L/p layers * in flight + what passes through",
        convention=f"N/(t p) parameters on every GPU; 1F1B; {_activations_text(setup)} without "
        f"dropout; {setup.loss} loss; parts that peak at different moments are added; without "
        "CUDA's own memory, communication buffers and fragmentation",
        source="arXiv:1910.02054, arXiv:2205.05198, arXiv:2104.04473",
    )


def footprints(setup: TrainingSetup) -> list[Result]:
    """Return a footprint for each stage of the pipeline; errors as in `footprint`."""
    check_setup(setup)
    return [footprint(setup, stage) for stage in range(setup.pp)]


def _activations_text(setup: TrainingSetup) -> str:
    """Say the bytes of an activation, and why, if the recipe computes in another size."""
    recipe = recipe_of(setup.recipe)
    text, computed = f"{setup.itemsize} B activations", recipe.cast_bytes or recipe.parameter_bytes
    if recipe.activation_bytes is not None:
        return f"{text}, as the recipe says,"
    if setup.itemsize == computed:
        return text
    return f"{text}, the least here, though it computes with {number_text(computed)} B,"


def check_setup(setup: object) -> None:
    """Raise TypeError unless it is a TrainingSetup: a model's name alone is not enough."""
    if not isinstance(setup, TrainingSetup):
        raise TypeError(f"setup={setup!r:.60}: give a TrainingSetup(model=...)")


def _states(setup: TrainingSetup) -> dict[str, Result]:
    num, trained = _held(setup), _held(setup)
    if setup.frozen_bytes is not None:
        adapters = lora_parameters(setup.config, setup.adapter_rank, setup.adapter_targets)
        trained = -(-int(adapters) // (setup.tp * setup.pp))
    states = model_state_bytes(
        trained,
        setup.recipe,
        setup.zero,
        setup.num_shards,
        offload=setup.offload,
        tables=min(trained, _tables(setup)),
    )
    parts = dict(states.parts)
    if setup.frozen_bytes is not None:
        ranks = setup.num_shards if setup.zero == 3 else 1
        how = f"{number_text(setup.frozen_bytes)} B * {num:,}" + f" / {ranks}" * (ranks > 1)
        parts["frozen weights"] = _bytes("frozen weights", setup.frozen_bytes * num / ranks, how)
        return parts
    cast_bytes = recipe_of(setup.recipe).cast_bytes
    if cast_bytes and setup.zero < 3:  # zero 3 casts shards, and gathers unit by unit
        parts["casts"] = _bytes("casts", cast_bytes * num, f"{number_text(cast_bytes)} B * {num:,}")
    return parts


def _held(setup: TrainingSetup) -> int:
    """Return the parameters of one GPU, before zero shards them."""
    return -(-int(num_parameters(setup.config)) // (setup.tp * setup.pp))


def _tables(setup: TrainingSetup) -> int:
    """Return the GPU's share of embeddings, head and norms."""
    counted = num_parameters(setup.config)
    tables = sum(int(counted.parts.get(name, 0)) for name in ("embedding", "head", "norms"))
    return -(-tables // (setup.tp * setup.pp))


def _passing(setup: TrainingSetup, stage: int) -> dict[str, Result]:
    """Return the units that are whole for a moment while the others are shards."""
    parts, recipe, config = {}, recipe_of(setup.recipe), setup.config
    if setup.frozen_bytes is not None:
        recipe = replace(recipe, parameter_bytes=setup.frozen_bytes, gradient_bytes=0, cast_bytes=0)
        if setup.frozen_bytes < setup.itemsize:  # one matrix at a time, to be multiplied
            matrix = config.hidden * config.mlp_features // setup.tp
            how = f"{setup.itemsize} B * {matrix:,}"
            parts["dequantized matrix"] = _bytes("dequantized matrix", setup.itemsize * matrix, how)
    if setup.num_shards == 1 or setup.zero < 2:
        return parts
    if setup.keeps_units:
        return parts | {"whole units": kept_unit_bytes(recipe, _held(setup), setup.pp)}
    units = whole_unit_bytes(config, recipe, setup.zero, setup.tp, setup.pp, stage)
    return parts | {"whole units": units}


def _of_microbatches(setup: TrainingSetup, stage: int) -> dict[str, Result]:
    layers = chunk_numels(setup.config.layers, setup.pp)[stage]
    in_flight = _in_flight(setup, stage)
    kept, whole = (_activations(setup, each) for each in (setup.recompute, "none"))
    num = layers // setup.recompute_every
    parts = layers_bytes(in_flight, [(num, kept), (layers - num, whole)])
    if (again := float(whole) - float(kept)) and num:
        parts["recomputed layer"] = _bytes("recomputed layer", again, "1 layer: all - what is kept")
    sizes = (setup.config, setup.microbatch, setup.tp, setup.sequence_parallel, setup.cp)
    how: dict[str, Any] = {"sequence": setup.sequence, "itemsize": setup.itemsize}
    if setup.gathered_inputs:
        parts |= gathered_gradient_bytes(*sizes, **how)
    if setup.stage_buffers:
        pipe = (setup.pp, setup.virtual, _num_microbatches(setup), in_flight, stage)
        parts |= stage_buffer_bytes(*sizes, *pipe, **how, loss=setup.loss)
    if stage < setup.pp - 1:
        return parts
    return parts | head_parts(*sizes, **how, loss=setup.loss)


def _in_flight(setup: TrainingSetup, stage: int) -> float:
    """Return the microbatches in flight, in all layers of a rank: a virtual stage counts 1/v."""
    p, v = setup.pp, setup.virtual
    schedule = "interleaved" if v > 1 else "1f1b"
    return in_flight_microbatches(p, _num_microbatches(setup), schedule, v)[stage] / v


def _num_microbatches(setup: TrainingSetup) -> int:
    return setup.num_microbatches or setup.pp * (2 if setup.virtual > 1 else 1)


def _activations(setup: TrainingSetup, recompute: str) -> Result:
    """Return what one layer keeps of a microbatch."""
    return activation_bytes(
        replace(setup.config, layers=1),
        setup.microbatch,
        setup.tp,
        setup.sequence_parallel,
        setup.cp,
        recompute=recompute,
        flash=setup.flash,
        sequence=setup.sequence,
        itemsize=setup.itemsize,
        dropout=False,
        fused=setup.fused,
        gathered_inputs=setup.gathered_inputs,
    )


def _bytes(name: str, nbytes: float, how: str) -> Result:
    return Result(nbytes, "bytes", name, substitution=how)


def layers_bytes(in_flight: float, kept: Iterable[tuple[int, float | Result]]) -> dict[str, Result]:
    """Return the activations of layers, from (layers, bytes of one for one microbatch)."""
    counted = [(num, float(each)) for num, each in kept if num]
    nbytes = in_flight * sum(num * each for num, each in counted)
    layers = " + ".join(f"{num} layers * {Result(each, 'bytes')}" for num, each in counted) or "0"
    how = f"{number_text(in_flight)} in flight * ({layers})"
    return {"activations": _bytes("activations", nbytes, how)}


def kept_unit_bytes(recipe: Recipe, num: int, pp: int) -> Result:
    """Return the bytes of num parameters that stay gathered, with gradients in a pipeline."""
    gradients = recipe.gradient_bytes if pp > 1 else 0
    size = (recipe.cast_bytes or recipe.parameter_bytes) + gradients
    return _bytes("whole units", size * num, f"{number_text(size)} B * {num:,}")


def whole_unit_bytes(
    config: ModelConfig, recipe: Recipe, zero: int, tp: int, pp: int, stage: int
) -> Result:
    """Return the bytes of whole units on one rank of a stage; 0 for ZeRO levels below 2.

    zero: the level. tp, pp: ranks that cut every parameter, and stages. stage: from 0.
    """
    layer = -(-layer_parameters(config) // tp)
    gathered = recipe.cast_bytes or recipe.parameter_bytes
    if zero == 3:
        rest = -(-end_parameters(config, stage == 0, stage == pp - 1) // tp)
        size = gathered + recipe.gradient_bytes
        num_layers = min(2, chunk_numels(config.layers, pp)[stage])
        number = rest + num_layers * layer
        how = f"{number_text(size)} B * ({rest:,} + {num_layers} * {layer:,})"
        return Result(size * number, "bytes", "whole units", substitution=how)
    size = recipe.gradient_bytes if zero == 2 else 0
    has_table = stage in (0, pp - 1)
    unit = max(layer, -(-config.vocab * config.hidden // tp) if has_table else 0)
    return Result(
        size * unit, "bytes", "whole units", substitution=f"{number_text(size)} B * {unit:,}"
    )
