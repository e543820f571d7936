#ifndef DML_KERNELS_BROADCAST_C
#define DML_KERNELS_BROADCAST_C

#include "kernels/broadcast.h"

#include "base/copy.h"
#include "kernels/blocks.h"
#include "kernels/reduce.h"

#include <string.h>

DML__LOCAL dml__broadcast dml__broadcast_of(int dims, const size_t *result, const size_t *operand)
{
    dml__broadcast b;
    memset(&b, 0, sizeof b); /* for compilers that see no first round */
    size_t stride = 1;
    int last = -1;
    for (int d = 0; d < dims; d++) stride *= operand[d];
    for (int d = 0; d < dims; d++) {
        if (operand[d] > 1) stride /= operand[d];
        if (result[d] == 1) continue;
        const size_t step = operand[d] == 1 ? 0 : stride;
        if (last >= 0 && b.stride[last] == step * result[d])
            b.size[last] *= result[d];
        else
            b.size[++last] = result[d];
        b.stride[last] = step;
    }
    if (last < 0) {
        last = 0;
        b.size[0] = b.stride[0] = 1;
    }
    b.dims = last + 1;
    return b;
}

static void dml__broadcast_fill(size_t n, float value, float *to)
{
    dml__vf all;
    size_t i = 0;
    dml__splat(&all, value);
    for (; i + DML__LANES <= n; i += DML__LANES) DML__STORE(to + i, all);
    for (; i < n; i++) to[i] = value;
}

DML__LOCAL void dml__broadcast_copy(const dml__broadcast *broadcast, const float *operand, size_t begin,
                                    size_t count, float *to)
{
    const int last = broadcast->dims - 1;
    const size_t length = broadcast->size[last], stride = broadcast->stride[last];
    size_t at[DML__BROADCAST_DIMS], left = begin;
    for (int d = last; d >= 0; d--) {
        at[d] = left % broadcast->size[d];
        left /= broadcast->size[d];
    }
    while (count > 0) {
        const size_t run = dml__minimum(length - at[last], count);
        const float *from = operand;
        for (int d = 0; d <= last; d++) from += at[d] * broadcast->stride[d];
        const float value = *from; /* innermost, it is repeated where the stride isn't 1 */
        if (stride == 1)
            dml__copy_bytes(to, from, run * sizeof(float));
        else
            dml__broadcast_fill(run, value, to);
        to += run;
        count -= run;
        at[last] = 0;
        for (int d = last - 1; d >= 0 && ++at[d] == broadcast->size[d]; d--) at[d] = 0;
    }
}

DML__LOCAL int dml__broadcast_sums(const dml__broadcast *broadcast,
                                   dml__broadcast_sum sums[DML__BROADCAST_DIMS])
{
    int count = 0;
    size_t inner = 1;
    for (int d = broadcast->dims - 1; d >= 0; d--) {
        if (broadcast->stride[d]) {
            inner *= broadcast->size[d];
            continue;
        }
        dml__broadcast_sum *sum = &sums[count++];
        sum->outer = 1;
        for (int k = 0; k < d; k++) sum->outer *= broadcast->size[k];
        sum->n = broadcast->size[d];
        sum->inner = inner;
    }
    return count;
}

DML__LOCAL size_t dml__sum_broadcast_scratch(const dml__broadcast *broadcast)
{
    dml__broadcast_sum sums[DML__BROADCAST_DIMS];
    const int count = dml__broadcast_sums(broadcast, sums);
    size_t floats = 0;
    for (int i = 0; i < count - 1; i++) floats += sums[i].outer * sums[i].inner;
    return floats;
}

DML__LOCAL void dml__sum_broadcast(dml_pool *pool, const dml__broadcast *broadcast, const float *x,
                                   float *scratch, float beta, float *y)
{
    dml__broadcast_sum sums[DML__BROADCAST_DIMS];
    const int count = dml__broadcast_sums(broadcast, sums);
    for (int i = 0; i < count; i++) {
        const dml__broadcast_sum *sum = &sums[i];
        const bool last = i == count - 1;
        dml_sum_axis(pool, sum->outer, sum->n, sum->inner, x, last ? beta : 0.0f, last ? y : scratch);
        x = scratch;
        scratch += last ? 0 : sum->outer * sum->inner;
    }
}

#endif
