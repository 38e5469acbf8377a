"""Pages of what there is to practise: question cards, claims and exercises.

Each function yields (page, Markdown): the page by its path in the stage, such as
"cards/co-2.md". Answers, hints and verdicts are folded. No page has the text of a solution.
"""

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator
from functools import cache
from html import escape
from itertools import groupby
from typing import TypeVar

from book.links import ROOT, Links
from book.notebook import live
from labkit.grade.catalog import Exercise, get_exercise, load_catalog, load_subjects
from labkit.grade.engine import cases_of
from labkit.grade.grader import Grader, Questions, load_graders
from labkit.grade.stubs import cut_stub
from labkit.interview import evidence as proofs
from labkit.interview.cards import Card, FollowUp, Topic, load_bank, load_topics
from labkit.interview.court import VERDICTS, Claim, Exhibit, load_claims, shown

T = TypeVar("T")
_ORPHAN = "---\norphan: true\n---\n\n"
_RUN = re.compile(r"\bruns\.(\w+)\.(\w+)")
_SPECIAL = re.compile(r"([\\*<\[\]#|~$])")
_ROLES = {
    "ml": "ML engineers",
    "infrastructure": "infrastructure engineers",
    "research": "researchers",
}
_CHAIN = (
    "In brackets: *recall* asks for a definition, *apply* for a number, *analyse* for the "
    "consequence of a change, *design* for a decision."
)
HINTS = ("the concept", "the invariant", "the lines where it goes wrong")


