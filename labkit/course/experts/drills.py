"""Drills on mixture of experts: parameters, capacity, dropped choices, all-to-alls."""

import random
from dataclasses import replace

from labkit import calc
from labkit.calc.parameters import mlp_parameters
from labkit.course.memory.drills import gated, sizes_of
from labkit.interview.drills.drill import Shown, drill
from labkit.interview.drills.question import Solution, Trap

_EXPERT_PROMPT = (
    "A mixture of experts has {layers} layers, {hidden} hidden features, {heads} heads and "
    "{kv_heads} key-value heads, in each layer {experts} experts, gated MLPs (SwiGLU) of {ffn} "
    "features, of which a token takes {k}, a vocabulary of {vocab}, not tied, no biases. "
)
_NOTEBOOK = "17_mixture_of_experts"
_FACTORS = (1.1, 1.25, 1.5)


_EXPERT_DRAWS = {
    "hidden heads kv_heads ffn vocab": [
        sizes_of(name) for name in ("mixtral-8x7b", "llama2-7b", "llama2-70b")
    ],
    "layers": (24, 32, 40, 56),
    "experts": (8, 16, 32),
    "k": (2, 4),
}


@drill(
    "mo-3",
    "Active parameters of a mixture of experts",
    difficulty=2,
    notebook="17_mixture_of_experts",
    prompt=_EXPERT_PROMPT + "How many parameters does a token go through?",
    draws=_EXPERT_DRAWS,
    unit="billion",
    digits=3,
    between=("3 billion", "400 billion"),
)
def active_parameters(
    layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, experts: int, k: int
) -> Solution:
    """Attention and embeddings whole, k of E experts."""
    dense = gated(layers, hidden, heads, kv_heads, ffn, vocab)
    config = replace(dense, num_experts=experts, top_k=k)
    active, whole = calc.active_parameters(config), calc.num_parameters(config)
    return Solution(
        active,
        [
            f"An expert has 3 x {hidden:,} x {ffn:,} = "
            f"{calc.count_text(mlp_parameters(config, ffn))} parameters.",
            f"{k} of them in each of {layers} layers: {active['experts']}.",
            f"Parameters that every token goes through: "
            f"{calc.count_text(float(active) - float(active['experts']))}.",
            f"Together {active}, of {whole} in all.",
        ],
        [
            Trap("all experts", whole, "A token takes only some of the experts."),
            Trap(
                "everything divided by the experts",
                float(whole) * k / experts,
                "Attention, norms and embeddings are whole for every token; only the experts are "
                "chosen among.",
            ),
            Trap(
                "one expert",
                calc.num_parameters(dense),
                "The router sends each token to more than one expert.",
            ),
            Trap(
                "experts alone",
                active["experts"],
                "A token goes through attention and embeddings as well.",
            ),
        ],
    )


@drill(
    "mo-3",
    "All parameters of a mixture of experts",
    difficulty=2,
    notebook="17_mixture_of_experts",
    prompt=_EXPERT_PROMPT + "How many parameters does it have in all?",
    draws=_EXPERT_DRAWS,
    unit="billion",
    digits=3,
    between=("10 billion", "2000 billion"),
)
def expert_parameters(
    layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, experts: int, k: int
) -> Solution:
    """E experts in each layer, all the rest once."""
    dense = gated(layers, hidden, heads, kv_heads, ffn, vocab)
    config = replace(dense, num_experts=experts, top_k=k)
    whole = calc.num_parameters(config)
    return Solution(
        whole,
        [
            f"An expert has 3 x {hidden:,} x {ffn:,} = "
            f"{calc.count_text(mlp_parameters(config, ffn))} parameters.",
            f"{layers} layers x {experts} experts: {whole['experts']}.",
            f"Attention: {whole['attention']}; embedding and head: {whole['embedding']} each.",
            f"Together {whole}.",
        ],
        [
            Trap(
                "times the number of experts",
                experts * float(calc.num_parameters(dense)),
                "Only the MLPs come several times; attention and embeddings are there once.",
            ),
            Trap(
                "active parameters",
                calc.active_parameters(config),
                "That is what a token goes through; all experts have to be stored.",
            ),
            Trap(
                "experts of two matrices",
                calc.num_parameters(replace(config, gated=False)),
                "A gated expert has three matrices: gate, up and down.",
            ),
        ],
    )


