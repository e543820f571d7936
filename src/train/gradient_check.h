/* gradient_check.h: whether backward computes the gradient of what forward computes. */
#ifndef DML_TRAIN_GRADIENT_CHECK_H
#define DML_TRAIN_GRADIENT_CHECK_H

#include "base/platform.h"
#include "base/status.h"
#include "graph/graph.h"

typedef struct dml_gradient_check_options {
    float epsilon; /* how far an element is moved to both sides; 0: 0.01, at which a loss in f32 tells most */
    float tolerance; /* by how much of the larger the two derivatives may differ, besides the loss' rounding
                        error; 0: 0.02 */
    int samples;     /* elements of each parameter, its largest gradient among them; 0: 8 */
} dml_gradient_check_options;

/* What was found. The rest is about the one that is furthest off what it may be off. */
typedef struct dml_gradient_check {
    int checked;         /* derivatives that were compared */
    int failed;          /* that differ */
    int unsure;          /* not compared: the loss has a kink there (relu, max pooling), or is too rough */
    dml_node *parameter; /* NULL: none was compared */
    size_t index;        /* its element; DML_WHOLE_PARAMETER: all of it, along its gradient */
    double backward, numeric; /* the derivative by backward, and by differences of the loss */
    double allowed;           /* how far they may be apart */
} dml_gradient_check;

#define DML_WHOLE_PARAMETER SIZE_MAX

/* Compares the gradient of a loss with central differences of the loss itself, on `rows` samples (inputs as
   for dml_program_run): for each trained parameter some elements, and its direction of steepest descent, in
   which many small elements count together. result->failed 0 says that they agree:

       dml_gradient_check check;
       dml_check_gradients(loss, rows, DML_INPUTS(x, t), NULL, &check);
       if (check.failed)
           printf("%s[%zu]: backward %g, differences %g\n", dml_node_name(check.parameter), check.index,
                  check.backward, check.numeric);

   Differences at epsilon and at half of it are combined (Richardson), so that what is left is of the fourth
   order; where the two disagree, or the loss' slopes to both sides do, it is tried closer by, then given up.
   What differs from backward is failed only if it does so closer by, too, and no less, and by more than
   rounding explains: how far the loss jumps between places beside each other, and 2e-5 of the largest
   derivative, which backward's own rounding may leave where a norm takes out what a parameter adds.
   Everything is in f32, so an element is known to about 1e-4 of the loss (at epsilon 0.01; half of that at
   0.02): gradients below that are only seen in sum, as the whole parameter's. A small model with few samples
   and a smooth activation is seen most sharply. It takes 4 forward passes for each
   derivative, and more at kinks and where it differs.

   The loss is computed as in training, with the dropout masks of one step throughout. Afterwards the graph is
   bitwise as before, running statistics included; it needs the memory of a training program and of two or
   three copies of w meanwhile. DML_ERROR_ARGUMENT for options out of range or a NULL result, and whatever
   compiling and running the loss are refused with. */
DML_API dml_status dml_check_gradients(dml_node *loss, int rows, const void *const *inputs, int count,
                                       const dml_gradient_check_options *options, dml_gradient_check *result);

#endif
