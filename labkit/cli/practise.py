"""Practice in a terminal: labkit cards, drill, case and puzzle.

cards     questions as an interviewer asks them, answered aloud, graded by the rubric
drill     numeric questions with fresh numbers, judged one by one
case      why is this run slow, or learning so little?
puzzle    a schedule within a memory and a time budget, from a file with rows
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.markdown import Markdown
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from labkit.arguments import printable
from labkit.cli.terminal import UntilEnded, console
from labkit.grade.puzzles import PUZZLES, UnknownPuzzle, get_puzzle, solve, standing
from labkit.interview.cards import KINDS, LEVELS, ROLES, Card, load_topics
from labkit.interview.cards import sitting as sittings
from labkit.interview.drills import DRILLS, Drill, Outcome, Ruling, drills_of
from labkit.interview.drills.session import REPEATED_ANSWER, Asked, Round
from labkit.progress import clock, practice, scheduling


def cards(
    what: Annotated[
        str | None,
        typer.Argument(
            help="A card (co-8), a group (co) or its file (pipeline). Default: all cards."
        ),
    ] = None,
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many cards at most.")] = 5,
    role: Annotated[
        str | None, typer.Option(help=f"Role that is asked: {', '.join(ROLES)}.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help=f"Kind of question: {', '.join(KINDS)}.")] = None,
    level: Annotated[
        str | None, typer.Option(help=f"Level of the card: {', '.join(LEVELS.values())}.")
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="Show the cards and end.")] = False,
) -> None:
    """Answer question cards aloud: what is due first, then new ones. Ctrl-D ends."""
    for name, given, known in (
        ("role", role, ROLES),
        ("kind", kind, KINDS),
        ("level", level, tuple(LEVELS.values())),
    ):
        if given is not None and given not in known:
            raise typer.BadParameter(f"--{name} {given}: give one of {', '.join(known)}")
    chosen = [
        card
        for card in sittings.cards_of(what)
        if role in (None, *card.roles) and kind in (None, card.kind) and level in (None, card.level)
    ]
    if show_list:
        _show_cards(chosen)
        return
    asked = sittings.next_cards(chosen, count)
    if not asked:
        console().print(Text(sittings.nothing_due(chosen)))
        return
    ratings: list[str] = []
    with UntilEnded() as ending:
        for place, card in enumerate(asked, 1):
            console().print(Text(f"Card {place} of {len(asked)}", style="dim"))
            for each, said in ask_with_follow_up(card):
                ratings.append(sittings.rating_of(len(said), len(each.rubric)))
    console().print(Text(sittings.summary(ratings), style="bold"))
    ending.leave()


def ask_with_follow_up(card: Card) -> Iterator[tuple[Card, frozenset[int]]]:
    """Ask a card, then the follow-up that its answer leads to; each with the points said."""
    said = ask_card(card)
    yield card, said
    if (follow_up := sittings.follow_up(card, said)) is not None:
        console().print(Text("A follow-up", style="dim"))
        yield follow_up, ask_card(follow_up)


def ask_card(card: Card) -> frozenset[int]:
    """Ask a card: prompt, a pause, the answer, the rubric. Return the points that were said."""
    out, topic = console(), load_topics()[card.topic]
    about = f"{card.id}, {topic.title}, for {card.level}"
    out.print(Text(about, style="dim"))
    out.print(Text(card.prompt, style="bold"))
    minutes, began_s = sittings.spoken_minutes(card), time.monotonic()
    input(f"Say it aloud, in {sittings.spoken_text(card)}. Enter shows an answer. ")
    spoken_s = int(time.monotonic() - began_s)
    out.print(Text(f"{spoken_s // 60}:{spoken_s % 60:02} of {minutes}:00", style="dim"))
    out.print(Markdown(card.minute))
    out.print(Text("\nAn interviewer listens for:"))
    for place, point in enumerate(card.rubric, 1):
        out.print(Text(f"  {place}. {point}"))
    said = _said(card)
    rating = sittings.grade(card, said)
    state = practice.state(sittings.subject(card)) if scheduling.is_installed() else None
    back = "" if state is None else f"; back in {practice.in_words(state.due_s - clock.now_s())}"
    out.print(Text(f"Rated {rating}{back}.", style="dim"))
    where = [card.place] if card.place else []
    where += [f"labkit check {card.exercise}"] if card.exercise else []
    if rating in ("again", "hard") and where:
        out.print(Text(f"To see it: {'; '.join(where)}", style="dim"))
    out.print()
    return said


def _said(card: Card) -> frozenset[int]:
    """Ask for the points that were said; `d` shows the deeper part, `m` the mistake, `f` more.

    `f` shows no answers: one of these questions may come next.
    """
    out = console()
    more = {
        "deeper": card.deeper,
        "mistake": card.mistake,
        "follow-ups": "\n".join(f"- {each.question}" for each in card.follow_ups),
    }
    texts = {name[0]: (name, text) for name, text in more.items() if text}
    offered = f"; {', '.join(texts)}: {', '.join(name for name, _ in texts.values())}"
    while True:
        typed = input(f"Which did you say? (1 3 4, all; Enter: none{offered if texts else ''}) ")
        if typed.strip().lower() in texts:
            out.print(Markdown(texts[typed.strip().lower()][1]))
            continue
        try:
            return sittings.parse_points(typed, len(card.rubric))
        except ValueError as error:
            out.print(Text(str(error), style="red"))


def _show_cards(chosen: list[Card]) -> None:
    table, topics, states = Table(box=box.SIMPLE), load_topics(), practice.all_states()
    for heading in ("card", "for", "kind", "about", "last"):
        table.add_column(heading, overflow="fold", no_wrap=heading != "about")
    for card in chosen:
        state = states.get(sittings.subject(card))
        last = "" if state is None else f"{clock.day_of(state.last_s)}"
        about = topics[card.topic].title
        table.add_row(card.id, card.level, card.kind, Text(about), last)
    console().print(table)
    console().print(Text(f"{len(chosen)} cards"))


_STYLES = {
    Outcome.RIGHT: "bold green",
    Outcome.TRAPPED: "bold yellow",
    Outcome.WRONG: "bold red",
    Outcome.UNREADABLE: "dim",
}


def drill(
    what: Annotated[
        str | None,
        typer.Argument(help="A drill, a topic (pp-2) or a group of topics (pp). Default: all."),
    ] = None,
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many questions.")] = 5,
    seed: Annotated[int | None, typer.Option(help="Ask the same questions again.")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="Show the drills and end.")] = False,
) -> None:
    """Answer numeric questions. An empty line gives one up; Ctrl-D or Ctrl-C ends the round."""
    drills = drills_of(what)
    if show_list:
        _show_drills(drills)
        return
    asking = Round(drills, seed)
    with UntilEnded() as ending:
        for number in range(1, count + 1):
            ask_drill(asking.ask(), f"Question {number} of {count}")
    console().print(Text(asking.summary, style="bold"))
    ending.leave()


def ask_drill(asked: Asked, heading: str, answers: Sequence[str] = ()) -> str:
    """Ask a question, until it is right, given up, or wrong twice; then show its solution.

    answers: given before, so that nothing is typed. Returns the rating.
    """
    out = console()
    out.print(Text(f"{heading}: {asked.drill.title} ({asked.drill.topic})", style="bold"))
    out.print(Text(asked.question.prompt))
    out.print(Text(asked.question.exhibit.text), soft_wrap=True, end="")
    given = iter(answers)
    while not asked.is_over:
        typed = next(given, "") if answers else input("(an empty line gives up) > ").strip()
        if not typed:
            break
        if asked.is_repeated(typed):
            out.print(Text(f"{REPEATED_ANSWER} An empty line shows it.", style="dim"))
            continue
        ruling = asked.answer(typed)
        _show_ruling(ruling)
        if not asked.is_over and ruling.outcome is not Outcome.UNREADABLE:  # it counts as no try
            out.print(Text("One more try.", style="dim"))
    rating = asked.finish()
    out.print(Text(f"Answer: {asked.question.answer_text}", style="bold"))
    for step in asked.question.steps:
        out.print(Padding(Text(step), (0, 0, 0, 2)))
    out.print(Text(asked.question.proof.text), soft_wrap=True, end="")
    out.print(Text(f"Rated {rating}; {asked.drill.command} asks another.\n", style="dim"))
    return rating


def _show_ruling(ruling: Ruling) -> None:
    console().print(Text(ruling.text, style=_STYLES[ruling.outcome]))


def _show_drills(drills: list[Drill]) -> None:
    table = Table(box=box.SIMPLE)
    for heading in ("drill", "topic", "for", "asks for"):
        table.add_column(heading, overflow="fold", no_wrap=heading != "asks for")
    for each in drills:
        table.add_row(each.name, each.topic, each.level, each.title)
    console().print(table)
    console().print(Text(f"{len(drills)} of {len(DRILLS)} drills"))


def case(
    difficulty: Annotated[int, typer.Option(help="1 to 5; 1 to 3 in room rl.")] = 1,
    room: Annotated[
        str,
        typer.Option(help="slow: a slow run; rl: reinforcement learning that goes wrong."),
    ] = "slow",
    seed: Annotated[int | None, typer.Option(help="Draw the same case again.")] = None,
    answer: Annotated[
        list[str] | None,
        typer.Option(help="An answer, such as 'straggler, rank 2, 28%' or 'sleep'; repeatable."),
    ] = None,
) -> None:
    """Find the fault of a run: its traces or figures, your answer. Two tries."""
    from labkit.interview.case_files import case_of_room  # they start ranks

    try:
        cases = case_of_room(room, difficulty)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    console().print(Text("Two trainings run on 4 ranks, with a fault and without ...", style="dim"))
    asked = Round([cases], seed).ask()
    with UntilEnded() as ending:
        ask_drill(asked, "Case", answer or ())
    ending.leave()
    if not (asked.is_right or ending.is_early):
        raise typer.Exit(1)


def puzzle(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME] [FILE]",
            help="The puzzle, and a text file with a line per rank that answers it. Without a "
            "file it is shown; without a name, a list.",
        ),
    ] = None,
) -> None:
    """Arrange the operations of a pipeline within a memory and a time budget."""
    name, file = _name_and_file(words or [])
    if not name:
        width = max(map(len, PUZZLES))
        for each in PUZZLES.values():
            _print_unwrapped(
                f"{each.name.ljust(width)}  {each.difficulty} of 5  {standing(each.name)}"
            )
    elif file is None:
        _print_unwrapped(str(get_puzzle(name)))
    else:
        try:
            rows = file.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise typer.BadParameter(f"{file} cannot be read: {error.strerror}") from None
        ruling = solve(name, rows)
        _print_unwrapped(repr(ruling))
        if not ruling:
            raise typer.Exit(1)


def _name_and_file(words: list[str]) -> tuple[str, Path | None]:
    """Split a name of several words, with or without quotes, from a file after it."""
    if not words:
        return "", None
    for name, file in ((words, None), (words[:-1], Path(words[-1]))):
        with contextlib.suppress(UnknownPuzzle):
            return get_puzzle(" ".join(name)).name, file
    if len(words) > 1 and Path(words[-1]).exists():
        words = words[:-1]
    return " ".join(words), None


def _print_unwrapped(text: str) -> None:
    """Print a text as it is: the rows of a grid must not be wrapped."""
    console().print(Text(printable(text)), soft_wrap=True)
