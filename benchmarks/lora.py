"""Adapters beside peft's, on the same weights: equality, step time, memory; and what ranks send.

    facts        logits, losses and adapters of three steps in float64, to 1e-9; rows of several
                 adapters; gradients held and bytes sent, by labkit.calc; FSDP's gradients
    times        a step of one adapter, a forward pass of rows with several adapters: ratios to
                 peft, alternating in one process, medians with the interval that holds them

    python benchmarks/lora.py            about two minutes
    python benchmarks/lora.py --quick    10 s; fewer repetitions

The exit status is 1 if a fact is not so. Times decide nothing. Without peft its rows say "not run".
"""

import importlib.util
import sys
from functools import partial

import torch
from measure import added, alternate_in_rounds, command_line, machine

import labkit
from labkit import calc
from labkit.course.neighbours.evidence import adapters as evidence
from labkit.data import Batch
from labkit.lora import adapter_parameters, add_adapter, measure_methods, use_adapters
from labkit.model import GPT, GPTConfig
from labkit.optimizer import AdamW
from labkit.train import loss

CONFIG = GPTConfig(context=64, num_layers=4, hidden=256, num_heads=8)
TARGETS = ("query", "value")
RANK, ALPHA, NUM_ADAPTERS, NUM_ROWS = 8, 16.0, 4, 8
HAS_PEFT = importlib.util.find_spec("peft") is not None


def batch(seed: int) -> Batch:
    """Sequences of random tokens."""
    generator = torch.Generator().manual_seed(seed)
    windows = torch.randint(CONFIG.vocab, (NUM_ROWS, CONFIG.context + 1), generator=generator)
    return Batch(windows[:, :-1], windows[:, 1:])


def ours(names: list[str], dtype: torch.dtype) -> GPT:
    """Return a GPT with adapters whose B is not 0."""
    model = GPT(CONFIG, dtype=dtype)
    for seed, name in enumerate(names):
        add_adapter(model, name, RANK, alpha=ALPHA, targets=TARGETS, seed=seed)
        for parameter in adapter_parameters(model, name).values():
            with torch.no_grad():
                generator = torch.Generator().manual_seed(seed)
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    use_adapters(model, names[0])
    return model


def pefts(model: GPT, names: list[str], dtype: torch.dtype) -> torch.nn.Module:
    """Return peft's model with the same weights and adapters."""
    import peft

    settings = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=list(TARGETS))
    theirs = peft.get_peft_model(GPT(CONFIG, dtype=dtype), settings, adapter_name=names[0])
    for name in names[1:]:
        theirs.add_adapter(name, settings)
    parameters = dict(theirs.named_parameters())
    for name in names:
        for path, parameter in adapter_parameters(model, name).items():
            parameters[peft_name(path)].data = parameter.detach().clone()
    return theirs


def peft_name(path: str) -> str:
    """blocks.0.attention.query.adapters.p.a -> base_model.model....query.lora_A.p.weight"""
    layer, _, rest = path.partition(".adapters.")
    name, half = rest.split(".")
    return f"base_model.model.{layer}.lora_{half.upper()}.{name}.weight"


def step(model: torch.nn.Module, optimizer: AdamW, seed: int) -> float:
    """Make a step; return the loss before it."""
    optimizer.zero_grad()
    value = loss(model, batch(seed))
    value.backward()
    optimizer.step()
    return value.item()


def trained(model: torch.nn.Module) -> AdamW:
    """Return an optimizer over the parameters that are not frozen."""
    return AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)


def equal_to_peft() -> dict[str, bool]:
    """Compare three steps, and a batch whose rows use several adapters."""
    model = ours(["job"], torch.float64)
    theirs = pefts(model, ["job"], torch.float64)
    optimizers = trained(model), trained(theirs)
    near = partial(torch.allclose, rtol=1e-9, atol=1e-10)
    losses = [
        [step(each, optimizer, seed) for seed in range(3)]
        for each, optimizer in zip((model, theirs), optimizers, strict=True)
    ]
    parameters = dict(theirs.named_parameters())
    names = [str(number) for number in range(NUM_ADAPTERS)]
    several = ours(names, torch.float64)
    mixed = pefts(several, names, torch.float64).eval()
    rows = [None, *names, *names][:NUM_ROWS]
    use_adapters(several, rows)
    with torch.no_grad():
        found = several(batch(0).inputs_BT)
        expected = mixed(batch(0).inputs_BT, adapter_names=[each or "__base__" for each in rows])
    return {
        "losses of three steps": near(*map(torch.tensor, losses)),
        "adapters after three steps": all(
            near(p, parameters[peft_name(path)])
            for path, p in adapter_parameters(model, "job").items()
        ),
        f"logits of rows with {NUM_ADAPTERS} adapters and none": near(found, expected),
    }


