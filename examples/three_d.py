"""A small GPT trained in three dimensions beside the serial run, and what each axis sends.

    python examples/three_d.py                  8 ranks: dp 2 x pp 2 x tp 2
    python examples/three_d.py --tp 4 --dp 1    8 ranks: dp 1 x pp 2 x tp 4

10 steps in float64 with ZeRO-1 over dp, clipped by the global norm: the largest difference from the
serial run, of losses and of all parameters, is what rounding leaves. Then bytes that each rank
sends in a step, by axis: from the journal, beside labkit.calc's, which knows nothing of the code.
"""

import argparse

import torch

import labkit
from labkit import calc
from labkit.combined import CombinedTraining, gather_full_state, sent_by_axis, within
from labkit.mesh import Mesh, coordinates_at
from labkit.model import GPTConfig
from labkit.train import TrainConfig, Trained, train_serial

CONFIG = GPTConfig(vocab=256, context=16, num_layers=4, hidden=32, num_heads=4, ffn=64)
SETTINGS = TrainConfig(num_steps=10, num_sequences=8, dtype=torch.float64)
NUM_MICROBATCHES, MAX_NORM = 4, 1.0
COUNTED = "step 1"  # the first one sends shapes ahead of features, too
# Layouts that divide 8 sequences in 4 microbatches, 4 layers and 4 heads.
CHOICES = {"dp": (1, 2), "pp": (1, 2, 3, 4), "tp": (1, 2, 4)}
AXES = ("tp", "pp", "dp", "norm")


def trained(world: labkit.Group, sizes: dict[str, int]) -> tuple[Trained, list[range]]:
    """10 steps, each in a region of its own; and which layers each stage has."""
    mesh = Mesh(world, **sizes)
    training = CombinedTraining(
        mesh, CONFIG, SETTINGS, num_microbatches=NUM_MICROBATCHES, max_norm=MAX_NORM
    )
    batches = SETTINGS.batches(None, CONFIG.context)
    losses = []
    for step in range(SETTINGS.num_steps):
        with world.region(f"step {step}"):
            losses.append(training.step(batches.at(step))[0])
    state = gather_full_state(training.model)
    return Trained(training.global_losses(losses), state), training.model.layers


def predicted(sizes: dict[str, int], layers: list[range], rank: int) -> calc.Result:
    """Return calc's bytes of a rank's step."""
    config = calc.ModelConfig(
        layers=CONFIG.num_layers,
        hidden=CONFIG.hidden,
        heads=CONFIG.num_heads,
        ffn=CONFIG.ffn_hidden,
        vocab=CONFIG.vocab,
        context=CONFIG.context,
        biases=False,
    )
    return calc.combined_traffic_bytes(
        config,
        SETTINGS.num_sequences,
        layers,
        coordinates_at(rank, sizes),
        **sizes,
        microbatches=NUM_MICROBATCHES,
        itemsize=SETTINGS.dtype.itemsize,
        clipped=True,
    )


def rows_of(result: labkit.Run, sizes: dict[str, int]) -> list[tuple[int, str, float, int]]:
    """(rank, axis, predicted, measured) of the counted step."""
    layers = result.values[0][1]
    rows = []
    for rank, timeline in enumerate(result.timeline):
        measured = sent_by_axis(within(timeline, COUNTED), rank, sizes)
        said = predicted(sizes, layers, rank)
        rows += [(rank, axis, float(said[axis]), measured.pop(axis)) for axis in AXES]
        assert not any(measured.values()), "a step talks along axes only"
    return rows


def largest_differences(result: labkit.Run) -> tuple[float, float]:
    """Return the largest differences of any rank from the serial run: losses, parameters."""
    serial = train_serial(CONFIG, SETTINGS, max_norm=MAX_NORM)
    losses, parameters = [], []
    for each, _ in result.values:
        losses += [abs(a - b) for a, b in zip(each.losses, serial.losses, strict=True)]
        parameters.append(each.largest_difference(serial))
    return max(losses), max(parameters)


def main() -> None:
    """Train, compare, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for axis, choices in CHOICES.items():
        parser.add_argument(f"--{axis}", type=int, default=2, choices=choices, help="ranks; 2")
    sizes = vars(parser.parse_args())
    result = labkit.run(trained, sizes["dp"] * sizes["pp"] * sizes["tp"], (sizes,))
    of_losses, of_parameters = largest_differences(result)
    losses = result.values[0][0].losses
    print(f"{SETTINGS.num_steps} steps, loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    print(f"largest difference from the serial run: losses {of_losses:.1e}, ", end="")
    print(f"parameters {of_parameters:.1e}\n")
    print(f"{'rank':<6}{'coordinates':<20}{'axis':<6}{'predicted':>12}{'measured':>12}  bytes sent")
    for rank, axis, said, measured in rows_of(result, sizes):
        place = "  ".join(f"{a} {c}" for a, c in coordinates_at(rank, sizes).items())
        print(f"{rank:<6}{place:<20}{axis:<6}{said:>12,.0f}{measured:>12,}")


if __name__ == "__main__":
    main()