def plain(text: str) -> str:
    """Return Markdown that shows a text as it is, except for code between backticks."""
    parts = " ".join(text.split()).split("`")
    if len(parts) % 2 == 0:  # a backtick without a partner
        return _SPECIAL.sub(r"\\\1", " ".join(text.split())).replace("`", r"\`")
    parts[::2] = [_SPECIAL.sub(r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def folded(title: str, content: str) -> str:
    """Return a part that opens on a click."""
    fence = max(["::::", *(f":{each}" for each in re.findall("^::::+", content, re.M))])  # inside
    return f"{fence}{{dropdown}} {title}\n{content.strip()}\n{fence}\n"


def _with_next(entries: Iterable[T]) -> Iterator[tuple[T, T]]:
    """Yield each entry with the one after it, and the last with the first."""
    found = list(entries)
    return zip(found, found[1:] + found[:1])


def bullets(entries: Iterable[str]) -> str:
    """Return a list of plain texts."""
    return "".join(f"- {plain(each)}\n" for each in entries)


def cell(text: str) -> str:
    """Return text for a table's cell, which ends at a bar."""
    return text.replace("|", "\\|").replace("\n", " ")


def code(text: str) -> str:
    """Return a code span, also of a text with backticks."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


# --- Cards ---


def card_pages(links: Links) -> Iterator[tuple[str, str]]:
    """Yield a page for each card, a page for each subject, and the page of all subjects."""
    cards, topics = load_bank(), load_topics()
    yield "cards/index.md", _cards_index(cards, topics)
    for subject in load_subjects().values():
        rows = [
            f"| [{card.id}]({card.id}.md) | {cell(plain(card.prompt))} | {card.level} |\n"
            for card in cards.values()
            if topics[card.topic].subject == subject.name
        ]
        yield (
            f"cards/{subject.name}.md",
            f"{_ORPHAN}# Cards: {subject.title}\n\n"
            "Say your answer aloud, then open the page.\n\n"
            f"| card | question | for |\n|---|---|---|\n{''.join(rows)}",
        )
    for card, after in _with_next(cards.values()):
        text = _card_page(card, topics[card.topic], links)
        title = plain(topics[after.topic].title)
        text += f"\nNext card: [{after.id} · {title}]({after.id}.md). [All cards](index.md).\n"
        yield f"cards/{card.id}.md", text


def _cards_index(cards: dict[str, Card], topics: dict[str, Topic]) -> str:
    text = (
        "# Question cards\n\n"
        f"{len(cards)} questions that interviewers ask. Each has an answer of a minute, a deeper "
        "one, the common mistake, the points that an interviewer listens for, follow-ups with "
        "answers, and evidence for each number. [Cards by spaced repetition](../try/cards.md) asks "
        "them in your browser, each again before you forget it.\n\n"
    )
    for subject in load_subjects().values():
        text += f"## {subject.title}\n\n"
        for card in cards.values():
            if topics[card.topic].subject == subject.name:
                text += f"- [{plain(card.prompt)}]({card.id}.md) ({card.id}, {card.level})\n"
        text += "\n"
    return text


def _card_page(card: Card, topic: Topic, links: Links) -> str:
    page, path = f"cards/{card.id}.md", f"labkit/course/{card.file}"
    roles = ", ".join(_ROLES[role] for role in card.roles)
    about = (
        f"kind: {card.kind} · level: {card.level} · asked of: {roles} · "
        f"[{topic.group}]({topic.subject}.md)"
    )
    if topic.place:
        about += f" · [where it is shown]({links.to(topic.place, page)})"
    question = f'<p class="lab-question">{escape(card.prompt)}</p>'
    text = f"{_ORPHAN}# {card.id} · {plain(topic.title)}\n\n{about}\n\n"
    text += f"{live(f'card({card.id!r})', question)}\n\n"
    for title, answer in (
        ("The answer in a minute", card.minute),
        ("Deeper", card.deeper),
        ("The common mistake", card.mistake),
    ):
        text += folded(title, links.in_markdown(path, answer, page)) + "\n"
    text += folded("Points that an interviewer listens for", bullets(card.rubric)) + "\n"
    if card.exercise:
        title = plain(get_exercise(card.exercise).title)
        text += f"Write it yourself: [{title}](../exercises/{card.exercise}.md).\n\n"
    if card.follow_ups:
        text += f"## They may ask next\n\n{_CHAIN}\n\n"
        text += "\n".join(_follow_up(each, path, page, links) for each in card.follow_ups)
    text += "\n## Where the numbers come from\n\n"
    if card.given:
        text += f"Assumed in the text: {', '.join(map(plain, card.given))}.\n\n"
    text += _evidence(card.all_evidence)
    return text + f"\n## Sources\n\n{bullets(card.sources)}"


def _follow_up(asked: FollowUp, path: str, page: str, links: Links) -> str:
    if not asked.answer:
        return f"- {plain(asked.question)}\n"
    answer = links.in_markdown(path, asked.answer, page)
    if asked.rubric:
        answer += f"\n\nListened for:\n\n{bullets(asked.rubric)}"
    return folded(f"{plain(asked.question)}{f' ({asked.kind})' if asked.kind else ''}", answer)


def _evidence(items: Iterable[object]) -> str:
    """Return a table of what proves each number, and the source of the runs among it."""
    rows: list[str] = []
    runs: dict[tuple[str, str], None] = {}
    for item in items:
        proof, source = getattr(item, "proof", ""), getattr(item, "source", "")
        pending = getattr(item, "pending", "")
        by = code(proof) if proof else plain(source or f"not proved yet: {pending}")
        rows.append(f"| {cell(plain(getattr(item, 'says', '')))} | {cell(by)} |\n")
        runs |= dict.fromkeys(_RUN.findall(proof))
    if not rows:
        return "The answer has no number.\n"
    text = f"| number | proved by |\n|---|---|\n{''.join(rows)}\n"
    if runs:
        text += (
            "`calc` is `labkit.calc`, the lab's formulas. `runs` are runs of real processes.\n\n"
        )
    return text + "".join(_run_source(*each) for each in runs)


def _run_source(subject: str, name: str) -> str:
    found = _functions(subject).get(name)
    return folded(f"The run `{name}`", f"```python\n{found}\n```") + "\n" if found else ""


@cache
def _functions(subject: str) -> dict[str, str]:
    """Return the source of each function of a subject's evidence, by name."""
    folder, found = ROOT / "labkit" / "course" / subject, {}
    for path in [folder / "evidence.py", *sorted((folder / "evidence").glob("*.py"))]:
        text = path.read_text("utf-8") if path.is_file() else ""
        lines = text.splitlines()
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef):
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                found[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    return found


# --- Claims ---


def claim_pages(links: Links) -> Iterator[tuple[str, str]]:
    """Yield a page for each subject with claims, and the page of all subjects."""
    claims = load_claims()
    index = (
        "# The claims court\n\n"
        f"{len(claims)} claims about distributed training that circulate. Vote on a claim, then "
        "open the verdict: what is calculated, what is measured, and what the claim confuses.\n\n"
        f"A claim has one of {len(VERDICTS)} verdicts:\n\n"
    )
    index += "".join(f"- **{name}**: {each.meaning}\n" for name, each in VERDICTS.items()) + "\n"
    for subject in load_subjects().values():
        file = f"labkit/course/{subject.name}/claims.toml"
        if not (ROOT / file).is_file():
            continue
        found = [each for key, each in claims.items() if _is_of(key, file)]
        page = f"claims/{subject.name}.md"
        index += f"## [{subject.title}]({subject.name}.md)\n\n"
        index += "".join(f"- {plain(each.claim)}\n" for each in found) + "\n"
        yield (
            page,
            f"{_ORPHAN}# Claims: {subject.title}\n\n"
            + "\n".join(_claim(each, page, links) for each in found),
        )
    yield "claims/index.md", index


def _is_of(key: str, file: str) -> bool:
    return key in re.findall(r'^key = "([^"]+)"', (ROOT / file).read_text("utf-8"), re.M)


def _claim(claim: Claim, page: str, links: Links) -> str:
    choices = f"<p>Your vote: {' / '.join(VERDICTS)}.</p>"
    rows = "".join(
        f"| {cell(plain(each.shows))} | {cell(plain(each.claimed))} | {cell(_found(each))} | "
        f"{'yes' if each.stands else 'no'} |\n"
        for each in claim.exhibits
    )
    verdict = (
        f"**{claim.verdict}**: {VERDICTS[claim.verdict].meaning}.\n\n"
        f"**What is true.** {plain(claim.truth)}\n\n"
        f"**What was confused.** {plain(claim.confusion)}\n\n"
        f"| exhibit | claimed | found | supports the claim |\n|---|---|---|---|\n{rows}"
    )
    about = ""
    if claim.notebook:
        there = links.to(f"notebooks/{claim.notebook}.ipynb", page)
        about = f"[Notebook {claim.notebook[:2]}]({there}) treats this claim at length.\n\n"
    return (
        f"## {plain(claim.claim)}\n\n{live(f'vote({claim.key!r})', choices)}\n\n{about}"
        + folded("The verdict", verdict)
        + "\n"
        + folded(
            "Where the numbers come from",
            f"{_evidence(claim.evidence)}\nSources:\n\n{bullets(claim.sources)}",
        )
    )


def _found(exhibit: Exhibit) -> str:
    if exhibit.published:
        return f"{plain(exhibit.published)}, published"
    if _RUN.search(exhibit.proof):
        return f"measured by {code(exhibit.proof)}"
    value = shown(float(proofs.value(exhibit.proof)), exhibit)
    measured = f"; measured by {code(exhibit.run)}" if exhibit.run else ""
    return f"{value}: {code(exhibit.proof)}{measured}"


# --- Exercises ---


def exercise_pages(links: Links) -> Iterator[tuple[str, str]]:
    """Yield a page for each exercise, and the page of all."""
    catalog = load_catalog()
    index = (
        "# Exercises\n\n"
        f"{len(catalog)} functions to write. In the lab a check runs yours on one to four real "
        "ranks with random inputs. It looks at values, bytes, operations, memory and the order of "
        "events, and names typical mistakes. Each page here has the contract, the hints, and what "
        "the check looks at. In the [installed lab](../index.md), `labkit check NAME` checks "
        "your function.\n\n"
    )
    for subject in load_subjects().values():
        names = [each for each in catalog.values() if each.subject == subject.name]
        if not names:
            continue
        index += f"## {subject.title}\n\n"
        for each in names:
            index += (
                f"- [{plain(each.title)}]({each.name}.md) (`{each.name}`, {each.difficulty} of 5)\n"
            )
        index += "\n"
    yield "exercises/index.md", index
    for exercise, after in _with_next(catalog.values()):
        text = _exercise_page(exercise, links)
        text += f"\nNext exercise: [{plain(after.title)}]({after.name}.md). "
        yield f"exercises/{exercise.name}.md", f"{text}[All exercises](index.md).\n"


def _exercise_page(exercise: Exercise, links: Links) -> str:
    page = f"exercises/{exercise.name}.md"
    stub = cut_stub((ROOT / "solutions" / f"{exercise.name}.py").read_text("utf-8"))
    module = ast.parse(stub)
    docstring = ast.get_docstring(module) or ""
    code_text = "\n".join(stub.splitlines()[module.body[0].end_lineno :]).strip()
    notebook = links.to(f"notebooks/{exercise.notebook}.ipynb", page)
    subject = load_subjects()[exercise.subject].title
    text = f"{_ORPHAN}# {plain(exercise.title)}\n\n"
    text += (
        f"`{exercise.name}` · {subject} · difficulty {exercise.difficulty} of 5 · "
        f"[notebook {exercise.notebook[:2]}]({notebook})\n\n"
    )
    text += _laid_out(docstring.split("\n\n")[1:])  # the first is the title
    text += f"## The stub\n\n```python\n{code_text}\n```\n\n"
    text += (
        f"In the [installed lab](../index.md), `labkit check {exercise.name}` checks your "
        "function.\n\n## Hints\n\n"
    )
    for number, (name, hint) in enumerate(zip(HINTS, exercise.hints), 1):
        text += folded(f"{number}: {name}", plain(hint)) + "\n"
    text += "## What the check looks at\n\n"
    graders = load_graders(exercise.name)
    text += "\n".join(_looks_at(each, len(graders) > 1) for each in graders)
    text += "\n## After it passes\n\n"
    text += folded("The answer to say", plain(exercise.say)) + "\n"
    return text + f"Then an interviewer may ask:\n\n{bullets(exercise.follow_ups)}"


def _laid_out(parts: list[str]) -> str:
    """Return paragraphs as text; those with an indented line, such as a contract, as laid out."""
    text = ""
    for is_table, group in groupby(parts, lambda part: bool(re.search("^  ", part, re.MULTILINE))):
        if is_table:
            text += "```text\n" + textwrap.dedent("\n\n".join(group)) + "\n```\n\n"
        else:
            text += "\n\n".join(map(plain, group)) + "\n\n"
    return text


def _looks_at(grader: Grader, is_part: bool) -> str:
    text = f"### {', '.join(f'`{each}`' for each in grader.functions)}\n\n" if is_part else ""
    sizes = sorted(grader.world_sizes)
    if isinstance(grader, Questions):
        text += "The check calls your function in one process.\n\n"
    else:
        text += (
            f"Your function runs on {', '.join(map(str, sizes[:-1]))} and {sizes[-1]} ranks.\n\n"
            if (len(sizes) > 1)
            else f"Your function runs on {sizes[0]} ranks.\n\n"
        )
        operations = ", ".join(f"`{each}`" for each in grader.allowed)
        text += f"Your function may use these operations of the group: {operations or 'none'}.\n\n"
    if grader.cases.__doc__:
        text += f"**Cases.** {plain(grader.cases.__doc__)}\n\n"
    labels = dict.fromkeys(each.label for each in cases_of(grader, max(sizes), seed=0))
    text += f"{bullets(labels)}\n"
    if grader.budget.__doc__:
        text += f"**Budget.** {plain(grader.budget.__doc__)}\n\n"
    text += f"**A pass shows that** {plain(grader.shown)}.\n\n"
    if grader.mistakes:
        text += "**Mistakes that the check names:**\n\n"
        text += "\n".join(folded(plain(each.name), plain(each.why)) for each in grader.mistakes)
    return text
