/* Which algorithm a call takes: the same at all ranks, what was asked for, and in a deterministic job always
   the same sums. */
#include "ranks.h"

#include <sched.h>

#include "comm/algorithms.h"
#include "comm/choice.h"
#include "comm/measure.h"

/* ---- what a communicator says of itself ---- */

static void describe_body(test_rank *me)
{
    char text[4096], cut[40];
    const size_t bytes = dml_comm_describe(me->comm, text, sizeof text);
    char begin[32];
    snprintf(begin, sizeof begin, "rank %d of %d on ", me->rank, me->world);
    me->bad += bytes != strlen(text) || strncmp(text, begin, strlen(begin)) != 0;
    me->bad += dml_comm_describe(me->comm, cut, sizeof cut) != bytes;
    me->bad += strlen(cut) != sizeof cut - 1 || strncmp(text, cut, sizeof cut - 1) != 0;
    me->bad += dml_comm_describe(me->comm, NULL, 0) != bytes;
    for (const char *const *part = (const char *const *)me->user; part && *part; part++)
        if (!strstr(text, *part)) {
            printf("%s\n... doesn't say \"%s\"\n", text, *part);
            me->bad++;
        }
    /* From the second line on all say the same. */
    const char *rest = strchr(text, '\n');
    ranks_digest(me, rest, strlen(rest));
}

static void check_description(int world, const dml_comm_options *options, const char *const *parts)
{
    test_rank ranks[RANKS_MAX];
    ranks_prepare(ranks, world, 20, describe_body, (void *)(uintptr_t)parts);
    for (int rank = 0; rank < world; rank++) {
        dml_comm_options *own = &ranks[rank].options;
        own->algorithm = options->algorithm;
        own->transport = options->transport;
        own->link_latency_us = options->link_latency_us;
        own->link_bandwidth_gbit = options->link_bandwidth_gbit;
        own->deterministic = options->deterministic;
        own->segment_bytes = options->segment_bytes;
    }
    ranks_run(ranks, world);
    check_ranks(ranks, world);
}

/* Ranks of one process may always read it; where there is no such call, they are by TCP or copy. */
static void whose_memory_is_read(void)
{
    static const char *const read[] = { " by shm, 2 of them reading this one's memory\n", NULL };
    static const char *const copied[] = { " by shm\n", NULL };
    dml_comm_options options;
    memset(&options, 0, sizeof options);
    setenv("DML_COMM_CMA", "0", 1);
    check_description(3, &options, copied);
    setenv("DML_COMM_CMA", "1", 1);
    check_description(3, &options, read);
    unsetenv("DML_COMM_CMA");
}

static void descriptions(void)
{
    static const char *const usual[] = { "links, measured: of a host ",          "all_reduce: ", "barrier: ",
                                         "in segments of 256 KiB, eager up to ", "timeout 20 s", NULL };
    static const char *const over_tcp[] = { " on 1 host, ", " by tcp\n", "links, measured: of a host ",
                                            NULL };
    static const char *const named[] = { "all_reduce: ring\n", "all_gather: ring\n", "links, assumed", NULL };
    static const char *const some[] = { "all_reduce: tree\n", "broadcast: chain\n", NULL };
    static const char *const given[] = { "links, as given: of a host 7 us, 3 Gbit/s; sums ", NULL };
    static const char *const ordered[] = { "all_reduce: master_worker\n",
                                           "sums in the order of the ranks, in", "segments of 8 bytes",
                                           NULL };
    dml_comm_options options;
    for (int world = 2; world <= 9; world += world < 5 ? 1 : 4) {
        memset(&options, 0, sizeof options);
        check_description(world, &options, usual);
        options.transport = "tcp";
        check_description(world, &options, over_tcp);
    }
    options.algorithm = "ring";
    check_description(3, &options, named);
    options.algorithm = "all_reduce=tree,broadcast=chain";
    check_description(4, &options, some);
    memset(&options, 0, sizeof options);
    options.link_latency_us = 7;
    options.link_bandwidth_gbit = 3;
    check_description(3, &options, given);
    options.deterministic = true;
    options.algorithm = "all_reduce=master_worker,reduce=binomial";
    options.segment_bytes = 8;
    check_description(3, &options, ordered);
}

