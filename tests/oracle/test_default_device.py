"""Tensors that labkit keeps on the host ignore torch's default device; here it is `meta`."""

import torch

from labkit import run
from labkit.checkpoint import Checkpointer
from labkit.data import Batches, Corpus
from labkit.model import GPT, GPTConfig
from labkit.optimizer import AdamW
from labkit.serving import (
    ContiguousCache,
    Decoder,
    Engine,
    PagedCache,
    Request,
    Sampling,
    SpeculativeEngine,
    chunked_prefill,
)

CONFIG = GPTConfig(vocab=19, context=40, num_layers=1, hidden=8, num_heads=2)
REQUESTS = [Request([1, 2, 3], 9), Request([1, 2], 12, Sampling(temperature=0.9, seed=3))]


def results(world, folder, device):
    """A batch, a loaded weight, and answers, with this default device."""
    model, draft = GPT(CONFIG), GPT(CONFIG, seed=1)
    corpus = Corpus.standard_library(1000)
    first, drafts = ContiguousCache(CONFIG, 80), ContiguousCache(CONFIG, 80)
    with torch.device(device):
        batch = Batches(corpus, 4, 3).at(1)
        checkpointer = Checkpointer(folder, model, AdamW(model.parameters(), 1e-2), world)
        checkpointer.save(1)
        with torch.no_grad():
            model.head.weight.add_(1)
        checkpointer.load()
        engines = [
            Engine(Decoder(model), first, chunked_prefill),
            SpeculativeEngine(
                Decoder(model),
                PagedCache(CONFIG, 20, 3),
                chunked_prefill,
                draft=Decoder(draft),
                draft_cache=drafts,
            ),
        ]
        answers = [engine.generate(REQUESTS) for engine in engines]
    return batch.inputs_BT, model.head.weight.detach(), answers


def test_batches_checkpoints_and_answers_do_not_depend_on_torchs_default_device(tmp_path):
    usual, on_meta = (run(results, 1, (tmp_path / d, d)).values[0] for d in ("cpu", "meta"))
    assert torch.equal(usual[0], on_meta[0])
    assert torch.equal(usual[1], on_meta[1])
    assert usual[2] == on_meta[2]
