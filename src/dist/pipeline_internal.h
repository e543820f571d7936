/* pipeline_internal.h: what a stage's nodes and its pipeline have in common. */
#ifndef DML_DIST_PIPELINE_INTERNAL_H
#define DML_DIST_PIPELINE_INTERNAL_H

#include "comm/comm.h"
#include "device/backend.h"
#include "dist/pipeline.h"
#include "graph/op.h"

/* Messages between neighbours, by tag: values go to the next stage, their gradients come back. */
enum { DML__STAGE_VALUE, DML__STAGE_GRADIENT, DML__STAGE_BEGINS };

/* A micro-batch on its way: the program's exchange (graph/program_internal.h) while it runs here. Nothing
   that was started is waited for before it is needed. */
typedef struct dml__stage_pass {
    dml_buffer *arena, *given; /* as the program has them */
    int rows;                  /* whose forward half has been made */
    size_t in, out;            /* elements of a sample; 0: there is no such stage */
    /* (batch, in) and (batch, out); where they come, and from where they are sent. */
    float *value_in, *gradient_in, *value_out, *gradient_out;
    dml_request *value_came, *gradient_came, *value_sent, *gradient_sent;
} dml__stage_pass;

DML__LOCAL const dml__op *dml__pipeline_input_op(void);
DML__LOCAL const dml__op *dml__pipeline_output_op(void);

#endif
