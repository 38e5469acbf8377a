"""A card that cannot be read is refused with its line; a bad one is found."""

import pytest

from labkit.interview import cards
from tests.bank_faults import card_faults

MINUTE = " ".join(["Fourteen steps, since each of two phases takes seven of them."] * 10)
DEEPER = " ".join(["Every rank sends one chunk to its right neighbour in a step."] * 12)
MISTAKE = " ".join(["They multiply by the whole tensor and forget about chunks."] * 4)
PROOF = "calc.collective('all_reduce', 'ring', 8).steps"
EVIDENCE = f'{{ says = "14 steps", proof = "{PROOF}" }}'
CARD = f"""\
+++
id = "co-2"
difficulty = 2
kind = "number"
roles = ["ml"]
prompt = "How many steps has a ring all-reduce on 8 ranks?"
evidence = [
  {EVIDENCE},
]
rubric = ["names both phases", "counts the steps right", "says what a step sends"]
follow_ups = ["And on a thousand ranks?", "And in a tree?"]
exercise = "ring_all_reduce"
sources = ["Patarasuk and Yuan 2009, Bandwidth optimal all-reduce, JPDC 69(2)"]
+++
**In a minute.** It takes 14 steps. {MINUTE}

**Deeper.** {DEEPER}

**The common mistake.** {MISTAKE}
"""


def problems_of(tmp_path, text, name="collectives/cards.md"):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text, encoding="utf-8")
    found, problems = cards.read_bank(tmp_path)
    return [*map(str, problems), *(fault for card in found for fault in card_faults(card))]


def test_a_card_as_it_should_be_is_not(tmp_path):
    assert problems_of(tmp_path, CARD) == []
    (card,) = cards.load_bank(tmp_path).values()
    assert (card.id, card.topic) == ("co-2", "co-2")
    assert (card.file, card.line) == ("collectives/cards.md", 1)
    assert card.minute.startswith("It takes 14 steps.")
    assert card.mistake == MISTAKE
    assert card.evidence == (cards.Evidence("14 steps", proof=PROOF),)


def test_a_quote_may_go_on_in_the_next_line(tmp_path):
    assert problems_of(tmp_path, CARD.replace("It takes 14 steps.", "It takes 14\nsteps.")) == []


SPOKEN = " ".join(["Thirty steps, since each of two phases has fifteen of them."] * 5)
ANSWERED = f"""\
[[follow_ups]]
question = "And on 16 ranks?"
answer = "{SPOKEN} Or 30 steps."
rubric = ["names the phases", "counts steps"]
evidence = [{{ says = "30 steps", proof = "calc.collective('all_reduce', 'ring', 16).steps" }}]
[[follow_ups]]
question = "And in a tree?"
"""
QUESTIONS = 'follow_ups = ["And on a thousand ranks?", "And in a tree?"]\n'
WITH_ANSWERS = CARD.replace(QUESTIONS, "").replace("+++\n**In a", f"{ANSWERED}+++\n**In a")


def test_a_follow_up_may_have_an_answer_with_evidence_of_its_own(tmp_path):
    assert problems_of(tmp_path, WITH_ANSWERS) == []
    (card,) = cards.load_bank(tmp_path).values()
    first, second = card.follow_ups
    assert (first.rubric, second) == (
        ("names the phases", "counts steps"),
        cards.FollowUp("And in a tree?"),
    )
    assert [item.says for item in card.all_evidence] == ["14 steps", "30 steps"]


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ('question = "And on', 'asked = "And on', "there is no question"),
        ('"And in a tree?"\n', '"And in a tree?"\nlevel = 2\n', "unknown level"),
        ('"names the phases", ', "", "rubric to 'And on 16 ranks?' has 1"),
        (SPOKEN, "Thirty.", "answer to 'And on 16 ranks?' has 4, not 40 to 80"),
        ('says = "30 steps"', 'says = "31 steps"', "'31 steps' is not in the answer"),
        ("Or 30 steps.", "Or 30 steps of 25 MB.", "nothing proves '25 MB'"),
    ],
)
def test_a_follow_up_that_is_wrong_is_found(tmp_path, right, wrong, said):
    assert right in WITH_ANSWERS
    problems = problems_of(tmp_path, WITH_ANSWERS.replace(right, wrong, 1))
    assert any(said in each for each in problems), problems


