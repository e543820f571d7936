/* price_models.h: links to price schedules over, and the library's own algorithms priced one by one. */
#ifndef DML_TESTS_COMM_PRICE_MODELS_H
#define DML_TESTS_COMM_PRICE_MODELS_H

#include "comm/algorithms.h"
#include "comm/measure.h"
#include "comm/price.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../test.h"

#define CHECK_PRICE(got, want)                                                                               \
    do {                                                                                                     \
        const double near__got = (got), near__want = (want);                                                 \
        CHECK_MESSAGE(fabs(near__got - near__want) <= 1e-9 * near__want, "%s is %.9g, not %.9g", #got,       \
                      near__got, near__want);                                                                \
    } while (0)

static const double ALPHA = 50e-6, BETA = 8e-9; /* 1 Gbit/s */

static dml__price_model flat(void)
{
    dml__price_model model;
    memset(&model, 0, sizeof model);
    model.between.latency = ALPHA;
    model.between.bandwidth = 1 / BETA;
    model.inside = model.between;
    model.ranks_per_host = 1;
    model.reduce = model.copy = 1e30;
    model.segment = model.eager = UINT64_C(1) << 40;
    model.most_segments = 1 << 22;
    return model;
}

/* Ranks of one host, whose messages cost its processors what they touch. */
static dml__price_model shared(int size, int processors)
{
    dml__price_model model = flat();
    model.inside = dml__copied_link_of(20e-6, 4e9);
    model.ranks_per_host = size;
    model.processors = processors;
    model.change = 1e-6;
    model.segment = 256 << 10;
    model.eager = 128 << 10;
    model.scratch = 16 << 10;
    model.most_segments = 1 << 14;
    return model;
}

static double table_price(const dml__price_model *model, dml__comm_operation operation, const char *name,
                          int size, uint64_t count)
{
    int algorithm_count;
    const dml__algorithm_info *table = dml__algorithms(&algorithm_count);
    const int steps = dml__most_steps(size);
    const size_t bytes = dml__price_work_bytes(model, size, steps);
    dml__collective call;
    dml__price result;
    void *work = malloc(bytes);
    if (!work) return 0;
    memset(&call, 0, sizeof call);
    memset(&result, 0, sizeof result);
    call.operation = operation;
    call.size = size;
    call.count = count;
    CHECK_INT(dml__price_collective(model, &table[dml__find_algorithm(operation, name)], &call, 4, steps,
                                    work, bytes, &result),
              DML_OK);
    free(work);
    return result.seconds;
}

#endif
