#ifndef DML_OPS_OP_CONV1D_C
#define DML_OPS_OP_CONV1D_C

#include "ops/op_conv_internal.h"
#include "ops/table.h"

#include <string.h>

/* False, with the error recorded, for paddings that contradict each other. */
static bool dml__conv1d_as_2d(dml_node *x, const dml_node *w, const dml_conv1d_options *options,
                              dml_conv2d_options *o)
{
    memset(o, 0, sizeof *o);
    o->kernel[0] = o->stride[0] = o->dilation[0] = 1;
    if (!options) return true;
    o->filters = options->filters;
    o->kernel[1] = options->kernel;
    o->stride[1] = options->stride;
    o->padding[1] = options->padding;
    o->no_bias = options->no_bias;
    o->dilation[1] = options->dilation;
    o->groups = options->groups;
    o->padding_sides[2] = options->padding_sides[0];
    o->padding_sides[3] = options->padding_sides[1];
    o->same = options->same;
    if (!options->causal) return true;
    if (x && (o->same || o->padding[1] || o->padding_sides[2] || o->padding_sides[3])) {
        dml__fail(&dml__node_context(x)->error, DML_ERROR_ARGUMENT,
                  "conv1d: causal and another padding asked for; causal says all of it");
        return false;
    }
    int kernel = options->kernel;
    if (!kernel) kernel = w && w->shape.ndim == 3 ? w->shape.dims[1] : 3;
    const int extent = dml_conv2d_extent(kernel, options->dilation);
    o->padding_sides[2] = extent > 0 ? extent - 1 : 0;
    return true;
}

DML_API dml_node *dml_conv1d_with(dml_node *x, dml_node *w, dml_node *bias, const dml_conv1d_options *options)
{
    dml_conv2d_options o;
    return dml__conv1d_as_2d(x, w, options, &o) ? dml__conv_with(dml__conv1d_op(), x, w, bias, &o) : NULL;
}

DML_API dml_node *dml_conv1d(dml_node *x, const dml_conv1d_options *options)
{
    dml_conv2d_options o;
    return dml__conv1d_as_2d(x, NULL, options, &o) ? dml__conv_create(dml__conv1d_op(), x, &o) : NULL;
}

#endif
