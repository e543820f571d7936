#ifndef DML_OPS_OP_SAMPLE_NORM_C
#define DML_OPS_OP_SAMPLE_NORM_C

#include "ops/op_sample_norm.h"

#include "graph/node.h"
#include "graph/op.h"
#include "ops/op_sample_norm_internal.h"
#include "ops/table.h"
#include "kernels/group_norm.h"
#include "kernels/reduce.h"
#include "kernels/row_norm.h"

#include <float.h>
#include <stdio.h>
#include <string.h>

static const dml__sample_norm *dml__sample_norm_of(const dml_node *node)
{
    return (const dml__sample_norm *)node->attributes;
}

static dml_status dml__sample_norm_infer(dml_node *node)
{
    static const char *const what[] = { "input", "weight", "bias" };
    const dml__sample_norm *o = dml__sample_norm_of(node);
    const dml_node *x = node->input[0];
    char text[DML_SHAPE_TEXT];
    if (x->dtype != DML_F32 || x->shape.ndim < 1)
        return dml__node_fail(
            node, DML_ERROR_SHAPE,
            "its input is %s %s; it takes f32 with at least one dimension, the last of which "
            "is channels",
            dml_dtype_name(x->dtype), dml_shape_format(&x->shape, text));
    const int channels = x->shape.dims[x->shape.ndim - 1];
    if (!(o->epsilon > 0 && o->epsilon <= 1e30f))
        return dml__node_fail(node, DML_ERROR_ARGUMENT, "an epsilon of %g asked for; it must be above 0",
                              (double)o->epsilon);
    if (node->op == dml__group_norm_op() && (o->groups < 1 || channels % o->groups))
        return dml__node_fail(node, DML_ERROR_ARGUMENT, "%d channels can't be cut into %d equal groups",
                              channels, o->groups);
    for (int i = 1; i < node->inputs; i++) {
        const dml_node *p = node->input[i];
        if (p->dtype == DML_F32 && !p->batched && p->shape.ndim == 1 && p->shape.dims[0] == channels)
            continue;
        return dml__node_fail(node, DML_ERROR_SHAPE,
                              "its %s is %s %s%s, it must be f32 %d: one for each channel", what[i],
                              dml_dtype_name(p->dtype), dml_shape_format(&p->shape, text),
                              p->batched ? " a sample" : "", channels);
    }
    node->shape = x->shape;
    node->batched = x->batched;
    return DML_OK;
}

/* What is normalized together: for each of `samples`, `groups` times `pixels` pieces of `width` numbers, the
   pieces of a group lying `channels` apart. Layer norm's samples are its rows, of one piece each. */
typedef struct dml__sample_norm_shape {
    size_t samples, pixels, channels, groups, width;
} dml__sample_norm_shape;

static dml__sample_norm_shape dml__sample_norm_shape_of(const dml_node *node, size_t rows)
{
    const dml__sample_norm *o = dml__sample_norm_of(node);
    const size_t channels = (size_t)node->shape.dims[node->shape.ndim - 1];
    const size_t each = dml_shape_count(&node->shape) / channels, samples = node->batched ? rows : 1;
    dml__sample_norm_shape s = { samples * each, 1, channels, 1, channels };
    if (!o->groups) return s;
    s.samples = samples;
    s.pixels = each;
    s.groups = (size_t)o->groups;
    s.width = channels / s.groups;
    return s;
}

/* On a GPU the parameters' gradients are sums of parts of the rows, which depend on the shape alone. */
#define DML__SAMPLE_NORM_PARTS ((size_t)64)
#define DML__SAMPLE_NORM_PART_ROWS ((size_t)64)

static size_t dml__sample_norm_part_rows(const dml__sample_norm_shape *s)
{
    const size_t rows = s->samples * s->pixels;
    const size_t part = rows / DML__SAMPLE_NORM_PARTS + (rows % DML__SAMPLE_NORM_PARTS != 0);
    return part > DML__SAMPLE_NORM_PART_ROWS ? part : DML__SAMPLE_NORM_PART_ROWS;
}

