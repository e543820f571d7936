/* How ranks meet: missing and mistaken ranks, keys, strangers. */
#include "meet.h"

#include <errno.h>
#include <netdb.h>
#include <sys/resource.h>

/* ---- who is missing, who is wrong ---- */

static void missing_rank(void)
{
    test_rank ranks[4];
    ranks_prepare(ranks, 4, 0.6, NULL, NULL);
    ranks_run(ranks, 2);
    for (int rank = 0; rank < 2; rank++) {
        CHECK_INT(ranks[rank].status, DML_ERROR_TIMEOUT);
        CHECK_CONTAINS(ranks[rank].error, "ranks 2, 3 of 4 did not arrive at 127.0.0.1:");
        CHECK_CONTAINS(ranks[rank].error, "within 0.6 s");
    }
}

static void missing_master(void)
{
    test_rank ranks[3];
    ranks_prepare(ranks, 3, 0.2, NULL, NULL);
    ranks_run(ranks + 1, 2);
    for (int rank = 1; rank < 3; rank++) {
        CHECK_INT(ranks[rank].status, DML_ERROR_TIMEOUT);
        CHECK_CONTAINS(ranks[rank].error, "could not reach rank 0 at 127.0.0.1:");
        CHECK_CONTAINS(ranks[rank].error, "refused");
    }
}

/* Something listens there and never answers. */
static void silent_master(void)
{
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 0.2, NULL, NULL);
    dml__address address;
    int error;
    CHECK_INT(dml__resolve_host(dml__system_sockets(), "127.0.0.1", (uint16_t)ranks[1].options.master_port,
                                &address, 1, &error),
              1);
    const int fd = dml__socket_listen(dml__system_sockets(), &address);
    CHECK(fd >= 0);
    ranks_run(ranks + 1, 1);
    CHECK_CONTAINS(ranks[1].error, "who listens there doesn't answer");
    ranks_run(ranks, 1);
    CHECK_INT(ranks[0].status, DML_ERROR_NETWORK);
    CHECK_CONTAINS(ranks[0].error, "rank 0 can't listen on 127.0.0.1:");
    CHECK_CONTAINS(ranks[0].error, "the port is in use");
    close(fd);
}

static void *start_late(void *argument)
{
    ranks_sleep(0.1);
    return ranks_thread(argument);
}

static void ranks_start_in_any_order(void)
{
    for (int late = 0; late < 3; late++) {
        test_rank ranks[3];
        pthread_t threads[3];
        ranks_prepare(ranks, 3, 20, late_rank_body, NULL);
        for (int rank = 0; rank < 3; rank++)
            pthread_create(&threads[rank], NULL, rank == late ? start_late : ranks_thread, &ranks[rank]);
        for (int rank = 0; rank < 3; rank++) pthread_join(threads[rank], NULL);
        check_ranks(ranks, 3);
    }
}

/* Both sides of a disagreement show the same sentence. */
static void check_both(test_rank *ranks, int count, const char *part)
{
    ranks_run(ranks, count);
    for (int i = 0; i < count; i++) {
        CHECK_INT(ranks[i].status, DML_ERROR_MISMATCH);
        CHECK_CONTAINS(ranks[i].error, part);
        CHECK(ranks[i].seconds < 10);
    }
}

static void wrong_world_size(void)
{
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 20, NULL, NULL);
    ranks[1].options.world_size = 3;
    check_both(ranks, 2, "rank 1 has world_size 3, rank 0 has 2: give all the same");
}

static void wrong_segment_bytes(void)
{
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 20, NULL, NULL);
    ranks[1].options.segment_bytes = 4096;
    check_both(ranks, 2, "rank 1 has segment_bytes 4096, rank 0 has 262144: give all the same");
}

static void wrong_max_requests(void)
{
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 20, NULL, NULL);
    ranks[0].options.max_requests = 3;
    check_both(ranks, 2, "rank 1 has max_requests 256, rank 0 has 3: give all the same");
}

