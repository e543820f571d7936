/* What the collectives put on a data stream: round trips, and bytes that make no sense. */
#include "ranks.h"

#include <limits.h>

#include "comm/frame.h"
#include "comm/waiting.h"
#include "net/net.h"

static dml__frame some_frame(void)
{
    dml__frame frame;
    memset(&frame, 0, sizeof frame);
    frame.kind = DML__FRAME_DATA;
    frame.signature.operation = DML__CALL_BROADCAST;
    frame.signature.dtype = DML_I64;
    frame.signature.reduce = DML_MAX;
    frame.signature.root = -2;
    frame.signature.count = 0x0123456789abcdefull;
    frame.algorithm = 9;
    frame.signature.variant = 0x93579bdfu;
    frame.communicator = 0xa1b2c3d4u;
    frame.message = 0x345600010002ull;
    frame.sequence = 0x1122334455667788ull;
    frame.offset = 0xaabbccddeeffull;
    frame.bytes = 0x00345678u;
    frame.consumed = 0xcb5a6978u;
    return frame;
}

static void header_bytes(void)
{
    /* The format is fixed: these bytes, on any machine. */
    static const uint8_t want[DML__FRAME_BYTES] = {
        'd',  'm',  4,    9,    0xd4, 0xc3, 0xb2, 0xa1, 2,    3,    3,    0,    0xfe, 0xff,
        0xff, 0xff, 0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01, 0xdf, 0x9b, 0x57, 0x93,
        0x02, 0x00, 0x01, 0x00, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0xff, 0xee,
        0xdd, 0xcc, 0xbb, 0xaa, 0x56, 0x34, 0x78, 0x56, 0x34, 0x00, 0x78, 0x69, 0x5a, 0xcb,
    };
    dml__frame frame = some_frame();
    uint8_t bytes[DML__FRAME_BYTES];
    dml__frame back;
    dml__encode_frame(&frame, bytes);
    CHECK(memcmp(bytes, want, sizeof want) == 0);
    CHECK(dml__decode_frame(bytes, &back));
    CHECK(back.kind == frame.kind && back.communicator == frame.communicator);
    CHECK(back.signature.variant == frame.signature.variant && back.tag == 0);
    CHECK(back.algorithm == frame.algorithm && back.message == frame.message && back.bytes == frame.bytes);
    CHECK(back.sequence == frame.sequence && back.offset == frame.offset && back.consumed == frame.consumed);
    CHECK(back.signature.operation == DML__CALL_BROADCAST && back.signature.dtype == DML_I64);
    CHECK(back.signature.reduce == DML_MAX && back.signature.count == frame.signature.count);
    CHECK_INT(back.signature.root, -2);
    /* Of a send the tag is in the variant's place. */
    frame.signature.operation = DML__CALL_SEND;
    frame.signature.variant = DML__PLAIN;
    frame.tag = 0x13579bdf;
    dml__encode_frame(&frame, bytes);
    CHECK(bytes[8] == DML__CALL_SEND && memcmp(bytes + 9, want + 9, 18) == 0 && bytes[27] == 0x13);
    CHECK(memcmp(bytes + 28, want + 28, sizeof want - 28) == 0);
    CHECK(dml__decode_frame(bytes, &back) && back.tag == frame.tag && !back.signature.variant);
}

/* Whatever a byte becomes, what is taken for valid is encoded the same again. */
static void every_byte(void)
{
    const dml__frame frame = some_frame();
    uint8_t bytes[DML__FRAME_BYTES], again[DML__FRAME_BYTES];
    int refused = 0;
    for (int at = 0; at < DML__FRAME_BYTES; at++)
        for (int value = 0; value < 256; value++) {
            dml__frame back;
            dml__encode_frame(&frame, bytes);
            bytes[at] = (uint8_t)value;
            if (!dml__decode_frame(bytes, &back)) {
                refused++;
                continue;
            }
            dml__encode_frame(&back, again);
            CHECK_MESSAGE(memcmp(bytes, again, sizeof bytes) == 0, "byte %d is %d", at, value);
        }
    CHECK(refused > 3 * 255);
}

