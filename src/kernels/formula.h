/* formula.h: the functions of formulas.h over arrays, with operands that may be smaller than the result. */
#ifndef DML_KERNELS_FORMULA_H
#define DML_KERNELS_FORMULA_H

#include "base/cpu.h"
#include "kernels/broadcast.h"
#include "kernels/formulas.h"
#include "thread/pool.h"

#define DML__FORMULA_INPUTS 3
#define DML__FORMULA_GRADIENTS 2

typedef struct dml__formula_row {
    const char *name;
    int inputs;
    int first, gradients; /* the first input that has a gradient, and how many have */
    unsigned needs;
} dml__formula_row;

/* NULL past the last. */
DML__LOCAL const dml__formula_row *dml__formula_row_of(int formula);

/* What a formula's loop reads and writes; what the formula doesn't need is NULL. */
typedef struct dml__formula_at {
    const float *in[DML__FORMULA_INPUTS];
    const float *y, *dy;
    float *out;
    float p, q;
} dml__formula_at;

/* The loop of the formula's values, or of gradient `gradient` where that isn't negative, on the calling
   thread; n a multiple of DML__LANES. Not for those of DML__FORMULAS_LONG. */
DML__LOCAL void dml__formula_vectors(dml_isa isa, int formula, int gradient, size_t n,
                                     const dml__formula_at *at);

/* The operands of one call. Those that an output's memory may be are plain. */
typedef struct dml__formula_call {
    int formula;
    size_t n; /* elements of the result */
    float p, q;
    const float *in[DML__FORMULA_INPUTS]; /* NULL: not read */
    dml__broadcast layout[DML__FORMULA_INPUTS];
    const dml__broadcast *repeated_dy; /* how dy lies in the result, where it is smaller; NULL: plain */
} dml__formula_call;

/* For arrays of n elements each, as the callers of the public functions have them. */
DML__LOCAL dml__formula_call dml__formula_plain(int formula, size_t n, const float *a, const float *b);

/* y = the formula, and of that the relu if asked for. */
DML__LOCAL void dml__formula_forward(dml_pool *pool, const dml__formula_call *call, bool relu, float *y);

/* gradient[i] = that of input first + i, (n) also where the input is smaller, + beta[i] x what is there;
   NULL: not wanted. One may be dy; the first is written before the second is added to it where they are the
   same. */
DML__LOCAL void dml__formula_backward(dml_pool *pool, const dml__formula_call *call, const float *y,
                                      const float *dy, float *const gradient[DML__FORMULA_GRADIENTS],
                                      const float beta[DML__FORMULA_GRADIENTS]);

/* Calls of as many elements each, made block by block, all of them in one before any in the next: what one
   writes a later one reads from a cache. They are plain where an operand is what an earlier one writes. */
#define DML__CHAIN_CALLS 8
typedef struct dml__formula_job {
    dml_isa isa;
    const dml__formula_call *call;
    const float *y, *dy;
    float *out[DML__FORMULA_GRADIENTS];
    float beta[DML__FORMULA_GRADIENTS];
    bool backward, relu, stream;
    bool whole;  /* nothing but a rest needs strips; a relu goes over the result in parts of their length */
    bool one_dy; /* the same for all elements, in every strip from the first on */
} dml__formula_job;
typedef struct dml__formula_chain {
    int count;
    dml__formula_job job[DML__CHAIN_CALLS];
    dml__formula_call call[DML__CHAIN_CALLS];
} dml__formula_chain;

/* The calls above, to be made by dml__chain_run, which leaves the chain empty. */
DML__LOCAL void dml__chain_forward(dml__formula_chain *chain, const dml__formula_call *call, bool relu,
                                   float *y);
DML__LOCAL void dml__chain_backward(dml__formula_chain *chain, const dml__formula_call *call, const float *y,
                                    const float *dy, float *const gradient[DML__FORMULA_GRADIENTS],
                                    const float beta[DML__FORMULA_GRADIENTS]);
DML__LOCAL void dml__chain_run(dml_pool *pool, dml__formula_chain *chain);

/* The sum of the formula's values, each times its weight (NULL: 1), which lie as `layout` says. In an order
   that depends on n alone. */
DML__LOCAL double dml__formula_total(dml_pool *pool, const dml__formula_call *call, const float *weights,
                                     const dml__broadcast *layout);

#endif
