"""Writes recurrent_cases.h, what PyTorch computes: python3 make_recurrent_cases.py >recurrent_cases.h.

A case's numbers: layers, directions, whether it has biases, lengths, h0, c0, only the last state, all last states."""

import torch
from torch import _VF
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from cases import constant, floats, write

torch.manual_seed(11)

FUNCTIONS = {"rnn": _VF.rnn_tanh, "rnn_relu": _VF.rnn_relu, "lstm": _VF.lstm, "gru": _VF.gru}
GATES = {"rnn": 1, "rnn_relu": 1, "lstm": 4, "gru": 3}


def case(cell, batch, steps, inputs, hidden, layers=1, directions=1, bias=True, lengths=None, h0=False, c0=False,
         last=False, states=False):
    gates, parameters, given = GATES[cell] * hidden, [], [floats(batch, steps, inputs)]
    for layer in range(layers):
        for _ in range(directions):
            parameters += [floats(gates, directions * hidden if layer else inputs, scale=0.5),
                           floats(gates, hidden, scale=0.5)]
            if bias:
                parameters += [floats(gates, scale=0.5), floats(gates, scale=0.5)]
    if lengths:
        given.append(constant(lengths))
    for wanted in (h0, c0):
        if wanted:
            given.append(floats(batch, layers * directions, hidden))

    def f(x, *rest):
        rest = list(rest)
        length = rest.pop(0) if lengths else torch.full((batch,), steps)
        h = rest.pop(0).transpose(0, 1) if h0 else torch.zeros(layers * directions, batch, hidden).double()
        c = rest.pop(0).transpose(0, 1) if c0 else torch.zeros(layers * directions, batch, hidden).double()
        packed = pack_padded_sequence(x, length, batch_first=True, enforce_sorted=False)
        order = packed.sorted_indices
        h, c = h[:, order], c[:, order]
        y, *n = FUNCTIONS[cell](packed.data, packed.batch_sizes, (h, c) if cell == "lstm" else h, rest, bias, layers,
                                0.0, False, directions == 2)
        y, _ = pad_packed_sequence(packed._replace(data=y), batch_first=True, total_length=steps)
        n = [state[:, packed.unsorted_indices].transpose(0, 1) for state in n]
        if last:
            y = n[0][:, -directions:].reshape(batch, 1, directions * hidden)
        if states:
            y = torch.cat([y.reshape(batch, -1, hidden), *n], 1)
        return y

    numbers = [layers, directions, bias, bool(lengths), h0, c0, last, states]
    return cell, given, parameters, f, numbers


write("recurrent", [
    case("rnn", 2, 3, 2, 3),
    case("rnn", 1, 1, 1, 1, bias=False),
    case("rnn_relu", 2, 3, 2, 3, directions=2, lengths=[1, 3], h0=True),
    case("lstm", 2, 3, 2, 3),
    case("lstm", 1, 1, 1, 2, h0=True, c0=True, states=True),
    case("lstm", 3, 4, 2, 2, lengths=[2, 4, 1], directions=2, states=True),
    case("lstm", 2, 3, 1, 2, layers=2, h0=True, c0=True, lengths=[3, 1], states=True),
    case("lstm", 2, 3, 2, 2, layers=2, directions=2, bias=False, lengths=[2, 3], last=True),
    case("lstm", 1, 2, 1, 9, last=True),
    case("gru", 2, 3, 2, 3),
    case("gru", 1, 1, 2, 2, h0=True, last=True),
    case("gru", 3, 3, 1, 2, directions=2, lengths=[1, 3, 2], h0=True, states=True),
    case("gru", 2, 3, 2, 2, layers=2, last=True, lengths=[2, 1]),
])
