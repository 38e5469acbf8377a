"""All that can be practised, by group of topics: cards, drills, claims and exercises.

subjects_by_group()["Pipeline parallelism"]    ["card/pp-1", ..., "drill/...", "exercise/..."]

A card and a drill say which topic they are of; a claim of the court says its main topic first. An
exercise says its notebook, and belongs where most of that notebook's topics do. Predictions are the
notebooks' own, and listed nowhere.
"""

from collections import Counter
from functools import cache

from labkit.grade.workspace import Exercise, load_catalog
from labkit.interview.cards import load_bank, load_topics
from labkit.interview.cards.sitting import subject
from labkit.interview.court import load_claims
from labkit.interview.drills import DRILLS


def subjects_by_group() -> dict[str, list[str]]:
    """In the order of the bank. Exercises of notebooks without a topic are under their own."""
    topics = load_topics()
    found: dict[str, list[str]] = {topic.group: [] for topic in topics.values()}
    for card in load_bank().values():
        found[topics[card.topic].group].append(subject(card))
    for drill in DRILLS.values():
        found[topics[drill.topic].group].append(f"drill/{drill.name}")
    for claim in load_claims().values():
        found[topics[claim.topics[0]].group].append(f"claim/{claim.key}")
    for exercise in load_catalog().values():
        found.setdefault(group_of_exercise(exercise), []).append(f"exercise/{exercise.name}")
    return found


def group_of_exercise(exercise: Exercise) -> str:
    """Where most topics of its notebook are; its own topic, if there are none."""
    return _groups_of_notebooks().get(exercise.notebook, exercise.topic)


@cache
def _groups_of_notebooks() -> dict[str, str]:
    counts: dict[str, Counter[str]] = {}
    for topic in load_topics().values():
        counts.setdefault(topic.notebook, Counter())[topic.group] += 1
    return {name: groups.most_common(1)[0][0] for name, groups in counts.items() if name}
