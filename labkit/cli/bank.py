"""labkit bank: the question cards by topic, and whether their numbers are proved."""

import difflib
from collections.abc import Iterable
from itertools import groupby
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from labkit.cli.terminal import console
from labkit.interview import cards
from labkit.interview.court import Claim, load_claims
from labkit.interview.evidence import prove


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

    Topics without a card are listed. The command fails if a card has a problem or a proof fails.
    """
    found, unreadable = cards.read_bank()
    chosen = [card for card in found if card.id.startswith(only)]
    topics = [each for each in cards.coverage(chosen) if each.topic.id.startswith(only)]
    if not topics:
        raise typer.BadParameter(_nothing_begins_so(only))
    if pending:
        claims = [claim for claim in load_claims().values() if _is_about(claim, only)]
        _show_pending([*chosen, *claims])
        return
    problems = [
        each for each in cards.validate() if each in unreadable or each.card.startswith(only)
    ]
    held = _show_proofs(chosen) if run else True
    _show_coverage(topics)
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
        for item in each.evidence
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
        for item in card.evidence:
            if not item.proof:
                continue
            proved = prove(item.says, item.proof)
            line = f"{card.id:<6} {item.says} = {proved.value}   {item.proof}"
            out.print(Text(line if proved.holds else f"{card.id:<6} {proved.reason}   {item.proof}",
                           style="" if proved.holds else "red"), soft_wrap=True)  # fmt: skip
            held = held and proved.holds
    return held


def _show_coverage(topics: list[cards.Covered]) -> None:
    out = console()
    for title, group in groupby(topics, key=lambda each: each.topic.group):
        table = Table(box=box.SIMPLE, title=title, title_justify="left", title_style="bold")
        for heading in ("topic", "", "cards", "formula", "run", "published", "pending"):
            table.add_column(heading, overflow="fold")
        for each in group:
            table.add_row(*_row(each), style="red" if each.is_missing else "")
        out.print(table)
    missing = [each.topic.id for each in topics if each.is_missing]
    counts = {
        "cards": sum(len(each.cards) for each in topics),
        "formula": sum(each.by_formula for each in topics),
        "run": sum(each.by_run for each in topics),
        "published": sum(each.published for each in topics),
        "pending": sum(each.pending for each in topics),
    }
    text = ", ".join(f"{number} {name}" for name, number in counts.items())
    out.print(f"{len(topics) - len(missing)} of {len(topics)} topics: {text}")
    if missing:
        out.print(Text(f"missing: {', '.join(missing)}", style="red"))


def _row(each: cards.Covered) -> list[str]:
    own = ", ".join(card.id for card in each.cards) or "missing"
    counts = (each.by_formula, each.by_run, each.published, each.pending)
    return [each.topic.id, each.topic.title, own, *(str(count or "") for count in counts)]
