"""Drills on what a layer of experts sends: its all-to-alls, and padding."""

from labkit import calc
from labkit.interview.drills.drill import drill
from labkit.interview.drills.question import Solution, Trap

_NOTEBOOK = "10_mixture_of_experts"
_FACTORS = (1.1, 1.25, 1.5)


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
            f"As much comes back to combine: {calc.bytes_text(forward)} sent.",
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
