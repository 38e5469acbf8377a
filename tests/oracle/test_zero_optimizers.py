"""zero1 and zero2 equal one process with the whole batch, and keep 1/n of what they shard.

In float64, so that an average that is wrong by a part in a billion shows.
"""

import copy
import io
from functools import cache, partial

import pytest
import torch
from torch import nn

from labkit import Group, RankError, calc, optimizer, run
from labkit.data_parallel import DDP
from labkit.global_norm import clip
from labkit.large_batch import LAMB, LARS
from labkit.memory import Meter
from labkit.precision import LossScaler
from labkit.zero import (
    LIBRARY,
    RING,
    SHARED_MEMORY,
    FullyShardedModule,
    Zero1Optimizer,
    Zero2Optimizer,
    merged,
    plain_zero1,
)
from labkit.zero.flat import by_parameters

WIDTH = 5
NUM_SEQUENCES = 7  # divides by none of 2, 3 and 4
NUM_STEPS = 2
# Some hundred additions in another order, two steps, and divisions by a size that is small at
# first: about 1,000 eps.
TOLERANCE = {dtype: 1000 * torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64)}


class Module(nn.Module):
    """Tied, frozen and channels-last parameters, of two dtypes, and shapes that do not divide."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.frozen = nn.Linear(WIDTH, WIDTH, dtype=torch.float64).requires_grad_(False)
        self.tied = nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.float64)
        self.tied.weight = self.first.weight
        # Two channels: with one, channels-last is the usual order.
        self.conv = nn.Conv2d(2, 3, 2, dtype=torch.float64).to(memory_format=torch.channels_last)
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
        self.single = nn.Linear(WIDTH, 3)
        self.spare = nn.Linear(WIDTH, 2, dtype=torch.float64)

    def forward(self, x, use_spare=True):
        h = self.tied(torch.tanh(self.frozen(self.first(x)))) * self.scale
        rows, columns = h[:, :, None], h[:, None, :]
        images = self.conv(torch.stack([rows * columns, rows + columns], 1))
        y = images.sum((1, 2, 3))
        y = y + self.spare(h).sum(1) if use_spare else y
        # Apart, so that single precision does not reach the other parameters.
        return torch.stack([y, self.single(x.float()).double().sum(1)])


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(NUM_SEQUENCES, WIDTH, generator=generator, dtype=torch.float64)


def loss(model, x, num_ranks=1, **how):
    """A rank's share counts as much as it has sequences."""
    return (model(x, **how) ** 2).sum() / NUM_SEQUENCES * num_ranks


TORCH = {
    "SGD": (torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9, "weight_decay": 0.1}),
    "AdamW": (torch.optim.AdamW, {"lr": 1e-2}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 1e-2}),
    "RAdam": (torch.optim.RAdam, {"lr": 1e-2}),
    "Adafactor": (torch.optim.Adafactor, {"lr": 1e-2}),
}
LABS = {
    "lab's SGD": (optimizer.SGD, {"learning_rate": 1e-3, "momentum": 0.9}),
    "lab's AdamW": (optimizer.AdamW, {"learning_rate": 1e-2}),
    "LARS": (LARS, {"learning_rate": 1.0}),
    "LAMB": (LAMB, {"learning_rate": 1e-2}),
}
ALL = TORCH | LABS


# Element-wise optimizers: zero2 takes no others.
BY_ELEMENT = ["SGD", "AdamW", "lab's AdamW"]


class PlainZero1:
    """The plain rung, on one flat tensor of all parameters of a dtype."""

    def __init__(self, params, optimizer_class, group, **settings):
        self.group, self.flats, params = group, [], list(params)
        for p in params:
            group.broadcast(p.data, root=0, out=p.data)
        trained = [p for p in params if p.requires_grad]
        for dtype in {p.dtype: None for p in trained}:
            own = [p for p in trained if p.dtype == dtype]
            flat = torch.cat([p.detach().flatten() for p in own])
            for p, part in zip(own, flat.split([p.numel() for p in own]), strict=True):
                p.data = part.view(p.shape)
            self.flats.append((own, flat, OfShard(optimizer_class, settings)))

    def step(self):
        for own, flat, each in self.flats:
            gradients = torch.cat([p.grad.flatten() for p in own])
            plain_zero1.zero1_step(flat, gradients, each, self.group)
            for p in own:
                p.grad = None


class OfShard:
    def __init__(self, optimizer_class, settings):
        self.shard = nn.Parameter(torch.empty(0))
        self.optimizer = optimizer_class([self.shard], **settings)

    def step(self, weights, gradients):
        self.shard.data = weights
        self.shard.grad = gradients
        self.optimizer.step()


LADDER = {
    "plain zero1": PlainZero1,
    "zero1": Zero1Optimizer,
    "zero2": partial(Zero2Optimizer, bucket_bytes=200),
    "zero2, one bucket": Zero2Optimizer,
}


