"""Adjoint pairs: <A x, y> = <x, A' y>, the serial gradient, and differences, on 1 to 4 ranks.

Every operation is one linear map from what all ranks have to what all ranks get.
"""

import functools

import pytest
import torch

from labkit import run
from labkit.collectives import (
    autograd,
    ring_all_gather,
    ring_reduce_scatter,
    tree_broadcast,
    tree_reduce,
)
from labkit.comm.shared_memory import SharedMemory

WORLD_SIZES = [1, 2, 3, 4]


def rows_RS(n):
    """rows[r][s]: rows from rank r to rank s; uneven, and some are zero."""
    return [[(3 * r + 2 * s + r * s + 2) % 4 for s in range(n)] for r in range(n)]


def splits_of(rank, n):
    rows = rows_RS(n)
    return {"send_splits": rows[rank], "recv_splits": [rows[source][rank] for source in range(n)]}


# name -> (rank, n) -> shape of a rank's input
SHAPES = {
    "all_reduce": lambda rank, n: (3, 2),
    "all_gather": lambda rank, n: (2, 3),
    "reduce_scatter": lambda rank, n: (2 * n, 3),
    "all_to_all": lambda rank, n: (2 * n, 3),
    "uneven all_to_all": lambda rank, n: (sum(rows_RS(n)[rank]), 2),
    "broadcast": lambda rank, n: (3, 2),
    "reduce": lambda rank, n: (3, 2),
}


def operation(name, world):
    root = world.size - 1
    return {
        "all_reduce": lambda x: autograd.all_reduce(x, world),
        "all_gather": lambda x: autograd.all_gather(x, world),
        "reduce_scatter": lambda x: autograd.reduce_scatter(x, world),
        "all_to_all": lambda x: autograd.all_to_all(x, world),
        "uneven all_to_all": lambda x: autograd.all_to_all(
            x, world, **splits_of(world.rank, world.size)
        ),
        "broadcast": lambda x: autograd.broadcast(x, world, root=root),
        "reduce": lambda x: autograd.reduce(x, world, root=root),
    }[name]


def serial(name, xs):
    """Compute the result of each rank from all ranks' inputs, in one process."""
    n, total = len(xs), functools.reduce(torch.add, xs) if name != "uneven all_to_all" else None
    rows = rows_RS(n) if name.startswith("uneven") else [[2] * n] * n
    match name:
        case "all_reduce":
            return [total] * n
        case "all_gather":
            return [torch.cat(xs)] * n
        case "reduce_scatter":
            return list(total.chunk(n))
        case "all_to_all" | "uneven all_to_all":
            blocks = [x.split(rows[rank]) for rank, x in enumerate(xs)]
            return [torch.cat([row[rank] for row in blocks]) for rank in range(n)]
        case "broadcast":
            return [xs[-1]] * n
        case "reduce":
            return [torch.zeros_like(total)] * (n - 1) + [total]


def loss(y, rank):
    """Another one on every rank, and not linear."""
    weight = torch.arange(1, y.numel() + 1, dtype=y.dtype).view(y.shape)
    return (torch.sin((rank + 1) * y) * weight).sum()


def random_input(name, rank, n):
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(SHAPES[name](rank, n), generator=generator, dtype=torch.float64)


def gradients(world):
    """By operation: <A x, y>, <x, A' y>, and the gradient of this rank's x."""
    found = {}
    for name in SHAPES:
        x = random_input(name, world.rank, world.size).requires_grad_()
        apply = operation(name, world)
        y = apply(x)
        cotangent = torch.randn_like(y)
        (pulled_back,) = torch.autograd.grad(y, x, cotangent)
        loss(apply(x), world.rank).backward()
        with torch.no_grad():
            found[name] = (
                world.all_reduce((y * cotangent).sum()).item(),
                world.all_reduce((x * pulled_back).sum()).item(),
                x.grad,
            )
    return found


@functools.cache
def gradients_of(world_size):
    return run(gradients, world_size).values


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("name", SHAPES)
def test_the_products_with_a_collective_and_its_adjoint_are_equal(name, world_size):
    for found in gradients_of(world_size):
        forward, backward, _ = found[name]
        assert forward == pytest.approx(backward, rel=1e-12, abs=1e-12)
        assert forward != 0


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("name", SHAPES)
def test_the_gradient_is_that_of_the_sum_of_all_losses_in_one_process(name, world_size):
    xs = [random_input(name, rank, world_size).requires_grad_() for rank in range(world_size)]
    losses = [loss(y, rank) for rank, y in enumerate(serial(name, xs))]
    expected = torch.autograd.grad(sum(losses), xs, allow_unused=True)
    for x, wanted, found in zip(xs, expected, gradients_of(world_size), strict=True):
        wanted = torch.zeros_like(x) if wanted is None else wanted
        torch.testing.assert_close(found[name][2], wanted, rtol=1e-12, atol=1e-12)


