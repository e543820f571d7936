/* small_model.h: for the tests of the trainer: a model of two layers, and a sync strategy that looks on. */
#ifndef DML_TESTS_TRAIN_SMALL_MODEL_H
#define DML_TESTS_TRAIN_SMALL_MODEL_H

#include "train/trainer.h"

#include "ops/op_activation.h"
#include "ops/op_dense.h"
#include "ops/op_loss.h"

#include "../graph/backends.h"

/* ---- a small model: rows of 2 into 3 classes through a hidden layer ---- */

enum { BATCH = 4, WIDTH = 5, COUNT = 2 * WIDTH + WIDTH + WIDTH * 3 + 3 };

static dml_context *context;

TEST__UNUSED static dml_node *small_loss(void)
{
    dml_graph *g = dml_graph_create(context);
    dml_node *h = dml_tanh(dml_dense(dml_input(g, "x", DML_F32, 2), WIDTH));
    return dml_softmax_cross_entropy(dml_dense(h, 3), dml_input(g, "label", DML_I32));
}

TEST__UNUSED static dml_trainer *small_trainer(float lr, float momentum)
{
    context = open_here(NULL);
    dml_trainer *t = dml_trainer_create(
        small_loss(), &(dml_trainer_options){ .batch = BATCH, .optimizer = dml_sgd(lr, momentum) });
    CHECK_MESSAGE(t, "%s", dml_error(context));
    return t;
}

static const float rows[BATCH * 2] = { 1, 0.5f, -1, 0.25f, 0.5f, -2, 0, 1 };
static const int32_t labels[BATCH] = { 0, 1, 2, 1 };
static const void *const inputs[] = { rows, labels };

TEST__UNUSED static void copy_vector(dml_trainer *t, int vector, float out[COUNT])
{
    const float *from = dml_trainer_get(t, vector, 0, COUNT);
    CHECK(from);
    if (from) memcpy(out, from, COUNT * sizeof *out);
}

/* Writes down what is called, and fails where it is told to. */
typedef struct mock {
    char events[600];
    const char *fail; /* the event that fails */
    size_t from;      /* ready: g[from ..] was announced */
    float g[COUNT];   /* each range when it was announced */
    float w_at_finish[COUNT];
    double samples, all_samples; /* what begin was told; what finish says, 0: the same */
    double most_samples;         /* that begin may be told; 0: BATCH */
} mock;

static dml_status happened(mock *m, dml_trainer *t, const char *event)
{
    strcat(m->events, event);
    strcat(m->events, " ");
    if (!m->fail || strcmp(m->fail, event) != 0) return DML_OK;
    return dml_trainer_fail(t, DML_ERROR_PEER, "rank %d failed in %s", 3, event);
}
static dml_status mock_start(void *state, dml_trainer *t)
{
    return happened((mock *)state, t, "start");
}
static dml_status mock_begin(void *state, dml_trainer *t, double count)
{
    mock *m = (mock *)state;
    m->from = COUNT;
    m->samples = count;
    CHECK(count >= 0 && count <= (m->most_samples ? m->most_samples : BATCH));
    return happened(m, t, "begin");
}
static dml_status mock_ready(void *state, dml_trainer *t, size_t begin, size_t end)
{
    mock *m = (mock *)state;
    CHECK_INT(end, m->from);
    CHECK(begin < end);
    const float *g = dml_trainer_get(t, DML_GRADIENTS, begin, end);
    memcpy(m->g + begin, g, (end - begin) * sizeof *g);
    m->from = begin;
    return happened(m, t, "ready");
}
static dml_status mock_finish(void *state, dml_trainer *t, double *samples)
{
    mock *m = (mock *)state;
    float g[COUNT];
    CHECK_INT(m->from, 0);
    CHECK(*samples == m->samples);
    if (m->all_samples) *samples = m->all_samples;
    copy_vector(t, DML_GRADIENTS, g);
    CHECK(memcmp(g, m->g, sizeof g) == 0); /* what was announced was final */
    copy_vector(t, DML_PARAMETERS, m->w_at_finish);
    return happened(m, t, "finish");
}
static void mock_failed(void *state, dml_trainer *t)
{
    mock *m = (mock *)state;
    m->fail = NULL;
    happened(m, t, "failed");
}
static dml_status mock_updated(void *state, dml_trainer *t)
{
    return happened((mock *)state, t, "updated");
}
static void mock_destroy(void *state, dml_trainer *t)
{
    happened((mock *)state, t, "destroy");
}
TEST__UNUSED static dml_sync sync_with(mock *m)
{
    memset(m, 0, sizeof *m);
    return (dml_sync){ .state = m,
                       .start = mock_start,
                       .begin = mock_begin,
                       .ready = mock_ready,
                       .finish = mock_finish,
                       .failed = mock_failed,
                       .updated = mock_updated,
                       .destroy = mock_destroy,
                       .ranks = 1 };
}

#endif
