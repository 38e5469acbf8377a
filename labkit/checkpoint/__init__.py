"""Save checkpoints that are complete or absent, and load them into any layout.

Read in this order, and start here:

    plain.py           a shard per rank, and the one rename that makes all of them count

then:

    checkpointer.py    Checkpointer: save and load, seen from a training loop
    manifest.py        the files of a complete checkpoint
    contents.py        the state to save: shards of whole, named tensors (labkit/shards.py), and
                       the states of an optimizer
    plain_data.py      plain data and errors between ranks
    saving.py          the files of each rank, and the moment from which a save counts
    disk.py            durable file operations; one rank's file
    loading.py         the newest complete checkpoint; each rank reads the bytes that it needs
    async_save.py      saving while training continues
    whole_tensors.py   a checkpoint without ranks; one plain file of a model
    dcp.py             checkpoints of torch's DCP, both ways; imported by itself
    dcp_metadata.py    DCP's table of contents, read without unpickling
    torch_optimizer_states.py, torch_optimizers.py
                       settings and states of torch's optimizers, by version

Beside these:

    preemption_notice.py   SIGTERM and Slurm's signal: save in time
    sample_cursor.py       each sample once per epoch, and the proof of it
    loss_guard.py          on NaN, return to a good step and skip the batches since then
    rollout_bank.py        rollouts that are used exactly once
    power_cut.py           the files that recorded operations leave after a power cut
"""

from labkit.checkpoint.checkpointer import Checkpointer
from labkit.checkpoint.disk import Disk
from labkit.checkpoint.loading import LoadResult
from labkit.checkpoint.loss_guard import Diverged, LossGuard
from labkit.checkpoint.manifest import Damaged, DoesNotFit
from labkit.checkpoint.preemption_notice import PreemptionNotice
from labkit.checkpoint.rollout_bank import Rollout, RolloutBank
from labkit.checkpoint.sample_cursor import Audit, SampleCursor, SampleLog, audit
from labkit.checkpoint.saving import SaveFailed
from labkit.checkpoint.whole_tensors import load_plain, read_gpt, read_tensors

__all__ = [
    "Audit",
    "Checkpointer",
    "Damaged",
    "Disk",
    "Diverged",
    "DoesNotFit",
    "LoadResult",
    "LossGuard",
    "PreemptionNotice",
    "Rollout",
    "RolloutBank",
    "SampleCursor",
    "SampleLog",
    "SaveFailed",
    "audit",
    "load_plain",
    "read_gpt",
    "read_tensors",
]
