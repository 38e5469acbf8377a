"""The grader of global_grad_norm: what it accepts, what it names, and what cannot fool it."""

import itertools
import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from labkit import Group
from labkit.grade import check
from labkit.grade.graders.norm_gradients import gradients_of, is_close, right, scalings
from labkit.grade.graders.norm_inputs import given_in, random_cases
from labkit.grade.graders.norm_theories import in_float32, mistakes
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "global_grad_norm"
SIZES = (4, 8, 3, 1)


def axis_by_axis(parameters, max_norm, mesh):
    """A sum along each axis in turn; the last of the ranks with a copy counts it."""
    total = 0.0
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.is_tied and mesh.pp.rank == 0 and mesh.pp.size > 1:
            continue
        groups = [getattr(mesh, axis) for axis in parameter.copied_over]
        if all(group.rank == group.size - 1 for group in groups):
            total += float(torch.linalg.vector_norm(parameter.grad, dtype=torch.float64)) ** 2
    total = torch.tensor([total], dtype=torch.float64)
    for group in (mesh.tp, mesh.pp, mesh.dp):
        total = group.all_reduce(total)
    norm = total.sqrt()
    factor = (max_norm / norm).clamp(max=1.0)
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad *= float(factor)
    return norm.squeeze()


def scaled_by_the_largest(parameters, max_norm, mesh):
    """In float32, after a division by the largest number of all ranks; copies divide a square."""
    present = [each for each in parameters if each.grad is not None]
    largest = max([0.0, *(float(each.grad.abs().max()) for each in present if each.grad.numel())])
    largest = float(mesh.world.all_reduce(torch.tensor(largest), op="max"))
    total = torch.zeros(())
    for each in present:
        if largest == 0:
            break
        copies = math.prod(getattr(mesh, axis).size for axis in each.copied_over)
        copies *= 2 if each.is_tied and mesh.pp.size > 1 else 1
        total += (each.grad.float() / largest).square().sum() / copies
    norm = math.sqrt(mesh.world.all_reduce(total, "sum").item()) * largest
    for each in present:
        each.grad.copy_(each.grad.double() * min(1.0, max_norm / norm if norm else 1.0))
    return norm


def by_numpy(parameters, max_norm, mesh):
    """np.float64 is a float."""
    return np.float64(of_the_whole(parameters, max_norm, mesh))


def by_numpy_without_a_subclass(parameters, max_norm, mesh):
    return np.longdouble(of_the_whole(parameters, max_norm, mesh))


@pytest.mark.parametrize(
    "program", [axis_by_axis, scaled_by_the_largest, by_numpy, by_numpy_without_a_subclass]
)
@pytest.mark.parametrize("seed", [1, 2])
def test_right_answers_of_another_kind_pass(program, seed):
    verdict = check(NAME, program, workspace=WORKSPACE, seed=seed)
    assert verdict, verdict


def of_the_whole(parameters, max_norm, mesh):
    """Right, as the solution."""
    is_copy = mesh.pp.rank > 0 and mesh.pp.rank == mesh.pp.size - 1
    total = torch.zeros((), dtype=torch.float64)
    for each in parameters:
        is_first = all(getattr(mesh, axis).rank == 0 for axis in each.copied_over)
        if is_first and each.grad is not None and not (each.is_tied and is_copy):
            total += each.grad.double().square().sum()
    norm = float(mesh.world.all_reduce(total)) ** 0.5
    for each in parameters:
        if each.grad is not None and norm > max_norm:
            each.grad.mul_(max_norm / norm)
    return norm


def each_a_little_off(parameters, max_norm, mesh):
    norm = of_the_whole(parameters, max_norm, mesh)
    return norm * (1 + 1e-9 * mesh.world.rank)


def a_list(parameters, max_norm, mesh):
    return [of_the_whole(parameters, max_norm, mesh)]


def complex_number(parameters, max_norm, mesh):
    return complex(of_the_whole(parameters, max_norm, mesh))


def makes_the_step(parameters, max_norm, mesh):
    norm = of_the_whole(parameters, max_norm, mesh)
    with torch.no_grad():
        for each in parameters:
            each -= 0 if each.grad is None else each.grad
    return norm


def takes_parameters_away(parameters, max_norm, mesh):
    norm = of_the_whole(parameters, max_norm, mesh)
    parameters[:] = [each for each in parameters if each.grad is not None]
    return norm


def through_the_default_group(parameters, max_norm, mesh):
    Group.default().all_reduce(torch.zeros(1))


def gathers(parameters, max_norm, mesh):
    return float(mesh.world.all_gather(torch.zeros(1)).sum())


def two_numbers(parameters, max_norm, mesh):
    mesh.tp.all_reduce(torch.zeros(2, dtype=torch.float64))
    return of_the_whole(parameters, max_norm, mesh)


def twice_the_norm(parameters, max_norm, mesh):
    return 2 * of_the_whole(parameters, 1e9, mesh)


def each_parameter_alone(parameters, max_norm, mesh):
    norm = of_the_whole(parameters, 1e99, mesh)
    for each in parameters:
        if each.grad is not None and each.grad.norm() > max_norm:
            each.grad.mul_(max_norm / each.grad.norm())
    return norm


def by_number(parameters, max_norm, mesh):
    norm = of_the_whole(parameters, 1e99, mesh)
    for each in parameters:
        if each.grad is not None:
            each.grad.clamp_(-max_norm / 9, max_norm / 9)
    return norm


def never_waits(parameters, max_norm, mesh):
    mesh.tp.all_reduce(torch.zeros(1), wait=False)
    return of_the_whole(parameters, max_norm, mesh)