UNREADABLE = {
    "no fence": ("+++\n**In", "**In", "+++", 1),
    "text before": ('+++\nid = "co-2"', 'Hello\n+++\nid = "co-2"', "'Hello'", 1),
    "toml": ('id = "co-2"', 'id = "co-2', "TOML", 2),
    "toml, in line 3": ("difficulty = 2", "difficulty = ", "TOML", 3),
    "unknown key": ("difficulty = 2", "difficulty = 2\nlevel = 3", "level", 2),
    "no key": ("difficulty = 2\n", "", "difficulty", 2),
    "no section": ("**Deeper.**", "**Depth.**", "**Deeper.**", 15),
    "text in no section": ("**In a minute.**", "Hm.\n\n**In a minute.**", "'Hm.'", 15),
    "evidence twice": ('.steps" }', '.steps", source = "a book" }', "'a book'", 2),
    "evidence without proof": (f', proof = "{PROOF}"', "", "'14 steps'", 2),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_card_that_cannot_be_read_is_refused_with_its_line(tmp_path, kind):
    right, wrong, value, line = UNREADABLE[kind]
    assert right in CARD
    (problem,) = problems_of(tmp_path, CARD.replace(right, wrong, 1))
    assert problem.startswith(f"collectives/cards.md:{line}:") and value in problem


BAD = {
    "topic": ('id = "co-2"', 'id = "co-99"', "co-99"),
    "other group": ('id = "co-2"', 'id = "dp-1"', "collectives/cards.md"),
    "conventions": ('id = "co-2"', 'id = "co-8"', "conventions"),
    "difficulty": ("difficulty = 2", "difficulty = 4", "difficulty = 4"),
    "numbers": ("It takes 14 steps.", "It takes 14 steps, 7.1, 8.2 or ninety.", "minute says 4"),
    "short minute": (MINUTE, "Really.", "minute has 5"),
    "short deeper": (DEEPER, "More.", "deeper has 1"),
    "rubric": (', "counts the steps right", "says what a step sends"', "", "rubric has 1"),
    "twice": ('"counts the steps right", "s', '"names both phases", "names both phases"]  # "s',
              "rubric has 1"),
    "no evidence": (f"{EVIDENCE},", "", "evidence has 0"),
    "says elsewhere": ('says = "14 steps"', 'says = "13 steps"', "'13 steps' is not"),
    "says inside": ("It takes 14 steps.", "It takes 114 steps.", "'14 steps' is not"),
    "no proof": (PROOF, "14", "'14' has neither"),
    "number": ("It takes 14 steps.", "It takes 14 steps, 5 us each.", "'5 us'"),
    "given elsewhere": ('exercise = "', 'given = ["9 us"]\nexercise = "', "'9 us' is not"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_a_card_that_is_not_what_it_should_be_is_found(tmp_path, kind):
    right, wrong, reason = BAD[kind]
    assert right in CARD
    problems = problems_of(tmp_path, CARD.replace(right, wrong, 1))
    assert any(reason in each for each in problems), problems


def test_what_cannot_be_read_is_no_bank(tmp_path):
    problems_of(tmp_path, CARD.replace("difficulty = 2\n", ""))
    with pytest.raises(cards.CardError, match="difficulty"):
        cards.load_bank(tmp_path)


def test_one_unreadable_card_does_not_hide_the_others(tmp_path):
    second = CARD.replace('id = "co-2"', 'id = "co-3"').replace("difficulty = 2\n", "")
    problems_of(tmp_path, second + CARD)
    found, (problem,) = cards.read_bank(tmp_path)
    assert [card.id for card in found] == ["co-2"]
    assert (problem.card, problem.line) == ("co-3", 2)


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
    given = CARD.replace('exercise = "', 'given = ["25 MB", "10"]\nexercise = "')
    given = given.replace('"10"', '"10"' if "10" in says else '"14 steps"')
    problems = problems_of(tmp_path, given.replace("It takes 14 steps.", f"14 steps. {says}"))
    assert (not problems) is is_proved, problems
    assert is_proved or "nothing proves '25" in problems[0]
