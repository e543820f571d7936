#ifndef DML_OPS_OP_RECURRENT_C
#define DML_OPS_OP_RECURRENT_C

#include "ops/op_recurrent.h"

#include "graph/node.h"
#include "graph/op.h"
#include "kernels/recurrent_layout.h"
#include "ops/op_dropout.h"
#include "ops/op_recurrent_internal.h"
#include "ops/op_shape.h"
#include "ops/table.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- one layer in one direction ---- */

/* What the weights are beside what they must be. */
static dml_status dml__check_recurrent_weights(const dml_node *node)
{
    const dml__recurrent *o = dml__recurrent_of(node);
    const dml_node *x = node->input[0], *w_ih = node->input[1], *w_hh = node->input[2];
    const int gates = dml__cell_gates(o->cell), in = x->shape.dims[1];
    char ih_text[DML_SHAPE_TEXT], hh_text[DML_SHAPE_TEXT];
    const int units = w_hh->shape.ndim == 2 ? w_hh->shape.dims[1] : 0;
    bool fits = !w_ih->batched && !w_hh->batched && w_ih->dtype == DML_F32 && w_hh->dtype == DML_F32 &&
                w_ih->shape.ndim == 2 && units > 0 && w_hh->shape.dims[0] / gates == units &&
                w_hh->shape.dims[0] % gates == 0 && w_ih->shape.dims[0] == w_hh->shape.dims[0] &&
                w_ih->shape.dims[1] == in;
    if (!fits)
        return dml__node_fail(node, DML_ERROR_SHAPE,
                              "its weights are %s and %s; for an input of %d features they must be "
                              "%d hidden x %d and %d hidden x hidden",
                              dml_shape_format(&w_ih->shape, ih_text),
                              dml_shape_format(&w_hh->shape, hh_text), in, gates, in, gates);
    for (int b = o->b_ih; b && b <= o->b_hh; b++) {
        const dml_node *bias = node->input[b];
        if (!bias->batched && bias->dtype == DML_F32 && bias->shape.ndim == 1 &&
            bias->shape.dims[0] == gates * units)
            continue;
        return dml__node_fail(node, DML_ERROR_SHAPE, "its bias is %s%s, it must be %d",
                              dml_shape_format(&bias->shape, ih_text), bias->batched ? " a sample" : "",
                              gates * units);
    }
    return DML_OK;
}

static dml_status dml__recurrent_infer(dml_node *node)
{
    const dml__recurrent *o = dml__recurrent_of(node);
    const dml_node *x = node->input[0];
    char text[DML_SHAPE_TEXT];
    if (x->dtype != DML_F32 || !x->batched || x->shape.ndim != 2)
        return dml__node_fail(
            node, DML_ERROR_SHAPE,
            "its input is %s %s%s; it takes sequences of f32, steps x features, one for each sample",
            dml_dtype_name(x->dtype), dml_shape_format(&x->shape, text),
            x->batched ? "" : " for the whole batch");
    const dml_status status = dml__check_recurrent_weights(node);
    if (status != DML_OK) return status;
    const int steps = x->shape.dims[0], units = node->input[2]->shape.dims[1];
    for (int i = 0; i < 2; i++) {
        const dml_node *state = i ? (o->c0 ? node->input[o->c0] : NULL) : o->h0 ? node->input[o->h0] : NULL;
        if (state && (state->dtype != DML_F32 || state->shape.ndim != 1 || state->shape.dims[0] != units))
            return dml__node_fail(node, DML_ERROR_SHAPE, "its %s is %s %s, it must be f32 %d",
                                  i ? "c0" : "h0", dml_dtype_name(state->dtype),
                                  dml_shape_format(&state->shape, text), units);
    }
    if (o->lengths) {
        const dml_node *lengths = node->input[o->lengths];
        if (lengths->dtype != DML_I32 || !lengths->batched || lengths->shape.ndim != 0)
            return dml__node_fail(
                node, DML_ERROR_SHAPE,
                "its lengths are %s %s%s; they must be an input of i32, one number a sample",
                dml_dtype_name(lengths->dtype), dml_shape_format(&lengths->shape, text),
                lengths->batched ? "" : " for the whole batch");
        node->limit = steps < INT32_MAX ? steps + 1 : INT32_MAX;
    }
    if ((double)(steps + 2.0) * 4 * units > INT32_MAX)
        return dml__node_fail(node, DML_ERROR_SHAPE, "the gates of %d steps x %d are more than %d", steps,
                              units, INT32_MAX);
    node->batched = true;
    node->shape.ndim = 2;
    node->shape.dims[0] = (o->sequence ? steps : 0) + o->states;
    node->shape.dims[1] = units;
    if (o->sequence || o->states > 1) return DML_OK;
    node->shape.ndim = 1;
    node->shape.dims[0] = units;
    node->shape.dims[1] = 0;
    return DML_OK;
}

