"""The networks of bench/models.h in PyTorch. Parameters are declared in the order in which ours are made."""

from collections import namedtuple

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """ResNet's, with option A: the shortcut takes every second pixel and pads channels with zeros."""

    def __init__(self, channels, filters, stride):
        super().__init__()
        self.a, self.norm_a = nn.Conv2d(channels, filters, 3, stride, 1, bias=False), nn.BatchNorm2d(filters)
        self.b, self.norm_b = nn.Conv2d(filters, filters, 3, 1, 1, bias=False), nn.BatchNorm2d(filters)
        self.stride, self.pad = stride, (filters - channels) // 2

    def forward(self, x):
        y = F.relu(self.norm_a(self.a(x)), inplace=True)
        y = self.norm_b(self.b(y))
        if self.pad or self.stride > 1:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.pad, self.pad))
        return F.relu(y + x, inplace=True)


def resnet20():
    layers = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)]
    channels = 16
    for stage in range(3):
        for block in range(3):
            filters = 16 << stage
            layers.append(Block(channels, filters, 2 if stage and not block else 1))
            channels = filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class CharLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(65, 128)
        self.lstm = nn.LSTM(128, 128, 2, batch_first=True)
        self.dense = nn.Linear(128, 65)

    def forward(self, x):
        return self.dense(self.lstm(self.embedding(x))[0])


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_a = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm_b = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = (p.view(n, t, self.heads, -1).transpose(1, 2) for p in self.qkv(self.norm_a(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, t, c))
        return x + self.down(F.gelu(self.up(self.norm_b(x)), approximate="tanh"))

    def decode(self, x, kept, place):
        """Tokens behind `place` others, whose keys and values are kept: (2, texts, heads, tokens, width)."""
        n, t, c = x.shape
        q, k, v = (p.view(n, t, self.heads, -1).transpose(1, 2) for p in self.qkv(self.norm_a(x)).split(c, dim=2))
        kept[0, :, :, place:place + t], kept[1, :, :, place:place + t] = k, v
        seen = kept[:, :, :, :place + t]
        y = F.scaled_dot_product_attention(q, seen[0], seen[1], is_causal=t > 1 and place == 0)
        x = x + self.out(y.transpose(1, 2).reshape(n, t, c))
        return x + self.down(F.gelu(self.up(self.norm_b(x)), approximate="tanh"))


class Decoder(nn.Module):
    def __init__(self, vocabulary, width, layers, heads, steps):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(steps, width)
        for table in self.wte, self.wpe:
            nn.init.normal_(table.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        x = self.wte(x) + self.wpe.weight
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.norm(x), self.wte.weight)

    def decode(self, x, kept, place):
        """The scores behind the last token; the tokens are one, or the first."""
        x = self.wte(x) + self.wpe.weight[place:place + x.shape[1]]
        for layer, of_layer in zip(self.layers, kept):
            x = layer.decode(x, of_layer, place)
        return F.linear(self.norm(x[:, -1]), self.wte.weight)

    def keep(self, texts, tokens):
        first = self.layers[0]
        width = first.out.weight.shape[0] // first.heads
        return [torch.zeros(2, texts, first.heads, tokens, width) for _ in self.layers]


def lenet5():
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(inplace=True), nn.Linear(120, 84), nn.ReLU(inplace=True), nn.Linear(84, 10))


def keras_cnn():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(inplace=True), nn.Conv2d(32, 64, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(inplace=True), nn.Linear(128, 10))


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(inplace=True), nn.Linear(128, 10))


def mlp_wide():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 1024), nn.ReLU(inplace=True), nn.Linear(1024, 1024), nn.ReLU(inplace=True),
        nn.Linear(1024, 10))


# channels 0: sequences of `size` tokens; flattened: the channels, height and width that the first dense layer reads
Size = namedtuple("Size", "make size channels classes batch flattened")
SIZES = {
    "mlp": Size(mlp, 28, 1, 10, 64, None),
    "mlp_wide": Size(mlp_wide, 28, 1, 10, 128, None),
    "lenet5": Size(lenet5, 28, 1, 10, 64, (16, 5, 5)),
    "keras_cnn": Size(keras_cnn, 28, 1, 10, 64, (64, 12, 12)),
    "resnet20": Size(resnet20, 32, 3, 10, 128, None),
    "char_lstm": Size(CharLSTM, 50, 0, 65, 50, None),
    "gpt": Size(lambda: Decoder(*DECODERS["gpt"], 64), 64, 0, 65, 12, None),
    "gpt2": Size(lambda: Decoder(*DECODERS["gpt2"], 64), 64, 0, 50257, 4, None),
}


DECODERS = {"gpt": (65, 128, 4, 4), "gpt2": (50257, 768, 12, 12)}


def build(name):
    return SIZES[name].make()


def batch(name, count):
    s = SIZES[name]
    if not s.channels:
        return torch.randint(s.classes, (count, s.size)), torch.randint(s.classes, (count, s.size))
    return torch.randn(count, s.channels, s.size, s.size), torch.arange(count) % s.classes


def loss(logits, target):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1))


def optimizer(name, model, momentum, lr=None):
    if SIZES[name].channels:
        return torch.optim.SGD(model.parameters(), lr=lr or 0.01, momentum=momentum, fused=True)
    return torch.optim.AdamW(model.parameters(), lr=lr or 1e-3, weight_decay=0.01, fused=True)
