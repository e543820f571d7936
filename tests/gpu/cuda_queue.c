/* The CUDA host's queue on the fake runtime (tests/gpu/cuda_host_test.sh compiles and runs it): what is held
   back is done in order, before anybody sees that it wasn't, and what comes again is one graph. */
#include "device/backend.h"
#include "device/context.h"
#include "device/context_internal.h"
#include "device/profile.h"

#include "tests/test.h"

int fake_cuda_waits(void), fake_cuda_sent(void), fake_cuda_graphs(void), fake_cuda_changes(void),
    fake_cuda_alive(void);

enum { N = 100, BYTES = N * (int)sizeof(float) };
static dml_context *context;
static dml_device *device;
static const dml_backend *backend;

static bool is(const char *mode)
{
    const char *set = getenv("FAKE_CUDA");
    return strcmp(set ? set : "", mode) == 0;
}

/* Whether anything is held back, and whether that may become graphs. */
static bool holds(void)
{
    const char *wanted = getenv("DML_CUDA_GRAPHS");
    return !wanted || strcmp(wanted, "0") != 0;
}

static bool graphs(void)
{
    return holds() && is("");
}

static void open_card(void)
{
    context = dml_open(&(dml_options){ .device = "cuda:1", .threads = 1 });
    device = &context->device;
    backend = device->backend;
    CHECK_STRING(dml_error(context), "");
}

static void close_card(void)
{
    CHECK_STRING(dml_error(context), "");
    dml_close(context);
    CHECK_INT(fake_cuda_alive(), 0);
}

static dml_ref start(dml_buffer *buffer)
{
    return (dml_ref){ buffer, 0 };
}

static void ok(dml_status status)
{
    CHECK_MESSAGE(status == DML_OK, "%s", dml_error(context));
}

/* N floats of this value. */
static dml_buffer *make(float value)
{
    float values[N];
    dml_buffer *buffer = dml__buffer_create(context, BYTES);
    for (int i = 0; i < N; i++) values[i] = value;
    ok(backend->write(device, start(buffer), values, BYTES));
    return buffer;
}

static float value_of(dml_buffer *buffer, int i)
{
    float values[N];
    ok(backend->read(device, values, start(buffer), BYTES));
    return values[i];
}

/* y = a x + b y of the first `count` elements */
static dml_status axpby(dml_buffer *x, dml_buffer *y, int count, float a, float b)
{
    const dml_launch launch = { .kernel = "axpby",
                                .size = { (size_t)count, 1 },
                                .buffer = { start(x), start(y) },
                                .integer = { count },
                                .real = { a, b } };
    return backend->launch(device, &launch);
}

/* w -= rate g, and of element 0 rate (g + one): five pieces of work. */
typedef struct step_buffers {
    dml_buffer *w, *g, *t, *s;
} step_buffers;

static step_buffers make_step(void)
{
    return (step_buffers){ make(8), make(2), make(99), make(77) };
}

static void queue_step(const step_buffers *b, float rate, float one)
{
    ok(backend->zero(device, start(b->t), BYTES));
    ok(backend->write(device, start(b->t), &one, sizeof one));
    ok(backend->copy(device, start(b->s), start(b->t), BYTES));
    ok(axpby(b->s, b->w, N, -rate, 1));
    ok(axpby(b->g, b->w, N, -rate, 1));
}

static void end_step(const step_buffers *b)
{
    dml__buffer_destroy(context, b->w), dml__buffer_destroy(context, b->g);
    dml__buffer_destroy(context, b->t), dml__buffer_destroy(context, b->s);
}

