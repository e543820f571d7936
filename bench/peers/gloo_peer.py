"""gloo: PyTorch's collectives on Gloo as a peer of bench/allreduce."""

import time

import torch
import torch.distributed as dist

from gloo_ranks import RANK, RANKS, serve, tell

call = None


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


def prepare(words):
    """Tries it once, since Gloo may not have it: then no rank does."""
    global call
    call = calls_of(int(words[1]))[words[0]]
    call()


def run(words):
    """Seconds of one call, after a barrier, on the rank that takes longest."""
    calls = int(words[0])
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    seconds = torch.tensor([(time.perf_counter() - start) / calls], dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return seconds.item()


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


serve(__file__, {"prepare": prepare, "run": run}, {name: case(name) for name in calls_of(RANKS)})