def values(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@cache
def serial(name, num_steps=NUM_STEPS, num_microbatches=1, **how):
    optimizer_class, settings = ALL[name]
    model = Module()
    each = optimizer_class([p for p in model.parameters() if p.requires_grad], **settings)
    for step in range(num_steps):
        each.zero_grad()
        for microbatch in range(num_microbatches):
            loss(model, batch(step + 100 * microbatch), **how).backward()
        each.step()
    return values(model)


def trained(
    world: Group, name, rung="zero1", num_steps=NUM_STEPS, num_microbatches=1, how=None, **options
):
    optimizer_class, settings = ALL[name]
    model = Module()
    if world.rank:
        for parameter in model.parameters():
            parameter.data.mul_(0.5)  # rank 0's count
    each = LADDER[rung](model.parameters(), optimizer_class, world, **options, **settings)
    for step in range(num_steps):
        for microbatch in range(num_microbatches):
            share = batch(step + 100 * microbatch).tensor_split(world.size)[world.rank]
            loss(model, share, world.size, **(how or {})).backward()
        each.step()
    return values(model)


def assert_equals(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        tolerance = TOLERANCE[value.dtype]
        torch.testing.assert_close(found[name], value, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_parameters_equal_those_of_one_process(world_size):
    # The layout is the same for all optimizers of a kind: one of each kind, and all on 3 ranks.
    whole, by_element = (ALL, BY_ELEMENT) if world_size == 3 else (["LAMB", "AdamW"], ["AdamW"])
    cases = [(name, {}) for name in whole]
    cases += [(name, {"rung": rung}) for rung in ("plain zero1", "zero2") for name in by_element]
    cases += [("AdamW", {"rung": "zero2, one bucket"})]
    everyone = run(several, world_size, (cases,), timeout=600).values
    for number, (name, _) in enumerate(cases):
        for found in everyone:
            assert_equals(found[number], serial(name))
            for key, value in everyone[0][number].items():
                assert torch.equal(found[number][key], value), "ranks part"


def several(world, cases):
    """Each case of `trained`, in one launch."""
    return [trained(world, name, **case) for name, case in cases]


def test_microbatches_add_up_on_every_backend():
    cases = [
        ("AdamW", {"num_steps": 2, "num_microbatches": 3, "backend": backend, "rung": rung})
        for backend in (RING, SHARED_MEMORY, LIBRARY)
        for rung in ("zero1", "zero2")
    ]
    expected = serial("AdamW", num_steps=2, num_microbatches=3)
    for values_of_rank in run(several, 3, (cases,)).values:
        for found in values_of_rank:
            assert_equals(found, expected)


@pytest.mark.parametrize("rung", ["zero1", "zero2"])
def test_a_parameter_that_no_rank_uses_does_not_change_and_one_that_some_ranks_use_does(rung):
    def some_use(world):
        options = {"rung": rung, "find_unused_parameters": True}
        everywhere = trained(world, "AdamW", how={"use_spare": False}, **options)
        here_and_there = trained(world, "AdamW", how={"use_spare": world.rank == 1}, **options)
        return everywhere, here_and_there

    for everywhere, here_and_there in run(some_use, 3).values:
        assert_equals(everywhere, serial("AdamW", use_spare=False))
        assert not torch.equal(here_and_there["spare.weight"], everywhere["spare.weight"])


def test_a_parameter_that_one_microbatch_of_several_uses_counts():
    def trains(world):
        found = []
        for make in (Zero1Optimizer, Zero2Optimizer):
            a, b = (nn.Parameter(torch.zeros(2)) for _ in range(2))
            each = make([a, b], torch.optim.SGD, world, lr=1.0, find_unused_parameters=True)
            (a + b).sum().backward()
            a.sum().backward()
            each.step()
            found.append((a.tolist(), b.tolist()))
        return found

    for found in run(trains, 2).values:
        assert found == [([-2.0, -2.0], [-1.0, -1.0])] * 2


@pytest.mark.parametrize("rung", ["zero1", "zero2, one bucket"])
def test_without_find_unused_parameters_a_missing_gradient_is_an_error_with_its_name(rung):
    def leaves_out(world):
        model = Module()
        each = LADDER[rung](model.named_parameters(), torch.optim.SGD, world, lr=1e-3)
        loss(model, batch(0), use_spare=world.rank == 0).backward()
        each.step()

    with pytest.raises(RankError, match="rank 1: no gradient for spare"):
        run(leaves_out, 2)


def test_more_ranks_than_numbers_leave_some_ranks_without_states():
    def trains_three(world):
        w = nn.Parameter(torch.arange(3.0, dtype=torch.float64))
        numels = []
        for adam, settings in ((torch.optim.AdamW, {"lr": 0.1}), (optimizer.AdamW, LAB)):
            one = Zero1Optimizer([w], adam, world, **settings)
            (w**2).sum().backward()
            one.step()
            numels.append(sum(t.numel() for t in one.state_tensors()))
        return w.detach(), numels

    LAB = {"learning_rate": 0.1}

    w = nn.Parameter(torch.arange(3.0, dtype=torch.float64))
    for settings in ({}, {"betas": (0.9, 0.95), "weight_decay": 0.1}):
        one = torch.optim.AdamW([w], lr=0.1, **settings)
        w.grad = 2 * w.detach()
        one.step()
    found = run(trains_three, 4).values
    for after, _ in found:
        torch.testing.assert_close(after, w.detach(), rtol=1e-12, atol=1e-12)
    assert [numels for _, numels in found] == [[3, 2], [3, 2], [3, 2], [0, 0]], "torch counts steps"


def test_an_empty_parameter_is_allowed():
    def trains(world):
        w, empty = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(0, 4))
        for make in (Zero1Optimizer, Zero2Optimizer):
            each = make([empty, w], torch.optim.SGD, world, lr=0.5)
            (w.sum() + empty.sum()).backward()
            each.step()
        return w.tolist()

    assert run(trains, 2).values == [[0.0] * 3] * 2


def test_whole_parameters_are_dealt_largest_first_to_the_rank_with_the_least():
    layout = by_parameters([1, 1, 1, 3], num_ranks=2)
    assert (layout.offsets, layout.numel) == ((3, 4, 5, 0), 2 * 3)


@pytest.mark.parametrize("strategy", ["zero1", "zero2"])
def test_traffic_is_the_papers_with_one_microbatch_and_with_several(strategy):
    numel, k, num_steps = 1001, 3, 2

    def steps(world):
        w = nn.Parameter(torch.zeros(numel))
        each = LADDER[strategy]([w], torch.optim.SGD, world, lr=0.1)
        world.barrier()
        with world.region("steps"):
            for _ in range(num_steps):
                for _ in range(k):
                    (w * w).sum().backward()
                each.step()

    for n in (1, 2, 3):
        padded = -(-numel // n) * n
        expected = calc.step_traffic_bytes(strategy, padded, n, microbatches=k, itemsize=4)
        rounds = {"zero1": 2, "zero2": k + 1}[strategy]
        assert float(expected) == rounds * (n - 1) / n * 4 * padded
        for timeline in run(steps, n).timeline:
            assert sent_in(timeline, "steps") == num_steps * float(expected)


def sent_in(timeline, name):
    (region,) = [each for each in timeline.regions if each.name == name]
    return sum(
        each.sent_bytes
        for each in timeline.operations
        if region.start_s <= each.posted_s <= region.end_s
    )


@pytest.mark.parametrize("level", [1, 2])
def test_sharded_states_take_exactly_one_nth(level):
    width, num_layers = 60, 8
    numel, bucket = num_layers * width**2, 4 * width**2

    def measures(world):
        model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(num_layers)))
        make = Zero1Optimizer if level == 1 else partial(Zero2Optimizer, bucket_bytes=1)
        each = make(model.parameters(), torch.optim.Adam, world, lr=0.1)
        with Meter(model, each) as meter:
            for _ in range(2):
                model(torch.ones(1, width)).sum().backward()
                each.step()
        usage = meter.usage
        kinds = ("parameters", "gradients", "optimizer states")
        return {kind: usage.peak_of(kind) for kind in kinds}, len(each._inner.states)

    for world_size in (1, 3, 4):
        states = calc.model_state_bytes(numel, "fp32", zero=level, dp=world_size)
        for found, num_fragments in run(measures, world_size).values:
            assert found["parameters"] == float(states["parameters"]) == 4 * numel
            assert found["optimizer states"] == float(states["moments"]) + 4 * num_fragments
            beyond = found["gradients"] - float(states["gradients"])
            # Autograd makes a gradient before the hook moves it. zero2: into a bucket, of which one
            # is being filled while another is reduced.
            assert 0 <= beyond <= (1 if level == 1 else 3) * bucket


def test_a_step_needs_memory_for_one_shard_only():
    numel = 10_000

    def steps(world):
        w = nn.Parameter(torch.zeros(numel))
        each = Zero1Optimizer([w], torch.optim.SGD, world, lr=0.1)
        w.sum().backward()
        with Meter() as meter:
            meter.mark([w, w.grad], "parameters")
            each.step()
        return meter.usage.peak_of("other")

    assert run(steps, 2).values == [4 * numel / 2] * 2


def saves_and_goes_on(world, name, parts, whole):
    """A step, then one more from a state: `parts` by rank, or whole, or what is saved here."""
    optimizer_class, settings = ALL[name]
    model = Module()
    each = Zero1Optimizer(model.parameters(), optimizer_class, world, **settings)

    def steps(numbers):
        for step in numbers:
            loss(model, batch(step).tensor_split(world.size)[world.rank], world.size).backward()
            each.step()

    if parts is None and whole is None:
        steps(range(1))
        saved = io.BytesIO()
        torch.save(each.state_dict(), saved)
        return model.state_dict(), saved.getvalue(), each.full_state_dict()
    model.load_state_dict(whole[0] if whole else parts[0])
    each.load_state_dict(whole[1] if whole else loaded(parts[1][world.rank]))
    steps(range(1, 2))
    return values(model)


def loaded(data):
    return torch.load(io.BytesIO(data), weights_only=True)


@pytest.mark.parametrize("name", ["AdamW", "Adafactor", "lab's AdamW", "LARS"])
def test_a_run_continues_from_a_whole_or_sharded_state_on_any_number_of_ranks(name):
    saved = run(saves_and_goes_on, 3, (name, None, None)).values
    model, _, whole = saved[0]
    assert [each[2] is None for each in saved] == [False, True, True]
    parts = [each[1] for each in saved]
    expected = serial(name)
    for found in run(saves_and_goes_on, 3, (name, (model, parts), None)).values:
        assert_equals(found, expected)
    for world_size, state in ((2, whole), (4, merged([loaded(each) for each in parts]))):
        for found in run(saves_and_goes_on, world_size, (name, None, (model, state))).values:
            assert_equals(found, expected)


def test_parts_are_merged_in_any_order_and_only_if_all_are_there():
    saved = run(saves_and_goes_on, 3, ("SGD", None, None)).values
    parts, whole = [loaded(each[1]) for each in saved], saved[0][2]
    found = merged(parts[::-1])
    assert found["state"].keys() == whole["state"].keys()
    for number, state in whole["state"].items():
        assert torch.equal(found["state"][number]["momentum_buffer"], state["momentum_buffer"])
    with pytest.raises(ValueError, match=r"ranks \[0, 1\] of \[3\]: give one part of every rank"):
        merged(parts[:2])


def test_present_settings_are_saved_and_loaded():
    def goes_on(world):
        w, v = (nn.Parameter(torch.ones(3)) for _ in range(2))
        first = Zero1Optimizer([w], torch.optim.SGD, world, lr=1.0)
        scheduler = torch.optim.lr_scheduler.StepLR(first, 1, gamma=0.5)
        w.sum().backward()
        first.step()
        scheduler.step()
        second = Zero1Optimizer([v], torch.optim.SGD, world, lr=1.0)
        state = first.state_dict()
        second.load_state_dict(state)
        v.sum().backward()
        second.step()
        return state["param_groups"][0]["lr"], v.tolist()

    assert run(goes_on, 2).values == [(0.5, [0.5] * 3)] * 2


def test_a_state_that_was_loaded_is_not_changed_by_the_steps_after():
    def goes_on(world):
        first, second = (
            Zero1Optimizer([nn.Parameter(torch.ones(4))], torch.optim.SGD, world, lr=1, momentum=1)
            for _ in range(2)
        )
        for each in (first, second):
            each.shards[0].flat.parameters[0].sum().backward()
            each.step()
            if each is first:
                state = first.state_dict()
                second.load_state_dict(state)
        return state["state"][0]["values"]["momentum_buffer"].tolist()

    assert run(goes_on, 2).values == [[1.0, 1.0]] * 2


def test_parameters_are_numbered_over_all_groups_and_frozen_ones_count():
    def numbers(world):
        a, frozen, b = (nn.Parameter(torch.ones(3)) for _ in range(3))
        groups = [{"params": [a, frozen.requires_grad_(False)]}, {"params": [b]}]
        each = Zero1Optimizer(groups, torch.optim.Adam, world)
        (a + b).sum().backward()
        each.step()
        whole = each.full_state_dict()
        return whole and (list(whole["state"]), [g["params"] for g in whole["param_groups"]])

    assert run(numbers, 2).values == [([0, 2], [[0, 1], [2]]), None]


def test_the_whole_state_is_that_of_torchs_own_optimizer_which_can_load_it():
    _, _, whole = run(saves_and_goes_on, 3, ("AdamW", None, None)).values[0]
    model = Module()
    own = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loss(model, batch(0)).backward()
    own.step()
    expected = own.state_dict()
    assert whole["state"].keys() == expected["state"].keys()
    for number, state in expected["state"].items():
        for key, value in state.items():
            torch.testing.assert_close(whole["state"][number][key], value, msg=f"{number} {key}")
    own.load_state_dict(whole)
    own.step()


def test_a_part_of_another_rank_or_number_of_ranks_is_refused_and_the_error_says_what_to_do():
    def loads_the_others(world):
        w = nn.Parameter(torch.zeros(5))
        each = Zero1Optimizer([w], torch.optim.Adam, world)
        mine = each.state_dict()
        each.load_state_dict({**mine, "rank": 1 - world.rank})

    with pytest.raises(RankError, match=r"part of rank \d of 2, but this .* load merged\(parts\)"):
        run(loads_the_others, 2)


def loads_what_fits_one_rank_only(world):
    w = nn.Parameter(torch.zeros(6))
    each = Zero1Optimizer([w], torch.optim.Adam, world, lr=0.1)
    w.sum().backward()
    each.step()
    before = copy.deepcopy(each.state_dict())
    part = {**before, "rank": 0} if world.rank else before  # rank 0's own, and not rank 1's
    part["param_groups"] = [{**part["param_groups"][0], "lr": 5.0}]
    try:
        each.load_state_dict(part)
    except ValueError as error:
        return str(error), each.param_groups[0]["lr"]


def test_a_state_that_does_not_fit_on_one_rank_is_loaded_on_none():
    (said_here, lr_here), (said_there, lr_there) = run(loads_what_fits_one_rank_only, 2).values
    assert "fits on this rank but not on another" in said_here
    assert "this is the part of rank 0 of 2, but this is rank 1" in said_there
    assert (lr_here, lr_there) == (0.1, 0.1)


def states_after(world, num_steps, lr):
    w = nn.Parameter(torch.zeros(5))
    each = Zero1Optimizer([w], torch.optim.Adam, world, lr=lr)
    for _ in range(num_steps):
        w.sum().backward()
        each.step()
    return each.state_dict()


def test_parts_of_several_runs_are_not_merged():
    early, late, faster = (
        run(states_after, 2, how).values for how in [(1, 1.0), (3, 1.0), (1, 2.0)]
    )
    assert merged(early)["state"][0]["exp_avg"].shape == (5,)
    for parts, said in (
        ([early[0], late[1]], "parts of parameter 0 are of several steps"),
        ([early[0], faster[1]], "settings of rank 1 differ from rank 0's"),
        ([early[0], early[1], late[0]], r"parts of ranks \[0, 0, 1\] of \[2\]"),
        ([early[0]], r"parts of ranks \[0\] of \[2\]: give one part of every rank"),
    ):
        with pytest.raises(ValueError, match=said):
            merged(parts)


def means_near_the_end_of_float16(world):
    found = []
    for make in (Zero1Optimizer, Zero2Optimizer):
        w = nn.Parameter(torch.ones(5, dtype=torch.float16))
        each = make([w], torch.optim.SGD, world, master_dtype=torch.float32, lr=1.0)
        (w * 40_000).sum().backward()
        found += each.reduce_gradients()
    module = nn.Linear(5, 1, bias=False)
    model = FullyShardedModule(module, world, torch.float16)
    model(torch.full((1, 5), 40_000.0)).sum().backward()
    return torch.cat([*found, *(p.grad for p in model.parameters() if p.grad is not None)])


def test_a_mean_that_float16_can_hold_does_not_overflow_while_it_is_summed():
    for found in run(means_near_the_end_of_float16, 2).values:
        assert len(found) >= 6 and torch.equal(found, torch.full_like(found, 40_000.0))


def clips_in_little_room(world):
    w = nn.Parameter(torch.zeros(10_000))
    each = Zero1Optimizer([w], torch.optim.SGD, world, lr=1.0)
    w.sum().backward()
    gradients = each.reduce_gradients()
    with Meter() as meter:
        meter.mark(gradients, "gradients")
        each.clip_gradients(1.0)
    return meter.usage.peak_of("other")


def test_clipping_takes_no_memory_besides_the_gradients():
    assert max(run(clips_in_little_room, 1).values) < 200


def test_gradients_are_clipped_by_their_norm_over_all_ranks():
    def clips(world):
        model = Module()
        each = Zero1Optimizer(model.parameters(), torch.optim.SGD, world, lr=1e-2)
        loss(model, batch(0).tensor_split(world.size)[world.rank], world.size).backward()
        norm = each.clip_gradients(0.5)
        each.step()
        return norm, values(model)

    model = Module()
    loss(model, batch(0)).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    torch.optim.SGD(model.parameters(), lr=1e-2).step()
    assert norm > 0.5
    for found, after in run(clips, 3).values:
        torch.testing.assert_close(found, norm.double())
        for name, value in values(model).items():
            torch.testing.assert_close(after[name], value, rtol=1e-5, atol=1e-7)


def test_the_norm_is_right_for_complex_gradients_and_for_squares_that_overflow_float16():
    def norms(world):
        half = torch.full((2,), 300.0, dtype=torch.float16)
        both = (half, torch.tensor([3.0 + 4.0j, 3.0 + 4.0j]))
        return [clip([(x, 1)], 1e6, world).item() for x in both]

    for large, of_complex in run(norms, 2).values:
        assert large == pytest.approx(600)
        assert of_complex == pytest.approx(10)


def test_all_ranks_skip_a_step_if_one_of_them_overflows():
    def overflows(world):
        w = nn.Parameter(torch.ones(5))
        each = Zero1Optimizer([w], torch.optim.SGD, world, lr=1.0)
        scaler = LossScaler(2.0, group=world)
        made = []
        for rank_with_inf in (1, None):
            scale = torch.tensor([torch.inf if world.rank == rank_with_inf else 1.0] * 5)
            scaler.scale((w * scale).sum()).backward()
            made.append(scaler.step(each, each.reduce_gradients()))
            each.zero_grad()
        return made, w.detach(), scaler.value

    for made, w, scale in run(overflows, 3).values:
        assert (made, scale) == ([False, True], 1.0)
        assert torch.equal(w, torch.zeros(5))


def test_clipping_does_not_change_small_gradients():
    def clips(world):
        w = nn.Parameter(torch.zeros(5))
        each = Zero1Optimizer([w], torch.optim.SGD, world, lr=1.0)
        (w * 2).sum().backward()
        each.clip_gradients(100.0)
        each.step()
        return w.detach()

    assert all(torch.equal(w, torch.full((5,), -2.0)) for w in run(clips, 2).values)


def test_a_gradient_that_the_program_sets_or_changes_is_used():
    def sets(world):
        w = nn.Parameter(torch.zeros(5))
        each = Zero1Optimizer([w], torch.optim.SGD, world, lr=1.0)
        w.grad = torch.full((5,), float(world.rank))
        each.step()
        (w * 2).sum().backward()
        w.grad = w.grad * 0.5
        each.step()
        return w.detach()

    assert all(torch.equal(w, torch.full((5,), -1.5)) for w in run(sets, 2).values)


@pytest.mark.parametrize("rung", ["zero1", "zero2"])
def test_a_pass_after_a_failed_one_is_right_after_zero_grad(rung):
    def fails_once(world):
        model = Module()
        each = LADDER[rung](model.parameters(), torch.optim.SGD, world, lr=1e-3)
        share = batch(0).tensor_split(world.size)[world.rank]
        handle = model.first.weight.register_hook(lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            loss(model, share, world.size).backward()
        handle.remove()
        each.zero_grad()
        loss(model, share, world.size).backward()
        each.step()
        return values(model)

    model = Module()
    loss(model, batch(0)).backward()
    torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3).step()
    for found in run(fails_once, 2).values:
        assert_equals(found, values(model))


def test_masters_are_copied_from_rank_0s_weights_and_again_if_a_state_has_none():
    def loads(world):
        w = nn.Parameter(torch.full((5,), 2.0 + world.rank, dtype=torch.bfloat16))
        settings = {"master_dtype": torch.float32, "lr": 0.5, "momentum": 0.0}
        each = Zero1Optimizer([w], torch.optim.SGD, world, **settings)
        w.sum().backward()
        each.step()
        first = w.tolist()
        state = torch.optim.SGD([nn.Parameter(torch.ones(5))], lr=0.5).state_dict()
        w.data.fill_(8.0)  # as load_state_dict of a model does
        each.load_state_dict(state)
        w.sum().backward()
        each.step()
        return first, w.tolist()

    assert run(loads, 2).values == [([1.5] * 5, [7.5] * 5)] * 2


def test_masters_of_whole_parameters_keep_their_order_in_memory():
    start = torch.randn(2, 3, 2, 2, generator=torch.Generator().manual_seed(0)).bfloat16()
    start = start.to(memory_format=torch.channels_last)

    def trains(world):
        w = nn.Parameter(start.clone())
        each = Zero1Optimizer([w], LAMB, world, master_dtype=torch.float32, learning_rate=1e-2)
        (w**2).sum().backward()
        each.step()
        return w.detach()

    w = nn.Parameter(start.float())
    (w**2).sum().backward()
    LAMB([w], learning_rate=1e-2).step()
    for found in run(trains, 2).values:
        torch.testing.assert_close(found, w.detach().bfloat16(), rtol=0.01, atol=0.01)


def test_masters_are_saved_and_loaded_also_of_whole_parameters():
    def goes_on(world, optimizer_class, settings):
        w = nn.Parameter(torch.ones(3, 5, dtype=torch.bfloat16))
        options = {"master_dtype": torch.float32, **settings}
        first = Zero1Optimizer([w], optimizer_class, world, **options)
        for _ in range(5):
            w.sum().backward()
            first.step()
        again = nn.Parameter(w.detach().clone())
        second = Zero1Optimizer([again], optimizer_class, world, **options)
        second.load_state_dict(first.state_dict())
        for _ in range(5):
            for each, of in ((first, w), (second, again)):
                of.sum().backward()
                each.step()
        masters = [[shard.masters for shard in each.shards] for each in (first, second)]
        return w.detach(), again.detach(), masters

    for optimizer_class, settings in ((torch.optim.AdamW, {"lr": 1e-4}), (LAMB, ALL["LAMB"][1])):
        for one, other, (masters, loaded) in run(goes_on, 2, (optimizer_class, settings)).values:
            assert torch.equal(one, other)
            for mine, theirs in zip(masters, loaded, strict=True):
                assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_zero2_holds_two_buckets_at_a_time_and_schedulers_find_the_usual_settings():
    width, num_layers = 60, 8

    def measures(world):
        model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(num_layers)))
        each = Zero2Optimizer(model.parameters(), torch.optim.AdamW, world, bucket_bytes=1)
        torch.optim.lr_scheduler.OneCycleLR(each, 0.1, total_steps=4)
        with Meter(model, each) as meter:
            model(torch.ones(1, width)).sum().backward()
            each.step()
        return meter.usage.peak_of("buffers")

    assert all(0 < peak <= 2 * 4 * width**2 for peak in run(measures, 2).values)


