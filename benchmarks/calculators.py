"""The calculators and the planner beside numbers that others published or measured.

    python benchmarks/calculators.py                   every kind, and a summary
    python benchmarks/calculators.py tokens/s --all    all rows of one kind, not every fifth

published.csv has one row for each number: what ran, on what, the layout as Layout.parse reads it,
what is assumed, the published value and its source. `use` says where a row is no blind test.
Constants were "fitted" to it, or a form, a rounding or an option was chosen with the row "seen".

Rows of llm-foundry ran Triton's attention, whose share of the peak is given; without it those of
H100 are 9% off in the median. NVIDIA's page says that its tables are in FP8, and its TFLOP/s count
all pairs of tokens; NeMo's performance scripts keep gradients in 16 bits.

Memory of torchtitan's runs is what torch's allocator reserved, holes included. Ours is what tensors
take: the logits are freed before backward, DTensor gathers inputs, and stages have buffers, as the
source has it. The five runs of 405B with 1F1B compute microbatches of equally many tokens; they
reserved 75.3 to 84.9 GiB.

One run that ran is said not to fit: Llama 3 405B of 2,048 sequences on 8,192 GPUs, 78.2 GiB beside
4 reserved. Its authors free tensors that backward does not need, and do not say which.

Exit status 1 if an exact number differs: parameters, bytes of states.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from labkit import calc
from labkit.calc.plan import Assumptions, Job

_GIB = 2**30
_EXACT = {"parameters": 0.0, "states": 0.002}
"""Kinds that must agree, and by how much a printed number may be rounded."""
_WITHIN = 0.1

_mpt = partial(calc.ModelConfig, vocab=50368)
_gpt = partial(calc.ModelConfig, vocab=51200, context=2048)
_rotary = partial(calc.ModelConfig, tied=False, biases=False, learned_positions=False)
MODELS = {
    name: _mpt(layers=layers, hidden=hidden, heads=heads, context=2048)
    for name, layers, hidden, heads in (
        ("mpt-125m", 12, 768, 12), ("mpt-350m", 24, 1024, 16), ("mpt-760m", 24, 1536, 12),
        ("mpt-1b", 24, 2048, 16), ("mpt-3b", 32, 2560, 20), ("mpt-7b", 32, 4096, 32),
        ("mpt-13b", 40, 5120, 40), ("mpt-30b", 48, 7168, 56), ("mpt-70b", 80, 8192, 64),
    )
} | {
    f"gpt-{name}": _gpt(layers=layers, hidden=hidden, heads=heads)
    for name, layers, hidden, heads in (
        ("1.7b", 24, 2304, 24), ("3.6b", 30, 3072, 32), ("7.5b", 36, 4096, 32),
        ("18.4b", 40, 6144, 48), ("39.1b", 48, 8192, 64), ("76.1b", 60, 10240, 80),
        ("145.6b", 80, 12288, 96), ("310.1b", 96, 16384, 128), ("529.6b", 105, 20480, 128),
        ("1008b", 128, 25600, 160),
    )
} | {
    "gpt3-5b": _gpt(layers=24, hidden=4096, heads=32),
    "gpt3-20b": _gpt(layers=44, hidden=6144, heads=48),
    "gpt3-175b": _gpt(layers=96, hidden=12288, heads=96),
    "mt-nlg-530b": _gpt(layers=105, hidden=20480, heads=128),
    "bloom-176b": calc.ModelConfig(
        layers=70, hidden=14336, heads=112, vocab=250880, context=2048, learned_positions=False
    ),
    "nemotron3-8b": _rotary(
        layers=32, hidden=4096, heads=32, ffn=16384, vocab=256000, context=4096
    ),
    "nemotron3-22b": _rotary(
        layers=40, hidden=6144, heads=48, ffn=24576, vocab=256000, context=4096
    ),
    "nemotron4-340b": _rotary(
        layers=96, hidden=18432, heads=96, kv_heads=8, ffn=73728, vocab=256000, context=4096
    ),
    "llama-175b": _rotary(
        layers=96, hidden=12288, heads=96, kv_heads=8, ffn=39680, vocab=128256, context=4096,
        gated=True,
    ),
    "olmo2-32b": _rotary(
        layers=64, hidden=5120, heads=40, kv_heads=8, ffn=27648, vocab=100352, context=4096,
        gated=True, qk_norm="all",
    ),
    "qwen2-57b-a14b": calc.ModelConfig(
        layers=28, hidden=3584, heads=28, kv_heads=4, ffn=18944, vocab=151936, context=4096,
        num_experts=64, top_k=8, expert_ffn=2560, shared_experts=8, gated=True, tied=False,
        biases=("qkv",), learned_positions=False,
    ),
    # Its module for predicting a second token is one more layer, and shares the head.
    "deepseek-v3-mtp": replace(calc.MODELS["deepseek-v3"], layers=62),
}  # fmt: skip

# torchtitan's H100: HBM2e, 500 W. Its authors put the peak between the SXM's and the NVL's.
GPUS = {
    "h100-500w": replace(
        calc.GPUS["h100"], name="h100-500w", memory_bytes=95 * _GIB, memory_bytes_per_s=2.4e12,
        flops_per_s=835e12, fp8_flops_per_s=1670e12,
    )
}  # fmt: skip
_CLUSTERS = {"a100-80g": "a100", "a100-40g": "a100", "h100-500w": "h100"}


class Compared(NamedTuple):
    """A row of published.csv, and ours."""

    row: dict[str, str]
    ours: float
    refused: bool = False
    """The planner says that it does not fit."""

    @property
    def error(self) -> float:
        """Relative to the published value."""
        return self.ours / float(self.row["published"]) - 1


def _value(text: str) -> Any:
    words = {"true": True, "false": False}
    if text in words:
        return words[text]
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def _model(row: dict[str, str]) -> calc.ModelConfig:
    config = MODELS.get(row["model"]) or calc.MODELS[row["model"]]
    if row["model"].startswith("mpt-"):  # its table of positions is as long as the sequence
        config = replace(config, context=int(row["sequence"]))
    return config


def planned(row: dict[str, str]) -> tuple[Job, calc.Layout, dict[str, Any]]:
    """Return the job and the layout of a row, and its options that are no assumptions."""
    options = {name: _value(value) for name, _, value in _pairs(row["options"])}
    layout = calc.Layout.parse(row["layout"])
    layout = replace(layout, sequence_parallel=options.pop("sequence_parallel", True))
    known = {each.name for each in fields(Assumptions)}
    assumed = Assumptions(**{name: options.pop(name) for name in known & options.keys()})
    cluster = calc.CLUSTERS[_CLUSTERS.get(row["gpu"], row["gpu"])]
    slow = cluster.slow
    if "slow" in options:
        slow = replace(slow, bandwidth_bytes_per_s=options["slow"])
    cluster = replace(
        cluster, gpu=GPUS.get(row["gpu"], row["gpu"]), num_gpus=layout.world_size, slow=slow
    )
    job = Job(
        _model(row), row["recipe"], cluster, int(row["global_batch"]), int(row["sequence"]),
        precision=row["precision"], assumptions=assumed,
    )  # fmt: skip
    return job, layout, options


def _pairs(text: str) -> Iterator[tuple[str, str, str]]:
    return (word.partition("=") for word in text.split())


def compared(row: dict[str, str]) -> Compared:
    """Compute our value of a row."""
    kind = row["kind"]
    if kind == "parameters":
        return Compared(row, float(calc.num_parameters(_model(row))))
    if kind == "states":
        layout = calc.Layout.parse(row["layout"])
        states = calc.model_state_bytes(float(row["model"]), row["recipe"], layout.zero, layout.dp)
        return Compared(row, states.to("GiB"))
    if kind == "blocks":
        tp = calc.Layout.parse(row["layout"]).tp
        found = calc.requests_that_fit(row["model"], row["gpu"], 16, page_size=16, tp=tp)
        return Compared(row, float(found))
    job, layout, options = planned(row)
    if kind == "memory":
        return Compared(row, calc.plan.memory(job, layout).to("GiB"))
    found = calc.plan.estimate(job, layout)
    per_gpu = float(found.tokens_per_s) / layout.world_size
    ours = {
        "tokens/s": per_gpu,
        "MFU": float(found.mfu),
        "TFLOP/s": found.flops_per_s.to("TFLOP"),
        "s a step": float(found.step),
    }[row["unit"]]
    if options.get("pairs") == "all":
        of_token = calc.flops_per_token(
            job.config, sequence=job.length, parameters="matmul", causal=False
        )
        ours = per_gpu * float(of_token) / 1e12
    return Compared(row, ours, refused=float(found.memory) > job.room_bytes)


def rows() -> list[dict[str, str]]:
    """Return the rows of published.csv."""
    with (Path(__file__).parent / "published.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def _print_rows(found: list[Compared], every: int) -> None:
    for each in found[::every]:
        row = each.row
        what = " ".join(
            row[name] for name in ("model", "gpu", "precision", "sequence", "layout") if row[name]
        )
        print(
            f"  {what[:78]:78} {each.ours:12.5g} {float(row['published']):12.5g} "
            f"{each.error:+7.1%} {row['use']:6} {row['source'][:60]}"
        )


def _print_summary(found: list[Compared]) -> None:
    groups = defaultdict(list)
    for each in found:
        name = each.row["kind"]
        gpu = each.row["gpu"].split("-")[0] if name in ("tokens/s", "MFU") else ""
        use = each.row["use"] or "blind"
        groups[name, gpu, "all"].append(each)
        groups[name, gpu, use].append(each)
    print(f"{'':30} rows  within 10%  median error")
    for (name, gpu, use), members in sorted(groups.items()):
        errors = [abs(each.error) for each in members]
        close = sum(error <= _WITHIN for error in errors) / len(errors)
        print(
            f"{name:12} {gpu:8} {use:8} {len(members):4} {close:10.0%} "
            f"{statistics.median(errors):13.1%}"
        )


def main() -> int:
    """Print the tables, and return 1 if an exact number differs."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    kinds = sorted({row["kind"] for row in rows()})
    parser.add_argument("kind", nargs="?", choices=kinds, help="rows of one kind")
    parser.add_argument("--all", action="store_true", help="print every row, not every fifth")
    asked = parser.parse_args()
    found = [compared(row) for row in rows() if asked.kind in (None, row["kind"])]
    for kind in dict.fromkeys(each.row["kind"] for each in found):
        members = [each for each in found if each.row["kind"] == kind]
        print(f"\n{kind}, of a GPU: ours, published, error; rows that are not blind; source")
        _print_rows(members, 1 if asked.all or len(members) < 50 else 5)
    print()
    _print_summary(found)
    print(f"said not to fit, though they ran: {sum(each.refused for each in found)}")
    wrong = [
        each
        for each in found
        if each.row["kind"] in _EXACT and abs(each.error) > _EXACT[each.row["kind"]]
    ]
    for each in wrong:
        print(f"differs: {each.row['kind']} of {each.row['model']}: {each.ours:,.0f}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
