"""Writes optimizer_cases.h, what PyTorch computes: python3 make_optimizer_cases.py >optimizer_cases.h

Optimizers run in float64 from numbers that are floats, so what is left of a difference is ours."""

import sys

import torch

torch.set_num_threads(1)
torch.manual_seed(3)
STEPS = 5
SHAPES = (2, 3), (4,)  # of two parameters, one after the other
N = 10


def floats(tensor):
    return tensor.float().double()


START = floats(torch.randn(N))
usual = floats(torch.randn(STEPS, N))
awkward = floats(torch.randn(STEPS, N))
awkward[:, 0] = 0
awkward[:, 1] *= 1e-9
awkward[:, 2] *= 1e-14
awkward[:, 3] *= 1e4
awkward[2:, 4] = 0
awkward[:3, 5] = 0
GRADIENTS = [floats(usual), floats(awkward)]


def number(value):
    return f"{value:.9g}"


def row(values):
    return "{ " + ", ".join(number(v) for v in values) + " }"


def designated(fields):
    return ", ".join(f".{name} = {number(v) + ('f' if '.' in number(v) or 'e' in number(v) else '') if not isinstance(v, str) else v}"
                     for name, v in fields.items())


def initial():
    parts = START.split([6, 4])
    return [torch.nn.Parameter(p.reshape(s).clone()) for p, s in zip(parts, SHAPES)]


def optimize(make, gradients, clip_norm, clip_value):
    parameters = initial()
    optimizer = make(parameters)
    after, norms = [], []
    for g in gradients:
        for p, part, shape in zip(parameters, g.split([6, 4]), SHAPES):
            p.grad = part.reshape(shape).clone()
        if clip_value:
            torch.nn.utils.clip_grad_value_(parameters, clip_value)
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, clip_norm or 1e30).item())
        optimizer.step()
        after.append(torch.cat([p.detach().flatten() for p in parameters]).tolist())
    return after, norms


optim = torch.optim
plain = dict(foreach=False)
two = lambda p, **second: [dict(params=[p[0]]), dict(params=[p[1]], **second)]

