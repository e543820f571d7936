"""Writes matmul_cases.h, what PyTorch computes: python3 make_matmul_cases.py >matmul_cases.h."""

import torch

from cases import floats, write

torch.manual_seed(11)


def matmul(ta=False, tb=False, scale=1.0):
    def f(a, b):
        return torch.matmul(a.mT if ta else a, b.mT if tb else b) * scale

    return f


CASES = [
    ("matmul", [floats(2, 3, 4), floats(2, 4, 2)], [], matmul(), []),
    ("matmul", [floats(3, 2, 4, 1), floats(3, 2, 1, 3)], [], matmul(), []),
    ("matmul", [floats(2, 4, 3), floats(2, 2, 4)], [], matmul(True, True, 0.5), [1, 1, 0.5]),
    ("matmul", [floats(1, 3, 2, 2)], [floats(2, 3)], matmul(), []),
    ("matmul", [floats(2, 3, 4)], [floats(5, 4)], matmul(tb=True, scale=-2), [0, 1, -2]),
    ("matmul", [floats(2, 4, 3)], [floats(4, 2)], matmul(ta=True), [1]),
    ("matmul", [floats(2, 1, 2, 3)], [floats(2, 3, 2)], matmul(), []),
    ("matmul", [floats(3, 2, 1, 1, 3)], [floats(3, 3, 2)], matmul(), []),
]

write("matmul", CASES)
