"""A card that is not what it should be is refused, with its line, the reason and the fix."""

import shutil

import pytest

from labkit.grade.workspace import find_workspace
from labkit.interview import cards
from labkit.interview.cards import card_likeness

MINUTE = " ".join(["Fourteen steps, since each of two phases takes seven of them."] * 10)
DEEPER = " ".join(["Every rank sends one chunk to its right neighbour in a step."] * 12)
MISTAKE = " ".join(["They multiply by the whole tensor and forget about chunks."] * 4)
PROOF = "calc.collective('all_reduce', 'ring', 8).steps"
EVIDENCE = f'{{ says = "14 steps", proof = "{PROOF}" }}'
CARD = f"""\
+++
id = "co-2"
difficulty = 2
prompt = "How many steps has a ring all-reduce on 8 ranks?"
evidence = [
  {EVIDENCE},
]
rubric = ["names both phases", "counts the steps right", "says what a step sends"]
follow_ups = ["And on a thousand ranks?", "And in a tree?"]
notebook = "01_ranks_and_collectives"
exercise = "ring_all_reduce"
sources = ["Patarasuk and Yuan 2009, Bandwidth optimal all-reduce, JPDC 69(2)"]
+++
**In a minute.** It takes 14 steps. {MINUTE}

**Deeper.** {DEEPER}

**The common mistake.** {MISTAKE}
"""


def problems_of(tmp_path, text, name="collectives.md"):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return [str(each) for each in cards.validate(tmp_path)]


def test_a_card_as_it_should_be_is_not(tmp_path):
    assert problems_of(tmp_path, CARD) == []
    (card,) = cards.load_bank(tmp_path).values()
    assert (card.id, card.topic, card.file, card.line) == ("co-2", "co-2", "collectives.md", 1)
    assert card.minute.startswith("It takes 14 steps.")
    assert card.mistake == MISTAKE
    assert card.evidence == (cards.Evidence("14 steps", proof=PROOF),)


def test_a_quote_may_go_on_in_the_next_line(tmp_path):
    assert problems_of(tmp_path, CARD.replace("It takes 14 steps.", "It takes 14\nsteps.")) == []


