/* Mixed precision in training: the loss scale, steps that are skipped, and what comes of 16 bits. */
#include "train/checkpoint.h"

#include "ops/op_dropout.h"
#include "train/loss_scale.h"
#include "train/trainer_internal.h"

#include "small_model.h"

#include <math.h>
#include <unistd.h>

static dml_trainer *trainer_with(dml_dtype dtype, float loss_scale, float average)
{
    context = open_here(NULL);
    dml_trainer_options options = { .batch = BATCH, .optimizer = dml_adam(0.02f) };
    options.dtype = dtype;
    options.loss_scale = loss_scale;
    options.average = average;
    options.clip_norm = 100;
    dml_trainer *t = dml_trainer_create(small_loss(), &options);
    CHECK_MESSAGE(t, "%s", dml_error(context));
    return t;
}

static void what_it_begins_with(void)
{
    static const struct {
        dml_dtype dtype;
        float asked, got;
    } cases[] = { { DML_F32, 0, 1 },  { DML_BF16, 0, 1 },     { DML_F16, 0, 65536 },
                  { DML_F16, -1, 1 }, { DML_BF16, 256, 256 }, { DML_F32, 8, 8 } };
    for (int i = 0; i < 6; i++) {
        dml_trainer *t = trainer_with(cases[i].dtype, cases[i].asked, 0);
        CHECK(dml_trainer_loss_scale(t) == cases[i].got);
        CHECK_INT(dml_trainer_skipped(t), 0);
        dml_close(context);
    }
    CHECK(dml_trainer_loss_scale(NULL) == 1);
    CHECK_INT(dml_trainer_skipped(NULL), 0);
    context = open_here(NULL);
    dml_node *loss = small_loss();
    const float refused[] = { -2, NAN, INFINITY, 1e-35f };
    for (int i = 0; i < 4; i++) {
        CHECK(dml_trainer_create(loss, &(dml_trainer_options){ .batch = 1, .loss_scale = refused[i] }) ==
              NULL);
        CHECK_CONTAINS(dml_error(context), "a loss scale of ");
        dml_clear_error(context);
    }
    CHECK(dml_trainer_create(loss, &(dml_trainer_options){ .batch = 1, .dtype = DML_I64 }) == NULL);
    CHECK_CONTAINS(dml_error(context), "computes in f32, bf16 or f16");
    dml_close(context);
}
EACH_BACKEND(what_it_begins_with)

/* What a few steps of every kind leave in w, and g before the last update. */
static void several_steps(float loss_scale, bool synced, float w[COUNT], float g[COUNT])
{
    dml_trainer *t = trainer_with(DML_F32, loss_scale, 0);
    mock m;
    if (synced) CHECK_INT(dml_trainer_sync(t, sync_with(&m)), DML_OK);
    CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, NULL), DML_OK);
    CHECK_INT(dml_trainer_backward(t, 1, inputs, 2, DML_ADD | DML_MORE, NULL), DML_OK);
    if (synced) m.most_samples = 2 * BATCH;
    CHECK_INT(dml_trainer_backward(t, BATCH, inputs, 2, DML_ADD, NULL), DML_OK);
    CHECK_INT(dml_trainer_update(t), DML_OK);
    CHECK_INT(dml_trainer_backward(t, 2, inputs, 2, DML_OVERWRITE, NULL), DML_OK);
    if (synced) m.most_samples = 3 * BATCH;
    CHECK_INT(dml_trainer_backward(t, 3, inputs, 2, DML_ADD, NULL), DML_OK);
    copy_vector(t, DML_GRADIENTS, g);
    CHECK_INT(dml_trainer_update(t), DML_OK);
    copy_vector(t, DML_PARAMETERS, w);
    CHECK_INT(dml_trainer_steps(t), 3);
    CHECK_INT(dml_trainer_skipped(t), 0);
    CHECK_MESSAGE(dml_status_of(context) == DML_OK, "%s", dml_error(context));
    dml_close(context);
}

