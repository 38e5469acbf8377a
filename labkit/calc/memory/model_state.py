"""Model states of one rank: parameters, gradients and optimizer states, by recipe and ZeRO level.

    zero 0   (K_p + K_g + K_o) N            every rank holds all
    zero 1   (K_p + K_g) N + K_o N/d        optimizer states sharded over d ranks
    zero 2   K_p N + (K_g + K_o) N/d        gradients too
    zero 3   (K_p + K_g + K_o) N/d          parameters too

N parameters, K bytes each by kind. Not included: activations, units that zero 3 has gathered
(footprint.py), buckets, casts. A recipe lists the copies that training holds of each parameter, in
bytes:

                    parameter  gradient  master  moments      B per parameter, sharded over d
    zero_paper          2          2        4     4 + 4       16      2 + 2 + 12/d
    megatron_bf16       2          4        4     4 + 4       18      6 + 12/d
    amp                 4          4        -     4 + 4       16      8 + 8/d, and 2 in a step
    fp32                4          4        -     4 + 4       16      8 + 8/d
    pure_bf16           2          2        -     2 + 2        8      4 + 4/d
    adam_8bit           2          2        -     1 + 1        6.03   4 + 2.03/d
    muon                2          4        4     4           14      6 + 8/d    tables 4 + 4
    sgd                 4          4        -     4           12      8 + 4/d
    sgd_plain           4          4        -     -            8      8

Master copy and moments are optimizer states: zero 1 shards them, zero 2 gradients too, zero 3 all.

Traffic of a step when optimizer states are kept elsewhere. K_o = K_master + K_m; the bandwidth that
hides it depends on the seconds of a step:

    to="cpu"     gradient down, updated parameter up     (K_g + K_p) N/d    states never move
                 down after each of k microbatches       (k K_g + K_p) N/d  and added up there
    to="disk"    masters and moments read, and written   2 K_o N/d          as in ZeRO-Infinity
                 moments alone: masters_stay=True        2 K_m N/d          as labkit.zero.on_disk

Sources: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models",
arXiv:1910.02054, section 3.1, figure 1 and table 1; Megatron-LM's docs/dist_optimizer.md for
megatron_bf16 and fp32; Dettmers et al., "8-bit optimizers via block-wise quantization",
arXiv:2110.02861; torch.amp keeps float32 parameters and casts them as they are used; Ren et al.,
"ZeRO-Offload", arXiv:2101.06840, section 3; Rajbhandari et al., "ZeRO-Infinity", arXiv:2104.07857,
section 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

from labkit import arguments
from labkit.calc.result import Result, number_of, total
from labkit.calc.units import number_text

_LEAST_ACTIVATION_BYTES = 2


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Bytes per parameter of each copy that lives from step to step, and of casts within one."""

    name: str
    parameter_bytes: float
    gradient_bytes: float
    master_bytes: float = 0
    """Bytes of a copy in higher precision, which the optimizer updates."""
    moment_bytes: tuple[float, ...] = ()
    """Bytes of each of the optimizer's own values: two values for Adam, one for momentum."""
    table_moment_bytes: tuple[float, ...] | None = None
    """Moments of embeddings, head and norms, if these have another optimizer: AdamW beside Muon."""
    cast_bytes: float = 0
    """Bytes of copies that live within a step only, such as those that autocast keeps until
    backward."""
    activation_bytes: int | None = None
    """Bytes of one number of an activation.

    None: those of the casts or parameters it is computed with, but at least 2, because matrices in
    8 bits alone do not halve the activations.
    """

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name.endswith("moment_bytes"):
                if not isinstance(value, tuple) and (each.name == "moment_bytes" or value):
                    raise TypeError(f"{each.name}={value!r}: give a tuple, such as (4, 4)")
                for moment in value or ():
                    arguments.number(each.name, moment, "0 or more", least=0)
            elif each.name == "activation_bytes":
                if value is not None:
                    arguments.counted(each.name, value)
            elif each.name != "name":
                arguments.number(each.name, value, "0 or more", least=0)

    @property
    def optimizer_bytes(self) -> float:
        """Master copy and moments: K in the ZeRO paper, 12 for mixed precision and Adam."""
        return self.master_bytes + sum(self.moment_bytes)

    @property
    def activation_itemsize(self) -> int:
        """Bytes of one number of an activation. ValueError if that would not be whole."""
        if self.activation_bytes is not None:
            return int(self.activation_bytes)
        name = "cast_bytes" if self.cast_bytes else "parameter_bytes"
        size = getattr(self, name)
        if size != int(size):
            raise ValueError(
                f"recipe {self.name!r} has {name}={size!r}, and numbers of an activation have "
                "whole bytes: give the recipe an activation_bytes, such as 2"
            )
        return max(int(size), _LEAST_ACTIVATION_BYTES)

    @property
    def bytes_per_parameter(self) -> float:
        """Return the bytes of everything that lives from step to step, on one rank alone."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes


# In bitsandbytes, each block of 256 values of 8-bit states has its own float32 scale. (The
# paper has blocks of 2048.)
_QUANTIZED = 1 + 4 / 256

RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (
            Recipe(
                name="zero_paper",
                parameter_bytes=2,
                gradient_bytes=2,
                master_bytes=4,
                moment_bytes=(4, 4),
            ),
            Recipe(
                name="megatron_bf16",
                parameter_bytes=2,
                gradient_bytes=4,
                master_bytes=4,
                moment_bytes=(4, 4),
            ),
            Recipe(
                name="amp",
                parameter_bytes=4,
                gradient_bytes=4,
                moment_bytes=(4, 4),
                cast_bytes=2,
            ),
            Recipe(name="fp32", parameter_bytes=4, gradient_bytes=4, moment_bytes=(4, 4)),
            Recipe(name="pure_bf16", parameter_bytes=2, gradient_bytes=2, moment_bytes=(2, 2)),
            Recipe(
                name="adam_8bit",
                parameter_bytes=2,
                gradient_bytes=2,
                moment_bytes=(_QUANTIZED, _QUANTIZED),
            ),
            Recipe(
                name="muon",
                parameter_bytes=2,
                gradient_bytes=4,
                master_bytes=4,
                moment_bytes=(4,),
                table_moment_bytes=(4, 4),
            ),
            Recipe(name="sgd", parameter_bytes=4, gradient_bytes=4, moment_bytes=(4,)),
            Recipe(name="sgd_plain", parameter_bytes=4, gradient_bytes=4),
        )
    }
)
"""By name, as in the table above."""


def recipe_of(recipe: Recipe | str) -> Recipe:
    """Return a recipe, given itself or by its name in RECIPES. ValueError lists them."""
    return arguments.named(recipe, Recipe, RECIPES)


# The first level that shards a kind.
KINDS = ("parameters", "gradients", "master", "moments")
_SHARDED_FROM = {"parameters": 3, "gradients": 2, "master": 1, "moments": 1}
_LEVELS = (0, 1, 2, 3)


def model_state_bytes(
    num_params: float | Result,
    recipe: Recipe | str,
    zero: int = 0,
    dp: int = 1,
    *,
    offload: Iterable[str] = (),
    tables: float | Result = 0,
) -> Result:
    """Return the bytes of one rank, by part: parameters, gradients, master, moments.

    num_params: of the model, or of this rank's share of it under tensor and pipeline parallelism.
    offload: kinds that a host holds, some of KINDS. tables: of them, embeddings, head and norms,
    which some recipes train otherwise. dp: ranks over which zero shards; the largest shard counts,
    which has N/d rounded up.
    model_state_bytes(7.5e9, "zero_paper", zero=1, dp=64).to("GB") == 31.40625
    ValueError for an unknown level and for impossible numbers.
    """
    recipe, num = recipe_of(recipe), count_of(num_params)
    dp = arguments.counted("dp", dp)
    if type(zero) is not int or zero not in _LEVELS:
        raise ValueError(f"zero={zero!r:.60}: give 0, 1, 2 or 3")
    on_host = _checked_kinds(offload)
    parts = {
        kind: _part(kind, size, num, dp if zero >= _SHARDED_FROM[kind] else 1)
        for kind, size in _sizes(recipe).items()
        if (size or kind == "parameters") and kind not in on_host
    }
    if recipe.table_moment_bytes is not None and "moments" in parts and count_of(tables):
        more = sum(recipe.table_moment_bytes) - sum(recipe.moment_bytes)
        of_tables = _part("moments", more, count_of(tables), dp if zero else 1)
        how = f"{parts['moments'].substitution} + {of_tables.substitution}"
        both = parts["moments"].value + of_tables.value
        parts["moments"] = Result(both, "bytes", "moments", substitution=how)
    if not parts:
        parts = {"on the GPU": Result(0.0, "bytes", "on the GPU")}
    return total(
        f"model states of one rank, zero {zero}",
        parts,
        formula=_formula(zero, on_host),
        convention=f"{recipe.name}: {number_text(recipe.bytes_per_parameter)} B per parameter; "
        "activations, buckets and gathered units are not in it" + _casts(recipe),
        source="Rajbhandari et al., ZeRO, arXiv:1910.02054",
    )


def host_state_bytes(
    num_params: float | Result,
    recipe: Recipe | str,
    offload: Iterable[str] = ("gradients", "master", "moments"),
    hosts: int = 1,
    *,
    buffers: float = 1.0,
) -> Result:
    """Return the bytes of states that each host holds, of a model whose states `hosts` share.

    offload: kinds that are there, some of KINDS. buffers: what a runtime allocates for each byte;
    1.5 in DeepSpeed's estimator, which counts all four kinds.
    host_state_bytes(7e9, "zero_paper", ("master", "moments")).to("GB") == 84
    """
    recipe, num = recipe_of(recipe), count_of(num_params)
    hosts = arguments.counted("hosts", hosts)
    arguments.number("buffers", buffers, "1 or more", least=1)
    parts = {
        kind: _part(kind, buffers * size, num, hosts)
        for kind, size in _sizes(recipe).items()
        if kind in _checked_kinds(offload)
    }
    return total(
        "states on a host",
        parts or {"none": Result(0.0, "bytes", "none")},
        formula="buffers * K N / hosts",
        convention=f"{recipe.name}; {number_text(buffers)} times for buffers",
        source="ZeRO-Offload, arXiv:2101.06840; DeepSpeed's memory estimator",
    )


def _sizes(recipe: Recipe) -> dict[str, float]:
    sizes = (recipe.parameter_bytes, recipe.gradient_bytes, recipe.master_bytes)
    return dict(zip(KINDS, (*sizes, sum(recipe.moment_bytes)), strict=True))


def _checked_kinds(offload: Iterable[str]) -> tuple[str, ...]:
    kinds = (offload,) if isinstance(offload, str) else tuple(offload)
    if unknown := [each for each in kinds if each not in KINDS]:
        raise ValueError(f"offload={offload!r:.80}: {unknown[0]!r} is none of {', '.join(KINDS)}")
    return kinds


_LETTERS = {"parameters": "K_p", "gradients": "K_g", "master": "K_master", "moments": "K_m"}


def _formula(zero: int, on_host: tuple[str, ...]) -> str:
    """Write the formula of a level, without the kinds that a host holds."""
    terms = []
    for numbers, is_sharded in (("N", False), ("N/d", True)):
        letters = [
            _LETTERS[kind]
            for kind in KINDS
            if kind not in on_host and (zero >= _SHARDED_FROM[kind]) == is_sharded
        ]
        text = " + ".join(letters).replace("K_master + K_m", "K_o")
        terms += [f"({text}) {numbers}" if "+" in text else f"{text} {numbers}"] if text else []
    return " + ".join(terms) or "0"


def _casts(recipe: Recipe) -> str:
    """Return the casts of a step, which no sum of lasting bytes includes."""
    size = recipe.cast_bytes
    return f", nor casts, {number_text(size)} B per parameter within a step" if size else ""


def _part(kind: str, size: float, num: int, ranks: int) -> Result:
    shard = -(-num // ranks)
    how = f"{number_text(size)} B * {num:,}" + (f" / {ranks}" if ranks > 1 else "")
    return Result(size * shard, "bytes", kind, substitution=how)


def count_of(num_params: float | Result) -> int:
    """Return a whole number of parameters. TypeError and ValueError for anything else."""
    num = number_of(num_params, "num_params", "parameters")
    arguments.number("num_params", num, "0 or more", least=0)
    return round(num)


def offload_traffic_bytes(
    num_params: float | Result,
    recipe: Recipe | str,
    to: str = "cpu",
    dp: int = 1,
    *,
    masters_stay: bool = False,
    microbatches: int = 1,
) -> Result:
    """Return the bytes that one rank moves in a step, both ways together, by part.

    microbatches: gradients go down to the CPU after each of them and are summed there; 1 if they
    are summed on the GPU. To disk only states go, once in a step.
    masters_stay: keep masters in memory while other states go to disk; no effect without masters.
    offload_traffic_bytes(7e9, "zero_paper", to="cpu", dp=8).to("GB") == 3.5
    ValueError for another place than "cpu" or "disk", and for masters_stay on the CPU.
    """
    recipe, dp = recipe_of(recipe), arguments.counted("dp", dp)
    k = arguments.counted("microbatches", microbatches)
    share = -(-count_of(num_params) // dp)
    sizes = _moved(recipe, to, masters_stay, k)
    return total(
        f"moved by one rank in a step, {'moments' if masters_stay else 'states'} on {to}",
        {
            what: Result(
                size * share,
                "bytes",
                what,
                substitution=f"{number_text(size)} B * {share:,}",
            )
            for what, size in sizes.items()
        },
        formula={
            "cpu": f"({f'{k} ' * (k > 1)}K_g + K_p) N/d",
            "disk": f"2 K_{'m' if masters_stay else 'o'} N/d",
        }[to],
        convention=f"{recipe.name}; every rank moves its share of the states, as with ZeRO 1 to 3",
        source="ZeRO-Offload, arXiv:2101.06840; ZeRO-Infinity, arXiv:2104.07857",
    )


def _moved(recipe: Recipe, to: str, masters_stay: bool, microbatches: int) -> dict[str, float]:
    """Return the bytes per parameter of the rank's shard, by kind."""
    if not isinstance(to, str) or to not in ("cpu", "disk"):
        raise ValueError(f'to={to!r:.60}: give "cpu" or "disk"')
    if to == "cpu":
        if masters_stay:
            raise ValueError('masters_stay=True is for to="disk": on the CPU masters are, and stay')
        return {
            "gradients, down": microbatches * recipe.gradient_bytes,
            "parameters, up": recipe.parameter_bytes,
        }
    states = sum(recipe.moment_bytes) + (0 if masters_stay else recipe.master_bytes)
    return {"states, read": states, "states, written": states}


def offload_bandwidth(
    num_params: float | Result,
    recipe: Recipe | str,
    step_s: float | Result,
    to: str = "cpu",
    dp: int = 1,
    *,
    masters_stay: bool = False,
) -> Result:
    """Return the bytes per second that hide a rank's traffic behind a step of `step_s` seconds.

    ValueError for a time that is not above 0; arguments and other errors as in
    `offload_traffic_bytes`.
    """
    seconds = number_of(step_s, "step_s", "seconds")
    arguments.number("step_s", seconds, "a step takes time, such as 1.5 seconds", above=0)
    moved = offload_traffic_bytes(num_params, recipe, to, dp, masters_stay=masters_stay)
    return Result(
        float(moved) / seconds,
        "bytes/s",
        f"bandwidth between a rank and its {to}",
        formula="bytes of a step / seconds of a step",
        substitution=f"{number_text(float(moved))} B / {number_text(seconds)} s",
        convention="all of it hidden behind computing; both ways together",
        source="ZeRO-Infinity, arXiv:2104.07857, section 4",
    )
