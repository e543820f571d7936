"""cut: PyTorch on Gloo as a peer of bench/cut. Layers in parts are cut by hand, as Megatron does; a
pipeline is torch.distributed.pipelining's Schedule1F1B."""

import time
import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from gloo_ranks import RANK, RANKS, serve, tell

warnings.simplefilter("ignore")
step = None


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return x

    @staticmethod
    def backward(_, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(_, gradient):
        return gradient


class Block(nn.Module):
    """Of `parts` parts of a layer one; 1: all of it."""

    def __init__(self, width, heads, parts):
        super().__init__()
        self.parts, self.heads = parts, heads // parts
        self.norm_a, self.norm_b = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width // parts)
        self.out = nn.Linear(width // parts, width, bias=False)
        self.up = nn.Linear(width, 4 * width // parts)
        self.down = nn.Linear(4 * width // parts, width, bias=False)
        self.out_bias, self.down_bias = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))

    def copy(self, x):
        return Copy.apply(x) if self.parts > 1 else x

    def sum(self, x):
        return Sum.apply(x) if self.parts > 1 else x

    def forward(self, x):
        n, t, _ = x.shape
        qkv = self.qkv(self.copy(self.norm_a(x)))
        q, k, v = (p.view(n, t, self.heads, -1).transpose(1, 2) for p in qkv.chunk(3, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, t, -1)
        x = x + self.sum(self.out(y)) + self.out_bias
        y = F.gelu(self.up(self.copy(self.norm_b(x))), approximate="tanh")
        return x + self.sum(self.down(y)) + self.down_bias


class First(nn.Module):
    def __init__(self, letters, t, width):
        super().__init__()
        self.table, self.positions = nn.Embedding(letters, width), nn.Parameter(torch.zeros(t, width))

    def forward(self, x):
        return self.table(x) + self.positions


def build(letters, t, width, layers, heads, parts, stage, stages):
    modules = [First(letters, t, width)] if stage == 0 else []
    modules += [Block(width, heads, parts) for layer in range(layers) if layer * stages // layers == stage]
    if stage == stages - 1:
        modules += [nn.LayerNorm(width), nn.Linear(width, letters)]
    return nn.Sequential(*modules)


def loss_of(scores, target):
    return F.cross_entropy(scores.flatten(0, 1), target.flatten())


def prepare(words):
    global step
    letters, t, width, layers, heads, batch, micro = (int(w) for w in words[1:])
    torch.manual_seed(0)
    x = (torch.arange(batch * t) * 7 % letters).view(batch, t)
    pipelined = words[0] == "pipeline"
    parts, stage, stages = (1, RANK, RANKS) if pipelined else (RANKS, 0, 1)
    model = build(letters, t, width, layers, heads, parts, stage, stages)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    if pipelined:
        schedule = Schedule1F1B(PipelineStage(model, stage, stages, torch.device("cpu")), batch // micro, loss_fn=loss_of)

    def pipeline():
        optimizer.zero_grad(set_to_none=False)
        if stage == 0:
            schedule.step(x)
        elif stage == stages - 1:
            schedule.step(target=x, losses=[])
        else:
            schedule.step()
        optimizer.step()

    def tensor():
        optimizer.zero_grad(set_to_none=False)
        for part in x.split(micro):
            (loss_of(model(part), part) * micro / batch).backward()
        optimizer.step()

    step = pipeline if pipelined else tensor


def run(words):
    """Seconds of a step, of as many, after a barrier."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(int(words[0])):
        step()
    return (time.perf_counter() - start) / int(words[0])


def cut(what):
    def case(words):
        tell("prepare", what, *words)
        tell("run", 2)
        once = tell("run", 2)
        return lambda whole: tell("run", max(2, int(whole / once))), ""

    return case


serve(__file__, {"prepare": prepare, "run": run}, {"tensor": cut("tensor"), "pipeline": cut("pipeline")})
