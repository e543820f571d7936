/* replicas.h: replicas of one model, stepped in turn by one process, for experiments in virtual time.

   The model is an MLP on drawn digits. A replica is nothing but a copy of w: before its gradient is taken,
   its w is put into the one trainer that there is. What that takes on this machine is measured once, at the
   start, and charged for every gradient; what travels is charged by a latency and a bandwidth that the user
   names. */
#ifndef DML_BENCH_REPLICAS_H
#define DML_BENCH_REPLICAS_H

#include "dml.h"

#include "../samples/digits.h"
#include "options.h"

#include <math.h>

enum { REPLICAS_TRAIN = 8192, REPLICAS_TEST = 2000, REPLICAS_TEST_BATCH = 250, REPLICAS_CLASSES = 10 };

typedef struct replicas {
    dml_context *context;
    dml_trainer *trainer;
    dml_program *scores;
    size_t count;          /* elements of w */
    float *w, *g;          /* (count), the trainer's own */
    float *images;         /* (TRAIN + TEST, 784) */
    int32_t *labels;       /* (TRAIN + TEST) */
    float *batch_images;   /* (batch, 784) */
    int32_t *batch_labels; /* (batch) */
    int batch;
    double gradient_seconds; /* of one, measured */
} replicas;

static void *replicas_allocate(size_t count, size_t size)
{
    void *memory = calloc(count ? count : 1, size);
    if (!memory) {
        fputs("no memory left\n", stderr);
        exit(1);
    }
    return memory;
}

static void replicas_check(const replicas *r)
{
    if (dml_status_of(r->context) == DML_OK) return;
    fprintf(stderr, "%s\n", dml_error(r->context));
    exit(1);
}

static float *replicas_vector(const replicas *r)
{
    return (float *)replicas_allocate(r->count, sizeof(float));
}

/* Which sample is number i of a replica's stream. */
static int replicas_sample(int stream, uint64_t i)
{
    const uint32_t counter[4] = { (uint32_t)i, (uint32_t)(i >> 32), (uint32_t)stream, 0 }, key[2] = { 7, 0 };
    uint32_t words[4];
    dml_philox4x32(counter, key, words);
    return (int)(((uint64_t)words[0] * REPLICAS_TRAIN) >> 32);
}

/* Puts the gradient at w of batch number `step` of `stream` into r->g; returns the loss. */
static double replicas_gradient(replicas *r, const float *w, int stream, uint64_t step)
{
    float loss;
    for (int i = 0; i < r->batch; i++) {
        const int s = replicas_sample(stream, step * (uint64_t)r->batch + (uint64_t)i);
        memcpy(r->batch_images + (size_t)i * DIGITS_PIXELS, r->images + (size_t)s * DIGITS_PIXELS,
               DIGITS_PIXELS * sizeof(float));
        r->batch_labels[i] = r->labels[s];
    }
    memcpy(r->w, w, r->count * sizeof *w);
    dml_trainer_backward(r->trainer, r->batch, DML_INPUTS(r->batch_images, r->batch_labels), DML_OVERWRITE,
                         &loss);
    replicas_check(r);
    return (double)loss;
}

/* The same of the first `samples` of the training set, a multiple of the batch. */
static double replicas_whole_gradient(replicas *r, const float *w, int samples, float *g)
{
    double sum = 0;
    memcpy(r->w, w, r->count * sizeof *w);
    for (int from = 0; from < samples; from += r->batch) {
        float loss;
        dml_trainer_backward(r->trainer, r->batch,
                             DML_INPUTS(r->images + (size_t)from * DIGITS_PIXELS, r->labels + from),
                             from ? DML_ADD : DML_OVERWRITE, &loss);
        sum += (double)loss * r->batch;
    }
    replicas_check(r);
    memcpy(g, r->g, r->count * sizeof *g);
    return sum / samples;
}

