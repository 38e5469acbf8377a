"""Grade fit_175b by the planner: on its rules, its memory, and its seconds of a step."""

import itertools
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from labkit import calc
from labkit.calc.models.parameters import end_parameters, layer_parameters
from labkit.calc.plan.planned_step import step_parts
from labkit.grade.grader import Case, Draw, Mistake, Observed, Outcome, Questions, patch
from labkit.grade.outcome import Finding

Dict = Mapping[str, Any]
PARTS = ("parameters", "gradients", "optimizer", "activations")
KEYS = ("tp", "pp", "virtual", "zero", "microbatch", "recompute")
HEAD = ("head inputs", "logits and loss", "gradients of the loss")
ACROSS = "puts a tensor-parallel group on two nodes"
BUDGET = 1.2
"""Times the planner's fastest. Enumeration with the contract's model stays below 1.1."""


def cases(draw: Draw) -> list[Case]:
    """Layouts to explain, then tasks to find layouts for."""
    tasks = list(jobs(draw))
    colleagues = why_case(tasks[0], calc.Layout(world_size=512, tp=4, pp=2, zero=0))
    pool = (case for job in tasks[1:] for case in some_layouts(job, draw))
    return [
        colleagues,
        *telling(pool, [formula for mistake in MISTAKES for formula in mistake.formula or ()]),
        *(Case(label(job), task_of(job), function="layout", known=job) for job in tasks),
    ]


def telling(pool: Iterator[Case], formulas: list[Any]) -> Iterator[Case]:
    """Cases that tell wrong formulas apart, and from what is right."""
    alike = set(itertools.combinations(range(len(formulas) + 1), 2))
    for case in pool:
        answers = [why(*case.known), *(formula(*case.args) for formula in formulas)]
        apart = {(i, j) for i, j in alike if not same(answers[i], answers[j], case)}
        alike -= apart
        if apart:
            yield case
        if not alike:
            return


def jobs(draw: Draw) -> Iterator[calc.plan.Job]:
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


def why_case(job: calc.plan.Job, layout: calc.Layout) -> Case:
    """A question about a layout."""
    said = f"{layout}, for {label(job)}"
    return Case(said, task_of(job), dict_of(layout), function="why_not", known=(job, layout))


def some_layouts(job: calc.plan.Job, draw: Draw) -> Iterator[Case]:
    """Questions about layouts of which one part is clearly the largest."""
    for each in draw.rng.choices(possible(job), k=500):
        layout = replace(each, zero=draw.rng.randrange(4))
        if layout.dp > 1 and job.config.layers % (layout.pp * layout.virtual) == 0:
            largest, second = sorted(held_by(job, layout)[part] for part in PARTS)[:-3:-1]
            if largest > 1.02 * second:
                yield why_case(job, layout)


def task_of(job: calc.plan.Job) -> Dict:
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


def dict_of(layout: calc.Layout) -> Dict:
    """The layout as a learner's function gets or returns it."""
    return {key: getattr(layout, key) for key in KEYS}


@lru_cache
def held_by(job: calc.plan.Job, layout: calc.Layout) -> Mapping[str, float]:
    """Bytes of a GPU of the first pipeline rank by part, by the planner."""
    parts = calc.plan.memory(job, layout, rank=0).parts
    held = {name: float(size) for name, size in parts.items()}
    return {**held, "optimizer": held.pop("master", 0.0) + held.pop("moments")}


def why(job: calc.plan.Job, layout: calc.Layout) -> tuple[str, float]:
    """The right answer of why_not."""
    held = held_by(job, layout)
    return max(PARTS, key=held.__getitem__), held["parameters"] + held["gradients"]


def right(task: Dict, given: Dict | None = None, *, known: Any) -> Any:
    """The right answer of why_not; of layout the fastest, though others pass."""
    return why(*known) if given is not None else dict_of(fastest(known))


def same(got: Any, right: Any, case: Case) -> bool:
    """Whether an answer passes: the part and the bytes, or a layout that works and fits."""
    if case.function == "layout":
        return problem(case.known, got)[0] == ""
    is_pair = isinstance(got, list | tuple) and len(got) == 2 and isinstance(got[1], int | float)
    return is_pair and got[0] == right[0] and abs(got[1] / right[1] - 1) < 1e-4


def read(job: calc.plan.Job, got: Dict) -> calc.Layout:
    """The layout that a learner gives."""
    return calc.Layout(world_size=job.num_gpus, **got)