DML__LOCAL dml_recurrent_shape dml__recurrent_shape_of(const dml_node *node, int batch)
{
    const dml__recurrent *o = dml__recurrent_of(node);
    const dml_node *x = node->input[0];
    const dml_recurrent_shape shape = { o->cell,          o->reverse,       batch,
                                        x->shape.dims[0], x->shape.dims[1], node->input[2]->shape.dims[1] };
    return shape;
}

static size_t dml__recurrent_saved_bytes(const dml_node *node, int rows)
{
    const dml_recurrent_shape shape = dml__recurrent_shape_of(node, rows);
    const size_t floats = dml_recurrent_work(&shape);
    return floats < SIZE_MAX / 8 ? floats * sizeof(float) : SIZE_MAX / 2;
}

static dml_scratch dml__recurrent_op_scratch(const dml_node *node, int rows, bool training)
{
    const dml_recurrent_shape shape = dml__recurrent_shape_of(node, rows);
    return dml_recurrent_scratch(&shape, training);
}

static dml_status dml__check_recurrent_rows(const dml__run *run, const dml_node *node)
{
    const int steps = node->input[0]->shape.dims[0];
    if (run->rows <= INT32_MAX / steps) return DML_OK;
    return dml__fail(run->error, DML_ERROR_UNSUPPORTED,
                     "%s '%s': products of %d x %d rows; they count to %d: use smaller batches",
                     node->op->name, node->name, run->rows, steps, INT32_MAX);
}

/* ---- on the CPU ---- */

static const float *dml__optional_value(const dml__run *run, const dml_node *node, int input)
{
    return input ? dml__host_value(run, node->input[input]) : NULL;
}

/* Floats from a sample's initial state to the next: 0 for a state that is the same for all. */
DML__LOCAL size_t dml__initial_step(const dml_node *node, int input)
{
    return input && node->input[input]->batched ? (size_t)node->input[2]->shape.dims[1] : 0;
}

static dml_recurrent_arrays dml__recurrent_arrays_of(const dml__run *run, const dml_node *node)
{
    const dml__recurrent *o = dml__recurrent_of(node);
    const size_t units = (size_t)node->input[2]->shape.dims[1];
    dml_recurrent_arrays at;
    at.x = dml__host_value(run, node->input[0]);
    at.w_ih = dml__host_value(run, node->input[1]);
    at.w_hh = dml__host_value(run, node->input[2]);
    at.b_ih = dml__optional_value(run, node, o->b_ih);
    at.b_hh = dml__optional_value(run, node, o->b_hh);
    at.h0 = dml__optional_value(run, node, o->h0);
    at.c0 = dml__optional_value(run, node, o->c0);
    at.h0_step = dml__initial_step(node, o->h0);
    at.c0_step = dml__initial_step(node, o->c0);
    at.lengths = o->lengths ? (const int32_t *)dml__host(dml__value(run, node->input[o->lengths])) : NULL;
    float *out = dml__host_value(run, node), *states = out;
    if (o->sequence) states += (size_t)node->input[0]->shape.dims[0] * units;
    at.y = o->sequence ? out : NULL;
    at.h_n = o->states > 0 ? states : NULL;
    at.c_n = o->states > 1 ? states + units : NULL;
    at.y_step = at.n_step = dml_shape_count(&node->shape);
    at.work = (float *)dml__host(dml__saved(run, node));
    return at;
}

static float *dml__wanted_gradient(const dml__run *run, const dml_node *node, int input, float *beta)
{
    if (input < 0 || !dml__wants_gradient(run, node, input)) return NULL;
    *beta = dml__beta(run, node, input);
    return dml__host_gradient(run, node->input[input]);
}

