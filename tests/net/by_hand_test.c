/* Ranks made by hand, message by message: other versions, impostors, addresses that make no sense. */
#include "meet.h"

#include <limits.h>

/* ---- a rank 0 made by hand ---- */

static const uint8_t some_session[DML__SESSION_BYTES] = { 1 };

static int listen_at(int port)
{
    dml__address address;
    int error;
    CHECK_INT(dml__resolve_host(dml__system_sockets(), "127.0.0.1", (uint16_t)port, &address, 1, &error), 1);
    return dml__socket_listen(dml__system_sockets(), &address);
}

/* Takes the first connection as far as its hello. */
static int take_hello(int listener, dml__hello *hello)
{
    uint8_t challenge_bytes[DML__CHALLENGE_BYTES], hello_bytes[DML__HELLO_BYTES] = { 0 };
    dml__challenge challenge;
    struct pollfd come = { listener, POLLIN, 0 };
    CHECK_INT(poll(&come, 1, 5000), 1);
    const int fd = accept(listener, NULL, NULL);
    memset(&challenge, 1, sizeof challenge);
    dml__encode_challenge(&challenge, challenge_bytes);
    (void)!send(fd, challenge_bytes, sizeof challenge_bytes, MSG_NOSIGNAL);
    receive_all(fd, hello_bytes, sizeof hello_bytes);
    CHECK(dml__decode_hello(hello_bytes, hello));
    return fd;
}

static void send_answer(int fd, dml__verdict verdict, int world)
{
    uint8_t bytes[DML__WELCOME_BYTES];
    dml__welcome welcome;
    memset(&welcome, 0, sizeof welcome);
    welcome.version = DML__WIRE_VERSION;
    welcome.verdict = verdict;
    welcome.world = world;
    welcome.segment_bytes = SEGMENT_BYTES;
    welcome.max_requests = MAX_REQUESTS;
    memcpy(welcome.session, some_session, sizeof welcome.session);
    dml__encode_welcome(&welcome, bytes);
    (void)!send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
}

/* Whoever has taken rank 0's port without having the key doesn't end the job by a refusal. */
static void an_impostor_refuses(void)
{
    static const dml__verdict verdicts[] = { DML__VERDICT_WRONG_REQUESTS, DML__VERDICT_WRONG_KEY,
                                             DML__VERDICT_NEEDS_KEY, DML__VERDICT_HAS_NO_KEY,
                                             DML__VERDICT_WRONG_VERSION };
    for (size_t i = 0; i < sizeof verdicts / sizeof *verdicts; i++) {
        test_rank ranks[2];
        pthread_t thread;
        dml__hello hello;
        ranks_prepare(ranks, 2, 20, late_rank_body, NULL);
        for (int rank = 0; rank < 2; rank++) ranks[rank].options.key = "a key";
        const int listener = listen_at(ranks[0].options.master_port);
        pthread_create(&thread, NULL, ranks_thread, &ranks[1]);
        const int fd = take_hello(listener, &hello);
        send_answer(fd, verdicts[i], 2);
        close(fd);
        close(listener);
        ranks_run(ranks, 1);
        pthread_join(thread, NULL);
        check_ranks(ranks, 2);
    }
}

/* And where nobody comes behind it, what it said is told. */
static void an_impostor_goes(void)
{
    test_rank ranks[2];
    pthread_t thread;
    dml__hello hello;
    ranks_prepare(ranks, 2, 0.4, late_rank_body, NULL);
    ranks[1].options.key = "a key";
    const int listener = listen_at(ranks[0].options.master_port);
    pthread_create(&thread, NULL, ranks_thread, &ranks[1]);
    const int fd = take_hello(listener, &hello);
    send_answer(fd, DML__VERDICT_WRONG_KEY, 2);
    close(fd);
    close(listener);
    pthread_join(thread, NULL);
    CHECK_INT(ranks[1].status, DML_ERROR_TIMEOUT);
    CHECK_CONTAINS(ranks[1].error, "could not reach rank 0 at ");
    CHECK_CONTAINS(ranks[1].error, "; before, it was refused: rank 1 has another key than rank 0");
}

