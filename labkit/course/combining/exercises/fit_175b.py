"""Grade fit_175b by the planner: on its rules, its memory, and its seconds of a step."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial
from itertools import islice
from typing import Any

from labkit import calc
from labkit.calc.parameters import end_parameters, layer_parameters
from labkit.calc.plan.planned_step import step_parts
from labkit.grade import grader as g
from labkit.grade.verdict import Finding


def jobs(draw: g.Draw) -> list[calc.plan.Job]:
    """The interviewer's, and others for which its layout is wrong."""
    pick, bf16 = draw.rng.choice, "megatron_bf16"
    # The contract's logits are those of an unfused loss.
    of = partial(calc.plan.Job, assumptions=calc.plan.Assumptions(loss="unfused"))
    # Logits and the head decide, and kv_heads allows a smaller tp than a node does.
    many_words = replace(calc.MODELS["llama3-8b"], vocab=512_000, kv_heads=2)
    a100, h100 = calc.CLUSTERS["a100"], replace(calc.CLUSTERS["h100"], num_gpus=128)
    small = replace(a100, gpu="a100-40g", num_gpus=64)
    return [
        of("gpt3-175b", "zero_paper", replace(a100, num_gpus=512), 1536),
        # Little memory, and few sequences per GPU, so that a bubble is long.
        of("narayanan-145b", bf16, replace(small, num_gpus=1024), 128),
        of("llama2-70b", bf16, replace(small, gpus_per_node=4), pick((128, 256)), 2048),
        # 3 divides the GPUs but not the batch. So pp is a multiple of 3, and does not divide m.
        of("llama1-33b", bf16, replace(a100, num_gpus=96), pick((512, 1024))),
        # A small model, for which the layout of a large one is slow.
        of("llama3-8b", bf16, h100, pick((256, 512)), 4096),
        of(many_words, bf16, small, 256, 4096),
        of("korthikanti-22b", bf16, small, pick((256, 384))),
    ]


def label(job: calc.plan.Job) -> str:
    """Return the task in words."""
    return f"{job.title}, {job.config.vocab:,} words, {job.machines.gpus_per_node} GPUs per node"


def task_of(job: calc.plan.Job) -> dict[str, Any]:
    """Return the task as the functions under test get it."""
    config, machines, assumed = job.config, job.machines, job.assumptions
    sizes = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
    return {
        "num_params": int(calc.num_parameters(config)),
        "layer_params": layer_parameters(config),
        "table_params": end_parameters(config, is_first=True, is_last=False),
        **{name: getattr(config, name) for name in ("layers", "hidden", "heads", "gated", "vocab")},
        "kv_heads": config.num_kv_heads,
        "ffn": config.mlp_features,
        "sequence": job.length,
        **{name: getattr(job.kept, name) for name in sizes},
        "num_gpus": job.num_gpus,
        "gpus_per_node": machines.gpus_per_node,
        "memory_bytes": int(job.room_bytes),
        "global_batch": job.global_batch,
        "flops_per_s": job.device.matmul_share * job.device.flops_per_s,
        "fast_bytes_per_s": assumed.link_share * machines.fast.bandwidth_bytes_per_s,
        "slow_bytes_per_s": assumed.link_share * machines.slow.bandwidth_bytes_per_s,
    }


def dict_of(layout: calc.Layout) -> dict[str, Any]:
    """Return the layout as a learner's function gets or returns it."""
    keys = ("tp", "pp", "virtual", "zero", "microbatch", "recompute")
    return {key: getattr(layout, key) for key in keys}


def layout_of(job: calc.plan.Job, given: dict[str, Any]) -> calc.Layout:
    """Return the layout of a dict. As in the contract, ZeRO-3 gathers for every microbatch."""
    return calc.Layout(world_size=job.num_gpus, reshard_after_forward=True, **given)


@lru_cache
def possible(job: calc.plan.Job) -> list[calc.Layout]:
    """Layouts that no rule refuses, with tp inside a node, worth a look."""
    return [
        replace(each, reshard_after_forward=True)
        for each in calc.plan.layouts(job)
        if each.cp == 1
        and each.microbatch <= 2
        and (each.zero or each.dp == 1)
        and each.tp <= job.machines.gpus_per_node
        and job.config.num_kv_heads % each.tp == 0
        and calc.plan.refusal(job, each) is None
    ]