static void what_comes_again_is_a_graph(void)
{
    enum { STEPS = 7 };
    open_card();
    const step_buffers b = make_step();
    const int sent = fake_cuda_sent(), launched = fake_cuda_graphs(), changes = fake_cuda_changes();
    const int waits = fake_cuda_waits();
    float want[2] = { 8, 8 };
    for (int step = 0; step < STEPS; step++) {
        const float rate = step < 4 ? 0.5f : 0.25f, one = step < 5 ? 1.0f : 3.0f;
        queue_step(&b, rate, one);
        want[0] -= rate * (2 + one), want[1] -= rate * 2;
        if (step == 0 && holds()) CHECK_INT(fake_cuda_sent(), sent);
        ok(backend->flush(device));
        if (step == 0) CHECK_INT(fake_cuda_sent(), sent + 2);
    }
    if (graphs()) CHECK_INT(fake_cuda_waits(), waits);
    const int as_graphs = graphs() ? STEPS - 1 : is("fixed graphs") ? 3 : 0;
    CHECK_INT(fake_cuda_graphs() - launched, as_graphs);
    CHECK_INT(fake_cuda_sent() - sent, 2 * (STEPS - as_graphs));
    if (graphs()) CHECK_INT(fake_cuda_changes() - changes, 3); /* two rates and a number */
    CHECK(value_of(b.w, 0) == want[0] && value_of(b.w, 1) == want[1] && value_of(b.w, N - 1) == want[1]);
    end_step(&b);
    close_card();
}

/* Two shapes in turn, and in between what is too short for a graph. */
static void shapes_take_turns(void)
{
    enum { ROUNDS = 6 };
    open_card();
    const step_buffers b = make_step();
    const int launched = fake_cuda_graphs();
    float want = 8;
    for (int round = 0; round < ROUNDS; round++) {
        queue_step(&b, 1, 0);
        ok(backend->flush(device));
        ok(axpby(b.g, b.w, N, 1, 2));
        ok(backend->flush(device));
        for (int i = 0; i < 4; i++) ok(axpby(b.g, b.w, N, (float)i, 1));
        ok(backend->flush(device));
        want = (want - 2) * 2 + 2 + 2 * (0 + 1 + 2 + 3);
    }
    const int shapes = !holds() || is("no graphs") ? 0 : is("unpinned") ? 1 : 2; /* whose writes split it */
    CHECK_INT(fake_cuda_graphs() - launched, shapes * (ROUNDS - 1));
    CHECK(value_of(b.w, 0) == want && value_of(b.w, N - 1) == want);
    end_step(&b);
    close_card();
}

/* More shapes than there are graphs, all in use, don't drive each other out; those of long ago make room. */
static void there_are_so_many_graphs(void)
{
    enum { SHAPES = 12, ROUNDS = 4, LAUNCHES = 4 };
    open_card();
    dml_buffer *x = make(1), *y = make(0);
    const int before = fake_cuda_graphs();
    float want = 0;
    for (int round = 0; round < ROUNDS; round++) {
        for (int shape = 0; shape < SHAPES; shape++) {
            for (int i = 0; i < LAUNCHES + shape; i++) ok(axpby(x, y, N, (float)round, 1));
            ok(backend->flush(device));
            want += (float)(round * (LAUNCHES + shape));
        }
    }
    CHECK_INT(fake_cuda_graphs() - before, graphs() ? 8 * (ROUNDS - 1) : 0);
    CHECK(fake_cuda_alive() == (graphs() ? 2 * 8 : 0));
    CHECK(value_of(y, 0) == want);
    const int then = fake_cuda_graphs(), again = 100;
    for (int round = 0; round < again; round++) {
        for (int i = 0; i < 30; i++) ok(axpby(x, y, N, 1, 1));
        ok(backend->flush(device));
    }
    CHECK(!graphs() || fake_cuda_graphs() - then >= again - 64);
    CHECK(fake_cuda_alive() == (graphs() ? 2 * 8 : 0));
    CHECK(value_of(y, N - 1) == want + 30 * (float)again);
    dml__buffer_destroy(context, x), dml__buffer_destroy(context, y);
    close_card();
}