def problem(job: calc.plan.Job, got: Any) -> tuple[str, str]:
    """(name, why) of what is wrong with a layout; two empty strings for one that fits."""
    if not isinstance(got, dict) or set(got) != set(KEYS):
        return "returns another form", f"layout returns a dict with the keys {', '.join(KEYS)}"
    try:
        layout = read(job, got)
    except (TypeError, ValueError) as error:
        return "returns no layout", str(error)
    if job.machines.gpus_per_node % layout.tp:
        return ACROSS, f"tp={layout.tp} in nodes of {job.machines.gpus_per_node} GPUs"
    verdict = calc.plan.verdict(job, layout)
    return (
        ("", "")
        if verdict
        else (verdict.term if verdict.refused else f"does not fit: {verdict.term}", verdict.reason)
    )


def lost(s: Observed) -> str:
    """The part of the step that costs most above the fastest; empty if the layout is fast."""
    if s.case.function != "layout":
        return ""
    job, mine, best = s.case.known, read(s.case.known, s.y), fastest(s.case.known)
    if seconds_of(job, mine) <= BUDGET * seconds_of(job, best):
        return ""
    parts, of_best = step_parts(job, mine), step_parts(job, best)
    return max(parts, key=lambda name: parts[name] - of_best[name])


def fault(s: Observed) -> Finding | None:
    """A layout that breaks a rule, does not fit, or is slow for some other reason."""
    if s.case.function != "layout":
        return None
    name, why = problem(s.case.known, s.y)
    if name:
        return Finding(Outcome.WRONG, name, why, s.label, 3)
    if part := lost(s):
        return Finding(Outcome.OVER_BUDGET, f"slow: {part}", describe(s), s.label, 2)
    return None


def describe(s: Observed) -> str:
    """A layout and what is wrong with it; of why_not what is right."""
    if s.case.function == "why_not":
        return f"got {s.y}, expected {s.right[0]}"
    job = s.case.known
    if problem(job, s.y)[0]:
        return f"{s.y}: {problem(job, s.y)[1]}"
    layout, best = read(job, s.y), fastest(job)
    return (
        f"{layout} takes {seconds_of(job, layout):.1f} s, of which most is lost by {lost(s)}; "
        f"{seconds_of(job, best):.1f} s can be reached"
    )


def fits_without(s: Observed, *parts: str) -> bool:
    """Whether a layout that does not fit would fit without some parts of the memory."""
    job, layout = s.case.known, read(s.case.known, s.y)
    for rank in {0, layout.pp - 1}:
        held = calc.plan.memory(job, layout, rank=rank).parts
        if sum(float(size) for name, size in held.items() if name not in parts) > job.room_bytes:
            return False
    return problem(job, s.y)[0].startswith("does not fit")


@lru_cache
def least_bytes(job: calc.plan.Job) -> float:
    """The least memory that a layout needs."""
    small = (each for each in possible(job) if (each.recompute, each.microbatch) == ("full", 1))
    return min(float(calc.plan.memory(job, each)) for each in small if each.zero > 1)


HABITS: dict[str, tuple[str, Callable[..., bool], str]] = {
    "takes the layout with the least memory": (
        "Memory that fits is enough. Of all layouts that fit, take the fastest: recomputation and "
        "ZeRO-3 cost time.",
        lambda s, mine, best: (
            float(calc.plan.memory(s.case.known, mine)) <= 1.05 * least_bytes(s.case.known)
        ),
        "_bytes(task, each)",
    ),
    "uses no tensor parallelism": (
        "tp divides activations and states, and its collectives inside a node are fast. Without "
        "it large models recompute, or have deep pipelines with a large bubble.",
        lambda s, mine, best: mine.tp == 1 < best.tp,
        'each["tp"]',
    ),
    "recomputes where it need not": (
        "Full recomputation is a second forward, a third more compute. Other layouts keep all "
        "activations and fit: tp divides activations, and a smaller microbatch has fewer.",
        lambda s, mine, best: mine.recompute == "full" != best.recompute,
        'each["recompute"] == "none"',
    ),
    "lets ZeRO shard what tp and pp should divide": (
        "ZeRO-3 gathers parameters twice per microbatch, between nodes. If tp and pp divide the "
        "states, ZeRO-1 is often enough. A pipeline sends little.",
        lambda s, mine, best: mine.zero == 3 > best.zero or mine.pp == 1 < best.pp,
        '-each["zero"]',
    ),
    "uses more tensor parallelism than it needs": (
        "tp communicates in every layer, and nothing hides it. Use only as much as memory needs.",
        lambda s, mine, best: mine.tp > best.tp and lost(s) == "tp",
        '-each["tp"]',
    ),
    "uses a deeper pipeline than it needs": (
        "The bubble is (pp - 1) / (virtual * m) of the step, so a deeper pipeline wastes more. The "
        "last rank, which has the head, also becomes slower than the others.",
        lambda s, mine, best: mine.pp >= 2 * best.pp,
        '-each["pp"]',
    ),
}
"""Why a layout is slow: (explanation, predicate, what the learner's code prefers)."""