@drill(
    "mo-2",
    "Capacity of an expert",
    difficulty=1,
    notebook=_NOTEBOOK,
    prompt="A rank routes {tokens} tokens to {k} of {experts} experts each, with a capacity factor "
    "of {factor}, rounded up. How many of this rank's choices does an expert take at most?",
    draws={
        "tokens": (1000, 1500, 2000, 3000, 4096, 5000, 6000, 7000),
        "k": (2, 4),
        "experts": (16, 48, 64, 72, 96, 128),
        "factor": (1.1, 1.25, 1.3, 1.5),
    },
    unit="",
    digits=None,
    between=("8", "10000"),
)
def capacity_of_an_expert(tokens: int, k: int, experts: int, factor: float) -> Solution:
    """ceil(factor k N / E)."""
    capacity = int(calc.expert_capacity(tokens, experts, k, factor))
    exact = factor * k * tokens / experts
    return Solution(
        capacity,
        [
            f"There are {k} x {tokens:,} = {k * tokens:,} choices, "
            f"{k * tokens / experts:.6g} for each of {experts} experts if balanced.",
            f"Times {factor:g}: {exact:.6g}.",
            f"Rounded up: {capacity:,}.",
        ],
        [
            Trap(
                "tokens counted, not choices",
                calc.expert_capacity(tokens, experts, 1, factor),
                "Each token is sent to more than one expert.",
            ),
            Trap(
                "the capacity factor left out",
                calc.expert_capacity(tokens, experts, k, 1.0),
                "The factor leaves room for an uneven router.",
            ),
            Trap("rounded down", int(round(exact, 9)), "A capacity is rounded up."),
            Trap(
                "all experts together",
                calc.expert_capacity(tokens, 1, k, factor),
                "That is the room of all experts; each has its part.",
            ),
        ],
    )


def _routers() -> list[tuple[int, int, float, Shown]]:
    """Tokens, choices of each, factor, and how many choices fell on each of 8 experts."""
    rng, found = random.Random(8), []
    for _ in range(400):
        tokens, k = rng.choice((256, 400, 512, 800, 1024)), rng.choice((2, 2, 4))
        weights = [rng.uniform(0.4, 1.9) for _ in range(8)]
        loads = [int(tokens * k * weight / sum(weights)) for weight in weights]
        loads[rng.randrange(8)] += tokens * k - sum(loads)
        if max(loads) <= tokens:  # a token chooses an expert once
            shown = Shown(tuple(loads), ", ".join(map(str, loads)))
            found.append((tokens, k, rng.choice(_FACTORS), shown))
    return found


@drill(
    "mo-2",
    "Dropped choices",
    difficulty=2,
    notebook=_NOTEBOOK,
    prompt="A rank routes {tokens} tokens to {k} of 8 experts each. Its choices fall on the "
    "experts like this: {loads}. The capacity factor is {factor}, rounded up to whole choices. How "
    "many choices are dropped?",
    draws={"tokens k factor loads": _routers()},
    unit="",
    digits=None,
    between=("2", "3000"),
)
def dropped_choices(tokens: int, k: int, factor: float, loads: tuple[int, ...]) -> Solution:
    """Return the sum of each expert's choices above its capacity."""
    capacity = int(calc.expert_capacity(tokens, len(loads), k, factor))
    dropped = int(calc.dropped_choices(loads, capacity))
    over = [max(load - capacity, 0) for load in loads]
    return Solution(
        dropped,
        [
            f"Balanced, an expert gets {k} x {tokens} / {len(loads)} = "
            f"{k * tokens / len(loads):g} choices.",
            f"Its capacity is {factor:g} times that, rounded up: {capacity}.",
            f"Above it: {' + '.join(str(each) for each in over if each)} = {dropped}, "
            f"{dropped / (k * tokens):.1%} of all choices.",
        ],
        [
            Trap(
                "the capacity factor left out",
                calc.dropped_choices(loads, calc.expert_capacity(tokens, len(loads), k, 1.0)),
                "The factor makes the buffers larger than balance needs.",
            ),
            Trap(
                "capacity by tokens, not by choices",
                calc.dropped_choices(loads, calc.expert_capacity(tokens, len(loads), 1, factor)),
                "There are k choices for each token, and the capacity counts choices.",
            ),
            Trap(
                "the busiest expert alone",
                max(over),
                "Every expert above its capacity drops.",
            ),
            Trap(
                "all choices of the crowded experts",
                sum(load for load in loads if load > capacity),
                "An expert takes as many as fit, and drops what is above.",
            ),
            Trap(
                "free places filled by others",
                capacity * len(loads) - k * tokens,
                "That is the room left over in all; a choice is for one expert, and free places "
                "elsewhere do not help it.",
            ),
        ],
    )


