"""torch: PyTorch as a peer of bench/gemm (bf16), bench/numerics, bench/conv, bench/elementwise, bench/optimizer and bench/train."""

import json
import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn

import peer
import torch_models

torch.set_num_threads(peer.THREADS)
torch.set_num_interop_threads(1)


def bf16gemm(words):
    m, n, k, ta, tb = map(int, words)
    a = (torch.rand(k, m).t() if ta else torch.rand(m, k)).to(torch.bfloat16)
    b = (torch.rand(n, k).t() if tb else torch.rand(k, n)).to(torch.bfloat16)
    c = torch.zeros(m, n, dtype=torch.bfloat16)
    torch.set_grad_enabled(False)
    return lambda: torch.mm(a, b, out=c), ""


def conv(words):
    what = words[0]
    n, h, w, c, f, kh, kw, stride, pad, dilation, groups = map(int, words[1:])
    last = torch.channels_last
    x = torch.rand(n, c, h, w).contiguous(memory_format=last)
    k = torch.rand(f, c // groups, kh, kw).contiguous(memory_format=last)
    y = F.conv2d(x, k, None, stride, pad, dilation, groups)
    if what == "forward":

        def run():
            with torch.no_grad():
                F.conv2d(x, k, None, stride, pad, dilation, groups)
    else:
        mask = [what == "input", what == "weights", False]
        s, p, d = [stride] * 2, [pad] * 2, [dilation] * 2

        def run():
            with torch.no_grad():
                torch.ops.aten.convolution_backward(y, x, k, None, s, p, d, False, [0, 0], groups, mask)

    return run, ""


def elementwise(words):
    what, rows, columns = words[0], int(words[1]), int(words[2])
    n = rows * columns
    x, z, y = torch.rand(n) * 2 - 1, torch.rand(n), torch.zeros(n)
    square, given = y.view(rows, columns), x.view(rows, columns)
    steps, heads = min(rows, 64), 1 if columns % 64 else columns // 64
    cube = x.view(rows // steps, steps, columns)
    labels, index = torch.arange(rows) % columns, torch.arange(rows) * 7919 % rows
    split = lambda a: a.view(rows // steps, steps, heads, columns // heads).transpose(1, 2)
    runs = {
        "copy": lambda: y.copy_(x),
        "add": lambda: torch.add(x, z, out=y),
        "axpby": lambda: torch.add(x, y, alpha=0.5, out=y),  # PyTorch has no beta here: less work than ours
        "relu": lambda: torch.clamp_min(x, 0, out=y),
        "relu_gradient": lambda: torch.ops.aten.threshold_backward.grad_input(z, x, 0, grad_input=y),
        "tanh": lambda: torch.tanh(x, out=y),
        "tanh_gradient": lambda: torch.ops.aten.tanh_backward.grad_input(z, x, grad_input=y),
        "sigmoid": lambda: torch.sigmoid(x, out=y),
        "sigmoid_gradient": lambda: torch.ops.aten.sigmoid_backward.grad_input(z, x, grad_input=y),
        "exp": lambda: torch.exp(x, out=y),
        "log": lambda: torch.log(z, out=y),
        "softmax": lambda: torch.softmax(given, 1, out=square),
        "sum": lambda: torch.sum(x),
        "sum_rows": lambda: torch.sum(given, 0),
        "sum_axis": lambda: torch.sum(cube, 1),
        "sum_axis_gradient": lambda: y.view_as(cube).copy_(cube[:, :1].expand_as(cube)),
        "max_axis": lambda: torch.amax(cube, 1),
        "softmax_axis": lambda: torch.softmax(cube, 1, out=y.view_as(cube)),
        "cross_entropy": lambda: F.cross_entropy(given, labels),
        "layer_norm": lambda: F.layer_norm(given, (columns,), z[:columns], z[:columns]),
        "embedding": lambda: torch.index_select(given, 0, index, out=square),
        "dropout": lambda: F.dropout(x, 0.1),
        "attention": lambda: F.scaled_dot_product_attention(split(x), split(z), split(x), scale=0.125),
    }
    run = runs[what]
    torch.set_grad_enabled(False)
    return run, ""


def optimizer(words):
    what, n = words[0], int(words[1])
    w = nn.Parameter(torch.rand(n))
    w.grad = torch.rand(n) * 1e-6
    kinds = {
        "sgd": lambda: torch.optim.SGD([w], lr=0.01, fused=True),
        "momentum": lambda: torch.optim.SGD([w], lr=0.01, momentum=0.9, fused=True),
        "nesterov": lambda: torch.optim.SGD([w], lr=0.01, momentum=0.9, nesterov=True, fused=True),
        "adam": lambda: torch.optim.Adam([w], lr=1e-3, fused=True),
        "adamw": lambda: torch.optim.AdamW([w], lr=1e-3, fused=True),
        "rmsprop": lambda: torch.optim.RMSprop([w], lr=1e-3),  # it has no fused one
        "adagrad": lambda: torch.optim.Adagrad([w], lr=1e-3, fused=True),
    }
    torch.set_grad_enabled(True)
    return kinds[what]().step, ""


# ---- results, for bench/numerics ----


def compute(words):
    what, path, size = words[0], words[1], list(map(int, words[2:]))
    floats = torch.from_file(path, shared=False, size=os.path.getsize(path) // 4)
    taken = 0

    def take(*shape):
        nonlocal taken
        count = torch.Size(shape).numel()
        taken += count
        return floats[taken - count:taken].view(shape)

    def factors(dtype=torch.float32, batch=None):
        m, n, k, ta, tb = size[:5]
        a = take(k, m).t() if ta else take(m, k)
        b = take(*(batch or []), n, k).mT if tb else take(*(batch or []), k, n)
        return a.to(dtype), b.to(dtype)

    def pixels(n, height, channels):
        return take(n, height, height, channels).permute(0, 3, 1, 2)

    def flat(image):
        return image.permute(0, 2, 3, 1).reshape(-1)

    def convolution():
        n, h, c, f, kernel, stride, pad, groups = size
        out = (h + 2 * pad - kernel) // stride + 1
        y, x = pixels(n, out, f), pixels(n, h, c)
        w = take(f, kernel, kernel, c // groups).permute(0, 3, 1, 2)
        if what == "conv_forward":
            return flat(F.conv2d(x, w, None, stride, pad, 1, groups))
        mask = [what == "conv_input", what == "conv_weights", False]
        s, p = [stride] * 2, [pad] * 2
        both = torch.ops.aten.convolution_backward(y, x, w, None, s, p, [1, 1], False, [0, 0], groups, mask)
        return flat(both[0] if mask[0] else both[1])

    def softmax():
        x = take(size[0], size[1])
        labels = torch.arange(size[0]) % size[1]
        loss = F.cross_entropy(x, labels, reduction="none")
        return torch.cat([torch.softmax(x, 1).reshape(-1), loss])

    def statistics():
        variance, mean = torch.var_mean(take(size[0], size[1]), 0, correction=0)
        return torch.cat([mean, variance])

    def norm():
        x = take(size[0], size[1])
        scale, shift, mean, variance = (take(size[1]) for _ in range(4))
        return F.batch_norm(x, mean, variance, scale, shift, False, 0, 1e-3)

    def pooled(kind, **options):
        n, h, c, kernel, stride, pad = size[:6]
        return flat(kind(pixels(n, h, c), kernel, stride, pad, **options))

    functions = {
        "sgemm": lambda: torch.mm(*factors()),
        "sgemm_batched": lambda: torch.matmul(*factors(batch=[size[5]])),
        "conv_forward": convolution,
        "conv_input": convolution,
        "conv_weights": convolution,
        "add": lambda: torch.add(take(size[0]), take(size[0])),
        "axpby": lambda: torch.mul(take(size[0]), 0.5).add_(take(size[0]), alpha=-0.75),
        "tanh_gradient": lambda: torch.ops.aten.tanh_backward(take(size[0]), take(size[0])),
        "sigmoid_gradient": lambda: torch.ops.aten.sigmoid_backward(take(size[0]), take(size[0])),
        "sum": lambda: torch.sum(take(size[0])),
        "dot": lambda: torch.dot(take(size[0]), take(size[0])),
        "sum_rows": lambda: torch.sum(take(size[0], size[1]), 0),
        "softmax": softmax,
        "batch_statistics": statistics,
        "batch_norm": norm,
        "max_pool2d": lambda: pooled(F.max_pool2d),
        "avg_pool2d": lambda: pooled(F.avg_pool2d, count_include_pad=False),
    }
    for name in "exp", "log", "erf", "tanh", "sigmoid":
        functions[name] = lambda name=name: getattr(torch, name)(take(size[0]))
    with torch.no_grad():
        functions[what]().contiguous().numpy().tofile(path)
    return lambda: None, ""


# ---- training ----


def most_memory(work):
    """The most bytes that tensors took at once while work() ran, by PyTorch's own profiler."""
    said = os.dup(2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the profiler says much
    with torch.profiler.profile(profile_memory=True) as profile:
        kept = work()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profile.export_chrome_trace(file.name)
        events = json.load(open(file.name))["traceEvents"]
    os.dup2(said, 2)
    changes = [(e["ts"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]"]
    now = most = 0
    for _, change in sorted(changes, key=lambda c: c[0]):
        now += change
        most = max(most, now)
    del kept
    return most


def train(words):
    name, batch, momentum = words[0], int(words[1]), float(words[2])
    narrow = {"bf16": torch.bfloat16, "f16": torch.float16}[words[3]] if len(words) > 3 else None
    torch.set_grad_enabled(True)
    images = torch_models.SIZES[name].channels > 0

    def build(memory_format):
        x, target = torch_models.batch(name, batch)
        model = torch_models.build(name)
        if images:
            x, model = x.contiguous(memory_format=memory_format), model.to(memory_format=memory_format)
        optimizer = torch_models.optimizer(name, model, momentum)

        def step():
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=narrow, enabled=narrow is not None):
                loss = torch_models.loss(model(x), target)
            loss.backward()
            optimizer.step()

        return step

    def two_steps():
        step = build(torch.contiguous_format)
        step()
        step()
        return step

    used = most_memory(two_steps)
    formats = [torch.contiguous_format, torch.channels_last] if images and "mlp" not in name else [torch.contiguous_format]
    steps = [build(memory_format) for memory_format in formats]
    seconds = [peer.median_seconds(step, 0.1) for step in steps]
    return steps[seconds.index(min(seconds))], f"bytes={used}"


def decode(words):
    name, (context, texts, place, tokens) = words[0], map(int, words[1:])
    model = torch_models.Decoder(*torch_models.DECODERS[name], context)
    x, kept = torch.randint(65, (texts, tokens)), model.keep(texts, context)

    def step():
        with torch.inference_mode():
            model.decode(x, kept, place)

    return step, ""


peer.serve(torch.__version__,
           {"bf16gemm": bf16gemm, "conv": conv, "compute": compute, "elementwise": elementwise, "optimizer": optimizer, "train": train,
            "mixed": train, "decode": decode})
