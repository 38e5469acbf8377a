"""labkit quiz: multiple choice in a terminal, against a clock that does not cut off."""

import time
from typing import Annotated

import typer
from rich.markdown import Markdown
from rich.text import Text

from labkit.cli.terminal import UntilEnded, console
from labkit.interview.quiz import QuizQuestion, clock_text, make_quiz, reasons, taken_text

_LETTERS = "abcd"


def quiz(
    what: Annotated[
        str | None, typer.Argument(help="A group of topics (co) or a subject (pipeline).")
    ] = None,
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many questions.")] = 10,
    seed: Annotated[int | None, typer.Option(help="Ask the same questions again.")] = None,
) -> None:
    """Answer ten multiple-choice questions in five minutes; each wrong choice is explained."""
    questions, began_s = make_quiz(count, what, seed), time.monotonic()
    results: list[bool] = []
    with UntilEnded() as ending:
        for number, question in enumerate(questions, 1):
            clock = clock_text(len(questions), time.monotonic() - began_s)
            about = f"{number} of {len(questions)} · {question.topic} · {clock}"
            console().print(Text(about, style="dim"))
            results.append(_ask(question))
    seconds = time.monotonic() - began_s
    console().print(Text(taken_text(results, len(questions), seconds), style="bold"))
    ending.leave()


def _ask(question: QuizQuestion) -> bool:
    """Ask until a letter is typed; say why it is right or wrong."""
    out, letters = console(), _LETTERS[: len(question.choices)]
    out.print(Text(question.prompt, style="bold"))
    for letter, choice in zip(letters, question.choices, strict=True):
        out.print(Text(f"  {letter}  {choice.text}"))
    while (typed := input(f"{', '.join(letters)}? ").strip().lower()) not in [*letters]:
        out.print(Text(f"{typed!r} is no choice: type one of {', '.join(letters)}.", style="red"))
    chosen = letters.index(typed)
    is_right = question.choose(chosen)
    wrong, right = reasons(question, chosen)
    if not is_right:
        out.print(Text("Wrong.", style="bold red"))
        out.print(Markdown(wrong))
        out.print(Text(f"Right is {letters[question.right]}.", style="bold"))
    else:
        out.print(Text("Right.", style="bold green"))
    out.print(Markdown(right))
    out.print()
    return is_right
