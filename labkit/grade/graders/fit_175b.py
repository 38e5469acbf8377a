"""Grade fit_175b by the planner: on its rules, its memory, and its seconds of a step."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Any

from labkit import calc
from labkit.calc.models.parameters import end_parameters, layer_parameters
from labkit.calc.plan.planned_step import step_parts
from labkit.grade import grader as g
from labkit.grade.outcome import Finding

PARTS = ("parameters", "gradients", "optimizer", "activations")
KEYS = ("tp", "pp", "virtual", "zero", "microbatch", "recompute")


def cases(draw: g.Draw) -> list[g.Case]:
    """Layouts to explain, then tasks to find layouts for."""
    asked = list(jobs(draw))
    layouts = [(asked[0], calc.Layout(world_size=512, tp=4, pp=2, zero=0))]  # the colleague's
    for job in asked[1:]:
        layouts += [(job, layout) for layout in islice(some_layouts(job, draw), 8)]
    return [
        *(why_case(job, layout) for job, layout in layouts),
        *(g.Case(label(job), task_of(job), function="layout", known=job) for job in asked),
    ]


def why_case(job: calc.plan.Job, layout: calc.Layout) -> g.Case:
    """A question about a layout."""
    said = f"{layout}, for {label(job)}"
    return g.Case(said, task_of(job), dict_of(layout), function="why_not", known=(job, layout))


def jobs(draw: g.Draw) -> Iterator[calc.plan.Job]:
    """The interviewer's, and others for which its layout is wrong."""
    pick = draw.rng.choice
    yield job_of("gpt3-175b", 512, 1536, recipe="zero_paper")
    # Little memory, and few sequences per GPU.
    yield job_of("narayanan-145b", 1024, 2048, gpu="a100-40g", gpus_per_node=pick((4, 8)))
    yield job_of("llama2-70b", 64, pick((256, 512)), gpu="a100-40g")
    # 3 divides the GPUs but not the batch. So pp is a multiple of 3, and does not divide m.
    yield job_of("llama1-33b", 96, pick((512, 1024)))
    # A small model, for which the layout of a large one is slow.
    h100 = {"cluster": "h100", "gpu": "h100"}
    yield job_of("llama3-8b", 128, pick((256, 512)), sequence=4096, **h100)
    words = replace(calc.MODELS["llama3-8b"], vocab=256_000)  # many, so many logits
    yield job_of(words, 64, 256, sequence=4096, gpu="a100-40g")
    yield job_of("korthikanti-22b", 64, pick((256, 384)), gpu="a100-40g")


def job_of(
    model: Any,
    num_gpus: int,
    batch: int,
    sequence: int = 2048,
    recipe: str = "megatron_bf16",
    cluster: str = "a100",
    **machines: Any,
) -> calc.plan.Job:
    """A task for the planner."""
    cluster_of = {"gpu": "a100-80g", "gpus_per_node": 8, "num_gpus": num_gpus, **machines}
    return calc.plan.Job(
        model, recipe, replace(calc.CLUSTERS[cluster], **cluster_of), batch, sequence
    )


def label(job: calc.plan.Job) -> str:
    """The task in words."""
    return (
        f"{float(calc.num_parameters(job.config)) / 1e9:.0f}B parameters on {job.num_gpus:,} "
        f"{job.device.name} in nodes of {job.machines.gpus_per_node}, {job.global_batch:,} "
        f"sequences of {job.length:,} tokens"
    )


def task_of(job: calc.plan.Job) -> dict[str, Any]:
    """The task as the functions under test get it."""
    config, machines, assumed = job.config, job.machines, job.assumptions
    names = ("layers", "hidden", "heads", "gated", "vocab")
    sizes = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
    return {
        "num_params": int(calc.num_parameters(config)),
        "layer_params": layer_parameters(config),
        "table_params": end_parameters(config, is_first=True, is_last=False),
        **{name: getattr(config, name) for name in names},
        "kv_heads": config.num_kv_heads,
        "ffn": config.mlp_features,
        "sequence": job.length,
        **{name: getattr(job.kept, name) for name in sizes},
        "num_gpus": job.num_gpus,
        "gpus_per_node": machines.gpus_per_node,
        "memory_bytes": int(job.room_bytes),
        "global_batch": job.global_batch,
        "flops_per_s": assumed.efficiency * job.device.flops_per_s,
        "fast_bytes_per_s": assumed.link_share * machines.fast.bandwidth_bytes_per_s,
        "slow_bytes_per_s": assumed.link_share * machines.slow.bandwidth_bytes_per_s,
    }