/* Whoever comes first, the rank is named that is alone with what it has. */
static void most_are_right(void)
{
    enum { WORLD = 4 };
    static const struct {
        int odd, first; /* rank 1 or 3 comes before the others */
        const char *part;
    } cases[] = {
        { 2, 1, "rank 2 has max_requests 16, ranks 0, 1 and 3 have 256: give all the same" },
        { 2, 3, "rank 2 has max_requests 16, ranks 0, 1 and 3 have 256: give all the same" },
        { 0, 1, "rank 0 has max_requests 16, ranks 1, 2 and 3 have 256: give all the same" },
        { 0, 3, "rank 0 has max_requests 16, ranks 1, 2 and 3 have 256: give all the same" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_rank ranks[WORLD];
        pthread_t threads[WORLD];
        ranks_prepare(ranks, WORLD, 20, late_rank_body, NULL);
        ranks[cases[i].odd].options.max_requests = 16;
        for (int late = 0; late < 2; late++) {
            for (int rank = 0; rank < WORLD; rank++)
                if ((rank != 0 && rank != cases[i].first) == late)
                    pthread_create(&threads[rank], NULL, late ? start_late : ranks_thread, &ranks[rank]);
        }
        for (int rank = 0; rank < WORLD; rank++) pthread_join(threads[rank], NULL);
        for (int rank = 0; rank < WORLD; rank++) {
            CHECK_INT(ranks[rank].status, DML_ERROR_MISMATCH);
            CHECK_CONTAINS(ranks[rank].error, cases[i].part);
            CHECK(ranks[rank].seconds < 10);
        }
    }
}

/* A rank 0 that was told of too small a world names nobody else. */
static void too_small_a_world(void)
{
    test_rank ranks[4];
    ranks_prepare(ranks, 4, 20, NULL, NULL);
    ranks[0].options.world_size = 2;
    check_both(ranks, 4, "rank 0 has world_size 2, ranks 1, 2 and 3 have 4: give all the same");
}

static void same_rank_twice(void)
{
    test_rank ranks[3];
    ranks_prepare(ranks, 3, 20, NULL, NULL);
    ranks[2].options.rank = 1;
    ranks_run(ranks, 3);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(ranks[i].status, DML_ERROR_MISMATCH);
        CHECK_CONTAINS(ranks[i].error,
                       "rank 1 came twice to rank 0, and rank 2 of 3 not at all: two processes");
    }
}

/* Comes to rank 0 as rank 1 of three, is welcome, and leaves. */
static void come_and_die(int port)
{
    uint8_t challenge[DML__CHALLENGE_BYTES], bytes[DML__HELLO_BYTES], answer[DML__WELCOME_BYTES] = { 0 };
    dml__hello hello;
    dml__welcome welcome;
    int fd = -1;
    while (fd < 0) fd = ranks_connect(port);
    receive_all(fd, challenge, sizeof challenge);
    memset(&hello, 0, sizeof hello);
    hello.version = DML__WIRE_VERSION;
    hello.from = 1;
    hello.world = 3;
    hello.segment_bytes = SEGMENT_BYTES;
    hello.max_requests = MAX_REQUESTS;
    dml__encode_hello(&hello, bytes);
    (void)!send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
    receive_all(fd, answer, sizeof answer);
    CHECK(dml__decode_welcome(answer, &welcome) && welcome.verdict == DML__VERDICT_WELCOME);
    close(fd);
}

/* Whoever comes when the job has ended already is told why, too; for one who doesn't come nobody waits long.
 */
static void the_last_one_is_told(void)
{
    static const char *const parts[] = { "rank 1 has max_requests 7, rank 0 has 256",
                                         "rank 1 of 3 died: its connection ended without a goodbye" };
    for (int dies = 0; dies < 2; dies++)
        for (int comes = 0; comes < 2; comes++) {
            test_rank ranks[3];
            pthread_t threads[3];
            ranks_prepare(ranks, 3, 20, NULL, NULL);
            ranks[1].options.max_requests = 7;
            pthread_create(&threads[0], NULL, ranks_thread, &ranks[0]);
            if (dies)
                come_and_die(ranks[0].options.master_port);
            else
                ranks_run(ranks + 1, 1);
            if (comes) ranks_run(ranks + 2, 1);
            pthread_join(threads[0], NULL);
            for (int i = 0; i < 3; i++) {
                if ((i == 1 && dies) || (i == 2 && !comes)) continue;
                CHECK_INT(ranks[i].status, dies ? DML_ERROR_PEER : DML_ERROR_MISMATCH);
                CHECK_CONTAINS(ranks[i].error, parts[dies]);
                CHECK(ranks[i].seconds < 10);
            }
        }
}

