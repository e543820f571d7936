"""Writes loss_cases.h, what PyTorch computes: python3 make_loss_cases.py >loss_cases.h.

What PyTorch's functions divide by sample weights for is said here: by the sum of the weights that count."""

import torch
import torch.nn.functional as F

from cases import constant, floats, write

torch.manual_seed(11)


def weights(*shape):
    return torch.rand(*shape) + 0.25


def probabilities(*shape):
    return torch.softmax(floats(*shape), -1).float().double()


def rows(x):
    return x.movedim(-1, 1) if x.dim() > 2 else x


def entropy(**options):
    return lambda x, t: F.cross_entropy(rows(x), t.long() if not t.is_floating_point() else rows(t.double()), **options)


def weighed(x, t, w, **options):
    """Rows weighed by w, which has as many dimensions as it has."""
    loss = entropy(reduction="none", **options)(x, t)
    w = w.double().reshape(*w.shape, *[1] * (loss.dim() - w.dim())).expand_as(loss)
    share = w
    if "weight" in options:
        share = share * options["weight"][t.long().clamp(min=0)]
    if "ignore_index" in options:
        share = share * (t != options["ignore_index"])
    return (loss * w).sum() / share.sum()


def elements(f, **options):
    def loss(x, t, w=None):
        if w is None:
            return f(x, t, **options)
        each = f(x, t, reduction="none", **options)
        w = w.double().reshape(*w.shape, *[1] * (each.dim() - w.dim())).expand_as(each)
        return (each * w).sum() / w.sum()

    return loss


def kl(x, t, w=None):
    if w is None:
        return F.kl_div(x, t, reduction="batchmean")
    each = F.kl_div(x, t, reduction="none").sum(-1)
    w = w.double().reshape(*w.shape, *[1] * (each.dim() - w.dim())).expand_as(each)
    return (each * w).sum() / w.sum()


def distillation(x, teacher, t=None, w=None, temperature=1.0, alpha=0.5):
    soft = F.kl_div(torch.log_softmax(x / temperature, -1), torch.softmax(teacher.double() / temperature, -1),
                    reduction="none").sum(-1) * temperature**2
    hard = entropy(reduction="none")(x, t) if alpha < 1 else 0
    each = alpha * soft + (1 - alpha) * hard
    w = torch.ones_like(each) if w is None else w.double()
    return (each * w).sum() / w.sum()


def hinge(x, t, squared):
    each = torch.clamp(1 - x * t, min=0)
    return (each**2 if squared else each).mean()


def signs(*shape):
    return torch.where(torch.rand(*shape) < 0.5, -1.0, 1.0)


CLASS_WEIGHTS = torch.tensor([0.5, 1.0, 2.0, 0.25], dtype=torch.float64)

