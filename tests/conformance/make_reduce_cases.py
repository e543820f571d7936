"""Writes reduce_cases.h, what PyTorch computes: python3 make_reduce_cases.py >reduce_cases.h. The numbers: keep_dims, a norm's
order, how many axes (none: all), and which, without the batch."""

import torch
import torch.nn.functional as F

from cases import floats, write

torch.manual_seed(9)


def batched(axes, x):
    return tuple(a + 1 if a >= 0 else a for a in axes) or tuple(range(1, x.dim()))


def over(f, axes, keep):
    return lambda x: f(x, dim=batched(axes, x), keepdim=keep)


def case(name, f, x, axes, keep=False, order=0):
    return (name, x, [], over(f, axes, keep), [int(keep), order, len(axes), *axes])


def norm(order):
    return lambda x, dim, keepdim: torch.linalg.vector_norm(x, order, dim, keepdim)


def ties(*shape):
    """Numbers of which many are the same."""
    return (floats(*shape) * 2).round() / 2


FUNCTIONS = [("sum", torch.sum), ("mean", torch.mean), ("max", torch.amax), ("min", torch.amin)]
CASES = []
for name, f in FUNCTIONS:
    CASES += [
        case(name, f, floats(2, 3, 4), [-1]),
        case(name, f, ties(2, 5, 3), [0], True),
        case(name, f, ties(1, 2, 3, 4), [0, 2], True),
        case(name, f, ties(2, 3, 2, 2), []),
        case(name, f, floats(3, 1), [0]),
    ]
for order in 1, 2, float("inf"):
    given = 0 if order == float("inf") else order
    CASES += [
        case("norm", norm(order), floats(2, 3, 4), [1], False, given),
        case("norm", norm(order), floats(2, 2, 1, 5), [2, 0], True, given),
    ]
CASES += [
    ("argmax", floats(2, 3, 4), [floats(4, 2)], lambda x, w: F.embedding(x.argmax(-1), w), [0, 0, 1, -1]),
    ("argmin", ties(2, 5, 2), [floats(5, 2)], lambda x, w: F.embedding(x.argmin(1, keepdim=True), w), [1, 0, 1, 0]),
]

for name, f in ("softmax", F.softmax), ("log_softmax", F.log_softmax):
    CASES += [
        (name, floats(2, 3, 5), [], lambda x, f=f: f(x, -1), [0, 0, 1, -1]),
        (name, floats(2, 4, 2, 3, scale=10), [], lambda x, f=f: f(x, 1), [0, 0, 1, 0]),
        (name, floats(3, 9, scale=1e4), [], lambda x, f=f: f(x, 1), [0, 0, 1, 0]),
        (name, floats(1, 2, 1), [], lambda x, f=f: f(x, 2), [0, 0, 1, 1]),
    ]

def index(n, *shape):
    return torch.randint(0, n, shape)


def take(axis):
    return lambda x, i: torch.stack([torch.index_select(a, axis, b) for a, b in zip(x, i)])


def gather(axis):
    return lambda x, i: torch.gather(x, axis + 1, i)


CASES += [
    ("take", [floats(2, 4, 3), index(4, 2, 6)], [], take(0), [0, 0, 1, 0]),
    ("take", [floats(3, 2, 5), index(5, 3, 2)], [], take(1), [0, 0, 1, -1]),
    ("take", [floats(1, 1), index(1, 1, 3)], [], take(0), [0, 0, 1, 0]),
    ("gather", [floats(3, 5), index(5, 3, 2)], [], gather(0), [0, 0, 1, 0]),
    ("gather", [floats(2, 3, 4), index(3, 2, 5, 4)], [], gather(0), [0, 0, 1, 0]),
    ("gather", [floats(2, 2, 3, 2), index(3, 2, 2, 3, 2)], [], gather(1), [0, 0, 1, -2]),
]

write("reduce", CASES)
