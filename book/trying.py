"""Pages of the parts that run in the page. Without JavaScript each shows its static answer."""

import base64
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from book.links import Links
from book.notebook import live, with_files


class Part(NamedTuple):
    """One part: a heading, what it does, and the call that makes it."""

    title: str
    about: str
    call: str


PAGES: dict[str, tuple[str, str, tuple[Part, ...]]] = {
    "calculators": (
        "Calculators",
        "The memory that a training needs on each GPU, and the cost of its communication.",
        (
            Part(
                "Memory of a training",
                "Choose a model, a recipe and a layout. The answer says what each part takes on "
                "the fullest GPU, and what to change where it does not fit.",
                "memory_calculator()",
            ),
            Part(
                "Key-value caches of requests",
                "Choose a model, requests, number formats and a GPU. The answer says what the "
                "caches take by kind of layer, and how many requests fit beside the weights.",
                "cache_calculator()",
            ),
            Part(
                "Traffic of a collective",
                "Choose a collective, size, ranks, latency and bandwidth. The answer says how many "
                "bytes each rank sends, and how long that takes.",
                "calculator()",
            ),
        ),
    ),
    "planner": (
        "Layout planner",
        "All ways to split a model over a cluster: data, tensor, pipeline and context parallel.",
        (
            Part(
                "Which layouts fit, and which is fastest",
                "Choose a model and a cluster, and press Plan. The answer ranks the layouts by "
                "seconds per step and says why the others lose. A layout of your own gets its "
                "place among them.",
                "layout_planner()",
            ),
            Part(
                "The groups of each rank",
                "Choose the axes of a mesh, and point at a rank. Ranks that share a group with it "
                "are coloured.",
                "mesh_explorer()",
            ),
        ),
    ),
    "pipeline": (
        "Pipeline schedules",
        "A step of pipeline parallelism, operation by operation: its idle time and its memory.",
        (
            Part(
                "The bubble and the memory of a schedule",
                "The bubble is the time in which a rank is idle. Choose a schedule, or write your "
                "own, a line per rank. The lab checks, simulates and draws it, with its bubble and "
                "the microbatches that each rank holds.",
                "pipeline_calculator()",
            ),
            Part(
                "A puzzle",
                "Write a schedule yourself, within a limit of time and a limit of memory.",
                "schedule_puzzle('two ranks')",
            ),
        ),
    ),
    "cards": (
        "Cards by spaced repetition",
        "A card is a question that interviewers ask. Answer aloud, then compare. Spaced repetition "
        "asks each card again before you forget it.",
        (
            Part(
                "What is due",
                "A card is due when its pause ends. Cards that are due come first, then new ones.",
                "card()",
            ),
        ),
    ),
    "drills": (
        "Drills and a quiz",
        "Questions with a number as the answer, and multiple choice.",
        (
            Part(
                "A drill",
                "An answer is a number with its unit: 31.4 GB, 2/3, 43.8%. A wrong answer is "
                "explained.",
                "drill()",
            ),
            Part("A quiz", "Ten questions. Each wrong choice is explained.", "quiz()"),
        ),
    ),
    "draw": (
        "Draw it, design it",
        "A drawing on a whiteboard, and the design of a training. The lab checks both.",
        (
            Part(
                "A whiteboard",
                "Fill in which rank sends which chunk in each step. The lab replays and checks "
                "your drawing.",
                "draw('ring-4')",
            ),
            Part(
                "A design round",
                "Ask for facts, choose a layout and predict its numbers. Then a fact changes, as "
                "in an interview. The planner checks the numbers.",
                "design_round('70b-small-cluster')",
            ),
            Part(
                "A take-home",
                "Choose layout, schedule and placement of a 70B model on 64 GPUs. Two of the hosts "
                "are slow. The score is the seconds of a step.",
                "take_home()",
            ),
        ),
    ),
    "interview": (
        "A mock interview",
        "Questions and drills with a clock, and a report by topic.",
        (
            Part(
                "Ten minutes",
                "A short interview, at junior level.",
                "mock_interview(minutes=10, level='junior')",
            ),
            Part("Forty-five minutes", "A full interview, at senior level.", "mock_interview()"),
        ),
    ),
    "progress": (
        "Your progress",
        "Days in a row, what is due, and mastery by topic. Your progress stays in this browser.",
        (
            Part("How far you are", "Everything you have practised on this site.", "dashboard()"),
            Part(
                "Your votes",
                "Every claim, with your vote. The verdict appears when you have voted: in [the "
                "claims court](../claims/index.md).",
                "docket()",
            ),
        ),
    ),
}


def try_pages(links: Links, pictures: Path) -> Iterator[tuple[str, str]]:
    """Yield (page, Markdown) of each page. Its static answers come from the parts themselves."""
    yield "try/index.md", _index()
    for name, (title, about, parts) in PAGES.items():
        text = f"# {title}\n\n{about}\n\n"
        for part in parts:
            html = links.in_html("notebooks/README.md", _static(part.call), f"try/{name}.md")
            html = with_files(html, pictures, "../")
            text += f"## {part.title}\n\n{part.about}\n\n{_block(live(part.call, html))}\n\n"
        yield f"try/{name}.md", text


def _index() -> str:
    rows = "".join(
        f"- [{title}]({name}.md). {about}\n" for name, (title, about, _) in PAGES.items()
    )
    tree = "\n".join(PAGES)
    return (
        "# Try it here\n\n"
        "These parts of the lab run in your browser, by the lab's own Python. Press *Use it here* "
        "below a part to start it. The first part loads 8 MB and takes some seconds. Your answers "
        "stay in your browser. Runs on real processes need the [installed lab](../index.md).\n\n"
        f"{rows}\n```{{toctree}}\n:hidden:\n\n{tree}\n```\n"
    )


def _block(html: str) -> str:
    """Return HTML as one block of Markdown, which an empty line would end."""
    return "\n".join(line for line in html.splitlines() if line.strip())


def _static(call: str) -> str:
    from labkit import notebook

    names = {name: getattr(notebook, name) for name in notebook.__all__}
    bundle: Any = eval(call, names)._repr_mimebundle_()  # only the calls above
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    if "text/html" in data:
        return str(data["text/html"])
    if "image/png" in data:
        content = data["image/png"]
        text = content if isinstance(content, str) else base64.b64encode(content).decode()
        alt = escape(data["text/plain"].strip("<>"))
        return f'<img class="labkit-picture" alt="{alt}" src="data:image/png;base64,{text}">'
    return f"<pre>{escape(data['text/plain'])}</pre>"
