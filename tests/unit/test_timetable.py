"""When messages leave and arrive, by a clock that the test sets: to the digit, and in no time."""

import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from labkit import FatTree, Link, Topology, run
from labkit.comm.throttle import Timetable

# A fast message of m bytes takes m/10 + 0.5 s here, a slow one m + 2 s.
FAST, SLOW = Link(10, 0.5), Link(1, 2.0)
ONE_HOST = Topology(hosts=1, ranks_per_host=4, fast=Link(1, 0.0))
# A host sends 10 bytes per second; uplinks carry 20 of a leaf and 40 of a pod.
TREE = FatTree(hosts=8, hosts_per_leaf=2, leaves_per_pod=2, slow=Link(10, 0.5))
THREE_HOSTS = Topology(hosts=3, ranks_per_host=2, fast=FAST, slow=SLOW)


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


class Network:
    """A timetable whose clock starts at 0, with messages sent and received in one line each."""

    def __init__(self, topology, folder):
        self.clock = Clock()
        self.table, self.zero_s = Timetable(topology, folder, self.clock), self.clock.now_s

    def send(self, source, target, nbytes, at):
        self.clock.now_s = self.zero_s + at
        return self.table.depart(source, target, nbytes)

    def left(self, departure):
        return departure.left_s - self.zero_s

    def arrived(self, departure):
        """Asked as a rank does: that waits until then, and asks again."""
        at_s, is_final = self.table.arrival(departure.number)
        while not is_final:
            self.clock.now_s = max(self.clock.now_s, at_s)
            at_s, is_final = self.table.arrival(departure.number)
        return at_s - self.zero_s


@pytest.fixture
def network(tmp_path):
    return lambda topology: Network(topology, tmp_path)


def test_a_message_alone_takes_alpha_and_beta_of_its_link(network):
    net = network(THREE_HOSTS)
    fast, slow = net.send(0, 1, 20, at=0), net.send(0, 2, 20, at=0)
    assert (net.left(fast), net.arrived(fast)) == (2.0, 2.5)
    assert (net.left(slow), net.arrived(slow)) == (20.0, 22.0)


def test_messages_of_one_rank_leave_one_after_the_other(network):
    net = network(ONE_HOST)
    messages = [net.send(0, target, 10, at=0) for target in (1, 2, 1)]
    assert [net.left(message) for message in messages] == [10, 20, 30]
    assert [net.arrived(message) for message in messages] == [10, 20, 30]


def test_latency_keeps_no_port_busy(network):
    net = network(Topology(hosts=1, ranks_per_host=2, fast=Link(1, 5.0)))
    first, second = net.send(0, 1, 10, at=0), net.send(0, 1, 10, at=0)
    assert [net.arrived(first), net.arrived(second)] == [15, 25]


def test_a_port_that_has_been_idle_starts_when_the_message_is_posted(network):
    net = network(ONE_HOST)
    net.send(0, 1, 10, at=0)
    assert net.arrived(net.send(0, 1, 10, at=50)) == 60


def test_sending_and_receiving_do_not_disturb_each_other(network):
    net = network(ONE_HOST)
    there, back = net.send(0, 1, 10, at=0), net.send(1, 0, 10, at=0)
    assert [net.arrived(there), net.arrived(back)] == [10, 10]


def test_two_that_send_to_a_third_share_its_port_in(network):
    net = network(ONE_HOST)
    messages = [net.send(source, 0, 10, at=at) for source, at in ((1, 0), (2, 4), (3, 50))]
    assert [net.left(message) for message in messages] == [10, 14, 60]
    assert [net.arrived(message) for message in messages] == [10, 20, 60]


def test_first_come_first_served_whoever_posted_first(network):
    net = network(ONE_HOST)
    net.send(1, 2, 30, at=0)
    late = net.send(1, 0, 10, at=1)  # posted first; leaves from 30 to 40
    assert net.arrived(net.send(3, 0, 10, at=2)) == 12
    assert net.arrived(net.send(2, 0, 10, at=15)) == 25
    assert net.arrived(late) == 40