/* ---- trust ---- */

/* Rank 1 is told after a few tries; to rank 0 it is a stranger, of whom it tells at its deadline. */
static void check_keys(const char *key0, const char *key1, const char *part)
{
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 2, NULL, NULL);
    ranks[0].options.key = key0;
    ranks[1].options.key = key1;
    ranks_run(ranks, 2);
    CHECK_INT(ranks[1].status, DML_ERROR_MISMATCH);
    CHECK_CONTAINS(ranks[1].error, part);
    CHECK_INT(ranks[0].status, DML_ERROR_TIMEOUT);
    CHECK_CONTAINS(ranks[0].error, "rank 1 of 2 did not arrive");
    CHECK_CONTAINS(ranks[0].error, "turned away, the last because");
    CHECK_CONTAINS(ranks[0].error, part);
    CHECK(ranks[0].strangers >= 1 && ranks[0].strangers <= 6);
}

static void wrong_keys(void)
{
    check_keys("one", "two", "rank 1 has another key than rank 0");
    check_keys("one", NULL, "rank 1 has no key, but rank 0 has");
    check_keys(NULL, "one", "rank 1 has a key, but rank 0 has none");
}

static void check_refused(dml_comm_options options, const char *part)
{
    dml_comm *comm = dml_comm_open(&options);
    CHECK_INT(dml_comm_status(comm), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_comm_error(comm), part);
    dml_comm_close(comm);
}

static void no_key_no_network(void)
{
    dml_comm_options options = { .world_size = 2, .rank = 1, .master_addr = "192.0.2.1", .timeout_s = 0.1 };
    check_refused(options, "rank 1 won't leave loopback without a key");
    options = (dml_comm_options){ .world_size = 2, .bind_addr = "0.0.0.0", .timeout_s = 0.1 };
    check_refused(options, "bind_addr \"0.0.0.0\"");
    options.allow_insecure = true;
    options.master_port = test_port();
    dml_comm *comm = dml_comm_open(&options);
    CHECK_INT(dml_comm_status(comm), DML_ERROR_TIMEOUT); /* it did listen */
    dml_comm_close(comm);
    options = (dml_comm_options){ .world_size = 2, .bind_addr = "no such interface", .timeout_s = 0.1 };
    comm = dml_comm_open(&options);
    CHECK_CONTAINS(dml_comm_error(comm), "can't use bind_addr \"no such interface\"");
    dml_comm_close(comm);
    options = (dml_comm_options){ .world_size = 2, .master_addr = "no.such.host.invalid", .timeout_s = 0.1 };
    comm = dml_comm_open(&options);
    CHECK_CONTAINS(dml_comm_error(comm), "can't find the address of master_addr \"no.such.host.invalid\"");
    dml_comm_close(comm);
}

/* So large a world that what is kept of each rank takes longer than all of the time. */
static void no_time_to_try(void)
{
    const dml_comm_options options = { .world_size = 65536, .rank = 1, .timeout_s = 1e-9 };
    dml_comm *comm = dml_comm_open(&options);
    CHECK_INT(dml_comm_status(comm), DML_ERROR_TIMEOUT);
    CHECK_CONTAINS(dml_comm_error(comm), "could not reach rank 0 at 127.0.0.1:29500 within 1e-09 s");
    dml_comm_close(comm);
}

/* ---- strangers ---- */

typedef struct crowd {
    int port, stop; /* stop: atomic */
} crowd;

