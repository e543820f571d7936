"""The ranks of a peer on Gloo: rank 0 speaks, and starts the others, which read what it does from their standard input.
Each process computes by one thread."""

import os
import subprocess
import sys

import torch
import torch.distributed as dist

import peer

RANK, RANKS = int(os.environ.get("RANK", "0")), peer.THREADS
torch.set_num_threads(1)
torch.set_num_interop_threads(1)
others, does = [], {}


def tell(what, *words):
    """All ranks do that, with these words as texts; rank 0's result."""
    for process in others:
        process.stdin.write(" ".join([what, *map(str, words)]) + "\n")
        process.stdin.flush()
    return does[what]([str(w) for w in words])


def serve(program, functions, cases):
    """functions: what ranks do, by name, each of a list of words; cases: as peer.serve takes them, on rank 0. What
    fails on another rank fails on rank 0 too, which says so. Doesn't return."""
    does.update(functions)
    if RANK:
        store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), RANKS, False)
        dist.init_process_group("gloo", store=store, rank=RANK, world_size=RANKS)
        for line in sys.stdin:
            what, *words = line.split()
            try:
                does[what](words)
            except Exception:
                pass
        os._exit(0)
    store = dist.TCPStore("127.0.0.1", 0, RANKS, True, wait_for_workers=False)
    for rank in range(1, RANKS):
        others.append(subprocess.Popen([sys.executable, program, str(store.port)], stdin=subprocess.PIPE, text=True,
                                       env=dict(os.environ, RANK=str(rank))))
    dist.init_process_group("gloo", store=store, rank=0, world_size=RANKS)
    peer.serve(torch.__version__, cases, timed=lambda run, seconds: run(seconds))
    for process in others:
        process.stdin.close()
    os._exit(0)
