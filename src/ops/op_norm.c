#ifndef DML_OPS_OP_NORM_C
#define DML_OPS_OP_NORM_C

#include "ops/op_norm.h"

#include "graph/node.h"
#include "graph/op.h"
#include "graph/weights.h"
#include "ops/table.h"
#include "kernels/elementwise.h"
#include "kernels/norm.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { DML__NORM_X, DML__NORM_WEIGHT, DML__NORM_BIAS, DML__NORM_MEAN, DML__NORM_VARIANCE, DML__NORM_INPUTS };

/* What forward leaves for backward, and backward for itself, in rows of channels: the batch's mean and
   variance, the gradients of weight and bias. On a GPU also what dx is made of, and the sums of the parts
   that the rows are cut into. */
enum {
    DML__NORM_SAVED_MEAN,
    DML__NORM_SAVED_VARIANCE,
    DML__NORM_SAVED_DWEIGHT,
    DML__NORM_SAVED_DBIAS,
    DML__NORM_SAVED_ROWS,
    DML__NORM_SAVED_PARTS = DML__NORM_SAVED_ROWS + 4
};
#define DML__NORM_PART_ROWS ((size_t)64) /* the fewest of a part */

static dml_status dml__check_channel_parameter(const dml_node *node, int i, const char *what)
{
    const dml_node *x = node->input[DML__NORM_X], *p = node->input[i];
    const int channels = x->shape.dims[x->shape.ndim - 1];
    char text[DML_SHAPE_TEXT];
    if (p->dtype == DML_F32 && !p->batched && p->shape.ndim == 1 && p->shape.dims[0] == channels)
        return DML_OK;
    return dml__node_fail(node, DML_ERROR_SHAPE, "its %s is %s %s%s, it must be f32 %d: one for each channel",
                          what, dml_dtype_name(p->dtype), dml_shape_format(&p->shape, text),
                          p->batched ? " a sample" : "", channels);
}

static dml_status dml__batch_norm_infer(dml_node *node)
{
    static const char *const what[] = { "input", "weight", "bias", "running mean", "running variance" };
    const dml_batch_norm_options *o = (const dml_batch_norm_options *)node->attributes;
    const dml_node *x = node->input[DML__NORM_X];
    char text[DML_SHAPE_TEXT];
    dml_status status = DML_OK;
    if (x->dtype != DML_F32 || !x->batched || x->shape.ndim < 1)
        return dml__node_fail(node, DML_ERROR_SHAPE,
                              "its input is %s %s%s; it takes f32 samples whose last dimension is channels",
                              dml_dtype_name(x->dtype), dml_shape_format(&x->shape, text),
                              x->batched ? " a sample" : "");
    if (!(o->epsilon > 0 && o->epsilon <= 1e30f) || !(o->momentum > 0 && o->momentum <= 1))
        return dml__node_fail(
            node, DML_ERROR_ARGUMENT,
            "epsilon %g and momentum %g asked for; an epsilon is above 0, a momentum above 0 and at most 1",
            (double)o->epsilon, (double)o->momentum);
    for (int i = DML__NORM_WEIGHT; i < DML__NORM_INPUTS && status == DML_OK; i++)
        status = dml__check_channel_parameter(node, i, what[i]);
    if (status != DML_OK) return status;
    for (int i = DML__NORM_MEAN; i < DML__NORM_INPUTS; i++)
        if (node->input[i]->op != dml__parameter_op() || !node->input[i]->frozen)
            return dml__node_fail(node, DML_ERROR_ARGUMENT,
                                  "its %s '%s' is %s; it must be a parameter for which "
                                  "dml_parameter_train(parameter, false) was called",
                                  what[i], node->input[i]->name,
                                  node->input[i]->op == dml__parameter_op() ? "trained" : "computed");
    if (o->frozen && o->all_ranks)
        return dml__node_fail(node, DML_ERROR_ARGUMENT,
                              "frozen and all_ranks asked for; a frozen one has no statistics to share");
    node->over_ranks = o->all_ranks;
    for (int i = DML__NORM_MEAN; i < DML__NORM_INPUTS; i++) {
        node->input[i]->statistic = true;
        node->input[i]->kept = node->input[i]->kept || !o->frozen;
    }
    node->shape = x->shape;
    node->batched = true;
    return DML_OK;
}

