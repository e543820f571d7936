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

DML__LOCAL void dml__ask_buckets(dml__filling *filling, size_t bytes, size_t usual)
{
    filling->asked = bytes;
    filling->elements = bytes ? bytes / sizeof(float) + (bytes % sizeof(float) != 0) : usual;
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

/* What is on its way is waited for, or the device would write it later. */
static void dml__drop_fetches(dml__filling *filling, dml_trainer *trainer)
{
    bool come;
    for (; filling->fetches > 0; filling->fetches--) {
        (void)dml__fetch_end(trainer, &filling->fetch[filling->oldest], true, &come);
        filling->oldest = (filling->oldest + 1) % DML__MOST_FETCHES;
    }
}

/* Sends buckets that have come, the oldest first, and with `wait` waits for them, until `left` are left. */
static dml_status dml__send_fetched(dml__filling *filling, dml_trainer *trainer, bool wait, int left)
{
    dml_status status = DML_OK;
    bool come = true;
    while (filling->fetches > left && status == DML_OK) {
        dml__fetch *fetch = &filling->fetch[filling->oldest];
        status = dml__fetch_end(trainer, fetch, wait, &come);
        if (status == DML_OK && !come) return DML_OK;
        filling->oldest = (filling->oldest + 1) % DML__MOST_FETCHES;
        filling->fetches--;
        if (status == DML_OK)
            status = filling->send(filling->user, trainer, fetch->data, fetch->begin, fetch->end);
    }
    if (status != DML_OK) dml__drop_fetches(filling, trainer);
    return status;
}

static dml_status dml__fetch_bucket(dml__filling *filling, dml_trainer *trainer)
{
    dml_status status = dml__send_fetched(filling, trainer, true, DML__MOST_FETCHES - 1);
    if (status != DML_OK) return status;
    dml__fetch *fetch = &filling->fetch[(filling->oldest + filling->fetches) % DML__MOST_FETCHES];
    if (filling->lends) {
        const dml__fetch lent = { filling->from, filling->to, NULL, NULL };
        *fetch = lent;
        status = dml__lend(trainer, DML_GRADIENTS, lent.begin, &fetch->data, &filling->stream);
    } else {
        status = dml__fetch_start(trainer, filling->from, filling->to, fetch);
    }
    if (status != DML_OK) return status;
    filling->fetches++;
    filling->to = filling->from;
    return DML_OK;
}

DML__LOCAL dml_status dml__fill_bucket(dml__filling *filling, dml_trainer *trainer, size_t begin, size_t end)
{
    DML_ASSERT(end == filling->from);
    (void)end;
    filling->from = begin;
    dml_status status = DML_OK;
    if (begin == 0 || filling->to - begin >= filling->elements) status = dml__fetch_bucket(filling, trainer);
    return status == DML_OK ? dml__send_fetched(filling, trainer, begin == 0, 0) : status;
}

DML__LOCAL dml_status dml__put_bucket(const dml__filling *filling, dml_trainer *trainer, size_t begin,
                                      size_t end)
{
    if (!filling->lends) return dml_trainer_put(trainer, DML_GRADIENTS, begin, end);
    dml__gradient_replaced(trainer, begin, end);
    return DML_OK;
}

DML__LOCAL dml_status dml__send_buckets(dml__filling *filling, dml_trainer *trainer)
{
    return dml__send_fetched(filling, trainer, true, 0);
}

#endif
