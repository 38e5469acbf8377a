"""The steps of a ring, of tokens to experts, of a cut save and of a cache, for their modules."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.calc.units import exact_bytes_text, number_text
from labkit.checkpoint.power_cut import Operation
from labkit.serving.caches import KVCache
from labkit.viz import failures, style
from labkit.viz.journals import timelines_of
from labkit.viz.rings import RingWalk

MAX_SQUARES, MAX_RANKS = 320, 8


def ring_data(walk: RingWalk, title: str) -> dict[str, Any]:
    """Return who holds what after each step, each step's messages, and each step in words.

    Ranks are numbered by their place on the ring. ValueError for more than 8 ranks.
    """
    num_ranks = len(walk.ranks)
    if num_ranks > MAX_RANKS:
        raise ValueError(f"{num_ranks} ranks: a picture that can be read has {MAX_RANKS} or fewer")
    place = {rank: number for number, rank in enumerate(walk.ranks)}
    states = [
        [[sorted(place[rank] for rank in sources) for sources in holding] for holding in state]
        for state in walk.states
    ]
    hops = [
        [[place[hop.source], place[hop.destination], hop.chunk] for hop in step]
        for step in walk.steps
    ]
    says = [_said_of_ring(walk, step) for step in range(len(walk.states))]
    return {
        "title": title or f"Ring all-reduce, {num_ranks} ranks",
        "ranks": list(walk.ranks),
        "colours": [style.rank_colour(rank) for rank in walk.ranks],
        "states": states,
        "hops": hops,
        "steps": [{"say": say} for say in says],
    }


def _said_of_ring(walk: RingWalk, step: int) -> str:
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


def experts_data(run: Any, title: str) -> dict[str, Any]:
    """Return where each row of tokens is before, during and after the experts.

    The first all_to_all labelled "dispatch" of each rank says how many rows go where. ValueError
    for a rank without one, and for more than 8 ranks.
    """
    sent = []
    for rank, timeline in enumerate(timelines_of(run)):
        rows = [op.splits for op in timeline.operations if op.label == "dispatch" and op.splits]
        if not rows:
            raise ValueError(f"rank {rank} has no all_to_all labelled 'dispatch' in its journal")
        sent.append(rows[0][0])
    num_ranks = len(sent)
    if num_ranks > MAX_RANKS:
        raise ValueError(f"{num_ranks} ranks: a picture that can be read has {MAX_RANKS} or fewer")
    per_square = max(1, -(-sum(map(sum, sent)) // MAX_SQUARES))
    home, away = [], []
    filled_home, filled_away = [0] * num_ranks, [0] * num_ranks
    for source, row in enumerate(sent):
        for target, count in enumerate(row):
            for _ in range(round(count / per_square)):
                home.append([source, source, filled_home[source]])
                away.append([source, target, filled_away[target]])
                filled_home[source] += 1
                filled_away[target] += 1
    of_rank = [sum(row) for row in sent]
    arrived = [sum(row[rank] for row in sent) for rank in range(num_ranks)]
    crossing = sum(of_rank) - sum(row[rank] for rank, row in enumerate(sent))
    share = f"{number_text(crossing)} of {number_text(sum(of_rank))} rows"
    busiest = max(range(num_ranks), key=lambda rank: arrived[rank])
    says = [
        (0, of_rank, "Each rank has routed its tokens: a row for each choice of an expert."),
        (1, arrived, f"Dispatch: {share} leave their rank, in one all-to-all."),
        (
            1,
            arrived,
            f"Compute: rank {busiest} has {arrived[busiest]} rows, and all wait for it.",
        ),
        (0, of_rank, f"Combine: the same {share} go back, and each token adds up its rows."),
    ]
    return {
        "title": title,
        "colours": [style.rank_colour(rank) for rank in range(num_ranks)],
        "places": [home, away],
        "per_square": per_square,
        "counts": [counts for _, counts, _ in says],
        "steps": [{"where": where, "say": say} for where, _, say in says],
        "step_ms": 2600,
    }


def cuts_data(
    performed: Sequence[Operation], found: Mapping[str, Sequence[int | str | None]], title: str
) -> dict[str, Any]:
    """Return the operations, and after each what the next load gives by way of losing data."""
    ranks = [failures.rank_of(each) for each in performed]
    operations = []
    for operation, rank in zip(performed, ranks, strict=True):
        letter, _, colour = failures.KINDS[operation.kind]
        operations.append({"rank": rank, "letter": letter, "colour": colour})
    outcomes = [
        {
            "name": way,
            "found": [
                {"text": failures.state_text(state), "colour": failures.colour_of(state)}
                for state in states
            ],
        }
        for way, states in found.items()
    ]
    steps = [{"say": "Before the save. A cut loses nothing that is new."}]
    for number, (operation, rank) in enumerate(zip(performed, ranks, strict=True)):
        _, name, _ = failures.KINDS[operation.kind]
        loads = ", ".join(
            f"{way}: {'no checkpoint' if states[number] is None else states[number]}"
            for way, states in found.items()
        )
        done = f"Rank {rank}: {name} {operation.path.name}."
        steps.append({"say": f"{done} If the power is cut now, a load gives: {loads}."})
    return {
        "title": title,
        "rows": max(ranks) + 1,
        "operations": operations,
        "outcomes": outcomes,
        "steps": steps,
        "step_ms": 1200,
    }


@dataclass(frozen=True)
class Shot:
    """A cache at one moment: what is in each slot, and where each sequence is."""

    say: str
    num_slots: int
    page_size: int
    slots: list[dict[str, Any]]
    places: dict[int, str]


def shot(cache: KVCache, texts: Mapping[int, str], say: str) -> Shot:
    """Keep what is in the cache now. texts: by sequence, a letter for each token, as cache_map."""
    page_size = getattr(cache, "page_size", 1)
    num_slots = cache.keys_LNGK.shape[1]
    slots: list[dict[str, Any]] = [{"held": [], "letter": ""} for _ in range(num_slots)]
    places = {}
    for sequence, text in texts.items():
        held, num_cached = cache.held(sequence).tolist(), cache.num_cached(sequence)
        for position, slot in enumerate(held):
            is_cached = position < num_cached
            slots[slot]["held"].append({"sequence": sequence, "cached": is_cached})
            if is_cached:
                slots[slot]["letter"] = text[position]
        pages = ", ".join(str(slot // page_size) for slot in held[::page_size])
        places[sequence] = f"pages {pages}" if held else "nothing"
    return Shot(say, num_slots, page_size, slots, places)


def pages_data(shots: Sequence[Shot], title: str) -> dict[str, Any]:
    """Return the slots shot by shot. ValueError for no shots, and for shots of unlike caches."""
    if len({(each.num_slots, each.page_size) for each in shots}) != 1:
        raise ValueError(f"{len(shots)} shots: give one or more, all of the same cache")
    sequences = sorted({sequence for each in shots for sequence in each.places})
    number = {sequence: place for place, sequence in enumerate(sequences)}
    return {
        "title": title,
        "num_slots": shots[0].num_slots,
        "page_size": shots[0].page_size,
        "colours": [style.rank_colour(place) for place in number.values()],
        "names": [f"sequence {sequence}" for sequence in sequences],
        "shots": [
            {
                "slots": [
                    slot | {"held": [h | {"sequence": number[h["sequence"]]} for h in slot["held"]]}
                    for slot in each.slots
                ],
                "places": [each.places.get(sequence, "nothing") for sequence in sequences],
            }
            for each in shots
        ],
        "steps": [{"say": each.say} for each in shots],
        "step_ms": 2600,
    }
