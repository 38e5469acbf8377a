"""Measure the times that verdicts of the claims court rest on, beside those of its record.

    python -m scripts.court_times            predicted, recorded, measured
    python -m scripts.court_times --write    and record them: labkit/course/times.json

Measure on a machine that does nothing else.
"""

import argparse
import datetime
import json
import os
import platform
from typing import Any

import torch

from labkit.interview import evidence
from labkit.interview.court import TIMES, load_claims, record, shown
from labkit.interview.recorded_times import times_of


def main() -> None:
    """Measure, print, and write where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="record what is measured")
    writes = parser.parse_args().write
    times: dict[str, Any] = {}
    print(f"{'predicted':>10}{'recorded':>10}{'measured':>10}  exhibit")
    for claim in load_claims().values():
        for each in claim.exhibits:
            if not each.within:
                continue
            values = [float(evidence.value(each.proof))]
            for kept in (dict(record().times), times):
                with times_of(kept, fills=True):
                    values.append(float(evidence.value(each.run)))
            print("".join(f"{shown(value, each):>10}" for value in values), end="")
            print(f"  {claim.key}: {each.shows}", flush=True)
    if writes:
        machine = f"{platform.system()} {platform.machine()} with {os.cpu_count()} cores"
        machine += f", Python {platform.python_version()}, torch {torch.__version__}"
        kept = {"machine": machine, "date": str(datetime.date.today()), "times": times}
        TIMES.write_text(json.dumps(kept) + "\n")


if __name__ == "__main__":
    main()