static dml_recurrent_gradients dml__recurrent_gradients_of(const dml__run *run, const dml_node *node)
{
    const dml__recurrent *o = dml__recurrent_of(node);
    const size_t units = (size_t)node->input[2]->shape.dims[1];
    dml_recurrent_gradients to;
    memset(&to, 0, sizeof to);
    const float *out = dml__host_gradient(run, node), *states = out;
    if (o->sequence) states += (size_t)node->input[0]->shape.dims[0] * units;
    to.dy = o->sequence ? out : NULL;
    to.dh_n = o->states > 0 ? states : NULL;
    to.dc_n = o->states > 1 ? states + units : NULL;
    to.dx = dml__wanted_gradient(run, node, 0, &to.beta.x);
    to.dw_ih = dml__wanted_gradient(run, node, 1, &to.beta.w_ih);
    to.dw_hh = dml__wanted_gradient(run, node, 2, &to.beta.w_hh);
    to.db_ih = dml__wanted_gradient(run, node, o->b_ih ? o->b_ih : -1, &to.beta.b_ih);
    to.db_hh = dml__wanted_gradient(run, node, o->b_hh ? o->b_hh : -1, &to.beta.b_hh);
    to.dh0 = dml__wanted_gradient(run, node, o->h0 ? o->h0 : -1, &to.beta.h0);
    to.dc0 = dml__wanted_gradient(run, node, o->c0 ? o->c0 : -1, &to.beta.c0);
    return to;
}

/* ---- the ops ---- */

static dml_status dml__recurrent_op_forward(const dml__run *run, const dml_node *node)
{
    const dml_status status = dml__check_recurrent_rows(run, node);
    if (status != DML_OK) return status;
    if (!run->device->host_memory) return dml__recurrent_gpu_forward(run, node);
    const dml_recurrent_shape shape = dml__recurrent_shape_of(node, run->rows);
    const dml_recurrent_arrays arrays = dml__recurrent_arrays_of(run, node);
    dml_recurrent_forward(run->pool, &shape, &arrays);
    return DML_OK;
}

static dml_status dml__recurrent_op_backward(const dml__run *run, const dml_node *node)
{
    if (!run->device->host_memory) return dml__recurrent_gpu_backward(run, node);
    const dml_recurrent_shape shape = dml__recurrent_shape_of(node, run->rows);
    const dml_recurrent_arrays arrays = dml__recurrent_arrays_of(run, node);
    const dml_recurrent_gradients gradients = dml__recurrent_gradients_of(run, node);
    dml_recurrent_backward(run->pool, &shape, &arrays, &gradients);
    return DML_OK;
}

static void dml__recurrent_describe(const dml_node *node, char *text, size_t bytes)
{
    const dml__recurrent *o = dml__recurrent_of(node);
    snprintf(text, bytes, "hidden %d%s%s%s%s%s", node->input[2]->shape.dims[1],
             o->cell == DML_CELL_RELU ? ", relu" : "", o->reverse ? ", reverse" : "",
             o->lengths ? ", lengths" : "", o->h0 || o->c0 ? ", from given states" : "",
             o->sequence ? "" : ", last state");
}

static double dml__recurrent_flops(const dml_node *node)
{
    const dml_shape *ih = &node->input[1]->shape, *hh = &node->input[2]->shape;
    const double gates = ih->dims[0], cells = dml__recurrent_of(node)->cell == DML_CELL_LSTM ? 5 : 3;
    return (double)node->input[0]->shape.dims[0] *
           (2 * gates * (ih->dims[1] + hh->dims[1]) + 2 * gates + cells * hh->dims[1]);
}

#define DML__RECURRENT_OP(name)                                                                              \
    DML__LOCAL const dml__op *dml__##name##_op(void)                                                         \
    {                                                                                                        \
        static const dml__op op = { #name,                                                                   \
                                    dml__recurrent_infer,                                                    \
                                    dml__recurrent_op_forward,                                               \
                                    dml__recurrent_op_backward,                                              \
                                    DML__NEEDS_INPUTS,                                                       \
                                    dml__recurrent_saved_bytes,                                              \
                                    false,                                                                   \
                                    false,                                                                   \
                                    dml__recurrent_describe,                                                 \
                                    dml__recurrent_flops,                                                    \
                                    dml__recurrent_op_scratch };                                             \
        return &op;                                                                                          \
    }