static size_t dml__batch_norm_channels(const dml_node *node)
{
    return (size_t)node->shape.dims[node->shape.ndim - 1];
}

static size_t dml__batch_norm_rows(const dml__run *run, const dml_node *node)
{
    return dml__count(run, node) / dml__batch_norm_channels(node);
}

/* On a GPU the rows are cut into at most so many parts, fewer where many channels are groups enough. */
static size_t dml__batch_norm_most_parts(const dml_node *node)
{
    const size_t groups = (dml__batch_norm_channels(node) + 15) / 16;
    return groups < 16 ? 256 : groups < 64 ? 4096 / groups : 64;
}

static size_t dml__batch_norm_saved_bytes(const dml_node *node, int rows)
{
    const bool host = dml__node_context(node)->device.host_memory;
    (void)rows;
    return (host ? (size_t)DML__NORM_SAVED_ROWS
                 : DML__NORM_SAVED_PARTS + 2 * dml__batch_norm_most_parts(node)) *
           dml__batch_norm_channels(node) * sizeof(float);
}

static dml_ref dml__batch_norm_saved(const dml__run *run, const dml_node *node, int row)
{
    dml_ref ref = dml__saved(run, node);
    ref.offset += (size_t)row * dml__batch_norm_channels(node) * sizeof(float);
    return ref;
}

/* The statistics of this run: the batch's own, or the running ones. */
static bool dml__batch_norm_by_batch(const dml__run *run, const dml_node *node)
{
    return run->training && !((const dml_batch_norm_options *)node->attributes)->frozen;
}

static dml_ref dml__batch_norm_mean(const dml__run *run, const dml_node *node)
{
    return dml__batch_norm_by_batch(run, node) ? dml__batch_norm_saved(run, node, DML__NORM_SAVED_MEAN)
                                               : dml__value(run, node->input[DML__NORM_MEAN]);
}

static dml_ref dml__batch_norm_variance(const dml__run *run, const dml_node *node)
{
    return dml__batch_norm_by_batch(run, node) ? dml__batch_norm_saved(run, node, DML__NORM_SAVED_VARIANCE)
                                               : dml__value(run, node->input[DML__NORM_VARIANCE]);
}

/* On a GPU the rows are cut into parts, which depend on the shape alone. */
static size_t dml__batch_norm_part_rows(const dml__run *run, const dml_node *node)
{
    const size_t rows = dml__batch_norm_rows(run, node);
    const size_t most = dml__batch_norm_most_parts(node), part = rows / most + (rows % most != 0);
    return part > DML__NORM_PART_ROWS ? part : DML__NORM_PART_ROWS;
}

/* A launch with the ints rows, channels, rows of a part, parts, and epsilon. */
static dml_launch dml__batch_norm_launch(const dml__run *run, const dml_node *node, const char *kernel,
                                         size_t x, size_t y)
{
    const size_t rows = dml__batch_norm_rows(run, node), part = dml__batch_norm_part_rows(run, node);
    dml_launch launch = dml__launch(kernel, x, y);
    launch.integer[0] = (int32_t)rows;
    launch.integer[1] = (int32_t)dml__batch_norm_channels(node);
    launch.integer[2] = (int32_t)part;
    launch.integer[3] = (int32_t)((rows + part - 1) / part);
    launch.real[0] = ((const dml_batch_norm_options *)node->attributes)->epsilon;
    return launch;
}

static dml_normalization dml__batch_norm_here(const dml__run *run, const dml_node *node)
{
    const dml_normalization by = { (const float *)dml__host(dml__batch_norm_mean(run, node)),
                                   (const float *)dml__host(dml__batch_norm_variance(run, node)),
                                   dml__host_value(run, node->input[DML__NORM_WEIGHT]),
                                   dml__host_value(run, node->input[DML__NORM_BIAS]),
                                   ((const dml_batch_norm_options *)node->attributes)->epsilon,
                                   dml__ends_in_relu(run, node) ? DML_ACTIVATION_RELU : DML_ACTIVATION_NONE };
    return by;
}

/* ---- forward ---- */

/* The share of the batch's mean and of its variance in the running ones, and the factor that makes the
   variance an unbiased one: of a single number there is none. */