WRONG = {
    each_a_little_off: "ranks have slightly different norms",
    a_list: "returns something else",
    complex_number: "returns something else",
    makes_the_step: "changes the parameters",
    takes_parameters_away: "changes the parameters",
    through_the_default_group: "calls another operation than all_reduce",
    gathers: "calls another operation than all_reduce",
    two_numbers: "sends more than one number",
    twice_the_norm: "another norm than the whole gradient's",
    each_parameter_alone: "clips each parameter by its own norm",
    by_number: "other gradients than clipped ones",
    never_waits: "never waits for an operation",
}


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_other_mistakes_are_named(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict.diagnosis == WRONG[program], verdict


def test_a_norm_that_came_another_way_is_noticed(tmp_path):
    """Squares left in files, with all-reduces of zeros to wait for each other."""
    folder = str(tmp_path)

    def by_files(parameters, max_norm, mesh):
        from pathlib import Path

        class Filed:
            def all_reduce(self, x):
                mesh.world.all_reduce(torch.zeros(1))
                Path(folder, str(mesh.world.rank)).write_text(repr(float(x)))
                mesh.world.all_reduce(torch.zeros(1))
                return sum(float(each.read_text()) for each in sorted(Path(folder).iterdir()))

        class FiledMesh:
            dp, pp, tp, world = mesh.dp, mesh.pp, mesh.tp, Filed()

        Filed.rank = mesh.world.rank
        return of_the_whole(parameters, max_norm, FiledMesh())

    verdict = check(NAME, by_files, workspace=WORKSPACE)
    assert verdict.diagnosis == "the norm does not come from the collectives", verdict


def whole_norm(given):
    """By what is equal: copies are the same tensor, number for number."""
    unlike = {}
    for held in itertools.chain(*given.held):
        if held.gradient is not None:
            unlike[tuple(held.gradient.double().flatten().tolist())] = held.gradient
    return math.sqrt(sum(float(each.double().square().sum()) for each in unlike.values()))


@pytest.mark.parametrize("world_size", SIZES)
def test_the_oracle_counts_each_gradient_once(world_size):
    for case in random_cases(world_size, random.Random(5)):
        given = given_in(case)
        assert given.norm() == pytest.approx(whole_norm(given), rel=1e-12)
        assert math.prod(given.sizes.values()) == world_size == len(case.arguments)


def test_the_cases_have_what_goes_wrong():
    cases = [case for n in SIZES for case in random_cases(n, random.Random(3))]
    all_given = [given_in(case) for case in cases]
    held = [each for given in all_given for its in given.held for each in its]
    assert {"dp", "tp"} <= {axis for each in held for axis in each.copied_over}
    assert any(each.is_tied for each in held) and any(each.gradient is None for each in held)
    assert any(not its for given in all_given for its in given.held)
    assert any(given.norm() == 0 for given in all_given)
    assert any(in_float32(given) and given.norm() > 1 for given in all_given)
    assert any(in_float32(given) and given.norm() < 1 for given in all_given)
    orders = {tuple(axis for axis in given.sizes if given.sizes[axis] > 1) for given in all_given}
    assert any(order[::-1] in orders for order in orders if len(order) > 1), "in more than one"
    assert {each.gradient.dim() for each in held if each.gradient is not None} == {0, 1, 2}
    assert any(not each.gradient.numel() for each in held if each.gradient is not None)
    assert {given.norm() > given.max_norm for given in all_given} == {True, False}
    assert any(list(given.sizes.values()) == [2, 2, 2] for given in all_given)
    dtypes = {each.gradient.dtype for each in held if each.gradient is not None}
    assert dtypes == {torch.float32, torch.bfloat16}


@pytest.mark.parametrize("seed", range(8))
def test_each_mistake_is_known_in_the_first_case_that_shows_it(seed):
    shown = set()
    for case in random_cases(4, random.Random(seed)) + random_cases(8, random.Random(seed)):
        given = given_in(case)
        if given.norm() == 0:
            continue
        wrong = [
            each
            for each in mistakes(given)
            if not all(norm == pytest.approx(given.norm(), rel=1e-5) for norm in each.norms)
        ]
        for each in wrong:
            alike = [one.name for one in wrong if one.norms == pytest.approx(each.norms, rel=1e-5)]
            assert each.name in shown or alike[0] == each.name, (case.label, alike)
        shown |= {each.name for each in wrong}
    assert len(shown) > 12


@pytest.mark.parametrize("seed", range(8))
def test_ways_to_scale_are_told_apart(seed):
    case = random_cases(4, random.Random(seed))[0]
    given = given_in(case)
    ranks = range(len(given.held))
    places = [(rank, i) for rank in ranks for i in range(len(gradients_of(given, rank)))]
    seen = {}
    for each in scalings(given):
        left = [each.left(*place).float() for place in places]
        if all(is_close(one, right(given, *at)) for one, at in zip(left, places)):
            assert each.name in ("adds something to the norm", "scales small gradients up")
            continue
        for other, its in seen.items():
            same = all(is_close(one, two.double()) for one, two in zip(left, its))
            assert not same or other == each.name, (other, each.name)
        seen[each.name] = left


@pytest.mark.parametrize("mutant", ["float32", "scales_up"])
def test_the_hint_to_read_next_is_the_one_that_has_the_line(mutant):
    file = WORKSPACE.root / "tests" / "mutants" / NAME / f"{mutant}.py"
    assert check(NAME, file, workspace=WORKSPACE).finding.hint == 3
