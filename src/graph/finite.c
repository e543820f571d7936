#ifndef DML_GRAPH_FINITE_C
#define DML_GRAPH_FINITE_C

#include "graph/finite.h"

#include "graph/program_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define DML__READ_AT_ONCE 2048 /* floats, on the stack */

/* What is in a tensor. */
typedef struct dml__contents {
    size_t n, nans, infinities;
    size_t first;    /* of those that are looked for; n: none */
    float at_first;  /* its value */
    float low, high; /* of the finite ones; low > high: there are none */
} dml__contents;

/* Whether any is NaN or infinite: what is asked of all that is well, so without a branch an element. */
static bool dml__any_not_finite(const float *x, size_t n)
{
    float sums[8] = { 0, 0, 0, 0, 0, 0, 0, 0 };
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (size_t k = 0; k < 8; k++) sums[k] += x[i + k] * 0.0f; /* 0, or NaN for good */
    for (; i < n; i++) sums[0] += x[i] * 0.0f;
    for (int k = 1; k < 8; k++) sums[0] += sums[k];
    return sums[0] != 0.0f;
}

/* Elements from, from + 1, ... of the tensor: n of them, at x. */
static void dml__look_through(const float *x, size_t from, size_t n, bool infinities_too,
                              dml__contents *found)
{
    for (size_t i = 0; i < n; i++) {
        const bool nan = x[i] != x[i], infinite = !nan && !isfinite(x[i]);
        if ((nan || (infinite && infinities_too)) && found->first == found->n) {
            found->first = from + i;
            found->at_first = x[i];
        }
        found->nans += nan;
        found->infinities += infinite;
        if (nan || infinite) continue;
        if (x[i] < found->low) found->low = x[i];
        if (x[i] > found->high) found->high = x[i];
    }
}

static dml_status dml__find_contents(const dml__run *run, dml_ref ref, size_t n, dml__contents *found)
{
    const bool infinities_too = run->program->check == DML_CHECK_FINITE;
    float piece[DML__READ_AT_ONCE];
    memset(found, 0, sizeof *found);
    found->n = found->first = n;
    found->low = INFINITY;
    found->high = -INFINITY;
    if (run->device->host_memory) {
        dml__look_through((const float *)dml__host(ref), 0, n, infinities_too, found);
        return DML_OK;
    }
    for (size_t i = 0; i < n; i += DML__READ_AT_ONCE) {
        const size_t count = n - i < DML__READ_AT_ONCE ? n - i : DML__READ_AT_ONCE;
        const dml_ref from = { ref.buffer, ref.offset + i * sizeof(float) };
        const dml_status status = run->device->backend->read(run->device, piece, from, count * sizeof(float));
        if (status != DML_OK) return status;
        dml__look_through(piece, i, count, infinities_too, found);
    }
    return DML_OK;
}

/* "-1 .. 3", and what isn't finite beside it. */
static void dml__add_range(const dml__contents *found, char *text, size_t bytes)
{
    const size_t used = strlen(text);
    if (found->low <= found->high)
        snprintf(text + used, bytes - used, "%g .. %g", (double)found->low, (double)found->high);
    else
        snprintf(text + used, bytes - used, "nothing finite");
    const size_t so_far = strlen(text);
    if (found->nans || found->infinities)
        snprintf(text + so_far, bytes - so_far, " with %zu NaN and %zu infinite", found->nans,
                 found->infinities);
}