def habit(s: Observed) -> str:
    """The first habit that a slow layout shows."""
    if not lost(s):
        return ""
    mine, best = read(s.case.known, s.y), fastest(s.case.known)
    return next((name for name, (_, is_so, _) in HABITS.items() if is_so(s, mine, best)), "")


RIGHT: dict[str, Any] = {
    "params": lambda t, g: (
        (t["layer_params"] * t["layers"] / g["pp"] + t["table_params"]) / g["tp"]
        if g["pp"] > 1
        else t["num_params"] / g["tp"]
    ),
    "shards": lambda g, dp, level: dp if g["zero"] >= level else 1,
    "optimizer_bytes": lambda t: t["optimizer_bytes"],
    "in_flight": lambda g, m: min(
        m, g["pp"] + ((g["pp"] - 1) / g["virtual"] if g["virtual"] > 1 else 0)
    ),
    "activations": lambda g: 1,
    "asked": ("parameters", "gradients"),
}


def count(**others: Any) -> Callable[[Dict, Dict], tuple[str, float]]:
    """The formula of why_not with RIGHT, but for `others`."""
    its = types.SimpleNamespace(**{**RIGHT, **others})

    def formula(t: Dict, g: Dict) -> tuple[str, float]:
        dp = t["num_gpus"] // (g["tp"] * g["pp"])
        kept = 2 * t["hidden"]
        if g["recompute"] == "none":
            kept = (12 + 4 * t["kv_heads"] / t["heads"]) * t["hidden"] + 4 * t["heads"]
            kept += (6 if t["gated"] else 4) * t["ffn"]
        kept *= g["microbatch"] * t["sequence"] * t["layers"] / (g["pp"] * g["tp"])
        m = t["global_batch"] / (dp * g["microbatch"])
        sizes = {
            "parameters": t["parameter_bytes"] / its.shards(g, dp, 3),
            "gradients": t["gradient_bytes"] / its.shards(g, dp, 2),
            "optimizer": its.optimizer_bytes(t) / its.shards(g, dp, 1),
        }
        held = {name: size * its.params(t, g) for name, size in sizes.items()}
        held["activations"] = kept * its.in_flight(g, m) * its.activations(g)
        return max(PARTS, key=held.__getitem__), sum(held[name] for name in its.asked)

    return formula