/* A power of 2 changes no bit of the gradient that the caller sees, nor of w. */
static void a_power_of_two_changes_nothing(void)
{
    for (int synced = 0; synced < 2; synced++) {
        float w[2][COUNT], g[2][COUNT];
        several_steps(0, synced, w[0], g[0]);
        several_steps(1024, synced, w[1], g[1]);
        for (int i = 0; i < COUNT; i++) {
            CHECK_NEAR(w[1][i], w[0][i], synced ? 1e-6 : 0);
            CHECK_NEAR(g[1][i], g[0][i], synced ? 1e-6 : 0);
        }
    }
}
EACH_BACKEND(a_power_of_two_changes_nothing)

static void an_overflow_skips_the_step(void)
{
    static const float bad[] = { INFINITY, NAN, -INFINITY };
    for (int b = 0; b < 3; b++) {
        float before[COUNT], after[COUNT], average[2][COUNT];
        dml_trainer *t = trainer_with(DML_F16, 1024, 0.5f);
        const int last = dml_trainer_vectors(t) - 1;
        CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, NULL), DML_OK);
        CHECK_INT(dml_trainer_backward(t, BATCH, inputs, 2, DML_OVERWRITE, NULL), DML_OK);
        copy_vector(t, DML_PARAMETERS, before);
        copy_vector(t, last, average[0]);
        float *g = dml_trainer_get(t, DML_GRADIENTS, 0, COUNT);
        g[COUNT - 1 - b] = bad[b];
        CHECK_INT(dml_trainer_put(t, DML_GRADIENTS, 0, COUNT), DML_OK);
        CHECK_INT(dml_trainer_update(t), DML_OK);
        copy_vector(t, DML_PARAMETERS, after);
        copy_vector(t, last, average[1]);
        CHECK(memcmp(before, after, sizeof before) == 0 &&
              memcmp(average[0], average[1], sizeof before) == 0);
        CHECK(!isfinite(dml_trainer_gradient_norm(t)));
        CHECK_INT(dml_trainer_steps(t), 1);
        CHECK_INT(dml_trainer_skipped(t), 1);
        CHECK(dml_trainer_loss_scale(t) == 512);
        CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, NULL), DML_OK);
        copy_vector(t, DML_PARAMETERS, after);
        CHECK(memcmp(before, after, sizeof before) != 0);
        CHECK_INT(dml_trainer_steps(t), 2);
        CHECK(dml_trainer_loss_scale(t) == 512);
        dml_close(context);
    }
}
EACH_BACKEND(an_overflow_skips_the_step)

/* In parts, and by an optimizer of the caller's own. */
static void ranges_are_skipped_too(void)
{
    float before[COUNT], after[COUNT];
    dml_trainer *t = trainer_with(DML_F32, 4, 0);
    for (int own = 0; own < 2; own++) {
        CHECK_INT(dml_trainer_backward(t, BATCH, inputs, 2, DML_OVERWRITE, NULL), DML_OK);
        copy_vector(t, DML_PARAMETERS, before);
        dml_trainer_get(t, DML_GRADIENTS, 0, COUNT)[3] = NAN;
        CHECK_INT(dml_trainer_put(t, DML_GRADIENTS, 0, COUNT), DML_OK);
        for (size_t i = 0; i < COUNT && !own; i += 11)
            CHECK_INT(dml_trainer_update_range(t, i, i + 11 < COUNT ? i + 11 : COUNT), DML_OK);
        CHECK_INT(dml_trainer_advance(t), DML_OK);
        copy_vector(t, DML_PARAMETERS, after);
        CHECK(memcmp(before, after, sizeof before) == 0);
        CHECK_INT(dml_trainer_skipped(t), own + 1);
        CHECK_INT(dml_trainer_steps(t), 0);
    }
    CHECK(dml_trainer_loss_scale(t) == 1);
    dml_close(context);
}
EACH_BACKEND(ranges_are_skipped_too)

/* As it happens: factors beyond f16's numbers, until the scale is small enough. */
static void it_finds_a_scale(void)
{
    dml_trainer *t = trainer_with(DML_F16, 1e9f, 0);
    float loss = 0;
    if (!context->device.host_memory) { /* products there round nothing: f32 holds such a loss */
        dml_close(context);
        return;
    }
    for (int i = 0; i < 100; i++) CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, &loss), DML_OK);
    CHECK(dml_trainer_skipped(t) > 5 && dml_trainer_skipped(t) < 30);
    CHECK_INT(dml_trainer_steps(t), 100 - (int)dml_trainer_skipped(t));
    CHECK(isfinite(loss) && dml_trainer_loss_scale(t) < 1e7f);
    dml_close(context);
}
EACH_BACKEND(it_finds_a_scale)

