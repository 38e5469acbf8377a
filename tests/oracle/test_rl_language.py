"""Rung 6: equal bits of trainer and engine, GRPO's gradient, weights by bytes needed, exactly once.

The sizes divide by nothing: 19 tokens of vocabulary, 26 features of the MLP, heads of 6.
"""

import os
import random
import signal
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial

import pytest
import torch

from labkit import RankError, run
from labkit.checkpoint import RolloutBank
from labkit.model import GPT, GPTConfig
from labkit.rl import (
    Copying,
    Generator,
    InvariantDecoder,
    InvariantGPT,
    Parts,
    Settings,
    Trainer,
    WeightSync,
    group_advantages,
    grpo_loss,
)
from labkit.rl.completion import Completion
from labkit.rl.figures import Figures
from labkit.rl.language import Trained, train
from labkit.serving import PagedCache, QueueFull, ScheduledTokens
from labkit.shards import named_shards
from labkit.tensor_parallel import parallelize
from labkit.zero import FullyShardedModule

CONFIG = GPTConfig(vocab=19, context=40, num_layers=2, hidden=24, num_heads=4, ffn=26)
LENGTH = 21


def same(a, b):
    return torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


def enlarged(model):
    """With larger weights than at the start, when all tokens are about equally likely."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(10 if weight.dim() == 2 else 1)
    return model


def tokens():
    return torch.randint(0, 19, (5, LENGTH), generator=torch.Generator().manual_seed(1))


def decoded(decoder, tokens_BT, draw=None):
    """Logits of all tokens in passes of random entries: prompts, chunks and single tokens.

    draw: None for one pass of all.
    """
    places = [0] * len(tokens_BT)
    cache = PagedCache(decoder.cache_config, 99, page_size=4)
    logits_BTV = torch.empty(*tokens_BT.shape, CONFIG.vocab)
    while min(places) < LENGTH:
        batch = []
        for row, start in enumerate(places):
            count = min(draw.choice([0, 1, 1, 4, 9]) if draw else LENGTH, LENGTH - start)
            if count:
                cache.reserve(row, start + count, LENGTH)
                chunk = tokens_BT[row, start : start + count].tolist()
                batch.append(ScheduledTokens(row, chunk, start, count))
        if batch:
            for entry, part in zip(
                batch, decoder(batch, cache).split([len(each.tokens) for each in batch])
            ):
                logits_BTV[entry.sequence, entry.start : entry.end] = part
                places[entry.sequence] = entry.end
    return logits_BTV


def layouts(world):
    """By layout and number of ranks, whether logits have the same bits; bytes; gradients."""
    torch.set_num_threads(1)
    tokens_BT, found, moved = tokens(), {}, {}
    whole = enlarged(InvariantGPT(CONFIG))
    expected_BTV = whole(tokens_BT).detach()
    for size in (1, 2, 4):
        group = world.split(0 if world.rank < size else None)
        if not group:
            continue
        module = InvariantGPT(CONFIG)
        module.load_state_dict(whole.state_dict())
        trainer = FullyShardedModule(module, group)
        found["trainer", size] = same(trainer(tokens_BT), expected_BTV)
        mine = tokens_BT.tensor_split(size)[group.rank], expected_BTV.tensor_split(size)
        found["trainer, its share", size] = same(trainer(mine[0]), mine[1][group.rank])
        engine = InvariantGPT(CONFIG, 5, group=group)
        sources = list(named_shards(trainer))
        for layout in ("ZeRO-3", "tensor parallel"):
            if layout == "tensor parallel" and size < 4:  # 4 heads, 19 rows, 26 features: uneven
                plain = GPT(CONFIG)
                plain.load_state_dict(whole.state_dict())
                sources = list(named_shards(parallelize(plain, group)))
            with torch.no_grad():
                for parameter in engine.parameters():
                    parameter.fill_(float("nan"))
            sync = WeightSync(group, sources, list(named_shards(engine)))
            sent = sync.send()
            row_N = sync.receive()
            is_untouched = all(p.isnan().all() for p in engine.parameters())
            sync.install(row_N)
            for each in sent:
                each.wait()
            passes = random.Random(size) if layout == "ZeRO-3" else None
            logits_BTV = decoded(InvariantDecoder(engine), tokens_BT, passes)
            found[f"engine, from {layout}", size] = is_untouched and same(logits_BTV, expected_BTV)
            moved[layout, size] = sync.received_bytes, _overlap_bytes(sources, engine)
    plain = GPT(CONFIG)
    plain.load_state_dict(whole.state_dict())
    return found, moved, float((plain(tokens_BT) - expected_BTV).abs().max())


def _overlap_bytes(sources, engine):
    """Bytes of the engine's weights that this rank does not have itself."""
    own = {}
    for shard in sources:
        own.setdefault(shard.name, []).append(shard.extent)
    needed = 0
    for shard in named_shards(engine):
        here = sum(
            overlap.numel
            for mine in own.get(shard.name, [])
            for overlap in shard.extent.overlaps(mine)
        )
        needed += shard.extent.numel - here
    return 4 * needed


