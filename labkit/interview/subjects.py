"""All that can be practised, by group of topics: cards, drills, claims and exercises.

subjects_by_group()["Pipeline parallelism"]    ["card/pp-1", ..., "drill/...", "exercise/..."]

A card and a drill say which topic they are of; a claim of the court says its main topic first. An
exercise is of the subject in whose folder it lies. Predictions are the notebooks' own, and listed
nowhere.
"""

from labkit.grade.catalog import load_catalog, load_subjects
from labkit.interview.cards import load_bank, load_topics
from labkit.interview.cards.sitting import subject
from labkit.interview.court import load_claims
from labkit.interview.drills import DRILLS


def subjects_by_group() -> dict[str, list[str]]:
    """In the order of the course."""
    topics, subjects = load_topics(), load_subjects()
    found: dict[str, list[str]] = {topic.group: [] for topic in topics.values()}
    for card in load_bank().values():
        found[topics[card.topic].group].append(subject(card))
    for drill in DRILLS.values():
        found[topics[drill.topic].group].append(f"drill/{drill.name}")
    for claim in load_claims().values():
        found[topics[claim.topics[0]].group].append(f"claim/{claim.key}")
    for exercise in load_catalog().values():
        found[subjects[exercise.subject].title].append(f"exercise/{exercise.name}")
    return found