/* The last value that each field may have is taken, the next is not. */
static void header_bounds(void)
{
    static const struct {
        int at, first, last;
    } fields[] = { { 2, DML__FRAME_EAGER, DML__FRAME_CREDIT },
                   { 8, 0, DML__COMM_OPERATION_COUNT - 1 },
                   { 9, 0, DML__DTYPE_COUNT - 1 },
                   { 10, 0, DML__REDUCE_OP_COUNT + DML__MOST_FUNCTIONS - 1 } };
    dml__frame frame = some_frame(), back;
    uint8_t bytes[DML__FRAME_BYTES];
    frame.bytes = 0; /* any kind may have none */
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        for (int value = fields[i].first - 1; value <= fields[i].last + 1; value++) {
            if (value < 0) continue;
            const bool valid = value >= fields[i].first && value <= fields[i].last;
            dml__encode_frame(&frame, bytes);
            bytes[fields[i].at] = (uint8_t)value;
            CHECK_MESSAGE(dml__decode_frame(bytes, &back) == valid, "byte %d is %d", fields[i].at, value);
        }
    dml__encode_frame(&frame, bytes);
    bytes[11] = 1; /* the second byte of the op */
    CHECK(!dml__decode_frame(bytes, &back));
    for (int kind = DML__FRAME_EAGER; kind <= DML__FRAME_CREDIT; kind++) {
        const bool carries = kind == DML__FRAME_EAGER || kind == DML__FRAME_DATA;
        frame.kind = (dml__frame_kind)kind;
        frame.bytes = 8;
        dml__encode_frame(&frame, bytes);
        CHECK_MESSAGE(dml__decode_frame(bytes, &back) == carries, "a payload of kind %d", kind);
        /* No more than a segment may have: nothing that is computed from it overflows. */
        frame.bytes = DML__MOST_PAYLOAD;
        dml__encode_frame(&frame, bytes);
        CHECK_INT(dml__decode_frame(bytes, &back), carries);
        frame.bytes = DML__MOST_PAYLOAD + 1;
        dml__encode_frame(&frame, bytes);
        CHECK(!dml__decode_frame(bytes, &back));
        frame.bytes = UINT32_MAX;
        dml__encode_frame(&frame, bytes);
        CHECK(!dml__decode_frame(bytes, &back));
    }
}

static void check_text(dml__comm_operation operation, dml_reduce_op reduce, int root, uint64_t count,
                       const char *want)
{
    char text[DML__SIGNATURE_TEXT];
    const dml__signature signature = { operation, DML_F64, reduce, root, count, DML__PLAIN };
    CHECK_STRING(dml__signature_text(&signature, text), want);
}

static void check_variant(dml__comm_operation operation, uint32_t variant, const char *want)
{
    char text[DML__SIGNATURE_TEXT];
    const dml__signature signature = { operation, DML_I8, DML_SUM, 1, 7, variant };
    CHECK_STRING(dml__signature_text(&signature, text), want);
}