/* Comes again and again: silent, polite in another protocol, with noise, with a noisy hello, or hasty. */
static void *crowd_thread(void *argument)
{
    crowd *all = (crowd *)argument;
    unsigned state = 7;
    int silent[64], n = 0;
    for (int i = 0; !__atomic_load_n(&all->stop, __ATOMIC_SEQ_CST); i++) {
        const int fd = ranks_connect(all->port);
        if (fd < 0) {
            ranks_sleep(0.001);
            continue;
        }
        unsigned char noise[400];
        for (size_t k = 0; k < sizeof noise; k++) noise[k] = (unsigned char)(test_random(&state) >> 9);
        static const char http[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
        if (i % 5 == 1) (void)!send(fd, http, sizeof http - 1, MSG_NOSIGNAL);
        if (i % 5 == 2) (void)!send(fd, noise, sizeof noise, MSG_NOSIGNAL);
        if (i % 5 == 3) {
            memcpy(noise, "dmlH\1\0\0\0", 8);
            (void)!send(fd, noise, 128, MSG_NOSIGNAL);
        }
        if (i % 5 == 4 && n < 64)
            silent[n++] = fd;
        else
            close(fd);
    }
    while (n) close(silent[--n]);
    return NULL;
}

static void strangers_change_nothing(void)
{
    for (int keyed = 0; keyed < 2; keyed++) {
        test_rank ranks[4];
        crowd all;
        pthread_t crowds[2], threads[4];
        ranks_prepare(ranks, 4, 20, late_rank_body, NULL);
        all.port = ranks[0].options.master_port;
        all.stop = 0;
        for (int rank = 0; rank < 4; rank++) ranks[rank].options.key = keyed ? "a key" : NULL;
        for (int i = 0; i < 2; i++) pthread_create(&crowds[i], NULL, crowd_thread, &all);
        for (int rank = 0; rank < 4; rank++)
            pthread_create(&threads[rank], NULL, rank == 3 ? start_late : ranks_thread, &ranks[rank]);
        for (int rank = 0; rank < 4; rank++) pthread_join(threads[rank], NULL);
        __atomic_store_n(&all.stop, 1, __ATOMIC_SEQ_CST);
        for (int i = 0; i < 2; i++) pthread_join(crowds[i], NULL);
        check_ranks(ranks, 4);
        CHECK(ranks[0].strangers > 0);
    }
}

/* More ranks than one message of addresses holds; rank 21 gets just one full one. */
static void many_ranks(void)
{
    enum { MANY = DML__ADDRESSES_AT_ONCE + 4 };
    static test_rank ranks[MANY];
    pthread_t threads[MANY];
    struct rlimit old, more;
    CHECK_INT(getrlimit(RLIMIT_NOFILE, &old), 0);
    more = old;
    if (more.rlim_cur < 4096) more.rlim_cur = more.rlim_max < 4096 ? more.rlim_max : 4096;
    if (more.rlim_cur < 2 * MANY * MANY || setrlimit(RLIMIT_NOFILE, &more) != 0) {
        SKIP("%d ranks need more files than this process may open", MANY);
        return;
    }
    ranks_prepare(ranks, MANY, 60, late_rank_body, NULL);
    for (int rank = 0; rank < MANY; rank++)
        CHECK_INT(pthread_create(&threads[rank], NULL, ranks_thread, &ranks[rank]), 0);
    for (int rank = 0; rank < MANY; rank++) pthread_join(threads[rank], NULL);
    check_ranks(ranks, MANY);
    setrlimit(RLIMIT_NOFILE, &old);
}

static int swallower, swallowed; /* a port whose queue is full, and how often it was sent to */

/* The first connect goes where packets get no answer. */
static int connect_to_swallower(int fd, const struct sockaddr *address, socklen_t bytes)
{
    if (swallowed++) return connect(fd, address, bytes);
    struct sockaddr_in to;
    memcpy(&to, address, sizeof to);
    to.sin_port = htons((unsigned short)swallower);
    return connect(fd, (const struct sockaddr *)&to, sizeof to);
}

/* An address that never answers doesn't keep a rank from trying the next. */
static void swallowed_packets(void)
{
    enum { FILL = 4 };
    int listener = socket(AF_INET, SOCK_STREAM, 0), fill[FILL];
    struct sockaddr_in at;
    socklen_t bytes = sizeof at;
    memset(&at, 0, sizeof at);
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK_INT(bind(listener, (struct sockaddr *)&at, bytes), 0);
    CHECK_INT(getsockname(listener, (struct sockaddr *)&at, &bytes), 0);
    CHECK_INT(listen(listener, 0), 0);
    for (int i = 0; i < FILL; i++) {
        fill[i] = dml__system_sockets()->open(AF_INET);
        (void)!connect(fill[i], (struct sockaddr *)&at, bytes);
    }
    swallower = ntohs(at.sin_port);
    swallowed = 0;
    dml__socket_calls sockets = *dml__system_sockets();
    sockets.connect = connect_to_swallower;
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 2, late_rank_body, NULL);
    ranks[1].sockets = &sockets;
    ranks_run(ranks, 2);
    check_ranks(ranks, 2);
    CHECK(swallowed >= 2);
    for (int i = 0; i < FILL; i++) close(fill[i]);
    close(listener);
}