DML__RECURRENT_OP(rnn)
DML__RECURRENT_OP(lstm)
DML__RECURRENT_OP(gru)
#undef DML__RECURRENT_OP

/* ---- building ---- */

typedef struct dml__recurrent_parameters {
    dml_node *w_ih, *w_hh, *b_ih, *b_hh;
} dml__recurrent_parameters;

/* What is built, layer by layer; each state a node (1, hidden). */
#define DML__RECURRENT_MOST 64 /* layers x directions */
typedef struct dml__recurrent_build {
    const dml__op *op;
    dml_cell cell;
    dml_recurrent_options options;
    int directions;
    dml_node *h_n[DML__RECURRENT_MOST], *c_n[DML__RECURRENT_MOST];
} dml__recurrent_build;

static const dml__op *dml__cell_op(dml_cell cell)
{
    return cell == DML_CELL_LSTM ? dml__lstm_op() : cell == DML_CELL_GRU ? dml__gru_op() : dml__rnn_op();
}

/* The options with what zeros stand for; a refusal, with the error recorded, is a NULL op. */
static dml__recurrent_build dml__begin_recurrent(const dml_node *x, dml_cell cell,
                                                 const dml_recurrent_options *options)
{
    dml__recurrent_build build;
    memset(&build, 0, sizeof build);
    if (options) build.options = *options;
    dml_recurrent_options *o = &build.options;
    if (o->h_n) *o->h_n = NULL;
    if (o->c_n) *o->c_n = NULL;
    if (!x) return build;
    const dml__op *op = dml__cell_op(cell);
    if (o->layers == 0) o->layers = 1;
    build.directions = o->bidirectional ? 2 : 1;
    build.cell = cell == DML_CELL_TANH && o->relu ? DML_CELL_RELU : cell;
    const char *wrong = NULL;
    if (o->bidirectional && o->reverse)
        wrong = "it is to run in both directions and in reverse alone: one of the two";
    else if (o->relu && cell != DML_CELL_TANH)
        wrong = "relu asked for: its functions are its own, relu is for dml_rnn";
    else if (!(o->dropout >= 0 && o->dropout < 1))
        wrong = "its dropout must be 0 or more and below 1";
    else if (o->dropout > 0 && o->layers == 1)
        wrong = "dropout asked for, which lies between layers, of one layer";
    else if (cell != DML_CELL_LSTM && (o->c0 || o->c_n))
        wrong = "c0 or c_n asked for, but only an lstm has a state c";
    dml__error *error = &dml__node_context(x)->error;
    if (o->layers < 0 || o->layers > DML__RECURRENT_MOST / build.directions)
        dml__fail(error, DML_ERROR_ARGUMENT, "%s: %d layers asked for, 1 to %d are possible", op->name,
                  o->layers, DML__RECURRENT_MOST / build.directions);
    else if (wrong)
        dml__fail(error, DML_ERROR_ARGUMENT, "%s: %s", op->name, wrong);
    else
        build.op = op;
    return build;
}

/* Which of the given initial states is that of the i-th layer and direction. False when they don't fit. */
static bool dml__initial_of(const dml__recurrent_build *build, dml_node *all, const char *what, int i,
                            int hidden, dml_node **state)
{
    const int count = build->options.layers * build->directions;
    char text[DML_SHAPE_TEXT];
    *state = NULL;
    if (!all) return true;
    *state = all;
    if (count == 1 && all->shape.ndim == 1) return true; /* the op looks at the rest */
    if (all->shape.ndim == 2 && all->shape.dims[0] == count && all->shape.dims[1] == hidden) {
        *state = dml_reshape(count == 1 ? all : dml_slice(all, 0, i, i + 1), dml_shape_of(hidden));
        return *state != NULL;
    }
    dml__fail(&dml__node_context(all)->error, DML_ERROR_SHAPE,
              "%s: its %s '%s' is %s; for %d layers in %d directions it must be %d x %d", build->op->name,
              what, all->name, dml_shape_format(&all->shape, text), build->options.layers, build->directions,
              count, hidden);
    return false;
}

