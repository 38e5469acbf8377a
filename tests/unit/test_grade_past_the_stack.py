"""The answer by ways that leave nothing on the stack: threads, and the text of other files."""

import _thread
import inspect
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from labkit import calc
from labkit.grade import check
from labkit.grade.graders import load_theories, load_z_theories
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "load_balancing_loss"
SOLUTION = WORKSPACE.solution(NAME)


def answer(logits_TE, expert_TK, kept_TK):
    given = load_theories.Given(logits_TE, expert_TK, kept_TK)
    return load_theories.balance(given, logits_TE), load_z_theories.z_loss(given, logits_TE)


def in_a_thread(logits_TE, expert_TK, kept_TK):
    found = []

    def work():
        found.extend(answer(logits_TE, expert_TK, kept_TK))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return tuple(found)


def in_a_pool(logits_TE, expert_TK, kept_TK):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(answer, logits_TE, expert_TK, kept_TK).result()


def in_a_bare_thread(logits_TE, expert_TK, kept_TK):
    found = []
    work = lambda: found.append(answer(logits_TE, expert_TK, kept_TK))  # noqa: E731
    try:
        _thread.start_new_thread(work, ())
    except RuntimeError:
        return answer(logits_TE, expert_TK, kept_TK)
    while not found:
        time.sleep(0.001)
    return found[0]


def by_the_text_of_a_grader(logits_TE, expert_TK, kept_TK):
    names = {"__name__": "mine"}
    exec(compile(inspect.getsource(load_theories), __file__, "exec"), names)
    given = names["Given"](logits_TE, expert_TK, kept_TK)
    return names["balance"](given, logits_TE), torch.logsumexp(logits_TE, 1).square().mean()


def by_the_text_of_the_solution(logits_TE, expert_TK, kept_TK):
    names = {"__name__": "mine"}
    exec(compile(Path(SOLUTION).read_text(), __file__, "exec"), names)
    return names[NAME](logits_TE, expert_TK, kept_TK)


WAYS = {
    in_a_thread: "calls the answer itself",
    in_a_pool: "calls the answer itself",
    in_a_bare_thread: "switches off the watch",
    by_the_text_of_a_grader: "calls the answer itself",
    by_the_text_of_the_solution: "calls the answer itself",
}


@pytest.mark.parametrize("program", WAYS, ids=lambda program: program.__name__)
def test_no_way_around_the_stack_leads_to_the_answer(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict.diagnosis == WAYS[program], verdict


def test_who_answers_questions_does_not_read_a_solution(tmp_path):
    file = tmp_path / "mesh_coordinates.py"
    for reading in ("open({!r}).read()", "__import__('pathlib').Path({!r}).read_bytes()"):
        file.write_text(f"exec({reading.format(str(WORKSPACE.solution('mesh_coordinates')))})\n")
        verdict = check("mesh_coordinates", file, workspace=WORKSPACE)
        assert verdict.diagnosis == "calls the answer itself", verdict
        assert verdict.finding.where.line == 1


def in_parts(logits_TE, expert_TK, kept_TK):
    """Right: each loss in a thread, and a traceback through labkit that is looked at."""
    try:
        calc.all_reduce_seconds("much")
    except Exception:
        traceback.format_exc()

    def balance():
        f_E = torch.bincount(expert_TK.flatten(), minlength=logits_TE.shape[1]).to(logits_TE)
        p_E = torch.softmax(logits_TE, 1).mean(0)
        return len(f_E) * (f_E / f_E.sum() * p_E).sum()

    with ThreadPoolExecutor(1) as pool:
        loss = pool.submit(balance).result()
    return loss, torch.logsumexp(logits_TE, 1).square().mean()


def test_threads_of_ones_own_and_tracebacks_are_fine():
    verdict = check(NAME, in_parts, workspace=WORKSPACE)
    assert verdict, verdict