/* poll() takes no more entries than the process may have files, used or not. */
static void few_descriptors(void)
{
    struct rlimit old, few;
    CHECK_INT(getrlimit(RLIMIT_NOFILE, &old), 0);
    few = old;
    few.rlim_cur = 100;
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &few), 0);
    test_rank ranks[3];
    ranks_prepare(ranks, 3, 5, late_rank_body, NULL);
    ranks_run(ranks, 3);
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &old), 0);
    check_ranks(ranks, 3);
}

/* A rank that has no file descriptor left says so, and blames nobody else. */
static int no_accept(int fd, struct sockaddr *address, socklen_t *bytes)
{
    const int accepted = accept(fd, address, bytes);
    if (accepted < 0) return -1;
    close(accepted);
    errno = EMFILE;
    return -1;
}
static int no_open(int family)
{
    (void)family;
    errno = EMFILE;
    return -1;
}

static void no_descriptors(void)
{
    for (int poor = 0; poor < 2; poor++) {
        dml__socket_calls sockets = *dml__system_sockets();
        test_rank ranks[2];
        if (poor) {
            sockets.open = no_open;
        } else {
            sockets.accept = no_accept;
        }
        ranks_prepare(ranks, 2, 1, late_rank_body, NULL);
        ranks[poor].sockets = &sockets;
        ranks_run(ranks, 2);
        CHECK_INT(ranks[poor].status, DML_ERROR_NETWORK);
        CHECK_CONTAINS(ranks[poor].error, poor ? "rank 1 of 2 could not connect with rank 0"
                                               : "rank 0 of 2 could not connect with rank 1");
        CHECK_CONTAINS(ranks[poor].error, strerror(EMFILE));
        CHECK_INT(ranks[poor].strangers, 0);
    }
}

/* One that has some, and is known to others, tells them: who waits for it could only say that it doesn't
 * come.
 */
static int left_to_open;
static int few_to_open(int family)
{
    const int fd = left_to_open > 0 ? dml__system_sockets()->open(family) : -1;
    if (fd < 0) errno = EMFILE;
    left_to_open -= fd >= 0;
    return fd;
}
static int one_more_to_open(int fd)
{
    left_to_open++;
    return dml__system_sockets()->close(fd);
}

static void some_descriptors(void)
{
    for (int some = 1; some < 4; some++) { /* it needs two to each of the others */
        dml__socket_calls sockets = *dml__system_sockets();
        test_rank ranks[3];
        sockets.open = few_to_open;
        sockets.close = one_more_to_open;
        left_to_open = some;
        ranks_prepare(ranks, 3, 1, late_rank_body, NULL);
        ranks[2].sockets = &sockets;
        ranks_run(ranks, 3);
        for (int rank = 0; rank < 3; rank++) {
            CHECK_MESSAGE(ranks[rank].status == DML_ERROR_NETWORK, "%d sockets, rank %d: %s", some, rank,
                          ranks[rank].error);
            CHECK_CONTAINS(ranks[rank].error, "rank 2 of 3 could not connect with rank");
            CHECK_CONTAINS(ranks[rank].error, strerror(EMFILE));
        }
    }
}

/* Who hasn't heard yet where to go doesn't go: the tries would only make it rest longer. */
static int aimless; /* atomic */
static int open_somewhere(int family)
{
    if (family != AF_INET && family != AF_INET6) __atomic_fetch_add(&aimless, 1, __ATOMIC_SEQ_CST);
    return dml__system_sockets()->open(family);
}

