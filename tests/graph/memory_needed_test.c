/* dml_memory_needed: how large the caller's buffer has to be. */
#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_conv2d.h"
#include "ops/op_dense.h"
#include "ops/op_loss.h"
#include "ops/op_pool2d.h"
#include "graph/program.h"
#include "graph/weights.h"
#include "train/trainer.h"

#include "../test.h"

enum { MOST = 1 << 20 };
static unsigned char memory[MOST + 128] __attribute__((aligned(64)));

static const float numbers[4 * 98] = { 1, 2, -3, 0.5f };
static const int32_t labels[4] = { 0, 1, 2, 0 };

/* Each does all that a program would with one kind of model and returns how the last of it went. */
typedef dml_status user(dml_context *context);

static dml_status predicts(dml_context *context)
{
    dml_graph *g = dml_graph_create(context);
    dml_node *h = dml_relu(dml_dense(dml_input(g, "x", DML_F32, 40), 30));
    dml_program *p = dml_compile(dml_dense(h, 7), &(dml_program_options){ .batch = 4 });
    return dml_program_run(p, 4, DML_INPUTS(numbers), NULL);
}

static dml_status predicts_on_its_own_thread(dml_context *context)
{
    dml_graph *g = dml_graph_create(context);
    dml_node *x = dml_input(g, "x", DML_F32, 7, 7, 2);
    dml_node *c = dml_relu(dml_conv2d(x, &(dml_conv2d_options){ .filters = 5 }));
    dml_node *y = dml_dense(dml_flatten(dml_max_pool2d(c, NULL)), 3);
    dml_program *p = dml_compile(y, &(dml_program_options){ .batch = 4, .own_thread = true });
    return dml_program_run(p, 4, DML_INPUTS(numbers), NULL);
}

static dml_status trains(dml_context *context)
{
    dml_graph *g = dml_graph_create(context);
    dml_node *x = dml_input(g, "x", DML_F32, 7, 7, 2), *t = dml_input(g, "t", DML_I32);
    dml_node *c = dml_tanh(dml_conv2d(x, &(dml_conv2d_options){ .filters = 5 }));
    dml_node *loss = dml_softmax_cross_entropy(dml_dense(dml_flatten(c), 3), t);
    dml_trainer *trainer =
        dml_trainer_create(loss, &(dml_trainer_options){ .batch = 4, .optimizer = dml_sgd(0.1f, 0.9f) });
    return dml_trainer_step(trainer, 4, DML_INPUTS(numbers, labels), NULL);
}

/* Makes and releases, so that the buffer is used again in pieces. */
static dml_status comes_and_goes(dml_context *context)
{
    dml_program *left = NULL;
    dml_status status = DML_OK;
    for (int i = 0; i < 5; i++) {
        dml_graph *g = dml_graph_create(context);
        dml_node *y = dml_dense(dml_input(g, NULL, DML_F32, 10 + 7 * (i % 3)), 11 * (1 + i * 3 % 4));
        dml_program *p = dml_compile(y, &(dml_program_options){ .batch = 1 + i });
        status = dml_program_run(p, 1, DML_INPUTS(numbers), NULL);
        if (i % 2) {
            dml_program_destroy(p);
            dml_graph_destroy(g);
        } else {
            dml_program_destroy(left);
            left = p;
        }
    }
    return status;
}

static user *const users[] = { predicts, predicts_on_its_own_thread, trains, comes_and_goes };
enum { USERS = sizeof users / sizeof users[0] };

/* How it went in a buffer of `bytes` at `offset` behind a multiple of 64, and what was needed by then. */
static dml_status use(user *what, size_t offset, size_t bytes, size_t *needed)
{
    unsigned char *const buffer = memory + offset;
    memset(memory, 0xA5, sizeof memory);
    dml_context *context = dml_open(&(dml_options){ .threads = 2, .memory = buffer, .memory_bytes = bytes });
    if (!context) return DML_ERROR_MEMORY;
    dml_status status = dml_status_of(context);
    if (status == DML_OK) status = what(context);
    if (status != DML_OK) status = dml_status_of(context);
    if (needed) *needed = dml_memory_needed(context);
    dml_close(context);
    for (size_t i = 0; i < offset; i++) CHECK(memory[i] == 0xA5); /* nothing outside of the buffer */
    for (size_t i = offset + bytes; i < sizeof memory && i < offset + bytes + 64; i++)
        CHECK(memory[i] == 0xA5);
    return status;
}

