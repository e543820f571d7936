/* gpu_training.h: steps of training on a device, as a program takes them, and what the device's kernels take
   of them. */
#ifndef DML_BENCH_GPU_TRAINING_H
#define DML_BENCH_GPU_TRAINING_H

#include "gpu_device.h"
#include "models.h"

typedef struct training {
    const gpu *g;
    const model *m;
    int batch;
    const gpu_precision *precision;
    dml_context *context;
    dml_trainer *trainer;
    double operations; /* of a sample */
    void *input;
    int32_t *labels;
    const void *inputs[2];
} training;

static void training_close(training *t)
{
    dml_close(t->context);
    free(t->input);
    free(t->labels);
    memset(t, 0, sizeof *t);
}

/* Random images or tokens. */
static void training_fill(training *t)
{
    const dml_random random = { 1, 0, 0 };
    const size_t count = (size_t)t->batch * input_size(t->m), labels = (size_t)t->batch * labels_size(t->m);
    t->input = bench_floats("gpu", count);
    t->labels = (int32_t *)malloc(labels * sizeof *t->labels);
    if (!t->labels) exit(1);
    for (size_t i = 0; i < count && !t->m->channels; i++)
        ((int32_t *)t->input)[i] = (int32_t)(dml_random_bits(&random, i) % (unsigned)t->m->classes);
    for (size_t i = 0; i < labels; i++)
        t->labels[i] = (int32_t)(dml_random_bits(&random, count + i) % (unsigned)t->m->classes);
    t->inputs[0] = t->input, t->inputs[1] = t->labels;
}

static dml_status training_open(training *t, const gpu *g, const model *m, int batch,
                                const gpu_precision *precision)
{
    const dml_options options = { .device = g->info.id,
                                  .threads = g->asked->common.threads,
                                  .allow_tf32 = precision->allow_tf32 };
    memset(t, 0, sizeof *t);
    t->g = g, t->m = m, t->batch = batch, t->precision = precision;
    t->context = dml_open(&options);
    dml_node *loss = build_model(m, dml_graph_create(t->context), &t->operations);
    const dml_trainer_options how = { .batch = batch,
                                      .optimizer = optimizer_of(m, 0.9, 0),
                                      .dtype = precision->dtype };
    t->trainer = dml_trainer_create(loss, &how);
    training_fill(t);
    return t->trainer ? DML_OK : dml_status_of(t->context);
}

/* Seconds of a step: of that many, of which each, or only the last, is asked for its loss; below 0: one
   failed. */
static double training_steps(training *t, int steps, bool each)
{
    float loss;
    const double start = dml_seconds();
    for (int i = 0; i < steps; i++)
        if (dml_trainer_step(t->trainer, t->batch, t->inputs, 2, each || i == steps - 1 ? &loss : NULL) !=
            DML_OK)
            return -1;
    return (dml_seconds() - start) / steps;
}

/* --- what the kernels take --- */

enum { TRAINING_ROWS = 8192 };
typedef struct training_profile {
    dml_profile_row *rows;
    int count;
    double kernels; /* seconds of a step */
    double launches, transfers;
} training_profile;

static bool training_is_transfer(const char *what)
{
    return strcmp(what, "write") == 0 || strcmp(what, "read") == 0 || strcmp(what, "copy") == 0 ||
           strcmp(what, "zero") == 0;
}

static int training_by_seconds(const void *a, const void *b)
{
    const double x = ((const dml_profile_row *)a)->seconds, y = ((const dml_profile_row *)b)->seconds;
    return x < y ? 1 : x > y ? -1 : 0;
}