def differences(world):
    """By operation: the largest error of x.grad against a difference over one rank's element."""
    h, worst = 1e-6, {}
    for name in SHAPES:
        x = random_input(name, world.rank, world.size).requires_grad_()
        apply = operation(name, world)
        loss(apply(x), world.rank).backward()
        worst[name] = 0.0
        for rank in range(world.size):
            element = 1 if SHAPES[name](rank, world.size)[0] else None
            if element is None:
                continue
            sums = []
            for sign in (1, -1):
                moved = x.detach().clone()
                if rank == world.rank:
                    moved.view(-1)[element] += sign * h
                sums.append(world.all_reduce(loss(apply(moved), world.rank)).item())
            if rank == world.rank:
                slope = (sums[0] - sums[1]) / (2 * h)
                worst[name] = abs(slope - x.grad.view(-1)[element].item())
    return worst


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_moving_one_element_of_one_rank_moves_the_sum_of_losses_as_the_gradient_says(world_size):
    for worst in run(differences, world_size).values:
        # h**2 times a third derivative of at most 24 * 4**3 per element, and rounding over h.
        assert max(worst.values()) < 1e-6, worst


def same_loss_everywhere(world):
    """d/dw of L = w * sum of the data, of which every rank has a part: 1 + 2 + ... + n."""
    found = []
    for divisor in (1, world.size):
        w = torch.ones((), dtype=torch.float64, requires_grad=True)
        (autograd.all_reduce(w * (world.rank + 1), world) / divisor).backward()
        found.append(world.all_reduce(w.grad).item())
    return found


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_loss_that_every_rank_computes_counts_n_times_unless_it_is_divided(world_size):
    right = world_size * (world_size + 1) / 2
    for as_is, divided in run(same_loss_everywhere, world_size).values:
        assert as_is == world_size * right
        assert divided == pytest.approx(right)


def operations_of_backward(world):
    for name in SHAPES:
        x = random_input(name, world.rank, world.size).requires_grad_()
        y = operation(name, world)(x)
        with world.region(name):
            y.sum().backward()


PARTNERS = {
    "all_reduce": "all_reduce",
    "all_gather": "reduce_scatter",
    "reduce_scatter": "all_gather",
    "all_to_all": "all_to_all",
    "uneven all_to_all": "all_to_all",
    "broadcast": "all_reduce",  # which stands for a reduce
    "reduce": "broadcast",
}


def test_each_backward_is_its_partner_and_nothing_else():
    for timeline in run(operations_of_backward, 3).timeline:
        found = {
            region.name: [
                op.kind
                for op in timeline.operations
                if region.start_s <= op.posted_s <= region.end_s
            ]
            for region in timeline.regions
        }
        assert found == {name: [partner] for name, partner in PARTNERS.items()}


def second_derivative(world):
    """Differentiate the sum over ranks of y**3 twice, y = sum of x: 6 n y for the sum of all x."""
    x = torch.tensor(float(world.rank + 1), dtype=torch.float64, requires_grad=True)
    y = autograd.all_reduce(x, world)
    (first,) = torch.autograd.grad(y**3, x, create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    return first.item(), second.item()


def test_a_gradient_can_be_differentiated_once_more():
    n, total = 3, 6.0
    for first, second in run(second_derivative, n).values:
        assert first == pytest.approx(n * 3 * total**2)
        assert second == pytest.approx(n * n * 6 * total)


def odd_inputs(world):
    number = torch.tensor(2.0, requires_grad=True)
    gathered = autograd.all_gather(number)  # the default group
    gathered.sum().backward()
    splits = splits_of(world.rank, world.size)
    x = torch.ones(sum(splits["send_splits"]), 1, requires_grad=True)
    y = autograd.all_to_all(x, world, **splits)
    for given in splits.values():
        given[:] = [0] * world.size  # the caller's lists are the caller's
    y.expand(-1, 5).sum().backward()
    return gathered.shape, number.grad, x.grad


def test_single_numbers_expanded_gradients_and_lists_that_change():
    for shape, of_number, of_rows in run(odd_inputs, 3).values:
        assert shape == (3,)
        assert of_number == 3
        assert (of_rows == 5).all()


def inner_products(world):
    """<A x, y> and <x, A' y> on this rank, for collectives whose docstrings name a partner."""
    numel = 10  # divides by none of 3 and 4
    torch.manual_seed(world.rank)
    x = torch.randn(numel, dtype=torch.float64)
    chunk = torch.randn(len(x.tensor_split(world.size)[world.rank]), dtype=torch.float64)
    memory = SharedMemory(world, capacity_bytes=2**16)
    pairs = {
        "ring": (
            ring_reduce_scatter(x, world),
            chunk,
            ring_all_gather(chunk, numel, world),
        ),
        "shared memory": (
            memory.reduce_scatter(x),
            chunk,
            memory.all_gather(chunk, numel),
        ),
    }
    found = {
        name: ((reduced * y).sum().item(), (x * gathered).sum().item())
        for name, (reduced, y, gathered) in pairs.items()
    }
    root = world.size - 1
    y = torch.randn(numel, dtype=torch.float64)
    reduced = tree_reduce(x, root, world)
    spread = tree_broadcast(y if world.rank == root else torch.empty_like(y), root, world)
    at_root = (reduced * y).sum().item() if world.rank == root else 0.0
    found["tree"] = (at_root, (x * spread).sum().item())
    return found


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_the_collectives_that_name_a_partner_are_its_adjoint(world_size):
    values = run(inner_products, world_size).values
    for name in values[0]:
        forward, backward = (sum(found[name][i] for found in values) for i in (0, 1))
        assert forward == pytest.approx(backward, rel=1e-12), name
