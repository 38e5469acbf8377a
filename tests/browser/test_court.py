"""The claims court: vote by key, hear the verdict, and find the vote again in a new kernel."""

import pytest
from lab_page import shows

pytestmark = pytest.mark.clock

NOTEBOOK, IMPORTS, VOTES, JUDGE, DOCKET = "16_claims_court.ipynb", "c01", "c03", "c07", "c69"


def vote(lab, verdict):
    """On the first of the three claims that the cell shows."""
    button = lab.output(VOTES).get_by_role("button", name=verdict, exact=True).first
    lab.press(button, "Space")
    shows(lab.output(VOTES), f"You say: {verdict}")


def test_the_court_tells_a_wrong_vote_from_a_right_one_and_keeps_it(lab):
    lab.open(NOTEBOOK)
    lab.run(IMPORTS, VOTES)
    vote(lab, "half right")
    lab.run(JUDGE)
    shows(lab.output(JUDGE), "You voted 'half right'.")
    vote(lab, "wrong")
    lab.run(JUDGE)
    shows(lab.output(JUDGE), "You voted 'wrong', and so does the court.")
    lab.come_back()
    lab.run(IMPORTS, VOTES, DOCKET)
    shows(lab.output(VOTES), "You say: wrong")
    shows(lab.output(DOCKET), "you voted on 1, and on 1 of them as the court did")