/* The share of the held-out digits that w reads rightly. */
static double replicas_accuracy(replicas *r, const float *w)
{
    int right = 0;
    memcpy(r->w, w, r->count * sizeof *w);
    for (int from = 0; from < REPLICAS_TEST; from += REPLICAS_TEST_BATCH) {
        const int at = REPLICAS_TRAIN + from;
        float scores[REPLICAS_TEST_BATCH][REPLICAS_CLASSES];
        dml_program_run(r->scores, REPLICAS_TEST_BATCH, DML_INPUTS(r->images + (size_t)at * DIGITS_PIXELS),
                        &scores[0][0]);
        for (int i = 0; i < REPLICAS_TEST_BATCH; i++) {
            int best = 0;
            for (int c = 1; c < REPLICAS_CLASSES; c++)
                if (scores[i][c] > scores[i][best]) best = c;
            right += best == r->labels[at + i];
        }
    }
    replicas_check(r);
    return (double)right / REPLICAS_TEST;
}

static int replicas_by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void replicas_time_gradient(replicas *r)
{
    enum { TIMES = 51 };
    double seconds[TIMES];
    float *w = replicas_vector(r);
    memcpy(w, r->w, r->count * sizeof *w);
    for (int i = 0; i < TIMES; i++) {
        const double start = dml_seconds();
        replicas_gradient(r, w, 0, (uint64_t)i);
        seconds[i] = dml_seconds() - start;
    }
    qsort(seconds, TIMES, sizeof *seconds, replicas_by_size);
    r->gradient_seconds = seconds[TIMES / 2];
    free(w);
}

/* Exits with a sentence where it can't. */
static void replicas_open(replicas *r, int batch)
{
    memset(r, 0, sizeof *r);
    r->batch = batch;
    r->context = dml_open(&(dml_options){ .threads = 1, .seed = 1 });
    dml_graph *graph = dml_graph_create(r->context);
    dml_node *image = dml_input(graph, "image", DML_F32, DIGITS_PIXELS);
    dml_node *scores = dml_dense(dml_relu(dml_dense(image, 32)), REPLICAS_CLASSES);
    r->scores = dml_compile(scores, &(dml_program_options){ .batch = REPLICAS_TEST_BATCH });
    r->trainer = dml_trainer_create(dml_softmax_cross_entropy(scores, dml_input(graph, "label", DML_I32)),
                                    &(dml_trainer_options){ .batch = batch });
    if (!r->context) {
        fputs("no context can be opened\n", stderr);
        exit(1);
    }
    replicas_check(r);
    r->count = dml_trainer_count(r->trainer, DML_PARAMETERS);
    r->w = dml_trainer_get(r->trainer, DML_PARAMETERS, 0, r->count);
    r->g = dml_trainer_get(r->trainer, DML_GRADIENTS, 0, r->count);
    const int all = REPLICAS_TRAIN + REPLICAS_TEST;
    r->images = (float *)replicas_allocate((size_t)all * DIGITS_PIXELS, sizeof(float));
    r->labels = (int32_t *)replicas_allocate((size_t)all, sizeof(int32_t));
    r->batch_images = (float *)replicas_allocate((size_t)batch * DIGITS_PIXELS, sizeof(float));
    r->batch_labels = (int32_t *)replicas_allocate((size_t)batch, sizeof(int32_t));
    for (int i = 0; i < all; i++) {
        unsigned char pixels[DIGITS_PIXELS];
        int label;
        digits_draw(1, (uint64_t)i, pixels, &label);
        for (int p = 0; p < DIGITS_PIXELS; p++)
            r->images[(size_t)i * DIGITS_PIXELS + p] = (float)pixels[p] / 255;
        r->labels[i] = label;
    }
    replicas_time_gradient(r);
}

static void replicas_close(replicas *r)
{
    dml_close(r->context);
    free(r->images);
    free(r->labels);
    free(r->batch_images);
    free(r->batch_labels);
}

#endif
