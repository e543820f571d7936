"""Writes layer_cases.h, what PyTorch computes: python3 make_layer_cases.py >layer_cases.h. Images are (N, H, W, C) here."""

import torch
import torch.nn.functional as F

from cases import constant, floats, write

torch.manual_seed(5)


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
    ("embedding", constant([[3, 0, 3], [1, 3, 0]]), [floats(5, 4)], F.embedding, []),
    ("embedding", constant([[[2], [2]], [[0], [1]]]), [floats(3, 2)], F.embedding, []),
]

write("layer", CASES)
