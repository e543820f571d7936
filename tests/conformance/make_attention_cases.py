"""Writes attention_cases.h, what PyTorch computes: python3 make_attention_cases.py >attention_cases.h."""

import math

import torch
import torch.nn.functional as F

from cases import constant, floats, write

torch.manual_seed(11)


def split(x, heads):
    """(N, T, heads D) -> (N, heads, T, D)"""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def mask(queries, keys, lengths, causal, window):
    t, s = torch.arange(queries)[:, None], torch.arange(keys)[None]
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if causal:
        seen = seen & (s <= t)
    if window:
        seen = seen & ((s - t).abs() < window)
    seen = seen[None, None]
    if lengths is not None:
        seen = seen & (s[None, None] < lengths.view(-1, 1, 1, 1))
    return seen


def sdpa(heads, kv_heads=0, causal=False, window=0, scale=0.0):
    def f(q, k, v, lengths=None):
        q, k, v = split(q, heads), split(k, kv_heads or heads), split(v, kv_heads or heads)
        if causal and not window and lengths is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale or None, enable_gqa=bool(kv_heads))
        else:
            seen = mask(q.shape[2], k.shape[2], lengths, causal, window)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale or None, enable_gqa=bool(kv_heads))
            y = torch.where(seen.any(-1, keepdim=True), y, 0.0)
        return y.transpose(1, 2).flatten(2)

    return f


def case(q, k, f, *numbers, lengths=None):
    v = floats(*k)
    inputs = [floats(*q), floats(*k), v] + ([constant(lengths)] if lengths else [])
    return ("attention", inputs, [], f, list(numbers))


def module(channels, heads, bias=True, causal=False, cross=False):
    def f(x, *rest):
        memory, p = (rest[0], rest[1:]) if cross else (x, rest)
        lengths = None
        if p[0].dim() == 1 and not p[0].is_floating_point():
            lengths, p = p[0], p[1:]
        w, b, wo, bo = p if bias else (p[0], None, p[1], None)
        seen = mask(x.shape[1], memory.shape[1], lengths, causal, 0)
        padding = None if lengths is None else ~seen[:, 0, -1]
        future = ~mask(x.shape[1], memory.shape[1], None, True, 0)[0, 0] if causal else None
        x, memory = x.transpose(0, 1), memory.transpose(0, 1)
        y, _ = F.multi_head_attention_forward(x, memory, memory, channels, heads, w, b, None, None, False, 0.0, wo, bo,
                                              key_padding_mask=padding, attn_mask=future, need_weights=False)
        return y.transpose(0, 1)

    return f


def weights(channels, bias=True):
    w, wo = floats(3 * channels, channels, scale=0.5), floats(channels, channels, scale=0.5)
    return [w, floats(3 * channels), wo, floats(channels)] if bias else [w, wo]


def rotary(heads, base=10000.0, offset=0, rotated=0, interleaved=False):
    """Llama's rotate_half, and RoFormer's neighbours."""

    def f(x):
        x = split(x, heads)
        width = x.shape[-1]
        each = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        angle = (torch.arange(x.shape[2], dtype=torch.float64) + offset)[:, None] * each
        if interleaved:
            angle = angle.repeat_interleave(2, -1)
            turned = torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)
        else:
            angle = torch.cat([angle, angle], -1)
            turned = torch.cat([-x[..., width // 2:], x[..., :width // 2]], -1)
        y = x * angle.cos() + turned * angle.sin()
        n = rotated or heads
        return torch.cat([y[:, :n], x[:, n:]], 1).transpose(1, 2).flatten(2)

    return f


# The numbers: heads, kv_heads, causal, window, scale; of a module: heads, causal, bias, cross; of rotary: as above.
CASES = [
    case((2, 3, 4), (2, 5, 4), sdpa(2), 2),
    case((1, 5, 6), (1, 5, 6), sdpa(1, causal=True), 1, 0, 1),
    case((2, 4, 6), (2, 3, 2), sdpa(3, 1, causal=True, scale=0.7), 3, 1, 1, 0, 0.7),
    case((1, 7, 3), (1, 7, 3), sdpa(3, window=2), 3, 0, 0, 2),
    case((3, 3, 4), (3, 4, 4), sdpa(2, causal=True), 2, 0, 1, lengths=[4, 0, 2]),
    case((2, 6, 4), (2, 4, 2), sdpa(4, 2, causal=True, window=3), 4, 2, 1, 3, lengths=[3, 1]),
    ("module", floats(2, 4, 4), weights(4), module(4, 2), [2, 0, 1, 0]),
    ("module", floats(1, 5, 6), weights(6), module(6, 3, causal=True), [3, 1, 1, 0]),
    ("module", [floats(2, 3, 4), floats(2, 5, 4)], weights(4), module(4, 2, cross=True), [2, 0, 1, 1]),
    ("module", [floats(2, 4, 4), constant([3, 2])], weights(4, False), module(4, 1, bias=False, causal=True), [1, 1, 0, 0]),
    ("rotary", floats(2, 3, 8), [], rotary(2), [2]),
    ("rotary", floats(1, 4, 12), [], rotary(2, 100.0, 500, 1, False), [2, 100, 500, 1, 0]),
    ("rotary", floats(1, 3, 8), [], rotary(1, 10000.0, 7, 0, True), [1, 0, 7, 0, 1]),
]

write("attention", CASES)
