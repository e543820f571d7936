/* kann: kann on OpenBLAS as a peer of bench/train, with SGD in place of its RMSprop, so that the steps are
   alike. usage: kann THREADS */
#define _GNU_SOURCE
#include "peer.h"

#include "kann.h"

static kann_t *net;
static float *images, *labels, *velocity; /* (batch, channels, size, size), (batch, 10), (parameters) */
static float momentum;

static kad_node_t *image_input(int size)
{
    kad_node_t *t = kad_feed(4, 1, 1, size, size);
    t->ext_flag |= KANN_F_IN;
    return t;
}

static kad_node_t *pool(kad_node_t *t)
{
    return kad_max2d(t, 2, 2, 2, 2, 0, 0);
}

static const char *prepare(const char *words)
{
    int batch, threads = getenv("BENCH_PEER_THREADS") ? atoi(getenv("BENCH_PEER_THREADS")) : 1, i;
    char name[32];
    kad_node_t *t;
    if (sscanf(words, "train %31s %d %f", name, &batch, &momentum) != 3) return "such case";
    if (strcmp(name, "mlp") == 0) {
        t = kad_relu(kann_layer_dense(kann_layer_input(784), 128));
    } else if (strcmp(name, "mlp_wide") == 0) {
        t = kad_relu(kann_layer_dense(kann_layer_input(784), 1024));
        t = kad_relu(kann_layer_dense(t, 1024));
    } else if (strcmp(name, "lenet5") == 0) {
        t = pool(kad_relu(kann_layer_conv2d(image_input(28), 6, 5, 5, 1, 1, 2, 2)));
        t = pool(kad_relu(kann_layer_conv2d(t, 16, 5, 5, 1, 1, 0, 0)));
        t = kad_relu(kann_layer_dense(t, 120));
        t = kad_relu(kann_layer_dense(t, 84));
    } else if (strcmp(name, "keras_cnn") == 0) {
        t = kad_relu(kann_layer_conv2d(image_input(28), 32, 3, 3, 1, 1, 0, 0));
        t = pool(kad_relu(kann_layer_conv2d(t, 64, 3, 3, 1, 1, 0, 0)));
        t = kad_relu(kann_layer_dense(t, 128));
    } else {
        return "such model";
    }
    if (net) kann_delete(net);
    free(images), free(labels), free(velocity);
    net = kann_new(kann_layer_cost(t, 10, KANN_C_CEM), 0);
    if (threads > 1 && batch > 1) kann_mt(net, threads, batch);
    kann_set_batch_size(net, batch);
    images = peer_floats((size_t)batch * 784);
    labels = (float *)calloc((size_t)batch * 10, sizeof *labels);
    velocity = (float *)calloc((size_t)kann_size_var(net), sizeof *velocity);
    for (i = 0; i < batch; i++) labels[i * 10 + i % 10] = 1;
    kann_feed_bind(net, KANN_F_IN, 0, &images);
    kann_feed_bind(net, KANN_F_TRUTH, 0, &labels);
    kann_switch(net, 1);
    return NULL;
}

static void run(void)
{
    const int count = kann_size_var(net);
    float *x = net->x, *g = net->g;
    int i;
    kann_cost(net, 0, 1);
    for (i = 0; i < count; i++) {
        velocity[i] = momentum * velocity[i] + g[i];
        x[i] -= 0.01f * velocity[i];
    }
}

int main(void)
{
    return peer_serve(KANN_VERSION, prepare, run);
}
