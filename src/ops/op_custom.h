/* op_custom.h: ops that the program brings along: functions of its own, between others in a graph. */
#ifndef DML_OPS_OP_CUSTOM_H
#define DML_OPS_OP_CUSTOM_H

#include "graph/graph.h"
#include "thread/pool.h"

#define DML_CUSTOM_INPUTS 8

/* What such a function is called with: arrays on the host. What is of each sample lies there sample behind
   sample, (rows, its shape); what is for the whole batch, and parameters, once, (its shape). */
typedef struct dml_custom_call {
    void *user;     /* as given */
    dml_pool *pool; /* to share the work by dml_pool_run, and for kernels (dml_sgemm) */
    int rows;       /* samples in this run, 1 to the program's batch */
    bool training;  /* a backward pass follows */
    int inputs;
    const void *input[DML_CUSTOM_INPUTS];     /* f32, or i32 where the node is */
    size_t input_count[DML_CUSTOM_INPUTS];    /* elements of the array */
    float *output;                            /* forward writes each element; to backward a constant */
    size_t output_count;                      /* elements of it */
    void *saved;                              /* forward leaves it to backward; NULL: saved_bytes is 0 */
    const float *output_gradient;             /* in backward */
    float *input_gradient[DML_CUSTOM_INPUTS]; /* in backward, which adds to it; NULL: not wanted. The same
                                                 array for a node that is there twice */
} dml_custom_call;

typedef struct dml_custom_options {
    const char *name;   /* of the node, as of inputs; NULL: "custom_1", ... */
    dml_shape shape;    /* of a sample's output; zeros: a scalar */
    bool whole_batch;   /* the output is one for the whole batch, whatever the inputs are */
    size_t saved_bytes; /* of each sample, or with whole_batch of each run */
    /* Anything but DML_OK ends the run with that status. Neither may call into the graph's context or wait
       for other ranks. Programs that run at once, on threads of their own or as mirrored replicas, call them
       at once, each for its own arrays. */
    dml_status (*forward)(const dml_custom_call *call);
    dml_status (*backward)(const dml_custom_call *call); /* NULL: to gradients the output is a constant */
    void *user;
} dml_custom_options;

/* The output of `forward`, f32, from 1 to DML_CUSTOM_INPUTS nodes of any shapes, in that order; it is one for
   each sample if any of them is and whole_batch is false. Backward gets what forward had, in f32 also where
   programs keep less (dml_program_options.dtype), and adds to each input's gradient
   output_gradient x d output / d input; dml_check_gradients says whether it does. On a device with memory of
   its own the run waits and what is needed is copied to the host and back. Elsewhere this is called
   autograd.Function, map_custom or py_function. DML_ERROR_ARGUMENT without a forward or for more inputs; NULL
   alone for `inputs` of NULL and a `count` below 1, where there is no graph to record an error on.
 */
DML_API dml_node *dml_custom(dml_node *const *inputs, int count, const dml_custom_options *options);

#endif