def dict_of(layout: calc.Layout) -> dict[str, Any]:
    """The layout as a learner's function gets or returns it."""
    return {key: getattr(layout, key) for key in KEYS}


def some_layouts(job: calc.plan.Job, draw: g.Draw) -> Iterator[calc.Layout]:
    """Layouts whose activations are the largest part or the second, by 2 to 30%."""
    for each in draw.rng.choices(possible(job), k=500):
        layout = replace(each, zero=draw.rng.randrange(4))
        if layout.dp > 1 and job.config.layers % (layout.pp * layout.virtual) == 0:
            held = held_by(job, layout)
            largest, second = sorted(held.values())[:-3:-1]
            if 1.02 < largest / second < 1.3 and held["activations"] >= second:
                yield layout


@lru_cache
def possible(job: calc.plan.Job) -> list[calc.Layout]:
    """Layouts that no rule refuses, with tp inside a node, worth a look."""
    return [
        each
        for each in calc.plan.layouts(job)
        if each.cp == 1
        and each.microbatch <= 2
        and (each.zero or each.dp == 1)
        and each.tp <= job.machines.gpus_per_node
        and calc.plan.refusal(job, each) is None
    ]


@lru_cache
def seconds_of(job: calc.plan.Job, layout: calc.Layout) -> float:
    """Seconds of a step, by the planner."""
    return sum(step_parts(job, layout).values())


@lru_cache
def fastest(job: calc.plan.Job) -> calc.Layout:
    """The fastest layout that fits, by the planner."""
    in_order = sorted(possible(job), key=lambda each: seconds_of(job, each))
    return next(each for each in in_order if calc.plan.verdict(job, each))


@lru_cache
def held_by(job: calc.plan.Job, layout: calc.Layout) -> dict[str, float]:
    """Bytes of a GPU of the first pipeline rank by part, by the planner."""
    held = {k: float(size) for k, size in calc.plan.memory(job, layout, rank=0).parts.items()}
    held["optimizer"] = held.pop("master", 0.0) + held.pop("moments")
    return {part: held[part] for part in PARTS}


def right(task: Any, given: Any = None, *, known: Any) -> Any:
    """The right answer of why_not; of layout the fastest, though others pass."""
    if given is None:
        return dict_of(fastest(known))
    held = held_by(*known)
    return max(PARTS, key=held.__getitem__), held["parameters"] + held["gradients"]


def same(got: Any, right: Any, case: g.Case) -> bool:
    """Whether an answer passes: the part and the bytes, or a layout that works and fits."""
    if case.function == "layout":
        return problem(case.known, got) is None
    is_pair = isinstance(got, list | tuple) and len(got) == 2 and isinstance(got[1], int | float)
    return is_pair and got[0] == right[0] and abs(got[1] / right[1] - 1) < 1e-4


def read(job: calc.plan.Job, got: dict[str, Any]) -> calc.Layout:
    """The layout that a learner gives."""
    return calc.Layout(world_size=job.num_gpus, **got)


def problem(job: calc.plan.Job, got: Any) -> tuple[str, str] | None:
    """(name, why) of what is wrong with a layout; None for one that fits."""
    if not isinstance(got, dict) or set(got) != set(KEYS):
        return "returns another form", f"layout returns a dict with the keys {', '.join(KEYS)}"
    try:
        layout = read(job, got)
    except (TypeError, ValueError) as error:
        return "returns no layout", str(error)
    if job.machines.gpus_per_node % layout.tp:
        return (
            "puts a tensor-parallel group on two nodes",
            f"tp={layout.tp} in nodes of {job.machines.gpus_per_node} GPUs. Tensor parallelism "
            "communicates in every layer, and nothing hides it. Links between nodes are many times "
            "slower. Divide the rest by pp or ZeRO.",
        )
    verdict = calc.plan.verdict(job, layout)
    if verdict:
        return None
    return verdict.term if verdict.refused else f"does not fit: {verdict.term}", verdict.reason