OWN = 'return task["num_params"] / given["tp"]'
FASTEST = "return min(fitting, key=lambda each: _seconds(task, each))"
MISTAKES = [
    Mistake(
        "takes data parallelism for sharding",
        "dp makes copies: each of its ranks has the same N parameters. Only ZeRO shards over dp.",
        formula=[count(shards=lambda g, dp, level: dp)],
        made_by=patch('(dp if given["zero"] >= level else 1)', "dp"),
    ),
    Mistake(
        "shards at another ZeRO level",
        "Level 1 shards the optimizer's bytes, level 2 also gradients, level 3 also parameters.",
        hint=3,
        formula=[
            count(shards=lambda g, dp, level: 1),
            count(shards=lambda g, dp, level: dp if g["zero"] > level else 1),
            count(shards=lambda g, dp, level: dp if g["zero"] and g["zero"] + 1 >= level else 1),
            count(shards=lambda g, dp, level: dp if g["zero"] >= (1, 1, 3)[level - 1] else 1),
            count(shards=lambda g, dp, level: dp if g["zero"] >= (4, 2, 3)[level - 1] else 1),
        ],
        made_by=patch('given["zero"] >= level else', 'given["zero"] > level else'),
    ),
    Mistake(
        "miscounts the embedding",
        "The first pipeline rank has its layers and the whole embedding, as large as a layer or "
        "several. num_params / (tp * pp) is only a mean over the pipeline.",
        hint=3,
        formula=[
            count(params=lambda t, g: t["num_params"] / (g["pp"] * g["tp"])),
            count(params=lambda t, g: t["layer_params"] * t["layers"] / (g["pp"] * g["tp"])),
        ],
        made_by=patch('if given["pp"] == 1:', "if True:", OWN, f'{OWN} / given["pp"]'),
    ),
    Mistake(
        "does not divide by tp and pp",
        "A pipeline rank has layers / pp layers. Each of its GPUs has 1/tp of every matrix, and "
        "with sequence parallelism 1/tp of all activations.",
        formula=[
            count(params=lambda t, g: t["num_params"]),
            count(params=lambda t, g: t["num_params"] / g["tp"]),
            count(params=lambda t, g: t["num_params"] / g["pp"]),
            count(params=lambda t, g: RIGHT["params"](t, g) * g["tp"]),
            count(activations=lambda g: g["tp"]),
            count(activations=lambda g: g["pp"]),
            count(activations=lambda g: g["tp"] * g["pp"]),
        ],
        made_by=patch('of_a_token / given["tp"]', "of_a_token"),
    ),
    Mistake(
        "miscounts the optimizer",
        "optimizer_bytes has the master copy and two moments, 12 bytes per parameter.",
        formula=[
            count(optimizer_bytes=lambda t: t["optimizer_bytes"] - 4),
            count(optimizer_bytes=lambda t: 0),
        ],
        made_by=patch('task[f"{of}_bytes"]', '(task[f"{of}_bytes"] - 4 * (level == 1))'),
    ),
    Mistake(
        "counts another number of microbatches in flight",
        "Before its first backward, the first pipeline rank has pp microbatches in flight, or "
        "pp + (pp - 1) / virtual if interleaved, but at most m. It keeps activations of each.",
        hint=2,
        formula=[
            count(in_flight=in_flight)
            for in_flight in (
                lambda g, m: 0,
                lambda g, m: 1,
                lambda g, m: m,
                lambda g, m: min(m, g["pp"]),
                lambda g, m: min(m, g["pp"] * g["virtual"]),
            )
        ],
        made_by=patch("min(first, m) * kept", "kept"),
    ),
    Mistake(
        "gives other bytes than those of parameters and gradients",
        "The second result is the bytes of parameters and gradients together, in bytes. The name "
        "is right.",
        hint=3,
        formula=[
            count(asked=PARTS[:3]),
            count(asked=PARTS),
            count(asked=PARTS[:1]),
            lambda t, g: (count()(t, g)[0], count()(t, g)[1] / 1e9),
            lambda t, g: (count()(t, g)[0], count()(t, g)[1] / 2**30),
        ],
        made_by=patch('parts["parameters"] + parts["gradients"]', 'parts["parameters"]'),
    ),
    Mistake(
        "does not use all GPUs",
        "dp is num_gpus / (tp * pp) and must be a whole number. Otherwise some GPUs are idle.",
        hint=3,
        seen=lambda s: s.case.known.num_gpus % (s.y["tp"] * s.y["pp"]) > 0,
        made_by=patch(
            'if task["num_gpus"] % (tp * pp) or task["global_batch"] %',
            'if dp == 0 or task["global_batch"] %',
            FASTEST,
            "return max(fitting, key=lambda each: task['num_gpus'] % (each['tp'] * each['pp']))",
        ),
    ),
    Mistake(
        ACROSS,
        "Tensor parallelism communicates in every layer, and nothing hides it. Links between nodes "
        "are many times slower. Keep tp inside a node and divide the rest by pp or ZeRO.",
        seen=lambda s: problem(s.case.known, s.y)[0] == ACROSS,
        made_by=patch(
            "in (1, 2, 4, 8) if",
            "in (1, 2, 4, 8, 16) if",
            '("gpus_per_node", ',
            "(",
            FASTEST,
            'return max(fitting, key=lambda each: each["tp"])',
        ),
    ),
    Mistake(
        "forgets the logits",
        "The last pipeline rank has the head: 14 * vocab / tp bytes per token. With many words "
        "this is as much as several layers.",
        hint=3,
        seen=lambda s: fits_without(s, "head inputs", "logits and loss", "gradients of the loss"),
        made_by=patch("last + head", "last"),
    ),
    *(
        Mistake(
            name,
            why,
            outcome=Outcome.OVER_BUDGET,
            seen=lambda s, name=name: habit(s) == name,
            made_by=patch(FASTEST, FASTEST.replace("_sec", f"({key}, _sec").replace("))", ")))")),
        )
        for name, (why, _, key) in HABITS.items()
    ),
]

GRADER = Questions(
    name="fit_175b",
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