static void signature_texts(void)
{
    check_text(DML__CALL_ALL_REDUCE, DML_PROD, 0, UINT64_MAX, "all_reduce(f64, 18446744073709551615, prod)");
    check_text(DML__CALL_BROADCAST, DML_SUM, 3, 0, "broadcast(f64, 0, root 3)");
    check_text(DML__CALL_ALL_GATHER, DML_SUM, 3, 2, "all_gather(f64, 2)");
    check_text(DML__CALL_REDUCE_SCATTER, DML_MEAN, 3, 2, "reduce_scatter(f64, 2, mean)");
    check_text(DML__CALL_REDUCE, DML_MIN, 3, 2, "reduce(f64, 2, min, root 3)");
    check_text(DML__CALL_REDUCE, DML_MIN, -1, 2, "reduce(f64, 2, min, root -1)");
    check_text(DML__CALL_SCATTER, DML_SUM, 3, 2, "scatter(f64, 2, root 3)");
    check_text(DML__CALL_GATHER, DML_SUM, 3, 2, "gather(f64, 2, root 3)");
    check_text(DML__CALL_ALL_TO_ALL, DML_SUM, 3, 2, "all_to_all(f64, 2)");
    check_text(DML__CALL_BARRIER, DML_SUM, 0, 0, "barrier()");
    check_text(DML__CALL_SEND, DML_SUM, 1, 2, "send(f64, 2, to 1)");
    check_text(DML__CALL_RECEIVE, DML_SUM, -1, 2, "receive(f64, 2, from any)");
    check_text(DML__CALL_RENDEZVOUS, DML_SUM, 0, 0, "dml_comm_open()");
    check_variant(DML__CALL_SCATTER, DML__WITH_COUNTS, "scatterv(i8, 7, root 1)");
    check_variant(DML__CALL_REDUCE_SCATTER, UINT32_MAX, "reduce_scatterv(i8, 7, sum)");
    check_variant(DML__CALL_ALL_TO_ALL, DML__WITH_COUNTS, "all_to_allv(i8)");
    check_variant(DML__CALL_ALL_TO_ALL, DML__IN_PLACE, "all_to_all(i8, 7) in place");
    check_variant(DML__CALL_ALL_GATHER, DML__IN_SPLIT, "all_gather(i8, 7) in dml_comm_split");
    check_variant(DML__CALL_ALL_REDUCE, DML__IN_TUNE, "all_reduce(i8, 7, sum) in dml_comm_tune");
    check_text(DML__COMM_OPERATION_COUNT, DML_SUM, 0, 0, "?()");
}

/* Bytes turned round and back, apart and in place. */
static void swapped_elements(void)
{
    static const uint8_t in[16] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 };
    for (int d = 0; d < DML__DTYPE_COUNT; d++) {
        const dml_dtype dtype = (dml_dtype)d;
        const size_t size = dml_dtype_size(dtype), count = sizeof in / size;
        uint8_t out[20], again[16];
        memset(out, 0xee, sizeof out);
        dml__swap_elements(out, in, count, dtype);
        for (size_t i = 0; i < sizeof in; i++) CHECK_INT(out[i], in[i / size * size + size - 1 - i % size]);
        CHECK_INT(out[16], 0xee);
        memcpy(again, out, sizeof again);
        dml__swap_elements(again, again, count, dtype);
        CHECK(memcmp(again, in, sizeof in) == 0);
        dml__swap_elements(NULL, NULL, 0, dtype);
    }
}

static void fill_random(uint8_t *bytes, size_t count, unsigned *state)
{
    for (size_t i = 0; i < count; i++) bytes[i] = (uint8_t)(test_random(state) >> 16);
}

/* Random bytes, and real headers with a few random bytes in them. What is valid is encoded the same again. */
static void random_bytes(void)
{
    unsigned state = 1;
    int valid = 0;
    for (int round = 0; round < 50000; round++) {
        uint8_t bytes[DML__FRAME_BYTES], again[DML__FRAME_BYTES];
        dml__frame frame;
        char text[DML__SIGNATURE_TEXT];
        fill_random(bytes, sizeof bytes, &state);
        if (round % 4) memcpy(bytes, "dm", 2);
        if (round % 8 > 3) {
            const dml__frame good = some_frame();
            dml__encode_frame(&good, bytes);
            for (int i = 0; i < 4; i++)
                bytes[test_random(&state) % sizeof bytes] = (uint8_t)(test_random(&state) >> 16);
        }
        if (!dml__decode_frame(bytes, &frame)) continue;
        valid++;
        dml__encode_frame(&frame, again);
        CHECK(strlen(dml__signature_text(&frame.signature, text)) > 2);
        CHECK(memcmp(bytes, again, sizeof bytes) == 0);
    }
    CHECK(valid > 1000);
}

/* ---- a peer that sends what it shouldn't ---- */

