/* What losses do at their edges: labels that are ignored or out of range, and means over nothing. Their
   values and gradients are in ops_test, what they refuse in graph/graph_test. */
#include "ops/op_loss.h"

#include "ops/op_arithmetic.h"
#include "ops/op_dense.h"
#include "ops/op_shape.h"
#include "ops/op_softmax.h"
#include "graph/weights.h"
#include "train/trainer.h"

#include "../graph/subject.h"
#include "../graph/refused.h"

enum { ROWS = 3, WORDS = 2, CLASSES = 5, WIDTH = 2 };

static void labels_out_of_range(void)
{
    dml_context *context = open_here(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, WORDS, WIDTH),
             *label = dml_input(graph, "label", DML_I32, WORDS);
    dml_node *logits = dml_dense(x, CLASSES);
    const dml_cross_entropy_options ignores = { .ignores = true, .ignore_index = -100 };
    dml_node *loss = dml_softmax_cross_entropy_with(logits, label, &ignores);
    dml_node *strict = dml_softmax_cross_entropy(logits, label);
    dml_program *both = dml_compile(dml_add(loss, strict), &(dml_program_options){ .batch = ROWS });
    dml_trainer *trainer =
        dml_trainer_create(loss, &(dml_trainer_options){ .batch = ROWS, .optimizer = dml_sgd(0.1f, 0) });
    CHECK_STRING(dml_error(context), "");
    static const float numbers[ROWS * WORDS * WIDTH] = { 1, -1, 0.5f, 2, -2, 1, 0, 1, 1, 0, 3, -1 };
    float w[CLASSES * WIDTH], after[CLASSES * WIDTH], got;
    int32_t index[ROWS * WORDS] = { 0, 4, -100, 2, 1, 3 };
    dml_node *weight = dml_graph_find(graph, "dense_1.weight");
    CHECK_INT(dml_program_run(both, ROWS, DML_INPUTS(numbers, index), &got), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_error(context), "input 'label': sample 1 of the batch is -100, it must be in 0 .. 4");
    dml_clear_error(context);
    CHECK_INT(dml_trainer_step(trainer, ROWS, DML_INPUTS(numbers, index), &got), DML_OK);
    CHECK(got > 0);
    CHECK_INT(dml_parameter_read(weight, w, CLASSES * WIDTH), DML_OK);
    static const int32_t bad[] = { 5, -1, INT32_MAX, INT32_MIN };
    for (int i = 0; i < 4; i++) {
        index[3] = bad[i];
        CHECK_INT(dml_trainer_step(trainer, ROWS, DML_INPUTS(numbers, index), &got), DML_ERROR_ARGUMENT);
        CHECK_CONTAINS(dml_error(context), "it must be in 0 .. 4, or -100");
        dml_clear_error(context);
        CHECK_INT(dml_parameter_read(weight, after, CLASSES * WIDTH), DML_OK);
        CHECK(memcmp(w, after, sizeof w) == 0);
    }
    for (int i = 0; i < ROWS * WORDS; i++) index[i] = -100;
    CHECK_INT(dml_trainer_step(trainer, ROWS, DML_INPUTS(numbers, index), &got), DML_OK);
    CHECK(got == 0);
    CHECK_INT(dml_parameter_read(weight, after, CLASSES * WIDTH), DML_OK);
    CHECK(memcmp(w, after, sizeof w) == 0);
    dml_close(context);
}
EACH_BACKEND(labels_out_of_range)

/* Wherever it is, and whatever else an item of a device's group has: the loss is NaN, and so is a softmax of
   it among numbers that are masked. */
static void a_nan_spoils_its_row(void)
{
    static const int sizes[] = { 3, 10, 33, 700, 5000 };
    static float x[5000], y[5000];
    const dml_program_options one = { .batch = 1 };
    for (int s = 0; s < 5; s++) {
        const int n = sizes[s];
        dml_context *context = open_here(&(dml_options){ .threads = 1 });
        dml_graph *graph = dml_graph_create(context);
        dml_node *logits = dml_input(graph, "x", DML_F32, n), *label = dml_input(graph, "label", DML_I32);
        dml_program *loss = dml_compile(dml_softmax_cross_entropy(logits, label), &one);
        dml_program *softmax = dml_compile(dml_softmax(logits, -1), &one);
        CHECK_STRING(dml_error(context), "");
        for (int i = 0; i < 4; i++) {
            const int place = i < 3 ? (n - 1) * i / 2 : n / 3, other = (place + 1) % n;
            int32_t index = other;
            float got = 0;
            for (int k = 0; k < n; k++) x[k] = (float)(k % 7) - 3;
            x[place] = NAN;
            CHECK_INT(dml_program_run(loss, 1, DML_INPUTS(x, &index), &got), DML_OK);
            CHECK_MESSAGE(isnan(got), "NaN at %d of %d: a loss of %g", place, n, (double)got);
            for (int k = 0; k < n; k++) x[k] = -INFINITY;
            x[place] = NAN;
            x[other] = 1;
            CHECK_INT(dml_program_run(softmax, 1, DML_INPUTS(x), y), DML_OK);
            CHECK_MESSAGE(isnan(y[0]) && isnan(y[other]) && isnan(y[n - 1]), "NaN at %d of %d: %g, %g, %g",
                          place, n, (double)y[0], (double)y[other], (double)y[n - 1]);
        }
        dml_close(context);
    }
}
EACH_BACKEND(a_nan_spoils_its_row)

