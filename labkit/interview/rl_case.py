"""Open a case of reinforcement learning: a job with one of nine faults, and the question which.

    briefing    The on-call engineer writes: since Tuesday our GRPO job learns less. Why?
    before      a table of figures by update; folder/page.html draws them, folder/figures.json
    answer      "sleep", or "the weights are lost in a sleep"
    after       the fault, how it shows, a check that finds it in a minute, a public report;
                folder/answer.html draws the same job without the fault beside it

Both jobs run on real ranks: two trainers, two engines (labkit/inject/rl_faults.py). The rules that
find the fault in the figures are those of labkit/profile/rl_diagnosis.py.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import random
import re
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path

from labkit import viz
from labkit.calc.units import Quantity
from labkit.comm import owned_folder
from labkit.inject import ROLLOUT_FAULTS, rollout_run, rollout_settings
from labkit.inject.rl_faults import FaultySettings
from labkit.interview.drills import Outcome, Question, Ruling
from labkit.interview.drills.question import Exhibit
from labkit.interview.slow_case import BUSY, CALLERS, DAYS, table
from labkit.profile.rl_diagnosis import CAUSES, Named, name_fault
from labkit.rl.figures import Figures
from labkit.rl.language import Trained

_RUNS = 2
"""Limit of attempts: a case whose figures do not show the fault is run again."""


@dataclass(frozen=True, kw_only=True)
class RolloutCase(Question):
    """A case whose runs are done. The answer is the name of a fault."""

    fault: str
    named: Named | None
    """The fault that the rules of profile.rl_diagnosis find in the same figures."""

    @property
    def answer_text(self) -> str:
        """`sleep: weights are lost in a sleep, and not sent again`."""
        return f"{self.fault}: {CAUSES[self.fault].what}"

    @property
    def is_clear(self) -> bool:
        """True if the figures show the fault to the rules."""
        return self.named is not None and self.named.name == self.fault

    def judge(self, text: str) -> Ruling:
        """Judge an answer that has the name of one fault."""
        said = re.sub(r"[\s_-]+", " ", text.lower())
        found = [name for name in CAUSES if re.search(rf"\b{name}\b", said)]
        if len(found) != 1:
            names = ", ".join(CAUSES)
            return Ruling(Outcome.UNREADABLE, f"Name one of these faults: {names}.")
        if found[0] == self.fault:
            return Ruling(Outcome.RIGHT, f"Right: {self.answer_text}.")
        return Ruling(Outcome.WRONG, f"Not {found[0]}. {CAUSES[found[0]].sign}")


def draw(difficulty: int, seed: int) -> str:
    """Draw the fault of a case."""
    names = [name for name, fault in ROLLOUT_FAULTS.items() if difficulty in fault.difficulties]
    return random.Random(f"rl case {difficulty} {seed}").choice(names)


def open_case(difficulty: int, seed: int) -> RolloutCase:
    """Draw a case, and run it with its fault and without. The same seed draws the same."""
    fault = draw(difficulty, seed)
    folder = owned_folder.make(Path(tempfile.gettempdir()), "case")
    without = _recorded(fault, difficulty, seed, is_healthy=True)
    for _ in range(_RUNS):
        case = case_of(fault, difficulty, seed, _recorded(fault, difficulty, seed), without, folder)
        if case.is_clear:
            return case
    return replace(case, steps=(*case.steps, BUSY))


def _recorded(fault: str, difficulty: int, seed: int, is_healthy: bool = False) -> Trained:
    with contextlib.redirect_stdout(io.StringIO()):  # drop notes on messages that arrived late
        return rollout_run(fault, difficulty, seed, is_healthy=is_healthy)


def case_of(
    fault: str, difficulty: int, seed: int, trained: Trained, without: Trained, folder: Path
) -> RolloutCase:
    """Make the case from its two runs, and write its files to the folder."""
    named = name_fault(trained.figures, trained.stalled)
    page = _page("The run that is asked about", trained, None, None)
    answer_page = _page(f"The fault: {fault}", trained, without, named)
    for name, text in (("page.html", page), ("answer.html", answer_page)):
        (folder / name).write_text(text, encoding="utf-8")
    plain = {"stalled": trained.stalled, "figures": [asdict(each) for each in trained.figures]}
    (folder / "figures.json").write_text(json.dumps(plain), encoding="utf-8")
    settings = rollout_settings(fault, difficulty, seed)
    return RolloutCase(
        drill=f"rl_case_{difficulty}",
        seed=seed,
        prompt=_briefing(settings),
        givens={},
        answer=Quantity(0.0, ""),
        unit="",
        unit_size=1.0,
        digits=None,
        steps=tuple(_steps(fault, settings, named)),
        traps=(),
        exhibit=Exhibit(_exhibit_text(trained, folder), page),
        proof=Exhibit(_proof_text(without, folder), answer_page),
        fault=fault,
        named=named,
    )


def _briefing(settings: FaultySettings) -> str:
    rng = random.Random(settings.seed)
    names = "\n".join(f"  {name}: {cause.what}" for name, cause in CAUSES.items())
    versions = "version" if settings.staleness == 1 else "versions"
    behind = (
        "Each answer is used for the version that generated it"
        if settings.staleness == 0
        else f"Answers may be up to {settings.staleness} {versions} behind"
    )
    partial = ", and updates interrupt them" if settings.is_partial else ""
    model = "mixture of experts" if settings.num_experts else "dense model"
    return (
        f"{rng.choice(CALLERS)}: since {rng.choice(DAYS)} something is wrong with our GRPO job, a "
        f"{model}. Ranks 0 and 1 train. Ranks 2 and 3 are engines, which generate. {behind}"
        f"{partial}. Engines give back their memory after every second version, and get their "
        f"weights again. The figures of its {settings.num_updates} updates are below. Which fault "
        f"is it? Answer with its name.\n{names}"
    )


def _steps(fault: str, settings: FaultySettings, named: Named | None) -> list[str]:
    cause = CAUSES[fault]
    which = f" Temperature {settings.temperature}, top-p {settings.top_p}."
    shown = cause.sign if named is None or named.name != fault else named.evidence
    return [
        f"Injected from version {settings.start} on: {cause.what}."
        + (which if fault == "sampling" else ""),
        f"In the figures: {shown}",
        f"A check that finds it in a minute: {cause.check}.",
        f"A public report like it: {cause.report}. {cause.url}",
    ]


def _rows(figures: Sequence[Figures]) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Return a table of the policy's figures, and one of the system's."""
    policy, system = [], []
    for each in figures:
        policy.append(
            {
                "update": f"{each.version}",
                "reward": f"{each.reward:.2f}",
                "KL": f"{each.kl:.3f}",
                "entropy": f"{each.entropy:.2f}",
                "ESS": f"{each.effective_sample_size:.3f}",
                "ratio": f"{each.ratio:.3f}",
                "off 1 by": f"{each.ratio_off:.2g}",
                "clipped": f"{each.clipped:.0%}",
                "unchanged": f"{each.unchanged_ratio:.4f}",
                "median off": f"{each.unchanged_median:.1g}",
                "most off": f"{each.unchanged_off:.1g}",
                "lag": f"{each.lag:.1f}",
            }
        )
        sent = f"{each.sent_norm:.4f} ({each.sent_version})" if each.sent_norm else "-"
        served = [
            f"{norm:.4f} ({version})" if version >= 0 else "asleep"
            for norm, version in zip(each.served_norm, each.served_version, strict=True)
        ]
        idle = [
            f"{100 * seconds / max(each.seconds, seconds, 1e-9):.0f}" for seconds in each.idle_s
        ]
        system.append(
            {
                "update": f"{each.version}",
                "sent (version)": sent,
                "served": ", ".join(served),
                "idle by rank, %": " ".join(idle),
                "ms": f"{1e3 * each.seconds:.0f}",
                "tokens": f"{each.tokens}",
                "longest": f"{each.longest}",
            }
        )
    return policy, system


