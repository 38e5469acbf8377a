"""labkit mock: a timed interview in the terminal, and its report."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown
from rich.text import Text

from labkit.cli import practise, start
from labkit.cli.design import run_round
from labkit.cli.terminal import UntilEnded, console
from labkit.grade import catalog
from labkit.grade.verdict import Outcome
from labkit.grade.workspace import find_workspace
from labkit.interrupts import uninterrupted
from labkit.interview.cards import load_bank
from labkit.interview.design import DesignRound, get_briefing
from labkit.interview.mock import Interview, Item, plan_interview
from labkit.interview.mock import interview as asking
from labkit.interview.mock.plan import WITH_EXERCISE
from labkit.interview.mock.report import require_report_name, write_report


def mock(
    minutes: Annotated[int, typer.Option(help="Minutes of the interview, 6 to 240.")] = 45,
    level: Annotated[str, typer.Option(help="junior, senior or expert.")] = "senior",
    seed: Annotated[
        int | None, typer.Option(help="Repeat the interview that had this seed.")
    ] = None,
    save: Annotated[
        list[Path] | None, typer.Option(help="Save the report as FILE.md or FILE.html; repeatable.")
    ] = None,
) -> None:
    """Be interviewed: questions, drills, an exercise, a clock. Ctrl-D ends it with the report."""
    files = save or []
    _check_files(files)
    try:
        interview = Interview(plan_interview(minutes, level, seed))
    except ValueError as error:
        raise typer.BadParameter(f"--{str(error).replace('=', ' ', 1)}") from None
    console().print(Text(f"{asking.planned(interview.plan)}."))
    if minutes >= WITH_EXERCISE and not find_workspace().has_learners_files:
        shown_text = "There is no exercise in it: for one, start it in a folder of the course."
        console().print(Text(f"{shown_text}\n{start.HOW_TO_MAKE_ONE}", style="yellow"))
    with UntilEnded() as ending:
        while (item := interview.next_item) is not None:
            left = asking.minutes_text(interview.left_s / 60)
            said = f"{asking.announced(interview, item)} {left} left of the interview."
            console().print(Text(said, style="bold cyan"))
            interview.take(item, *_TAKE[item.kind](item, interview.plan.seed))
    if ending.is_early:
        interview.give_up()
    report = interview.report()
    console().print(Markdown(report.markdown))
    for file in files:
        try:
            write_report(report, file, replace=True)
        except OSError as error:
            shown_text = f"The report is not in {file}: {error.strerror}"
            console().print(Text(shown_text, style="red"), soft_wrap=True)
            ending.status = ending.status or 1
        else:
            console().print(Text(f"The report is in {file}"), soft_wrap=True)
    ending.leave()


def _question(item: Item, _: int) -> asking.Scored:
    card = load_bank()[item.name]
    return asking.scored_questions(practise.ask_with_follow_up(card))


def _drill(item: Item, seed: int) -> asking.Scored:
    asked = asking.asked_drill(item, seed)
    practise.ask_drill(asked, item.kind.capitalize())
    return asking.scored_drill(asked)


def _exercise(item: Item, _: int) -> asking.Scored:
    """Checked as often as wanted, until it passes or is given up."""
    with uninterrupted():  # they take torch with them; Ctrl-C ends the interview, with its report
        from labkit.grade.engine import check
        from labkit.interview.mock.interview import GivenExercise

    exercise, out = catalog.get_exercise(item.name), console()
    out.print(Text(f"{exercise.title}: write exercises/{item.name}.py.", style="bold"))
    out.print(Text("Say aloud what you do, and why, while you write."))
    given = GivenExercise(item.name)
    if given.notice:
        out.print(Text(given.notice, style="bold yellow"))
    while True:
        typed = input("Enter checks it; s skips. ").strip().lower()
        if typed in ("s", "skip"):
            return asking.scored_exercise(passed=False)
        if typed:
            continue
        try:
            verdict = check(item.name)
        except asking.CANNOT_BE_CHECKED as error:  # the interview goes on, and has a report
            out.print(Text(str(error), style="red"))
            continue
        out.print(Text(str(verdict)))
        if verdict.outcome is Outcome.PASSED and not given.is_new():
            out.print(Text(given.refusal, style="bold yellow"))
        elif verdict.outcome is Outcome.PASSED:
            for follow_up in exercise.follow_ups:
                out.print(Text(follow_up, style="bold"))
                input("Answer aloud. Enter goes on. ")
            return asking.scored_exercise(passed=True)


def _design(item: Item, _: int) -> asking.Scored:
    round_ = DesignRound(get_briefing(item.name))
    with suppress(EOFError):  # parts that are left out count 0
        run_round(round_)
    return asking.scored_design(round_)


_TAKE = {
    "story": _question,
    "question": _question,
    "drill": _drill,
    "case": _drill,
    "exercise": _exercise,
    "design": _design,
}


def _check_files(files: list[Path]) -> None:
    """Before the interview, and not after 45 minutes."""
    for file in files:
        try:
            require_report_name(file)
        except ValueError as error:
            raise typer.BadParameter(f"--save {error}") from None