/* The last of `world` ranks, which nobody will come to, is told `count` addresses, of rank `first` on. */
static test_rank told_addresses(int world, double timeout, int first, int count)
{
    test_rank ranks[RANKS_MAX];
    pthread_t thread;
    dml__hello hello;
    dml__control control;
    dml__endpoint endpoints[4];
    uint8_t bytes[DML__CONTROL_BYTES];
    ranks_prepare(ranks, world, timeout, NULL, NULL);
    const int listener = listen_at(ranks[0].options.master_port);
    pthread_create(&thread, NULL, ranks_thread, &ranks[world - 1]);
    const int fd = take_hello(listener, &hello);
    CHECK_INT(hello.port, 0);
    send_answer(fd, DML__VERDICT_WELCOME, world);
    memset(&control, 0, sizeof control);
    control.kind = DML__ADDRESSES;
    control.rank = first;
    memset(endpoints, 0, sizeof endpoints);
    for (int k = 0; k < count; k++) {
        endpoints[k].family = 4;
        endpoints[k].ip[0] = 127;
        endpoints[k].ip[3] = 1;
        endpoints[k].port = (uint16_t)ranks[0].options.master_port;
    }
    dml__set_control_addresses(&control, endpoints, count);
    dml__encode_control(&control, bytes);
    (void)!send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
    pthread_join(thread, NULL);
    close(fd);
    close(listener);
    return ranks[world - 1];
}

/* Addresses of ranks that there are not are refused, however large their numbers. */
static void addresses_of_no_rank(void)
{
    static const int firsts[] = { INT_MAX, 2, 0, -1, INT_MIN };
    for (size_t i = 0; i < sizeof firsts / sizeof *firsts; i++) {
        const test_rank told = told_addresses(3, 5, firsts[i], 1);
        CHECK_INT(told.status, DML_ERROR_FORMAT);
        CHECK_CONTAINS(told.error, "rank 0 sent rank 2 a message that makes no sense");
    }
}