# what it is called, ours, PyTorch's, and options of the trainer and of the second parameter
CASES = [
    ("sgd", dict(kind="DML_SGD", lr=0.1), lambda p: optim.SGD(p, lr=0.1, **plain), {}),
    ("sgd, decay", dict(kind="DML_SGD", lr=0.1, weight_decay=0.05),
     lambda p: optim.SGD(p, lr=0.1, weight_decay=0.05, **plain), {}),
    ("momentum", dict(kind="DML_SGD", lr=0.05, momentum=0.9),
     lambda p: optim.SGD(p, lr=0.05, momentum=0.9, **plain), {}),
    ("nesterov, decay", dict(kind="DML_SGD", lr=0.05, momentum=0.8, weight_decay=0.1, nesterov="true"),
     lambda p: optim.SGD(p, lr=0.05, momentum=0.8, weight_decay=0.1, nesterov=True, **plain), {}),
    ("adam, defaults", dict(kind="DML_ADAM"), lambda p: optim.Adam(p, **plain), {}),
    ("adam", dict(kind="DML_ADAM", lr=0.1, beta1=0.5, beta2=0.9, epsilon=0.1, weight_decay=0.2),
     lambda p: optim.Adam(p, lr=0.1, betas=(0.5, 0.9), eps=0.1, weight_decay=0.2, **plain), {}),
    ("adamw, defaults", dict(kind="DML_ADAMW", weight_decay=0.01), lambda p: optim.AdamW(p, **plain), {}),
    ("adamw", dict(kind="DML_ADAMW", lr=0.1, beta1=0.8, beta2=0.95, epsilon=0.001, weight_decay=0.3),
     lambda p: optim.AdamW(p, lr=0.1, betas=(0.8, 0.95), eps=0.001, weight_decay=0.3, **plain), {}),
    ("rmsprop, defaults", dict(kind="DML_RMSPROP"), lambda p: optim.RMSprop(p, **plain), {}),
    ("rmsprop", dict(kind="DML_RMSPROP", lr=0.02, alpha=0.9, epsilon=0.01, weight_decay=0.1, momentum=0.9),
     lambda p: optim.RMSprop(p, lr=0.02, alpha=0.9, eps=0.01, weight_decay=0.1, momentum=0.9, **plain), {}),
    ("adagrad, defaults", dict(kind="DML_ADAGRAD"), lambda p: optim.Adagrad(p, **plain), {}),
    ("adagrad", dict(kind="DML_ADAGRAD", lr=0.1, epsilon=0.01, weight_decay=0.1),
     lambda p: optim.Adagrad(p, lr=0.1, eps=0.01, weight_decay=0.1, **plain), {}),
    ("adamw, groups", dict(kind="DML_ADAMW", lr=0.1, weight_decay=0.5),
     lambda p: optim.AdamW(two(p, lr=0.05, weight_decay=0), lr=0.1, weight_decay=0.5, **plain),
     dict(lr_scale=0.5, no_decay="true")),
    ("momentum, groups", dict(kind="DML_SGD", lr=0.1, momentum=0.9, weight_decay=0.5),
     lambda p: optim.SGD(two(p, weight_decay=0), lr=0.1, momentum=0.9, weight_decay=0.5, **plain),
     dict(lr_scale=1, no_decay="true")),
    ("adam, clipped norm", dict(kind="DML_ADAM", lr=0.1, epsilon=0.1),
     lambda p: optim.Adam(p, lr=0.1, eps=0.1, **plain), dict(clip_norm=2.5)),
    ("sgd, clipped values", dict(kind="DML_SGD", lr=0.1), lambda p: optim.SGD(p, lr=0.1, **plain),
     dict(clip_value=0.5)),
    ("sgd, clipped twice", dict(kind="DML_SGD", lr=0.1), lambda p: optim.SGD(p, lr=0.1, **plain),
     dict(clip_value=0.5, clip_norm=1)),
]

S = torch.optim.lr_scheduler
SCHEDULE_STEPS = 22
SCHEDULES = [
    ("dml_schedule_constant(0.1f)", lambda o: S.ConstantLR(o, 1), None),
    ("dml_schedule_step(0.1f, 4, 0.5f)", lambda o: S.StepLR(o, 4, 0.5), None),
    ("dml_schedule_exponential(0.1f, 0.9f)", lambda o: S.ExponentialLR(o, 0.9), None),
    ("dml_schedule_cosine(0.1f, 21, 0.01f)", lambda o: S.CosineAnnealingLR(o, 21, 0.01), None),
    ("dml_schedule_polynomial(0.1f, 15, 2)", lambda o: S.PolynomialLR(o, 15, 2), None),
    ("dml_schedule_polynomial(0.1f, 15, 0.5f)", lambda o: S.PolynomialLR(o, 15, 0.5), None),
    ("dml_schedule_linear(0.1f, 15, 0.02f)", lambda o: S.LinearLR(o, 1, 0.2, 15), None),
    ("dml_schedule_one_cycle(0.1f, 22)", lambda o: S.OneCycleLR(o, 0.1, 22, cycle_momentum=False), None),
    ("one_cycle(0.1f, 22, 0.25f, 10, 100)",
     lambda o: S.OneCycleLR(o, 0.1, 22, pct_start=0.25, div_factor=10, final_div_factor=100, cycle_momentum=False), None),
    ("dml_schedule_warm_up(dml_schedule_constant(0.1f), 5, 0.25f)", lambda o: S.LinearLR(o, 0.25, 1, 5), None),
    ("dml_schedule_warm_up(dml_schedule_cosine(0.1f, 17, 0.01f), 5, 0.25f)", lambda o: S.CosineAnnealingLR(o, 17, 0.01), (5, 0.25)),
    ("dml_schedule_warm_up(dml_schedule_step(0.1f, 3, 0.5f), 7, 0.001f)", lambda o: S.StepLR(o, 3, 0.5), (7, 0.001)),
]