def lost(s: g.Observed) -> str:
    """The part of the step that costs most above the fastest; empty if the layout is fast."""
    if s.case.function != "layout":
        return ""
    job, mine, best = s.case.known, read(s.case.known, s.y), fastest(s.case.known)
    # Enumeration with the contract's model stays below 1.1 times the planner's fastest.
    if seconds_of(job, mine) <= 1.2 * seconds_of(job, best):
        return ""
    parts, of_best = step_parts(job, mine), step_parts(job, best)
    return max(parts, key=lambda name: parts[name] - of_best[name])


def fault(s: g.Observed) -> Finding | None:
    """A layout that breaks a rule, does not fit, or is slow for some other reason."""
    if s.case.function != "layout":
        return None
    if found := problem(s.case.known, s.y):
        return Finding(g.Outcome.WRONG, *found, s.label, 3)
    if part := lost(s):
        return Finding(g.Outcome.OVER_BUDGET, f"slow: {part}", describe(s), s.label, 2)
    return None


def describe(s: g.Observed) -> str:
    """A layout and what is wrong with it; of why_not what is right."""
    if s.case.function == "why_not":
        return f"got {s.y}, expected {s.right[0]}"
    job = s.case.known
    if found := problem(job, s.y):
        return f"{s.y}: {found[1]}"
    layout, best = read(job, s.y), fastest(job)
    return (
        f"{layout} takes {seconds_of(job, layout):.1f} s, of which most is lost by {lost(s)}; "
        f"{seconds_of(job, best):.1f} s can be reached"
    )


def fits_without_logits(s: g.Observed) -> bool:
    """Whether a layout that does not fit would fit without the logits of the last rank."""
    job, layout = s.case.known, read(s.case.known, s.y)
    logits = ("head inputs", "logits and loss", "gradients of the loss")
    held = [calc.plan.memory(job, layout, rank=rank).parts for rank in (0, layout.pp - 1)]
    rest = max(sum(float(part[name]) for name in part if name not in logits) for part in held)
    return problem(job, s.y)[0].startswith("does not fit") and rest <= job.room_bytes


@lru_cache
def least_bytes(job: calc.plan.Job) -> float:
    """The least memory that a layout needs."""
    small = (each for each in possible(job) if (each.recompute, each.microbatch) == ("full", 1))
    return min(float(calc.plan.memory(job, each)) for each in small if each.zero > 1)


def habit(s: g.Observed) -> str:
    """The name of the mistake that makes a layout slow."""
    if not (part := lost(s)):
        return ""
    job, mine, best = s.case.known, read(s.case.known, s.y), fastest(s.case.known)
    habits = (
        (LEAST_MEMORY, float(calc.plan.memory(job, mine)) <= 1.05 * least_bytes(job)),
        (TOO_LITTLE, mine.tp == 1 < best.tp),
        (RECOMPUTES, mine.recompute == "full" != best.recompute),
        (TOO_LITTLE, mine.zero == 3 > best.zero or mine.pp == 1 < best.pp),
        (TOO_MUCH, (mine.tp > best.tp and part == "tp") or mine.pp >= 2 * best.pp),
    )
    return next((name for name, is_so in habits if is_so), "")


def why(right: str, *wrong: str) -> list[g.Patch]:
    """Patches of why_not. The search for a layout, which takes long, is left out."""
    return [
        g.patch("    room = ", "    raise NotImplementedError\n    room = ", right, each)
        for each in wrong
    ]


def prefers(*keys: str) -> list[g.Patch]:
    """Patches that compare something else before the seconds."""
    order = "lambda each: _seconds(task, each)"
    return [g.patch(order, order.replace("_", f"({key}, _") + ")") for key in keys]


