"""scripts/style.py: which texts of a file are riddles."""

from scripts.style import riddles

FILE = '''
"""As of a file. It is told below."""

num_begun = 1  # what it counts
"""Of the steps."""


def has_told(step):
    """What does a question open with? Not counted."""
    # Who reads this comment
    # is told in its second line.
    raise ValueError(f"What rank {step} said") if step else KeyError("begun")
'''


def test_the_places_and_kinds_of_riddles():
    assert sorted((line, kind) for _, line, kind, _ in riddles("a.py", FILE)) == [
        (2, "docstring"),
        (2, "docstring"),
        (4, "comment"),
        (4, "name"),
        (5, "docstring"),
        (8, "name"),
        (10, "comment"),
        (11, "comment"),
        (12, "message"),
    ]
