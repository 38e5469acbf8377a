"""Rung 3: actors, a queue and a learner. Nobody waits for the slowest environment.

    rank 1, 2, ... (actors)                             rank 0 (learner)
    T steps with version v  -- rollout, v --------->  | 7 | 7 | 6 |  bounded queue
    continue with ...       <- "v is the newest" or     |
                               version, weights       batch -> V-trace -> step: version + 1
                                                      every k versions: publish a copy

    thread of actor a       recv rollout -> put (waits while the queue is full) -> send the reply
    main thread             get a batch -> loss, backward, step -> publish

An actor acts with the weights that it has, so its rollouts are older than the learner's version:
by the updates between two publications, by the rollouts that wait in the queue, and by the updates
during its T steps. That is the staleness of a rollout. V-trace corrects for it (v_trace.py).

    full queue      actors wait: they generate more than the learner uses
    empty queue     the learner waits: more actors would help
    larger queue    nobody waits for a moment's noise, and every rollout is older

Layout: the learner has parameters and optimizer state; an actor has a copy of the parameters and a
share of the environments.
Wire: an actor sends each rollout in one message, and receives a number, and the parameters where a
newer version was published. A broadcast of each version would make all actors wait for each other.
Paper: Espeholt et al., "IMPALA", arXiv:1802.01561.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import nn

from labkit import arguments
from labkit.comm import Group
from labkit.data_parallel.plain import broadcast_parameters
from labkit.data_parallel.reduction import copy_from_flat, flattened
from labkit.optimizer import AdamW
from labkit.rl.actor_critic import ActorCritic, RLConfig, actor_critic_loss, collect
from labkit.rl.environments import Environments, Make, Sizes, cart_pole, sizes_of
from labkit.rl.history import History, Recorder
from labkit.rl.rollout_queue import BoundedQueue, Queued, joined, packed, shapes_of, unpacked
from labkit.rl.v_trace import v_trace

OVER = -1


@dataclass(frozen=True, kw_only=True)
class ImpalaConfig(RLConfig):
    """Settings of actors and learner. ValueError for a value that trains nothing."""

    rollouts_per_update: int = 2
    queue_size: int = 4  # rollouts that may wait for the learner
    publish_every: int = 1  # updates between two versions that actors can get
    update_s: float = 0.0  # seconds more in each update, as of a larger model
    corrects: bool = True  # False: rollouts count as if the newest policy had acted

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.whole("rollouts_per_update", self.rollouts_per_update, "1 or more")
        arguments.whole("publish_every", self.publish_every, "1 or more")
        allowed = f"rollouts_per_update={self.rollouts_per_update} or more: a batch must fit"
        arguments.whole("queue_size", self.queue_size, allowed, least=self.rollouts_per_update)


def train(world: Group, config: ImpalaConfig, make: Make = cart_pole) -> History:
    """Train until the learner has used num_samples; return the record of all ranks on each.

    The parameters are the learner's, on rank 0. ValueError for a world without an actor, and where
    an actor would have no environment.
    """
    if world.size < 2:
        raise ValueError("actors and a learner: run it on 2 ranks or more, rank 0 is the learner")
    shares = [config.share(actor, world.size - 1) for actor in range(world.size - 1)]
    sizes = sizes_of(make(0))
    policy = ActorCritic(sizes, config.seed + world.rank, config.dtype)
    broadcast_parameters(policy, world)
    recorder = Recorder(world)
    if world.rank:
        environments = Environments(shares[world.rank - 1], config.seed, make)
        act(world, policy, environments, config, recorder)
    else:
        Learner(policy, config, recorder).run(world, sizes, [len(share) for share in shares])
    return recorder.history(policy)


def act(
    world: Group,
    policy: ActorCritic,
    environments: Environments,
    config: ImpalaConfig,
    recorder: Recorder,
) -> None:
    """Send one rollout after the other, until the learner says that training is over."""
    version, flat = 0, flattened(policy.parameters())
    reply = torch.empty(1, dtype=torch.int64, device=world.device)
    while True:
        rollout = collect(policy, environments, config.num_steps, config.gamma, recorder)
        with recorder.waiting():
            world.send(packed(Queued(version, rollout), config.dtype), dst=0)
            newest = int(world.recv(reply, src=0).item())
            if newest == OVER:
                return
            if newest > version:
                copy_from_flat(world.recv(flat, src=0), policy.parameters())
                version = newest


class Learner:
    """The newest parameters, and the published ones."""

    def __init__(self, policy: ActorCritic, config: ImpalaConfig, recorder: Recorder) -> None:
        self.policy, self.config, self.recorder = policy, config, recorder
        self.optimizer = AdamW(
            policy.parameters(), config.learning_rate, (0.9, 0.999), eps=1e-5, weight_decay=0.0
        )
        self.queue = BoundedQueue(config.queue_size)
        self.version = 0
        """Number of updates."""
        self.published = 0, flattened(policy.parameters())

    def run(self, group: Group, sizes: Sizes, shares: Sequence[int]) -> None:
        """Train; shares: the number of environments of each actor."""
        num_used = 0
        with ThreadPoolExecutor(len(shares)) as threads:
            served = [
                threads.submit(self.serve, group, actor, sizes, share)
                for actor, share in enumerate(shares, start=1)
            ]
            try:
                while num_used < self.config.num_samples:
                    with self.recorder.waiting():
                        batch = self.queue.get(self.config.rollouts_per_update)
                    self.update(batch)
                    num_used += sum(each.rollout.actions_TE.numel() for each in batch)
            finally:
                self.queue.close()
            for each in served:
                each.result()

    def serve(self, group: Group, actor: int, sizes: Sizes, num_environments: int) -> None:
        """Put the rollouts of one actor into the queue, and answer with the published version."""
        shapes = shapes_of(sizes, self.config.num_steps, num_environments)
        num_values = 1 + sum(shape.numel() for shape in shapes)
        flat = torch.empty(num_values, dtype=self.config.dtype, device=group.device)
        sent = 0
        try:
            while self.queue.put(unpacked(group.recv(flat, actor), shapes)):
                version, parameters = self.published
                group.send(torch.tensor([version], device=group.device), actor)
                if version > sent:
                    group.send(parameters, actor)
                    sent = version
            group.send(torch.tensor([OVER], device=group.device), actor)
        except BaseException as error:
            self.queue.close(error)
            raise

    def update(self, batch: Sequence[Queued]) -> None:
        """Make one step with rollouts of any version, and publish every k-th one."""
        config, policy = self.config, self.policy
        self.recorder.staleness += [self.version - each.version for each in batch]
        rollout = joined([each.rollout for each in batch])
        log_probs_TE, entropy_TE, values_TE = policy(rollout.observations_TEO, rollout.actions_TE)
        log_ratios_TE = log_probs_TE.detach() - rollout.log_probs_TE
        targets = v_trace(
            log_ratios_TE if config.corrects else torch.zeros_like(log_ratios_TE),
            rollout.rewards_TE,
            rollout.ended_TE,
            values_TE.detach(),
            policy.values(rollout.last_EO).detach(),
            gamma=config.gamma,
        )
        self.optimizer.zero_grad()
        actor_critic_loss(log_probs_TE, entropy_TE, values_TE, *targets, config).backward()
        nn.utils.clip_grad_norm_(policy.parameters(), config.max_norm)
        self.optimizer.step()
        time.sleep(config.update_s)
        self.version += 1
        self.recorder.num_updates = self.version
        if self.version % config.publish_every == 0:
            self.published = self.version, flattened(policy.parameters())