/* Layer and direction number i. What it gives out, (steps, hidden) or (hidden). */
static dml_node *dml__build_direction(dml__recurrent_build *build, dml_node *x, int i, bool last,
                                      const dml__recurrent_parameters *p)
{
    const dml_recurrent_options *o = &build->options;
    dml_node *input[DML__MAX_INPUTS] = { x, p->w_ih, p->w_hh };
    const bool last_only = last && o->last_only;
    const int hidden = p->w_hh && p->w_hh->shape.ndim == 2 ? p->w_hh->shape.dims[1] : 0;
    dml__recurrent op;
    dml_node *h0, *c0;
    int inputs = 3;
    memset(&op, 0, sizeof op);
    if (!dml__initial_of(build, o->h0, "h0", i, hidden, &h0) ||
        !dml__initial_of(build, o->c0, "c0", i, hidden, &c0))
        return NULL;
    op.cell = build->cell;
    op.reverse = o->reverse || i % build->directions == 1;
    op.sequence = !last_only;
    op.states = o->c_n ? 2 : o->h_n || last_only ? 1 : 0;
    if (p->b_ih) {
        input[op.b_ih = inputs++] = p->b_ih;
        input[op.b_hh = inputs++] = p->b_hh;
    }
    if (h0) input[op.h0 = inputs++] = h0;
    if (c0) input[op.c0 = inputs++] = c0;
    if (o->lengths) input[op.lengths = inputs++] = o->lengths;
    dml_node *y = dml__node_create(build->op, inputs, input, &op, sizeof op);
    if (!y || op.states == 0 || y->shape.ndim == 1) {
        build->h_n[i] = y;
        return y;
    }
    const int steps = last_only ? 0 : x->shape.dims[0];
    build->h_n[i] = dml_slice(y, 0, steps, steps + 1);
    if (op.states > 1) build->c_n[i] = dml_slice(y, 0, steps + 1, steps + 2);
    return last_only ? dml_reshape(build->h_n[i], dml_shape_of(hidden)) : dml_slice(y, 0, 0, steps);
}

/* All layers' states as one node (layers directions, hidden). */
static bool dml__give_states(const dml__recurrent_build *build, dml_node *const *states, dml_node **to)
{
    const int count = build->options.layers * build->directions;
    dml_node *rows[DML__RECURRENT_MOST];
    if (!to) return true;
    for (int i = 0; i < count; i++) {
        rows[i] = states[i];
        if (rows[i] && rows[i]->shape.ndim == 1)
            rows[i] = dml_reshape(rows[i], dml_shape_of(1, rows[i]->shape.dims[0]));
        if (!rows[i]) return false;
    }
    *to = count == 1 ? rows[0] : dml_concat(rows, count, 0);
    return *to != NULL;
}

/* `parameters` in the order of the layers, and of their directions. */
static dml_node *dml__build_recurrent(dml__recurrent_build *build, dml_node *x,
                                      const dml__recurrent_parameters *parameters)
{
    const dml_recurrent_options *o = &build->options;
    for (int layer = 0; layer < o->layers; layer++) {
        const bool last = layer == o->layers - 1;
        dml_node *out[2] = { NULL, NULL };
        for (int d = 0; d < build->directions; d++) {
            const int i = layer * build->directions + d;
            out[d] = dml__build_direction(build, x, i, last, &parameters[i]);
            if (!out[d]) return NULL;
        }
        x = build->directions == 2 ? dml_concat(out, 2, -1) : out[0];
        if (!last && o->dropout > 0) x = dml_dropout(x, o->dropout);
    }
    if (dml__give_states(build, build->h_n, o->h_n) && dml__give_states(build, build->c_n, o->c_n)) return x;
    if (o->h_n) *o->h_n = NULL; /* the caller drops it */
    return NULL;
}

