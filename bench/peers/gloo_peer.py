"""gloo: PyTorch's collectives on Gloo as a peer of bench/allreduce: rank 0 speaks and starts the others, which
read what it does from their standard input."""

import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist

import peer

RANK, RANKS = int(os.environ.get("RANK", "0")), peer.THREADS
torch.set_num_threads(1)
others, data = [], None


def prepare(floats):
    global data
    data = torch.zeros(floats)
    return 0.0


def run(calls):
    """Seconds of one call, after a barrier."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(data)
    return (time.perf_counter() - start) / calls


def tell(what, value):
    for process in others:
        process.stdin.write(f"{what} {value}\n")
        process.stdin.flush()
    return {"prepare": prepare, "run": run}[what](value)


def all_reduce(words):
    tell("prepare", int(words[0]) // 4)
    return median_seconds, ""


def median_seconds(seconds):
    """As measure() in bench/allreduce.c."""
    tell("run", 2)
    once = tell("run", 2) + 1e-9
    calls = 1 if once > 2e-3 else int(2e-3 / once) + 1
    samples, spent = [], 0.0
    while len(samples) < 3 or (len(samples) < 51 and spent < seconds):
        samples.append(tell("run", calls))
        spent += samples[-1] * calls
    return sorted(samples)[len(samples) // 2]


if RANK:
    store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), RANKS, False)
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=RANKS)
    for line in sys.stdin:
        what, value = line.split()
        {"prepare": prepare, "run": run}[what](int(value))
    os._exit(0)
store = dist.TCPStore("127.0.0.1", 0, RANKS, True, wait_for_workers=False)
for rank in range(1, RANKS):
    others.append(subprocess.Popen([sys.executable, __file__, str(store.port)], stdin=subprocess.PIPE, text=True,
                                   env=dict(os.environ, RANK=str(rank))))
dist.init_process_group("gloo", store=store, rank=0, world_size=RANKS)
peer.serve(torch.__version__, {"all_reduce": all_reduce}, timed=lambda run, seconds: run(seconds))
for process in others:
    process.stdin.close()
os._exit(0)
