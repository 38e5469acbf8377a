"""labkit cards: questions as an interviewer asks them, answered aloud, graded by the rubric."""

from typing import Annotated

import typer
from rich import box
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from labkit.cli.terminal import console
from labkit.interview.cards import Card, load_topics
from labkit.interview.cards import sitting as sittings
from labkit.progress import clock, practice, scheduling


def cards(
    what: Annotated[
        str | None,
        typer.Argument(
            help="A card (co-8), a group (co) or its file (pipeline). Default: all cards."
        ),
    ] = None,
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many cards at most.")] = 5,
    show_list: Annotated[bool, typer.Option("--list", help="Show the cards and end.")] = False,
) -> None:
    """Answer question cards aloud: what is due first, then new ones. Ctrl-D ends."""
    chosen = sittings.cards_of(what)
    if show_list:
        _show_list(chosen)
        return
    asked = sittings.next_cards(chosen, count)
    if not asked:
        console().print(Text(sittings.nothing_due(chosen)))
        return
    ratings: list[str] = []
    status = 0
    try:
        for place, card in enumerate(asked, 1):
            console().print(Text(f"Card {place} of {len(asked)}", style="dim"))
            ratings.append(sittings.rating_of(len(ask(card)), len(card.rubric)))
    except (EOFError, KeyboardInterrupt, typer.Abort) as end:
        console().print()
        status = 0 if isinstance(end, EOFError) else 130
    console().print(Text(sittings.summary(ratings), style="bold"))
    if status:
        raise typer.Exit(status)


def ask(card: Card) -> frozenset[int]:
    """Prompt, a pause to speak, the answer, the rubric. The points that were said, remembered."""
    out, topic = console(), load_topics()[card.topic]
    about = f"{card.id}, {topic.title}, for {card.level}"
    out.print(Text(about, style="dim"))
    out.print(Text(card.prompt, style="bold"))
    input("Say it aloud, in a minute. Enter shows an answer. ")
    out.print(Markdown(card.minute))
    out.print(Text("\nAn interviewer listens for:"))
    for place, point in enumerate(card.rubric, 1):
        out.print(Text(f"  {place}. {point}"))
    said = _said(card)
    rating = sittings.grade(card, said)
    state = practice.state(sittings.subject(card)) if scheduling.is_installed() else None
    back = "" if state is None else f"; back in {practice.in_words(state.due_s - clock.now_s())}"
    out.print(Text(f"Rated {rating}{back}.", style="dim"))
    where = [f"notebooks/{card.notebook}.ipynb"] if card.notebook else []
    where += [f"labkit check {card.exercise}"] if card.exercise else []
    if rating in ("again", "hard") and where:
        out.print(Text(f"To see it: {'; '.join(where)}", style="dim"))
    out.print()
    return said


def _said(card: Card) -> frozenset[int]:
    """Which points; `d` shows the deeper part first, `m` the common mistake, `f` follow-ups."""
    out = console()
    more = {
        "d": card.deeper,
        "m": card.mistake,
        "f": "\n".join(f"- {each}" for each in card.follow_ups),
    }
    while True:
        typed = input(
            "Which did you say? (1 3 4, all; Enter: none; d, m, f: deeper, mistake, follow-ups) "
        )
        if typed.strip().lower() in more:
            out.print(Markdown(more[typed.strip().lower()]))
            continue
        try:
            return sittings.points_said(typed, len(card.rubric))
        except ValueError as error:
            out.print(Text(str(error), style="red"))


def _show_list(chosen: list[Card]) -> None:
    table, topics, states = Table(box=box.SIMPLE), load_topics(), practice.all_states()
    for heading in ("card", "for", "about", "last"):
        table.add_column(heading, overflow="fold", no_wrap=heading != "about")
    for card in chosen:
        state = states.get(sittings.subject(card))
        last = "" if state is None else f"{clock.day_of(state.last_s)}"
        about = topics[card.topic].title
        table.add_row(card.id, card.level, Text(about), last)
    console().print(table)
    console().print(Text(f"{len(chosen)} cards"))
