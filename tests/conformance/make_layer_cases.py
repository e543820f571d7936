"""Writes layer_cases.h, what PyTorch computes: python3 make_layer_cases.py >layer_cases.h

Layers run in float64 on numbers that are floats, so what is left of a difference is ours. The loss is the mean
squared error against a target, whose gradient goes through the layer. Images are (N, H, W, C) here."""

import torch
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(5)


def floats(*shape, scale=1.0, offset=0.0):
    return (torch.randn(*shape) * scale + offset).float().double()


def row(values):
    return "{ " + ", ".join(f"{v:.9g}" for v in values.flatten().tolist()) + " }"


def channels_first(f):
    return lambda x, *p: f(x.movedim(-1, 1), *p).movedim(1, -1)


def layer(x, weight=None, bias=None, eps=1e-5):
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def rms(x, weight=None, eps=None):
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def group(groups, eps=1e-5):
    return channels_first(lambda x, *p: F.group_norm(x, groups, *p, eps=eps))


def channel(c):
    return [floats(c), floats(c)]


EPS32 = torch.finfo(torch.float32).eps
# name, x, parameters, what PyTorch computes, the numbers that the test's builder takes
CASES = [
    ("layer_norm", floats(3, 5), channel(5), layer, []),
    ("layer_norm", floats(2, 3, 2, 7, offset=100), channel(7), layer, []),
    ("layer_norm", floats(2, 4, 1), channel(1), layer, []),
    ("layer_norm", floats(1, 2, 33, scale=1e-3), [], layer, []),
    ("layer_norm", floats(2, 9, scale=1e3), [floats(9)], lambda x, w: layer(x, w, eps=0.5), [0.5]),
    ("rms_norm", floats(3, 5), [floats(5)], lambda x, w: rms(x, w, EPS32), []),
    ("rms_norm", floats(2, 3, 17, offset=3), [], lambda x: rms(x, eps=0.01), [0.01]),
    ("rms_norm", floats(1, 4, 1), [floats(1)], lambda x, w: rms(x, w, 0.1), [0.1]),
    ("group_norm", floats(2, 3, 5, 6), channel(6), group(2), [0, 2]),
    ("group_norm", floats(1, 4, 2, 3, offset=30), channel(3), group(3, 0.01), [0.01, 3]),
    ("group_norm", floats(3, 1, 1, 8), [], group(1, 0.1), [0.1, 1]),
    ("group_norm", floats(3, 7, 4), channel(4), group(2), [0, 2]),
    ("dense", floats(2, 3, 4), [floats(5, 4), floats(5)], F.linear, []),
    ("dense", floats(1, 2, 3, 2, 4), [floats(1, 4)], F.linear, []),
    ("dense", floats(4, 1), [floats(3, 1), floats(3)], F.linear, []),
    ("permute", floats(2, 2, 3, 4), [], lambda x: x.permute(0, 3, 1, 2), [2, 0, 1]),
    ("transpose", floats(1, 5, 1, 3), [], lambda x: x.transpose(-1, -2), []),
    ("slice", floats(2, 5, 3), [], lambda x: x[:, 1:4], [0, 1, 4]),
    ("slice", floats(2, 5, 3), [], lambda x: x[..., 2:], [-1, 2, 3]),
    ("pad", floats(2, 3, 2), [], lambda x: F.pad(x, (0, 0, 2, 1)), [0, 2, 1]),
    ("concat", floats(2, 3, 2), [], lambda x: torch.cat([x, x[:, 1:], x[:, :1]], 1), [0]),
    ("embedding", torch.tensor([[3, 0, 3], [1, 3, 0]]), [floats(5, 4)], F.embedding, []),
    ("embedding", torch.tensor([[[2], [2]], [[0], [1]]]), [floats(3, 2)], F.embedding, []),
]


def text(name, x, parameters, f, numbers):
    if x.dtype == torch.float64:
        x.requires_grad_()
    for p in parameters:
        p.requires_grad_()
    y = f(x, *parameters)
    target = floats(*y.shape)
    loss = F.mse_loss(y, target)
    loss.backward()
    fields = [f'.name = "{name}"', f".batch = {x.shape[0]}", f".dims = {x.dim() - 1}",
              ".shape = { " + ", ".join(map(str, x.shape[1:])) + " }", f".x = {row(x)}"]
    if numbers:
        fields.append(".number = { " + ", ".join(f"{n:g}" for n in numbers) + " }")
    for i, p in enumerate(parameters):
        fields += [f".p{i}_dims = {p.dim()}", f".p{i}_shape = {{ {', '.join(map(str, p.shape))} }}",
                   f".p{i} = {row(p)}", f".dp{i} = {row(p.grad)}"]
    fields += [f".outputs = {y[0].numel()}", f".y = {row(y)}", f".target = {row(target)}",
               f".loss = {loss.item():.9g}"]
    if x.grad is not None:
        fields.append(f".dx = {row(x.grad)}")
    return "{ " + ",\n  ".join(fields) + " },"


print(f"/* layer_cases.h: written by make_layer_cases.py with PyTorch {torch.__version__.split('+')[0]}. */")
print("/* clang-format off */")
print("static const layer_case layer_cases[] = {")
for case in CASES:
    print(text(*case))
print("};")
print("/* clang-format on */")