/* A mean over nothing is 0, with gradients of 0. */
static void nothing_counts(void)
{
    static const float zeros[ROWS] = { 0, 0, 0 }, x[ROWS * WIDTH] = { 1, 2, 3, -1, -2, -3 };
    for (int which = 0; which < 2; which++) {
        dml_context *context = open_here(&(dml_options){ .threads = 1 });
        dml_graph *graph = dml_graph_create(context);
        dml_node *h = dml_dense(dml_input(graph, "x", DML_F32, WIDTH), WIDTH);
        dml_node *weights = dml_input(graph, "weights", DML_F32), *t = dml_input(graph, "t", DML_F32, WIDTH);
        const dml_loss_options of_elements = { .sample_weights = weights };
        const dml_cross_entropy_options of_rows = { .sample_weights = weights };
        dml_node *loss = which ? dml_softmax_cross_entropy_with(h, t, &of_rows)
                               : dml_mean_squared_error_with(h, t, &of_elements);
        dml_program *p = dml_compile(loss, &(dml_program_options){ .batch = ROWS, .training = true });
        CHECK_MESSAGE(p, "%s", dml_error(context));
        const size_t n = dml_graph_trained_count(graph);
        float *g = (float *)malloc(n * sizeof *g), got = NAN;
        poison(context, p->arena);
        CHECK_INT(program_train(p, ROWS, (const void *[]){ x, zeros, x }, 3, NULL, &got), DML_OK);
        CHECK(got == 0);
        read_floats(context, g, p->g, n);
        for (size_t i = 0; i < n; i++) CHECK(g[i] == 0);
        free(g);
        dml_close(context);
    }
}
EACH_BACKEND(nothing_counts)

/* As weight * loss / sum of weights comes out: a sum is infinite, and a mean is one infinity by another. */
static void an_infinite_weight(void)
{
    static const float x[ROWS * WIDTH] = { 1, 2, 3, -1, -2, -3 }, of[ROWS] = { 2, INFINITY, 0 };
    for (int which = 0; which < 3; which++)
        for (int sum = 0; sum < 2; sum++) {
            dml_context *context = open_here(&(dml_options){ .threads = 1 });
            dml_graph *graph = dml_graph_create(context);
            dml_node *h = dml_dense(dml_input(graph, "x", DML_F32, WIDTH), WIDTH);
            dml_node *weights = dml_input(graph, "weights", DML_F32);
            const dml_loss_reduction reduction = sum ? DML_LOSS_SUM : DML_LOSS_MEAN;
            const dml_loss_options of_elements = { .sample_weights = weights, .reduction = reduction };
            const dml_cross_entropy_options of_rows = { .sample_weights = weights, .reduction = reduction };
            dml_node *t = which == 2 ? dml_input(graph, "t", DML_I32) : dml_input(graph, "t", DML_F32, WIDTH);
            dml_node *loss = which ? dml_softmax_cross_entropy_with(h, t, &of_rows)
                                   : dml_mean_squared_error_with(h, t, &of_elements);
            dml_program *p = dml_compile(loss, &(dml_program_options){ .batch = ROWS });
            CHECK_MESSAGE(p, "%s", dml_error(context));
            static const float targets[ROWS * WIDTH] = { 0.25f, 0.75f, 0.5f, 0.5f, 1, 0 };
            static const int32_t labels[ROWS] = { 0, 1, 0 };
            const void *const inputs[] = { x, of, which == 2 ? (const void *)labels : targets };
            float got = 0;
            CHECK_INT(dml_program_run(p, ROWS, inputs, 3, &got), DML_OK);
            CHECK_MESSAGE(sum ? got == INFINITY : isnan(got), "loss %d, %s: %g", which, sum ? "sum" : "mean",
                          (double)got);
            dml_close(context);
        }
}
EACH_BACKEND(an_infinite_weight)