/* Rank 3 is told one address too many, or too few: the one is refused, for the other it goes on waiting. */
static void wrong_number_of_addresses(void)
{
    static const struct {
        int first, count;
        dml_status status;
        const char *part;
    } cases[] = {
        { 1, 3, DML_ERROR_FORMAT, "a message that makes no sense" },
        { 2, 2, DML_ERROR_FORMAT, "a message that makes no sense" },
        { 3, 1, DML_ERROR_FORMAT, "a message that makes no sense" },
        { 4, 0, DML_ERROR_FORMAT, "a message that makes no sense" },
        { 3, 0, DML_ERROR_TIMEOUT, "did not connect with rank 3" }, /* no address, but also none missing */
        { 1, 2, DML_ERROR_TIMEOUT, "did not connect with rank 3" },
        { 1, 1, DML_ERROR_TIMEOUT, "gave up after 0.3 s: rank 0 was still waiting" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const test_rank told = told_addresses(4, 0.3, cases[i].first, cases[i].count);
        CHECK_INT(told.status, cases[i].status);
        CHECK_CONTAINS(told.error, cases[i].part);
    }
}

/* ---- a rank made by hand ---- */

/* A rank of another version is told so, and rank 0 tells of it. */
static void other_version(void)
{
    test_rank ranks[2];
    pthread_t thread;
    ranks_prepare(ranks, 2, 1, NULL, NULL);
    pthread_create(&thread, NULL, ranks_thread, &ranks[0]);
    int fd = -1;
    while (fd < 0) fd = ranks_connect(ranks[0].options.master_port);
    uint8_t challenge[DML__CHALLENGE_BYTES], hello_bytes[DML__HELLO_BYTES], welcome_bytes[DML__WELCOME_BYTES];
    receive_all(fd, challenge, sizeof challenge);
    dml__hello hello;
    memset(&hello, 0, sizeof hello);
    hello.version = 2;
    hello.from = 1;
    dml__encode_hello(&hello, hello_bytes);
    (void)!send(fd, hello_bytes, sizeof hello_bytes, MSG_NOSIGNAL);
    memset(welcome_bytes, 0, sizeof welcome_bytes);
    receive_all(fd, welcome_bytes, sizeof welcome_bytes);
    dml__welcome welcome;
    CHECK(dml__decode_welcome(welcome_bytes, &welcome));
    CHECK_INT(welcome.verdict, DML__VERDICT_WRONG_VERSION);
    CHECK_INT(welcome.version, 1);
    close(fd);
    pthread_join(thread, NULL);
    CHECK_CONTAINS(ranks[0].error, "rank 1 speaks version 2 of the protocol, but rank 0 version 1");
}

/* A rank that knows no key, or another job's session, is a stranger to every rank, and the job goes on. */
static void wrong_session(void)
{
    for (int keyed = 0; keyed < 2; keyed++) {
        test_rank ranks[2];
        pthread_t threads[2];
        ranks_prepare(ranks, 2, 20, late_rank_body, NULL);
        for (int rank = 0; rank < 2; rank++) ranks[rank].options.key = keyed ? "a key" : NULL;
        pthread_create(&threads[0], NULL, ranks_thread, &ranks[0]);
        int fd = -1;
        while (fd < 0) fd = ranks_connect(ranks[0].options.master_port);
        uint8_t challenge[DML__CHALLENGE_BYTES], bytes[DML__HELLO_BYTES];
        uint8_t welcome_bytes[DML__WELCOME_BYTES] = { 0 };
        receive_all(fd, challenge, sizeof challenge);
        dml__hello hello;
        dml__welcome welcome;
        memset(&hello, 0, sizeof hello);
        hello.version = DML__WIRE_VERSION;
        hello.has_key = keyed;
        hello.from = 1;
        hello.world = 2;
        hello.segment_bytes = SEGMENT_BYTES;
        hello.max_requests = MAX_REQUESTS;
        hello.session[15] = 1;
        dml__encode_hello(&hello, bytes);
        if (keyed) {
            dml__hello_mac("a key", challenge, bytes, hello.mac);
            dml__encode_hello(&hello, bytes);
        }
        (void)!send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
        receive_all(fd, welcome_bytes, sizeof welcome_bytes);
        CHECK(dml__decode_welcome(welcome_bytes, &welcome));
        CHECK_INT(welcome.verdict, DML__VERDICT_WRONG_SESSION);
        close(fd);
        pthread_create(&threads[1], NULL, ranks_thread, &ranks[1]);
        for (int rank = 0; rank < 2; rank++) pthread_join(threads[rank], NULL);
        check_ranks(ranks, 2);
        CHECK_INT(ranks[0].strangers, 1);
        CHECK_INT(ranks[1].strangers, 0);
    }
}

/* Rank 2 comes to rank 1 while rank 0's welcome is still on its way there: no reason to turn it away. */
static void before_the_session(void)
{
    test_rank ranks[3];
    pthread_t thread;
    ranks_prepare(ranks, 3, 5, NULL, NULL);
    const int listener = listen_at(ranks[0].options.master_port);
    pthread_create(&thread, NULL, ranks_thread, &ranks[1]);
    dml__hello hello;
    const int control = take_hello(listener, &hello), early = ranks_connect(hello.port);
    CHECK(early >= 0);
    uint8_t challenge[DML__CHALLENGE_BYTES], hello_bytes[DML__HELLO_BYTES];
    uint8_t welcome_bytes[DML__WELCOME_BYTES] = { 0 };
    hello.from = 2;
    hello.to = 1;
    memcpy(hello.session, some_session, sizeof hello.session);
    dml__encode_hello(&hello, hello_bytes);
    (void)!send(early, hello_bytes, sizeof hello_bytes, MSG_NOSIGNAL);
    struct pollfd answer = { early, POLLIN, 0 };
    const bool at_once = poll(&answer, 1, 50) == 1;
    if (at_once) {
        receive_all(early, challenge, sizeof challenge);
        poll(&answer, 1, 50);
    }
    send_answer(control, DML__VERDICT_WELCOME, 3);
    if (!at_once) receive_all(early, challenge, sizeof challenge);
    receive_all(early, welcome_bytes, sizeof welcome_bytes);
    dml__welcome welcome;
    CHECK(dml__decode_welcome(welcome_bytes, &welcome));
    CHECK_INT(welcome.verdict, DML__VERDICT_WELCOME);
    close(early);
    close(control);
    close(listener);
    pthread_join(thread, NULL);
    CHECK(ranks[1].status != DML_OK);
}

int main(void)
{
    RUN(other_version);
    RUN(an_impostor_refuses);
    RUN(an_impostor_goes);
    RUN(addresses_of_no_rank);
    RUN(wrong_number_of_addresses);
    RUN(wrong_session);
    RUN(before_the_session);
    return test_report("net/by_hand");
}
