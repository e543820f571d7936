"""jax: JAX as a peer of bench/train: a step compiled as a whole, its parameters updated in place."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
from jax import lax

import peer


def convolve(x, w, stride, padding):
    pad = [(padding, padding)] * 2
    return lax.conv_general_dilated(x, w, (stride, stride), pad, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def max_pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def normalize(x, scale, shift):
    mean = x.mean((0, 1, 2))
    variance = ((x - mean) ** 2).mean((0, 1, 2))
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + shift


class Maker:
    """Makes the parameters when the model is first run, and hands them out afterwards."""

    def __init__(self, given=None):
        self.made, self.given, self.at = [], given, 0

    def __call__(self, *shape):
        self.at += 1
        if self.given is not None:
            return self.given[self.at - 1]
        fan = max(1, int(jnp.prod(jnp.array(shape[:-1]))))
        value = jax.random.normal(jax.random.PRNGKey(self.at), shape) * (2 / fan) ** 0.5
        if len(shape) == 1:
            value = jnp.zeros(shape)
        self.made.append(value)
        return value


def dense(p, x, units):
    return x @ p(x.shape[-1], units) + p(units)


def conv(p, x, filters, kernel, stride=1, padding=0):
    return convolve(x, p(kernel, kernel, x.shape[-1], filters), stride, padding) + p(filters)


def mlp(p, x):
    x = x.reshape(x.shape[0], -1)
    return dense(p, jax.nn.relu(dense(p, x, 128)), 10)


def mlp_wide(p, x):
    x = x.reshape(x.shape[0], -1)
    x = jax.nn.relu(dense(p, x, 1024))
    return dense(p, jax.nn.relu(dense(p, x, 1024)), 10)


def lenet5(p, x):
    x = max_pool(jax.nn.relu(conv(p, x, 6, 5, 1, 2)))
    x = max_pool(jax.nn.relu(conv(p, x, 16, 5)))
    x = jax.nn.relu(dense(p, x.reshape(x.shape[0], -1), 120))
    return dense(p, jax.nn.relu(dense(p, x, 84)), 10)


def keras_cnn(p, x):
    x = jax.nn.relu(conv(p, x, 32, 3))
    x = max_pool(jax.nn.relu(conv(p, x, 64, 3)))
    return dense(p, jax.nn.relu(dense(p, x.reshape(x.shape[0], -1), 128)), 10)


def resnet20(p, x):
    def block(x, filters, stride):
        y = convolve(x, p(3, 3, x.shape[-1], filters), stride, 1)
        y = jax.nn.relu(normalize(y, 1 + p(filters), p(filters)))
        y = normalize(convolve(y, p(3, 3, filters, filters), 1, 1), 1 + p(filters), p(filters))
        pad = (filters - x.shape[-1]) // 2
        x = jnp.pad(x[:, ::stride, ::stride], ((0, 0), (0, 0), (0, 0), (pad, pad)))
        return jax.nn.relu(x + y)

    x = jax.nn.relu(normalize(convolve(x, p(3, 3, 3, 16), 1, 1), 1 + p(16), p(16)))
    for stage in range(3):
        for i in range(3):
            x = block(x, 16 << stage, 2 if stage and not i else 1)
    return dense(p, x.mean((1, 2)), 10)


MODELS = {"mlp": mlp, "mlp_wide": mlp_wide, "lenet5": lenet5, "keras_cnn": keras_cnn, "resnet20": resnet20}


def train(words):
    name, batch, momentum = words[0], int(words[1]), float(words[2])
    model = MODELS[name]
    size, channels = (32, 3) if name == "resnet20" else (28, 1)
    x = jax.random.normal(jax.random.PRNGKey(0), (batch, size, size, channels))
    target = jnp.arange(batch) % 10
    maker = Maker()
    model(maker, x)
    weights = maker.made
    state = [jnp.zeros_like(w) for w in weights]

    def loss(weights, x, target):
        scores = jax.nn.log_softmax(model(Maker(weights), x))
        return -jnp.take_along_axis(scores, target[:, None], 1).mean()

    def step(weights, state, x, target):
        gradients = jax.grad(loss)(weights, x, target)
        if momentum == 0:
            return [w - 0.01 * g for w, g in zip(weights, gradients)], state
        state = [momentum * v + g for v, g in zip(state, gradients)]
        return [w - 0.01 * v for w, v in zip(weights, state)], state

    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(weights, state, x, target).compile()
    memory = compiled.memory_analysis()
    held = [weights, state]

    def run():
        held[0], held[1] = compiled(held[0], held[1], x, target)
        jax.block_until_ready(held[0])

    # What is passed in and updated in place, and what the step needs beside it.
    used = memory.argument_size_in_bytes + memory.temp_size_in_bytes + memory.output_size_in_bytes
    return run, f"bytes={used - memory.alias_size_in_bytes}"


peer.serve(jax.__version__, {"train": train})
