"""How a tensor is cut into one chunk per rank: torch.tensor_split's rule."""

from labkit.calc.checked_numbers import check_numel, check_ranks


def chunk_numels(numel: int, world_size: int) -> list[int]:
    """Elements of each of the n chunks: the first numel % n are one longer.

    chunk_numels(10, 4) == [3, 3, 2, 2]
    """
    world_size, numel = check_ranks(world_size), check_numel(numel)
    shortest, num_longer = divmod(numel, world_size)
    return [shortest + (chunk < num_longer) for chunk in range(world_size)]
