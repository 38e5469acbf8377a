"""Training in 16 bits: what underflows, what is skipped, and what a master copy keeps."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit import run
from labkit.model import GPT, GPTConfig
from labkit.optimizer import SGD, AdamW
from labkit.precision import LossScaler, MasterWeights, all_finite

CONFIG = GPTConfig(num_layers=2, hidden=64, num_heads=4, context=32)
TOKENS = torch.randint(0, 256, (4, 33), generator=torch.Generator().manual_seed(0))


def loss_of(gpt):
    logits = gpt(TOKENS[:, :-1]).float()
    return F.cross_entropy(logits.flatten(0, 1), TOKENS[:, 1:].flatten())


def gradients_of(dtype, scale):
    gpt = GPT(CONFIG, dtype=dtype)
    (loss_of(gpt) * scale).backward()
    return torch.cat([p.grad.flatten().double() for p in gpt.parameters()])


def lost(found, truth):
    """The share of gradients that are not 0, and came out as 0."""
    return ((found == 0) & (truth != 0)).double().mean().item()


def test_gradients_of_a_real_model_underflow_in_float16_and_a_scale_brings_them_back():
    truth = gradients_of(torch.float64, 1.0)
    plain = gradients_of(torch.float16, 2.0**-10)  # as in a model with ever smaller gradients
    scaled = gradients_of(torch.float16, 2.0**6)
    assert lost(plain, truth) > 0.1
    assert lost(scaled, truth) < 0.02
    as_bfloat16 = gradients_of(torch.bfloat16, 2.0**-10)
    assert lost(as_bfloat16, truth) < 0.02, "bfloat16 has float32's range"


def test_scaled_steps_are_those_without_a_scale():
    w = torch.ones(3, requires_grad=True)
    v = torch.ones(3, requires_grad=True)
    scaler = LossScaler(2.0**8)
    for _ in range(4):
        for parameter, step in ((w, None), (v, scaler)):
            optimizer = SGD([parameter], 0.1)
            parameter.grad = None
            loss = (parameter**3).sum()
            if step is None:
                loss.backward()
                optimizer.step()
            else:
                step.scale(loss).backward()
                assert step.step(optimizer, [parameter.grad])
    assert torch.equal(w, v), "a power of two changes no digit"


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_an_overflow_skips_the_step_and_halves_the_scale(bad):
    w = torch.ones(3, requires_grad=True)
    scaler, optimizer = LossScaler(1024.0), SGD([w], 0.1)
    w.grad = torch.tensor([1.0, bad, 1.0])
    assert not scaler.step(optimizer, [w.grad])
    assert torch.equal(w, torch.ones(3))
    assert (scaler.value, scaler.num_skipped) == (512.0, 1)


def test_the_scale_grows_after_an_interval_and_an_overflow_restarts_it():
    scaler = LossScaler(4.0, growth_interval=3)
    history = []
    for found_inf in (0, 0, 1, 0, 0, 0, 0, 0, 0):
        scaler.update(bool(found_inf))
        history.append(scaler.value)
    assert history == [4, 4, 2, 2, 2, 4, 4, 4, 8]


def test_the_scale_never_grows_out_of_its_numbers():
    scaler = LossScaler(2.0**1023, growth_interval=1)
    scaler.update(False)
    assert scaler.value == 2.0**1023, "twice as much is inf, and every step after it is skipped"


def test_a_loss_in_16_bits_is_scaled_in_32():
    loss = torch.tensor(2.0, dtype=torch.float16)
    assert LossScaler(2.0**16).scale(loss).item() == 2.0**17, "float16 ends at 65504"


def test_the_scale_settles_below_where_it_overflows():
    scaler, values = LossScaler(2.0**20, growth_interval=4), []
    for _ in range(60):
        gradient = torch.tensor([10.0 * scaler.value]).half().float()
        scaler.update(not all_finite([gradient]))
        values.append(scaler.value)
    assert set(values[20:]) <= {2.0**12, 2.0**13}, "10 * 2**13 is more than 65504"
    assert 8 <= scaler.num_skipped <= 20


def test_gradients_are_clipped_at_their_true_size():
    w = torch.zeros(4, requires_grad=True)
    scaler, optimizer = LossScaler(1024.0), SGD([w], 1.0)
    scaler.scale((w * 3).sum()).backward()
    assert scaler.unscale([w.grad])
    assert nn.utils.clip_grad_norm_([w], 1.0).item() == 6.0
    assert scaler.step(optimizer, [w.grad])
    torch.testing.assert_close(w.detach(), torch.full((4,), -0.5))


def test_what_is_unscaled_and_not_finite_is_skipped_and_what_is_unscaled_twice_refused():
    w = torch.ones(2, requires_grad=True)
    scaler, optimizer = LossScaler(1024.0), SGD([w], 0.1)
    for bad, is_made in ((math.inf, False), (1.0, True)):
        w.grad = torch.tensor([1.0, bad])
        assert scaler.unscale([w.grad]) == is_made
        with pytest.raises(RuntimeError, match="divided by the scale already"):
            scaler.unscale([w.grad])
        assert scaler.step(optimizer, [w.grad]) == is_made
    assert (scaler.value, scaler.num_skipped) == (512.0, 1)


def test_a_loss_that_is_not_finite_is_distinguished_from_a_scale_that_is_too_large():
    scaler = LossScaler(1.0)
    with pytest.raises(RuntimeError, match="it is not the scale. Look for them in the loss"):
        for _ in range(200):
            scaler.update(True)
    assert scaler.value >= 2.0**-126, "gradients can still be divided by it in float32"


def test_a_shorter_interval_after_a_restart_counts_what_was_before():
    scaler = LossScaler(4.0, growth_interval=3)
    scaler.load_state_dict({"value": 4.0, "num_good_steps": 5, "num_skipped": 0})
    scaler.update(False)
    assert scaler.value == 8.0


W = torch.ones(2, requires_grad=True)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: LossScaler(0), "initial=0"),
        (lambda: LossScaler(growth_interval=0), "growth_interval=0"),
        (lambda: LossScaler().step(SGD([W], 0.1), [None]), "leave out parameters whose .grad is"),
        (lambda: MasterWeights([W.detach().double()], SGD), "float32 master would lose digits"),
        (
            lambda: MasterWeights([W], lambda ms: SGD(ms, 0.1)).step(LossScaler()),
            "no parameter has a gradient",
        ),
    ],
)
def test_wrong_calls_are_refused(call, said):
    with pytest.raises((TypeError, ValueError, RuntimeError), match=said):
        call()


def test_it_goes_on_where_it_was():
    scaler, copy = LossScaler(8.0, growth_interval=3), LossScaler(1.0, growth_interval=3)
    scaler.update(True)
    scaler.update(False)
    scaler.update(False)
    copy.load_state_dict(scaler.state_dict())
    copy.update(False)
    assert (copy.value, copy.num_skipped) == (8.0, 1)


def test_one_rank_that_overflows_makes_all_skip():
    def program(world):
        w = torch.ones(2, requires_grad=True)
        scaler = LossScaler(4.0, group=world)
        made = []
        for step in range(3):
            w.grad = torch.full((2,), math.inf if (world.rank, step) == (1, 1) else 4.0)
            made.append(scaler.step(SGD([w], 0.1), [w.grad]))
        return made, w.tolist(), scaler.value

    results = run(program, 3).values
    assert results[0] == results[1] == results[2]
    assert results[0][0] == [True, False, True]


def test_all_finite_is_not_fooled_by_large_numbers():
    largest = torch.full((4,), torch.finfo(torch.float32).max)
    assert all_finite([largest, -largest]) and all_finite([])
    assert not all_finite([largest, torch.tensor([math.nan])])
    assert all_finite([torch.full((70_000,), 60_000.0, dtype=torch.float16)])
    assert all_finite([torch.full((2,), 1e300, dtype=torch.float64), torch.ones(0)])


def test_all_finite_looks_into_sparse_and_complex_gradients():
    row = torch.tensor([[0, 0], [1, 1]])
    with torch.sparse.check_sparse_tensor_invariants():
        sparse = [
            torch.sparse_coo_tensor(row, torch.tensor([1.0, x]), (2, 2)) for x in (2, math.inf)
        ]
    assert all_finite(sparse[:1]) and not all_finite(sparse)
    assert not all_finite([torch.tensor([complex(1, math.inf)])])


def test_small_updates_vanish_in_bfloat16_and_a_master_copy_keeps_them():
    bare = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    kept = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    masters = MasterWeights([kept], lambda masters: SGD(masters, 1e-3))
    for _ in range(100):
        bare.grad, kept.grad = torch.ones_like(bare), torch.ones_like(kept)
        SGD([bare], 1e-3).step()
        masters.step()
    assert bare.item() == 1.0, "each update is below half a step between neighbours"
    assert masters.masters[0].item() == pytest.approx(0.9, rel=1e-5)
    assert kept.item() == pytest.approx(0.9, rel=2**-8)
    assert kept.dtype is torch.bfloat16


def test_what_is_frozen_has_no_master_and_gradients_of_masters_go_with_the_step():
    trained, frozen = (nn.Parameter(torch.ones(2, dtype=torch.bfloat16)) for _ in range(2))
    masters = MasterWeights([trained, frozen.requires_grad_(False)], lambda each: SGD(each, 0.5))
    trained.grad = torch.ones_like(trained)
    masters.step()
    assert [master.tolist() for master in masters.masters] == [[0.5, 0.5]]
    assert masters.masters[0].grad is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_in_16_bits_learns_as_in_32(dtype):
    losses = {}
    for name in ("float32", "mixed"):
        gpt = GPT(CONFIG, dtype=torch.float32 if name == "float32" else dtype)
        masters = MasterWeights(gpt.parameters(), lambda masters: AdamW(masters, 3e-3))
        scaler = LossScaler(2.0**16) if dtype is torch.float16 and name == "mixed" else None
        for _ in range(20):
            masters.zero_grad()
            loss = loss_of(gpt)
            (loss if scaler is None else scaler.scale(loss)).backward()
            masters.step(scaler)
        losses[name] = loss_of(gpt).item()
    assert losses["mixed"] == pytest.approx(losses["float32"], rel=0.02)