@cache
def of_layouts():
    return run(layouts, 4)


def test_trainer_and_engine_have_equal_bits_on_1_2_and_4_ranks_whatever_the_batch():
    for found, _, difference in of_layouts().values:
        assert all(found.values()), found
        assert difference < 1e-4  # and it is the lab's GPT


def test_no_rank_receives_a_byte_of_weights_that_it_has_or_does_not_need():
    result = of_layouts()
    for rank, (_, moved, _) in enumerate(result.values):
        assert all(received == needed for received, needed in moved.values())
        operations = result.timeline[rank].operations
        received = sum(
            each.received_bytes for each in operations if each.label == "weights of a version"
        )
        assert received == sum(received for received, _ in moved.values())


def test_an_element_that_no_rank_has_is_reported_on_every_rank():
    def incomplete(world):
        model = InvariantGPT(CONFIG)
        shards = list(named_shards(model))
        with pytest.raises(ValueError, match="no rank has element 0 of norm.weight"):
            WeightSync(world, shards[:-1], shards)

    run(incomplete, 2)


# GRPO.
def naive_loss(log_probs, generated, reference, rewards_PG, lengths, clip, kl_weight):
    """The loss as it is written, one token after the other."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    answers = iter(range(rewards_PG.numel()))
    for rewards_G in rewards_PG.tolist():
        mean = sum(rewards_G) / len(rewards_G)
        variance = sum((reward - mean) ** 2 for reward in rewards_G) / len(rewards_G)
        for reward in rewards_G:
            b = next(answers)
            advantage = (reward - mean) / (variance**0.5 + 1e-4)
            for t in lengths[b]:
                r = torch.exp(log_probs[b, t] - generated[b, t])
                clipped = min(max(r, torch.tensor(1 - clip)), torch.tensor(1 + clip))
                d = reference[b, t] - log_probs[b, t]
                total = total - min(r * advantage, clipped * advantage)
                total = total + kl_weight * (torch.exp(d) - d - 1)
                count += 1
    return total / count


def test_the_gradient_of_grpo_is_that_of_the_loss_as_written():
    generator = torch.Generator().manual_seed(0)
    draw = partial(torch.randn, 12, 9, generator=generator, dtype=torch.float64)
    log_probs = (draw() - 2).requires_grad_()
    generated, reference = log_probs.detach() + draw() / 3, log_probs.detach() + draw() / 3
    rewards_PG = torch.rand(3, 4, generator=generator, dtype=torch.float64).round(decimals=1)
    rewards_PG[1] = 1.0  # a group that teaches nothing
    lengths = [range(b % 3, b % 3 + 1 + b % 5) for b in range(12)]
    mask = torch.zeros(12, 9, dtype=torch.bool)
    for b, places in enumerate(lengths):
        mask[b, list(places)] = True
    written = naive_loss(log_probs, generated, reference, rewards_PG, lengths, 0.2, 0.3)
    (expected,) = torch.autograd.grad(written, log_probs)
    generated = generated.where(mask, torch.tensor(-1e9, dtype=torch.float64))  # masked: any number
    advantages = group_advantages(rewards_PG).flatten()
    loss = grpo_loss(log_probs, generated, reference, advantages, mask, 0.2, 0.3)
    (found,) = torch.autograd.grad(loss, log_probs)
    assert torch.allclose(loss, written)
    assert torch.allclose(found, expected, atol=1e-12)
    assert expected[:4].abs().max() > 0


SMALL = Settings(
    config=GPTConfig(vocab=12, context=16, num_layers=1, hidden=16, num_heads=4),
    task=Copying(),
    num_updates=4,
    num_prompts=3,
    group_size=3,
    warm_start=1,
    max_running=4,
    in_flight=4,
    learning_rate=0.01,
)


def answers():
    """Nine answers of unequal lengths with random records."""
    draw = random.Random(0)
    made = []
    for number in range(9):
        drawn = [draw.randrange(12) for _ in range(1 + number % 4)]
        log_probs = [-draw.random() * 3 for _ in drawn]
        reward = float(draw.random() < 0.5)
        prompt = SMALL.task.prompt(number // 3)
        made.append(
            Completion(number // 3, number % 3, prompt, drawn, log_probs, [0] * len(drawn), reward)
        )
    return made


def stepped(world):
    """Parameters after a step on as many trainers, in float32."""
    found = {}
    for size in (1, 2, 3, 4):
        group = world.split(0 if world.rank < size else None)
        if group:
            trainer = Trainer(SMALL, group)
            trainer.freeze_reference()
            trainer.step(answers(), figures := Figures(0))
            found[size] = trainer.model.full_parameters(), figures
    return found


def test_a_step_on_1_to_4_trainers_is_that_of_one():
    found = run(stepped, 4).values[0]
    parameters, figures = found[1]
    for size in (2, 3, 4):
        for name, parameter in found[size][0].items():
            assert torch.allclose(parameter, parameters[name], atol=2e-6), (size, name)
        assert found[size][1].ratio == pytest.approx(figures.ratio, rel=1e-6)
        assert found[size][1].kl_generated == pytest.approx(figures.kl_generated, rel=1e-4)


# The loop.
class Killed(Trainer):
    """A trainer whose rank 1 dies in the middle of a step."""

    kill_in = 2

    def step(self, answers, figures):
        if self.group.rank == 1 and figures.version == self.kill_in:
            os.kill(os.getpid(), signal.SIGKILL)
        super().step(answers, figures)


class KilledGenerator(Generator):
    """An engine that dies after some of its answers."""

    kill_after = 13

    def _complete(self, id):
        super()._complete(id)
        self.num_done = getattr(self, "num_done", 0) + 1
        if self.number == 1 and self.num_done == self.kill_after:
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_job_that_is_killed_ends_in_the_same_bits_and_uses_each_rollout_once(tmp_path):
    settings = replace(SMALL, checkpoint_every=2)
    undisturbed = run(train, 4, (settings, tmp_path / "undisturbed")).values[0]
    folder = tmp_path / "killed"
    for parts in (Parts(generator=KilledGenerator), Parts(trainer=Killed)):
        with pytest.raises(RankError, match="SIGKILL"):
            run(train, 4, (settings, folder, parts))
    resumed = run(train, 4, (settings, folder)).values[0]
    assert [each.version for each in resumed.figures] == [2, 3]
    groups = [each.groups for each in undisturbed.figures]
    assert sum(groups, []) == list(range(12))
    assert [each.groups for each in resumed.figures] == groups[2:]
    for name, parameter in undisturbed.parameters.items():
        assert same(parameter, resumed.parameters[name]), name
    bank = RolloutBank(folder / "rollouts.log")
    stored = [Completion.from_bytes(each.payload) for each in bank.take(len(bank))]
    assert [(each.group, each.member) for each in stored] == [(n // 3, n % 3) for n in range(36)]


def test_synchronous_answers_are_on_policy_in_every_bit():
    settings = replace(SMALL, engine_ranks=2, max_new_tokens=4, sleep_every=2)
    trained, *others = run(train, 4, (settings,)).values
    assert others[1:] == [None, None]
    for each in trained.figures:
        assert (each.ratio, each.ratio_off, each.unchanged_off, each.lag) == (1, 0, 0, 0)
        assert each.effective_sample_size == 1 and each.kl_generated == 0
        assert each.served_norm == [pytest.approx(each.sent_norm, rel=1e-6)]
        assert len(each.idle_s) == 4
    seconds = sum(each.seconds for each in trained.figures)
    assert trained.idle_shares == [
        pytest.approx(sum(each.idle_s[rank] for each in trained.figures) / seconds)
        for rank in range(4)
    ]
    assert trained.idle_shares[2] == trained.idle_shares[3]  # one engine
    assert Trained([], {}).idle_shares == []


def test_staleness_is_bounded_and_running_answers_go_on_with_new_weights():
    settings = replace(
        SMALL, staleness=2, is_partial=True, num_updates=6, num_experts=3, max_new_tokens=8
    )
    slow = replace(settings, task=Copying(slow_s={1: 0.01}))
    trained = run(train, 3, (replace(slow, trainers=1),)).values[0]
    assert sum((each.groups for each in trained.figures), []) == list(range(18))
    assert max(each.lag_most for each in trained.figures) <= 2
    assert all(each.unchanged_off == 0 for each in trained.figures)
    assert trained.figures[0].ratio_off == 0  # the first batch: all of version 0
    assert not trained.stalled


class Forgetful(Generator):
    """An engine whose clients do not ask again when it has no room."""

    def add(self, group, member):
        with suppress(QueueFull):
            super().add(group, member)


def test_more_answers_than_an_engine_takes_are_found_as_a_stall_without_a_clock():
    settings = replace(SMALL, trainers=1, in_flight=30, num_prompts=4)
    trained = run(train, 2, (settings, None, Parts(generator=Forgetful))).values[0]
    assert "update 0 waits for 8 answers" in trained.stalled
    assert "engine 0" in trained.stalled
    with pytest.raises(RankError, match="the limit is max_waiting=4"):
        run(train, 2, (settings,))