enum { N = 6000, GUARD = 64 };

typedef struct hostile {
    unsigned seed;
    const char *transport;
} hostile;

/* Writes to its data stream by itself, where an engine would write frames. */
static bool write_raw(dml_comm *comm, int rank, const uint8_t *bytes, size_t count)
{
    dml__transport *transport = comm->job->transport;
    const double until = dml_seconds() + 2;
    while (count && dml_seconds() < until) {
        dml__span span;
        span.data = (void *)(uintptr_t)bytes;
        span.bytes = count;
        const ptrdiff_t sent = transport->calls->send(transport, rank, DML__CHANNEL_DATA, &span, 1);
        if (sent == DML__GONE) return false;
        if (!sent) ranks_sleep(1e-4);
        bytes += sent;
        count -= (size_t)sent;
    }
    return !count;
}

/* A frame that could be right, of what the other rank has under way. */
static dml__frame likely_frame(unsigned *state)
{
    static const uint32_t sizes[] = { 0, 4, 8, 100, 4000, 4 * N, 4 * N + 4, 100000, DML__MOST_PAYLOAD };
    static const dml__comm_operation operations[] = { DML__CALL_ALL_REDUCE, DML__CALL_BROADCAST,
                                                      DML__CALL_SEND, DML__CALL_RECEIVE };
    dml__frame frame;
    memset(&frame, 0, sizeof frame);
    frame.kind = (dml__frame_kind)(1 + (test_random(state) >> 8) % 5);
    frame.signature.operation = operations[(test_random(state) >> 8) % 4];
    frame.signature.dtype = DML_F32;
    frame.signature.count = (test_random(state) >> 8) % 4 ? N : (test_random(state) >> 8) % (2 * N);
    frame.signature.root = (int)((test_random(state) >> 8) % 2);
    frame.algorithm = (test_random(state) >> 8) % 2 ? -1 : (int)((test_random(state) >> 8) % 6);
    frame.tag = (int)((test_random(state) >> 8) % 2);
    frame.message = (test_random(state) >> 8) % 3 ? 0 : (test_random(state) >> 8) % 4 << 15;
    frame.sequence = (test_random(state) >> 8) % 4;
    frame.offset = (test_random(state) >> 8) % 2 ? 0 : (test_random(state) >> 8) % 16 * 1000;
    if (frame.kind == DML__FRAME_EAGER || frame.kind == DML__FRAME_DATA)
        frame.bytes = sizes[(test_random(state) >> 8) % (sizeof sizes / sizeof *sizes)];
    return frame;
}

static void hostile_rank(test_rank *me, const hostile *what)
{
    unsigned state = what->seed * 2654435761u + 99;
    static const uint8_t zeros[4096];
    uint8_t bytes[DML__FRAME_BYTES];
    bool goes = true;
    for (int frames = 0; frames < 40 && goes; frames++) {
        if (what->seed % 4 == 0) {
            fill_random(bytes, sizeof bytes, &state);
            goes = write_raw(me->comm, 0, bytes, sizeof bytes);
            continue;
        }
        const dml__frame frame = likely_frame(&state);
        dml__encode_frame(&frame, bytes);
        goes = write_raw(me->comm, 0, bytes, sizeof bytes);
        size_t left = frame.bytes > 100000 ? 0 : dml__padded(frame.bytes); /* the largest never comes whole */
        while (left && goes) {
            const size_t now = left < sizeof zeros ? left : sizeof zeros;
            goes = write_raw(me->comm, 0, zeros, now);
            left -= now;
        }
    }
    ranks_sleep(0.02);
}

/* Rank 0 calls what it likes and must come to an end with an error that names the other one, or with none, if
   that happened to send what was right; and nothing but its arrays is touched. */