SHARDED, ASKED = '(dp if given["zero"] >= level else 1)', 'parts["parameters"] + parts["gradients"]'
TP, PP, NUM_PARAMS = 'given["tp"]', 'given["pp"]', 'task["num_params"]'
OPTIMIZER = 'task[f"{of}_bytes"]'
LEAST_MEMORY = "takes the layout with the least memory"
RECOMPUTES = "recomputes where it need not"
TOO_LITTLE = "lets ZeRO shard what tp and pp should divide"
TOO_MUCH = "divides more by tp or pp than it needs"
MISTAKES = [
    g.Mistake(
        "shards at another level than ZeRO",
        "dp makes copies: each of its ranks has the same N parameters. Only ZeRO shards over dp: "
        "level 1 the optimizer's bytes, level 2 also gradients, level 3 also parameters.",
        why(
            SHARDED,
            "dp",
            "1",
            '(dp if given["zero"] > level else 1)',
            '(dp if given["zero"] >= level > 1 else 1)',
            '(dp if given["zero"] >= (1, 1, 3)[level - 1] else 1)',
            '(dp if given["zero"] >= (1, 1, 2)[level - 1] else 1)',
        ),
        hint=3,
    ),
    g.Mistake(
        "counts another share of the model",
        "The first pipeline rank has layers / pp layers and the whole embedding, as large as a "
        "layer or several: num_params / (tp * pp) is only a mean over the pipeline. Each of its "
        "GPUs has 1/tp of every matrix, and with sequence parallelism 1/tp of all activations.",
        [
            *why(
                "own = _own(task, given)",
                *(f"own = {NUM_PARAMS} / {ranks}" for ranks in (f"({TP} * {PP})", TP, PP, "1")),
                f'own = task["layer_params"] * task["layers"] / ({TP} * {PP})',
                f"own = _own(task, given) * {TP}",
            ),
            *why("kept = ", f"kept = {TP} * ", f"kept = {PP} * ", f"kept = {TP} * {PP} * "),
        ],
        hint=3,
    ),
    g.Mistake(
        "miscounts the optimizer",
        "optimizer_bytes has the master copy and two moments, 12 bytes per parameter.",
        why(OPTIMIZER, f"({OPTIMIZER} - 4 * (level == 1))", f"({OPTIMIZER} * (level > 1))"),
    ),
    g.Mistake(
        "counts another number of microbatches in flight",
        "Before its first backward, the first pipeline rank has pp microbatches in flight, or "
        "pp + (pp - 1) / virtual if interleaved, but at most m. It keeps activations of each.",
        why(
            "return min(first, m)",
            *("return 0", "return 1", "return m", "return min(p, m)", "return min(p * v, m)"),
            "return min(p - (p - 1) / v, m)",
        ),
        hint=2,
    ),
    g.Mistake(
        "gives other bytes than those of parameters and gradients",
        "The second result is the bytes of parameters and gradients together, in bytes. The name "
        "is right.",
        why(
            ASKED,
            'parts["parameters"]',
            f'{ASKED} + parts["optimizer"]',
            "sum(parts.values())",
            f"({ASKED}) / 1e9",
            f"({ASKED}) / 2**30",
        ),
        hint=3,
    ),
    g.Mistake(
        "forgets the logits",
        "The last pipeline rank has the head: 14 * vocab / tp bytes per token. With many words "
        "this is as much as several layers.",
        g.patch("last + head", "last"),
        seen=fits_without_logits,
        hint=3,
    ),
    g.Mistake(
        LEAST_MEMORY,
        "Memory that fits is enough. Of all layouts that fit, take the fastest: recomputation and "
        "ZeRO-3 cost time.",
        prefers("_bytes(task, each)"),
        over_budget=lambda s: habit(s) == LEAST_MEMORY,
    ),
    g.Mistake(
        RECOMPUTES,
        "Full recomputation is a second forward, a third more compute. Other layouts keep all "
        "activations and fit: tp divides activations, and a smaller microbatch has fewer.",
        prefers('each["recompute"] == "none"'),
        over_budget=lambda s: habit(s) == RECOMPUTES,
    ),
    g.Mistake(
        TOO_LITTLE,
        "ZeRO-3 gathers parameters twice per microbatch, between nodes. If tp and pp divide the "
        "states, ZeRO-1 is often enough: tp's collectives inside a node are fast, and a pipeline "
        "sends little.",
        prefers('each["tp"]', '-each["zero"]'),
        over_budget=lambda s: habit(s) == TOO_LITTLE,
    ),
    g.Mistake(
        TOO_MUCH,
        "tp communicates in every layer, and nothing hides it. The bubble is (pp - 1) / (virtual * "
        "m) of the step, and the head makes the last rank of a deep pipeline slower than the "
        "others. Use only as much of both as memory needs.",
        prefers('-each["tp"]', '-each["pp"]'),
        over_budget=lambda s: habit(s) == TOO_MUCH,
    ),
]

GRADER = g.Questions(
    functions=("layout", "why_not"),
    cases=cases,
    right=right,
    mistakes=MISTAKES,
    same=same,
    fault=fault,
    describe=describe,
    closed=("labkit.calc",),
    shown="your layouts keep the planner's rules, fit, and take at most 1.2 times the seconds of "
    "its fastest, and you name what fills the GPUs of a layout",
)
