/* The search for a learning rate: what it takes down and suggests, and that nothing of it stays. */
#include "train/lr_finder.h"

#include "graph/weights.h"
#include "ops/op_norm.h"

#include "small_model.h"

/* A model with running statistics, and a trainer with state and an average. */
static dml_trainer *rich_trainer(void)
{
    context = open_here(NULL);
    dml_graph *g = dml_graph_create(context);
    dml_node *h = dml_tanh(dml_batch_norm(dml_dense(dml_input(g, "x", DML_F32, 2), WIDTH), NULL));
    dml_node *loss = dml_softmax_cross_entropy(dml_dense(h, 3), dml_input(g, "label", DML_I32));
    dml_trainer *t = dml_trainer_create(
        loss, &(dml_trainer_options){
                  .batch = BATCH, .optimizer = dml_adam(0.02f), .average = 0.9f, .loss_scale = 1024 });
    CHECK_MESSAGE(t, "%s", dml_error(context));
    return t;
}

static int search(dml_trainer *t, dml_lr_finder *finder)
{
    float loss = 0;
    int steps = 0;
    do {
        CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, &loss), DML_OK);
        steps++;
    } while (dml_lr_finder_step(finder, loss));
    return steps;
}

static void all_comes_back(void)
{
    enum { MOST = 200 };
    float vectors[2][5][MOST], loss[2];
    const dml_lr_finder_options options = { .steps = 12, .first = 1e-4f, .last = 1 };
    for (int with = 0; with < 2; with++) {
        dml_trainer *t = rich_trainer();
        for (int i = 0; i < 3; i++) CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, NULL), DML_OK);
        if (with) {
            dml_lr_finder *finder = dml_lr_finder_begin(t, &options);
            CHECK_MESSAGE(finder, "%s", dml_error(context));
            CHECK_INT(dml_trainer_backward(t, BATCH, inputs, 2, DML_OVERWRITE, NULL), DML_OK);
            dml_trainer_get(t, DML_GRADIENTS, 0, 1)[0] = NAN;
            CHECK_INT(dml_trainer_put(t, DML_GRADIENTS, 0, 1), DML_OK);
            CHECK_INT(dml_trainer_update(t), DML_OK);
            CHECK_INT(dml_trainer_skipped(t), 1);
            CHECK(search(t, finder) > 2);
            CHECK_INT(dml_lr_finder_end(finder), DML_OK);
            CHECK_INT(dml_trainer_skipped(t), 0);
            CHECK(dml_trainer_loss_scale(t) == 1024);
            CHECK_INT(dml_trainer_get_run(t).scaled_steps, 3);
            CHECK(dml_trainer_lr(t) == 0.02f);
            CHECK_INT(dml_trainer_steps(t), 3);
            CHECK_INT(dml_trainer_update(t), DML_ERROR_STATE); /* by what gradient? */
            dml_clear_error(context);
        }
        CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, &loss[with]), DML_OK);
        CHECK_INT(dml_trainer_vectors(t), 5);
        for (int v = 0; v < 5; v++) {
            const size_t n = dml_trainer_count(t, v);
            CHECK(n <= MOST);
            memcpy(vectors[with][v], dml_trainer_get(t, v, 0, n), n * sizeof(float));
            if (with) CHECK(memcmp(vectors[0][v], vectors[1][v], n * sizeof(float)) == 0);
        }
        dml_close(context);
    }
    CHECK(loss[0] == loss[1]);
}
EACH_BACKEND(all_comes_back)

