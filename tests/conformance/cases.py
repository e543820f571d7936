"""What the make_*_cases.py have in common: cases of a layer or a loss as rows of C, with what PyTorch computes.

A case runs in float64 on numbers that are floats, so what is left of a difference is ours. A layer's loss is the mean
squared error against a target, whose gradient goes through the layer; what returns one number is a loss itself."""

import torch
import torch.nn.functional as F

torch.set_num_threads(1)


def floats(*shape, scale=1.0, offset=0.0):
    return (torch.randn(shape) * scale + offset).float().double()


def constant(*args, **kwargs):
    """An input that takes no gradient: a mask, a target, indices."""
    return torch.tensor(*args, **kwargs)


def row(values):
    return "{ " + ", ".join(f"{v:.9g}" for v in values.flatten().tolist()) + " }"


def numbers(type, values):
    return f"(const {type}[]){row(values)}"


def tensor(value, batched):
    kind = "i32" if not value.is_floating_point() else "input" if not value.requires_grad else "f32"
    kind = kind if batched else "parameter"
    shape = value.shape[1:] if batched else value.shape
    fields = [f'.kind = "{kind}"', f".dims = {len(shape)}"]
    if len(shape):
        fields.append(".shape = { " + ", ".join(map(str, shape)) + " }")
    fields.append(f".value = {numbers('float', value.detach())}")
    if value.grad is not None:
        fields.append(f".gradient = {numbers('float', value.grad)}")
    return "{ " + ",\n      ".join(fields) + " }"


def text(name, inputs, parameters, f, options):
    inputs = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
    for i, x in enumerate(inputs):
        if x.dtype == torch.float64:
            x.requires_grad_()
        elif x.dtype == torch.float32:
            inputs[i] = x.double()
    for p in parameters:
        p.requires_grad_()
    y = f(*inputs, *parameters)
    scalar = y.dim() == 0
    target = floats(*y.shape)
    loss = y if scalar else F.mse_loss(y, target)
    loss.backward()
    fields = [f'.name = "{name}"', f".batch = {inputs[0].shape[0]}"]
    if options:
        fields.append(".number = { " + ", ".join(f"{n:g}" for n in options) + " }")
    all = [(x, True) for x in inputs] + [(p, False) for p in parameters]
    fields.append(f".tensors = {len(all)}")
    fields.append(".tensor = { " + ",\n    ".join(tensor(*a) for a in all) + " }")
    if not scalar:
        fields += [f".outputs = {y[0].numel()}", f".y = {numbers('float', y.detach())}",
                   f".target = {numbers('float', target)}"]
    fields.append(f".loss = {loss.item():.9g}")
    return "{ " + ",\n  ".join(fields) + " },"


def write(name, cases):
    """Prints NAME_cases.h. A case: name, input or inputs (N, ...), parameters, what PyTorch computes of all of them, the
    numbers that the test's builder takes. An input takes a gradient if it is float64: floats() are, and constant()s
    aren't."""
    print(f"/* {name}_cases.h: written by make_{name}_cases.py with PyTorch {torch.__version__.split('+')[0]}. */")
    print("/* clang-format off */")
    print(f"static const conformance_case {name}_cases[] = {{")
    for case in cases:
        print(text(*case))
    print("};")
    print("/* clang-format on */")