static void training_print_rows(FILE *out, const dml_profile_row *rows, int count, int most, int steps,
                                double all)
{
    fprintf(out, "| ms a step | share | calls a step | us a call | pass | kernel | layer |\n"
                 "|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < count && i < most; i++)
        fprintf(out, "| %.4f | %.1f %% | %.1f | %.2f | %s | %s | %s |\n", 1e3 * rows[i].seconds / steps,
                100 * rows[i].seconds / steps / all, (double)rows[i].calls / steps,
                1e6 * rows[i].seconds / (double)(rows[i].calls ? rows[i].calls : 1), rows[i].pass,
                rows[i].what, rows[i].node);
    fprintf(out, "\n");
}

/* Adds the most expensive kernels to the file that was asked for: over all layers, and layer by layer. */
static void training_write(const training *t, const training_profile *p, int steps)
{
    dml_profile_row *kinds = (dml_profile_row *)calloc((size_t)p->count + 1, sizeof *kinds);
    FILE *out = fopen(t->g->asked->profile, "a");
    int count = 0;
    double all = 1e-12;
    if (!out || !kinds) {
        fprintf(stderr, "gpu: can't write %s\n", t->g->asked->profile);
        exit(1);
    }
    for (int i = 0; i < p->count; i++) {
        const dml_profile_row *r = &p->rows[i];
        int k = 0;
        while (k < count && (strcmp(kinds[k].what, r->what) != 0 || strcmp(kinds[k].pass, r->pass) != 0)) k++;
        if (k == count) kinds[count] = *r, kinds[count].seconds = 0, kinds[count].calls = 0, count++;
        kinds[k].node = "", kinds[k].seconds += r->seconds, kinds[k].calls += r->calls;
        all += r->seconds / steps;
    }
    qsort(kinds, (size_t)count, sizeof *kinds, training_by_seconds);
    fprintf(out, "## %s, batch %d, %s: %.4f ms a step\n\n", t->m->name, t->batch, t->precision->name,
            1e3 * all);
    training_print_rows(out, kinds, count, 40, steps, all);
    training_print_rows(out, p->rows, p->count, 30, steps, all);
    fclose(out);
    free(kinds);
}

static training_profile training_measure(training *t, int steps)
{
    training_profile p = { NULL, 0, 0, 0, 0 };
    p.rows = (dml_profile_row *)calloc(TRAINING_ROWS, sizeof *p.rows);
    if (!p.rows) exit(1);
    if (dml_profile_begin(t->context, 1) != DML_OK || training_steps(t, steps, false) < 0) return p;
    const int found = dml_profile_rows(t->context, p.rows, TRAINING_ROWS);
    p.count = found < TRAINING_ROWS ? found : TRAINING_ROWS;
    for (int i = 0; i < p.count; i++) {
        const bool transfer = training_is_transfer(p.rows[i].what);
        if (!transfer) p.kernels += p.rows[i].seconds / steps;
        *(transfer ? &p.transfers : &p.launches) += (double)p.rows[i].calls / steps;
    }
    if (t->g->asked->profile) training_write(t, &p, steps);
    dml_profile_end(t->context);
    return p;
}

/* --- LeNet-5: what a step costs beside its kernels --- */

static void lenet(gpu *g)
{
    const bench_peers none = { .count = 0 };
    const int steps = g->asked->steps ? g->asked->steps : 500;
    const model *m = models;
    training t;
    double each[2];
    while (strcmp(m->name, "lenet5") != 0) m++;
    bool going = training_open(&t, g, m, 64, gpu_precisions) == DML_OK && training_steps(&t, 20, true) > 0;
    for (int loss = 0; loss < 2 && going; loss++) {
        double sample[BENCH_ROUNDS];
        for (int round = 0; round < BENCH_ROUNDS && going; round++) {
            sample[round] = training_steps(&t, steps / BENCH_ROUNDS ? steps / BENCH_ROUNDS : 1, loss == 1);
            going = sample[round] > 0;
        }
        each[loss] = bench_median(sample, BENCH_ROUNDS);
    }
    const training_profile p = going ? training_measure(&t, 20) : (training_profile){ NULL, 0, 0, 0, 0 };
    for (int loss = 0; loss < 2 && going; loss++) {
        printf("name=gpu_lenet what=step batch=%d loss=%s launches=%.1f transfers=%.1f kernels_us=%.4g",
               t.batch, loss ? "each" : "last", p.launches, p.transfers, 1e6 * p.kernels);
        bench_row(&none, g->threads, each[loss], p.kernels, 0, "us");
    }
    if (!going) printf("# gpu: left out lenet: %s\n", dml_error(t.context));
    free(p.rows);
    training_close(&t);
}

/* --- GPT-2 --- */

static const gpu_asked *gpt_asked; /* for the builder, which is given nothing but the network */

static void gpt_build(network *n)
{
    const int heads = gpt_asked->width / 64;
    decoder(n, gpt_asked->vocabulary, gpt_asked->width, gpt_asked->layers, heads ? heads : 1);
}

/* With as large a batch as there is memory for; false: with none. */
static bool gpt_open(training *t, const gpu *g, const model *m, int batch, const gpu_precision *precision)
{
    for (; batch; batch /= 2) {
        const dml_status status = training_open(t, g, m, batch, precision);
        if (status == DML_OK && training_steps(t, 1, true) > 0) return true;
        printf("# gpu: left out gpt, batch %d, %s: %s\n", batch, precision->name, dml_error(t->context));
        const bool short_of_memory = dml_status_of(t->context) == DML_ERROR_MEMORY;
        training_close(t);
        if (!short_of_memory) return false;
    }
    return false;
}

static void gpt_measure(const gpu *g, const model *m, int batch, const gpu_precision *precision,
                        double seconds)
{
    enum { STEPS_MAX = 50 };
    const bench_peers none = { .count = 0 };
    training t;
    if (!gpt_open(&t, g, m, batch, precision)) return;
    double one = training_steps(&t, 1, true);
    const double fit = one > 0 ? seconds / one : 0;
    const int steps = g->asked->steps ? g->asked->steps : fit > STEPS_MAX ? STEPS_MAX : (int)fit;
    if (one > 0 && steps > 1) one = training_steps(&t, steps, false);
    if (one > 0) {
        const training_profile p = training_measure(&t, 1);
        const double tokens = (double)t.batch * m->size, work = t.operations * t.batch;
        printf("name=gpu_gpt what=step dtype=%s layers=%d width=%d context=%d vocabulary=%d batch=%d "
               "launches=%.0f transfers=%.0f kernels_ms=%.4g step_ms=%.4g",
               precision->name, g->asked->layers, g->asked->width, m->size, m->classes, t.batch, p.launches,
               p.transfers, 1e3 * p.kernels, 1e3 * one);
        bench_row(&none, g->threads, one, g->peak > 0 && precision == gpu_precisions ? work / g->peak : 0,
                  tokens, "tokens/s");
        free(p.rows);
    }
    if (dml_status_of(t.context) != DML_OK) printf("# gpu: gpt: %s\n", dml_error(t.context));
    training_close(&t);
}

static void gpt_steps(gpu *g)
{
    const gpu_asked *asked = g->asked;
    const int batch = asked->batch ? asked->batch : asked->common.quick ? 4 : 16;
    const model m = { "gpt2", gpt_build, batch, asked->context, 0, asked->vocabulary, true };
    const bool cuda = strcmp(g->backend->name, "cuda") == 0;
    gpt_asked = asked;
    for (const gpu_precision *p = gpu_precisions; p < gpu_precisions + GPU_PRECISIONS; p++)
        if (asked->dtype ? p == gpu_precision_of(asked)
                         : p->dtype != DML_F16 && (cuda || !p->allow_tf32)) /* which is f32 elsewhere */
            gpt_measure(g, &m, batch, p, asked->common.quick ? 4 : 15);
}

#endif