typedef struct dml__norm_shares {
    float mean, variance, unbiased;
} dml__norm_shares;

static dml__norm_shares dml__batch_norm_shares(const dml_node *node, size_t rows)
{
    const float momentum = ((const dml_batch_norm_options *)node->attributes)->momentum;
    const dml__norm_shares shares = { momentum, rows > 1 ? momentum : 0.0f,
                                      rows > 1 ? (float)((double)rows / (double)(rows - 1)) : 1.0f };
    return shares;
}

/* One moves towards the other by its share; the variance by its unbiased value. What isn't finite is of a
   step that a loss scale skips, or of one that is lost: the model outlives it. */
static void dml__batch_norm_move(const dml__norm_shares *shares, size_t channels, const float *mean,
                                 const float *variance, float *running_mean, float *running_variance)
{
    for (size_t c = 0; c < channels; c++) {
        const float unbiased = shares->unbiased * variance[c];
        if (!isfinite(mean[c]) || !isfinite(unbiased)) continue;
        running_mean[c] = (1 - shares->mean) * running_mean[c] + shares->mean * mean[c];
        running_variance[c] = (1 - shares->variance) * running_variance[c] + shares->variance * unbiased;
    }
}

static void dml__batch_norm_statistics_here(const dml__run *run, const dml_node *node)
{
    const size_t rows = dml__batch_norm_rows(run, node), channels = dml__batch_norm_channels(node);
    const dml__norm_shares shares = dml__batch_norm_shares(node, rows);
    float *mean = (float *)dml__host(dml__batch_norm_mean(run, node));
    float *variance = (float *)dml__host(dml__batch_norm_variance(run, node));
    float *running_mean = dml__host_value(run, node->input[DML__NORM_MEAN]);
    float *running_variance = dml__host_value(run, node->input[DML__NORM_VARIANCE]);
    dml_batch_statistics(run->pool, rows, channels, dml__host_value(run, node->input[DML__NORM_X]), mean,
                         variance);
    if (!dml__is_over_ranks(run, node))
        dml__batch_norm_move(&shares, channels, mean, variance, running_mean, running_variance);
}

static dml_status dml__batch_norm_statistics(const dml__run *run, const dml_node *node)
{
    if (run->device->host_memory) {
        dml__batch_norm_statistics_here(run, node);
        return DML_OK;
    }
    const size_t channels = dml__batch_norm_channels(node);
    const dml__norm_shares alone = dml__batch_norm_shares(node, dml__batch_norm_rows(run, node));
    const dml__norm_shares none = { 0, 0, 1 }, shares = dml__is_over_ranks(run, node) ? none : alone;
    const dml_ref parts = dml__batch_norm_saved(run, node, DML__NORM_SAVED_PARTS);
    dml_launch launch = dml__batch_norm_launch(run, node, "batch_norm_moments", channels, 0);
    launch.size[1] = (size_t)launch.integer[3];
    launch.buffer[0] = dml__value(run, node->input[DML__NORM_X]);
    launch.buffer[1] = parts;
    const dml_status status = dml__submit(run->device, &launch);
    if (status != DML_OK) return status;
    launch = dml__batch_norm_launch(run, node, "batch_norm_statistics", channels, 1);
    launch.buffer[0] = parts;
    launch.buffer[1] = dml__batch_norm_mean(run, node);
    launch.buffer[2] = dml__batch_norm_variance(run, node);
    launch.buffer[3] = dml__value(run, node->input[DML__NORM_MEAN]);
    launch.buffer[4] = dml__value(run, node->input[DML__NORM_VARIANCE]);
    launch.real[0] = shares.mean;
    launch.real[1] = shares.variance;
    launch.real[2] = shares.unbiased;
    return dml__submit(run->device, &launch);
}

/* Channels are shared with the other ranks so many at a time, on the stack. */
#define DML__NORM_SHARED ((size_t)256)

static dml_status dml__batch_norm_read(const dml__run *run, dml_ref from, size_t channel, size_t count,
                                       float *to)
{
    from.offset += channel * sizeof(float);
    return run->device->backend->read(run->device, to, from, count * sizeof(float));
}

