/* op_embedding_bag.h: sums of vectors looked up by number: sparse inputs of index and value. */
#ifndef DML_OPS_OP_EMBEDDING_BAG_H
#define DML_OPS_OP_EMBEDDING_BAG_H

#include "graph/graph.h"

typedef enum dml_bag_mode { DML_BAG_SUM, DML_BAG_MEAN } dml_bag_mode;

typedef struct dml_embedding_bag_options {
    dml_bag_mode mode; /* mean: of the places that have an index, zeros where none has; without weights */
    bool sparse;       /* of the layer's own table: dml_parameter_set_sparse (graph/weights.h) */
} dml_embedding_bag_options;

/* indices (..., L), an i32 input, or that under another shape, or what dml_argmax gives: bags of up to L
   indices of 0 .. rows - 1, -1 in a place that has none -> (..., width): the sum or mean of those rows of a
   table, the parameter "embedding_bag_1.weight" (rows, width), standard normal at first. `weights`, of the
   indices' shape or NULL, says how much each row counts (a value of -1's place is ignored); their gradient is
   the product of the row and the sum's. An index that is neither is found before anything is run
   (DML_ERROR_ARGUMENT). NULL options: all defaults.

   A linear model of 2^18 hashed features, 30 of which a sample has, with their values:

       dml_node *index = dml_input(g, "index", DML_I32, 30), *value = dml_input(g, "value", DML_F32, 30);
       dml_node *w = dml_parameter(g, "w", dml_init_constant(0), 1 << 18, 1);
       dml_parameter_set_sparse(w, true);
       dml_node *logit = dml_embedding_bag_with(index, value, w, NULL);

   A step then reads and writes the rows that are there and no others. */
DML_API dml_node *dml_embedding_bag(dml_node *indices, dml_node *weights, int rows, int width,
                                    const dml_embedding_bag_options *options);

/* The same on a table (rows, width) of the caller's. */
DML_API dml_node *dml_embedding_bag_with(dml_node *indices, dml_node *weights, dml_node *table,
                                         const dml_embedding_bag_options *options);

#endif