/* Whoever could see that it wasn't done has it sent first; so does a full queue. */
static void nothing_is_seen_undone(void)
{
    enum { MANY = 1500 };
    open_card();
    dml_buffer *x = make(1), *y = make(0), *gone = make(5);
    float five[N];
    for (int i = 0; i < N; i++) five[i] = 5;
    ok(axpby(x, y, N, 1, 1)); /* read */
    CHECK(value_of(y, 0) == 1);
    ok(axpby(x, y, N, 1, 1)); /* write: after what was queued */
    ok(backend->write(device, start(x), five, BYTES));
    ok(axpby(x, y, N, 1, 1));
    CHECK(value_of(y, 0) == 7);
    ok(axpby(gone, y, N, 1, 1)); /* destroy */
    dml__buffer_destroy(context, gone);
    gone = make(-1);
    CHECK(value_of(y, 0) == 12);
    int sent = fake_cuda_sent();
    ok(axpby(x, y, N, 1, 1)); /* finish */
    ok(backend->finish(device));
    CHECK_INT(fake_cuda_sent(), sent + 1);
    ok(axpby(x, y, N, 1, 1)); /* profile, and single launches while it is on */
    for (int i = 0; i < 2; i++) {
        ok(dml_profile_begin(context, 0));
        CHECK_INT(fake_cuda_sent(), sent + 2 + 5 * i);
        for (int l = 0; l < 5; l++) ok(axpby(x, y, N, 1, 1));
        CHECK_INT(fake_cuda_sent(), sent + 7 + 5 * i);
    }
    dml_profile_end(context);
    CHECK(value_of(y, 0) == 12 + 5 * 12);
    sent = fake_cuda_sent();
    for (int i = 0; i < MANY; i++) ok(axpby(x, y, 1, 1, 1));
    CHECK(holds() ? fake_cuda_sent() == sent + 1024 : fake_cuda_sent() == sent + MANY);
    CHECK(value_of(y, 0) == 72 + 5 * MANY && value_of(y, 1) == 72);
    dml__buffer_destroy(context, x), dml__buffer_destroy(context, y), dml__buffer_destroy(context, gone);
    dml_buffer left = { .bytes = BYTES }; /* close */
    ok(backend->buffer_create(device, &left));
    sent = fake_cuda_sent();
    ok(axpby(&left, &left, N, 0, 0));
    CHECK_INT(fake_cuda_sent(), sent + (holds() ? 0 : 1));
    dml_close(context);
    CHECK_INT(fake_cuda_sent(), sent + 1);
    CHECK_INT(fake_cuda_alive(), 0);
    free(left.handle); /* as the fake card's memory is */
}

/* A graph's nodes may name memory that is gone: they are set anew before it runs. */
static void buffers_come_and_go(void)
{
    open_card();
    for (int life = 0; life < 4; life++) {
        const step_buffers b = make_step();
        dml_buffer *between = make(0); /* or the next life's lie where this one's did */
        for (int step = 0; step < 3; step++) queue_step(&b, 1, 1), ok(backend->flush(device));
        end_step(&b);
        const step_buffers c = make_step();
        queue_step(&c, 1, 1), ok(backend->flush(device));
        CHECK(value_of(c.w, 0) == 5 && value_of(c.w, 1) == 6);
        end_step(&c);
        dml__buffer_destroy(context, between);
    }
    close_card();
}

/* ---- reads that nobody waits for ---- */

enum { POLLS = 1000 };

/* Asks until it has come, which takes the host no wait; returns how often. */
static int come(void *ticket)
{
    const int waits = fake_cuda_waits();
    bool ended = false;
    int polls = 0;
    while (!ended && polls++ < POLLS) ok(backend->read_end(device, ticket, false, &ended));
    CHECK(ended);
    CHECK_INT(fake_cuda_waits(), waits);
    return polls;
}