/* Over a loopback that is about as fast as memory (not one of a machine that is busy) a rank's part of a
   round is one, unless another size was asked for. */
static void segments_body(test_rank *me)
{
    const dml__comm_job *job = me->comm->job;
    const bool in_parts = me->comm->measured && job->round_part == DML__ROUND_PART_COPIED &&
                          dml__memory_moves(&me->comm->model) && dml__wire_is_native();
    const size_t usual = dml__wire_is_native() ? 256 << 10 : DML__SWAP_BYTES;
    const size_t wanted = me->options.segment_bytes ? usual : in_parts ? DML__ROUND_PART_COPIED : usual;
    me->bad += job->segment_bytes != wanted;
    me->bad += me->rank == 0 && me->comm->model.segment != wanted; /* who computes prices */
    me->bad += strcmp(me->options.transport, "shm") == 0 && in_parts;
}

/* Whoever was given 256 KiB cuts otherwise than who wasn't, and still they understand each other. */
static void unlike_segments_body(test_rank *me)
{
    enum { COUNT = 777777 };
    float *x = (float *)malloc(COUNT * sizeof *x);
    for (int turn = 0; turn < 4; turn++) {
        for (int i = 0; i < COUNT; i++) x[i] = (float)(i % 1000 + me->rank + turn);
        me->bad += dml_comm_all_reduce(me->comm, x, COUNT, DML_F32, DML_SUM) != DML_OK;
        for (int i = 0; i < COUNT; i++) me->bad += x[i] != (float)(3 * (i % 1000 + turn) + 3);
        me->bad += dml_comm_broadcast(me->comm, x, COUNT - me->world * turn, DML_F32, turn % 3) != DML_OK;
    }
    free(x);
}

static void unlike_segments(void)
{
    for (int given = 0; given < 3; given++) {
        test_rank ranks[3];
        ranks_prepare(ranks, 3, 20, unlike_segments_body, NULL);
        ranks[given].options.segment_bytes = 256 << 10;
        ranks_run_on(ranks, 3, "tcp");
        check_ranks(ranks, 3);
    }
}

static void segments(void)
{
    for (int kind = 0; kind < 4; kind++) { /* the last: of links that nobody has measured */
        test_rank ranks[2];
        ranks_prepare(ranks, 2, 20, segments_body, NULL);
        for (int rank = 0; rank < 2; rank++) {
            ranks[rank].options.segment_bytes = kind == 2 ? 256 << 10 : 0;
            ranks[rank].options.algorithm = kind == 3 ? "ring" : NULL;
        }
        ranks_run_on(ranks, 2, kind == 1 ? "shm" : "tcp");
        check_ranks(ranks, 2);
    }
}

/* Ranks in one process whose links are given, and an all-reduce to ask about. */
static void open_given_links(dml_comm **comms, int ranks, dml__comm_call *call)
{
    dml_comm_options options;
    memset(&options, 0, sizeof options);
    options.link_latency_us = 2;
    options.link_bandwidth_gbit = 32;
    CHECK_INT(dml_comm_open_local(comms, ranks, &options), DML_OK);
    memset(call, 0, sizeof *call);
    call->signature.operation = DML__CALL_ALL_REDUCE;
    call->signature.dtype = DML_F32;
}

static void close_all(dml_comm **comms, int ranks)
{
    for (int r = 0; r < ranks; r++) comms[r]->job->error.status = DML_ERROR_STATE; /* they close one by one */
    for (int r = 0; r < ranks; r++) dml_comm_close(comms[r]);
}

