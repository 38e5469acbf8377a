"""The steps of a ring all-reduce as data for ring.mjs."""

from typing import Any

from labkit.calc.units import exact_bytes_text
from labkit.viz import style
from labkit.viz.rings import RingWalk

MAX_RANKS = 8


def ring_data(walk: RingWalk, title: str) -> dict[str, Any]:
    """Return who holds what after each step, each step's messages, and each step in words.

    Ranks are numbered by their place on the ring. ValueError for more than 8 ranks.
    """
    num_ranks = len(walk.ranks)
    if num_ranks > MAX_RANKS:
        raise ValueError(f"{num_ranks} ranks: a ring that can be read has {MAX_RANKS} or fewer")
    place = {rank: number for number, rank in enumerate(walk.ranks)}
    states = [
        [[sorted(place[rank] for rank in sources) for sources in holding] for holding in state]
        for state in walk.states
    ]
    hops = [
        [[place[hop.source], place[hop.destination], hop.chunk] for hop in step]
        for step in walk.steps
    ]
    says = [_said(walk, step) for step in range(len(walk.states))]
    return {
        "title": title or f"Ring all-reduce, {num_ranks} ranks",
        "ranks": list(walk.ranks),
        "colours": [style.rank_colour(rank) for rank in walk.ranks],
        "states": states,
        "hops": hops,
        "steps": [{"say": say} for say in says],
    }


def _said(walk: RingWalk, step: int) -> str:
    if not step:
        return "Start: each rank has its own contribution to every chunk, and nothing else."
    messages = "; ".join(
        f"rank {hop.source} sends chunk {hop.chunk} to rank {hop.destination}"
        for hop in walk.steps[step - 1]
    )
    sent = dict.fromkeys(walk.ranks, 0)
    for hops in walk.steps[:step]:
        for hop in hops:
            sent[hop.source] += hop.nbytes
    low, high = (exact_bytes_text(of(sent.values())) for of in (min, max))
    cells = [sources for holding in walk.states[step] for sources in holding]
    complete = sum(len(sources) == len(walk.ranks) for sources in cells)
    sent_text = low if low == high else f"{low} to {high}"
    return (
        f"{walk.phase(step).capitalize()}: {messages}. Sent so far by each rank: {sent_text}. "
        f"Complete: {complete} of {len(cells)} chunks."
    )