static void reads_go_on_by_themselves(void)
{
    static float first[N], second[N], other[N];
    const bool pins = !is("unpinned");
    void *ticket, *next;
    bool ended;
    open_card();
    dml_buffer *x = make(1), *y = make(0);
    CHECK(backend->pin(device, first, BYTES) == pins && backend->pin(device, second, BYTES) == pins);
    ok(axpby(x, y, N, 1, 1));
    first[0] = first[N - 1] = 99;
    ok(backend->read_start(device, first, start(y), BYTES, &ticket));
    CHECK((ticket != NULL) == pins && (first[0] == 99) == pins);
    ok(axpby(x, x, N, 3, 0)); /* what comes later isn't waited for */
    if (ticket) CHECK(come(ticket) > 1);
    CHECK(first[0] == 1 && first[N - 1] == 1);

    /* Several, waited for in another order; of parts, and of nothing. */
    ok(backend->read_start(device, first, start(x), BYTES / 2, &ticket));
    ok(backend->read_start(device, second + 1, (dml_ref){ y, 4 }, 8, &next));
    CHECK((ticket && next) == pins && (second[1] == 0) == pins);
    if (next) ok(backend->read_end(device, next, true, &ended));
    if (next) CHECK(ended);
    CHECK(second[0] == 0 && second[1] == 1 && second[2] == 1 && second[3] == 0);
    if (ticket) CHECK_INT(come(ticket), 1); /* before the other, in one stream */
    CHECK(first[0] == 3 && first[N / 2 - 1] == 3 && first[N / 2] == 1);
    ok(backend->read_start(device, first, start(x), 0, &ticket));
    CHECK(!ticket);

    /* To memory that isn't pinned, all of it, the host waits. */
    ok(backend->read_start(device, other, start(x), BYTES, &ticket));
    CHECK(!ticket && other[0] == 3);
    if (pins) {
        backend->unpin(device, first);
        ok(backend->read_start(device, first, start(y), BYTES, &ticket));
        CHECK(!ticket && first[0] == 1);
    }
    CHECK_INT(backend->read_start(device, second, start(y), BYTES + 4, &ticket), DML_ERROR_ARGUMENT);
    CHECK(!ticket);
    dml_clear_error(context);
    backend->unpin(device, second);
    dml__buffer_destroy(context, x), dml__buffer_destroy(context, y);
    close_card();
}

static void started_reads_are_timed(void)
{
    static float to[N];
    void *ticket;
    bool ended;
    dml_profile_row rows[8];
    open_card();
    dml_buffer *x = make(1);
    backend->pin(device, to, BYTES);
    ok(dml_profile_begin(context, 0));
    ok(backend->read_start(device, to, start(x), BYTES, &ticket));
    const int count = dml_profile_rows(context, rows, 8);
    CHECK_INT(count, 1);
    CHECK(strcmp(rows[0].what, "read") == 0 && rows[0].calls == 1 && to[0] == 1);
    if (ticket) ok(backend->read_end(device, ticket, true, &ended));
    dml_profile_end(context);
    backend->unpin(device, to);
    dml__buffer_destroy(context, x);
    close_card();
}

static void so_much_is_pinned(void)
{
    static float memory[20][N];
    int pinned = 0;
    open_card();
    for (int i = 0; i < 20; i++) pinned += backend->pin(device, memory[i], BYTES);
    CHECK_INT(pinned, is("unpinned") ? 0 : 16);
    CHECK(!backend->pin(device, memory[0], 0));
    backend->unpin(device, memory[3]);
    backend->unpin(device, memory[19]); /* which isn't */
    CHECK(backend->pin(device, memory[18], BYTES) == !is("unpinned"));
    for (int i = 0; i < 20; i++) backend->unpin(device, memory[i]);
    close_card();
}

/* A launch that is refused when it is sent is told with the kernel and the layer that it was for. */
static void failures_have_names(void)
{
    char layer[] = "dense of an unfortunate name that goes on beyond all bounds";
    open_card();
    dml_buffer *x = make(1), *y = make(0);
    device->node = layer, device->pass = "backward";
    dml_status status = axpby(x, y, N, 1, 1);
    device->node = NULL;
    layer[0] = '?';
    if (status == DML_OK) status = backend->flush(device);
    CHECK_INT(status, DML_ERROR_DEVICE);
    CHECK_CONTAINS(dml_error(context), "backward pass of 'dense of an unfortunate name");
    CHECK_CONTAINS(dml_error(context), "cudaLaunchKernel(axpby)");
    dml_clear_error(context);
    CHECK(value_of(y, 0) == 0); /* what failed isn't sent again */
    dml__buffer_destroy(context, x), dml__buffer_destroy(context, y);
    close_card();
}

int main(void)
{
    if (is("refused")) {
        RUN(failures_have_names);
        return test_report("gpu/cuda_queue");
    }
    RUN(what_comes_again_is_a_graph);
    RUN(shapes_take_turns);
    if (is("")) RUN(there_are_so_many_graphs);
    RUN(nothing_is_seen_undone);
    RUN(buffers_come_and_go);
    RUN(reads_go_on_by_themselves);
    RUN(started_reads_are_timed);
    RUN(so_much_is_pinned);
    return test_report("gpu/cuda_queue");
}
