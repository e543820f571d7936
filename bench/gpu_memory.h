/* gpu_memory.h: kernels that memory limits, launched as the ops launch them, beside a copy on the device; and
   attention. */
#ifndef DML_BENCH_GPU_MEMORY_H
#define DML_BENCH_GPU_MEMORY_H

#include "gpu_device.h"
#include "kernels/formulas.h"

enum { MEMORY_ARRAYS = 5 };
typedef struct memory_bench {
    gpu *g;
    dml_buffer *array[MEMORY_ARRAYS], *indices;
    int mib;     /* of an array, as far as it is used */
    size_t n;    /* floats of that */
    double copy; /* bytes/s */
} memory_bench;

static const dml_ref memory_none = { NULL, 0 };

/* `bytes`: each that has to be read or written, once. */
static void memory_row(const memory_bench *m, const char *what, const dml_launch *launches, int count,
                       double bytes)
{
    const bench_peers none = { .count = 0 };
    const double one = gpu_time(m->g, what, launches, count);
    if (!(one > 0)) return;
    printf("name=gpu_memory what=%s mib=%d", what, m->mib);
    bench_row(&none, m->g->threads, one, bytes / m->copy, 1e-9 * bytes, "GB/s");
}

static void memory_one(const memory_bench *m, const char *what, dml_launch launch, double bytes)
{
    memory_row(m, what, &launch, 1, bytes);
}

/* --- what goes over all elements --- */

static void memory_elements(const memory_bench *m)
{
    const size_t n = m->n, rows = n / 768;
    const int count = (int)n;
    const double array = 4.0 * (double)n;
    const dml_ref a = gpu_at(m->array[0], 0), b = gpu_at(m->array[1], 0), c = gpu_at(m->array[2], 0);
    const dml_ref d = gpu_at(m->array[3], 0), none = memory_none;
#define MEMORY_OVER(name, elements, ...)                                                                     \
    ((dml_launch){ .kernel = name, .size = { elements, 1 }, __VA_ARGS__ })
    memory_one(m, "axpby",
               MEMORY_OVER("axpby", n, .buffer = { a, b }, .integer = { count }, .real = { 1.25f, 0 }),
               2 * array);
    memory_one(m, "axpby_adds",
               MEMORY_OVER("axpby", n, .buffer = { a, b }, .integer = { count }, .real = { 1.25f, 0.5f }),
               3 * array);
    memory_one(m, "add_forward",
               MEMORY_OVER("formula_forward", n, .buffer = { a, b, none, c },
                           .integer = { count, DML__FORMULA_add }),
               3 * array);
    memory_one(m, "relu_forward",
               MEMORY_OVER("formula_forward", n, .buffer = { a, none, none, b },
                           .integer = { count, DML__FORMULA_relu }),
               2 * array);
    memory_one(m, "gelu_forward",
               MEMORY_OVER("formula_forward", n, .buffer = { a, none, none, b },
                           .integer = { count, DML__FORMULA_gelu_tanh }),
               2 * array);
    memory_one(m, "add_backward",
               MEMORY_OVER("formula_backward", n, .buffer = { none, none, none, a, b, c },
                           .integer = { count, DML__FORMULA_add }),
               3 * array);
    memory_one(m, "relu_backward",
               MEMORY_OVER("formula_backward", n, .buffer = { none, none, a, b, c, none },
                           .integer = { count, DML__FORMULA_relu }),
               3 * array);
    memory_one(m, "gelu_backward",
               MEMORY_OVER("formula_backward", n, .buffer = { a, none, none, b, c, none },
                           .integer = { count, DML__FORMULA_gelu_tanh }),
               3 * array);
    memory_one(m, "bias_add",
               MEMORY_OVER("bias_add", rows * 768, .buffer = { d, b }, .integer = { (int)rows, 768, 0 }),
               2 * array);
    memory_one(m, "dropout",
               MEMORY_OVER("dropout", (n + 3) / 4, .buffer = { a, b },
                           .integer = { count, 1, 0, 0, 0, 429496730, 0 }, .real = { 1.111f, 0 }),
               2 * array);
    memory_one(m, "half_narrow", MEMORY_OVER("half_narrow", n, .buffer = { a, b }, .integer = { count, 0 }),
               1.5 * array);
    memory_one(m, "half_widen", MEMORY_OVER("half_widen", n, .buffer = { b, c }, .integer = { count, 0 }),
               1.5 * array);
    memory_one(m, "sgd_momentum",
               MEMORY_OVER("sgd_update", n, .buffer = { a, b, c }, .integer = { count },
                           .real = { 1e-6f, 0.9f, 0, 0 }),
               5 * array);
    memory_one(m, "adam",
               MEMORY_OVER("adam_update", n, .buffer = { a, b, c, d }, .integer = { count },
                           .real = { 1e-6f, 1e-8f, 0.1f, 0.999f, 0.001f, 0, 1 }),
               7 * array);
}

