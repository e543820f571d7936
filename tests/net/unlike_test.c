/* Who has come to rank 0 with other settings: the sentence, and whom it blames. */
#include "net/unlike.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../test.h"

static dml__comer comers[64];
static int count;

static void come(int rank, uint32_t world, uint32_t segment, uint32_t requests)
{
    dml__comer *comer = &comers[count++];
    comer->rank = rank;
    comer->settings[DML__COMER_WORLD] = world;
    comer->settings[DML__COMER_SEGMENT] = segment;
    comer->settings[DML__COMER_REQUESTS] = requests;
}

/* The comers and the text are just as large as they have to be, so that a sanitizer sees what is beside them;
   and of a text for which there is no room, as much is there as goes. */
static void check_text(int culprit, const char *expected)
{
    const size_t whole = strlen(expected) + 1;
    for (size_t bytes = whole; bytes; bytes = bytes > 7 ? bytes - 7 : bytes - 1) {
        dml__comer *these = (dml__comer *)malloc((size_t)count * sizeof *these);
        char *text = (char *)malloc(bytes);
        memcpy(these, comers, (size_t)count * sizeof *these);
        CHECK_INT(dml__judge_comers(these, count, text, bytes), culprit);
        CHECK_MESSAGE(strlen(text) == bytes - 1 && !strncmp(text, expected, bytes - 1),
                      "it says \"%s\", not \"%s\"", text, expected);
        free(text);
        free(these);
    }
    count = 0;
}

static void most_are_right(void)
{
    come(0, 4, 8, 64);
    come(1, 4, 8, 64);
    come(3, 4, 8, 64);
    come(2, 4, 8, 16);
    check_text(2, "rank 2 has max_requests 16, ranks 0, 1 and 3 have 64: give all the same");
    come(2, 3, 8, 1);
    come(0, 3, 16, 1);
    come(1, 3, 8, 1);
    check_text(0, "rank 0 has segment_bytes 16, ranks 1 and 2 have 8: give all the same");
    come(0, 2, 8, 1);
    come(1, 3, 8, 1);
    come(2, 3, 8, 1);
    check_text(0, "rank 0 has world_size 2, ranks 1 and 2 have 3: give all the same");
}

static void rank_0_is_right_among_equals(void)
{
    come(0, 2, 8, 3);
    come(1, 2, 8, 256);
    check_text(1, "rank 1 has max_requests 256, rank 0 has 3: give all the same");
    come(0, 5, 8, 1);
    come(1, 5, 8, 2);
    come(2, 5, 8, 3);
    come(3, 5, 8, 4);
    come(4, 5, 8, 5);
    check_text(
        1,
        "rank 1 has max_requests 2, rank 2 has 3, rank 3 has 4, others have others, rank 0 has 1: give all "
        "the same");
}

static void rank_0_may_be_one_of_several_that_are_wrong(void)
{
    come(0, 4, 8, 16);
    come(1, 4, 8, 64);
    come(2, 4, 8, 64);
    come(3, 4, 8, 32);
    check_text(0, "rank 0 has max_requests 16, rank 3 has 32, ranks 1 and 2 have 64: give all the same");
    for (int rank = 0; rank < 5; rank++) come(rank, 5, 8, rank % 3 ? 64 : 16);
    check_text(0, "ranks 0 and 3 have max_requests 16, ranks 1, 2 and 4 have 64: give all the same");
}

static void who_came_twice_is_named_once(void)
{
    come(0, 3, 8, 1);
    come(1, 3, 8, 2);
    come(1, 3, 8, 2);
    come(2, 3, 8, 1);
    check_text(1, "rank 1 has max_requests 2, ranks 0 and 2 have 1: give all the same");
}

static void many(void)
{
    for (int rank = 0; rank < 20; rank++) come(rank, 20, rank % 2 ? 8 : 16, 1);
    check_text(
        1,
        "ranks 1, 3, 5, 7, 9, 11, 13, 15 and more have segment_bytes 8, ranks 0, 2, 4, 6, 8, 10, 12, 14 and "
        "more have 16: give all the same");
}

static void one_came_twice(void)
{
    come(0, 3, 8, 1);
    come(1, 3, 8, 1);
    come(1, 3, 8, 1);
    check_text(
        1,
        "rank 1 came twice to rank 0, and rank 2 of 3 not at all: two processes have the same rank, or two "
        "jobs the same port");
    come(0, 2, 8, 1);
    come(1, 2, 8, 1);
    come(1, 2, 8, 1);
    come(1, 2, 8, 1);
    check_text(
        1, "rank 1 came 3 times to rank 0: several processes have the same rank, or two jobs the same port");
    come(0, 4, 8, 1);
    come(3, 4, 8, 1);
    come(3, 4, 8, 1);
    check_text(
        3,
        "rank 3 came twice to rank 0, and rank 1 of 4 not at all: two processes have the same rank, or two "
        "jobs the same port");
    come(0, 4, 8, 1);
    come(1, 4, 8, 1);
    come(3, 4, 8, 1);
    come(3, 4, 8, 1);
    check_text(
        3,
        "rank 3 came twice to rank 0, and rank 2 of 4 not at all: two processes have the same rank, or two "
        "jobs the same port");
    for (int world = 3; world <= 4; world++) {
        come(0, world, 8, 1);
        come(1, world, 8, 1);
        come(1, world, 8, 1);
        come(2, world, 8, 1);
        check_text(1, world == 3
                          ? "rank 1 came twice to rank 0: two processes have the same rank, or two jobs the "
                            "same port"
                          : "rank 1 came twice to rank 0, and rank 3 of 4 not at all: two processes have the "
                            "same rank, or two jobs the same port");
    }
}

static void nothing_is_wrong(void)
{
    come(0, 3, 8, 1);
    check_text(-1, "");
    come(0, 3, 8, 1);
    come(2, 3, 8, 1);
    check_text(-1, "");
}

int main(void)
{
    RUN(most_are_right);
    RUN(rank_0_is_right_among_equals);
    RUN(rank_0_may_be_one_of_several_that_are_wrong);
    RUN(who_came_twice_is_named_once);
    RUN(many);
    RUN(one_came_twice);
    RUN(nothing_is_wrong);
    return test_report("net/unlike");
}