/* Twice what it is would be beyond it. */
static void the_largest_scale_stays(void)
{
    dml_trainer *t = trainer_with(DML_F32, 0.8f * DML__MOST_LOSS_SCALE, 0);
    dml_trainer_run run = dml_trainer_get_run(t);
    run.scaled_steps = DML__LOSS_SCALE_STEPS - 1;
    CHECK_INT(dml_trainer_set_run(t, &run), DML_OK);
    CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, NULL), DML_OK);
    CHECK(dml_trainer_loss_scale(t) == run.loss_scale && dml_trainer_skipped(t) == 0);
    CHECK_INT(dml_trainer_get_run(t).scaled_steps, 0);
    dml_close(context);
}
EACH_BACKEND(the_largest_scale_stays)

static void the_scale_doubles(void)
{
    dml_trainer *t = trainer_with(DML_F16, 0, 0);
    dml_trainer_run run = dml_trainer_get_run(t);
    CHECK(run.loss_scale == 65536 && run.scaled_steps == 0);
    run.loss_scale = 16;
    run.scaled_steps = DML__LOSS_SCALE_STEPS - 2;
    CHECK_INT(dml_trainer_set_run(t, &run), DML_OK);
    CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, NULL), DML_OK);
    CHECK(dml_trainer_loss_scale(t) == 16);
    CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, NULL), DML_OK);
    CHECK(dml_trainer_loss_scale(t) == 32);
    CHECK_INT(dml_trainer_get_run(t).scaled_steps, 0);
    run.loss_scale = -3;
    CHECK_INT(dml_trainer_set_run(t, &run), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_error(context), "a loss scale of -3");
    CHECK(dml_trainer_loss_scale(t) == 32);
    dml_clear_error(context);
    run.loss_scale = 0;
    CHECK_INT(dml_trainer_set_run(t, &run), DML_OK);
    CHECK(dml_trainer_loss_scale(t) == 32);
    dml_close(context);
}
EACH_BACKEND(the_scale_doubles)

static void skip_one(dml_trainer *t)
{
    const uint64_t skipped = dml_trainer_skipped(t);
    CHECK_INT(dml_trainer_backward(t, BATCH, inputs, 2, DML_OVERWRITE, NULL), DML_OK);
    dml_trainer_get(t, DML_GRADIENTS, 0, 1)[0] = NAN;
    CHECK_INT(dml_trainer_put(t, DML_GRADIENTS, 0, 1), DML_OK);
    CHECK_INT(dml_trainer_update(t), DML_OK);
    CHECK_INT(dml_trainer_skipped(t), skipped + 1);
}

/* A checkpoint has it, and how many steps were skipped; one of a trainer that doesn't scale loads into one
 * that does, and the other way. */
static void checkpoints_have_it(void)
{
    char path[256];
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/dml_loss_scale_test.%ld", folder ? folder : "/tmp", (long)getpid());
    static const float from[] = { 0, 64, 64 }, to[] = { 32, 0, 32 }, want[] = { 32, 1, 64 };
    for (int i = 0; i < 3; i++) {
        dml_trainer *t = trainer_with(DML_F32, 2 * from[i], 0);
        if (from[i] > 0) skip_one(t);
        CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, NULL), DML_OK);
        CHECK_MESSAGE(dml_trainer_save(t, path) == DML_OK, "%s", dml_error(context));
        dml_close(context);
        t = trainer_with(DML_F32, to[i], 0);
        CHECK_MESSAGE(dml_trainer_load(t, path) == DML_OK, "%s", dml_error(context));
        CHECK(dml_trainer_loss_scale(t) == want[i]);
        CHECK_INT(t->scaled_steps, i == 2 ? 1 : 0);
        CHECK_INT(dml_trainer_steps(t), 1);
        CHECK_INT(dml_trainer_skipped(t), from[i] > 0);
        dml_close(context);
    }
    remove(path);
}