/* Floats of the statistics, and how many parts of (2, channels) follow them. */
static size_t dml__sample_norm_statistics(const dml_node *node, const dml__sample_norm_shape *s)
{
    const bool host = dml__node_context(node)->device.host_memory;
    return 2 * s->samples * (host && dml__sample_norm_of(node)->groups ? s->channels : s->groups);
}

static size_t dml__sample_norm_parts(const dml_node *node, const dml__sample_norm_shape *s)
{
    const size_t part = dml__sample_norm_part_rows(s), rows = s->samples * s->pixels;
    if (!dml__node_context(node)->device.host_memory) return rows / part + (rows % part != 0);
    return dml__sample_norm_of(node)->groups ? s->samples : dml_row_norm_parts(s->samples, s->channels);
}

static size_t dml__sample_norm_saved_bytes(const dml_node *node, int rows)
{
    const dml__sample_norm_shape s = dml__sample_norm_shape_of(node, (size_t)rows);
    return (dml__sample_norm_statistics(node, &s) + 2 * dml__sample_norm_parts(node, &s) * s.channels) *
           sizeof(float);
}

static dml_ref dml__sample_norm_value(const dml__run *run, const dml_node *node, int i)
{
    const dml_ref none = { NULL, 0 };
    return node->input[i] ? dml__value(run, node->input[i]) : none;
}

static const float *dml__sample_norm_host(const dml__run *run, const dml_node *node, int i)
{
    return node->input[i] ? dml__host_value(run, node->input[i]) : NULL;
}

static dml_row_normalization dml__sample_norm_rows_by(const dml__run *run, const dml_node *node)
{
    const dml__sample_norm *o = dml__sample_norm_of(node);
    const dml_row_normalization by = { dml__sample_norm_host(run, node, 1),
                                       dml__sample_norm_host(run, node, 2), o->epsilon, o->by_square };
    return by;
}

static dml_group_norm_shape dml__sample_norm_groups(const dml__sample_norm_shape *s)
{
    const dml_group_norm_shape shape = { s->samples, s->pixels, s->channels, s->groups };
    return shape;
}

/* Whether a group of a sample is more than a quarter of a work-group keeps in registers (gpu/sample_norm.cl).
 */
static bool dml__sample_norm_is_long(const dml__sample_norm_shape *s)
{
    return s->pixels * s->width > 1024;
}

/* With its ints: rows, channels, pixels, width, whether by square, rows of a part, parts, whether long. */
static dml_launch dml__sample_norm_launch(const dml_node *node, const dml__sample_norm_shape *s,
                                          const char *kernel, size_t x, size_t y)
{
    const dml__sample_norm *o = dml__sample_norm_of(node);
    const size_t rows = s->samples * s->pixels;
    /* More rows than the kernels count to are refused with a launch of so many. */
    dml_launch launch = dml__launch(kernel, rows > INT32_MAX ? rows : x, y);
    launch.integer[0] = (int32_t)rows;
    launch.integer[1] = (int32_t)s->channels;
    launch.integer[2] = (int32_t)s->pixels;
    launch.integer[3] = (int32_t)s->width;
    launch.integer[4] = o->by_square;
    launch.integer[5] = (int32_t)dml__sample_norm_part_rows(s);
    launch.integer[6] = (int32_t)dml__sample_norm_parts(node, s);
    launch.integer[7] = dml__sample_norm_is_long(s);
    launch.integer[8] = (int32_t)s->groups;
    launch.integer[9] = (int32_t)(s->samples * s->groups);
    launch.real[0] = o->epsilon;
    return launch;
}

