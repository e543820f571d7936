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
others, call = [], None


def calls_of(whole):
    """What run_once() in bench/allreduce.c does, for each operation."""
    given, got = torch.zeros(whole), torch.zeros(whole)
    part = whole // RANKS
    mine, parts, root = got[:part], list(got[: part * RANKS].chunk(RANKS)), RANK == 0
    return {
        "all_reduce": lambda: dist.all_reduce(got),
        "reduce": lambda: dist.reduce(got, 0),
        "broadcast": lambda: dist.broadcast(got, 0),
        "scatter": lambda: dist.scatter(mine, list(given.chunk(RANKS)) if root else None, 0),
        "gather": lambda: dist.gather(given[:part], parts if root else None, 0),
        "all_gather": lambda: dist.all_gather(parts, given[:part]),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(mine, given),
        "all_to_all": lambda: dist.all_to_all_single(got, given),
    }


def prepare(name, floats):
    """Tries it once, since Gloo may not have it: then no rank does."""
    global call
    call = calls_of(int(floats))[name]
    call()


def run(calls):
    """Seconds of one call, after a barrier, on the rank that takes longest."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(int(calls)):
        call()
    seconds = torch.tensor([(time.perf_counter() - start) / int(calls)], dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return seconds.item()


def tell(what, *words):
    for process in others:
        process.stdin.write(" ".join(map(str, (what, *words))) + "\n")
        process.stdin.flush()
    return {"prepare": prepare, "run": run}[what](*words)


def case(name):
    def take(words):
        tell("prepare", name, int(words[0]) // 4)
        return median_seconds, ""

    return take


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
        what, *words = line.split()
        try:
            {"prepare": prepare, "run": run}[what](*words)
        except Exception:  # rank 0 has met it too, and says so
            pass
    os._exit(0)
store = dist.TCPStore("127.0.0.1", 0, RANKS, True, wait_for_workers=False)
for rank in range(1, RANKS):
    others.append(subprocess.Popen([sys.executable, __file__, str(store.port)], stdin=subprocess.PIPE, text=True,
                                   env=dict(os.environ, RANK=str(rank))))
dist.init_process_group("gloo", store=store, rank=0, world_size=RANKS)
peer.serve(torch.__version__, {name: case(name) for name in calls_of(RANKS)}, timed=lambda run, seconds: run(seconds))
for process in others:
    process.stdin.close()
os._exit(0)
