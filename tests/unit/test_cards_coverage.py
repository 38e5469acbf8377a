"""Coverage: each topic with its cards, and each piece of evidence counted as what it is."""

import pytest

from labkit.interview.cards import Card, Evidence, coverage, kind, load_topics

ITEMS = {
    "formula": Evidence(says="6", proof="calc.collective('all_reduce', 'ring', 4).steps"),
    "run": Evidence(
        says="8", proof="runs.pipelines.microbatches_held('gpipe')[3] + calc.units.GB * 0"
    ),
    "published": Evidence(says="419", source="The Llama 3 Herd of Models, section 3.3.4"),
    "pending": Evidence(pending="a run with failures"),
}


def card(card_id, *evidence):
    texts = dict.fromkeys(("prompt", "minute", "deeper", "mistake"), "")
    lists = dict.fromkeys(("rubric", "follow_ups", "sources"), ())
    return Card(id=card_id, difficulty=1, evidence=evidence, **texts, **lists)


@pytest.mark.parametrize("name", ITEMS)
def test_evidence_is_of_one_kind(name):
    assert kind(ITEMS[name]) == name


def test_a_topic_counts_the_evidence_of_all_its_cards():
    formula, run, published, pending = ITEMS.values()
    cards = [card("co-8", formula, run, pending), card("co-8b", formula), card("pp-2", published)]
    found = {each.topic.id: each for each in coverage(cards)}
    assert list(found) == list(load_topics())
    assert [each.id for each in found["co-8"].cards] == ["co-8", "co-8b"]
    counts = {
        name: (each.by_formula, each.by_run, each.published, each.pending)
        for name, each in found.items()
    }
    assert counts.pop("co-8") == (2, 1, 0, 1)
    assert counts.pop("pp-2") == (0, 0, 1, 0)
    assert set(counts.values()) == {(0, 0, 0, 0)}


def test_a_topic_without_a_card_is_missing():
    found = {each.topic.id: each.is_missing for each in coverage([card("co-8b", ITEMS["run"])])}
    assert not found.pop("co-8") and all(found.values())
