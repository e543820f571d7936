"""torch: PyTorch as a peer of bench/conv, bench/elementwise, bench/optimizer and bench/train."""

import torch
import torch.nn.functional as F

import peer

torch.set_num_threads(peer.THREADS)
torch.set_num_interop_threads(1)


def conv(words):
    what = words[0]
    n, h, w, c, f, kh, kw, stride, pad, dilation, groups = map(int, words[1:])
    last = torch.channels_last
    x = torch.rand(n, c, h, w).contiguous(memory_format=last)
    k = torch.rand(f, c // groups, kh, kw).contiguous(memory_format=last)
    y = F.conv2d(x, k, None, stride, pad, dilation, groups)
    if what == "forward":

        def run():
            with torch.no_grad():
                F.conv2d(x, k, None, stride, pad, dilation, groups)
    else:
        mask = [what == "input", what == "weights", False]
        s, p, d = [stride] * 2, [pad] * 2, [dilation] * 2

        def run():
            with torch.no_grad():
                torch.ops.aten.convolution_backward(y, x, k, None, s, p, d, False, [0, 0], groups, mask)

    return run, ""


peer.serve(torch.__version__, {"conv": conv})