def layouts_to_explain(draw: g.Draw) -> Iterator[g.Case]:
    """Yield the colleague's layout, then some for each other job."""
    first, *others = jobs(draw)
    asked = [(first, calc.Layout(world_size=512, tp=4, pp=2, zero=0))]
    asked += [(others[3], calc.Layout(world_size=128, tp=2, zero=1))]  # with the head
    asked += [(job, layout) for job in others for layout in islice(close_calls(job, draw), 8)]
    for job, layout in asked:
        args, said = (task_of(job), dict_of(layout)), f"{layout}, for {label(job)}"
        yield g.Case(said, *args, function="why_not", known=(job, layout))


def close_calls(job: calc.plan.Job, draw: g.Draw) -> Iterator[calc.Layout]:
    """Layouts whose activations are the largest part or the second, by 2 to 30%."""
    for each in draw.rng.choices(possible(job), k=500):
        layout = replace(each, zero=draw.rng.randrange(4))
        if layout.dp > 1 and job.config.layers % (layout.pp * layout.virtual) == 0:
            held = held_by(job, layout)
            second, largest = sorted(held.values())[-2:]
            if 1.02 < largest / second < 1.3 and held["activations"] >= second:
                yield layout


def held_by(job: calc.plan.Job, layout: calc.Layout) -> dict[str, float]:
    """Bytes of a GPU of the first pipeline rank by part, by the planner."""
    of = {name: float(size) for name, size in calc.plan.memory(job, layout, 0).parts.items()}
    held = {name: of[name] for name in ("parameters", "gradients", "activations")}
    return held | {"optimizer": of.get("master", 0.0) + of["moments"]}


def largest_part(task: Any, given: Any, known: Any) -> tuple[str, float]:
    """By the planner."""
    held = held_by(*known)
    return max(held, key=held.__getitem__), held["parameters"] + held["gradients"]


def is_same_part(got: Any, right: Any, case: g.Case) -> bool:
    """Return whether the part is the right one, and the bytes are within 0.0001."""
    return got[0] == right[0] and abs(got[1] / right[1] - 1) < 1e-4


SHARDED, OWN = '(dp if given["zero"] >= level else 1)', "own = _own(task, given)"
MEAN = 'own = task["num_params"] / (given["tp"] * given["pp"])'
IN_FLIGHT, TABLE = "min(first, m)", "task['table_params'] * (given['pp'] > 1)"
WHY_MISTAKES = [
    g.Mistake(
        "shards at another level than ZeRO",
        "dp makes copies: each of its ranks has the same N parameters. Only ZeRO shards over dp: "
        "level 1 the optimizer's bytes, level 2 also gradients, level 3 also parameters.",
        g.patches(SHARDED, "dp", '(dp if given["zero"] >= (1, 1, 3)[level - 1] else 1)'),
        hint=3,
    ),
    g.Mistake(
        "miscounts the embedding or the head",
        "The first pipeline rank has layers / pp layers and the whole embedding, all divided by "
        "tp; num_params / (tp * pp) is only a mean over the pipeline. With pp = 1 add the head.",
        [
            *g.patches(OWN, MEAN, f"{OWN} - {TABLE} / given['tp']"),
            g.patch(OWN, MEAN, IN_FLIGHT, "1"),
            g.patch(OWN, f"{OWN} + {TABLE} * (1 - 1 / given['tp'])"),
            g.patch('if given["pp"] == 1:', "if False:"),
        ],
        hint=3,
    ),
    g.Mistake(
        "miscounts the activations",
        "Before its first backward, the first pipeline rank has pp microbatches in flight, or "
        "pp + (pp - 1) / virtual if interleaved, but at most m. Of each it keeps the activations "
        "of layers / pp layers, divided by tp. A gated MLP has more of them.",
        g.patches(IN_FLIGHT, "0", "1", "m", "first", "min(p, m)"),
        hint=2,
    ),
    g.Mistake(
        "returns the bytes of other parts",
        "Whichever part is the largest, bytes are those of parameters and gradients together.",
        g.patches('["parameters"] + parts["gradients"]', '["parameters"]', "[largest]"),
    ),
]


def jobs_to_plan(draw: g.Draw) -> list[g.Case]:
    """One case for each job."""
    return [g.Case(label(job), task_of(job), function="layout", known=job) for job in jobs(draw)]


@lru_cache
def fastest(job: calc.plan.Job) -> calc.Layout:
    """Return the fastest layout that fits, by the planner."""
    in_order = sorted(possible(job), key=lambda each: sum(step_parts(job, each).values()))
    return next(each for each in in_order if calc.plan.verdict(job, each))


