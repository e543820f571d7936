/* models.h: the networks of bench/train, each built by what bench/peers/torch_models.py builds in PyTorch. */
#ifndef DML_BENCH_MODELS_H
#define DML_BENCH_MODELS_H

#include "../dml.h"

#include <stdlib.h>
#include <string.h>

/* A network under construction, and what a training step costs for a sample: each weight's multiply-add is
   done once forward, once for the weights' gradient and once for the input's, which the first layer doesn't
   need when it reads images. */
typedef struct network {
    dml_node *top;
    double operations;
    bool reads_input; /* the next layer */
} network;

static void count(network *n, double multiply_adds)
{
    n->operations += 2 * multiply_adds * (n->reads_input ? 2 : 3);
    n->reads_input = false;
}

static void convolution(network *n, int filters, int kernel, int stride, int padding, bool no_bias)
{
    const int channels = dml_node_shape(n->top).dims[2];
    n->top = dml_conv2d(n->top, &(dml_conv2d_options){ .filters = filters,
                                                       .kernel = { kernel, kernel },
                                                       .stride = { stride, stride },
                                                       .padding = { padding, padding },
                                                       .no_bias = no_bias });
    const dml_shape out = dml_node_shape(n->top);
    count(n, (double)out.dims[0] * out.dims[1] * filters * kernel * kernel * channels);
}

static void dense(network *n, int units)
{
    const dml_shape in = dml_node_shape(n->top);
    count(n, (double)dml_shape_count(&in) * units);
    n->top = dml_dense(n->top, units);
}

/* 784-128-10 */
static void mlp(network *n)
{
    n->top = dml_flatten(n->top);
    dense(n, 128), n->top = dml_relu(n->top);
    dense(n, 10);
}

/* 784-1024-1024-10 */
static void mlp_wide(network *n)
{
    n->top = dml_flatten(n->top);
    dense(n, 1024), n->top = dml_relu(n->top);
    dense(n, 1024), n->top = dml_relu(n->top);
    dense(n, 10);
}

static void lenet5(network *n)
{
    convolution(n, 6, 5, 1, 2, false), n->top = dml_max_pool2d(dml_relu(n->top), NULL);
    convolution(n, 16, 5, 1, 0, false), n->top = dml_max_pool2d(dml_relu(n->top), NULL);
    n->top = dml_flatten(n->top);
    dense(n, 120), n->top = dml_relu(n->top);
    dense(n, 84), n->top = dml_relu(n->top);
    dense(n, 10);
}

/* Keras' examples/mnist_cnn.py, without its dropouts. */
static void keras_cnn(network *n)
{
    convolution(n, 32, 3, 1, 0, false), n->top = dml_relu(n->top);
    convolution(n, 64, 3, 1, 0, false), n->top = dml_max_pool2d(dml_relu(n->top), NULL);
    n->top = dml_flatten(n->top);
    dense(n, 128), n->top = dml_relu(n->top);
    dense(n, 10);
}

/* He, Zhang, Ren, Sun, "Deep residual learning for image recognition", section 4.2, with option A. */
static void resnet20(network *n)
{
    convolution(n, 16, 3, 1, 1, true), n->top = dml_relu(dml_batch_norm(n->top, NULL));
    for (int stage = 0; stage < 3; stage++)
        for (int block = 0; block < 3; block++) {
            const int filters = 16 << stage, stride = stage > 0 && block == 0 ? 2 : 1;
            dml_node *shortcut = dml_padded_shortcut2d(n->top, stride, filters);
            convolution(n, filters, 3, stride, 1, true), n->top = dml_relu(dml_batch_norm(n->top, NULL));
            convolution(n, filters, 3, 1, 1, true), n->top = dml_batch_norm(n->top, NULL);
            n->top = dml_relu(dml_add(n->top, shortcut));
        }
    n->top = dml_global_avg_pool2d(n->top);
    dense(n, 10);
}

/* Two layers of 128 over characters. */
static void char_lstm(network *n)
{
    enum { HIDDEN = 128, CHARACTERS = 65 };
    const double steps = dml_node_shape(n->top).dims[0];
    n->top = dml_embedding(n->top, CHARACTERS, HIDDEN);
    n->top = dml_lstm(n->top, HIDDEN, &(dml_recurrent_options){ .layers = 2 });
    count(n, 2 * steps * (HIDDEN + HIDDEN) * 4 * HIDDEN);
    dense(n, CHARACTERS);
}

