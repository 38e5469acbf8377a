"""Rung 2: A3C. Workers act and compute gradients, each at its own pace, for a parameter server.

    rank 0 (server)    w, optimizer   <-- gradient of T steps --   rank 1: env 0 1 2
                       step with each --- w ------------------>    rank 2: env 3 4    ...

    worker    fetch w -> T steps of its environments with w -> returns, loss, gradient -> send

It is `Asynchronous()` of data_parallel/parameter_server.py with a gradient of rollouts: the server
does not know what the gradient is of. Nobody waits for a slow environment. Its worker contributes
fewer gradients, and older ones.

A gradient is of the weights that its worker fetched, and of samples of the same weights: it is
on-policy there. The server adds it to weights that are `staleness` steps newer. Nothing corrects
for that. IMPALA (impala.py) sends samples instead, and computes the gradient at the newest weights,
where the samples' age can be corrected.

The paper's workers are threads that write into shared parameters without locks. Here they are
processes, and the server makes one step after the other.

Layout: the server has parameters and optimizer state; a worker has parameters, and a share of the
environments. Wire: for each T steps a gradient to the server and parameters back, with headers.
Paper: Mnih et al., "Asynchronous methods for deep reinforcement learning", arXiv:1602.01783.
"""

from __future__ import annotations

import time

import torch

from labkit.comm import Group
from labkit.data_parallel import parameter_server
from labkit.data_parallel.parameter_server import Asynchronous, Server
from labkit.optimizer import AdamW
from labkit.rl.actor_critic import ActorCritic, RLConfig, actor_critic_loss, advantages, collect
from labkit.rl.environments import Environments, Make, cart_pole, sizes_of
from labkit.rl.history import History, Recorder


def train(world: Group, config: RLConfig, make: Make = cart_pole) -> History:
    """Train with about num_samples; return the record of all ranks on each.

    The parameters are the server's, on rank 0. `staleness` has an entry for each update. ValueError
    for a world without a worker, and where a worker would have no environment.
    """
    num_workers = world.size - 1
    if not num_workers:
        raise ValueError("a server and workers: run it on 2 ranks or more, rank 0 is the server")
    shares = [config.share(worker, num_workers) for worker in range(num_workers)]
    policy = ActorCritic(sizes_of(make(0)), config.seed, config.dtype)
    recorder = Recorder(world)
    if world.rank:
        environments = Environments(shares[world.rank - 1], config.seed, make)
        _work(world, policy, environments, config, recorder)
        return recorder.history(policy)
    optimizer = AdamW(
        policy.parameters(), config.learning_rate, (0.9, 0.999), eps=1e-5, weight_decay=0.0
    )
    samples_per_round = config.num_steps * config.num_environments  # one gradient of each worker
    num_updates = max(1, config.num_samples * num_workers // samples_per_round)
    server = Server(policy, optimizer, Asynchronous(), num_workers, num_updates)
    served = parameter_server.serve(world, server)
    recorder.num_updates = server.version
    recorder.staleness = served.staleness
    recorder.idle_s = recorder.seconds - server.step_s
    return recorder.history(policy)


def _work(
    world: Group,
    policy: ActorCritic,
    environments: Environments,
    config: RLConfig,
    recorder: Recorder,
) -> None:
    """Compute gradients at the weights of the server, until it says that training is over."""
    busy_s = 0.0

    def gradient(step: int) -> float:
        nonlocal busy_s
        began_s = time.perf_counter()
        loss = rollout_loss(policy, environments, config, recorder)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), config.max_norm)
        busy_s += time.perf_counter() - began_s
        return loss.item()

    parameter_server.work(world, policy, gradient)
    recorder.idle_s = recorder.seconds - busy_s


def rollout_loss(
    policy: ActorCritic, environments: Environments, config: RLConfig, recorder: Recorder
) -> torch.Tensor:
    """Act for T steps; return the mean loss of these samples, with n-step returns."""
    rollout = collect(policy, environments, config.num_steps, config.gamma, recorder)
    log_probs_TE, entropy_TE, values_TE = policy(rollout.observations_TEO, rollout.actions_TE)
    values, last = values_TE.detach(), policy.values(rollout.last_EO).detach()
    advantages_TE = advantages(rollout, values, last, config.gamma, lam=1.0)
    targets_TE = advantages_TE + values
    return actor_critic_loss(log_probs_TE, entropy_TE, values_TE, targets_TE, advantages_TE, config)