static void nobody_goes_before_it_knows_where(void)
{
    dml__socket_calls sockets = *dml__system_sockets();
    test_rank ranks[4];
    pthread_t threads[4];
    sockets.open = open_somewhere;
    aimless = 0;
    ranks_prepare(ranks, 4, 20, late_rank_body, NULL);
    for (int rank = 0; rank < 4; rank++) {
        ranks[rank].sockets = &sockets;
        pthread_create(&threads[rank], NULL, rank == 3 ? start_late : ranks_thread, &ranks[rank]);
    }
    for (int rank = 0; rank < 4; rank++) pthread_join(threads[rank], NULL);
    check_ranks(ranks, 4);
    CHECK_INT(aimless, 0);
}

/* The name of a host that has just started: rank 0's own is known to it, but not yet by who looks. */
static int lookups; /* of rank 1 */
static int resolve_late(const char *host, struct addrinfo **list)
{
    const int count = lookups++;
    if (count < 3) return count == 1 ? EAI_AGAIN : EAI_NONAME;
    return dml__system_sockets()->resolve(host, list);
}

static void a_name_that_comes_later(void)
{
    dml__socket_calls sockets = *dml__system_sockets();
    test_rank ranks[2];
    sockets.resolve = resolve_late;
    lookups = 0;
    ranks_prepare(ranks, 2, 5, late_rank_body, NULL);
    ranks[1].sockets = &sockets;
    ranks_run(ranks, 2);
    check_ranks(ranks, 2);
    CHECK_INT(lookups, 4);
}

static int resolve_never(const char *host, struct addrinfo **list)
{
    (void)host;
    (void)list;
    return EAI_AGAIN;
}

static void a_name_that_never_comes(void)
{
    dml__socket_calls sockets = *dml__system_sockets();
    test_rank ranks[2];
    sockets.resolve = resolve_never;
    ranks_prepare(ranks, 2, 0.5, NULL, NULL);
    for (int rank = 0; rank < 2; rank++) ranks[rank].sockets = &sockets;
    ranks_run(ranks, 2);
    for (int rank = 0; rank < 2; rank++) {
        CHECK_INT(ranks[rank].status, DML_ERROR_NETWORK);
        CHECK_CONTAINS(ranks[rank].error, "can't find the address of master_addr \"127.0.0.1\": ");
        CHECK_MESSAGE(ranks[rank].seconds < 2, "it took %g s", ranks[rank].seconds);
    }
}

/* Rank 0's own name is one that its host has, or never will. */
static int resolve_nothing(const char *host, struct addrinfo **list)
{
    (void)host;
    (void)list;
    lookups++;
    return EAI_NONAME;
}

static void nobody_waits_for_its_own_name(void)
{
    dml__socket_calls sockets = *dml__system_sockets();
    test_rank ranks[2];
    sockets.resolve = resolve_nothing;
    lookups = 0;
    ranks_prepare(ranks, 2, 5, NULL, NULL);
    ranks[0].sockets = &sockets;
    ranks_run(ranks, 1);
    CHECK_INT(ranks[0].status, DML_ERROR_NETWORK);
    CHECK_CONTAINS(ranks[0].error, "rank 0 can't find the address of master_addr \"127.0.0.1\": ");
    CHECK_INT(lookups, 1);
}

static int resolve_two(const char *one, const char *other, struct addrinfo **list)
{
    struct addrinfo *first;
    const int error = dml__system_sockets()->resolve(other, list);
    if (error || dml__system_sockets()->resolve(one, &first)) return error ? error : EAI_NONAME;
    first->ai_next = *list;
    *list = first;
    return 0;
}

static int resolve_bound(const char *host, struct addrinfo **list)
{
    return strcmp(host, "two") ? dml__system_sockets()->resolve(host, list)
                               : resolve_two("127.0.0.1", "127.0.0.2", list);
}

/* Of a name's addresses the first. */
static void bound_to_an_interface_or_name(void)
{
    static const char *const names[] = { "lo", "127.0.0.1", "two" };
    dml__socket_calls sockets = *dml__system_sockets();
    sockets.resolve = resolve_bound;
    for (int i = 0; i < 3; i++) {
        test_rank ranks[3];
        ranks_prepare(ranks, 3, 20, late_rank_body, NULL);
        for (int rank = 0; rank < 3; rank++) {
            ranks[rank].sockets = &sockets;
            ranks[rank].options.bind_addr = names[i];
        }
        ranks_run(ranks, 3);
        check_ranks(ranks, 3);
    }
}

