"""Writes matmul_cases.h, what PyTorch computes: python3 make_matmul_cases.py >matmul_cases.h."""

import torch
import torch.nn.functional as F

from cases import constant, floats, numbers, write

torch.manual_seed(11)


def matmul(ta=False, tb=False, scale=1.0):
    def f(a, b):
        return torch.matmul(a.mT if ta else a, b.mT if tb else b) * scale

    return f


def bag(mode):
    """Bags with places of -1, which PyTorch doesn't have: by offsets."""

    def f(indices, *rest):
        values, table = rest if len(rest) == 2 else (None, rest[0])
        flat = indices.reshape(-1, indices.shape[-1])
        here = flat >= 0
        offsets = F.pad(here.sum(1).cumsum(0), (1, 0))[:-1]
        weights = None if values is None else values.reshape(flat.shape)[here]
        y = F.embedding_bag(flat[here], table, offsets, mode=mode, per_sample_weights=weights)
        return y.reshape(*indices.shape[:-1], -1)

    return f


WORDS = [[3, -1, 0, 3], [-1, -1, -1, -1], [1, 0, 2, -1]]
CASES = [
    ("matmul", [floats(2, 3, 4), floats(2, 4, 2)], [], matmul(), []),
    ("matmul", [floats(3, 2, 4, 1), floats(3, 2, 1, 3)], [], matmul(), []),
    ("matmul", [floats(2, 4, 3), floats(2, 2, 4)], [], matmul(True, True, 0.5), [1, 1, 0.5]),
    ("matmul", [floats(1, 3, 2, 2)], [floats(2, 3)], matmul(), []),
    ("matmul", [floats(2, 3, 4)], [floats(5, 4)], matmul(tb=True, scale=-2), [0, 1, -2]),
    ("matmul", [floats(2, 4, 3)], [floats(4, 2)], matmul(ta=True), [1]),
    ("matmul", [floats(2, 1, 2, 3)], [floats(2, 3, 2)], matmul(), []),
    ("matmul", [floats(3, 2, 1, 1, 3)], [floats(3, 3, 2)], matmul(), []),
    ("bag_sum", constant(WORDS), [floats(4, 3)], bag("sum"), []),
    ("bag_mean", constant(WORDS), [floats(4, 3)], bag("mean"), [1]),
    ("bag_mean", constant([WORDS, WORDS[::-1]]), [floats(5, 1)], bag("mean"), [1]),
    ("bag_values", [constant(WORDS), floats(3, 4)], [floats(4, 2)], bag("sum"), []),
    ("bag_values", [constant([[[2]], [[-1]]]), floats(2, 1, 1)], [floats(3, 5)], bag("sum"), []),
]

STEPS, BATCH, PLACES = 5, 2, 3


def sparse_case(optimizer, width, text):
    """Five steps of torch.nn.EmbeddingBag(sparse=True) and what its weights are after each."""
    rows = 12 // width
    layer = torch.nn.EmbeddingBag(rows, width, mode="sum", sparse=True, dtype=torch.float64)
    layer.weight.data = floats(rows, width)
    start, by = layer.weight.detach().clone(), optimizer([layer.weight])
    index, value = torch.randint(0, rows, (STEPS, BATCH, PLACES)), floats(STEPS, BATCH, PLACES)
    target, after = floats(STEPS, BATCH, width, scale=3), []
    for step in range(STEPS):
        by.zero_grad()
        F.mse_loss(layer(index[step], per_sample_weights=value[step]), target[step]).backward()
        by.step()
        after.append(layer.weight.detach().clone())
    return ", ".join([f"{{ {width}, {text}", numbers("int32_t", index), numbers("float", value),
                      numbers("float", target), numbers("float", start), numbers("float", torch.stack(after))]) + " },"


write("matmul", CASES)
print("/* clang-format off */")
print(f"enum {{ SPARSE_STEPS = {STEPS}, SPARSE_BATCH = {BATCH}, SPARSE_PLACES = {PLACES}, SPARSE_COUNT = 12 }};")
print("static const sparse_case sparse_cases[] = {")
for width in 1, 3:
    print(sparse_case(lambda p: torch.optim.SGD(p, 0.1), width, "{ .kind = DML_SGD, .lr = 0.1f }"))
    print(sparse_case(lambda p: torch.optim.Adagrad(p, 0.1), width, "{ .kind = DML_ADAGRAD, .lr = 0.1f }"))
    print(sparse_case(lambda p: torch.optim.SparseAdam(p, 0.05), width, "{ .kind = DML_ADAM, .lr = 0.05f }"))
print("};")
print("/* clang-format on */")