/* As if it had never stopped, right after a step that was skipped, also by what dropout leaves out. */
static void a_run_goes_on_after_a_skipped_step(void)
{
    char path[256];
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/dml_loss_scale_test.%ld", folder ? folder : "/tmp", (long)getpid());
    dml_context *of[2];
    dml_trainer *t[2];
    float loss[2];
    for (int i = 0; i < 2; i++) {
        context = of[i] = open_here(NULL);
        dml_node *x = dml_dense(dml_input(dml_graph_create(context), "x", DML_F32, 2), WIDTH);
        dml_node *label = dml_input(dml_node_graph(x), "label", DML_I32);
        t[i] = dml_trainer_create(dml_softmax_cross_entropy(dml_dense(dml_dropout(x, 0.5f), 3), label),
                                  &(dml_trainer_options){ .batch = BATCH, .loss_scale = 64 });
        CHECK_MESSAGE(t[i], "%s", dml_error(context));
    }
    context = of[0];
    CHECK_INT(dml_trainer_step(t[0], BATCH, inputs, 2, NULL), DML_OK);
    skip_one(t[0]);
    CHECK_INT(dml_trainer_save(t[0], path), DML_OK);
    CHECK_INT(dml_trainer_backward(t[1], BATCH, inputs, 2, DML_OVERWRITE, NULL), DML_OK);
    CHECK_INT(dml_trainer_load(t[1], path), DML_OK);
    for (int step = 0; step < 4; step++) {
        for (int i = 0; i < 2; i++) CHECK_INT(dml_trainer_step(t[i], BATCH, inputs, 2, &loss[i]), DML_OK);
        CHECK_MESSAGE(loss[0] == loss[1], "step %d: %.9g, not %.9g", step, (double)loss[1], (double)loss[0]);
    }
    dml_close(of[0]);
    dml_close(of[1]);
    remove(path);
}

/* A file's scale that no trainer may have is refused before anything changes. */
static void impossible_scales_in_files(void)
{
    char path[] = "/tmp/dml_loss_scale_XXXXXX", bytes[65536];
    close(mkstemp(path));
    dml_trainer *t = trainer_with(DML_F16, 1024, 0);
    CHECK_INT(dml_trainer_save(t, path), DML_OK);
    FILE *file = fopen(path, "r+b");
    const size_t size = fread(bytes, 1, sizeof bytes, file);
    size_t at = 0;
    while (at + 6 < size && memcmp(bytes + at, "\"1024\"", 6) != 0) at++;
    CHECK(at + 6 < size);
    fseek(file, (long)at, SEEK_SET);
    CHECK_INT(fwrite("\"1e35\"", 1, 6, file), 6);
    fclose(file);
    float *w = dml_trainer_get(t, DML_PARAMETERS, 0, 1);
    const float other = w[0] + 1;
    w[0] = other;
    CHECK_INT(dml_trainer_put(t, DML_PARAMETERS, 0, 1), DML_OK);
    CHECK_INT(dml_trainer_load(t, path), DML_ERROR_FORMAT);
    dml_clear_error(context);
    CHECK(dml_trainer_get(t, DML_PARAMETERS, 0, 1)[0] == other);
    dml_close(context);
    remove(path);
}

/* In 16 bits the same is learnt. */
static void learns_as_in_f32(void)
{
    static const dml_dtype types[] = { DML_F32, DML_BF16, DML_F16 };
    float loss[3] = { 0 };
    for (int d = 0; d < 3; d++) {
        dml_trainer *t = trainer_with(types[d], 0, 0);
        for (int i = 0; i < (slow_here() ? 30 : 150); i++)
            CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, &loss[d]), DML_OK);
        CHECK_NEAR(loss[d], loss[0], 0.05 * (double)loss[0]);
        dml_close(context);
    }
    CHECK(loss[0] < (slow_here() ? 1.0f : 0.2f));
}
EACH_BACKEND(learns_as_in_f32)

int main(void)
{
    RUN_EACH(what_it_begins_with);
    RUN_EACH(a_power_of_two_changes_nothing);
    RUN_EACH(an_overflow_skips_the_step);
    RUN_EACH(ranges_are_skipped_too);
    RUN_EACH(it_finds_a_scale);
    RUN_EACH(the_largest_scale_stays);
    RUN_EACH(the_scale_doubles);
    backend_here = find_backend("cpu");
    RUN(checkpoints_have_it);
    RUN(a_run_goes_on_after_a_skipped_step);
    RUN(impossible_scales_in_files);
    RUN_EACH(learns_as_in_f32);
    return test_report("train/loss_scale");
}
