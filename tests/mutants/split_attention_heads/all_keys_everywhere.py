"""Mutant: key and value are not split.

outcome: "wrong"
diagnosis: "keeps all key-value heads on every rank"
"""


def split_attention_heads(query, key, value, out, num_ranks, rank, num_heads, num_kv_heads):
    choices = [n for n in range(1, num_heads + 1) if can_share(n, num_heads, num_kv_heads)]
    if num_ranks not in choices:
        raise ValueError(f"{num_ranks} ranks cannot share the heads; try {choices}")
    head_dim = query.shape[0] // num_heads
    own = rows(head_dim, num_heads, num_ranks, rank)
    return query[own], key, value, out[:, own]


def can_share(n, num_heads, num_kv_heads):
    return num_heads % n == 0 and (num_kv_heads % n == 0 or n % num_kv_heads == 0)


def rows(head_dim, num_heads, num_ranks, rank):
    first, count = rank * num_heads // num_ranks, max(1, num_heads // num_ranks)
    return slice(first * head_dim, (first + count) * head_dim)


def kv_copies(num_ranks, rank, num_kv_heads):
    num_copies = max(1, num_ranks // num_kv_heads)
    first = rank - rank % num_copies
    return list(range(first, first + num_copies))
