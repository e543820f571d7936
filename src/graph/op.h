/* op.h: what an op is, and what it sees while a program runs.

   An op is one constant table. It works on references into device memory: on a host_memory device it calls
   the CPU kernels, on any other it launches the shared kernel of the same meaning. */
#ifndef DML_GRAPH_OP_H
#define DML_GRAPH_OP_H

#include "base/platform.h"
#include "base/status.h"
#include "device/backend.h"
#include "graph/node.h"
#include "thread/pool.h"

struct dml_program;
struct dml__formula_chain;

/* A matrix of parameters that a program's products read in 8 bits (kernels/q8.h), as it was when these were
   made, and not where it lies in w. */
typedef struct dml__q8_parameter {
    const dml_node *node; /* (n, k), or (k, n) where it isn't transposed */
    int n, k;
    bool transposed;
    void *q8; /* (dml_q8_bytes) */
} dml__q8_parameter;

/* One run of a program. */
typedef struct dml__run {
    struct dml_program *program;
    dml_context *context;
    dml_device *device;
    dml_pool *pool;
    dml__error *error; /* where a failure of this run is told */
    int rows;          /* samples in this run, 1 .. batch */
    bool training;     /* backward follows; dml_program_run only predicts, whatever the program is for */
    bool adds;         /* backward adds to the parameters' gradients and doesn't overwrite them */
    uint32_t step;     /* keys the random numbers of this run, with the context's seed and the node's key, */
    uint32_t part;     /* and with which of the step's passes and ranks it is */
    bool backward;     /* which of the two is running */
    struct dml__formula_chain *chain; /* the program's; NULL where ops run one by one */
} dml__run;

/* What an op's backward reads besides its output's gradient; the memory plan keeps no more. */
#define DML__NEEDS_INPUT(i) (1u << (i))
#define DML__NEEDS_INPUTS 0xFFu
#define DML__NEEDS_OUTPUT 0x100u
/* With what an op may become one, in the same word: a relu with an op whose forward does it in passing, where
   dml__ends_in_relu says so, and whose backward does too; or whose reader's backward does, where
   dml__begins_with_relu says so: it then gives no gradient to what isn't above 0. */
#define DML__IS_RELU 0x200u
#define DML__TAKES_RELU 0x400u
#define DML__TAKES_RELU_BACK 0x800u
#define DML__GATES_RELU 0x1000u
#define DML__TAKES_RELU_ANYWHERE                                                                             \
    0x4400u /* takes one, also in its shared kernel; the others on the CPU alone */
/* The gradient of each input is the output's, which may therefore be their place. */
#define DML__PASSES_GRADIENT 0x2000u
/* Backward may write the gradient of input 0 over that input's value. */
#define DML__GRADIENT_OVER_INPUT 0x800000u
/* What backward reads of the inputs is not rounded in between: it makes again what forward has saved a sum
   of, or takes the side that forward took; or, with DML__COMPARES, nor is the output, which it looks for
   among them. */
#define DML__READS_EXACTLY 0x20000u
#define DML__COMPARES 0x60000u
/* Forward reads of input 0, too, what is kept of it: what backward takes away from it is a mean of such
   numbers, and between others little would be left. */
#define DML__NORMALIZES 0x100000u
/* Backward divides by what it reads. */
#define DML__DIVIDES 0x8000u
/* No gradient flows to input i: it chooses, or weighs. */
#define DML__NO_GRADIENT(i) (0x1000000u << (i))
#define DML__CHOOSES_BY_FIRST DML__NO_GRADIENT(0)
/* Of input 1 it reads, and gives a gradient to, the rows that input 0 numbers and no others. */
#define DML__LOOKS_UP 0x10000u
/* Each element of the output is a function of the inputs' at the same place, and each gradient too: on a
   host_memory device the op's work goes to dml__chain_of where that gives a chain. */
#define DML__IS_ELEMENTWISE 0x80000u
/* Its gradient is wanted, though no parameter lies behind it here. */
#define DML__IS_SOURCE 0x400000u
/* What saved_bytes asks for is backward's alone, to work in; forward leaves nothing there. */
#define DML__WORKS_IN_BACKWARD 0x200000u
/* It works on the host whatever the device; what `scratch` says is then for what it reads from there. */
#define DML__ON_HOST ((uint64_t)1 << 32)

typedef struct dml__op {
    const char *name;
    /* Checks inputs and attributes; sets node->dtype, shape and batched. */
    dml_status (*infer)(dml_node *node);
    dml_status (*forward)(const dml__run *run, const dml_node *node);
    /* For each input i with dml__wants_gradient: its gradient = the op's share + dml__beta(i) x what is
       there. NULL for an op through which no gradient flows. */
    dml_status (*backward)(const dml__run *run, const dml_node *node);
    uint64_t needs;
    /* Bytes that forward leaves for backward, for up to `rows` samples; NULL: none. With
       DML__WORKS_IN_BACKWARD: that backward works in. */
    size_t (*saved_bytes)(const dml_node *node, int rows);
    bool view;     /* the output is input 0's memory under another shape: nothing runs */
    bool in_place; /* forward may write its output over input 0, backward its gradient over the output's */
    /* For people: what the attributes say, in words, and the operations of one sample's forward pass; NULL:
       nothing to say, and one an element of the output. */
    void (*describe)(const dml_node *node, char *text, size_t bytes);
    double (*flops)(const dml_node *node);
    /* What the op uses of the pool's scratch on the host for up to `rows` samples; NULL: nothing. */
    dml_scratch (*scratch)(const dml_node *node, int rows, bool training);
} dml__op;