/* A row whose label's class weighs nothing isn't looked at either, whatever its logits are. */
static void rows_of_no_weight_are_not_looked_at(void)
{
    static const float of_class[2][2] = { { 0, 1 }, { 1, 0 } };
    static const float bad[] = { NAN, -INFINITY, INFINITY };
    for (int which = 0; which < 2; which++)
        for (int i = 0; i < 3; i++)
            for (int sum = 0; sum < 2; sum++) {
                dml_context *context = open_here(&(dml_options){ .threads = 1 });
                dml_graph *graph = dml_graph_create(context);
                dml_node *w = dml_parameter(graph, "w", dml_init_constant(0), 2);
                dml_node *x = dml_add(dml_input(graph, "x", DML_F32, 2, 2), w);
                const dml_cross_entropy_options options = { .class_weights = of_class[which],
                                                            .reduction = sum ? DML_LOSS_SUM : DML_LOSS_MEAN };
                dml_node *loss =
                    dml_softmax_cross_entropy_with(x, dml_input(graph, "label", DML_I32, 2), &options);
                dml_program *p = dml_compile(loss, &(dml_program_options){ .batch = 1, .training = true });
                CHECK_MESSAGE(p, "%s", dml_error(context));
                const float logits[4] = { bad[i], 1, 0.5f, 2 };
                const int32_t labels[2] = { which, 1 - which };
                float got = NAN, g[2] = { NAN, NAN };
                CHECK_INT(program_train(p, 1, (const void *[]){ logits, labels }, 1, NULL, &got), DML_OK);
                read_floats(context, g, p->g, 2);
                const double other = 1 / (1 + exp(which ? 1.5 : -1.5)); /* the probability of the label */
                CHECK_NEAR(got, -log(other), 1e-5);
                CHECK_NEAR(g[1 - which], other - 1, 1e-5);
                CHECK_NEAR(g[which], 1 - other, 1e-5);
                dml_close(context);
            }
}
EACH_BACKEND(rows_of_no_weight_are_not_looked_at)

static void bad_distillations(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *s = dml_dense(dml_input(graph, "x", DML_F32, WIDTH), CLASSES);
    dml_node *t = dml_input(graph, "t", DML_F32, CLASSES), *wide = dml_input(graph, "wide", DML_F32, WIDTH);
    dml_node *label = dml_input(graph, "label", DML_I32), *labels = dml_input(graph, "labels", DML_I32, 3);
    dml_node *all =
        dml_reshape(dml_parameter(graph, "all", dml_init_constant(0), CLASSES), dml_shape_of(CLASSES));
    static const float temperatures[] = { -1, NAN, INFINITY }, alphas[] = { -0.5f, 1.5f, NAN };
    for (int i = 0; i < 3; i++) {
        const dml_distillation_options a = { .temperature = temperatures[i] }, b = { .alpha = alphas[i] };
        REFUSED(dml_distillation(s, t, label, &a), DML_ERROR_ARGUMENT, "distillation: its temperature is ");
        REFUSED(dml_distillation(s, t, label, &b), DML_ERROR_ARGUMENT, "distillation: its alpha is ");
    }
    REFUSED(dml_distillation(s, t, NULL, NULL), DML_ERROR_ARGUMENT, "its alpha must be 1, not 0.5");
    REFUSED(dml_distillation(NULL, t, label, NULL), DML_ERROR_ARGUMENT, "the student's logits are NULL");
    REFUSED(dml_distillation(s, NULL, label, NULL), DML_ERROR_ARGUMENT, "the teacher's logits are NULL");
    REFUSED(dml_distillation(s, wide, label, NULL), DML_ERROR_SHAPE,
            "the student's logits are f32 5 and the teacher's f32 2; they must be rows of f32 of one shape");
    REFUSED(dml_distillation(s, all, label, NULL), DML_ERROR_SHAPE,
            "the teacher's f32 5 for the whole batch");
    REFUSED(dml_distillation(labels, labels, label, NULL), DML_ERROR_SHAPE, "i32 3");
    REFUSED(dml_distillation(s, t, labels, NULL), DML_ERROR_SHAPE, "its target is i32 3");
    REFUSED(dml_distillation(s, t, NULL, &(dml_distillation_options){ .alpha = 1, .sample_weights = t }),
            DML_ERROR_SHAPE, "its sample weights are f32 5");
    REFUSED(dml_distillation(s, t, label, &(dml_distillation_options){ .reduction = (dml_loss_reduction)3 }),
            DML_ERROR_ARGUMENT, "its reduction is 3");
    CHECK(!dml_distillation(NULL, NULL, NULL, NULL));
    CHECK(dml_distillation(s, t, NULL, &(dml_distillation_options){ .alpha = 1 }));
    CHECK_INT(dml_status_of(context), DML_OK);
    dml_close(context);
}

/* Else it would be left out without a word, and a label of it refused later. */
static void an_index_that_nothing_ignores(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, CLASSES), *label = dml_input(graph, "label", DML_I32);
    REFUSED(dml_softmax_cross_entropy_with(x, label, &(dml_cross_entropy_options){ .ignore_index = -100 }),
            DML_ERROR_ARGUMENT,
            "an ignore_index of -100 asked for, but ignores is false; set ignores too, or leave both out");
    CHECK(dml_softmax_cross_entropy_with(x, label, &(dml_cross_entropy_options){ .ignores = true }));
    CHECK_INT(dml_status_of(context), DML_OK);
    dml_close(context);
}

int main(void)
{
    RUN_EACH(labels_out_of_range);
    RUN_EACH(a_nan_spoils_its_row);
    RUN_EACH(nothing_counts);
    RUN_EACH(an_infinite_weight);
    RUN_EACH(rows_of_no_weight_are_not_looked_at);
    RUN(bad_distillations);
    RUN(an_index_that_nothing_ignores);
    return test_report("ops/op_loss");
}