/* A loss of the test's own over the rate: flat, then falling, then up. The steepest is where it was put. */
static void suggestions(void)
{
    const dml_lr_finder_options options = { .first = 1e-6f, .last = 1, .steps = 61, .smoothing = 1e-6f };
    dml_lr_suggestion found;
    int count;
    backend_here = find_backend("cpu");
    dml_trainer *t = small_trainer(0.5f, 0);
    dml_lr_finder *finder = dml_lr_finder_begin(t, &options);
    bool more = true;
    for (int i = 0; more; i++) {
        const double power = -6 + i * 0.1; /* of ten */
        const double loss = 2 - tanh((power + 3) * 2) + (power > -1 ? 4 * (power + 1) * (power + 1) : 0);
        CHECK_NEAR(dml_trainer_lr(t), pow(10, power), 1e-5 * pow(10, power));
        more = dml_lr_finder_step(finder, (float)loss);
    }
    const dml_lr_point *points = dml_lr_finder_points(finder, &count);
    CHECK(count > 51 && count < 61); /* it diverged */
    CHECK_NEAR(points[30].lr, 1e-3, 1e-8);
    CHECK_NEAR(points[30].smoothed, points[30].loss, 1e-5);
    CHECK_INT(dml_lr_finder_suggest(finder, &found), DML_OK);
    CHECK_NEAR(log10((double)found.steepest), -3, 0.11);
    CHECK_NEAR(log10((double)found.minimum), -2, 0.11); /* the smallest loss is at 0.1 */
    CHECK_INT(dml_lr_finder_end(finder), DML_OK);
    CHECK(dml_trainer_lr(t) == 0.5f);
    dml_close(context);
}

/* Losses that hide what little they fall by: no rate is made up. The same noise on a fall that counts does
   not matter. */
static void noise(void)
{
    backend_here = find_backend("cpu");
    for (int falls = 0; falls < 2; falls++)
        for (unsigned seed = 1; seed <= 20; seed++) {
            dml_trainer *t = small_trainer(0.5f, 0);
            dml_lr_finder *finder = dml_lr_finder_begin(t, NULL);
            dml_lr_suggestion found;
            unsigned state = seed;
            bool more = true;
            for (int i = 0; more; i++) {
                const double power = -7 + i * 0.0808, u = (double)(test_random(&state) >> 8) / 16777216.0;
                const double loss = 1.2 + 0.4 * (u - 0.5) + (falls ? -0.5 * tanh((power + 3) * 2) : 0) +
                                    (power > -0.5 ? 4 * (power + 0.5) : 0);
                more = dml_lr_finder_step(finder, (float)loss);
            }
            const dml_status status = dml_lr_finder_suggest(finder, &found);
            CHECK_INT(status, falls ? DML_OK : DML_ERROR_STATE);
            if (falls)
                CHECK_MESSAGE(fabs(log10((double)found.steepest) + 2.8) < 1, "seed %u: %g", seed,
                              (double)found.steepest);
            else
                CHECK_CONTAINS(dml_error(context), "which may be chance");
            dml_clear_error(context);
            CHECK_INT(dml_lr_finder_end(finder), DML_OK);
            dml_close(context);
        }
}

/* A fall into the eleventh of 100 points is before what counts, one into the 95th in it, into the 96th
 * behind. */
static void what_counts(void)
{
    static const int falls[][2] = { { 10, 50 }, { 11, 50 }, { 50, 94 }, { 50, 95 } };
    static const int steepest[] = { 49, 10, 93, 49 };
    backend_here = find_backend("cpu");
    for (int c = 0; c < 4; c++) {
        const dml_lr_finder_options options = { .steps = 100, .smoothing = 1e-6f };
        dml_trainer *t = small_trainer(0.5f, 0);
        dml_lr_finder *finder = dml_lr_finder_begin(t, &options);
        dml_lr_suggestion found;
        int count;
        for (int i = 0; i < 100;
             i++) /* the later of the last two falls is the larger, of the first two the earlier */
            dml_lr_finder_step(finder, 5 - (i >= falls[c][0] ? c < 2 ? 2.0f : 1.0f : 0) -
                                           (i >= falls[c][1] ? c < 2 ? 1.0f : 2.0f : 0));
        const dml_lr_point *points = dml_lr_finder_points(finder, &count);
        CHECK_INT(count, 100);
        CHECK_INT(dml_lr_finder_suggest(finder, &found), DML_OK);
        CHECK_MESSAGE(found.steepest == points[steepest[c]].lr, "case %d: %g, not %g", c,
                      (double)found.steepest, (double)points[steepest[c]].lr);
        dml_close(context);
    }
}