static dml_status dml__sample_norm_forward(const dml__run *run, const dml_node *node)
{
    const dml__sample_norm *o = dml__sample_norm_of(node);
    const dml__sample_norm_shape s = dml__sample_norm_shape_of(node, (size_t)run->rows);
    const dml_node *x = node->input[0];
    const dml_ref statistics = dml__saved(run, node);
    if (run->device->host_memory && o->groups) {
        const dml_group_norm_shape shape = dml__sample_norm_groups(&s);
        dml_group_norm_forward(run->pool, &shape, dml__host_value(run, x),
                               dml__sample_norm_host(run, node, 1), dml__sample_norm_host(run, node, 2),
                               o->epsilon, (float *)dml__host(statistics), dml__host_value(run, node));
        return DML_OK;
    }
    if (run->device->host_memory) {
        const dml_row_normalization by = dml__sample_norm_rows_by(run, node);
        dml_row_norm_forward(run->pool, s.samples, s.channels, dml__host_value(run, x), &by,
                             (float *)dml__host(statistics), dml__host_value(run, node));
        return DML_OK;
    }
    dml_launch launch = dml__sample_norm_launch(node, &s, "sample_norm_forward", s.samples * s.groups,
                                                dml__sample_norm_is_long(&s) ? 4 : 1);
    launch.buffer[0] = dml__value(run, x);
    launch.buffer[1] = dml__sample_norm_value(run, node, 1);
    launch.buffer[2] = dml__sample_norm_value(run, node, 2);
    launch.buffer[3] = statistics;
    launch.buffer[4] = dml__value(run, node);
    return dml__submit(run->device, &launch);
}

/* ---- backward ---- */

static bool dml__sample_norm_wants(const dml__run *run, const dml_node *node, int i)
{
    return i < node->inputs && dml__wants_gradient(run, node, i);
}

/* dx and the parts of the parameters' gradients, on the host; each only where it is wanted. */
static void dml__sample_norm_backward_host(const dml__run *run, const dml_node *node,
                                           const dml__sample_norm_shape *s, float *parts)
{
    const dml__sample_norm *o = dml__sample_norm_of(node);
    const float *x = dml__host_value(run, node->input[0]), *dy = dml__host_gradient(run, node);
    const float *statistics = (const float *)dml__host(dml__saved(run, node));
    const bool wanted = dml__wants_gradient(run, node, 0);
    const bool learns = dml__sample_norm_wants(run, node, 1) || dml__sample_norm_wants(run, node, 2);
    float *dx = wanted ? dml__host_gradient(run, node->input[0]) : NULL;
    const float beta = wanted ? dml__beta(run, node, 0) : 0;
    if (o->groups) {
        const dml_group_norm_shape shape = dml__sample_norm_groups(s);
        dml_group_norm_backward(run->pool, &shape, x, dml__sample_norm_host(run, node, 1), o->epsilon,
                                statistics, dy, parts, beta, dx);
    } else {
        const dml_row_normalization by = dml__sample_norm_rows_by(run, node);
        dml_row_norm_backward(run->pool, s->samples, s->channels, x, &by, statistics, dy, beta, dx,
                              learns ? parts : NULL);
    }
}

/* On a GPU: the parts first, since dx may be written over dy. */
static dml_status dml__sample_norm_backward_launch(const dml__run *run, const dml_node *node,
                                                   const dml__sample_norm_shape *s, dml_ref parts)
{
    dml_status status = DML_OK;
    if (dml__sample_norm_wants(run, node, 1) || dml__sample_norm_wants(run, node, 2)) {
        dml_launch launch = dml__sample_norm_launch(node, s, "sample_norm_products", s->channels,
                                                    dml__sample_norm_parts(node, s));
        launch.buffer[0] = dml__value(run, node->input[0]);
        launch.buffer[1] = dml__gradient(run, node);
        launch.buffer[2] = dml__saved(run, node);
        launch.buffer[3] = parts;
        status = dml__submit(run->device, &launch);
    }
    if (status != DML_OK || !dml__wants_gradient(run, node, 0)) return status;
    dml_launch launch = dml__sample_norm_launch(node, s, "sample_norm_backward", s->samples * s->groups,
                                                dml__sample_norm_is_long(s) ? 4 : 1);
    launch.buffer[0] = dml__value(run, node->input[0]);
    launch.buffer[1] = dml__gradient(run, node);
    launch.buffer[2] = dml__sample_norm_value(run, node, 1);
    launch.buffer[3] = dml__saved(run, node);
    launch.buffer[4] = dml__gradient(run, node->input[0]);
    launch.real[0] = dml__beta(run, node, 0);
    return dml__submit(run->device, &launch);
}

