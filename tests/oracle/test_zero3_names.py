"""zero3's parameters by name: groups of an optimizer, freezing, gradients and states go by them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit import run
from labkit.zero import FullyShardedModule

NUM_SEQUENCES = 7  # divides by none of 2, 3 and 4


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(5), nn.Linear(5, 5)

    def forward(self, x):
        return x + torch.tanh(self.linear(self.norm(x)))


class Model(nn.Module):
    """Biases, norms, an embedding that is tied to the head; few sizes divide by 2, 3 or 4."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(11, 5)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.norm = nn.LayerNorm(5)
        self.head = nn.Linear(5, 11)
        self.head.weight = self.embedding.weight
        self.double()

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def tokens(step):
    return torch.randint(11, (NUM_SEQUENCES, 3), generator=torch.Generator().manual_seed(step))


def backward(model, step, rank=0, num_ranks=1):
    """Run backward on a rank's share, scaled by its number of sequences."""
    share = tokens(step).tensor_split(num_ranks)[rank]
    loss = F.cross_entropy(model(share).flatten(0, 1), share.flatten(), reduction="sum")
    (loss / (NUM_SEQUENCES * 3) * num_ranks).backward()


def assert_parts_equal(by_rank, expected):
    """by_rank: what each rank has of each parameter; together it is all of it, in order."""
    for found in by_rank:
        assert list(found) == list(expected)
    for name, whole in expected.items():
        found = torch.cat([parts[name] for parts in by_rank])
        torch.testing.assert_close(found, whole.detach().flatten(), rtol=1e-11, atol=1e-11)


def values_of(model):
    return {name: p.detach() for name, p in model.named_parameters()}


def gradients_of(model):
    """No numbers where a rank has none of a parameter."""
    return {
        name: p.detach() if p.grad is None and not p.numel() else p.grad
        for name, p in model.named_parameters()
    }


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_parameters_have_the_names_and_the_order_of_the_module_and_are_views_of_the_shards(
    num_ranks,
):
    def shards(world):
        model = FullyShardedModule(Model(), world)
        storages = {shard.untyped_storage().data_ptr() for shard in model.shards}
        of_parameters = {p.untyped_storage().data_ptr() for p in model.parameters() if p.numel()}
        assert of_parameters <= storages
        assert all(p.dim() == 1 and p.is_leaf for p in model.parameters())
        return values_of(model)

    expected = values_of(Model())
    assert "head.weight" not in expected, "a tied parameter has its first name"
    assert_parts_equal(run(shards, num_ranks).values, expected)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_by_name_are_parts_of_the_serial_ones(set_to_none):
    def computes(world):
        model = FullyShardedModule(Model(), world)
        for step in range(4):
            if step % 2 == 0:
                model.zero_grad(set_to_none)
            backward(model, step, world.rank, world.size)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        storages = {x.untyped_storage().data_ptr() for x in gradients}
        assert len(storages) <= len(model.shards), "views of one flat gradient per shard"
        return gradients_of(model)

    model = Model()
    for step in (2, 3):
        backward(model, step)
    assert_parts_equal(run(computes, 3).values, gradients_of(model))


def optimizer_by_name(model, **options):
    """No decay for biases and norms, and a learning rate of its own for the embedding."""
    named = dict(model.named_parameters())
    plain = {name for name in named if name.endswith("bias") or "norm" in name}
    rest = [p for name, p in named.items() if name not in plain and "embedding" not in name]
    groups = [
        {"params": [named[name] for name in sorted(plain)], "weight_decay": 0.0},
        {"params": [named["embedding.weight"]], "lr": 1e-3},
        {"params": rest},
    ]
    return torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.3, **options)


def train(model, rank=0, num_ranks=1, **options):
    """Three steps, of which the last is made by another optimizer that has loaded the states."""
    optimizer = optimizer_by_name(model, **options)
    for step in range(3):
        if step == 2:
            states = optimizer.state_dict()
            optimizer = optimizer_by_name(model, **options)
            optimizer.load_state_dict(states)
        optimizer.zero_grad()
        backward(model, step, rank, num_ranks)
        optimizer.step()
    return values_of(model)


@pytest.mark.parametrize("foreach", [False, True])
def test_groups_by_name_and_states_equal_the_serial_step(foreach):
    def trains(world):
        model = FullyShardedModule(Model(), world)
        return train(model, world.rank, world.size, foreach=foreach)

    expected = train(Model())
    for num_ranks in (1, 4):
        assert_parts_equal(run(trains, num_ranks).values, expected)


def train_in_part(model, rank=0, num_ranks=1):
    """Frozen by name: first the embedding and a whole layer, then the biases, then nothing."""
    frozen = [("embedding", "layers.0"), ("bias",), ()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, words in enumerate(frozen):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not any(word in name for word in words))
        optimizer.zero_grad()
        backward(model, step, rank, num_ranks)
        for parameter in model.parameters():
            assert parameter.requires_grad or parameter.grad is None
        optimizer.step()
    return values_of(model)


def test_parameters_frozen_by_name_do_not_change_and_can_be_unfrozen():
    def trains(world):
        module = Model()
        model = FullyShardedModule(module, world)
        found = train_in_part(model, world.rank, world.size)
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        y = model(tokens(0))
        assert not y.requires_grad, "backward computes nothing for what is frozen"
        return found

    expected = train_in_part(Model())
    for num_ranks in (1, 3):
        assert_parts_equal(run(trains, num_ranks).values, expected)