def test_schedulers_and_groups_change_the_settings_of_the_inner_optimizer():
    def schedules(world):
        a, b = (nn.Parameter(torch.ones(3)) for _ in range(2))
        groups = [{"params": [a]}, {"params": [b], "lr": 0.5}]
        each = Zero1Optimizer(groups, torch.optim.SGD, world, lr=1.0)
        scheduler = torch.optim.lr_scheduler.StepLR(each, 1, gamma=0.1)
        for _ in range(2):
            (a + b).sum().backward()
            each.step()
            scheduler.step()
        return a.detach(), b.detach()

    for a, b in run(schedules, 2).values:
        torch.testing.assert_close(a, torch.full((3,), 1 - 1.0 - 0.1))
        torch.testing.assert_close(b, torch.full((3,), 1 - 0.5 - 0.05))


def test_the_labs_optimizers_follow_the_settings_too_and_a_closure_is_called_with_gradients():
    def steps(world):
        w = nn.Parameter(torch.zeros(3))
        each = Zero1Optimizer([w], optimizer.SGD, world, learning_rate=1.0)

        def closure():
            loss = w.sum()
            loss.backward()
            return loss.item()

        losses = []
        for rate in (1.0, 0.5):
            each.param_groups[0]["learning_rate"] = rate
            losses.append(each.step(closure))
        return losses, w.tolist()

    assert run(steps, 2).values == [([0.0, -3.0], [-1.5] * 3)] * 2


