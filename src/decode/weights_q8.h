/* weights_q8.h: the matrices of a decoder's weights in 8 bits. */
#ifndef DML_DECODE_WEIGHTS_Q8_H
#define DML_DECODE_WEIGHTS_Q8_H

#include "base/memory.h"
#include "graph/op.h"
#include "graph/program_internal.h"

typedef struct dml__weights_q8 {
    dml__q8_parameter *matrix; /* (count) */
    int count;
    char *numbers; /* of all of them */
} dml__weights_q8;

/* Makes room for the matrices of parameters that the program's dense layers, and products with one, multiply
   rows of DML_Q8_BLOCK elements or more with, and scratch for products of `times` the rows that its batch
   has. They are what they should be when they have been taken. */
DML__LOCAL dml_status dml__weights_q8_create(dml__weights_q8 *weights, const dml_program *program, int times);
DML__LOCAL void dml__weights_q8_release(dml__weights_q8 *weights, dml__memory *memory);

/* As the graph's parameters are now. */
DML__LOCAL void dml__weights_q8_take(const dml__weights_q8 *weights, const dml_graph *graph);

/* The program, if there is one, reads them from now on, and not the graph's parameters. */
static inline void dml__weights_q8_use(dml_program *program, const dml__weights_q8 *weights)
{
    if (!program) return;
    program->q8 = weights->matrix;
    program->q8_count = weights->count;
}

#endif
