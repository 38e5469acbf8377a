"""Everything that can be practised is under one group, once; predictions, of notebooks, apart."""

from labkit.grade.catalog import load_catalog
from labkit.interview.cards import load_bank, load_topics
from labkit.interview.court import load_claims
from labkit.interview.drills import DRILLS
from labkit.interview.summary import subjects_by_group


def test_every_card_drill_claim_and_exercise_is_there_once():
    found = [each for subjects in subjects_by_group().values() for each in subjects]
    assert len(found) == len(set(found))
    assert sum(each.startswith("card/") for each in found) == len(load_bank())
    assert sum(each.startswith("drill/") for each in found) == len(DRILLS)
    assert sum(each.startswith("claim/") for each in found) == len(load_claims())
    assert sum(each.startswith("exercise/") for each in found) == len(load_catalog())


def test_an_exercise_is_with_the_topics_of_its_subject():
    groups = subjects_by_group()
    assert "exercise/gpipe_schedule" in groups["Pipeline parallelism"]
    assert "exercise/ring_all_reduce" in groups["Collectives and networks"]


def test_every_drill_lies_in_the_folder_of_its_topic():
    topics = load_topics()
    folders = {name: drill.solve.__module__.split(".")[2] for name, drill in DRILLS.items()}
    assert folders == {name: topics[drill.topic].subject for name, drill in DRILLS.items()}