@drill(
    "mo-1",
    "Bytes of the all-to-alls",
    difficulty=2,
    notebook=_NOTEBOOK,
    prompt="Experts are sharded over {ep} ranks. Each rank has {tokens} tokens of {hidden} bf16 "
    "features; a token goes to {k} of {experts} experts, evenly spread, nothing dropped. How many "
    "bytes does a rank send to others for one such layer in FORWARD, dispatch and combine "
    "together? (Counts are small: leave them out.)",
    draws={
        "ep": (4, 8, 16),
        "tokens": (2048, 4096, 8192, 16384),
        "hidden": (2048, 4096, 5120, 7168),
        "k": (2, 4, 8),
        "experts": (16, 64, 128),
    },
    unit="MB",
    digits=3,
    between=("10 MB", "10 GB"),
)
def all_to_all_bytes(ep: int, tokens: int, hidden: int, k: int, experts: int) -> Solution:
    """2 (n-1)/n N k D b."""
    sent = calc.balanced_expert_traffic_bytes(
        tokens, ep, num_experts=experts, top_k=k, hidden=hidden
    )
    dispatch, combine = (float(sent[f"forward, {way}"]) for way in ("dispatch", "combine"))
    forward = dispatch + combine
    backward = float(sent["backward, dispatch"]) + float(sent["backward, combine"])
    return Solution(
        forward,
        [
            f"Choices: {tokens:,} x {k} = {tokens * k:,} rows of {hidden:,} x 2 B.",
            f"{ep - 1}/{ep} of them go to other ranks: {calc.bytes_text(dispatch)} to dispatch.",
            f"Combining sends as much back: {calc.bytes_text(forward)} sent.",
        ],
        [
            Trap(
                "dispatch alone",
                dispatch,
                "The experts' answers travel back: a second all-to-all.",
            ),
            Trap(
                "backward too",
                forward + backward,
                "Backward sends as much again, but forward was asked for.",
            ),
            Trap(
                "each token once",
                forward / k,
                "A token travels once for each expert that it goes to.",
            ),
            Trap(
                "what stays on the rank counted too",
                forward * ep / (ep - 1),
                "An nth of the choices falls on the rank's own experts.",
            ),
        ],
    )


@drill(
    "mo-2",
    "All-to-alls of padded buffers",
    difficulty=3,
    notebook=_NOTEBOOK,
    prompt="Experts are sharded over {ep} ranks; each of the {experts} experts has, for every "
    "rank, a buffer of ceil({factor} k N/E) rows that travels whole, filled or not. A rank has N = "
    "{tokens} tokens of {hidden} bf16 features and k = {k}. How many bytes does it send to others "
    "for one layer, forward and backward?",
    draws={
        "ep": (4, 8, 16),
        "experts": (16, 32, 64),
        "factor": (1.25, 1.5, 2.0),
        "tokens": (2048, 4096, 8192),
        "hidden": (2048, 4096, 5120, 7168),
        "k": (2, 4),
    },
    unit="MB",
    digits=3,
    between=("20 MB", "20 GB"),
)
def padded_all_to_all(
    ep: int, experts: int, factor: float, tokens: int, hidden: int, k: int
) -> Solution:
    """4 (n-1)/n E C D b."""
    how = {"num_experts": experts, "top_k": k, "hidden": hidden}
    sent = calc.padded_expert_traffic_bytes(tokens, ep, capacity_factor=factor, **how)
    balanced = calc.balanced_expert_traffic_bytes(tokens, ep, **how)
    rows = int(calc.expert_capacity(tokens, experts, k, factor))
    return Solution(
        sent,
        [
            f"A buffer has ceil({factor:g} x {k} x {tokens:,} / {experts}) = {rows:,} rows.",
            f"{experts - experts // ep} buffers go to other ranks, {hidden:,} x 2 B a row: "
            f"{calc.bytes_text(float(sent) / 4)} one way.",
            f"Dispatch and combine, forward and backward: {sent}.",
        ],
        [
            Trap(
                "forward only",
                float(sent) / 2,
                "Backward sends the gradients over the same ways.",
            ),
            Trap(
                "only rows that are filled",
                float(balanced) - float(balanced["forward, counts"]),
                "A buffer travels whole: padding costs as much as tokens.",
            ),
            Trap("one way", float(sent) / 4, "There are four: dispatch and combine, twice."),
            Trap(
                "own experts counted too",
                float(sent) * ep / (ep - 1),
                "The buffers of a rank's own experts stay where they are.",
            ),
        ],
    )
