/* gradient_rows.h: gradients of tables of which a pass reaches only some rows. */
#ifndef DML_GRAPH_GRADIENT_ROWS_H
#define DML_GRAPH_GRADIENT_ROWS_H

#include "base/platform.h"
#include "graph/op.h"

/* Which rows of a sparse parameter's gradient may not be zero, so that the others need neither be cleared nor
   looked at. The gradient itself is whole at all times: whoever wants all of it (a norm, a strategy) has it.
 */
typedef struct dml__gradient_rows {
    dml_node *parameter;
    bool all; /* any may be: more than the list takes, or somebody else wrote to the gradient */
    size_t count, capacity;
    int32_t *row;  /* (capacity) in the order in which they were met */
    uint32_t *met; /* a bit for each row of the parameter */
} dml__gradient_rows;

/* For each sparse parameter of a training program that ops with DML__LOOKS_UP alone read, where they can be
   told. */
DML__LOCAL dml_status dml__make_gradient_rows(struct dml_program *program);
DML__LOCAL void dml__release_gradient_rows(struct dml_program *program);

/* Those of a parameter in a program, or NULL: any row may not be zero. */
DML__LOCAL const dml__gradient_rows *dml__gradient_rows_of(const struct dml_program *program,
                                                           const dml_node *parameter);

/* Somebody else than the program's ops wrote to its g. */
DML__LOCAL void dml__gradient_changed(struct dml_program *program);

/* Before an op with DML__LOOKS_UP adds to the gradient of its input i, on a host_memory device, rows that are
   among `indices` (below 0: none): it is zero then, unless it is added to. */
DML__LOCAL void dml__begin_gradient_rows(const dml__run *run, const dml_node *node, int i, size_t count,
                                         const int32_t *indices);

#endif
