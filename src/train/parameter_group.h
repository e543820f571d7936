/* parameter_group.h: parameters that the optimizer treats in their own way. */
#ifndef DML_TRAIN_PARAMETER_GROUP_H
#define DML_TRAIN_PARAMETER_GROUP_H

#include "base/platform.h"
#include "base/status.h"
#include "graph/graph.h"

/* The learning rate of a parameter is the trainer's times its lr scale, its weight decay the optimizer's
   times its decay scale: 1 at first; 0 for no decay, or for a parameter that stays for a while (its gradient
   is computed all the same, and counts in clip_norm). Meanwhile the optimizer's state of it moves on, as
   PyTorch's does at a learning rate of 0: the first step with another scale may be a large one, of a momentum
   that has gathered. What a trainer's loss doesn't depend on that trainer leaves as it is, whatever these
   say. They may change at any time, and hold for every trainer on the graph; like the model they are written
   down in the program, the same on all ranks, and not in checkpoints.
   Neighbours in w with the same scales are updated together. DML_ERROR_ARGUMENT for a node that is no
   parameter, and for a scale that isn't in 0 .. 1e6. */
DML_API float dml_parameter_lr_scale(const dml_node *parameter);
DML_API float dml_parameter_decay_scale(const dml_node *parameter);
DML_API dml_status dml_parameter_set_lr_scale(dml_node *parameter, float scale);
DML_API dml_status dml_parameter_set_decay_scale(dml_node *parameter, float scale);

/* No decay for the graph's parameters of fewer than two dimensions: biases, the scales and shifts of norms.
 */
DML_API dml_status dml_graph_decay_matrices_only(dml_graph *graph);

#endif
