"""The command `labkit`: which commands there are, and how a call that is wrong ends.

A command's module is imported when the command is called. `labkit --help` needs none of them, and
neither does it need rich, which takes twice as long to import as typer.
"""

import errno
import importlib
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from labkit.arguments import UserError, printable
from labkit.cli import ctrl_c

COMMANDS = {
    "Exercises": {
        "start.start": "Write a copy of the course into a folder, to work in.",
        "start.update": (
            "Bring what is new in the course into your copy. Your answers and notes stay."
        ),
        "lab.lab": "Open your copy of the course in JupyterLab, until Ctrl-C.",
        "web.web": "Serve the website that `make book` has built, on this machine, until Ctrl-C.",
        "exercises.list_exercises": "Show the exercises, in reading order, and how far you are.",
        "exercises.check": "Grade an exercise on real ranks.",
        "watch.watch": (
            "Check an exercise each time you save it. Keys show hints, the solution, the next one."
        ),
        "exercises.hint": (
            "Show the next hint: the concept, the invariant, the first line that goes wrong."
        ),
        "exercises.solution": (
            "Show the solution: after a pass, or on confirmation, which is remembered."
        ),
        "exercises.reset": "Put the stub back; your file is kept under exercises/backups.",
    },
    "Interview practice": {
        "practise.cards": (
            "Answer question cards aloud: what is due first, then new ones. Ctrl-D ends."
        ),
        "practise.drill": (
            "Answer numeric questions. An empty line gives one up; Ctrl-D or Ctrl-C ends the round."
        ),
        "design.design": (
            "Design a training in 45 minutes: clarify, plan, predict, and meet facts that change."
        ),
        "draw.draw": (
            "Fill a grid as on a whiteboard: who sends what when, who holds what. Or check a file."
        ),
        "take_home.take_home": (
            "Beat five plans for 70B on 64 GPUs: your layout, schedule and placement, by step time."
        ),
        "quiz.quiz": (
            "Answer ten multiple-choice questions in five minutes; each wrong choice is explained."
        ),
        "practise.puzzle": (
            "Arrange the operations of a pipeline within a memory and a time budget."
        ),
        "practise.case": (
            "Find the fault of a run: its traces or figures, your answer. Two tries."
        ),
        "mock.mock": (
            "Be interviewed: questions, drills, an exercise, a clock. Ctrl-D ends it with the "
            "report."
        ),
    },
    "Your progress": {
        "progress.progress": (
            "Show how far you are: days in a row, what is due, mastery by topic, exercises."
        ),
        "progress.export": (
            "Write your progress to a file, for a backup or another machine; or the cards, for "
            "Anki."
        ),
        "progress.import_progress": (
            "Add the progress in a file to yours. What you have stays; nothing is added twice."
        ),
    },
    "Tools for real jobs": {
        "calculators.plan": (
            "Rank the layouts of a training on a cluster, and say why the others lost; or time one."
        ),
        "calculators.memory": (
            "Say what one layout needs on its fullest GPU, by part; fails where it does not fit."
        ),
        "calculators.cache": (
            "Say what the key-value cache of a request takes, and how many requests fit."
        ),
        "machine.profile": (
            "Say where the time of a training step goes, from profiler traces of any job."
        ),
        "machine.serve": (
            "Serve the newest checkpoint of a GPT by OpenAI's protocol, until Ctrl-C."
        ),
        "machine.preflight": (
            "Check links, arithmetic, disk and clocks on real ranks; fails where something is "
            "wrong."
        ),
        "machine.doctor": (
            "Show what this machine can do, with a real run of two ranks; takes some seconds."
        ),
    },
    "For authors": {
        "bank.bank": "Show which topics have question cards, and what proves their numbers.",
        "new.new": "Start something new: see docs/.",
    },
}
"""The commands of `labkit --help` by group: a command's module and function in labkit.cli, and the
first paragraph of the function's docstring.
"""


_SHORTER = {"import_progress": "import", "list_exercises": "list"}
"""Commands whose function needs a longer name: the short one is Python's."""


def name_of(place: str) -> str:
    """A command: the name of its function with hyphens; `import` of import_progress, `list`."""
    return _SHORTER.get(function := place.split(".")[1], function.replace("_", "-"))


_PLACES = {name_of(place): place for entries in COMMANDS.values() for place in entries}


class _Group(TyperGroup):
    """`labkit`: it lists commands by what COMMANDS says, and loads the one that is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name in _PLACES:
            self.commands[name] = TyperCommand(name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for heading, entries in COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl([(name_of(place), about) for place, about in entries.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, listed, rest = super().resolve_command(ctx, args)
        found = loaded(name) if name in _PLACES else listed
        ctrl_c.raises()
        return name, found, rest

    def invoke(self, ctx: Any) -> Any:
        from labkit.cli.terminal import console, progress_warnings_shown

        with progress_warnings_shown(console(stderr=True)):
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt:
                ctrl_c.end_fork_server()
                raise typer.Exit(ctrl_c.INTERRUPTED) from None
            finally:
                ctrl_c.ends_at_once()


def loaded(name: str) -> Any:
    """The command itself, with all its options."""
    module, function = _PLACES[name].split(".")
    found = getattr(importlib.import_module(f"labkit.cli.{module}"), function)
    alone = typer.Typer(rich_markup_mode=None)
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name)
    else:
        alone.command(name)(found)
    return typer.main.get_group(alone).commands[name]


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"labkit {version('labkit')}")
        raise typer.Exit


@app.callback()
def _labkit(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """The Distributed Training Lab: exercises on real ranks, interview practice, calculators."""


def main() -> None:
    """The command `labkit`."""
    try:
        try:
            app(prog_name="labkit")
        finally:
            sys.stdout.flush()
    except UserError as error:
        _say(f"labkit: {error}")
        sys.exit(2)
    except OSError as error:
        if error.filename is not None:  # about a file that the command opened itself
            raise
        _give_up_output()
        if error.errno != errno.EPIPE:  # `labkit list | head` is no mistake
            _say(f"labkit: the output cannot be written: {error.strerror}")
        sys.exit(1)


def _say(text: str) -> None:
    from rich.text import Text

    from labkit.cli.terminal import console

    console(stderr=True).print(Text(printable(text), style="red"), soft_wrap=True)


def _give_up_output() -> None:
    """Let nothing be written any more when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