def times(world: labkit.Group, repetitions: int) -> dict[str, list[float]]:
    """Seconds in each round, of a step and of a mixed forward pass; the lab's and peft's."""
    names = [str(number) for number in range(NUM_ADAPTERS)]
    model, several = ours(["job"], torch.float32), ours(names, torch.float32)
    theirs, mixed = pefts(model, ["job"], torch.float32), pefts(several, names, torch.float32)
    rows = [names[row % NUM_ADAPTERS] for row in range(NUM_ROWS)]
    use_adapters(several, rows)
    mixed.eval()
    tokens = batch(0).inputs_BT

    def forward(*args: object, **kwargs: object) -> None:
        with torch.no_grad():
            (several if not kwargs else mixed)(*args, **kwargs)

    candidates = {
        "step": partial(step, model, trained(model), 0),
        "step, peft": partial(step, theirs, trained(theirs), 0),
        "rows": partial(forward, tokens),
        "rows, peft": partial(forward, tokens, adapter_names=rows),
    }
    return alternate_in_rounds(world, candidates, repetitions)


def print_methods(num_ranks: int) -> dict[str, bool]:
    """Print what each method holds and sends; compare gradients, states and bytes with calc."""
    result = labkit.run(measure_methods, num_ranks, (CONFIG, batch(0), RANK), timeout=300)
    print(f"{num_ranks} ranks, DDP, AdamW, float32; bytes of rank 0")
    kinds = ("weights", "gradients", "optimizer states", "kept for backward", "sent in a step")
    print("  " + " " * 16 + "".join(f"{kind:>19}" for kind in kinds))
    facts = {}
    whole = GPT(CONFIG).num_parameters
    of_adapter = sum(
        p.numel() for p in adapter_parameters(ours(["job"], torch.float32), "job").values()
    )
    for method, usage in result.values[0].items():
        held = usage.at_end
        sent = sum(each.sent_bytes for each in result.timeline[0].within(f"{method}, step 1"))
        figures = (
            held["parameters"] + held["buffers"],
            held["gradients"],
            held["optimizer states"],
            usage.peak_of("activations"),
            sent,
        )
        print(f"  {method:<16}" + "".join(f"{figure:>19,}" for figure in figures))
        num = whole if method == "full" else of_adapter
        states = calc.model_state_bytes(num, "fp32")
        facts[f"{method}: gradients, states and traffic are calc's"] = (
            held["gradients"] == states["gradients"]
            and held["optimizer states"] == states["moments"]
            and sent == calc.step_traffic_bytes("ddp", num, num_ranks, itemsize=4)
        )
    return facts


def fsdp_facts() -> dict[str, bool]:
    """Print the gradients of FSDP over frozen and trained parameters, as multiples of the need."""
    print("gradients after backward on 2 ranks, in multiples of the adapters' shards")
    ratios = {way: evidence.gradient_ratio(way) for way in evidence.WAYS}
    for way, ratio in ratios.items():
        print(f"  {way:<24}{ratio:>8.1f}")
    return {
        "FSDP with both in a unit holds the whole unit's gradient": ratios["FSDP"] > 100,
        "units apart, FSDP2 and the lab hold no more than twice the adapters'": all(
            ratio <= 2 for way, ratio in ratios.items() if way != "FSDP"
        ),
    }


def main() -> None:
    """Print tables and facts; exit with 1 if a fact is not so."""
    parser = command_line(__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, about 10 s")
    quick = parser.parse_args().quick
    print(f"GPT of {GPT(CONFIG).num_parameters / 1e6:.1f} M, rank {RANK}. {machine()}")
    facts = print_methods(2) | fsdp_facts()
    if HAS_PEFT:
        facts |= equal_to_peft()
        measured = labkit.run(times, 1, (7 if quick else 41,), timeout=500).values[0]
        for name, what in (
            ("step", "a step with one adapter"),
            ("rows", f"forward, {NUM_ROWS} rows of {NUM_ADAPTERS} adapters"),
        ):
            mine, theirs = measured[name], measured[f"{name}, peft"]
            print(f"{what}: {added(mine, theirs)} against peft")
    else:
        print("beside peft: not run: pip install peft")
    for fact, holds in facts.items():
        print(f"{'yes' if holds else 'NO '}  {fact}")
    if not all(facts.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
