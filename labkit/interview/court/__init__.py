"""The claims court: what circulates about distributed training, and what calc and real runs say.

claims = load_claims()
case = claims["gpipe-10-4"]
case.claim, case.verdict             "GPipe with 10 stages and ...: 53%", "wrong"
findings(case)                       its exhibits, calculated and measured

    claims.toml         the claims: verdict, truth, what was confused with what, evidence, exhibits
    claim.py            Claim, Exhibit, VERDICTS
    read_claims.py      from the file to claims; ClaimsError names claim, reason and fix
    court_findings.py   exhibits, calculated and measured
    times.json          what clocks read, with the machine and the date
"""

from labkit.interview.court.claim import VERDICTS, Claim, Evidence, Exhibit
from labkit.interview.court.court_findings import Finding, findings, record
from labkit.interview.court.read_claims import ClaimsError, load_claims, read_claims

__all__ = [
    "VERDICTS",
    "Claim",
    "ClaimsError",
    "Evidence",
    "Exhibit",
    "Finding",
    "findings",
    "load_claims",
    "read_claims",
    "record",
]