def in_words(result: calc.Result) -> str:
    """Return the parts of a sum."""
    return ", ".join(f"{name} {part}" for name, part in result.parts.items() if float(part))


def problem(job: calc.plan.Job, got: Any) -> tuple[str, str] | None:
    """(name, why) of what is wrong with a layout; None for one that fits."""
    try:
        layout = layout_of(job, got)
    except ValueError as error:
        return "returns no layout", str(error)
    if job.machines.gpus_per_node % layout.tp:
        why = "tp communicates in every layer, and links between nodes are many times slower"
        return "puts a tensor-parallel group on two nodes", f"{layout}: {why}"
    if job.config.num_kv_heads % layout.tp:
        why = f"{job.config.num_kv_heads} key-value heads are not cut into {layout.tp} equal parts"
        return "tp does not divide key-value heads", f"{layout}: {why}"
    verdict = calc.plan.verdict(job, layout)
    if verdict.memory is None:
        return verdict.term, verdict.reason
    why = f"{verdict.reason}. Compare all parts with yours: {in_words(verdict.memory)}"
    return None if verdict else ("does not fit", why)


def fault(s: g.Observed) -> Finding | None:
    """Return a layout that breaks a rule or does not fit."""
    found = problem(s.case.known, s.y)
    return Finding(g.Outcome.WRONG, *found, s.label, 3) if found else None


def steps(s: g.Observed) -> list[calc.Result]:
    """Seconds of a step of the learner's layout and of the fastest one."""
    job = s.case.known
    layouts = layout_of(job, s.y), fastest(job)
    return [calc.plan.estimate(job, each).step for each in layouts]


def slow_by(s: g.Observed) -> str:
    """Return the part of the step that costs most above the fastest layout; empty for a fast
    one."""
    mine, best = steps(s)
    # Enumeration with the contract's model stays below 1.15 times the planner's fastest.
    if float(mine) <= 1.2 * float(best):
        return ""
    if s.y["recompute"] == "full" != fastest(s.case.known).recompute:
        return "recomputation"
    return max(mine.parts, key=lambda part: float(mine.parts[part]) - float(best.parts[part]))


def describe(s: g.Observed) -> str:
    """Say how slow a layout is."""
    mine, best = steps(s)
    return f"{s.y} takes {mine} ({in_words(mine)}); {best} ({in_words(best)}) can be reached"


SECONDS = "lambda each: _seconds(task, each)"
MOST = 'lambda each: (-each["{}"], _seconds(task, each))'
LAYOUT_MISTAKES = [
    g.Mistake(
        "recomputes where it need not",
        "Take the fastest of all layouts that fit. Full recomputation is a third more compute. "
        "tp and a smaller microbatch also make activations smaller.",
        g.patches(
            SECONDS,
            "lambda each: _bytes(task, each)",
            'lambda each: (each["recompute"] == "none", _seconds(task, each))',
        ),
        over_budget=lambda s: slow_by(s) == "recomputation",
    ),
    g.Mistake(
        "lets ZeRO shard what tp and pp should divide",
        "ZeRO-3 gathers parameters twice per microbatch, between nodes. If tp and pp divide the "
        "states, ZeRO-1 is often enough: tp stays in a node, and a pipeline sends little.",
        g.patch(SECONDS, MOST.format("zero")),
        over_budget=lambda s: slow_by(s) == "dp",
    ),
    g.Mistake(
        "divides more by tp or pp than it needs",
        "tp communicates in every layer, and nothing hides it. The bubble is (pp - 1)/(virtual m), "
        "and the head slows the last rank of a deep pipeline. Use no more than memory needs.",
        g.patches(SECONDS, MOST.format("tp"), MOST.format("pp")),
        over_budget=lambda s: slow_by(s) not in ("", "recomputation", "dp"),
    ),
]

GRADER = [
    g.Questions(
        functions=("why_not",),
        cases=layouts_to_explain,
        right=largest_part,
        same=is_same_part,
        mistakes=WHY_MISTAKES,
        closed=("labkit.calc",),
        shown="you name what fills the GPUs of a layout",
    ),
    g.Questions(
        functions=("layout",),
        cases=jobs_to_plan,
        right=lambda task, known: dict_of(fastest(known)),
        same=lambda got, right, case: (
            got.keys() == right.keys() and problem(case.known, got) is None
        ),
        fault=fault,
        describe=describe,
        mistakes=LAYOUT_MISTAKES,
        closed=("labkit.calc",),
        shown="your layouts keep the rules, fit, and take at most 1.2 times the shortest step",
    ),
]
