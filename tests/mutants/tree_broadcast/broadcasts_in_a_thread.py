"""Mutant: the library's broadcast, in a thread of its own, and messages for show.

outcome: "wrong"
diagnosis: "calls a library collective"
"""

import threading

import torch.distributed as dist


def library_broadcast(out, root):
    dist.broadcast(out, root)


def tree_broadcast(x, root, group):
    out = x.clone()
    thread = threading.Thread(target=library_broadcast, args=(out, root))
    thread.start()
    thread.join()
    n = group.size
    position = (group.rank - root) % n
    distance = 1
    while distance < n:
        if position < distance:
            if position + distance < n:
                group.send(out, (position + distance + root) % n)
        elif position < 2 * distance:
            group.recv(out, (position - distance + root) % n)
        distance *= 2
    return out