static void hostile_body(test_rank *me)
{
    const hostile *what = (const hostile *)me->user;
    if (me->rank == 1) {
        hostile_rank(me, what);
        return;
    }
    const size_t bytes = N * sizeof(float);
    unsigned char *arrays[3];
    dml_request *requests[3];
    for (int i = 0; i < 3; i++) {
        arrays[i] = (unsigned char *)malloc(bytes + GUARD);
        memset(arrays[i], 0xa5, bytes + GUARD);
    }
    requests[0] = dml_comm_all_reduce_start(me->comm, arrays[0], N, DML_F32, DML_SUM);
    requests[1] = dml_comm_receive_start(me->comm, arrays[1], N, DML_F32, DML_ANY_SOURCE, DML_ANY_TAG);
    requests[2] = dml_comm_broadcast_start(me->comm, arrays[2], N, DML_F32, 1);
    for (int i = 0; i < 3; i++) dml_comm_wait(me->comm, requests[i]);
    const char *error = dml_comm_error(me->comm);
    if (dml_comm_status(me->comm) && !strstr(error, "rank 1")) {
        printf("seed %u: %s\n", what->seed, error);
        me->bad++;
    }
    for (int i = 0; i < 3; i++) {
        for (size_t g = 0; g < GUARD; g++) me->bad += arrays[i][bytes + g] != 0xa5;
        free(arrays[i]);
    }
}

static void a_peer_that_sends_nonsense(void)
{
    static const char *const transports[] = { "tcp", "shm" };
    /* Most end at a deadline, and what counts is what a sanitizer says. */
    const unsigned seeds = TEST_EMULATOR ? 8 : TEST_SLOW ? 60 : 24;
    unsigned failed = 0;
    for (unsigned seed = 0; seed < seeds; seed++) {
        hostile what;
        test_rank ranks[2];
        what.seed = seed;
        what.transport = transports[seed / 4 % 2];
        ranks_prepare(ranks, 2, 0.3, hostile_body, &what);
        for (int rank = 0; rank < 2; rank++) {
            ranks[rank].options.transport = what.transport;
            ranks[rank].options.max_requests = 4;
            ranks[rank].options.segment_bytes = seed % 3 ? 0 : 1000;
        }
        ranks_run(ranks, 2);
        CHECK_MESSAGE(!ranks[0].bad, "seed %u: %d wrong: %s", seed, ranks[0].bad, ranks[0].error);
        failed += ranks[0].status != DML_OK;
    }
    CHECK(6 * failed > 5 * seeds);
}

/* What rank 1 answers, as these bytes on any machine. */
static void answer_body(test_rank *me)
{
    static const uint8_t body[7][8] = {
        { DML__CALL_RECEIVE, DML_I64, 0, 0, 1 },      /* the call, its type, its root */
        { 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11 }, /* count */
        { 0, 0, 0, 0, 4, 3, 2, 1 },                   /* variant, communicator */
        { 8, 7, 6, 5, 4, 3, 2, 1 },                   /* sequence */
        { 0 },
        { 2, 1, 0, 0, 1 },    /* quiet and 1 + its tag, absent */
        { 3, 1, 0, 0, 6, 2 }, /* from whom what lies there is, 1 + its tag */
    };
    dml__comm_job *job = me->comm->job;
    dml__control control;
    if (me->rank) return;
    memset(&control, 0, sizeof control);
    control.kind = DML__ANSWER;
    control.rank = 0;
    control.bytes = sizeof body;
    memcpy(control.body, body, sizeof body);
    dml__enter_job(job);
    me->bad += !dml__take_waiting(job, 1, &control);
    const dml__peer peer = job->peers[1];
    dml__leave_job(job);
    const dml__waiting *waiting = &peer.waits_in;
    CHECK(peer.answered && peer.waits_for == 0 && peer.absent == DML__IS_AWAY);
    CHECK(waiting->call.operation == DML__CALL_RECEIVE && waiting->call.dtype == DML_I64 &&
          waiting->call.root == 1);
    CHECK(waiting->call.count == 0x0011223344556677 && waiting->communicator == 0x01020304);
    CHECK(waiting->sequence == 0x0102030405060708 && waiting->tag == 0x101);
    CHECK(waiting->lies_from == 0x103 && waiting->lies_tag == 0x205);
}