/* The gradient of input i = the sum of `parts` rows of channels + beta x what is there. */
static dml_status dml__sample_norm_parameter(const dml__run *run, const dml_node *node, int i, size_t parts,
                                             size_t channels, dml_ref from)
{
    if (!dml__sample_norm_wants(run, node, i)) return DML_OK;
    const float beta = dml__beta(run, node, i);
    if (run->device->host_memory) {
        dml_sum_rows(run->pool, parts, channels, (const float *)dml__host(from), beta,
                     dml__host_gradient(run, node->input[i]));
        return DML_OK;
    }
    dml_launch launch = dml__launch("sum_rows", channels, 1);
    launch.buffer[0] = from;
    launch.buffer[1] = dml__gradient(run, node->input[i]);
    launch.integer[0] = (int32_t)parts;
    launch.integer[1] = (int32_t)channels;
    launch.integer[2] = 1;
    launch.real[0] = beta;
    return dml__submit(run->device, &launch);
}

static dml_status dml__sample_norm_backward(const dml__run *run, const dml_node *node)
{
    const dml__sample_norm_shape s = dml__sample_norm_shape_of(node, (size_t)run->rows);
    const size_t parts = dml__sample_norm_parts(node, &s);
    dml_ref dshift = dml__saved(run, node), dscale;
    dshift.offset += dml__sample_norm_statistics(node, &s) * sizeof(float);
    dscale = dshift;
    dscale.offset += parts * s.channels * sizeof(float);
    dml_status status = DML_OK;
    if (run->device->host_memory)
        dml__sample_norm_backward_host(run, node, &s, (float *)dml__host(dshift));
    else
        status = dml__sample_norm_backward_launch(run, node, &s, dshift);
    if (status == DML_OK) status = dml__sample_norm_parameter(run, node, 1, parts, s.channels, dscale);
    if (status == DML_OK) status = dml__sample_norm_parameter(run, node, 2, parts, s.channels, dshift);
    return status;
}

static void dml__sample_norm_describe(const dml_node *node, char *text, size_t bytes)
{
    const dml__sample_norm *o = dml__sample_norm_of(node);
    if (o->groups)
        snprintf(text, bytes, "%d groups, epsilon %g", o->groups, (double)o->epsilon);
    else
        snprintf(text, bytes, "epsilon %g", (double)o->epsilon);
}

/* Of each number: into the mean, the distance from it, its square into the variance, times inverse, times
   weight, plus bias. */
static double dml__sample_norm_flops(const dml_node *node)
{
    const double each = dml__sample_norm_of(node)->by_square ? 3 : 5;
    return (each + node->inputs - 1) * (double)dml_shape_count(&node->shape);
}

#define DML__SAMPLE_NORM(name)                                                                               \
    DML__LOCAL const dml__op *dml__##name##_op(void)                                                         \
    {                                                                                                        \
        static const dml__op op = { #name,                                                                   \
                                    dml__sample_norm_infer,                                                  \
                                    dml__sample_norm_forward,                                                \
                                    dml__sample_norm_backward,                                               \
                                    DML__NEEDS_INPUT(0) | DML__NEEDS_INPUT(1) | DML__NORMALIZES,             \
                                    dml__sample_norm_saved_bytes,                                            \
                                    false,                                                                   \
                                    true,                                                                    \
                                    dml__sample_norm_describe,                                               \
                                    dml__sample_norm_flops,                                                  \
                                    NULL };                                                                  \
        return &op;                                                                                          \
    }
DML__SAMPLE_NORM(layer_norm)
DML__SAMPLE_NORM(rms_norm)
DML__SAMPLE_NORM(group_norm)
#undef DML__SAMPLE_NORM

/* ---- builders ---- */

static dml__sample_norm dml__sample_norm_with(const dml_sample_norm_options *options, float epsilon)
{
    dml__sample_norm o;
    memset(&o, 0, sizeof o);
    o.epsilon = options && options->epsilon != 0 ? options->epsilon : epsilon;
    return o;
}

