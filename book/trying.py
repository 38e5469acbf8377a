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
        "All layouts of a model on a cluster.",
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
        "A pipeline's step, operation by operation.",
        (
            Part(
                "The bubble and the memory of a schedule",
                "Choose a schedule, or write your own, a line per rank. It is checked, simulated "
                "and drawn, with its bubble and the microbatches that each rank holds.",
                "pipeline_calculator()",
            ),
            Part(
                "A puzzle",
                "Write a schedule yourself, within a time and a memory.",
                "schedule_puzzle('two ranks')",
            ),
        ),
    ),
    "cards": (
        "Cards by spaced repetition",
        "Answer aloud, then compare. Spaced repetition asks each card again before you forget it.",
        (Part("What is due", "Cards that are due come first, then new ones.", "card()"),),
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
        "A whiteboard and a design round, both checked.",
        (
            Part(
                "A whiteboard",
                "Fill in who sends what when. What you draw is replayed and checked.",
                "draw('ring-4')",
            ),
            Part(
                "A design round",
                "Clarify, plan, predict, and meet facts that change. The planner checks the "
                "numbers.",
                "design_round('70b-small-cluster')",
            ),
            Part(
                "A take-home",
                "Layout, schedule and placement of a 70B model on 64 GPUs, two of whose hosts are "
                "slow. The score is the seconds of a step.",
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
                "A short interview, for everyone.",
                "mock_interview(minutes=10, level='junior')",
            ),
            Part("Forty-five minutes", "The whole one.", "mock_interview()"),
        ),
    ),
    "progress": (
        "Your progress",
        "Days in a row, what is due, and mastery by topic. It stays in this browser.",
        (
            Part("How far you are", "Everything you have practised on this site.", "dashboard()"),
            Part("Your votes", "Every claim, with your vote and the verdict.", "docket()"),
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
        "These parts of the lab run in this page: the lab's own Python, in your browser. Nothing "
        "is sent anywhere. The first use loads a few megabytes. Runs on real processes need the "
        f"installed lab.\n\n{rows}\n```{{toctree}}\n:hidden:\n\n{tree}\n```\n"
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
