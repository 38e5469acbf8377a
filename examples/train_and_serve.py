"""From training to serving: train a small GPT on two ranks, save it, serve it, and ask it.

    python examples/train_and_serve.py --out runs/tiny     train for minutes, then three answers
    labkit serve runs/tiny                                 the same model, until Ctrl-C

It learns the text of Python's standard library, byte by byte, so ask it to continue code.
"""

import argparse
from functools import partial
from pathlib import Path

import openai

import labkit
from labkit import arguments, serving
from labkit.checkpoint import Checkpointer, read_gpt
from labkit.data_parallel import DDP, train_step
from labkit.model import GPT, GPTConfig
from labkit.train import TrainConfig, fit, summed_losses

CONFIG = GPTConfig(context=128, num_layers=4, hidden=128, num_heads=4, num_kv_heads=2, rotary=True)
PROMPTS = ("def ", "import ", "    if ")


def train_and_save(world, settings, folder):
    """Train on both ranks, and save; return the loss before each step."""
    module = GPT(CONFIG, settings.seed)
    model = DDP(module, world)
    optimizer = settings.make_optimizer(module.parameters())
    parts = fit(partial(train_step, model, optimizer), CONFIG, settings)
    saved = Checkpointer(folder, model, optimizer, world, extra={"config": CONFIG})
    saved.save(settings.num_steps)
    return summed_losses(parts, world)


def main():
    """Train, save, serve, ask; the answers."""
    options = command_line()
    settings = TrainConfig(num_steps=options.steps, num_sequences=16, learning_rate=2e-3)
    run = labkit.run(train_and_save, 2, args=(settings, options.out), timeout=600)
    losses = run.values[0]
    print(f"{options.steps} steps on 2 ranks: loss {losses[0]:.2f} -> {losses[-1]:.2f}")
    with serving.serve(read_gpt(options.out), name="tiny") as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
        for prompt in PROMPTS:
            stream = client.completions.create(
                model="tiny", prompt=prompt, max_tokens=60, temperature=0.7, seed=0, stream=True
            )
            print(f"\n--- {prompt}", end="")
            for event in stream:
                print(event.choices[0].text, end="", flush=True)
    print()


def command_line():
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=arguments.count, default=400, help="of training; 400")
    parser.add_argument("--out", type=Path, required=True, help="a new folder for the checkpoint")
    return parser.parse_args()


if __name__ == "__main__":
    main()