static dml_status dml__batch_norm_write(const dml__run *run, dml_ref to, size_t channel, size_t count,
                                        const float *from)
{
    to.offset += channel * sizeof(float);
    return run->device->backend->write(run->device, to, from, count * sizeof(float));
}

/* What a rank has of `count` channels, and then all ranks have together: two sums of each, and the rows. */
typedef struct dml__norm_shared {
    size_t channel, count;
    float first[DML__NORM_SHARED], second[DML__NORM_SHARED];
    double sums[2 * DML__NORM_SHARED + 1];
} dml__norm_shared;

/* Zeros where there are no rows. */
static dml_status dml__batch_norm_take(const dml__run *run, const dml_node *node, dml_ref first,
                                       dml_ref second, dml__norm_shared *shared)
{
    const size_t rows = dml__batch_norm_rows(run, node);
    dml_status status = DML_OK;
    memset(shared->first, 0, sizeof shared->first);
    memset(shared->second, 0, sizeof shared->second);
    if (rows) status = dml__batch_norm_read(run, first, shared->channel, shared->count, shared->first);
    if (rows && status == DML_OK)
        status = dml__batch_norm_read(run, second, shared->channel, shared->count, shared->second);
    shared->sums[2 * shared->count] = (double)rows;
    return status;
}

/* The mean and variance of a channel on this rank become those of all rows: the sums of x and of its squares
   are in double, which keeps the digits that their difference loses. */
static dml_status dml__batch_norm_share_statistics_of(const dml__run *run, const dml_node *node,
                                                      dml__norm_shared *s)
{
    const dml_ref at[] = { dml__batch_norm_mean(run, node), dml__batch_norm_variance(run, node),
                           dml__value(run, node->input[DML__NORM_MEAN]),
                           dml__value(run, node->input[DML__NORM_VARIANCE]) };
    float running[2][DML__NORM_SHARED];
    double *sums = s->sums;
    dml_status status = dml__batch_norm_take(run, node, at[0], at[1], s);
    if (status != DML_OK) return status;
    const double rows = sums[2 * s->count];
    for (size_t c = 0; c < s->count; c++) {
        const double mean = (double)s->first[c];
        sums[c] = rows * mean;
        sums[s->count + c] = rows > 0 ? rows * ((double)s->second[c] + mean * mean) : 0;
    }
    status = dml__sum_over_ranks(run, sums, 2 * s->count + 1);
    const double all = sums[2 * s->count];
    if (status != DML_OK || !(all > 0)) return status;
    for (size_t c = 0; c < s->count; c++) {
        const double mean = sums[c] / all, variance = sums[s->count + c] / all - mean * mean;
        s->first[c] = (float)mean;
        s->second[c] = variance < 0 ? 0.0f : (float)variance;
    }
    for (int i = 0; i < 2 && status == DML_OK; i++)
        status = dml__batch_norm_read(run, at[2 + i], s->channel, s->count, running[i]);
    const dml__norm_shares shares = dml__batch_norm_shares(node, (size_t)all);
    if (status == DML_OK)
        dml__batch_norm_move(&shares, s->count, s->first, s->second, running[0], running[1]);
    const float *const values[] = { s->first, s->second, running[0], running[1] };
    for (int i = 0; i < 4 && status == DML_OK; i++)
        status = dml__batch_norm_write(run, at[i], s->channel, s->count, values[i]);
    return status;
}

static dml_status dml__batch_norm_share_statistics(const dml__run *run, const dml_node *node)
{
    const size_t channels = dml__batch_norm_channels(node);
    dml__norm_shared shared;
    dml_status status = DML_OK;
    for (size_t c = 0; c < channels && status == DML_OK; c += DML__NORM_SHARED) {
        shared.channel = c;
        shared.count = channels - c < DML__NORM_SHARED ? channels - c : DML__NORM_SHARED;
        status = dml__batch_norm_share_statistics_of(run, node, &shared);
    }
    return status;
}