static dml_node *dml__sample_norm_create(const dml__op *op, const dml__sample_norm *o, dml_node *x,
                                         dml_node *weight, dml_node *bias)
{
    dml_node *const inputs[] = { x, weight, bias };
    if (!weight && bias) {
        dml__fail(&dml__node_context(bias)->error, DML_ERROR_ARGUMENT,
                  "%s: a bias without a weight was given; it takes both, a weight, or none", op->name);
        return NULL;
    }
    return dml__node_create(op, bias ? 3 : weight ? 2 : 1, inputs, o, sizeof *o);
}

/* The layer with parameters of its own. */
static dml_node *dml__sample_norm_layer(const dml__op *op, const dml__sample_norm *o, dml_node *x,
                                        bool weight, bool bias)
{
    if (!x) return NULL;
    const int channels = x->shape.ndim ? x->shape.dims[x->shape.ndim - 1] : 1;
    dml_node *last = x->graph->last, *p[2] = { NULL, NULL }, *layer = NULL;
    if (weight)
        p[0] = dml__layer_parameter(x->graph, op, "weight", dml_init_constant(1), dml_shape_of(channels));
    if (weight && bias)
        p[1] = dml__layer_parameter(x->graph, op, "bias", dml_init_constant(0), dml_shape_of(channels));
    if ((p[0] || !weight) && (p[1] || !weight || !bias))
        layer = dml__sample_norm_create(op, o, x, p[0], p[1]);
    if (!layer) dml__graph_drop_after(x->graph, last);
    return layer;
}

static bool dml__learns_weight(const dml_sample_norm_options *options)
{
    return !options || !options->no_weight;
}

static bool dml__learns_bias(const dml_sample_norm_options *options)
{
    return !options || !options->no_bias;
}

DML_API dml_node *dml_layer_norm_with(dml_node *x, dml_node *weight, dml_node *bias,
                                      const dml_sample_norm_options *options)
{
    const dml__sample_norm o = dml__sample_norm_with(options, 1e-5f);
    return dml__sample_norm_create(dml__layer_norm_op(), &o, x, weight, bias);
}

DML_API dml_node *dml_layer_norm(dml_node *x, const dml_sample_norm_options *options)
{
    const dml__sample_norm o = dml__sample_norm_with(options, 1e-5f);
    return dml__sample_norm_layer(dml__layer_norm_op(), &o, x, dml__learns_weight(options),
                                  dml__learns_bias(options));
}

static dml__sample_norm dml__rms_norm_of(const dml_sample_norm_options *options)
{
    dml__sample_norm o = dml__sample_norm_with(options, FLT_EPSILON);
    o.by_square = true;
    return o;
}

DML_API dml_node *dml_rms_norm_with(dml_node *x, dml_node *weight, const dml_sample_norm_options *options)
{
    const dml__sample_norm o = dml__rms_norm_of(options);
    return dml__sample_norm_create(dml__rms_norm_op(), &o, x, weight, NULL);
}

DML_API dml_node *dml_rms_norm(dml_node *x, const dml_sample_norm_options *options)
{
    const dml__sample_norm o = dml__rms_norm_of(options);
    return dml__sample_norm_layer(dml__rms_norm_op(), &o, x, dml__learns_weight(options), false);
}

static dml__sample_norm dml__group_norm_of(int groups, const dml_sample_norm_options *options)
{
    dml__sample_norm o = dml__sample_norm_with(options, 1e-5f);
    o.groups = groups;
    return o;
}

DML_API dml_node *dml_group_norm_with(dml_node *x, int groups, dml_node *weight, dml_node *bias,
                                      const dml_sample_norm_options *options)
{
    const dml__sample_norm o = dml__group_norm_of(groups, options);
    return dml__sample_norm_create(dml__group_norm_op(), &o, x, weight, bias);
}

DML_API dml_node *dml_group_norm(dml_node *x, int groups, const dml_sample_norm_options *options)
{
    const dml__sample_norm o = dml__group_norm_of(groups, options);
    return dml__sample_norm_layer(dml__group_norm_op(), &o, x, dml__learns_weight(options),
                                  dml__learns_bias(options));
}

#endif