/* The flops of an op that computes nothing. */
DML__LOCAL double dml__no_flops(const dml_node *node);

/* Inputs and parameters are nodes too, whose tables do nothing; a constant's puts its numbers where they are
   read. */
DML__LOCAL const dml__op *dml__input_op(void);
DML__LOCAL const dml__op *dml__parameter_op(void);
DML__LOCAL const dml__op *dml__constant_op(void);

/* Where a node's value, its gradient, and what its forward saved lie in this run. */
DML__LOCAL dml_ref dml__value(const dml__run *run, const dml_node *node);
DML__LOCAL dml_ref dml__gradient(const dml__run *run, const dml_node *node);
DML__LOCAL dml_ref dml__saved(const dml__run *run, const dml_node *node);

/* Whether input i of the node takes a gradient, and the weight of what its gradient already holds: 0 for the
   first op that writes it in this backward pass, else 1. */
DML__LOCAL bool dml__wants_gradient(const dml__run *run, const dml_node *node, int i);
DML__LOCAL float dml__beta(const dml__run *run, const dml_node *node, int i);

/* Of a node that is `over_ranks`: whether this run is one of several ranks', and the sums of `values` over
   all of them, whose runs make the same calls in the same order. A rank without samples runs such nodes with
   0 rows, whatever their inputs hold. */
DML__LOCAL bool dml__is_over_ranks(const dml__run *run, const dml_node *node);
DML__LOCAL dml_status dml__sum_over_ranks(const dml__run *run, double *values, size_t count);

/* Whether the node's value is that of the relu that follows, of an op with DML__TAKES_RELU. The relu's
   forward then doesn't run, and its backward, unless another op does that too, works in place. */
DML__LOCAL bool dml__ends_in_relu(const dml__run *run, const dml_node *node);
DML__LOCAL bool dml__begins_with_relu(const dml__run *run, const dml_node *node);

/* The chain of calls (kernels/formula.h) that the work of the node's op is part of in this half of the run,
   so that it is left there to be done; NULL: it is to be done now. */
DML__LOCAL struct dml__formula_chain *dml__chain_of(const dml__run *run, const dml_node *node);

/* Bytes that the op's forward leaves for backward, besides its value. */
DML__LOCAL size_t dml__left_bytes(const dml_node *node, int rows);

/* to (outer, inner) = the sum over n of from (outer, n, inner), + beta what is there: on a device with memory
   of its own. */
DML__LOCAL dml_status dml__launch_sum(const dml__run *run, dml_ref from, size_t outer, size_t n, size_t inner,
                                      float beta, dml_ref to);

/* The node's matrix `w` (n, k), or as it is transposed, in 8 bits; NULL: the program reads it as it is. */
DML__LOCAL const dml__q8_parameter *dml__weights_in_q8(const dml__run *run, const dml_node *w,
                                                       bool transposed);

/* Elements of the node's value in this run. */
DML__LOCAL size_t dml__count(const dml__run *run, const dml_node *node);

/* For infer: input 0 is f32 images of height x width x channels, else an error that says what it is. */
DML__LOCAL dml_status dml__check_image_input(const dml_node *node);

/* The gradient of input i = the sum over rows of the output's gradient (rows, columns) + beta x what is
   there: how every bias gets its gradient. On a device with memory of its own many rows are summed in parts
   first, which lie at `parts` (dml__sum_parts_bytes), unless that is no buffer. */
DML__LOCAL dml_status dml__sum_rows_into_gradient(const dml__run *run, const dml_node *node, int i,
                                                  size_t rows, size_t columns, dml_ref parts);
DML__LOCAL size_t dml__sum_parts_bytes(size_t rows, size_t columns);
static const dml_ref dml__no_parts = { NULL, 0 };

/* The addresses behind the references above, on a host_memory device. */
static inline float *dml__host_value(const dml__run *run, const dml_node *node)
{
    return (float *)dml__host(dml__value(run, node));
}
static inline float *dml__host_gradient(const dml__run *run, const dml_node *node)
{
    return (float *)dml__host(dml__gradient(run, node));
}

/* How many items do a row of n numbers where a group of 256 does several, 16, 64 or 256: as few as keep it in
   registers, of gpu/reduce.cl's ROW_KEPT each. */
DML__LOCAL int dml__row_lanes(size_t n);

/* The groups that do so many rows then. */
DML__LOCAL size_t dml__row_groups(size_t rows, int lanes);

/* A launch of `kernel` over x by y units, to be filled in and passed to dml__submit, which refuses sizes that
   the kernels' 32-bit integers can't count. */
DML__LOCAL dml_launch dml__launch(const char *kernel, size_t x, size_t y);
DML__LOCAL dml_status dml__submit(dml_device *device, const dml_launch *launch);

#endif
