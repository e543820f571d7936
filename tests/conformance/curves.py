"""Does training follow PyTorch's? python3 curves.py BENCH_TRAIN [MODEL...]

BENCH_TRAIN (build/bench/train --curve) trains each model for 100 steps and leaves its first weights, its batches and its
losses; PyTorch trains the same model from the same weights on the same batches. Ends with 1 if a loss differs by more
than 1e-3 of it."""

import json
import os
import subprocess
import sys
import tempfile

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "bench", "peers"))
import torch_models

# with their learning rates, None: the usual. ResNet-20 at the usual 0.01 is chaotic: PyTorch's curves in f32 and in f64
# part by 7e-3 within 40 steps of batches of 32.
MODELS = {"lenet5": None, "resnet20": 0.001, "char_lstm": None, "gpt": None}
STEPS, ALLOWED = 100, 1e-3


def tensors(path):
    """Those of a safetensors file, in the order in which they lie there."""
    raw = open(path, "rb").read()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + size])
    header.pop("__metadata__", None)
    for entry in sorted(header.values(), key=lambda e: e["data_offsets"][0]):
        begin, end = entry["data_offsets"]
        data = bytearray(raw[8 + size + begin:8 + size + end])
        yield torch.frombuffer(data, dtype=torch.float32).view(entry["shape"])


def load(name, model, path):
    """Our images are (H, W, C), and so are a convolution's weights and what the first dense layer reads."""
    ours = {}
    flattened = torch_models.SIZES[name].flattened
    wanted = [(key, value) for key, value in model.state_dict().items() if "num_batches" not in key]
    for (key, value), w in zip(wanted, tensors(path), strict=True):
        if w.dim() == 4:
            w = w.permute(0, 3, 1, 2)
        elif flattened and w.dim() == 2:
            c, h, width = flattened
            w, flattened = w.view(-1, h, width, c).permute(0, 3, 1, 2).reshape(w.shape), None
        assert w.shape == value.shape, (key, w.shape, value.shape)
        ours[key] = w
    model.load_state_dict(ours, strict=False)


def follow(name, folder):
    s = torch_models.SIZES[name]
    model = torch_models.build(name)
    load(name, model, folder + "/weights.safetensors")
    optimizer = torch_models.optimizer(name, model, 0.9, MODELS[name])
    kind = torch.float32 if s.channels else torch.int32
    shape = (STEPS, s.batch, s.size, s.size, s.channels) if s.channels else (STEPS, s.batch, s.size)
    count = torch.Size(shape).numel()
    inputs = torch.from_file(folder + "/inputs", size=count, dtype=kind).view(shape)
    labels = torch.from_file(folder + "/labels", size=count // inputs[0, 0].numel() * (1 if s.channels else s.size),
                             dtype=torch.int32).view(STEPS, -1).long()
    worst = 0
    for step, ours in enumerate(map(float, open(folder + "/losses"))):
        x = inputs[step].permute(0, 3, 1, 2) if s.channels else inputs[step].long()
        optimizer.zero_grad(set_to_none=True)
        loss = torch_models.loss(model(x), labels[step])
        loss.backward()
        optimizer.step()
        worst = max(worst, abs(ours - loss.item()) / loss.item())
        if step in (0, STEPS - 1):
            print(f"name=curve what={name} step={step} ours={ours:.6f} torch={loss.item():.6f} worst={worst:.2e}", flush=True)
    return worst <= ALLOWED


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    failed = 0
    for name in sys.argv[2:] or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            rate = ["--lr", str(MODELS[name])] if MODELS[name] else []
            subprocess.run([sys.argv[1], "--model", name, "--curve", folder, "--steps", str(STEPS), *rate], check=True)
            failed += not follow(name, folder)
    sys.exit(failed > 0)


main()