static dml_status dml__batch_norm_op_forward(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[DML__NORM_X];
    const dml_node *weight = node->input[DML__NORM_WEIGHT], *bias = node->input[DML__NORM_BIAS];
    const dml_ref mean = dml__batch_norm_mean(run, node), variance = dml__batch_norm_variance(run, node);
    if (dml__batch_norm_by_batch(run, node)) {
        dml_status status = run->rows ? dml__batch_norm_statistics(run, node) : DML_OK;
        if (status == DML_OK && dml__is_over_ranks(run, node))
            status = dml__batch_norm_share_statistics(run, node);
        if (status != DML_OK || !run->rows) return status;
    }
    if (run->device->host_memory) {
        const dml_normalization by = dml__batch_norm_here(run, node);
        dml_batch_norm_forward(run->pool, dml__batch_norm_rows(run, node), dml__batch_norm_channels(node),
                               dml__host_value(run, x), &by, dml__host_value(run, node));
        return DML_OK;
    }
    dml_launch launch = dml__batch_norm_launch(run, node, "batch_norm_forward", dml__count(run, node), 1);
    launch.buffer[0] = dml__value(run, x);
    launch.buffer[1] = dml__value(run, weight);
    launch.buffer[2] = dml__value(run, bias);
    launch.buffer[3] = mean;
    launch.buffer[4] = variance;
    launch.buffer[5] = dml__value(run, node);
    return dml__submit(run->device, &launch);
}

/* ---- backward ---- */

/* The gradients of weight and bias, into the saved block: dx needs them as they are, w's may be added to. */
static dml_status dml__batch_norm_sums(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[DML__NORM_X];
    const size_t channels = dml__batch_norm_channels(node);
    const dml_ref mean = dml__batch_norm_mean(run, node), variance = dml__batch_norm_variance(run, node);
    const dml_ref dweight = dml__batch_norm_saved(run, node, DML__NORM_SAVED_DWEIGHT);
    const dml_ref dbias = dml__batch_norm_saved(run, node, DML__NORM_SAVED_DBIAS);
    if (run->device->host_memory) {
        const dml_normalization by = dml__batch_norm_here(run, node);
        dml_batch_norm_backward_parameters(run->pool, dml__batch_norm_rows(run, node), channels,
                                           dml__host_value(run, x), &by, dml__host_gradient(run, node),
                                           (float *)dml__host(dweight), (float *)dml__host(dbias));
        return DML_OK;
    }
    const dml_ref parts = dml__batch_norm_saved(run, node, DML__NORM_SAVED_PARTS);
    dml_launch launch = dml__batch_norm_launch(run, node, "batch_norm_products", channels, 0);
    launch.size[1] = (size_t)launch.integer[3];
    launch.buffer[0] = dml__value(run, x);
    launch.buffer[1] = dml__gradient(run, node);
    launch.buffer[2] = mean;
    launch.buffer[3] = parts;
    const dml_status status = dml__submit(run->device, &launch);
    if (status != DML_OK) return status;
    launch = dml__batch_norm_launch(run, node, "batch_norm_gradients", channels, 1);
    launch.buffer[0] = parts;
    launch.buffer[1] = dml__value(run, node->input[DML__NORM_WEIGHT]);
    launch.buffer[2] = mean;
    launch.buffer[3] = variance;
    launch.buffer[4] = dweight;
    launch.integer[4] = dml__batch_norm_by_batch(run, node);
    return dml__submit(run->device, &launch);
}

/* The gradient of weight or bias = what the saved block has + beta x what is there. */
static dml_status dml__batch_norm_parameter_gradient(const dml__run *run, const dml_node *node, int i,
                                                     int saved)
{
    const size_t channels = dml__batch_norm_channels(node);
    const dml_ref from = dml__batch_norm_saved(run, node, saved);
    const float beta = dml__beta(run, node, i);
    if (!dml__wants_gradient(run, node, i)) return DML_OK;
    if (run->device->host_memory) {
        dml_axpby(run->pool, channels, 1.0f, (const float *)dml__host(from), beta,
                  dml__host_gradient(run, node->input[i]));
        return DML_OK;
    }
    dml_launch launch = dml__launch("axpby", channels, 1);
    launch.buffer[0] = from;
    launch.buffer[1] = dml__gradient(run, node->input[i]);
    launch.integer[0] = (int32_t)channels;
    launch.real[0] = 1.0f;
    launch.real[1] = beta;
    return dml__submit(run->device, &launch);
}