def test_arrivals_are_the_same_in_whatever_order_they_are_asked_for(network):
    net = network(ONE_HOST)
    messages = [net.send(source, 0, 10, at=at) for source, at in ((1, 0), (2, 4), (3, 5))]
    net.clock.now_s += 100
    assert [net.arrived(message) for message in reversed(messages)] == [30, 20, 10]


def test_a_message_that_waits_for_a_port_in_holds_up_nothing_behind_it(network):
    net = network(ONE_HOST)
    net.send(1, 0, 50, at=0)
    waits, passes = net.send(2, 0, 10, at=0), net.send(2, 3, 10, at=0)
    assert net.arrived(passes) == 20
    assert net.arrived(waits) == 60


def test_an_all_to_all_in_turns_keeps_every_port_busy_and_no_longer(network):
    net = network(ONE_HOST)
    messages = [net.send(r, (r + step) % 4, 10, at=0) for r in range(4) for step in (1, 2, 3)]
    assert max(net.arrived(message) for message in messages) == 30


def test_ranks_of_a_host_share_its_slow_link_in_both_directions(network):
    net = network(THREE_HOSTS)
    out = [net.send(0, 2, 10, at=0), net.send(1, 4, 10, at=0)]
    assert [net.arrived(message) for message in out] == [12, 22]
    into = [net.send(2, 0, 10, at=50), net.send(4, 1, 10, at=50)]
    assert [net.arrived(message) for message in into] == [62, 72]


def test_slow_links_of_their_own_are_not_shared(network):
    net = network(Topology(hosts=3, ranks_per_host=2, fast=FAST, slow=SLOW, slow_links_per_host=2))
    messages = [net.send(0, 2, 10, at=0), net.send(1, 4, 10, at=0), net.send(5, 3, 10, at=0)]
    assert [net.arrived(message) for message in messages] == [12, 12, 12]


def test_neighbouring_ranks_share_a_slow_link(network):
    net = network(Topology(hosts=2, ranks_per_host=4, fast=FAST, slow=SLOW, slow_links_per_host=2))
    messages = [net.send(rank, rank + 4, 10, at=0) for rank in range(4)]
    assert [net.arrived(message) for message in messages] == [12, 22, 12, 22]


def test_fast_and_slow_messages_of_a_rank_do_not_meet(network):
    net = network(THREE_HOSTS)
    net.send(0, 2, 1000, at=0)
    assert net.arrived(net.send(0, 1, 20, at=0)) == 2.5


def test_a_rank_whose_link_is_slow_sends_and_receives_slowly_and_others_do_not(network):
    net = network(ONE_HOST.degraded("rank 2", 0.25))
    out, into, other = (net.send(*ends, 10, at=0) for ends in ((2, 0), (1, 2), (3, 1)))
    assert [net.left(message) for message in (out, into, other)] == [40, 10, 10]
    assert [net.arrived(message) for message in (out, into, other)] == [40, 40, 10]


def test_a_port_takes_the_rest_of_its_bandwidth_while_bytes_come_slowly(network):
    net = network(ONE_HOST.degraded("rank 2", 0.25))
    slow, quick = net.send(2, 0, 10, at=0), net.send(1, 0, 10, at=1)
    assert (net.arrived(slow), net.arrived(quick)) == (40, 20)


@pytest.mark.parametrize(("source", "target"), [(0, 1), (0, 2), (0, 4)])
def test_a_message_alone_takes_the_same_through_a_leaf_a_pod_and_the_core(network, source, target):
    net = network(TREE)
    message = net.send(source, target, 10, at=0)
    assert (net.left(message), net.arrived(message)) == (1, 1.5)


def test_all_hosts_send_across_a_fat_tree_at_once_at_full_speed(network):
    net = network(TREE)
    messages = [net.send(rank, (rank + 4) % 8, 10, at=0) for rank in range(8)]
    assert [net.arrived(message) for message in messages] == 8 * [1.5]


def test_with_oversubscription_hosts_share_their_uplinks(network):
    net = network(replace(TREE, oversubscription=4))  # 5 bytes per second of a leaf, 10 of a pod
    messages = [net.send(rank, rank + 4, 10, at=0) for rank in range(4)]
    assert sorted(net.arrived(message) for message in messages) == [2.5, 2.5, 4.5, 4.5]
    inside = [net.send(0, 1, 10, at=50), net.send(1, 0, 10, at=50)]
    assert [net.arrived(message) for message in inside] == [51.5, 51.5]


