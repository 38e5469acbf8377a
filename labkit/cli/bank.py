"""labkit bank: the question cards by topic, and whether their numbers are proved."""

import difflib
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from labkit.cli.terminal import console
from labkit.interview import cards
from labkit.interview.cards import spoken
from labkit.interview.court import Claim, load_claims
from labkit.interview.evidence import prove, uses

_KINDS = ("formula", "run", "published", "pending")


def bank(
    run: Annotated[bool, typer.Option("--run", help="Prove every number, on real ranks.")] = False,
    pending: Annotated[
        bool, typer.Option("--pending", help="Show only numbers without a proof, and why.")
    ] = False,
    only: Annotated[
        str, typer.Option(help="Only cards whose id begins with this, such as co- or co-8.")
    ] = "",
) -> None:
    """Show which topics have question cards, and what proves their numbers.

    --pending also lists claims of the court that have a number without a proof.

    Topics without a card are listed. The command fails if a card cannot be read or a proof fails.
    """
    found, problems = cards.read_bank()
    chosen = [card for card in found if card.id.startswith(only)]
    of_chosen = {card.topic for card in chosen}  # co-8b is a card of topic co-8
    topics = [
        topic
        for topic in cards.load_topics().values()
        if topic.id.startswith(only) or topic.id in of_chosen
    ]
    if not topics:
        raise typer.BadParameter(_nothing_begins_so(only))
    if pending:
        claims = [claim for claim in load_claims().values() if _is_about(claim, only)]
        _show_pending([*chosen, *claims])
        return
    held = _show_proofs(chosen) if run else True
    _show_topics(topics, chosen)
    for problem in problems:
        console().print(Text(str(problem), style="red"), soft_wrap=True)
    if problems or not held:
        raise typer.Exit(1)


def _nothing_begins_so(only: str) -> str:
    topics = list(cards.load_topics())
    near = difflib.get_close_matches(only, topics, n=3, cutoff=0.5)
    begin = ", ".join(dict.fromkeys(f"{each.partition('-')[0]}-" for each in topics))
    advice = f"near it: {', '.join(near)}; " if near else ""
    return f"--only {only}: no card's id begins so; {advice}ids begin with {begin}"


def _is_about(claim: Claim, only: str) -> bool:
    return any(topic.startswith(only) for topic in claim.topics)


def _show_pending(chosen: Iterable[cards.Card | Claim]) -> None:
    items = [
        (each.id if isinstance(each, cards.Card) else each.key, item)
        for each in chosen
        for item in (each.all_evidence if isinstance(each, cards.Card) else each.evidence)
        if item.pending
    ]
    for key, item in items:
        about = f"{item.says}: " if item.says else ""
        console().print(Text(f"{key:<6} {about}{item.pending}"), soft_wrap=True)
    console().print(f"{len(items)} pending" if items else "Nothing is pending.")


def _show_proofs(chosen: list[cards.Card]) -> bool:
    """One line for each proof. Whether all hold."""
    out, held = console(), True
    for card in chosen:
        for item in card.all_evidence:
            if not item.proof:
                continue
            proved = prove(item.says, item.proof)
            line = f"{card.id:<6} {item.says} = {proved.value}   {item.proof}"
            out.print(Text(line if proved.holds else f"{card.id:<6} {proved.reason}   {item.proof}",
                           style="" if proved.holds else "red"), soft_wrap=True)  # fmt: skip
            held = held and proved.holds
    return held


def _show_topics(topics: list[cards.Topic], chosen: list[cards.Card]) -> None:
    """A table for each group: topics, their cards, and the evidence of each kind."""
    out, missing, sums = console(), [], Counter[str]()
    for title, group in groupby(topics, key=lambda each: each.group):
        table = Table(box=box.SIMPLE, title=title, title_justify="left", title_style="bold")
        for heading in ("topic", "", "cards", *_KINDS):
            table.add_column(heading, overflow="fold")
        for topic in group:
            own = [card for card in chosen if card.topic == topic.id]
            missing += [] if own else [topic.id]
            counts = Counter(_kind(item) for card in own for item in card.all_evidence)
            sums += counts
            ids = ", ".join(card.id for card in own) or "missing"
            numbers = (str(counts[kind] or "") for kind in _KINDS)
            table.add_row(topic.id, topic.title, ids, *numbers, style="" if own else "red")
        out.print(table)
    text = ", ".join(f"{sums[kind]} {kind}" for kind in _KINDS)
    covered = f"{len(topics) - len(missing)} of {len(topics)} topics"
    out.print(f"{covered}: {len(chosen)} cards, {text}")
    out.print(_counted("cards", ((card.kind for card in chosen), (c.level for c in chosen))))
    asked = [each for card in chosen for each in card.follow_ups]
    answered = sum(bool(each.answer) for each in asked)
    out.print(_counted("follow-ups", ((each.kind or "no kind" for each in asked),)))
    chains = sum(_is_chain([card for card in chosen if card.topic == each.id]) for each in topics)
    out.print(
        f"{answered} of {len(asked)} follow-ups have an answer; {chains} topics have a chain of "
        "four: recall, apply, analyse, design"
    )
    if chosen:
        words = [spoken.num_words(card.minute) for card in chosen]
        said = [len(spoken.numbers_of(card)) for card in chosen]
        lengths = [spoken.num_words(each.answer) for each in asked] or [0]
        out.print(
            f"aloud: a minute has {min(words)} to {max(words)} words and at most {max(said)} "
            f"numbers, a follow-up's answer {min(lengths)} to {max(lengths)} words"
        )
    if missing:
        out.print(Text(f"missing: {', '.join(missing)}", style="red"))


def _counted(what: str, groups: Iterable[Iterable[str]]) -> str:
    """Write `cards: 40 concept, 9 coding; 20 everyone, 29 senior`."""
    counts = (
        ", ".join(f"{count} {name}" for name, count in Counter(names).most_common())
        for names in groups
    )
    return f"{what}: {'; '.join(counts)}"


def _is_chain(own: Iterable[cards.Card]) -> bool:
    """Return whether follow-ups of each kind, with answers, come after the card of a topic."""
    kinds = {each.kind for card in own for each in card.follow_ups if each.answer}
    return kinds >= {*cards.CHAIN} - {"recall"}


def _kind(item: cards.Evidence) -> str:
    if item.pending:
        return "pending"
    if item.source:
        return "published"
    return "run" if uses(item.proof, "runs") else "formula"
