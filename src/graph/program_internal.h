/* program_internal.h: what the trainer needs of a program. */
#ifndef DML_GRAPH_PROGRAM_INTERNAL_H
#define DML_GRAPH_PROGRAM_INTERNAL_H

#include "base/platform.h"
#include "base/status.h"
#include "device/context_internal.h"
#include "graph/graph.h"
#include "graph/node.h"
#include "graph/op.h"
#include "graph/program.h"

/* Where a node lives in a program. Views have the slot of the node they look at, a relu that the op before it
   does has that op's. */
typedef struct dml__slot {
    dml_node *node;
    int root;            /* the slot whose memory this one is: its own index, but for views and fused */
    int uses, first_use; /* of how many inputs of the program's ops it is one, and the first such op's slot */
    bool watched;        /* its value is there after a run */
    bool fused, gone;    /* a relu that the op of its input does; that has nothing to do in backward too */
    bool ends_in_relu;   /* such an op */
    bool begins_with_relu; /* an op that does the backward of its input, a relu */
    bool has_gradient;     /* a parameter lies behind it */
    /* Of an op in a chain (graph/chain.h), forward and backward: whether the chain ends with it. */
    bool chained[2], chain_ends[2];
    bool reached, written;      /* while compiling: by the output's gradient; as a gradient, by some op */
    int limit, lowest, ignored; /* input: values must be in lowest .. limit - 1 for the program's ops, or
                            `ignored`; limit 0: any */
    int given;                  /* input: which of the program's */
    unsigned accumulates; /* bit i: in backward, another op wrote the gradient of input i before this one */
    int value_at, gradient_at;     /* the blocks of the arena that hold them: another slot's where in place */
    size_t value, gradient, saved; /* bytes into the arena, of roots */
    /* A value that is kept for backward in 16 bits (graph/narrow.h). */
    bool narrowed, exact; /* exact: it must not be */
    int normalized;       /* the first slot that normalizes it; 0: none */
    size_t narrow, again; /* where it is that, and where it is f32 again */
    int narrows, widens;  /* the first such value to convert before this slot runs forward, backward, and */
    int next_narrow, next_widen;     /* the next after this one; all + 1, and 0: none */
    size_t final_from;               /* after this node's backward, g[final_from ..] is final */
    struct dml__gradient_rows *rows; /* sparse parameter: which of its gradient's may not be zero; or NULL */
} dml__slot;

/* How a training run reaches the other ranks that train with this one. Each may be NULL. */
typedef struct dml__ranks {
    dml_status (*sum)(void *user, double *values, size_t count); /* values[i] = its sum over all */
    /* Before and after an op runs, forward or backward, for each range of trained parameters in w that it
       reads. Runs without samples call them too. */
    dml_status (*use)(void *user, size_t begin, size_t end);
    dml_status (*used)(void *user, size_t begin, size_t end);
    dml_status (*turn)(void *user); /* before backward writes anything; not of runs without samples */
    void *user;
} dml__ranks;

struct dml_program {
    dml__owned owned; /* first: the context destroys through it */
    dml_graph *graph;
    dml_node *output;
    int batch;
    bool training;
    dml_check check;
    dml_dtype dtype; /* DML_F32, or what is kept for backward and what products multiply is rounded to */
    bool changes_w;  /* in training, forward changes parameters: running statistics */
    bool over_ranks; /* in training, some op sums over ranks */
    dml__ranks ranks;
    /* With a thread of its own: a pool of that one thread, errors of its own, and whether a run is going on.
       (On a device with memory of its own the pool is there for its scratch, of ops that work on the host.)
     */
    bool own_thread;
    dml_pool *own_pool;
    dml__error error;
    int running;
    long process; /* whose thread `running` is */
    int slots, nodes;
    dml__slot *slot;   /* (slots) in order of execution */
    int *slot_of_node; /* (nodes) by node index; -1: not in the program */
    int output_slot;
    int ahead; /* samples of a pass whose forward half has been made (dml__program_forward); 0: none */
    int ran;   /* samples of the last run, if that ended well; 0: there is nothing to read */
    int inputs;
    dml_node **input;
    dml_buffer *given; /* (inputs): the caller's arrays, which a host_memory device reads where they are;
                          NULL: they are written to the arena */
    const dml__q8_parameter *q8; /* (q8_count) what its products read in 8 bits: whose who set it */
    int q8_count;
    struct dml__formula_chain *chain; /* where the ops of a chain leave their work; NULL: there are none */
    size_t bytes;
    dml_buffer *arena;
    dml_buffer *g; /* of a training program: as long as w */
};