static dml_status dml__batch_norm_input_gradient(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[DML__NORM_X];
    const float beta = dml__beta(run, node, DML__NORM_X);
    if (run->device->host_memory) {
        const bool flows = dml__batch_norm_by_batch(run, node);
        const dml_ref dweight = dml__batch_norm_saved(run, node, DML__NORM_SAVED_DWEIGHT);
        const dml_ref dbias = dml__batch_norm_saved(run, node, DML__NORM_SAVED_DBIAS);
        const dml_normalization by = dml__batch_norm_here(run, node);
        dml_batch_norm_backward_input(
            run->pool, dml__batch_norm_rows(run, node), dml__batch_norm_channels(node),
            dml__host_value(run, x), &by, dml__host_gradient(run, node),
            flows ? (const float *)dml__host(dweight) : NULL, flows ? (const float *)dml__host(dbias) : NULL,
            beta, dml__host_gradient(run, x));
        return DML_OK;
    }
    dml_launch launch = dml__batch_norm_launch(run, node, "batch_norm_backward", dml__count(run, node), 1);
    launch.buffer[0] = dml__value(run, x);
    launch.buffer[1] = dml__gradient(run, node);
    launch.buffer[2] = dml__batch_norm_saved(run, node, DML__NORM_SAVED_ROWS);
    launch.buffer[3] = dml__gradient(run, x);
    launch.real[0] = beta;
    return dml__submit(run->device, &launch);
}

/* What dx is made of, by the sums over all ranks' rows instead of this one's. Here dx takes the sums over its
   own rows, so it is given what they would be if these had the mean of all; on a GPU, the factors themselves.
 */
static dml_status dml__batch_norm_share_gradients_of(const dml__run *run, const dml_node *node,
                                                     dml__norm_shared *s)
{
    const bool here = run->device->host_memory;
    const dml_ref dweight = dml__batch_norm_saved(run, node, DML__NORM_SAVED_DWEIGHT);
    const dml_ref dbias = dml__batch_norm_saved(run, node, DML__NORM_SAVED_DBIAS);
    const float epsilon = ((const dml_batch_norm_options *)node->attributes)->epsilon;
    float factor[DML__NORM_SHARED], variance[DML__NORM_SHARED];
    double *sums = s->sums;
    dml_status status = dml__batch_norm_take(run, node, dweight, dbias, s);
    if (status != DML_OK) return status;
    for (size_t c = 0; c < s->count; c++) {
        sums[c] = (double)s->first[c];
        sums[s->count + c] = (double)s->second[c];
    }
    const double rows = sums[2 * s->count];
    status = dml__sum_over_ranks(run, sums, 2 * s->count + 1);
    if (status != DML_OK || !(rows > 0)) return status;
    if (!here)
        status = dml__batch_norm_read(run, dml__batch_norm_saved(run, node, DML__NORM_SAVED_ROWS + 1),
                                      s->channel, s->count, factor);
    if (!here && status == DML_OK)
        status =
            dml__batch_norm_read(run, dml__batch_norm_variance(run, node), s->channel, s->count, variance);
    if (status != DML_OK) return status;
    const double all = sums[2 * s->count];
    for (size_t c = 0; c < s->count; c++) {
        const double inverse = here ? 1 : 1 / sqrt((double)variance[c] + (double)epsilon);
        const double by = here ? rows : -(double)factor[c];
        s->first[c] = (float)(by * inverse * (sums[c] / all));
        s->second[c] = (float)(by * (sums[s->count + c] / all));
    }
    const int row = here ? DML__NORM_SAVED_DWEIGHT : DML__NORM_SAVED_ROWS + 2;
    status =
        dml__batch_norm_write(run, dml__batch_norm_saved(run, node, row), s->channel, s->count, s->first);
    return status != DML_OK ? status
                            : dml__batch_norm_write(run, dml__batch_norm_saved(run, node, row + 1),
                                                    s->channel, s->count, s->second);
}

static dml_status dml__batch_norm_share_gradients(const dml__run *run, const dml_node *node)
{
    const size_t channels = dml__batch_norm_channels(node);
    dml__norm_shared shared;
    dml_status status = DML_OK;
    for (size_t c = 0; c < channels && status == DML_OK; c += DML__NORM_SHARED) {
        shared.channel = c;
        shared.count = channels - c < DML__NORM_SHARED ? channels - c : DML__NORM_SHARED;
        status = dml__batch_norm_share_gradients_of(run, node, &shared);
    }
    return status;
}

