#include "graph/plan.h"

#include "base/memory.h"

#include "../test.h"

enum { MOST = 60, TIMES = 40 };

static bool together(const dml__block_life *a, const dml__block_life *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* What every plan must hold; returns the arena's size. */
static size_t check_plan(dml__block_life *blocks, int count)
{
    int order[MOST];
    size_t sum = 0, busiest = 0;
    const size_t total = dml__plan_memory(blocks, count, order);
    for (int i = 0; i < count; i++) {
        CHECK_INT(blocks[i].offset % DML__ALIGNMENT, 0);
        CHECK(blocks[i].offset + blocks[i].bytes <= total);
        sum += dml__align_up(blocks[i].bytes);
        for (int k = 0; k < i; k++)
            CHECK(!together(&blocks[i], &blocks[k]) || blocks[i].bytes == 0 || blocks[k].bytes == 0 ||
                  blocks[i].offset + blocks[i].bytes <= blocks[k].offset ||
                  blocks[k].offset + blocks[k].bytes <= blocks[i].offset);
    }
    for (int t = 0; t < TIMES; t++) {
        size_t alive = 0;
        for (int i = 0; i < count; i++)
            if (blocks[i].first <= t && t <= blocks[i].last) alive += blocks[i].bytes;
        if (alive > busiest) busiest = alive;
    }
    CHECK(total >= busiest);
    CHECK(total <= sum);
    return total;
}

static void random_lives(void)
{
    unsigned random = 5;
    for (int round = 0; round < 400; round++) {
        dml__block_life blocks[MOST], again[MOST];
        const int count = (int)(test_random(&random) % (MOST + 1));
        for (int i = 0; i < count; i++) {
            const unsigned size = test_random(&random) % 4; /* some empty, some equal, some large */
            blocks[i].bytes = size == 0   ? 0
                              : size == 1 ? 64
                                          : test_random(&random) % (size == 2 ? 1000u : 100000u);
            blocks[i].first = (int)(test_random(&random) % TIMES);
            blocks[i].last =
                blocks[i].first + (int)(test_random(&random) % (unsigned)(TIMES - blocks[i].first));
            blocks[i].offset = 12345;
            again[i] = blocks[i];
            again[i].offset = 0;
        }
        const size_t total = check_plan(blocks, count);
        CHECK_INT(check_plan(again, count), total);
        for (int i = 0; i < count; i++) CHECK_INT(blocks[i].offset, again[i].offset);
    }
}

static void known_plans(void)
{
    dml__block_life chain[6], all[5];
    for (int i = 0; i < 6; i++) chain[i] = (dml__block_life){ 640, i, i + 1, 0 };
    CHECK_INT(check_plan(chain, 6), 2 * 640); /* two of them live at any time */
    for (int i = 0; i < 6; i++) chain[i] = (dml__block_life){ 100, i, i, 0 };
    CHECK_INT(check_plan(chain, 6), 128);
    for (int i = 0; i < 5; i++) all[i] = (dml__block_life){ (size_t)(i + 1) * 64, 0, 9, 0 };
    CHECK_INT(check_plan(all, 5), 64 * (1 + 2 + 3 + 4 + 5));
    CHECK_INT(check_plan(all, 0), 0);
}

int main(void)
{
    RUN(random_lives);
    RUN(known_plans);
    return test_report("graph/plan");
}