def test_a_degraded_uplink_carries_one_host_at_full_speed_and_two_at_half(network):
    net = network(TREE.degraded("leaf 1", 0.5))
    assert net.arrived(net.send(2, 6, 10, at=0)) == 1.5
    both = [net.send(2, 6, 10, at=50), net.send(3, 7, 10, at=50)]
    assert [net.arrived(message) for message in both] == [51.5, 52.5]
    down = [net.send(6, 2, 10, at=100), net.send(0, 3, 10, at=100)]
    assert [net.arrived(message) for message in down] == [101.5, 102.5]
    leaf = [net.send(2, 3, 10, at=150), net.send(3, 2, 10, at=150)]
    assert [net.arrived(message) for message in leaf] == [151.5, 151.5]


def test_the_uplink_of_a_pod_is_passed_between_pods_only(network):
    net = network(TREE.degraded("pod 0", 0.25))
    inside = [net.send(rank, rank ^ 2, 10, at=0) for rank in range(4)]
    assert [net.arrived(message) for message in inside] == 4 * [1.5]
    across = [net.send(rank, rank + 4, 10, at=50) for rank in range(4)]
    assert [net.arrived(message) for message in across] == [51.5, 52.5, 53.5, 54.5]


def test_two_processes_that_ask_at_other_times_come_to_the_same_times_on_a_tree(network, tmp_path):
    tree = replace(TREE, oversubscription=4).degraded("leaf 3", 0.5)
    net = network(tree)
    messages = [net.send(rank, 7 - rank, 3 + rank, at=rank / 8) for rank in range(7)]
    often = [net.arrived(message) for message in messages]
    late = Timetable(tree, tmp_path, net.clock)
    assert [late.arrival(each.number).at_s - net.zero_s for each in messages] == often
    assert [late._follow(1e9), late._free_at_s] == [None, net.table._free_at_s]


def test_two_processes_have_one_table(network, tmp_path):
    net = network(ONE_HOST)
    other = Timetable(ONE_HOST, tmp_path, net.clock)
    first = net.send(0, 1, 10, at=0)
    assert other.depart(0, 1, 10).left_s - net.zero_s == 20
    third = net.send(2, 1, 10, at=15)
    for table in (net.table, other):
        assert table.arrival(first.number).at_s - net.zero_s == 10
        assert table.arrival(third.number).at_s - net.zero_s == 30


def test_thousands_of_messages_fit(network):
    net = network(ONE_HOST)
    for n in range(10_000):
        message = net.send(0, 1, 1, at=n)
        assert net.arrived(message) == n + 1


def posts_from_two_threads(world, topology, folder, per_thread):
    table = Timetable(topology, folder)
    sys.setswitchinterval(1e-6)  # threads take turns as often as they can
    world.barrier()

    def post():
        for _ in range(per_thread):
            table.depart(0, 1, 1)

    threads = [threading.Thread(target=post) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_no_message_of_ranks_and_threads_that_post_at_once_is_lost(tmp_path):
    topology = Topology(hosts=1, ranks_per_host=2, fast=Link(1e-3, 0.0))  # 1000 s a message
    began_s = time.monotonic()
    run(posts_from_two_threads, 3, (topology, tmp_path, 150))
    last = Timetable(topology, tmp_path).depart(0, 1, 0)
    assert last.number == 3 * 2 * 150
    assert 0 <= last.left_s - began_s - last.number * 1000 < 100


HOLDS_THE_LOCK = """
import fcntl, sys, time
file = open(sys.argv[1], "a+b")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


def test_a_process_that_is_killed_while_it_holds_the_table_lets_go_of_it(network, tmp_path):
    net = network(ONE_HOST)
    command = [sys.executable, "-c", HOLDS_THE_LOCK, tmp_path / "links"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        killer = threading.Timer(0.3, holder.send_signal, (signal.SIGKILL,))
        began_s = time.monotonic()
        killer.start()
        assert net.left(net.send(0, 1, 10, at=0)) == 10
        assert time.monotonic() - began_s > 0.2