static dml_status dml__batch_norm_op_backward(const dml__run *run, const dml_node *node)
{
    const bool flows = dml__wants_gradient(run, node, DML__NORM_X);
    dml_status status = run->rows ? dml__batch_norm_sums(run, node) : DML_OK;
    if (run->rows && status == DML_OK)
        status = dml__batch_norm_parameter_gradient(run, node, DML__NORM_WEIGHT, DML__NORM_SAVED_DWEIGHT);
    if (run->rows && status == DML_OK)
        status = dml__batch_norm_parameter_gradient(run, node, DML__NORM_BIAS, DML__NORM_SAVED_DBIAS);
    if (status == DML_OK && flows && dml__is_over_ranks(run, node))
        status = dml__batch_norm_share_gradients(run, node);
    if (run->rows && status == DML_OK && flows) status = dml__batch_norm_input_gradient(run, node);
    return status;
}

static void dml__batch_norm_describe(const dml_node *node, char *text, size_t bytes)
{
    const dml_batch_norm_options *o = (const dml_batch_norm_options *)node->attributes;
    if (o->frozen)
        snprintf(text, bytes, "epsilon %g, frozen", (double)o->epsilon);
    else
        snprintf(text, bytes, "epsilon %g, momentum %g%s", (double)o->epsilon, (double)o->momentum,
                 o->all_ranks ? ", over all ranks" : "");
}

static double dml__batch_norm_flops(const dml_node *node)
{
    return 4.0 * (double)dml_shape_count(&node->shape); /* what predicting takes */
}

DML__LOCAL const dml__op *dml__batch_norm_op(void)
{
    static const dml__op op = { "batch_norm",
                                dml__batch_norm_infer,
                                dml__batch_norm_op_forward,
                                dml__batch_norm_op_backward,
                                DML__NEEDS_INPUT(DML__NORM_X) | DML__NEEDS_INPUT(DML__NORM_WEIGHT) |
                                    DML__NEEDS_INPUT(DML__NORM_BIAS) | DML__TAKES_RELU |
                                    DML__TAKES_RELU_BACK | DML__NORMALIZES |
                                    DML__NO_GRADIENT(DML__NORM_MEAN) | DML__NO_GRADIENT(DML__NORM_VARIANCE),
                                dml__batch_norm_saved_bytes,
                                false,
                                true,
                                dml__batch_norm_describe,
                                dml__batch_norm_flops,
                                NULL };
    return &op;
}

DML_API dml_node *dml_batch_norm_with(dml_node *x, dml_node *weight, dml_node *bias, dml_node *running_mean,
                                      dml_node *running_var, const dml_batch_norm_options *options)
{
    dml_batch_norm_options o;
    memset(&o, 0, sizeof o);
    if (options) o = *options;
    if (o.epsilon == 0) o.epsilon = 1e-5f;
    if (o.momentum == 0) o.momentum = 0.1f;
    dml_node *const inputs[] = { x, weight, bias, running_mean, running_var };
    return dml__node_create(dml__batch_norm_op(), DML__NORM_INPUTS, inputs, &o, sizeof o);
}

DML_API dml_node *dml_batch_norm(dml_node *x, const dml_batch_norm_options *options)
{
    static const char *const part[] = { "weight", "bias", "running_mean", "running_var" };
    if (!x) return NULL;
    const int channels = x->shape.ndim ? x->shape.dims[x->shape.ndim - 1] : 1;
    dml_node *last = x->graph->last, *p[4];
    for (int i = 0; i < 4; i++) {
        p[i] =
            dml__layer_parameter(x->graph, dml__batch_norm_op(), part[i],
                                 dml_init_constant(i == 0 || i == 3 ? 1.0f : 0.0f), dml_shape_of(channels));
        if (p[i]) p[i]->frozen = i >= 2;
    }
    dml_node *layer = dml_batch_norm_with(x, p[0], p[1], p[2], p[3], options);
    if (!layer) dml__graph_drop_after(x->graph, last);
    return layer;
}

#endif
