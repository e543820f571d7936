"""ddp: PyTorch's DistributedDataParallel on Gloo as a peer of bench/ddp."""

import time
import warnings

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch_models
from gloo_ranks import RANK, serve, tell

warnings.simplefilter("ignore")
steps, step = [], None


def build(name, batch, momentum, memory_format):
    torch.manual_seed(RANK)
    x, target = torch_models.batch(name, batch)
    model = torch_models.build(name)
    if torch_models.SIZES[name].channels:
        x, model = x.contiguous(memory_format=memory_format), model.to(memory_format=memory_format)
    model = DistributedDataParallel(model, gradient_as_bucket_view=True, broadcast_buffers=False)
    optimizer = torch_models.optimizer(name, model, momentum)

    def step():
        optimizer.zero_grad(set_to_none=False)
        torch_models.loss(model(x), target).backward()
        optimizer.step()

    return step


def prepare(words):
    """In the memory formats that there are; `pick` says which is taken."""
    global steps, step
    name, batch, momentum = words[0], int(words[1]), float(words[2])
    formats = [torch.contiguous_format]
    if torch_models.SIZES[name].channels and "mlp" not in name:
        formats.append(torch.channels_last)
    steps = [build(name, batch, momentum, f) for f in formats]
    step = steps[0]
    return len(steps)


def pick(words):
    global step
    step = steps[int(words[0])]


def run(words):
    """Seconds of a step, of as many, after a barrier."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(int(words[0])):
        step()
    return (time.perf_counter() - start) / int(words[0])


def ddp(words):
    seconds = []
    for i in range(tell("prepare", *words)):
        tell("pick", i)
        tell("run", 2)
        seconds.append(tell("run", 3))
    tell("pick", seconds.index(min(seconds)))
    once = min(seconds)
    return lambda whole: tell("run", max(2, int(whole / once))), ""


serve(__file__, {"prepare": prepare, "pick": pick, "run": run}, {"ddp": ddp})
