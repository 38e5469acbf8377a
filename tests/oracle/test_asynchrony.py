"""A parameter server in its modes, and local SGD: against the serial step where they equal it."""

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from labkit import RankError, run
from labkit.data_parallel import local_sgd, parameter_server
from labkit.data_parallel.local_sgd import OuterOptimizer
from labkit.data_parallel.parameter_server import Asynchronous, Synchronous
from labkit.model import GPT, GPTConfig
from labkit.train import TrainConfig, train_serial

CONFIG = GPTConfig(context=32, num_layers=1, hidden=32, num_heads=2)
# Seven sequences divide by none of 2 and 3. In float64 only the order of adding is left: a few eps,
# which ten steps of SGD hardly amplify.
SETTINGS = TrainConfig(
    num_sequences=7, num_steps=10, optimizer="sgd", learning_rate=0.1, dtype=torch.float64
)
TOLERANCE = 1e-12


def serve(world, mode, delay=None, settings=SETTINGS):
    return parameter_server.train(world, CONFIG, settings, mode, delay=delay)


def distance(served, serial):
    return max((served.parameters[n] - serial.parameters[n]).abs().max() for n in serial.parameters)


@pytest.fixture(scope="module")
def serial():
    return train_serial(CONFIG, SETTINGS)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_synchronous_steps_are_the_serial_ones(serial, world_size):
    served = run(serve, world_size, args=(Synchronous(),)).values[0]
    assert distance(served, serial) < TOLERANCE
    assert served.staleness == [0] * 10 * (world_size - 1)


def test_one_asynchronous_worker_is_the_serial_run(serial):
    served = run(serve, 2, args=(Asynchronous(),)).values[0]
    assert distance(served, serial) < TOLERANCE
    assert [arrival.loss for arrival in served.arrivals] == pytest.approx(serial.losses)
    assert served.staleness == [0] * 10


def serve_with_a_straggler(world, mode, num_steps, path):
    """Serve while rank 2, before each gradient, waits for num_steps steps of the server.

    A step of the server adds a byte to the file at path. No worker computes a gradient before all
    have their first parameters.
    """
    step = parameter_server.Server._step

    def step_and_tell(self):
        step(self)
        with path.open("ab") as file:
            file.write(b".")
        if self.is_over:
            path.with_suffix(".over").touch()

    def wait_for_steps(seconds):
        path.with_suffix(f".{world.rank}").touch()
        while not all(path.with_suffix(f".{worker}").exists() for worker in (1, 2, 3)):
            time.sleep(0.001)
        until = path.stat().st_size + num_steps if seconds else 0
        while path.stat().st_size < until and not path.with_suffix(".over").exists():
            time.sleep(0.001)

    parameter_server.Server._step = step_and_tell
    parameter_server.time = SimpleNamespace(perf_counter=time.perf_counter, sleep=wait_for_steps)
    return serve(world, mode, {2: 1.0})


def with_a_straggler(mode, num_steps, path):
    path.touch()
    return run(serve_with_a_straggler, 4, args=(mode, num_steps, path), timeout=600).values[0]


def test_synchronous_steps_wait_for_a_straggler():
    waits = run(serve, 4, args=(Synchronous(), {2: 0.05})).values[0]
    assert waits.seconds >= 10 * 0.05
    assert [each.worker for each in waits.arrivals].count(2) == 10


def test_asynchronous_steps_do_not_wait_for_a_straggler(tmp_path):
    goes_on = with_a_straggler(Asynchronous(), 4, tmp_path / "steps")
    used = [each for each in goes_on.arrivals if each.is_used]
    of_straggler = [each.staleness for each in used if each.worker == 2]
    assert len(used) == 30 and len(of_straggler) <= 30 // 4
    assert min(of_straggler) >= 4, "the steps of the others meanwhile"
    last = {}
    for version, arrival in enumerate(used):
        # The server had made as many steps when it sent the parameters as it then had answered.
        sent_at = last.get(arrival.worker, 0)
        assert 0 <= arrival.staleness <= version - sent_at
        last[arrival.worker] = version + 1


def test_with_the_first_two_of_three_the_stragglers_gradients_are_dropped(tmp_path):
    served = with_a_straggler(Synchronous(first=2), 1, tmp_path / "steps")
    assert len(served.staleness) == 20 and set(served.staleness) == {0}
    late = [arrival for arrival in served.arrivals if not arrival.is_used]
    assert late and {arrival.worker for arrival in late} == {2}
    assert {arrival.worker for arrival in served.arrivals if arrival.is_used} == {1, 3}