static dml_node *dml__recurrent_layer(dml_node *x, int hidden, dml_cell cell,
                                      const dml_recurrent_options *options)
{
    dml__recurrent_build build = dml__begin_recurrent(x, cell, options);
    if (!build.op) return NULL;
    const int gates = dml__cell_gates(cell);
    if (hidden < 1 || hidden > INT32_MAX / gates) {
        dml__fail(&dml__node_context(x)->error, DML_ERROR_ARGUMENT,
                  "%s: %d hidden units asked for, it takes 1 or more", build.op->name, hidden);
        return NULL;
    }
    const float bound = 1 / sqrtf((float)hidden);
    const dml_initializer init = dml_init_uniform(-bound, bound);
    dml__recurrent_parameters parameters[DML__RECURRENT_MOST];
    dml_node *last = x->graph->last;
    bool made = true;
    int in = x->shape.ndim ? x->shape.dims[x->shape.ndim - 1] : 1;
    memset(parameters, 0, sizeof parameters);
    for (int i = 0; made && i < build.options.layers * build.directions; i++) {
        dml__recurrent_parameters *p = &parameters[i];
        dml_node **const part[] = { &p->w_ih, &p->w_hh, &p->b_ih, &p->b_hh };
        static const char *const names[] = { "weight_ih", "weight_hh", "bias_ih", "bias_hh" };
        const int layer = i / build.directions, rows = gates * hidden;
        if (i == build.directions) in = hidden * build.directions;
        for (int k = 0; made && k < (build.options.no_bias ? 2 : 4); k++) {
            char name[64];
            snprintf(name, sizeof name, "%s_l%d%s", names[k], layer, i % build.directions ? "_reverse" : "");
            *part[k] =
                dml__layer_parameter(x->graph, build.op, name, init,
                                     k >= 2 ? dml_shape_of(rows) : dml_shape_of(rows, k ? hidden : in));
            made = *part[k] != NULL;
        }
    }
    dml_node *layer = made ? dml__build_recurrent(&build, x, parameters) : NULL;
    if (!layer) dml__graph_drop_after(x->graph, last);
    return layer;
}

static dml_node *dml__recurrent_with(dml_node *x, dml_node *w_ih, dml_node *w_hh, dml_node *b_ih,
                                     dml_node *b_hh, dml_cell cell, const dml_recurrent_options *options)
{
    const dml__recurrent_parameters parameters = { w_ih, w_hh, b_ih, b_hh };
    dml__recurrent_build build = dml__begin_recurrent(x, cell, options);
    if (!build.op) return NULL;
    const char *wrong = NULL;
    if (build.options.layers * build.directions > 1)
        wrong = "several layers or directions asked for, but parameters for one are given";
    else if (!b_ih != !b_hh)
        wrong = "one bias is given; it takes two or none";
    if (wrong) {
        dml__fail(&dml__node_context(x)->error, DML_ERROR_ARGUMENT, "%s: %s", build.op->name, wrong);
        return NULL;
    }
    dml_node *last = x->graph->last, *layer = dml__build_recurrent(&build, x, &parameters);
    if (!layer) dml__graph_drop_after(x->graph, last);
    return layer;
}

DML_API dml_node *dml_rnn(dml_node *x, int hidden, const dml_recurrent_options *options)
{
    return dml__recurrent_layer(x, hidden, DML_CELL_TANH, options);
}

DML_API dml_node *dml_lstm(dml_node *x, int hidden, const dml_recurrent_options *options)
{
    return dml__recurrent_layer(x, hidden, DML_CELL_LSTM, options);
}

DML_API dml_node *dml_gru(dml_node *x, int hidden, const dml_recurrent_options *options)
{
    return dml__recurrent_layer(x, hidden, DML_CELL_GRU, options);
}

DML_API dml_node *dml_rnn_with(dml_node *x, dml_node *w_ih, dml_node *w_hh, dml_node *b_ih, dml_node *b_hh,
                               const dml_recurrent_options *options)
{
    return dml__recurrent_with(x, w_ih, w_hh, b_ih, b_hh, DML_CELL_TANH, options);
}

DML_API dml_node *dml_lstm_with(dml_node *x, dml_node *w_ih, dml_node *w_hh, dml_node *b_ih, dml_node *b_hh,
                                const dml_recurrent_options *options)
{
    return dml__recurrent_with(x, w_ih, w_hh, b_ih, b_hh, DML_CELL_LSTM, options);
}

DML_API dml_node *dml_gru_with(dml_node *x, dml_node *w_ih, dml_node *w_hh, dml_node *b_ih, dml_node *b_hh,
                               const dml_recurrent_options *options)
{
    return dml__recurrent_with(x, w_ih, w_hh, b_ih, b_hh, DML_CELL_GRU, options);
}

#endif
