"""Wrong counts of what the first rank of a layout holds, and the answers of why_not by them."""

from collections.abc import Callable, Mapping

from labkit.grade.by_theory import Theory
from labkit.grade.graders.layout_parts import PARTS, Asked, of_parts, right

_MASTER_BYTES = 4


def _states(asked: Asked, **shards: int) -> dict[str, float]:
    """With states over other numbers of ranks."""
    return asked.parts | {name: each / shards.get(name, 1) for name, each in asked.whole.items()}


def _all(asked: Asked, shards: int) -> dict[str, float]:
    return _states(asked, parameters=shards, gradients=shards, optimizer=shards)


def _without_master(asked: Asked) -> dict[str, float]:
    kept = 1 - _MASTER_BYTES / asked.task.job.kept.optimizer_bytes
    return asked.parts | {"optimizer": kept * asked.parts["optimizer"]}


def _with_activations(asked: Asked, factor: float) -> dict[str, float]:
    return asked.parts | {"activations": factor * asked.parts["activations"]}


def _with_zero(asked: Asked, zero: int) -> dict[str, float]:
    dp = asked.layout.dp
    over = {name: dp if zero >= 3 - place else 1 for place, name in enumerate(PARTS[:3])}
    return _states(asked, **over)


def _scaled(asked: Asked, factor: float) -> dict[str, float]:
    states = {name: factor * asked.parts[name] for name in PARTS[:3]}
    return asked.parts | states


def _with_params(asked: Asked, number: float) -> dict[str, float]:
    """With another number of parameters on the GPU."""
    return _scaled(asked, number / asked.task.own_params(asked.layout))


def _layers_of_first(asked: Asked) -> float:
    task, layout = asked.task.as_dict, asked.layout
    return float(task["layers"] * task["layer_params"] / (layout.pp * layout.tp))


def _of_model(asked: Asked) -> int:
    return int(asked.task.as_dict["num_params"])


def _num_microbatches(asked: Asked) -> int:
    return asked.layout.num_microbatches(asked.task.job.global_batch)


_DP_IS_NO_ZERO = (
    "dp makes copies: each of its ranks has the same N parameters. Only ZeRO shards over dp, the "
    "optimizer from 1 on, gradients from 2, parameters with 3"
)
COUNTS: tuple[tuple[str, str, Callable[[Asked], Mapping[str, float]]], ...] = (
    ("takes data parallelism for sharding", _DP_IS_NO_ZERO, lambda a: _all(a, a.layout.dp)),
    ("ignores ZeRO", _DP_IS_NO_ZERO, lambda a: a.parts | a.whole),
    (
        "counts the whole model on each GPU",
        "tp and pp cut parameters: a GPU has a tp-th of what its stage has",
        lambda a: _with_params(a, _of_model(a)),
    ),
    (
        "forgets that the pipeline cuts the states",
        "each rank of a pipeline has a pp-th of the layers",
        lambda a: _with_params(a, _of_model(a) / a.layout.tp),
    ),
    (
        "spreads the embedding over the pipeline",
        "num_params / (tp pp) is a mean. The first rank has the embedding, the last the head or a "
        "copy of the embedding, each as much as a layer or several; those between have layers only",
        lambda a: _with_params(a, _of_model(a) / (a.layout.tp * a.layout.pp)),
    ),
    (
        "forgets the embedding",
        "the first rank has its layers and the embedding",
        lambda a: _with_params(a, _layers_of_first(a)),
    ),
    (
        "forgets that tp cuts the states",
        "each rank of a tensor-parallel group has a tp-th of each matrix",
        lambda a: _scaled(a, a.layout.tp),
    ),
    (
        "shards one level too much",
        "zero 1 shards the optimizer's bytes, 2 gradients as well, 3 parameters as well",
        lambda a: _with_zero(a, a.layout.zero + 1 if a.layout.zero else 0),
    ),
    (
        "shards one level too little",
        "zero 1 shards the optimizer's bytes, 2 gradients as well, 3 parameters as well",
        lambda a: _with_zero(a, max(a.layout.zero - 1, 0)),
    ),
    (
        "forgets the master copy",
        "the optimizer's bytes are a float32 master copy and two moments, 12 for each parameter; "
        "optimizer_bytes has them all",
        _without_master,
    ),
    (
        "counts no optimizer",
        "the optimizer's bytes are a part like the others",
        lambda a: a.parts | {"optimizer": 0.0},
    ),
    (
        "counts no activations",
        "activations are a part like the others",
        lambda a: a.parts | {"activations": 0.0},
    ),
    (
        "ignores tp in activations",
        "with sequence parallelism all that a layer keeps is cut by tp",
        lambda a: _with_activations(a, a.layout.tp),
    ),
    (
        "counts activations of one microbatch",
        "the first rank has pp microbatches in flight, interleaved pp + (pp - 1) / virtual, at "
        "most m",
        lambda a: _with_activations(a, 1 / a.rank.num_in_flight),
    ),
    (
        "counts activations of all layers",
        "a rank keeps activations of its own layers, layers / pp, for each microbatch in flight",
        lambda a: _with_activations(a, a.layout.pp),
    ),
    (
        "keeps all microbatches",
        "that is GPipe. With 1F1B no more than pp of them are in flight: backward of the first "
        "comes as soon as it can",
        lambda a: _with_activations(a, _num_microbatches(a) / a.rank.num_in_flight),
    ),
)


THEORIES: tuple[Theory[Asked], ...] = (
    *(
        Theory(name, why, lambda asked, parts=parts: of_parts(parts(asked)))  # type: ignore[misc]
        for name, why, parts in COUNTS
    ),
    Theory(
        "counts the optimizer among them",
        "asked are the bytes of parameters and gradients alone: what no choice of ZeRO 1 changes",
        lambda a: (right(a)[0], sum(a.parts[name] for name in PARTS[:3])),
    ),
    Theory(
        "counts parameters alone",
        "asked are parameters and gradients together",
        lambda a: (right(a)[0], a.parts["parameters"]),
    ),
    Theory(
        "gives gigabytes",
        "the contract is bytes",
        lambda a: (right(a)[0], right(a)[1] / 1e9),
    ),
)