/* "; it was given 'image' 0 .. 1, 'conv2d_1.weight' -0.3 .. 0.2": what is still there. */
static dml_status dml__describe_given(const dml__run *run, const dml_node *node, bool backward, char *text,
                                      size_t bytes)
{
    const char *begin = "; it was given ";
    dml__contents found;
    dml_status status = DML_OK;
    text[0] = '\0';
    if (backward) {
        status = dml__find_contents(run, dml__gradient(run, node), dml__count(run, node), &found);
        snprintf(text, bytes, "%sits output's gradient ", begin);
        dml__add_range(&found, text, bytes);
        begin = ", ";
    }
    for (int i = 0; i < node->inputs && status == DML_OK; i++) {
        const dml_node *x = node->input[i];
        if (x->dtype != DML_F32) continue;
        if (backward && !(node->op->needs & DML__NEEDS_INPUT(i)) &&
            (x->op != dml__parameter_op() || run->program->ranks.use))
            continue;
        status = dml__find_contents(run, dml__value(run, x), dml__count(run, x), &found);
        const size_t used = strlen(text);
        snprintf(text + used, bytes - used, "%s'%.48s' ", begin, x->name);
        dml__add_range(&found, text, bytes);
        begin = ", ";
    }
    return status;
}

/* `of`: what was looked through, a node's value or gradient; `made` says whose doing it is. */
static dml_status dml__tell(const dml__run *run, const dml_node *of, const dml__contents *found,
                            const char *made, const char *given)
{
    const size_t each = dml_shape_count(&of->shape);
    char where[64];
    if (of->batched)
        snprintf(where, sizeof where, "element %zu of sample %zu", found->first % each, found->first / each);
    else
        snprintf(where, sizeof where, "element %zu", found->first);
    return dml__fail(run->error, DML_ERROR_NUMBER,
                     "%s %s at %s; of %zu elements %zu are NaN and %zu infinite%s", made,
                     found->at_first != found->at_first ? "NaN"
                     : found->at_first > 0              ? "inf"
                                                        : "-inf",
                     where, found->n, found->nans, found->infinities, given);
}

/* Looks closer only where something isn't finite, on a device that shares the host's memory. */
static dml_status dml__find_odd(const dml__run *run, dml_ref ref, size_t n, dml__contents *found)
{
    if (run->device->host_memory && !dml__any_not_finite((const float *)dml__host(ref), n)) {
        found->n = found->first = n;
        return DML_OK;
    }
    return dml__find_contents(run, ref, n, found);
}

DML__LOCAL dml_status dml__check_forward(const dml__run *run, const dml_node *node)
{
    dml__contents found;
    char made[256], given[400] = "";
    if (node->op->view || node->dtype != DML_F32) return DML_OK;
    /* What a strategy brings is here for the op that reads it. */
    if (node->op == dml__parameter_op() && run->program->ranks.use) return DML_OK;
    dml_status status = dml__find_odd(run, dml__value(run, node), dml__count(run, node), &found);
    if (status != DML_OK || found.first == found.n) return status;
    const bool leaf = node->inputs == 0;
    snprintf(made, sizeof made, "%s '%.128s' %s", node->op->name, node->name,
             leaf ? "holds" : "computed, going forward,");
    if (!leaf) status = dml__describe_given(run, node, false, given, sizeof given);
    return status == DML_OK ? dml__tell(run, node, &found, made, given) : status;
}

DML__LOCAL dml_status dml__check_backward(const dml__run *run, const dml_node *node)
{
    dml__contents found;
    char made[400], given[400];
    if (!node->op->backward || !run->program->slot[run->program->slot_of_node[node->index]].has_gradient)
        return DML_OK;
    for (int i = 0; i < node->inputs; i++) {
        const dml_node *x = node->input[i];
        if (!dml__wants_gradient(run, node, i)) continue;
        dml_status status = dml__find_odd(run, dml__gradient(run, x), dml__count(run, x), &found);
        if (status != DML_OK) return status;
        if (found.first == found.n) continue;
        snprintf(made, sizeof made, "%s '%.128s' computed, going backward, a gradient of '%.128s' with",
                 node->op->name, node->name, x->name);
        status = dml__describe_given(run, node, true, given, sizeof given);
        return status == DML_OK ? dml__tell(run, x, &found, made, given) : status;
    }
    return DML_OK;
}

#endif