/* The slot in which the value of a slot's input i lies. */
static inline const dml__slot *dml__root_of_input(const dml_program *program, const dml__slot *slot, int i)
{
    return &program->slot[program->slot[program->slot_of_node[slot->node->input[i]->index]].root];
}

/* The slot of a slot's input i. */
static inline dml__slot *dml__input_slot(const dml_program *program, const dml__slot *slot, int i)
{
    return &program->slot[program->slot_of_node[slot->node->input[i]->index]];
}

/* The slot of any of the graph's nodes, also of those built later; -1: it isn't in the program. */
static inline int dml__node_slot(const dml_program *program, const dml_node *node)
{
    return node->index < program->nodes ? program->slot_of_node[node->index] : -1;
}

/* Whether the output depends on a parameter, and trains it. */
static inline bool dml__trains(const dml_program *program, const dml_node *parameter)
{
    const int slot = dml__node_slot(program, parameter);
    return slot >= 0 && program->slot[slot].has_gradient;
}

/* Whether the op writes a gradient of its input i, which is not its root's where a stop lies between them. */
DML__LOCAL bool dml__gives_gradient(const dml_program *program, const dml__slot *slot, int i);

/* Elements of w. */
typedef struct dml__w_range {
    size_t begin, end;
} dml__w_range;

/* The ranges of trained parameters that a slot's op reads, forward or backward, in the order of w, neighbours
   as one: range (DML__MAX_INPUTS). Returns how many. */
DML__LOCAL int dml__ranges_read(const dml_program *program, const dml__slot *slot, bool backward,
                                dml__w_range *range);

/* Called from the end of g towards its start, each time more of it has become final: g[begin .. end) now is.
 */
typedef struct dml__gradient_listener {
    dml_status (*ready)(void *user, size_t begin, size_t end);
    void *user;
} dml__gradient_listener;

/* Whether a run could begin: `rows` and `inputs` are what the program takes. An error is recorded. */
DML__LOCAL dml_status dml__program_check(dml_program *program, int rows, const void *const *inputs,
                                         int count);

/* What a training run does with gradients. */
typedef struct dml__training {
    uint32_t step, part;                    /* key random numbers: of a step, each pass of each rank */
    float loss_scale;                       /* the gradient is of loss_scale x loss */
    bool adds;                              /* it is added to g, which it else overwrites */
    const dml__gradient_listener *listener; /* or NULL */
} dml__training;

/* Forward and backward of a training program on inputs that dml__program_check has passed. `loss` may be
 * NULL.
 */
DML__LOCAL dml_status dml__program_train(dml_program *program, int rows, const void *const *inputs,
                                         const dml__training *training, float *loss);

/* Its first half alone: dml__program_train, of the same samples and keys and before another run in this
   arena, goes on from there. */
DML__LOCAL dml_status dml__program_forward(dml_program *program, int rows, const void *const *inputs,
                                           const dml__training *training);

/* The same without backward: the loss of a training pass. */
DML__LOCAL dml_status dml__program_loss(dml_program *program, int rows, const void *const *inputs,
                                        const dml__training *training, float *loss);
/* The part that a rank without samples has in a pass that others make: what sums over ranks, the parameters
   that ops would read, and the listener. g stays as it is. */
DML__LOCAL dml_status dml__program_train_nothing(dml_program *program, const dml__training *training);

/* dml_compile where each op does its own work, and no two blocks of the arena share bytes: what tests compare
   a plan with. */
DML__LOCAL dml_program *dml__compile_disjoint(dml_node *output, const dml_program_options *options);

#endif