/* Small messages take few steps, and large ones are not sent whole to everybody. */
static void given_links(void)
{
    dml_comm *comms[8];
    dml__comm_call call;
    int count;
    const dml__algorithm_info *table = dml__algorithms(&count);
    open_given_links(comms, 8, &call);
    for (int power = 0; power < 27; power++) {
        call.signature.count = (uint64_t)1 << power;
        const int choice = dml__choose_algorithm(comms[0], &call);
        for (int r = 1; r < 8; r++) CHECK_INT(dml__choose_algorithm(comms[r], &call), choice);
        const uint64_t sent = table[choice].elements_sent(8, call.signature.count / 16 * 16);
        if (power > 20) CHECK_MESSAGE(sent <= 2 * call.signature.count, "%s", table[choice].name);
    }
    close_all(comms, 8);
}

/* Of what comes to rank 1 the first pieces are held up, for much longer than a loaded machine takes over one.
 */
static int held_up;

static ssize_t held_receive(int fd, struct msghdr *message, int flags)
{
    const ssize_t got = dml__system_sockets()->receive(fd, message, flags);
    if (got > 0 && held_up++ < 12) ranks_sleep(30e-3);
    return got;
}

static void look_at_link(test_rank *me)
{
    const dml__price_link *link = &me->comm->model.inside;
    me->seconds = link->latency + 2 * link->overhead;
    me->bad = !me->comm->measured || !(me->seconds < 10e-3);
}

static void a_busy_moment_is_not_the_link(void)
{
    dml__socket_calls held = *dml__system_sockets();
    test_rank ranks[2];
    held.receive = held_receive;
    ranks_prepare(ranks, 2, 60, look_at_link, NULL);
    ranks[1].sockets = &held;
    held_up = 0;
    ranks_run_on(ranks, 2, "tcp");
    check_ranks(ranks, 2);
    CHECK(held_up > 12);
}

/* Between two ranks two rings are halving and doubling in twice as many messages. */
static void two_rings_of_two_ranks(void)
{
    dml_comm *comms[2];
    dml__comm_call call;
    int count, halves = 0;
    const dml__algorithm_info *table = dml__algorithms(&count);
    open_given_links(comms, 2, &call);
    for (int power = 0; power < 27; power++) {
        call.signature.count = (uint64_t)1 << power;
        const char *name = table[dml__choose_algorithm(comms[0], &call)].name;
        CHECK_MESSAGE(strcmp(name, "ring_segmented") != 0, "of 2^%d elements", power);
        halves += strcmp(name, "halving_doubling") == 0;
    }
    CHECK(halves > 10);
    close_all(comms, 2);
}

#if defined(__linux__)
/* On that many processors. */
static void open_crowded(dml_comm *comms[], int world, int processors, bool deterministic)
{
    cpu_set_t all, some;
    dml_comm_options options;
    sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&some);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&some) < processors; i++)
        if (CPU_ISSET(i, &all)) CPU_SET(i, &some);
    sched_setaffinity(0, sizeof some, &some);
    memset(&options, 0, sizeof options);
    options.deterministic = deterministic;
    CHECK_INT(dml_comm_open_local(comms, world, &options), DML_OK);
    sched_setaffinity(0, sizeof all, &all);
}

/* How many sizes of up to 1 MiB get that algorithm. */
static int sizes_by(dml_comm *comm, dml__comm_operation operation, const char *name)
{
    dml__comm_call call;
    int count, sizes = 0;
    memset(&call, 0, sizeof call);
    call.signature.operation = operation;
    call.signature.dtype = DML_F32;
    for (int power = 0; power <= 18; power++) {
        call.signature.count = (uint64_t)1 << power;
        sizes += strcmp(dml__algorithms(&count)[dml__choose_algorithm(comm, &call)].name, name) == 0;
    }
    return sizes;
}
#endif

/* Eight threads on one processor: few messages are cheap, not few steps. And those that take turns don't all
   wait for all others, unless sums are to go by ranks and nothing else that is cheap does so. */
