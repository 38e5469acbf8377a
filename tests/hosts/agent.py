"""torch's elastic agent, which is what torchrun runs, with workers that are forked.

torchrun starts an interpreter for each worker, which computes 2 s before it does anything.
"""

import os
import sys

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, parse_args

from labkit.hosts import hosted_job


def worker(folder, words):
    """Run the process that torchrun starts for each rank, with the same environment variables."""
    os.chdir(folder)
    sys.argv = ["payload", *words]
    sys.exit(hosted_job.main())


def run_agent(words, start_method, folder=".", logs=None):
    """Do what `torchrun WORDS` does, with labkit.launch.payload as its program.

    Raises ChildFailedError where a worker fails.
    """
    config, _, words = config_from_args(parse_args(list(map(str, words))))
    words = words[words.index("labkit.launch.payload") + 1 :]
    config.start_method = start_method
    if logs:
        config.logs_specs = DefaultLogsSpecs(log_dir=str(logs), redirects=Std.ALL)
    elastic_launch(config, worker)(str(folder), words)
