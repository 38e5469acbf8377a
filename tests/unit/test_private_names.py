"""The private names of torch, Python and others in labkit: a new version fails here first."""

import ast
import importlib
import inspect
import multiprocessing.process
import re
import sys
from importlib.util import find_spec
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch
from cloudpickle import cloudpickle
from IPython.core.compilerop import CachingCompiler
from torch.distributed import _functional_collectives as functional
from torch.distributed import distributed_c10d as c10d
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.overrides import _get_current_function_mode_stack
from torch.storage import TypedStorage
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from labkit import global_norm

ROOT = Path(__file__).parents[2]
TEXTS = {path: path.read_text() for path in sorted((ROOT / "labkit").rglob("*.py"))}
# Private in spelling only: Python's and IPython's manuals describe them.
DOCUMENTED = {"_exit", "_replace", "_repr_html_", "_repr_mimebundle_"}

x = torch.ones(2)
SPARSE = x.to_sparse()
GROUP = torch.distributed.ProcessGroup
AUTOGRAD = torch.autograd.Variable
# Why labkit needs each, and what touches it.
NAMES = {
    "_C": ("where torch keeps what is written in C++", lambda: torch._C),
    "_ExperimentalConfig": (
        "records what other threads do",
        lambda: torch._C._profiler._ExperimentalConfig(profile_all_threads=True),
    ),
    "_profiler": ("where the profiler's settings are", lambda: torch._C._profiler),
    "_current_graph_task_id": (
        "tells one backward pass from another",
        lambda: torch._C._current_graph_task_id() == -1 or 1 / 0,
    ),
    "_execution_engine": (
        "calls back when a backward pass has ended",
        lambda: AUTOGRAD._execution_engine.queue_callback,
    ),
    "_distributed_c10d": ("has the Flight Recorder", lambda: torch._C._distributed_c10d),
    "_dump_fr_trace": (
        "the Flight Recorder's record",
        lambda: torch._C._distributed_c10d._dump_fr_trace(includeCollectives=False),
    ),
    "_world": (
        "the names of the process groups, and who is in them",
        lambda: (c10d._world.pg_names.items(), c10d._world.pg_group_ranks),
    ),
    "_new_process_group_helper": (
        "makes a process group that only its members ask for",
        lambda: inspect.signature(c10d._new_process_group_helper).bind(
            *(1, 0, [0], "gloo", None, "name"), timeout=None, group_desc="name"
        ),
    ),
    "_get_default_store": ("the store of the process group", lambda: c10d._get_default_store),
    "_get_default_timeout": ("of a group", lambda: c10d._get_default_timeout("gloo")),
    "_allgather_base": ("all_gather into one tensor", lambda: GROUP._allgather_base),
    "_reduce_scatter_base": ("reduce_scatter of one tensor", lambda: GROUP._reduce_scatter_base),
    "_start_coalescing": ("messages that start together", lambda: GROUP._start_coalescing),
    "_end_coalescing": ("messages that start together", lambda: GROUP._end_coalescing),
    "_assert_async": ("on a GPU, without waiting", lambda: torch._assert_async(x.all())),
    "_internal": (
        "a storage without a warning",
        lambda: TypedStorage(wrap_storage=x.untyped_storage(), dtype=x.dtype, _internal=True),
    ),
    "_untyped_storage": ("as above, the other way", lambda: x._typed_storage()._untyped_storage),
    "_cdata": ("tells one storage from another", lambda: x.untyped_storage()._cdata),
    "_indices": ("memory of a sparse tensor", lambda: SPARSE._indices()),
    "_values": ("memory of a sparse tensor", lambda: SPARSE._values()),
    "_parameters": ("may have names with a dot", lambda: torch.nn.Module()._parameters.update()),
    "_apply": ("what module.to() calls", lambda: torch.nn.Module()._apply(lambda x: x)),
    "_backward_hooks": ("counts a learner's hooks", lambda: x._backward_hooks),
    "_forward_hooks": ("counts a learner's hooks", lambda: torch.nn.Module()._forward_hooks),
    "_post_accumulate_grad_hooks": (
        "counts a learner's hooks",
        lambda: x._post_accumulate_grad_hooks,
    ),
    "_should_skip_dynamo": (
        "keeps Dynamo from being imported",
        lambda: TorchDispatchMode._should_skip_dynamo(),
    ),
    "_python_dispatch": ("sees every operation", lambda: TorchDispatchMode),
    "_DisableTorchDispatch": (
        "operations of the grader's own, which nobody looks at",
        lambda: torch._C._DisableTorchDispatch().__enter__,
    ),
    "_pytree": (
        "finds tensors in nested arguments",
        lambda: [
            _pytree.tree_unflatten(*_pytree.tree_flatten((x,))),
            _pytree.tree_leaves((x,)),
            _pytree.tree_map_only(torch.Tensor, len, (x,)),
        ],
    ),
    "_get_current_function_mode_stack": (
        "computes again in the same modes",
        lambda: _get_current_function_mode_stack(),
    ),
    "_functional_collectives": ("what collectives return", lambda: functional.all_reduce),
    "_c10d_functional": (
        "collectives that a compiler traces",
        lambda: torch.ops._c10d_functional.reduce_scatter_tensor.default,
    ),
    "_ops": ("the operations of a graph", lambda: torch.ops.aten.view.default.is_view),
    "_functorch": ("cuts a joint graph", lambda: find_spec("torch._functorch.partitioners").loader),
    "_boxed_call": (
        "a compiled function frees its inputs",
        lambda: importlib.import_module("functorch.compile").make_boxed_func(len)._boxed_call,
    ),
    "_dynamo": ("imported before ranks are forked", lambda: find_spec("torch._dynamo").loader),
    "_forkserver": ("keeps a program's own modules", lambda: forkserver._forkserver),
    "_forkserver_pid": (
        "ends it while it imports, at Ctrl-C",
        lambda: forkserver._forkserver._forkserver_pid,
    ),
    "_config": (
        "the folder of its sockets, removed at Ctrl-C",
        lambda: multiprocessing.current_process()._config.get("tempdir"),
    ),
    "_preload_modules": ("as above", lambda: forkserver._forkserver._preload_modules),
    "_children": (
        "keeps others from reading a rank's exit code",
        lambda: multiprocessing.process._children.discard(None),
    ),
    "_StorageInfo": ("where a value of a DCP folder is", lambda: _StorageInfo("file", 0, 1)),
    "_foreach_norm": ("what torch's clipping takes a norm with", lambda: torch._foreach_norm([x])),
    "_amp_foreach_non_finite_check_and_unscale_": (
        "how GradScaler looks for inf",
        lambda: torch._amp_foreach_non_finite_check_and_unscale_(
            [torch.ones(2)], torch.zeros(1), torch.ones(1)
        ),
    ),
    "_getframe": ("where a call came from", lambda: sys._getframe(0)),
    "_current_frames": ("where each thread stands", lambda: sys._current_frames()),
    "_DYNAMIC_CLASS_TRACKER_BY_CLASS": (
        "classes that came along with a function",
        lambda: list(cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS),
    ),
    "_filename_map": ("which cell a file is", lambda: CachingCompiler()._filename_map),
}