static void threads_share_processors(void)
{
#if defined(__linux__)
    dml_comm *comms[8];
    open_crowded(comms, 8, 1, false);
    CHECK(sizes_by(comms[0], DML__CALL_ALL_REDUCE, "master_worker") > 5);
    close_all(comms, 8);
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        open_crowded(comms, 4, 2, deterministic);
        CHECK_INT(sizes_by(comms[0], DML__CALL_ALL_REDUCE, "all_to_all"), 0);
        CHECK_INT(sizes_by(comms[0], DML__CALL_REDUCE_SCATTER, "direct") > 5, deterministic);
        close_all(comms, 4);
    }
#endif
}

/* They read a broadcast where the root has it, unless they stand for ranks of other links. */
static void threads_read_what_is_broadcast(void)
{
    for (int given = 0; given < 2; given++) {
        dml_comm *comms[5];
        dml__comm_call call;
        dml_comm_options options;
        int count, direct = 0;
        memset(&options, 0, sizeof options);
        options.link_latency_us = given ? 10 : 0;
        options.link_bandwidth_gbit = given ? 10 : 0;
        CHECK_INT(dml_comm_open_local(comms, 5, &options), DML_OK);
        memset(&call, 0, sizeof call);
        call.signature.operation = DML__CALL_BROADCAST;
        call.signature.dtype = DML_F32;
        for (int power = 0; power < 26; power++) {
            call.signature.count = (uint64_t)1 << power;
            const int chosen = dml__choose_algorithm(comms[power % 5], &call);
            direct += strcmp(dml__algorithms(&count)[chosen].name, "direct") == 0;
        }
        CHECK_MESSAGE(given ? direct < 20 : direct == 26, "%d of 26 sizes are sent to each rank", direct);
        close_all(comms, 5);
    }
}

/* Where even one element of each rank is more than SCRATCH has room for, whoever names such an algorithm gets
   another. */
static void scratch_of_many_ranks(void)
{
    static const char *const names[] = { "all_to_all", "round_robin", "direct" };
    dml_comm *comm;
    dml__comm_call call;
    int count;
    const dml__algorithm_info *infos = dml__algorithms(&count);
    memset(&call, 0, sizeof call);
    call.signature.operation = DML__CALL_ALL_REDUCE;
    call.signature.dtype = DML_F32;
    call.signature.count = 10;
    CHECK_INT(dml_comm_open_local(&comm, 1, NULL), DML_OK);
    for (int size = 4000; size <= 5000; size += 1000)
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            dml__ask_for_algorithm(comm->job, names[i]);
            comm->size = size;
            const dml__algorithm_info *info = &infos[dml__choose_algorithm(comm, &call)];
            comm->size = 1;
            CHECK_MESSAGE((size == 4000) == (strcmp(info->name, names[i]) == 0), "%d ranks, %s: %s", size,
                          names[i], info->name);
        }
    dml_comm_close(comm);
}

static void bad_settings(void)
{
    dml_comm_options options;
    dml__comm_settings settings;
    dml__error error;
    memset(&options, 0, sizeof options);
    memset(&error, 0, sizeof error);
    options.link_latency_us = 5;
    CHECK(!dml__read_comm_settings(&options, &settings, &error));
    CHECK_CONTAINS(error.text, "given together");
    memset(&error, 0, sizeof error);
    options.link_bandwidth_gbit = -1;
    CHECK(!dml__read_comm_settings(&options, &settings, &error));
    CHECK_CONTAINS(error.text, "link_bandwidth_gbit is -1");
    memset(&options, 0, sizeof options);
    memset(&error, 0, sizeof error);
    setenv("DML_COMM_LATENCY", "soon", 1);
    CHECK(!dml__read_comm_settings(&options, &settings, &error));
    CHECK_CONTAINS(error.text, "DML_COMM_LATENCY is \"soon\"");
    setenv("DML_COMM_LATENCY", "12.5", 1);
    setenv("DML_COMM_BANDWIDTH", "8", 1);
    setenv("DML_COMM_DETERMINISTIC", "1", 1);
    CHECK(dml__read_comm_settings(&options, &settings, &error));
    CHECK(settings.deterministic);
    CHECK_NEAR(settings.latency, 12.5e-6, 1e-12);
    CHECK_NEAR(settings.bandwidth, 1e9, 1e-3);
    memset(&error, 0, sizeof error);
    setenv("DML_COMM_DETERMINISTIC", "yes", 1);
    CHECK(!dml__read_comm_settings(&options, &settings, &error));
    CHECK_CONTAINS(error.text, "DML_COMM_DETERMINISTIC is \"yes\"");
    unsetenv("DML_COMM_LATENCY");
    unsetenv("DML_COMM_BANDWIDTH");
    unsetenv("DML_COMM_DETERMINISTIC");
    setenv("DML_COMM_CMA", "no", 1);
    memset(&error, 0, sizeof error);
    CHECK(!dml__read_comm_settings(&options, &settings, &error));
    CHECK_CONTAINS(error.text, "DML_COMM_CMA is \"no\", not 0 or 1");
    unsetenv("DML_COMM_CMA");
}