def _tables(figures: Sequence[Figures]) -> str:
    """Return both tables, each below what its columns mean."""
    if not figures:
        return ""
    policy, system = _rows(figures)
    return (
        "\nThe policy. ESS: effective sample size. ratio: mean of the loss's, before the update; "
        "off 1 by: the\nlargest |ratio - 1|. unchanged: mean ratio of fixed tokens, where trainer "
        "and engine have equal versions;\nmedian and most off: of its |ratio - 1|. lag: versions "
        f"behind, on average\n{table(policy)}\n"
        "\nThe system. Norms of the weights sent (-: none since the update before), and served by "
        f"each engine,\nwith the version that it says it has\n{table(system)}\n"
    )


def _exhibit_text(trained: Trained, folder: Path) -> str:
    where = f"{folder / 'page.html'} draws it; figures.json has all numbers."
    return f"{_tables(trained.figures)}{_ended(trained)}\n{where}\n\n"


def _ended(trained: Trained) -> str:
    """Return how the job ended, without advice."""
    return (
        f"\nThen the job ended: {trained.stalled.partition('. ')[0]}.\n" if trained.stalled else ""
    )


def _proof_text(without: Trained, folder: Path) -> str:
    rewards = " ".join(f"{each.reward:.2f}" for each in without.figures)
    return f"\nRewards without the fault: {rewards}\n{folder / 'answer.html'} draws both.\n\n"


def _page(title: str, trained: Trained, without: Trained | None, named: Named | None) -> str:
    """Return a page of HTML with the picture and the tables."""
    body = f"<p>{escape(_ended(trained).strip())}</p>"
    if trained.figures:
        picture = viz.rollout_figures(
            trained.figures,
            title=title,
            beside=without.figures if without else (),
            since=named.update if named and without else None,
        )
        data = base64.b64encode(picture.png()).decode()
        alt = escape(picture.caption, quote=True)
        source = f'alt="{alt}" src="data:image/png;base64,{data}"'
        image = f'<img style="width: 100%; max-width: 900px" {source}>'
        body = f"{image}{body}<pre>{escape(_tables(trained.figures))}</pre>"
    note = "<p>Dashed grey: the same job without the fault.</p>" if without else ""
    look = "font-family: sans-serif; background: white; color: #222"
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title></head>
<body style="{look}">{note}{body}</body></html>
"""