/* --- what goes over rows --- */

static void memory_softmax(const memory_bench *m, int classes, const char *forward, const char *backward)
{
    const size_t rows = m->n / (size_t)classes;
    const int lanes = classes > 1024 ? 256 : 64;
    const size_t in_group = (size_t)(256 / lanes);
    const double array = 4.0 * (double)rows * classes;
    dml_launch launch = { .kernel = "softmax_forward",
                          .size = { (rows + in_group - 1) / in_group, 1 },
                          .buffer = { gpu_at(m->array[0], 0), gpu_at(m->array[1], 0) },
                          .integer = { classes, 1, (int)rows, 0, lanes } };
    if (!rows) return;
    memory_one(m, forward, launch, 2 * array);
    launch.kernel = "softmax_backward";
    launch.buffer[2] = gpu_at(m->array[2], 0);
    memory_one(m, backward, launch, 3 * array);
}

static void memory_cross_entropy(const memory_bench *m)
{
    enum { CLASSES = 50257 };
    const size_t rows = m->n / CLASSES;
    const double array = 4.0 * (double)rows * CLASSES;
    const dml_ref labels = { m->indices, 0 }, kept = gpu_at(m->array[3], 0);
    if (!rows) return;
    memory_one(m, "cross_entropy_forward",
               MEMORY_OVER("cross_entropy_forward", rows, /* with a group a row */
                           .buffer = { gpu_at(m->array[0], 0), labels, memory_none, memory_none, kept },
                           .integer = { (int)rows, CLASSES, 1, 1, 0, 0, 256 }),
               array);
    memory_one(m, "cross_entropy_backward",
               (dml_launch){ .kernel = "cross_entropy_backward",
                             .size = { rows, (CLASSES + 255) / 256 },
                             .buffer = { gpu_at(m->array[0], 0), labels, memory_none, kept,
                                         gpu_at(m->array[2], 0), gpu_at(m->array[1], 0) },
                             .integer = { (int)rows, CLASSES, 1, 256 } },
               2 * array);
}

static void memory_layer_norm(const memory_bench *m)
{
    enum { WIDTH = 768, FEWEST = 64 };
    const size_t rows = m->n / WIDTH, part = rows / 64 + 1 > FEWEST ? rows / 64 + 1 : FEWEST;
    const size_t parts = (rows + part - 1) / part;
    const double array = 4.0 * (double)rows * WIDTH;
    const dml_ref x = gpu_at(m->array[0], 0), dy = gpu_at(m->array[1], 0);
    const dml_ref weight = gpu_at(m->array[4], 0), bias = gpu_at(m->array[4], WIDTH),
                  statistics = gpu_at(m->array[4], 2 * WIDTH);
    dml_launch launch = { .kernel = "sample_norm_forward",
                          .size = { rows, 1 },
                          .buffer = { x, weight, bias, statistics, gpu_at(m->array[2], 0) },
                          .integer = { (int)rows, WIDTH, 1, WIDTH, 0, (int)part, (int)parts, 0, 1,
                                       (int)rows },
                          .real = { 1e-5f } };
    memory_one(m, "layer_norm_forward", launch, 2 * array);
    launch.kernel = "sample_norm_backward";
    launch.buffer[1] = dy, launch.buffer[2] = weight, launch.real[0] = 0;
    memory_one(m, "layer_norm_backward", launch, 3 * array);
    launch.kernel = "sample_norm_products";
    launch.size[0] = WIDTH, launch.size[1] = parts;
    launch.buffer[2] = statistics, launch.buffer[3] = gpu_at(m->array[3], 0);
    launch.buffer[4] = memory_none;
    memory_one(m, "layer_norm_products", launch, 2 * array);
}