/* ---- groups ---- */

static void groups_body(test_rank *me)
{
    dml_comm *odd = dml_comm_split(me->comm, me->rank % 3, -me->rank), *all = dml_comm_split(me->comm, 0, 0);
    float x[3000];
    const int size = dml_comm_world_size(odd);
    for (int i = 0; i < 3000; i++) x[i] = (float)(me->rank + i);
    me->bad += dml_comm_all_reduce(odd, x, 3000, DML_F32, DML_SUM) != DML_OK;
    int sum = 0;
    for (int r = me->rank % 3; r < me->world; r += 3) sum += r;
    for (int i = 0; i < 3000; i++) me->bad += x[i] != (float)(sum + i * size);
    /* All of a group have the same table; all of the world have that of a group of all. */
    uint8_t least[sizeof(dml__choice)], most[sizeof(dml__choice)];
    memcpy(least, &odd->choice, sizeof least);
    memcpy(most, &odd->choice, sizeof most);
    me->bad += dml_comm_all_reduce(odd, least, sizeof least, DML_U8, DML_MIN) != DML_OK;
    me->bad += dml_comm_all_reduce(odd, most, sizeof most, DML_U8, DML_MAX) != DML_OK;
    me->bad += memcmp(least, most, sizeof least) != 0;
    me->bad += memcmp(&all->choice, &me->comm->choice, sizeof all->choice) != 0;
    ranks_digest(me, &all->choice, sizeof all->choice);
    dml_comm_close(odd);
    dml_comm_close(all);
}

static void groups(void)
{
    test_rank ranks[RANKS_MAX];
    for (int world = 2; world <= 9; world++) {
        ranks_prepare(ranks, world, 20, groups_body, NULL);
        ranks_run(ranks, world);
        check_ranks(ranks, world);
    }
}

/* ---- the same bits ---- */

enum { MOST = 12000 };

/* Of very different sizes, so that every order of adding has other bits. */
static float number(int rank, size_t i)
{
    const unsigned mix = (unsigned)((size_t)rank * 2654435761u + i * 40503u + 77u) * 2246822519u;
    return ldexpf((float)(int)(mix >> 8 & 0xffff) - 32768, (int)(mix >> 24 & 15));
}

static float in_order(int world, size_t i, dml_reduce_op op)
{
    float sum = number(0, i);
    for (int rank = 1; rank < world; rank++) sum += number(rank, i);
    return op == DML_MEAN ? sum / (float)world : sum;
}

static void fill(float *x, int rank, size_t count)
{
    for (size_t i = 0; i < count; i++) x[i] = number(rank, i);
}

static void check_in_order(test_rank *me, const float *x, size_t from, size_t count, dml_reduce_op op)
{
    for (size_t i = 0; i < count; i++) {
        const float expected = in_order(me->world, from + i, op);
        me->bad += memcmp(&x[i], &expected, sizeof expected) != 0;
    }
}

