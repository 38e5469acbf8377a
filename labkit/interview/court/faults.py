"""Does the evidence hold, and does the verdict follow from the exhibits?"""

from collections.abc import Iterator

from labkit.interview import proof as proofs
from labkit.interview.court.claim import VERDICTS, Claim
from labkit.interview.court.court_findings import findings, has_bounds
from labkit.interview.evidence import prove
from labkit.interview.said import Number, numbers


def faults(claim: Claim, *, measure: bool = True) -> list[str]:
    """Everything that is wrong with a case, each with what would mend it; [] for a good one.

    measure: whether real runs are made, too.
    """
    return [*_of_the_text(claim), *_of_the_evidence(claim), *_of_the_exhibits(claim, measure)]


def _of_the_text(claim: Claim) -> Iterator[str]:
    """Every number of the truth and the confusion is proved, given, or in the claim itself."""
    quoted = [item.says for item in claim.evidence if item.says]
    for quote in (*quoted, *claim.given):
        if quote not in claim.text:
            yield f"{quote!r} is not in the text; quote it literally"
    covered = [span for quote in (*quoted, *claim.given) for span in _places(quote, claim.text)]
    asked = {_amount(number) for number in numbers(claim.claim)}
    for number in numbers(claim.text):
        inside = any(start <= number.start and number.end <= end for start, end in covered)
        if number.needs_proof and not inside and _amount(number) not in asked:
            yield f"nothing proves {number.text!r}; add evidence, or list it in given"


def _of_the_evidence(claim: Claim) -> Iterator[str]:
    for item in claim.evidence:
        if item.proof and not (proved := prove(item.says, item.proof)).holds:
            yield f"evidence: {proved.reason}"


def _of_the_exhibits(claim: Claim, measure: bool) -> Iterator[str]:
    """Each bears the claim out or not, as it says; together they make the verdict."""
    for exhibit in claim.exhibits:
        if not has_bounds(exhibit) and not numbers(exhibit.claimed):
            yield f"{exhibit.shows}: {exhibit.claimed!r} has no number; say by bounds what it means"
    try:
        found = findings(claim, measure=measure)
    except proofs.BadProof as error:
        yield f"exhibit: {error}"
        return
    for each in found:
        exhibit, value = each.exhibit, each.found_text or each.measured_text
        if each.stands != exhibit.stands:
            does = "bears the claim out" if each.stands else "does not bear the claim out"
            yield f"{exhibit.shows}: {value} {does}; say stands = {str(each.stands).lower()}"
        if not each.agrees:
            yield (
                f"{exhibit.shows}: {value} is predicted and {each.measured_text} is measured; one "
                "of them is wrong, or the machine is busy"
            )
    stands, verdict = {each.stands for each in found}, VERDICTS[claim.verdict]
    if stands != verdict.stands:
        fitting = [name for name, each in VERDICTS.items() if each.stands == stands]
        yield (
            f"the exhibits make no {claim.verdict!r} ({verdict.meaning}); they fit "
            f"{' or '.join(map(repr, fitting))}"
        )


def _places(quote: str, text: str) -> Iterator[tuple[int, int]]:
    start = text.find(quote)
    while start >= 0:
        yield start, start + len(quote)
        start = text.find(quote, start + 1)


def _amount(number: Number) -> tuple[float, str]:
    return number.value * number.scale, number.dimension