def test_training_for_no_steps_ends_at_once():
    served = run(serve, 3, args=(Synchronous(), None, replace(SETTINGS, num_steps=0))).values[0]
    assert served.arrivals == []


def test_an_error_on_the_server_ends_the_run():
    def fails_at_the_second_step(world):
        def step(self):
            if self.version == 1:
                raise ZeroDivisionError("on purpose")
            self.version += 1
            self._waiting.clear()
            self._stepped.notify_all()

        parameter_server.Server._step = step
        serve(world, Synchronous())

    with pytest.raises(RankError, match="rank 0 raised .*(on purpose|of the server has failed)"):
        run(fails_at_the_second_step, 4)


def test_the_servers_link_carries_every_gradient_and_every_parameter():
    settings = replace(SETTINGS, num_steps=3)
    result = run(serve, 3, args=(Synchronous(), None, settings))
    nbytes = sum(p.nbytes for p in GPT(CONFIG, 0, torch.float64).parameters())
    parameter_server, worker = result.traffic[:2]
    assert parameter_server.by_operation["send"].sent_bytes == 2 * (3 * nbytes + 4 * 8)
    assert worker.by_operation["send"].sent_bytes == 3 * (nbytes + 2 * 8)


@pytest.mark.parametrize(
    ("world_size", "mode", "delay", "words"),
    [
        (1, Synchronous(), None, "needs a worker"),
        (3, Synchronous(first=3), None, "first=3 of 2 workers"),
        (3, Synchronous(), {0: 1.0}, r"workers are ranks 1 to 2, not \[0\]"),
        (2, Synchronous(), {"1": 1.0}, r"workers are ranks 1 to 1, not \['1'\]"),
        (2, "async", None, "mode='async': give Synchronous"),
    ],
)
def test_wrong_arguments_of_the_server_are_refused(world_size, mode, delay, words):
    with pytest.raises(RankError, match=words):
        run(serve, world_size, args=(mode, delay))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_local_sgd_that_averages_after_each_step_is_data_parallelism(world_size):
    # Equal shares: a mean of parameters has no weights.
    settings = replace(SETTINGS, num_sequences=8)
    serial = train_serial(CONFIG, settings)

    def averages(world):
        outer = OuterOptimizer(learning_rate=1, momentum=0)
        return local_sgd.train(world, CONFIG, settings, inner_steps=1, outer=outer)

    result = run(averages, world_size)
    for trained in result.values:
        assert trained.losses == pytest.approx(serial.losses, rel=1e-10)
        assert distance(trained, serial) < TOLERANCE


def test_the_outer_step_is_nesterovs():
    def two_outer_steps(world):
        module = torch.nn.Linear(1, 1, bias=False)
        model = local_sgd.LocalSGD(module, world, OuterOptimizer(learning_rate=0.5, momentum=0.8))
        module.weight.data.fill_(10.0)
        model._last_average.fill_(10.0)
        values = []
        for _ in range(2):
            module.weight.data -= 1.0 + world.rank  # ranks move by 1 and 2: by 1.5 on average
            model.average()
            values.append(module.weight.item())
        return values

    # v = 1.5, then 0.8 * 1.5 + 1.5 = 2.7; a step is 0.5 * (1.5 + 0.8 v).
    first = 10 - 0.5 * (1.5 + 0.8 * 1.5)
    second = first - 0.5 * (1.5 + 0.8 * 2.7)
    for values in run(two_outer_steps, 2).values:
        assert values == pytest.approx([first, second])


def test_an_average_every_fifth_step_costs_a_fifth_of_the_traffic():
    def every_fifth(world):
        return local_sgd.train(world, CONFIG, SETTINGS, inner_steps=5)

    result = run(every_fifth, 3)
    nbytes = sum(p.nbytes for p in GPT(CONFIG, 0, torch.float64).parameters())
    reduced = result.traffic[0].by_operation["all_reduce"]
    assert reduced.count == 2 + 1, "and once for the losses"
    assert reduced.payload_bytes == 2 * nbytes + 10 * 8
    first = result.values[0]
    assert all(distance(each, first) == 0 for each in result.values)


def test_steps_that_do_not_divide_are_refused():
    with pytest.raises(RankError, match="multiple of inner_steps=3"):
        run(lambda world: local_sgd.train(world, CONFIG, SETTINGS, inner_steps=3), 1)
