/* mirrored_replicas.h: a model, its samples and its replicas, for the tests of dist/mirrored.h. */
#ifndef DML_TESTS_MIRRORED_REPLICAS_H
#define DML_TESTS_MIRRORED_REPLICAS_H

#include "dist/mirrored.h"

#include "../comm/ranks.h"
#include "../graph/backends.h"
#include "graph/weights.h"
#include "ops/op_activation.h"
#include "ops/op_dense.h"
#include "ops/op_loss.h"
#include "ops/op_norm.h"
#include "train/trainer_internal.h"

#ifdef DML_NO_THREADS
enum { THREADS = 0 };
#else
enum { THREADS = 1 };
#endif
enum { IN = 6, CLASSES = 3, STEPS = 50, MAX_BATCH = 23, MOST_DEVICES = 4, MAX_PARAMETERS = 1024 };

static const char *const cpus[MOST_DEVICES] = { "cpu*1", "cpu*1", "cpu*1", "cpu*1" };

typedef struct run {
    int devices;
    const char *const *device; /* NULL: the CPU, once for each */
    dml_mirrored_options options;
    int batch, steps;
    bool norms, pieces, adam;
    bool changes; /* in pieces: the gradient that is added to, and the one that is applied */
    bool small;   /* the model is a single layer */
    /* results */
    float loss[STEPS], w[MAX_PARAMETERS];
    size_t parameters;
} run;

static void make_batch(int step, int batch, float *x, int32_t *t)
{
    unsigned state = 77u + (unsigned)step;
    test_fill(&state, x, (size_t)(batch * IN));
    for (int i = 0; i < batch; i++) t[i] = x[i * IN] > 0.3f ? 2 : x[i * IN + 1] > 0 ? 1 : 0;
}

static dml_node *build_loss(dml_context *context, bool norms)
{
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, IN), *t = dml_input(graph, "t", DML_I32);
    const dml_batch_norm_options all_ranks = { .all_ranks = true, .momentum = 0.3f };
    dml_node *h = dml_tanh(dml_dense(x, 16));
    if (norms) h = dml_batch_norm(h, &all_ranks);
    h = dml_relu(dml_dense(h, 16));
    return dml_softmax_cross_entropy(dml_dense(h, CLASSES), t);
}

static run usual(int devices)
{
    run r;
    memset(&r, 0, sizeof r);
    r.devices = devices;
    r.device = cpus;
    r.batch = MAX_BATCH;
    r.steps = STEPS;
    r.options.trainer.batch = MAX_BATCH;
    r.options.trainer.optimizer = dml_sgd(0.05f, 0.9f);
    r.options.timeout_s = 60;
    return r;
}

static dml_context *open_seeded(void)
{
    return dml_open(&(dml_options){ .threads = 1, .seed = 5 });
}

typedef struct model {
    dml_context *context;
    dml_graph *graph;
    dml_mirrored *m;
    float x[MAX_BATCH * IN];
    int32_t t[MAX_BATCH];
} model;

static model open_model(const run *r)
{
    model s;
    s.context = open_seeded();
    dml_node *loss = build_loss(s.context, r->norms);
    s.graph = dml_node_graph(loss);
    s.m = dml_mirrored_create(loss, r->device, r->devices, &r->options);
    CHECK_MESSAGE(s.m, "%s", dml_error(s.context));
    make_batch(0, MAX_BATCH, s.x, s.t);
    return s;
}

/* The CPU, whose writes fail, or take long, when they are told to. Backward begins with one. */
static dml_backend broken_cpu;
static double hangs;
static dml_status broken_write(dml_device *device, dml_ref to, const void *from, size_t bytes)
{
    if (hangs <= 0) return dml_device_fail(device, DML_ERROR_DEVICE, "out of order");
    ranks_sleep(hangs);
    memcpy(dml__host(to), from, bytes);
    return DML_OK;
}

#endif