def schedule(make, warm_up):
    optimizer = optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    if warm_up:
        first = S.LinearLR(optimizer, warm_up[1], 1, warm_up[0])
        scheduler = S.SequentialLR(optimizer, [first, make(optimizer)], [warm_up[0]])
    else:
        scheduler = make(optimizer)
    rates = []
    for _ in range(SCHEDULE_STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


MEASURES = [[3, 2, 2, 2, 1.5, 1.49, 1.5, 1.6, 1.7, 1.8, 1, float("nan"), 1, 1.2, 0.5, 0.6],
            [0.1, 0.3, 0.3, 0.3, 0.31, 0.2, 0.4, 0.39, 0.38, 0.37, 0.36, 0.5, 0.5, 0.5, 0.5, 0.5]]
PLATEAUS = [(dict(lr=0.1, patience=1, threshold=0.01, factor=0.5), 0),
            (dict(lr=0.1, minimum=0.0005), 0),
            (dict(lr=0.1, patience=2, threshold=0.1, factor=0.2, minimum=0.01, rises="true"), 1)]


def plateau(fields, measures):
    optimizer = optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=fields["lr"])
    scheduler = S.ReduceLROnPlateau(
        optimizer, "max" if "rises" in fields else "min", fields.get("factor", 0.1), fields.get("patience", 0),
        fields.get("threshold", 0), min_lr=fields.get("minimum", 0), eps=0)
    rates = []
    for measure in measures:
        scheduler.step(measure)
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


def main():
    print(f"/* optimizer_cases.h: written by make_optimizer_cases.py with PyTorch {torch.__version__.split('+')[0]}. */")
    print("/* clang-format off */")
    print(f"enum {{ CASE_N = {N}, CASE_STEPS = {STEPS}, SCHEDULE_STEPS = {SCHEDULE_STEPS}, MEASURES = {len(MEASURES[0])} }};")
    print(f"static const float case_start[CASE_N] = {row(START.tolist())};")
    print(f"static const float case_gradients[2][CASE_STEPS][CASE_N] = {{")
    for gradients in GRADIENTS:
        print("{ " + ",\n  ".join(row(g.tolist()) for g in gradients) + " },")
    print("};\n")
    print("static const optimizer_case optimizer_cases[] = {")
    for name, ours, make, extra in CASES:
        for which, gradients in enumerate(GRADIENTS):
            after, norms = optimize(make, gradients, extra.get("clip_norm"), extra.get("clip_value"))
            fields = dict(extra)
            print(f'{{ .name = "{name}", .gradients = {which}, .optimizer = {{ {designated(ours)} }},')
            if fields:
                print(f"  {designated(fields)},")
            print(f"  .norm = {row(norms)},")
            print("  .after = { " + ",\n    ".join(row(w) for w in after) + " } },")
    print("};\n")
    print("/* X(the schedule, its learning rates) */\n#define SCHEDULE_CASES(X) \\")
    lines = []
    for ours, make, warm_up in SCHEDULES:
        rates = ", ".join(number(r) for r in schedule(make, warm_up))
        lines.append(f"X({ours}, {rates})")
    print(" \\\n".join(lines) + "\n")
    print("static const float case_measures[2][MEASURES] = {")
    for measures in MEASURES:
        print(row(measures).replace("nan", "NAN") + ",")
    print("};")
    print("static const plateau_case plateau_cases[] = {")
    for fields, which in PLATEAUS:
        print(f"{{ .measures = {which}, .plateau = {{ {designated(fields)} }}, .lr = {row(plateau(fields, MEASURES[which]))} }},")
    print("};\n/* clang-format on */")


main()