# Numbers: sum, smoothing, ignores, ignored, class weights; or: sum, the loss' own number.
CASES = [
    ("entropy", [floats(5, 4), constant([0, 3, 1, 2, 3])], [], entropy(), []),
    ("entropy", [floats(1, 1), constant([0])], [], entropy(), []),
    ("entropy", [floats(3, 11, scale=100), constant([10, 3, 1])], [], entropy(reduction="sum"), [1]),
    ("entropy", [floats(2, 3, 4), constant([[0, 3, 1], [2, 3, 0]])], [], entropy(), []),
    ("entropy", [floats(2, 3, 4), constant([[0, -100, 1], [2, 3, -100]])], [], entropy(), [0, 0, 1, -100]),
    ("entropy", [floats(4, 4), constant([0, 2, 1, 2])], [], entropy(ignore_index=2), [0, 0, 1, 2]),
    ("entropy", [floats(5, 4), constant([0, 3, 1, 2, 3])], [], entropy(label_smoothing=0.1), [0, 0.1]),
    ("entropy", [floats(5, 4), constant([0, 3, 1, 2, 3])], [], entropy(weight=CLASS_WEIGHTS), [0, 0, 0, 0, 1]),
    ("entropy", [floats(2, 3, 4), constant([[0, -1, 1], [2, 3, -1]])], [],
     entropy(weight=CLASS_WEIGHTS, label_smoothing=0.25, ignore_index=-1), [0, 0.25, 1, -1, 1]),
    ("entropy", [floats(5, 4), constant([0, 3, -9, 2, 3])], [],
     entropy(weight=CLASS_WEIGHTS, label_smoothing=0.25, ignore_index=-9, reduction="sum"), [1, 0.25, 1, -9, 1]),
    ("entropy", [floats(3, 4), probabilities(3, 4)], [], entropy(), []),
    ("entropy", [floats(2, 3, 4), probabilities(2, 3, 4)], [], entropy(weight=CLASS_WEIGHTS, label_smoothing=0.2),
     [0, 0.2, 0, 0, 1]),
    ("entropy", [floats(3, 9), probabilities(3, 9).float()], [], entropy(reduction="sum", label_smoothing=1),
     [1, 1]),
    ("entropy", [floats(4, 3), constant([0, 2, 1, 2]), weights(4)], [], weighed, []),
    ("entropy", [floats(2, 3, 4), constant([[0, -1, 1], [2, 3, -1]]), weights(2, 3)], [],
     lambda x, t, w: weighed(x, t, w, weight=CLASS_WEIGHTS, ignore_index=-1), [0, 0, 1, -1, 1]),
    ("entropy", [floats(2, 3, 4), probabilities(2, 3, 4).float(), weights(2)], [], weighed, []),
    ("mse", [floats(3, 2, 2), floats(3, 2, 2)], [], elements(F.mse_loss), []),
    ("mse", [floats(3, 5), floats(3, 5).float()], [], elements(F.mse_loss, reduction="sum"), [1]),
    ("mse", [floats(3, 2, 2), floats(3, 2, 2), weights(3)], [], elements(F.mse_loss), []),
    ("mse", [floats(3, 2, 2), floats(3, 2, 2), weights(3, 2)], [], elements(F.mse_loss), []),
    ("mae", [floats(3, 5), floats(3, 5)], [], elements(F.l1_loss), []),
    ("huber", [floats(3, 5, scale=2), floats(3, 5)], [], elements(F.huber_loss), []),
    ("huber", [floats(3, 5), floats(3, 5), weights(3, 5)], [], elements(F.huber_loss, delta=0.3), [0, 0.3]),
    ("smooth_l1", [floats(3, 5, scale=2), floats(3, 5)], [], elements(F.smooth_l1_loss), []),
    ("smooth_l1", [floats(3, 5), floats(3, 5)], [], elements(F.smooth_l1_loss, beta=0.3), [0, 0.3]),
    ("binary", [floats(3, 5, scale=3), probabilities(3, 5)], [], elements(F.binary_cross_entropy_with_logits), []),
    ("binary", [floats(4, 2, scale=60), (signs(4, 2) + 1) / 2], [],
     elements(F.binary_cross_entropy_with_logits, pos_weight=torch.tensor(2.5)), [0, 2.5]),
    ("binary", [floats(4), (signs(4) + 1) / 2, weights(4)], [], elements(F.binary_cross_entropy_with_logits), []),
    ("kl", [torch.log(probabilities(3, 4)).float().double(), probabilities(3, 4)], [], kl, []),
    ("kl", [torch.log(probabilities(2, 4)).float().double(), constant([[0, 0.5, 0.5, 0], [1.0, 0, 0, 0]])], [], kl, []),
    ("kl", [torch.log(probabilities(2, 3, 4)).float().double(), probabilities(2, 3, 4), weights(2, 3)], [], kl, []),
    ("distillation", [floats(5, 4), floats(5, 4).float(), constant([0, 3, 1, 2, 3])], [], distillation, []),
    ("distillation", [floats(3, 2, 4, scale=3), floats(3, 2, 4, scale=3).float(), constant([[0, 3], [1, 2], [3, 0]]),
                      weights(3, 2)], [],
     lambda x, teacher, t, w: distillation(x, teacher, t, w, temperature=4, alpha=0.9), [0, 4, 0.9]),
    ("distillation", [floats(2, 4), floats(2, 4, scale=60).float()], [],
     lambda x, teacher: distillation(x, teacher, temperature=0.5, alpha=1), [0, 0.5, 1]),
    ("hinge", [floats(5, 2), signs(5, 2)], [], lambda x, t: hinge(x, t, False), []),
    ("hinge", [floats(5), signs(5)], [], lambda x, t: hinge(x, t, True), [0, 1]),
]

write("loss", CASES)