/* A name of loopback and of the network, in either order. */
static int resolve_in_and_out(const char *host, struct addrinfo **list)
{
    return strcmp(host, "in and out") ? resolve_two("192.0.2.1", "127.0.0.1", list)
                                      : resolve_two("127.0.0.1", "192.0.2.1", list);
}

static void no_key_no_address_of_the_network(void)
{
    static const char *const names[] = { "in and out", "out and in" };
    dml__socket_calls sockets = *dml__system_sockets();
    sockets.resolve = resolve_in_and_out;
    for (int i = 0; i < 4; i++) {
        test_rank ranks[2];
        ranks_prepare(ranks, 2, 0.2, NULL, NULL);
        ranks[i / 2].sockets = &sockets;
        ranks[i / 2].options.master_addr = names[i % 2];
        ranks_run(ranks + i / 2, 1);
        CHECK_INT(ranks[i / 2].status, DML_ERROR_ARGUMENT);
        CHECK_CONTAINS(ranks[i / 2].error, "won't leave loopback without a key");
    }
}

/* A host with addresses of both kinds, on a system that has no IPv6. */
static int resolve_both(const char *host, struct addrinfo **list)
{
    (void)host;
    return resolve_two("::", "0.0.0.0", list);
}

static int no_ipv6(int family)
{
    if (family == AF_INET) return dml__system_sockets()->open(family);
    errno = EAFNOSUPPORT;
    return -1;
}

static void a_system_without_ipv6(void)
{
    dml__socket_calls sockets = *dml__system_sockets();
    test_rank ranks[2];
    sockets.resolve = resolve_both;
    sockets.open = no_ipv6;
    ranks_prepare(ranks, 2, 5, late_rank_body, NULL);
    for (int rank = 0; rank < 2; rank++) {
        ranks[rank].sockets = &sockets;
        ranks[rank].options.allow_insecure = true;
    }
    ranks_run(ranks, 2);
    check_ranks(ranks, 2);
}

/* A visitor for whom there is no challenge is sent away at once, and comes again. */
static int challenges; /* asked for */
static int first_challenge_fails(void *out, size_t bytes)
{
    if (bytes != DML__NONCE_BYTES || challenges++) return dml__system_sockets()->random(out, bytes);
    errno = EMFILE;
    return -1;
}

static void no_challenge(void)
{
    dml__socket_calls sockets = *dml__system_sockets();
    test_rank ranks[2];
    sockets.random = first_challenge_fails;
    challenges = 0;
    ranks_prepare(ranks, 2, 5, late_rank_body, NULL);
    ranks[0].sockets = &sockets;
    ranks_run(ranks, 2);
    check_ranks(ranks, 2);
    CHECK(challenges > 1);
    CHECK_INT(ranks[0].strangers, 0);
}

int main(void)
{
    RUN(missing_rank);
    RUN(missing_master);
    RUN(silent_master);
    RUN(ranks_start_in_any_order);
    RUN(wrong_world_size);
    RUN(wrong_segment_bytes);
    RUN(wrong_max_requests);
    RUN(most_are_right);
    RUN(too_small_a_world);
    RUN(same_rank_twice);
    RUN(the_last_one_is_told);
    RUN(wrong_keys);
    RUN(no_key_no_network);
    RUN(no_time_to_try);
    RUN(strangers_change_nothing);
    RUN(many_ranks);
    RUN(swallowed_packets);
    RUN(few_descriptors);
    RUN(no_descriptors);
    RUN(some_descriptors);
    RUN(nobody_goes_before_it_knows_where);
    RUN(no_challenge);
    RUN(a_name_that_comes_later);
    RUN(a_name_that_never_comes);
    RUN(nobody_waits_for_its_own_name);
    RUN(bound_to_an_interface_or_name);
    RUN(no_key_no_address_of_the_network);
    RUN(a_system_without_ipv6);
    return test_report("net/rendezvous");
}