static void memory_batch_norm(const memory_bench *m)
{
    enum { CHANNELS = 64, FEWEST = 64 };
    const size_t rows = m->n / CHANNELS, part = rows / 256 + 1 > FEWEST ? rows / 256 + 1 : FEWEST;
    const size_t parts = (rows + part - 1) / part, n = rows * CHANNELS;
    const double array = 4.0 * (double)n;
    const dml_ref x = gpu_at(m->array[0], 0), dy = gpu_at(m->array[1], 0), y = gpu_at(m->array[2], 0);
    dml_ref of[6]; /* rows of channels */
    for (size_t i = 0; i < 6; i++) of[i] = gpu_at(m->array[4], i * CHANNELS);
#define MEMORY_NORM(name, size_x, size_y, ...)                                                               \
    ((dml_launch){ .kernel = name,                                                                           \
                   .size = { size_x, size_y },                                                               \
                   .buffer = { __VA_ARGS__ },                                                                \
                   .integer = { (int)rows, CHANNELS, (int)part, (int)parts },                                \
                   .real = { 0 } })
    const dml_ref sums = gpu_at(m->array[3], 0);
    memory_one(m, "batch_norm_moments", MEMORY_NORM("batch_norm_moments", CHANNELS, parts, x, sums), array);
    memory_one(m, "batch_norm_forward",
               MEMORY_NORM("batch_norm_forward", n, 1, x, of[0], of[1], of[2], of[3], y), 2 * array);
    memory_one(m, "batch_norm_products",
               MEMORY_NORM("batch_norm_products", CHANNELS, parts, x, dy, of[2], sums), 2 * array);
    memory_one(m, "batch_norm_backward", MEMORY_NORM("batch_norm_backward", n, 1, x, dy, of[2], y),
               3 * array);
}

static void memory_sums(const memory_bench *m, int columns, const char *what)
{
    const size_t rows = m->n / (size_t)columns, wanted = 1024 / (((size_t)columns + 15) / 16);
    const size_t parts = rows / 256 < wanted ? rows / 256 : wanted;
    const dml_ref from = gpu_at(m->array[0], 0), to = gpu_at(m->array[3], 0),
                  between = gpu_at(m->array[2], 0);
    dml_launch launches[2] = { { .kernel = "sum_rows",
                                 .size = { (size_t)columns, parts },
                                 .buffer = { from, between },
                                 .integer = { (int)((rows + parts - 1) / parts), columns, (int)parts,
                                              (int)rows } },
                               { .kernel = "sum_rows",
                                 .size = { (size_t)columns, 1 },
                                 .buffer = { between, to },
                                 .integer = { (int)parts, columns, 1 } } };
    memory_row(m, what, launches, 2, 4.0 * (double)rows * columns);
}

/* Every row of the table once, out of order. */
static size_t memory_fill_indices(const memory_bench *m)
{
    const size_t all = m->n / 768, rows = all < 50257 ? all : 50257;
    int32_t *index = (int32_t *)malloc(rows * sizeof *index);
    const dml_ref to = { m->indices, 0 };
    if (!index) exit(1);
    for (size_t i = 0; i < rows; i++) index[i] = (int32_t)(i * 7919 % rows);
    if (m->g->backend->write(&m->g->device, to, index, rows * sizeof *index) != DML_OK ||
        m->g->backend->finish(&m->g->device) != DML_OK)
        gpu_stop(m->g);
    free(index);
    return rows;
}

static void memory_embedding(const memory_bench *m, size_t table)
{
    const size_t some = table < 16384 ? table : 16384; /* tokens of a step */
    const dml_ref indices = { m->indices, 0 }, links = gpu_at(m->array[3], 0);
    memory_one(m, "embedding_forward",
               MEMORY_OVER("embedding_forward", table * 768,
                           .buffer = { indices, gpu_at(m->array[0], 0), gpu_at(m->array[1], 0) },
                           .integer = { (int)table, 768 }),
               4.0 * (double)table * (1 + 2 * 768));
    memory_one(
        m, "embedding_links",
        MEMORY_OVER("embedding_links", some, .buffer = { indices, links }, .integer = { (int)some, 768 }),
        12.0 * (double)some);
    memory_one(m, "embedding_backward",
               MEMORY_OVER("embedding_backward", some * 768,
                           .buffer = { indices, links, gpu_at(m->array[1], 0), gpu_at(m->array[2], 0) },
                           .integer = { (int)some, 768 }),
               4.0 * (double)some * (3 + 3 * 768));
}

/* --- attention, which multiplies --- */