static void losses_below_zero(void)
{
    backend_here = find_backend("cpu");
    const dml_lr_finder_options options = { .steps = 40, .smoothing = 1e-6f };
    dml_trainer *t = small_trainer(0.5f, 0);
    dml_lr_finder *finder = dml_lr_finder_begin(t, &options);
    for (int i = 0; i < 20; i++) CHECK(dml_lr_finder_step(finder, -1 - 0.1f * (float)i));
    CHECK(dml_lr_finder_step(finder, 5.7f)); /* the smallest is -2.9: three times that above it is 5.8 */
    CHECK(!dml_lr_finder_step(finder, 5.9f));
    CHECK_INT(dml_lr_finder_end(finder), DML_OK);
    dml_close(context);
}

static void smoothing_and_ends(void)
{
    dml_lr_suggestion found;
    int count;
    backend_here = find_backend("cpu");
    dml_trainer *t = small_trainer(0.5f, 0);
    dml_lr_finder *finder = dml_lr_finder_begin(t, &(dml_lr_finder_options){ .steps = 5, .smoothing = 0.5f });
    CHECK(!dml_lr_finder_points(finder, &count) && count == 0);
    CHECK(dml_lr_finder_step(finder, 1) && dml_lr_finder_step(finder, 2));
    CHECK_INT(dml_lr_finder_suggest(finder, &found), DML_ERROR_STATE);
    CHECK_CONTAINS(dml_error(context), "after 2 steps of the search");
    dml_clear_error(context);
    CHECK(!dml_lr_finder_step(finder, NAN)); /* not taken down */
    const dml_lr_point *points = dml_lr_finder_points(finder, &count);
    CHECK_INT(count, 2);
    CHECK_NEAR(points[0].smoothed, 1, 1e-7);
    CHECK_NEAR(points[1].smoothed, (0.25 + 1) / 0.75, 1e-6);
    CHECK(points[0].lr == 1e-7f);
    CHECK(!dml_lr_finder_step(finder, 100)); /* diverges */
    CHECK_INT(dml_lr_finder_end(finder), DML_OK);
    /* to the end of the rates, and never falling */
    finder = dml_lr_finder_begin(t, &(dml_lr_finder_options){ .steps = 4 });
    CHECK(dml_lr_finder_step(finder, 1) && dml_lr_finder_step(finder, 1) && dml_lr_finder_step(finder, 1));
    CHECK(!dml_lr_finder_step(finder, 1) && !dml_lr_finder_step(finder, 1));
    dml_lr_finder_points(finder, &count);
    CHECK_INT(count, 4);
    CHECK_INT(dml_lr_finder_suggest(finder, &found), DML_OK);
    CHECK(found.steepest == 0 && found.minimum == 1e-8f);
    dml_close(context); /* releases it */
}

/* A schedule waits until the search is over. */
static void with_a_schedule(void)
{
    float loss;
    backend_here = find_backend("cpu");
    context = open_here(NULL);
    dml_trainer *t = dml_trainer_create(
        small_loss(),
        &(dml_trainer_options){ .batch = BATCH, .schedule = dml_schedule_exponential(0.5f, 0.5f) });
    CHECK_MESSAGE(t, "%s", dml_error(context));
    CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, NULL), DML_OK);
    dml_lr_finder *finder =
        dml_lr_finder_begin(t, &(dml_lr_finder_options){ .first = 1, .last = 4, .steps = 3 });
    for (int i = 0; i < 3; i++) {
        CHECK_NEAR(dml_trainer_lr(t), 1 << i, 1e-6);
        CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, &loss), DML_OK);
        CHECK(dml_lr_finder_step(finder, 1) == (i < 2));
    }
    CHECK_INT(dml_lr_finder_end(finder), DML_OK);
    CHECK(dml_trainer_lr(t) == 0.25f);
    CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, NULL), DML_OK);
    CHECK(dml_trainer_lr(t) == 0.125f);
    dml_close(context);
}

