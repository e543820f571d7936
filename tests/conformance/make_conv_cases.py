"""Writes conv_cases.h, what PyTorch computes: python3 make_conv_cases.py >conv_cases.h. Images are (N, H, W, C) and
weights (filters, height, width, channels) here, those of transposed convolutions (channels, height, width, filters)."""

import torch.nn.functional as F
import torch

from cases import floats, write

torch.manual_seed(8)


def first(x):
    return x.movedim(-1, 1)


def last(x):
    return x.movedim(1, -1)


def conv2d(stride, padding, dilation=(1, 1), groups=1):
    return lambda x, w, b=None: last(F.conv2d(first(x), first(w), b, stride, padding, dilation, groups))


def sides(top, bottom, left, right, *stride):
    return lambda x, w: last(F.conv2d(F.pad(first(x), (left, right, top, bottom)), first(w), None, stride))


def same(stride, dilation, groups=1):
    """Keras' rule, which is PyTorch's for strides of 1."""

    def zeros(size, kernel, step, apart):
        total = max((-(-size // step) - 1) * step + (kernel - 1) * apart + 1 - size, 0)
        return [total // 2, total - total // 2]

    def f(x, w, b=None):
        x, w = first(x), first(w)
        rank = x.dim() - 2
        pads = [zeros(x.shape[2 + i], w.shape[2 + i], stride[i], dilation[i]) for i in range(rank)]
        padded = F.pad(x, sum(reversed(pads), []))
        y = (F.conv2d if rank == 2 else F.conv1d)(padded, w, b, stride, 0, dilation, groups)
        if all(s == 1 for s in stride):
            other = (F.conv2d if rank == 2 else F.conv1d)(x, w, b, stride, "same", dilation, groups)
            assert torch.equal(y, other) or (y - other).abs().max() < 1e-12
        return last(y)

    return f


def conv1d(stride, padding, dilation=1, groups=1):
    return lambda x, w, b=None: last(F.conv1d(first(x), first(w), b, stride, padding, dilation, groups))


def causal(dilation, groups=1):
    def f(x, w, b=None):
        zeros = (w.shape[1] - 1) * dilation
        return last(F.conv1d(F.pad(first(x), (zeros, 0)), first(w), b, 1, 0, dilation, groups))

    return f


def transposed(stride, padding, more, dilation=1, groups=1):
    def f(x, w, b=None):
        convolve = F.conv_transpose2d if x.dim() == 4 else F.conv_transpose1d
        return last(convolve(first(x), first(w), b, stride, padding, more, groups, dilation))

    return f


def pool(kind, kernel, stride, padding, ceil, counts=None):
    def f(x):
        more = {} if counts is None else {"count_include_pad": bool(counts)}
        function = getattr(F, f"{kind}_pool{x.dim() - 2}d")
        return last(function(first(x), kernel, stride, padding, ceil_mode=bool(ceil), **more))

    return f


def local(kernel, stride):
    def f(x, w, b=None):
        n, c, (kh, kw) = len(x), x.shape[-1], kernel
        columns = F.unfold(first(x), kernel, stride=stride)  # (N, C kh kw, places)
        columns = columns.reshape(n, c, kh * kw, -1).transpose(1, 2).reshape(n, kh * kw * c, -1)
        y = torch.einsum("nkp,pfk->npf", columns, w.flatten(0, 1)).reshape(n, *w.shape[:3])
        return y if b is None else y + b

    return f


CASES = [
    ("conv2d", floats(2, 4, 5, 3), [floats(2, 3, 2, 3), floats(2)], conv2d((1, 1), (0, 0)), [1, 1, 0, 0, 1, 1, 1]),
    ("conv2d", floats(1, 7, 6, 4), [floats(6, 3, 3, 2), floats(6)], conv2d((2, 3), (2, 1), (3, 2), 2),
     [2, 3, 2, 1, 3, 2, 2]),
    ("conv2d", floats(2, 3, 4, 3), [floats(6, 2, 3, 1)], conv2d((1, 2), (1, 3), (1, 1), 3), [1, 2, 1, 3, 1, 1, 3]),
    ("conv2d_sides", floats(2, 3, 4, 2), [floats(3, 3, 2, 2)], sides(2, 0, 1, 3, 1, 2), [2, 0, 1, 3, 1, 2]),
    ("conv2d_sides", floats(1, 3, 3, 2), [floats(2, 1, 1, 2)], sides(0, 1, 0, 2, 1, 1), [0, 1, 0, 2, 1, 1]),
    ("conv2d_same", floats(2, 4, 5, 2), [floats(3, 2, 4, 2), floats(3)], same((1, 1), (1, 2)), [1, 1, 1, 2, 1]),
    ("conv2d_same", floats(1, 6, 7, 2), [floats(2, 3, 3, 2), floats(2)], same((2, 2), (1, 1)), [2, 2, 1, 1, 1]),
    ("conv2d_same", floats(1, 6, 5, 3), [floats(3, 3, 2, 1)], same((2, 3), (1, 2), 3), [2, 3, 1, 2, 3]),
    ("conv2d_same", floats(2, 5, 4, 2), [floats(2, 1, 1, 2)], same((3, 2), (1, 1)), [3, 2, 1, 1, 1]),
    ("conv1d", floats(2, 7, 3), [floats(4, 3, 3), floats(4)], conv1d(1, 0), [1, 0, 1, 1]),
    ("conv1d", floats(2, 8, 4), [floats(6, 4, 2), floats(6)], conv1d(3, 4, 2, 2), [3, 4, 2, 2]),
    ("conv1d", floats(1, 9, 3), [floats(3, 5, 1)], conv1d(2, 1, 1, 3), [2, 1, 1, 3]),
    ("conv1d_same", floats(2, 6, 2), [floats(3, 4, 2), floats(3)], same((1,), (1,)), [1, 1, 1]),
    ("conv1d_same", floats(2, 9, 4), [floats(2, 3, 2)], same((2,), (3,), 2), [2, 3, 2]),
    ("conv1d_causal", floats(2, 6, 2), [floats(3, 3, 2), floats(3)], causal(1), [1, 1]),
    ("conv1d_causal", floats(1, 4, 4), [floats(2, 2, 2)], causal(3, 2), [3, 2]),
    ("conv_transpose2d", floats(2, 3, 4, 2), [floats(2, 3, 2, 3), floats(3)], transposed(1, 0, 0),
     [1, 1, 0, 0, 0, 0, 1, 1]),
    ("conv_transpose2d", floats(1, 3, 3, 4), [floats(4, 3, 4, 3), floats(6)], transposed((2, 3), (1, 2), (1, 2), 1, 2),
     [2, 3, 1, 2, 1, 2, 1, 2]),
    ("conv_transpose2d", floats(2, 2, 3, 3), [floats(3, 2, 3, 1)], transposed((1, 2), (1, 0), (1, 1), 2, 3),
     [1, 2, 1, 0, 1, 1, 2, 3]),
    ("conv_transpose2d", floats(1, 2, 2, 3), [floats(3, 1, 1, 2), floats(2)], transposed(3, 0, 2), [3, 3, 0, 0, 2, 2, 1, 1]),
    ("conv_transpose1d", floats(2, 4, 3), [floats(3, 3, 2), floats(2)], transposed(2, 1, 1), [2, 1, 1, 1, 1]),
    ("conv_transpose1d", floats(1, 5, 4), [floats(4, 2, 3)], transposed(1, 1, 2, 3, 2), [1, 1, 2, 3, 2]),
    ("max_pool2d", floats(2, 5, 6, 2), [], pool("max", (3, 2), (2, 3), (1, 0), 0), [3, 2, 2, 3, 1, 0, 0]),
    ("max_pool2d", floats(1, 6, 7, 2), [], pool("max", (3, 2), (2, 4), (1, 1), 1), [3, 2, 2, 4, 1, 1, 1]),
    ("max_pool2d", floats(1, 4, 5, 2), [], pool("max", (2, 2), (3, 3), (0, 1), 1), [2, 2, 3, 3, 0, 1, 1]),
    ("avg_pool2d", floats(2, 5, 6, 2), [], pool("avg", (3, 2), (2, 3), (1, 0), 0, 0), [3, 2, 2, 3, 1, 0, 0, 0]),
    ("avg_pool2d", floats(1, 6, 7, 2), [], pool("avg", (4, 2), (2, 2), (2, 1), 0, 1), [4, 2, 2, 2, 2, 1, 0, 1]),
    ("avg_pool2d", floats(1, 6, 7, 2), [], pool("avg", (3, 4), (2, 3), (1, 2), 1, 0), [3, 4, 2, 3, 1, 2, 1, 0]),
    ("avg_pool2d", floats(1, 6, 7, 2), [], pool("avg", (4, 3), (3, 2), (1, 1), 1, 1), [4, 3, 3, 2, 1, 1, 1, 1]),
    ("max_pool1d", floats(2, 8, 2), [], pool("max", 3, 3, 1, 1), [3, 3, 1, 1]),
    ("avg_pool1d", floats(2, 8, 2), [], pool("avg", 3, 2, 1, 0, 0), [3, 2, 1, 0, 0]),
    ("avg_pool1d", floats(2, 9, 2), [], pool("avg", 4, 3, 2, 1, 1), [4, 3, 2, 1, 1]),
    ("global_max_pool2d", floats(2, 3, 2, 3), [], lambda x: x.amax((1, 2)), []),
    ("global_avg_pool1d", floats(2, 5, 3), [], lambda x: x.mean(1), []),
    ("local2d", floats(2, 4, 5, 2), [floats(2, 3, 2, 18), floats(2, 3, 2)], local((3, 3), (1, 1)), [3, 3, 1, 1]),
    ("local2d", floats(3, 5, 5, 1), [floats(2, 2, 3, 6)], local((2, 3), (3, 2)), [2, 3, 3, 2]),
]

write("conv", CASES)