static void memory_attention(const memory_bench *m)
{
    enum { HEADS = 12, WIDTH = 64, STEP = 3 * HEADS * WIDTH, MOST = 1024 };
    const bench_peers none = { .count = 0 };
    const size_t all = m->n / STEP; /* rows of q, k and v */
    const int steps = all < MOST ? (int)all : m->g->info.gpu ? MOST : 256;
    const int samples = (int)(all / (size_t)steps) < 8 ? (int)(all / (size_t)steps) : 8;
    const size_t lines = (size_t)samples * HEADS * (size_t)steps;
    const double multiplied = 2.0 * (double)lines * 0.5 * (steps + 1) * WIDTH; /* of one of its products */
    dml_launch launches[4] = { {
        .kernel = "attention_forward",
        .size = { (size_t)steps, (size_t)samples * HEADS },
        .buffer = { gpu_at(m->array[0], 0), gpu_at(m->array[0], HEADS * WIDTH),
                    gpu_at(m->array[0], 2 * HEADS * WIDTH), gpu_at(m->array[3], 0), gpu_at(m->array[1], 0) },
        .integer = { samples, steps, steps, HEADS, HEADS, WIDTH, STEP, STEP, STEP, INT32_MAX, 0, 0 },
        .real = { 0.125f, 0 },
    } };
#define MEMORY_ATTENTION_ROW(what, count, products)                                                          \
    do {                                                                                                     \
        const double one = gpu_time(m->g, what, launches, count), work = (products)*multiplied;              \
        if (!(one > 0)) break;                                                                               \
        printf("name=gpu_attention what=%s dtype=%s samples=%d heads=%d steps=%d width=%d", what,            \
               gpu_precision_of(m->g->asked)->name, samples, HEADS, steps, WIDTH);                           \
        bench_row(&none, m->g->threads, one, gpu_limit(m->g, work), 1e-9 * work, "GFLOP/s");                 \
    } while (0)
    MEMORY_ATTENTION_ROW("attention_forward", 1, 2);
    const dml_ref y = gpu_at(m->array[1], 0), dy = gpu_at(m->array[2], 0);
    for (int i = 1; i < 4; i++) {
        launches[i] = launches[0];
        launches[i].kernel = "attention_backward";
        launches[i].buffer[4] = dy;
        launches[i].buffer[5] = gpu_at(m->array[4], (size_t)(i - 1) * HEADS * WIDTH);
        launches[i].integer[12] = i - 1;
    }
    launches[0].kernel = "attention_levels";
    launches[0].size[0] = lines, launches[0].size[1] = 1;
    launches[0].buffer[0] = y, launches[0].buffer[1] = dy;
    MEMORY_ATTENTION_ROW("attention_backward", 4, 5);
}

/* --- all of it --- */

static bool memory_run_copy(void *argument, int times)
{
    const memory_bench *m = (const memory_bench *)argument;
    const dml_backend *backend = m->g->backend;
    for (int i = 0; i < times; i++)
        if (backend->copy(&m->g->device, gpu_at(m->array[1], 0), gpu_at(m->array[0], 0), m->n * 4) != DML_OK)
            return false;
    return backend->finish(&m->g->device) == DML_OK;
}

static void memory_of_size(memory_bench *m, bool last)
{
    const bench_peers none = { .count = 0 };
    const double bytes = 8.0 * (double)m->n;
    gpu_turn copy = { memory_run_copy, m, 0, 0, { 0 } };
    gpu_beside(&copy, 1, m->g->asked->common.seconds);
    if (!(copy.seconds > 0)) gpu_stop(m->g);
    m->copy = bytes / copy.seconds;
    const size_t table = memory_fill_indices(m);
    printf("name=gpu_memory what=copy mib=%d", m->mib);
    bench_row(&none, m->g->threads, copy.seconds, copy.seconds, 1e-9 * bytes, "GB/s");
    memory_elements(m);
    gpu_fill(m->g, m->array, MEMORY_ARRAYS, m->n); /* halves may have left anything */
    memory_softmax(m, 1024, "softmax_forward_1024", "softmax_backward_1024");
    memory_softmax(m, 50257, "softmax_forward_50257", "softmax_backward_50257");
    memory_cross_entropy(m);
    memory_layer_norm(m);
    memory_batch_norm(m);
    memory_sums(m, 768, "sum_rows_768");
    memory_sums(m, 16, "sum_rows_16");
    memory_embedding(m, table);
    if (last) memory_attention(m);
}

static void memory(gpu *g)
{
    const int asked = g->asked->mib, large = asked ? asked : g->info.gpu ? 256 : 4;
    const int sizes[] = { !asked && g->info.gpu ? 64 : 0, large };
    const size_t floats = (size_t)large << 18;
    memory_bench m;
    memset(&m, 0, sizeof m);
    m.g = g;
    gpu_open(g);
    for (int i = 0; i < MEMORY_ARRAYS; i++)
        if (!(m.array[i] = gpu_buffer(g, floats * sizeof(float)))) gpu_stop(g);
    if (!(m.indices = gpu_buffer(g, floats / 768 * sizeof(int32_t)))) gpu_stop(g);
    for (int i = 0; i < 2; i++) {
        if (!sizes[i]) continue;
        m.mib = sizes[i], m.n = (size_t)m.mib << 18;
        gpu_fill(g, m.array, MEMORY_ARRAYS, m.n);
        memory_of_size(&m, i == 1);
    }
    for (int i = 0; i < MEMORY_ARRAYS; i++) gpu_release(g, m.array[i]);
    gpu_release(g, m.indices);
    gpu_close(g);
}

#endif