def test_masters_keep_updates_that_16_bits_would_lose():
    def trains(world, master_dtype):
        w = nn.Parameter(torch.ones(5, dtype=torch.bfloat16))
        each = Zero1Optimizer([w], torch.optim.SGD, world, master_dtype=master_dtype, lr=1e-3)
        for _ in range(20):
            w.sum().backward()
            each.step()
        return w.detach().float(), sum(t.nbytes for t in each.state_tensors())

    for master_dtype, expected, nbytes in ((None, 1.0, 0), (torch.float32, 0.98, 12)):
        for after, held in run(trains, 2, (master_dtype,)).values:
            torch.testing.assert_close(after, torch.full((5,), expected), rtol=0, atol=0.004)
            assert held in (nbytes, max(0, nbytes - 4)), "5 numbers on two ranks, padded"


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        ("lbfgs", r"torch\.optim\.LBFGS computes inner products of all parameters"),
        ("an instance", "give a class, such as torch.optim.AdamW"),
        ("moved", r"parameter 0, \(3,\), was moved or got another dtype"),
        ("late backward", "a backward pass between reduce_gradients"),
        ("twice", "is given twice, or is in two groups"),
        ("twice in a group", "is given twice, or is in two groups"),
        ("frozen", "every parameter is frozen"),
        ("late group", "the parameters are sharded already"),
        ("other shapes", "rank 1 has 1 trained parameters, and their number, shapes"),
        ("other strides", "shapes, strides or dtypes differ from rank 0"),
        ("groups of the lab", "AdamW of the lab has one set of settings"),
        ("after DDP", "belongs to a module that is wrapped in DDP, whose hooks average"),
        ("scaler of torch", "torch.amp.GradScaler looks for inf on each rank alone"),
        ("unscaled by torch", "torch.amp.GradScaler looks for inf on each rank alone"),
        ("clipping of means", "clip_gradients.max_norm. of the sharded module or of the sharded"),
        ("copied", "cannot be copied or pickled; save state_dict"),
        ("frozen later", "parameter 0: frozen or unfrozen after the optimizer was made"),
        ("frozen later, by bucket", "parameter 0: frozen or unfrozen after the optimizer was made"),
        ("another model", r"groups of \[2\] parameters: it belongs to another model"),
        ("state of another model", r"exp_avg of parameter 0 has shape \(2,\), .* \(3,\)"),
        ("part of another model", "or its model has another layout: read the parts of all 2 ranks"),
        ("by hand", "a gradient was set by hand"),
        ("no backward", "no backward pass since the last step"),
        ("failed backward", "a failed one: call .* zero_grad.. after an exception"),
        ("whole by bucket", "looks at whole parameters, and buckets are cut by elements"),
        ("clipping of torch", r"clip_grad_norm_ computes .* or of the sharded optimizer"),
        ("sparse", "the gradient of parameter 0 is sparse"),
        ("sparse, by bucket", "the gradient of parameter 0 is sparse"),
        ("master dtype", "master_dtype='float32': give a dtype"),
        ("no state", "give the result of state_dict.. or full_state_dict.."),
    ],
)
def test_wrong_calls_are_refused_with_their_reason(misuse, message):
    def misuses(world):
        w = nn.Parameter(torch.ones(3 + (misuse == "other shapes") * world.rank))
        adam = torch.optim.AdamW
        if misuse == "after DDP":
            wrapped = DDP(nn.Linear(2, 2), world)
            Zero1Optimizer(wrapped.parameters(), adam, world)
        if misuse == "lbfgs":
            Zero1Optimizer([w], torch.optim.LBFGS, world)
        if misuse == "an instance":
            Zero1Optimizer([w], adam([w]), world)
        if misuse == "twice":
            Zero1Optimizer([{"params": w}, {"params": w}], adam, world)
        if misuse == "other strides":
            matrix = torch.ones(3, 2).t() if world.rank else torch.ones(2, 3)
            Zero1Optimizer([nn.Parameter(matrix)], adam, world)
        if misuse == "whole by bucket":
            Zero2Optimizer([w], LAMB, world, learning_rate=1e-3)
        if misuse == "no backward":
            Zero2Optimizer([w], adam, world).step()
        if misuse == "failed backward":
            first, second = (nn.Parameter(torch.ones(2)) for _ in range(2))
            by_bucket = Zero2Optimizer([first, second], adam, world)
            handle = second.register_hook(lambda _: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                (first + second.sin()).sum().backward()
            handle.remove()
            (first + second).sum().backward()
        if misuse.startswith("sparse"):
            table = nn.Embedding(4, 2, sparse=True)
            make = Zero2Optimizer if "bucket" in misuse else Zero1Optimizer
            sharded = make(table.parameters(), torch.optim.SGD, world, lr=1.0)
            table(torch.tensor([1])).sum().backward()
            sharded.step()
        if misuse == "twice in a group":
            Zero1Optimizer([w, w], adam, world)
        if misuse == "groups of the lab":
            groups = [{"params": w}, {"params": nn.Parameter(torch.ones(2))}]
            Zero1Optimizer(groups, optimizer.AdamW, world, learning_rate=1e-3)
        each = Zero1Optimizer([w.requires_grad_(misuse != "frozen")], adam, world)
        w.sum().backward()
        if misuse == "moved":
            w.data = w.data.double().float()
            each.step()
        if misuse == "late backward":
            each.reduce_gradients()
            w.sum().backward()
        if misuse == "late group":
            each.add_param_group({"params": nn.Parameter(torch.ones(2))})
        if misuse == "scaler of torch":
            scaler = torch.amp.GradScaler("cpu")
            scaler.scale(torch.ones(1))
            scaler.step(each)
        if misuse == "unscaled by torch":
            scaler = torch.amp.GradScaler("cpu")
            scaler.scale(torch.ones(1))
            scaler.unscale_(each)
        if misuse == "clipping of torch":
            nn.utils.clip_grad_norm_([w], 1.0)
        if misuse == "clipping of means":
            nn.utils.get_total_norm(each.reduce_gradients())
        if misuse == "copied":
            copy.deepcopy(each)
        if misuse == "frozen later":
            w.requires_grad_(False)
            each.step()
        if misuse == "frozen later, by bucket":
            first, second = (nn.Parameter(torch.ones(2)) for _ in range(2))
            by_bucket = Zero2Optimizer([first, second], adam, world)
            first.requires_grad_(False)
            (first + second).sum().backward()
        if misuse == "another model":
            groups = [{"params": [0, 1]}]
            each.load_state_dict({"state": {}, "param_groups": groups})
        if misuse == "state of another model":
            groups = [{"params": [0]}]
            each.load_state_dict({"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": groups})
        if misuse == "part of another model":
            others = Zero1Optimizer([nn.Parameter(torch.ones(9))], adam, world)
            each.load_state_dict(others.state_dict())
        if misuse == "by hand":
            other = nn.Parameter(torch.ones(2))
            by_bucket = Zero2Optimizer([other], adam, world)
            other.grad = torch.ones(2)
            by_bucket.step()
        if misuse == "master dtype":
            Zero1Optimizer([w], adam, world, master_dtype="float32")
        if misuse == "no state":
            each.load_state_dict([w])

    with pytest.raises(RankError, match=message):
        run(misuses, 2)