def users(name):
    word = re.compile(rf"\b{name}\b")
    return [
        str(path.relative_to(ROOT))
        for path, text in TEXTS.items()
        if name in text and word.search(text)  # the first of the two is quick
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_private_name_is_there(name):
    reason, touch = NAMES[name]
    assert users(name), f"{name} is not used any more"
    try:
        touch()
    except Exception as error:
        pytest.fail(f"{name} ({reason}), used in {', '.join(users(name))}: {error!r}")


def test_torch_clips_in_the_module_whose_calls_are_refused():
    assert torch.nn.utils.clip_grad_norm_.__module__ == global_norm._CLIPPING


def private_names(nodes):
    """Yield private names that are imported, read from an object or passed by name."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("labkit"):
            found = [*(node.module or "").split("."), *(each.name for each in node.names)]
        elif isinstance(node, ast.Import):
            found = [part for each in node.names for part in each.name.split(".")]
        elif isinstance(node, ast.Call):
            found = [each.arg or "" for each in node.keywords]
            if getattr(node.func, "id", "") == "getattr" and isinstance(node.args[1], ast.Constant):
                found.append(node.args[1].value)
        else:
            found = [node.attr] if isinstance(node, ast.Attribute) else []
        yield from (name for name in found if re.match("_[A-Za-z]", name))


def own_names(nodes):
    """Return the names that labkit defines itself."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def test_no_other_private_name_is_used():
    own, used = set(), set()
    for text in TEXTS.values():
        nodes = list(ast.walk(ast.parse(text)))
        own.update(own_names(nodes))
        used.update(private_names(nodes))
    assert {name: users(name) for name in used - own - DOCUMENTED - NAMES.keys()} == {}