/* A decoder: Radford et al., "Language models are unsupervised multitask learners", 2019, section 2.3.
   Attention's own multiply-adds are those of the half that it sees. */
static void decoder(network *n, int vocabulary, int width, int layers, int heads)
{
    dml_graph *graph = dml_node_graph(n->top);
    const int steps = dml_node_shape(n->top).dims[0];
    const dml_initializer normal = { DML_INIT_NORMAL, 0, 0.02f };
    dml_node *table = dml_parameter(graph, "wte", normal, vocabulary, width);
    dml_node *positions = dml_parameter(graph, "wpe", normal, steps, width);
    n->top = dml_add(dml_embedding_with(n->top, table), positions);
    for (int layer = 0; layer < layers; layer++) {
        dml_node *rest = n->top;
        n->top = dml_layer_norm(n->top, NULL);
        n->top =
            dml_multi_head_attention(n->top, heads, &(dml_multi_head_attention_options){ .causal = true });
        count(n, 4.0 * steps * width * width + (double)steps * (steps + 1) * width);
        rest = n->top = dml_add(n->top, rest);
        n->top = dml_layer_norm(n->top, NULL);
        dense(n, 4 * width), n->top = dml_gelu_tanh(n->top);
        dense(n, width), n->top = dml_add(n->top, rest);
    }
    n->top = dml_dense_with(dml_layer_norm(n->top, NULL), table, NULL);
    count(n, (double)steps * width * vocabulary);
}

static void gpt(network *n)
{
    decoder(n, 65, 128, 4, 4);
}

static void gpt2(network *n)
{
    decoder(n, 50257, 768, 12, 12);
}

typedef struct model {
    const char *name;
    void (*build)(network *n);
    int batch, size, channels; /* images (size, size, channels); channels 0: size tokens, each with a label */
    int classes;
    bool quick; /* among the rows of --quick */
} model;

static const model models[] = {
    { "mlp", mlp, 64, 28, 1, 10, true },
    { "mlp", mlp, 1, 28, 1, 10, false },
    { "mlp_wide", mlp_wide, 128, 28, 1, 10, false },
    { "lenet5", lenet5, 64, 28, 1, 10, true },
    { "keras_cnn", keras_cnn, 64, 28, 1, 10, false },
    { "resnet20", resnet20, 128, 32, 3, 10, false },
    { "char_lstm", char_lstm, 50, 50, 0, 65, false },
    { "gpt", gpt, 12, 64, 0, 65, false },
    { "gpt2", gpt2, 4, 64, 0, 50257, false },
};
enum { MODELS = sizeof models / sizeof *models };

/* Numbers of one sample's input. */
BENCH__UNUSED static size_t input_size(const model *m)
{
    return m->channels ? (size_t)m->size * (size_t)m->size * (size_t)m->channels : (size_t)m->size;
}

BENCH__UNUSED static size_t labels_size(const model *m)
{
    return m->channels ? 1 : (size_t)m->size;
}

/* The loss of the model in `graph`, and what a step costs for a sample. */
BENCH__UNUSED static dml_node *build_model(const model *m, dml_graph *graph, double *operations)
{
    dml_node *input = m->channels ? dml_input(graph, "image", DML_F32, m->size, m->size, m->channels)
                                  : dml_input(graph, "token", DML_I32, m->size);
    network n = { input, 0, m->channels > 0 };
    m->build(&n);
    *operations = n.operations;
    return dml_softmax_cross_entropy(n.top, m->channels ? dml_input(graph, "label", DML_I32)
                                                        : dml_input(graph, "label", DML_I32, m->size));
}

/* Images by SGD, as they are usually trained; sequences by AdamW. lr 0: the usual. */
BENCH__UNUSED static dml_optimizer optimizer_of(const model *m, double momentum, double lr)
{
    return m->channels ? dml_sgd(lr > 0 ? (float)lr : 0.01f, (float)momentum)
                       : dml_adamw(lr > 0 ? (float)lr : 1e-3f, 0.01f);
}

#endif