static void answer_bytes(void)
{
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 20, answer_body, NULL);
    ranks_run_on(ranks, 2, "local");
    check_ranks(ranks, 2);
}

/* On its control stream, what rank 1 asks or says: all zero but for one byte. */
typedef struct odd_control {
    int kind, rank, bytes, at;
    uint8_t value;
    bool makes_sense;
} odd_control;

static void control_body(test_rank *me)
{
    const odd_control *odd = (const odd_control *)me->user;
    dml__comm_job *job = me->comm->job;
    dml_comm_barrier(me->comm);
    if (me->rank == 1) {
        dml__control control;
        memset(&control, 0, sizeof control);
        control.kind = odd->kind;
        control.rank = odd->rank;
        control.bytes = odd->bytes;
        control.body[odd->at] = odd->value;
        dml__enter_job(job);
        me->bad += !dml__send_control(job->transport, 0, &control, 0);
        dml__leave_job(job);
        if (odd->makes_sense) dml_comm_send(me->comm, NULL, 0, DML_F32, 0, 0);
    } else {
        dml_comm_receive(me->comm, NULL, 0, DML_F32, 1, 0, NULL); /* or what it hears ends it */
        dml_comm_probe(me->comm, 1, 1, 0.02, NULL);               /* it hears what came before */
    }
    dml_comm_barrier(me->comm);
}

static void check_control(const odd_control *odd)
{
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 20, control_body, (void *)(uintptr_t)odd);
    ranks_run_on(ranks, 2, "tcp");
    CHECK_MESSAGE(ranks[0].status == (odd->makes_sense ? DML_OK : DML_ERROR_FORMAT), "kind %d, rank %d: %s",
                  odd->kind, odd->rank, ranks[0].error);
    CHECK_INT(ranks[1].bad, 0);
    if (!odd->makes_sense) CHECK_STRING(ranks[0].error, "rank 1 sent rank 0 a message that makes no sense");
}

static void a_peer_that_asks_nonsense(void)
{
    static const odd_control all[] = {
        { DML__ASK, -1, 56, 44, DML__IS_PROBING, true },
        { DML__ASK, 1, 56, 0, 0, true },
        { DML__ANSWER, 0, 56, 0, 0, true },
        { DML__ASK_CALL, 0, 32, 0, 0, true },
        { DML__SAY_CALL, 0, 32, 0, 0, true },
        /* Ranks that there are not, sizes, calls and absences. */
        { DML__ASK, -2, 56, 0, 0, false },
        { DML__ASK, 2, 56, 0, 0, false },
        { DML__ANSWER, INT_MIN, 56, 0, 0, false },
        { DML__ANSWER, INT_MAX, 56, 0, 0, false },
        { DML__ASK, 0, 55, 0, 0, false },
        { DML__ANSWER, 0, 57, 0, 0, false },
        { DML__ASK_CALL, 0, 24, 0, 0, false },
        { DML__ASK_CALL, 0, 33, 0, 0, false },
        { DML__GOODBYE, 0, 7, 0, 0, false },
        { DML__ASK, 0, 56, 0, 255, false },
        { DML__ANSWER, 0, 56, 1, 255, false },
        { DML__SAY_CALL, 0, 32, 0, 255, false },
        { DML__ASK, 0, 56, 44, DML__IS_PROBING + 1, false },
        { DML__ANSWER, 0, 56, 47, 255, false },
        { 255, 0, 0, 0, 0, false },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) check_control(&all[i]);
}

int main(void)
{
    RUN(header_bytes);
    RUN(every_byte);
    RUN(header_bounds);
    RUN(signature_texts);
    RUN(swapped_elements);
    RUN(random_bytes);
    RUN(a_peer_that_sends_nonsense);
    RUN(answer_bytes);
    RUN(a_peer_that_asks_nonsense);
    return test_report("comm/frame");
}