static void deterministic_body(test_rank *me)
{
    static const size_t counts[] = { 1, 5, 700, MOST };
    float *x = (float *)malloc((size_t)me->world * MOST * sizeof *x),
          *out = (float *)malloc(MOST * sizeof *x);
    const int root = me->world / 2;
    for (int c = 0; c < 4; c++) {
        const dml_reduce_op op = c % 2 ? DML_MEAN : DML_SUM;
        const size_t count = counts[c], part = count / 4 + 1;
        fill(x, me->rank, count);
        me->bad += dml_comm_all_reduce(me->comm, x, count, DML_F32, op) != DML_OK;
        check_in_order(me, x, 0, count, op);
        fill(x, me->rank, count);
        me->bad += dml_comm_reduce(me->comm, x, count, DML_F32, op, root) != DML_OK;
        if (me->rank == root) check_in_order(me, x, 0, count, op);
        fill(x, me->rank, part * (size_t)me->world);
        me->bad += dml_comm_reduce_scatter(me->comm, x, part, DML_F32, op, out) != DML_OK;
        check_in_order(me, out, part * (size_t)me->rank, part, op);
    }
    free(x);
    free(out);
}

static void *local_thread(void *argument)
{
    test_rank *me = (test_rank *)argument;
    me->body(me);
    me->status = dml_comm_status(me->comm);
    snprintf(me->error, sizeof me->error, "%s", dml_comm_error(me->comm));
    dml_comm_close(me->comm);
    return NULL;
}

static void run_locally(test_rank *ranks, int world)
{
    dml_comm *comms[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    CHECK_INT(dml_comm_open_local(comms, world, &ranks[0].options), DML_OK);
    for (int r = 0; r < world; r++) ranks[r].comm = comms[r];
    for (int r = 0; r < world; r++) pthread_create(&threads[r], NULL, local_thread, &ranks[r]);
    for (int r = 0; r < world; r++) pthread_join(threads[r], NULL);
}

static void deterministic(void)
{
    static const char *const names[] = { NULL,
                                         "ring",
                                         "ring_segmented",
                                         "tree",
                                         "round_robin",
                                         "master_worker",
                                         "butterfly",
                                         "halving_doubling",
                                         "direct",
                                         "all_to_all",
                                         "chain",
                                         "reduce=binomial",
                                         "reduce_scatter=halving" };
    static const size_t segments[] = { 0, 64, 4096, 8, 1000 };
    test_rank ranks[RANKS_MAX];
    int job = 0;
    for (int world = 2; world <= 9; world++)
        for (size_t n = 0; n < sizeof names / sizeof *names; n++, job++) {
            if (TEST_EMULATOR && job % 7) continue;
            ranks_prepare(ranks, world, 30, deterministic_body, NULL);
            for (int r = 0; r < world; r++) {
                ranks[r].options.deterministic = true;
                ranks[r].options.algorithm = names[n];
                ranks[r].options.segment_bytes = segments[job % 5];
                ranks[r].options.transport = job % 3 == 1 ? "tcp" : "shm";
            }
            if (job % 3 == 2)
                run_locally(ranks, world);
            else
                ranks_run(ranks, world);
            for (int r = 0; r < world; r++)
                CHECK_MESSAGE(!ranks[r].bad && !ranks[r].status,
                              "%s, rank %d of %d, segment %d: %d wrong, %s", names[n] ? names[n] : "any", r,
                              world, (int)segments[job % 5], ranks[r].bad, ranks[r].error);
        }
}

int main(void)
{
    RUN(bad_settings);
    RUN(descriptions);
    RUN(segments);
    RUN(unlike_segments);
#if defined(__linux__)
    RUN(whose_memory_is_read);
#endif
    RUN(given_links);
    RUN(a_busy_moment_is_not_the_link);
    RUN(two_rings_of_two_ranks);
    RUN(threads_share_processors);
    RUN(threads_read_what_is_broadcast);
    RUN(scratch_of_many_ranks);
    RUN(groups);
    RUN(deterministic);
    return test_report("comm/choice");
}
