"""Find communication kernels: by name, by the host's call that launched them, by the user's regex.

    name of the kernel                      the table below, by library
    c10d::..., nccl:..., gloo:..., symm_mem::...    the call or annotation that launched it
    Memcpy PtoP                             a copy between two GPUs; other copies stay copies
    --communication REGEX                   added by the user

The name is the function's own: without return type, template arguments and parameters. A kernel
that computes and communicates at once (a matrix product fused with its all-gather) counts as
computing. All kernels of DeepEP count as communication, also get_dispatch_layout, which moves no
bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

KNOWN = (
    # name of the kernel, library, kind where the name does not say it
    (r"(?<![a-z])[a-z]{1,2}ccl\w*kernel", "NCCL, RCCL, MSCCL and other forks", ""),
    (r"mscclpp|oneccl", "MSCCL++, oneCCL", ""),
    (r"deep_?ep(?![a-z])|hybrid_ep|nccl_ep|mori.*ep(dispatch|combine)", "DeepEP, MORI", ""),
    (r"^ep(dispatch|combine)|moe_?a2a|moe_?alltoall|pplx|uccl", "TensorRT-LLM, MORI, pplx", ""),
    (r"(nv|roc)shmem|(barrier|sync)(_all)?_on_stream_kernel", "NVSHMEM, rocSHMEM", ""),
    (r"exchange_?split_?and_?offset|alltoallv", "PyTorch's NVSHMEM extension", "all_to_all"),
    (r"multimem_|(one|two)_?shot_?(all_?reduce|reduce_?scatter)", "symmetric memory", "all_reduce"),
    (r"(^|symmetric_memory::)(barrier|put_signal|wait_signal)_kernel", "the same", "barrier"),
    (r"cross_device_(all_gather|reduce_scatter)", "vLLM, SGLang, AITER", ""),
    (r"cross_device_reduce|quick_?reduce|allreduce_prototype", "the same", "all_reduce"),
    (r"allreduce_fusion|lamport|mnnvl", "FlashInfer, TensorRT-LLM", "all_reduce"),
    (r"userbuffers\w*_ag(?![a-z])", "Transformer Engine's userbuffers", "all_gather"),
    (r"userbuffers\w*_rs(?![a-z])", "the same", "reduce_scatter"),
    (r"userbuffers\w*push(send|recv)", "the same", ""),
    (r"userbuffers|lowprecision\w*shot", "the same; TensorRT-LLM", "all_reduce"),
    (r"all_?reduce|all_?gather|reduce_?scatter|all_?2_?all|all_?to_?all", "any other", ""),
)
"""The first row that matches decides; case is ignored."""
KINDS = (
    "all_reduce all_gather reduce_scatter all_to_all broadcast reduce gather scatter barrier "
    "send_recv send recv dispatch combine"
).split()
SOME_KIND = "collective"
"""Kind of communication if neither the kernel nor its caller names it."""
PEER_COPY = "peer_copy"
# Kernels that compute, even if they are fused with or named after communication. Triton names a
# kernel after the graph's operations around it: triton_poi_fused_add_all_reduce_4 is the addition.
_COMPUTES = re.compile(
    r"^(at|cub|thrust|cutlass|cublas\w*|cudnn\w*|cute|flash)::|^triton_(poi|per|red|tem|mix|for)_"
    r"|gemm|matmul|nvjet|(block|warp|cta|thread)_?all_?reduce",
    re.IGNORECASE,
)
_MAY_COMMUNICATE = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|a2a|broadcast|send|recv|dispatch|combine"
    r"|shmem|nvlink|xgmi|rdma|symm_?mem|symmetric_mem|peer|p2p|multi_?gpu|cross_rank|inter_?node"
    r"|intra_?node",
    re.IGNORECASE,
)
# Split decoding attention "combines" on one GPU, and Triton names kernels after the graph.
_LOCAL = re.compile(r"^(at|cub|thrust|cutlass)::|^triton_|attn|attention|flash_|mla|split_?kv")
_CALLS = re.compile(
    r"^(nccl|rccl|gloo|ucc|mpi|xccl|hccl):|^record_param_comms$|^(_?c10d\w*|symm_mem|_C_custom_ar)::"
    r"|^(?!aten|prim|(?i:fsdp)|.*(matmul|gemm))\w+::\w*(all_?reduce|all_?gather|reduce_?scatter"
    r"|all_?to_?all)"
)


class Communication:
    """Separates kernels that communicate from kernels that compute.

    added: regular expressions of the user, for names of kernels and of host calls around launches.
    ValueError, with the expression, for an invalid one.
    """

    def __init__(self, added: Iterable[str] = ()) -> None:
        self._added = [_compiled(each) for each in added]
        self._known = [(re.compile(name, re.IGNORECASE), kind) for name, _, kind in KNOWN]
        self.kind = cache(self._kind)

    def _kind(self, name: str) -> str:
        """Return all_reduce, dispatch, ... or SOME_KIND; "" for a kernel that computes."""
        if any(each.search(name) for each in self._added):
            return kind_of(own_name(name)) or SOME_KIND
        if name.startswith("Memcpy PtoP"):
            return PEER_COPY
        own = own_name(name)
        if _COMPUTES.search(own):
            return ""
        for pattern, kind in self._known:
            if pattern.search(own):
                said = kind_of(own)
                return kind or SOME_KIND if said == "" or (kind and said == "reduce") else said
        return ""

    def kind_within(self, call: str, name: str) -> str:
        """Return the kind of a kernel or a copy on one device, launched by a call that
        communicates."""
        kind = self.kind(name)
        if kind or _COMPUTES.search(own_name(name)) or re.match("Memset|Memcpy (?!DtoD)", name):
            return kind
        return kind_of(call) or SOME_KIND

    def is_call(self, name: str) -> bool:
        """Return whether this call or annotation of the host starts communication."""
        return bool(_CALLS.search(name)) or any(each.search(name) for each in self._added)

    @staticmethod
    def may_be(name: str) -> bool:
        """Return whether the name of a kernel that counts as computing suggests communication."""
        own = own_name(name)
        return bool(_MAY_COMMUNICATE.search(own)) and not _LOCAL.search(own)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"communication {pattern!r} is no regular expression: {error}") from None


@cache
def own_name(name: str) -> str:
    """Return `ns::f` for `void ns::f<8, true>(int4*, ...)`.

    Names that are not written as in C++ (Triton, mangled names) are returned whole.
    """
    plain = name.replace("(anonymous namespace)::", "")
    plain = re.match(r"[^<(]*", plain)[0].strip()  # type: ignore[index]
    return plain.rpartition(" ")[2] or name


@cache
def kind_of(name: str) -> str:
    """Return all_reduce for allreduce_, gloo:all_reduce or ncclKernel_AllReduce_Sum_f32; or ""."""
    letters = re.sub("[^a-z0-9]", "", name.lower()).replace("all2all", "alltoall")
    letters = re.sub("a2a(?=dispatch|combine)", "", letters)
    found = [kind for kind in KINDS if kind.replace("_", "") in letters]
    return max(found, key=len, default="")