static void exactly_that_many_bytes_are_enough(void)
{
    for (int u = 0; u < USERS; u++) {
        size_t needed = 0, again;
        CHECK_INT(use(users[u], 0, MOST, &needed), DML_OK);
        CHECK_MESSAGE(needed > 1000 && needed < MOST, "user %d: %zu bytes", u, needed);
        for (size_t offset = 0; offset < 64; offset++) {
            CHECK_MESSAGE(use(users[u], offset, needed, &again) == DML_OK, "user %d at %zu", u, offset);
            CHECK_INT(again, needed); /* the same from anywhere, and from exactly that much */
        }
        for (size_t offset = 0; offset < 64; offset += 21)
            CHECK_INT(use(users[u], offset, needed - 128, NULL), DML_ERROR_MEMORY);
        CHECK_INT(use(users[u], 1, needed - 64, NULL),
                  DML_ERROR_MEMORY); /* at the worst address none is spare */
    }
}

static void any_smaller_buffer_says_so(void)
{
    for (int u = 0; u < USERS; u++) {
        size_t needed = 0;
        CHECK_INT(use(users[u], 0, MOST, &needed), DML_OK);
        for (size_t bytes = 0; bytes + 128 < needed; bytes += bytes < 4096 ? 64 : 1024)
            CHECK_INT(use(users[u], 5, bytes, NULL), DML_ERROR_MEMORY);
    }
}

static void it_never_shrinks(void)
{
    dml_context *context =
        dml_open(&(dml_options){ .threads = 1, .memory = memory, .memory_bytes = sizeof memory });
    size_t before = dml_memory_needed(context);
    CHECK(before > 0);
    for (int i = 0; i < 6; i++) {
        dml_graph *g = dml_graph_create(context);
        dml_node *y = dml_dense(dml_input(g, "x", DML_F32, 10), i < 3 ? 100 << i : 10);
        dml_program *p = dml_compile(y, &(dml_program_options){ .batch = 4 });
        CHECK_MESSAGE(p, "%s", dml_error(context));
        const size_t now = dml_memory_needed(context);
        CHECK(i < 3 ? now > before : now == before);
        dml_program_destroy(p);
        dml_graph_destroy(g);
        CHECK_INT(dml_memory_needed(context), now);
        before = now;
    }
    dml_close(context);
}

static void without_a_buffer(void)
{
    dml_context *context = dml_open(NULL);
    CHECK_INT(predicts(context), DML_OK);
    CHECK_INT(dml_memory_needed(context), 0);
    CHECK_INT(dml_memory_needed(NULL), 0);
    dml_close(context);
}

static void *allocate_small(void *user, size_t bytes)
{
    (void)user;
    return bytes < 1 << 20 ? malloc(bytes) : NULL;
}

static void release_small(void *user, void *block)
{
    (void)user;
    free(block);
}

/* Whatever there is no memory left for, the sentence says of how much: what is the caller's to change. */
static void what_is_too_small_is_named(void)
{
    int failed = 0;
    for (size_t bytes = 4096; bytes < 12288; bytes += 512) {
        char sentence[96];
        snprintf(sentence, sizeof sentence, "; all memory comes from the caller's buffer of %zu bytes",
                 bytes);
        dml_context *context =
            dml_open(&(dml_options){ .memory = memory, .memory_bytes = bytes, .threads = 1 });
        if (context && predicts(context) != DML_OK) {
            CHECK_INT(dml_status_of(context), DML_ERROR_MEMORY);
            CHECK_CONTAINS(dml_error(context), sentence);
            failed++;
        }
        dml_close(context);
    }
    CHECK(failed > 4);
    const dml_allocator small = { .allocate = allocate_small, .release = release_small };
    dml_context *context = dml_open(&(dml_options){ .allocator = small, .threads = 1 });
    dml_node *x = dml_input(dml_graph_create(context), "x", DML_F32, 1 << 20);
    CHECK(!dml_compile(dml_relu(x), &(dml_program_options){ .batch = 4 }));
    CHECK_INT(dml_status_of(context), DML_ERROR_MEMORY);
    CHECK(!strstr(dml_error(context), "caller's buffer"));
    dml_close(context);
}

int main(void)
{
    RUN(exactly_that_many_bytes_are_enough);
    RUN(any_smaller_buffer_says_so);
    RUN(it_never_shrinks);
    RUN(without_a_buffer);
    RUN(what_is_too_small_is_named);
    return test_report("graph/memory_needed");
}
