#ifndef DML_DIST_BUCKETS_C
#define DML_DIST_BUCKETS_C

#include "dist/buckets.h"

DML__LOCAL size_t dml__bucket_elements(const dml__price_link *link, bool wires, int ranks, double bytes_each,
                                       size_t count)
{
    const double usual = 1 << 18, least = wires ? 1 << 12 : usual;
    double elements = usual;
    int steps = 1;
    while (steps < 30 && 1 << steps < ranks) steps++;
    if (ranks > 1 && link->bandwidth > 0)
        elements = 9 * steps * (link->latency + 2 * link->overhead) * link->bandwidth * ranks / (ranks - 1) /
                   bytes_each;
    if (wires && elements > (double)count / 8) elements = (double)count / 8;
    if (elements < least) elements = least;
    return elements < (double)count ? (size_t)elements : count;
}

DML__LOCAL void dml__bound_buckets(dml__filling *filling, const dml_trainer *trainer, int most)
{
    const size_t count = dml_trainer_count(trainer, DML_GRADIENTS);
    const size_t least = (count + (size_t)most - 1) / (size_t)most;
    if (filling->elements < least) filling->elements = least;
}

DML__LOCAL void dml__begin_filling(dml__filling *filling, const dml_trainer *trainer)
{
    filling->from = filling->to = dml_trainer_count(trainer, DML_GRADIENTS);
}

DML__LOCAL bool dml__fill_bucket(dml__filling *filling, size_t begin, size_t end)
{
    DML_ASSERT(end == filling->from);
    (void)end;
    filling->from = begin;
    return begin == 0 || filling->to - begin >= filling->elements;
}

DML__LOCAL void dml__bucket_sent(dml__filling *filling)
{
    filling->to = filling->from;
}

#endif
