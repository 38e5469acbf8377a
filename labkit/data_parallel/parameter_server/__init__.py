"""A parameter server: one rank has the parameters, the others ask for them and send gradients.

run(parameter_server.train, 4, args=(config, settings, Asynchronous()))
"""

from labkit.data_parallel.parameter_server.modes import Asynchronous, Mode, Synchronous
from labkit.data_parallel.parameter_server.server_and_workers import Served, train

__all__ = ["Asynchronous", "Mode", "Served", "Synchronous", "train"]