BROKEN = {
    "no fence": ("+++\n**In", "**In", "has no partner"),
    "text before": ('+++\nid = "co-2"', 'Hello\n+++\nid = "co-2"', "belongs to no card: 'Hello'"),
    "toml": ('id = "co-2"', 'id = "co-2', "the TOML cannot be read"),
    "toml, in line 3": ("difficulty = 2", "difficulty = ", "collectives.md:3: co-2: the TOML"),
    "unknown key": ("difficulty = 2", "difficulty = 2\nlevel = 3", "unknown level"),
    "no key": ("difficulty = 2\n", "", "there is no difficulty"),
    "no text": ('id = "co-2"', "id = 2", "id = 2 is no text"),
    "no list": ('rubric = ["names', 'rubric = "names"\nx = ["names', "unknown x"),
    "list of numbers": ('follow_ups = ["And on', 'follow_ups = [1, "And on', "no list of texts"),
    "difficulty as text": ("difficulty = 2", 'difficulty = "2"', "no whole number"),
    "difficulty": ("difficulty = 2", "difficulty = 4", "difficulty = 4"),
    "topic": ('id = "co-2"', 'id = "co-99"', "id = 'co-99' is no topic"),
    "letter": ('id = "co-2"', 'id = "co-2a"', "is no topic"),
    "second first": ('id = "co-2"', 'id = "co-2b"', "there is no co-2"),
    "other group": ('id = "co-2"', 'id = "dp-1"', "put it into data_parallel.md"),
    "conventions": ('id = "co-2"', 'id = "co-8"', "fewer than two numbers have evidence"),
    "short minute": (MINUTE, "Really.", "'In a minute' has 5 words"),
    "long minute": (MINUTE, f"{MINUTE} {MINUTE}", "words; write 80 to 200"),
    "short deeper": (DEEPER, "More.", "'Deeper' has 1 words"),
    "short mistake": (MISTAKE, "None.", "'The common mistake' has 1 words"),
    "no section": ("**Deeper.**", "**Depth.**", "the sections are In a minute., The common"),
    "text in no section": ("**In a minute.**", "Hm.\n\n**In a minute.**", "before the first"),
    "prompt": ("How many steps has a ring all-reduce on 8 ranks?", "Ring?", "is no question"),
    "stub": ("in a tree?", "in a tree? TODO", "it says 'TODO'"),
    "dots": ("**Deeper.** ", "**Deeper.** ...\n\n", "it says '...'"),
    "rubric": (', "counts the steps right", "says what a step sends"', "", "has 1 points"),
    "rubric point": ("names both phases", "phases", "rubric has 'phases'"),
    "twice": ("counts the steps right", "names both phases", "rubric says something twice"),
    "follow-ups": (', "And in a tree?"', "", "there are 1 follow-ups"),
    "no source": ('["Patarasuk and Yuan 2009, Bandwidth optimal all-reduce, JPDC 69(2)"]', "[]",
                  "there is no source"),
    "vague source": ("Patarasuk and Yuan 2009, Bandwidth optimal all-reduce, JPDC 69(2)", "NCCL",
                     "the source 'NCCL' cannot be found"),
    "no evidence": (f"{EVIDENCE},", "",
                    "there is no evidence"),
    "evidence twice": ('.steps" }', '.steps", source = "a book" }', "proves nothing; give one of"),
    "evidence key": ('.steps" }', '.steps", run = "x" }', "unknown keys"),
    "evidence without proof": (f', proof = "{PROOF}"', "", "proves nothing"),
    "evidence without says": ('says = "14 steps", ', "", "has no says"),
    "evidence no table": (EVIDENCE, '"14"', "is no table of texts"),
    "says elsewhere": ('says = "14 steps"', 'says = "13 steps"', "which is not in the text"),
    "says inside": ("It takes 14 steps.", "It takes 114 steps.", "which is not in the text"),
    "no proof": (PROOF, "14", "calls neither calc nor runs"),
    "number": ("It takes 14 steps.", "It takes 14 steps, 5 us each.", "nothing proves '5 us'"),
    "given elsewhere": ('notebook = "', 'given = ["9 us"]\nnotebook = "', "given '9 us', which"),
    "given no number": ('notebook = "', 'given = ["steps"]\nnotebook = "', "is no number"),
    "notebook": ("01_ranks_and_collectives", "01_ranks", "there is no notebook '01_ranks'"),
    "exercise": ('exercise = "ring_all_reduce"', 'exercise = "ring"', "there is no exercise"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_card_is_refused(tmp_path, kind):
    right, wrong, reason = BROKEN[kind]
    assert right in CARD
    problems = problems_of(tmp_path, CARD.replace(right, wrong, 1))
    assert any(reason in each for each in problems), problems
    assert all(each.startswith("collectives.md:") for each in problems)


def test_what_cannot_be_read_is_no_bank(tmp_path):
    problems_of(tmp_path, CARD.replace("difficulty = 2\n", ""))
    with pytest.raises(cards.CardError, match="there is no difficulty; write it into"):
        cards.load_bank(tmp_path)


def test_one_unreadable_card_does_not_hide_the_others(tmp_path):
    second = CARD.replace('id = "co-2"', 'id = "co-3"').replace("difficulty = 2\n", "")
    (tmp_path / "collectives.md").write_text(second + CARD, encoding="utf-8")
    found, (problem,) = cards.read_bank(tmp_path)
    assert [card.id for card in found] == ["co-2"]
    assert (problem.card, problem.line) == ("co-3", 2)


def test_two_cards_have_two_ids(tmp_path):
    problems = problems_of(tmp_path, CARD + CARD)
    assert sum("another card has this id" in each for each in problems) == 2


def test_a_second_card_may_not_repeat_the_first(tmp_path):
    second = CARD.replace('id = "co-2"', 'id = "co-2b"')
    problems = problems_of(tmp_path, CARD + second)
    assert len(problems) == 3  # one for each section
    assert all("100% like co-2b" in each and "say it in other words" in each for each in problems)


def test_a_card_may_not_repeat_what_an_exercise_says(tmp_path):
    workspace = find_workspace()
    shutil.copytree(workspace.root / "exercises", tmp_path / "exercises")
    catalog = tmp_path / "exercises" / "catalog.toml"
    text = catalog.read_text(encoding="utf-8")
    say = text.partition('say = """\\\n')[2].partition('"""')[0]
    catalog.write_text(text.replace(say, f"{MISTAKE}", 1), encoding="utf-8")
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "01_ranks_and_collectives.ipynb").touch()
    bank = tmp_path / "bank"
    bank.mkdir()
    (bank / "collectives.md").write_text(CARD, encoding="utf-8")
    (problem,) = cards.validate(bank, type(workspace)(tmp_path))
    assert "'The common mistake.' is 100% like the exercise" in str(problem)


def test_likeness_is_jaccards_index_of_runs_of_three_words():
    one, other = card_likeness.shingles("a b c d"), card_likeness.shingles("A b, c. E")
    assert card_likeness.likeness(one, other) == 1 / 3  # abc of abc, bcd, bce
    assert card_likeness.likeness(one, card_likeness.shingles("too short")) == 0
    assert card_likeness.likeness(frozenset(), frozenset()) == 0


@pytest.mark.parametrize(
    ("says", "is_proved"),
    [
        ("A bucket has 25 MB. It is sent 25 times.", False),
        ("A bucket has 25 MB. It is sent 25x as often.", False),
        ("A bucket has 25 MB, and the last 10 of 25 are late.", True),
        ("A bucket has 25 MB. Of the 25, ten are late.", True),
        ("A bucket has 25 MB. It is 25 KB.", False),
    ],
)
def test_a_unit_is_left_out_only_where_nothing_else_is_counted(tmp_path, says, is_proved):
    given = CARD.replace('notebook = "', 'given = ["25 MB", "10"]\nnotebook = "')
    given = given.replace('"10"', '"10"' if "10" in says else '"14 steps"')
    problems = problems_of(tmp_path, given.replace("It takes 14 steps.", f"14 steps. {says}"))
    assert (not problems) is is_proved, problems
    assert is_proved or "nothing proves '25" in problems[0]