static void the_log(void)
{
    char text[600] = "";
    backend_here = find_backend("cpu");
    dml_trainer *t = small_trainer(0.5f, 0);
    dml_lr_finder *finder =
        dml_lr_finder_begin(t, &(dml_lr_finder_options){ .first = 0.25f, .last = 1, .steps = 3 });
    dml_lr_finder_step(finder, 1.5f), dml_lr_finder_step(finder, 1.5f);
    FILE *file = test_file();
    if (!file) {
        SKIP("no temporary file can be made");
    } else {
        CHECK_INT(dml_lr_finder_log(finder, file), DML_OK);
        rewind(file);
        text[fread(text, 1, sizeof text - 1, file)] = '\0';
        CHECK_STRING(text, "{\"step\":1,\"loss\":1.5,\"smoothed\":1.5,\"lr\":0.25}\n"
                           "{\"step\":2,\"loss\":1.5,\"smoothed\":1.5,\"lr\":0.5}\n");
        fclose(file);
    }
    CHECK_INT(dml_lr_finder_log(finder, NULL), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_error(context), "dml_lr_finder_log was given no file");
    dml_clear_error(context);
    CHECK_INT(dml_lr_finder_suggest(finder, NULL), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_error(context), "no place for the suggestion");
    dml_close(context);
}

static void refused(void)
{
    const dml_lr_finder_options bad[] = {
        { .first = -1 },      { .first = NAN },    { .first = 20 },        { .last = INFINITY },
        { .last = NAN },      { .last = 1e-9f },   { .steps = 1 },         { .steps = -3 },
        { .steps = 2000000 }, { .smoothing = 1 },  { .smoothing = -0.1f }, { .smoothing = NAN },
        { .diverges = 0.5f }, { .diverges = NAN },
    };
    dml_lr_suggestion found;
    backend_here = find_backend("cpu");
    dml_trainer *t = small_trainer(0.5f, 0);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK(!dml_lr_finder_begin(t, &bad[i]));
        CHECK_INT(dml_status_of(context), DML_ERROR_ARGUMENT);
        CHECK_CONTAINS(dml_error(context), "a search for learning rates");
        dml_clear_error(context);
    }
    CHECK(!dml_lr_finder_begin(t, &(dml_lr_finder_options){ .first = 1e-3f, .last = 2e6f }));
    CHECK_CONTAINS(dml_error(context),
                   "from 0.001 to 2e+06 asked for: they must grow, above 0, to 1e+06 at most");
    dml_clear_error(context);
    dml_lr_finder *first = dml_lr_finder_begin(t, NULL);
    CHECK_INT(dml_trainer_sync(t, (dml_sync){ 0 }), DML_ERROR_STATE);
    CHECK_CONTAINS(dml_error(context), "while a search for learning rates is on");
    dml_clear_error(context);
    CHECK(first && !dml_lr_finder_begin(t, NULL));
    CHECK_INT(dml_status_of(context), DML_ERROR_STATE);
    CHECK_CONTAINS(dml_error(context), "a second search for learning rates");
    dml_clear_error(context);
    CHECK_INT(dml_lr_finder_end(first), DML_OK);
    first = dml_lr_finder_begin(t, NULL);
    CHECK(first);
    CHECK_INT(dml_lr_finder_end(first), DML_OK);
    CHECK_INT(dml_trainer_sync(t, (dml_sync){ .keeps = true }), DML_OK);
    CHECK(!dml_lr_finder_begin(t, NULL));
    CHECK_INT(dml_status_of(context), DML_ERROR_STATE);
    CHECK_CONTAINS(dml_error(context), "search before the strategy is attached");
    dml_clear_error(context);
    CHECK_INT(dml_trainer_sync(t, (dml_sync){ 0 }), DML_OK);
    CHECK_INT(dml_trainer_backward(t, 1, inputs, 2, DML_MORE, NULL), DML_OK);
    CHECK(!dml_lr_finder_begin(t, NULL));
    CHECK_INT(dml_status_of(context), DML_ERROR_STATE);
    dml_clear_error(context);
    CHECK(!dml_lr_finder_begin(NULL, NULL) && !dml_lr_finder_step(NULL, 1));
    CHECK_INT(dml_lr_finder_suggest(NULL, &found), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_lr_finder_log(NULL, stdout), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_lr_finder_end(NULL), DML_OK);
    CHECK(!dml_lr_finder_points(NULL, NULL));
    CHECK(dml_trainer_lr(t) == 0.5f);
    dml_close(context);
}

int main(void)
{
    RUN_EACH(all_comes_back);
    RUN(suggestions);
    RUN(noise);
    RUN(what_counts);
    RUN(losses_below_zero);
    RUN(smoothing_and_ends);
    RUN(with_a_schedule);
    RUN(the_log);
    RUN(refused);
    return test_report("train/lr_finder");
}
