#ifndef DML_KERNELS_UPDATE_C
#define DML_KERNELS_UPDATE_C

#include "kernels/update.h"

#include "kernels/blocks.h"

DML__BODY void dml__sgd_loop(bool has_v, bool nesterov, size_t n, const dml__map_operands *at)
{
    const float lr = at->number[0], momentum = at->number[1], weight_decay = at->number[2];
    DML__BY_FOUR
    for (size_t i = 0; i < n; i += DML__LANES) {
        const dml__vf w = DML__LOAD(at->in[0] + i);
        dml__vf step = DML__LOAD(at->in[1] + i) + weight_decay * w;
        if (has_v) {
            const dml__vf v = momentum * DML__LOAD(at->in[2] + i) + step;
            DML__STORE(at->out[1] + i, v);
            step = nesterov ? step + momentum * v : v;
        }
        DML__STORE(at->out[0] + i, w - lr * step);
    }
}

/* A loop for each case, as in DML__MAP. */
DML__BODY void dml__sgd_map_body(size_t n, const dml__map_operands *operands)
{
    const dml__map_operands at = *operands;
    if (!at.in[2])
        dml__sgd_loop(false, false, n, &at);
    else if (at.number[3] == 0)
        dml__sgd_loop(true, false, n, &at);
    else
        dml__sgd_loop(true, true, n, &at);
}
DML__PER_ISA(dml__sgd_map, (size_t n, const dml__map_operands *at), (n, at))

DML_API void dml_sgd_update(dml_pool *pool, size_t n, float *w, const float *g, float *v, float lr,
                            float momentum, float weight_decay, bool nesterov)
{
    const dml__map_operands operands = {
        { w, g, v }, { w, v }, { lr, momentum, weight_decay, nesterov ? 1.0f : 0.0f }, false
    };
    DML_ASSERT(v || momentum == 0);
    dml__map(pool, n, dml__sgd_map, &operands);
}

#endif
