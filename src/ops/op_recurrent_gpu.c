#ifndef DML_OPS_OP_RECURRENT_GPU_C
#define DML_OPS_OP_RECURRENT_GPU_C

#include "ops/op_recurrent_internal.h"

#include "graph/op.h"
#include "kernels/recurrent_layout.h"

#include <string.h>

typedef struct dml__recurrent_gpu {
    const dml__run *run;
    const dml_node *node;
    const dml__recurrent *o;
    dml_recurrent_shape shape;
    dml__recurrent_layout place;
    dml_status status; /* of the first launch that failed; later ones aren't made */
} dml__recurrent_gpu;

static dml__recurrent_gpu dml__recurrent_gpu_of(const dml__run *run, const dml_node *node)
{
    dml__recurrent_gpu gpu;
    gpu.run = run;
    gpu.node = node;
    gpu.o = dml__recurrent_of(node);
    gpu.shape = dml__recurrent_shape_of(node, run->rows);
    gpu.place = dml__recurrent_lay_out(&gpu.shape, false);
    gpu.status = DML_OK;
    return gpu;
}

static dml_ref dml__ref_at(dml_ref ref, size_t floats)
{
    ref.offset += floats * sizeof(float);
    return ref;
}

static dml_ref dml__work_at(const dml__recurrent_gpu *gpu, size_t floats)
{
    return dml__ref_at(dml__saved(gpu->run, gpu->node), floats);
}

static void dml__recurrent_submit(dml__recurrent_gpu *gpu, const dml_launch *launch)
{
    if (gpu->status == DML_OK) gpu->status = dml__submit(gpu->run->device, launch);
}

/* c (m, n) = op(a) op(b) + beta c */
static void dml__recurrent_gemm(dml__recurrent_gpu *gpu, bool trans_a, bool trans_b, size_t m, size_t n,
                                size_t k, dml_ref a, size_t lda, dml_ref b, size_t ldb, float beta, dml_ref c,
                                size_t ldc)
{
    dml_launch launch = dml__launch("gemm", n, m);
    const int32_t integers[] = { (int32_t)m, (int32_t)n,   (int32_t)k,   trans_a,
                                 trans_b,    (int32_t)lda, (int32_t)ldb, (int32_t)ldc };
    for (int i = 0; i < 8; i++) launch.integer[i] = integers[i];
    launch.buffer[0] = a;
    launch.buffer[1] = b;
    launch.buffer[2] = c;
    launch.real[0] = 1.0f;
    launch.real[1] = beta;
    dml__recurrent_submit(gpu, &launch);
}

/* Rows of units; zeros of no buffer. */
static void dml__recurrent_copy(dml__recurrent_gpu *gpu, dml_ref from, size_t from_step, dml_ref to,
                                size_t to_step)
{
    const size_t batch = (size_t)gpu->shape.batch, units = (size_t)gpu->shape.units;
    dml_launch launch = dml__launch("recurrent_copy", batch * units, 1);
    launch.buffer[0] = from;
    launch.buffer[1] = to;
    launch.integer[0] = (int32_t)batch;
    launch.integer[1] = (int32_t)units;
    launch.integer[2] = (int32_t)from_step;
    launch.integer[3] = (int32_t)to_step;
    dml__recurrent_submit(gpu, &launch);
}

static dml_ref dml__no_ref(void)
{
    const dml_ref none = { NULL, 0 };
    return none;
}

/* Between a state in the work, (batch, units), and where it lies in the node's output or its gradient. */
static void dml__recurrent_state(dml__recurrent_gpu *gpu, int state, dml_ref work, dml_ref out,
                                 bool given_out)
{
    const size_t units = (size_t)gpu->shape.units, row = dml_shape_count(&gpu->node->shape);
    if (state >= gpu->o->states) {
        if (!given_out) dml__recurrent_copy(gpu, dml__no_ref(), 0, work, units);
        return;
    }
    out = dml__ref_at(out, ((gpu->o->sequence ? (size_t)gpu->shape.steps : 0) + (size_t)state) * units);
    if (given_out)
        dml__recurrent_copy(gpu, work, units, out, row);
    else
        dml__recurrent_copy(gpu, out, row, work, units);
}

static dml_ref dml__optional_ref(const dml__recurrent_gpu *gpu, int input)
{
    return input ? dml__value(gpu->run, gpu->node->input[input]) : dml__no_ref();
}

/* What both passes' kernels of a step have in common; which step is the s-th. */
static dml_launch dml__step_launch(const dml__recurrent_gpu *gpu, const char *kernel, int s, dml_ref y)
{
    const dml_recurrent_shape *shape = &gpu->shape;
    const int step = shape->reverse ? shape->steps - 1 - s : s;
    dml_launch launch = dml__launch(kernel, (size_t)shape->batch * (size_t)shape->units, 1);
    launch.buffer[0] = dml__work_at(gpu, gpu->place.gates);
    launch.buffer[1] = dml__work_at(gpu, gpu->place.h);
    if (gpu->o->sequence) launch.buffer[2] = y;
    launch.buffer[3] = dml__optional_ref(gpu, gpu->o->lengths);
    launch.integer[0] = (int32_t)shape->cell;
    launch.integer[1] = shape->batch;
    launch.integer[2] = shape->steps;
    launch.integer[3] = shape->units;
    launch.integer[4] = step;
    launch.integer[5] = shape->reverse ? step - 1 : step + 1;
    launch.integer[6] = (int32_t)dml_shape_count(&gpu->node->shape);
    return launch;
}

DML__LOCAL dml_status dml__recurrent_gpu_forward(const dml__run *run, const dml_node *node)
{
    dml__recurrent_gpu gpu = dml__recurrent_gpu_of(run, node);
    const dml__recurrent_layout *place = &gpu.place;
    const size_t units = (size_t)gpu.shape.units, steps = (size_t)gpu.shape.steps;
    const size_t inputs = (size_t)gpu.shape.inputs, rows = (size_t)gpu.shape.batch * steps;
    const dml_ref out = dml__value(run, node);
    dml__gate_part parts[2];
    const int count = dml__gate_parts(&gpu.shape, parts);
    if (gpu.shape.cell == DML_CELL_GRU) /* what the state's product is added to */
        gpu.status = run->device->backend->zero(run->device, dml__work_at(&gpu, place->gates),
                                                rows * place->width * sizeof(float));
    for (int p = 0; p < count; p++)
        dml__recurrent_gemm(&gpu, false, true, rows, parts[p].rows, inputs, dml__value(run, node->input[0]),
                            inputs, dml__ref_at(dml__value(run, node->input[1]), parts[p].row * inputs),
                            inputs, 0, dml__work_at(&gpu, place->gates + parts[p].column), place->width);
    const size_t first = gpu.shape.reverse ? (steps - 1) * units : 0;
    dml__recurrent_copy(&gpu, dml__optional_ref(&gpu, gpu.o->h0), dml__initial_step(node, gpu.o->h0),
                        dml__work_at(&gpu, place->h + first), steps * units);
    if (gpu.shape.cell == DML_CELL_LSTM)
        dml__recurrent_copy(&gpu, dml__optional_ref(&gpu, gpu.o->c0), dml__initial_step(node, gpu.o->c0),
                            dml__work_at(&gpu, place->c + first), steps * units);
    for (int s = 0; s < gpu.shape.steps; s++) {
        dml_launch launch = dml__step_launch(&gpu, "recurrent_forward", s, out);
        const size_t step = (size_t)launch.integer[4];
        dml__recurrent_gemm(&gpu, false, true, (size_t)gpu.shape.batch, place->gate_n, units,
                            dml__work_at(&gpu, place->h + step * units), steps * units,
                            dml__value(run, node->input[2]), units, 1,
                            dml__work_at(&gpu, place->gates + step * place->width + place->by_h),
                            steps * place->width);
        launch.buffer[4] = dml__optional_ref(&gpu, gpu.o->b_ih);
        launch.buffer[5] = dml__optional_ref(&gpu, gpu.o->b_hh);
        dml__recurrent_submit(&gpu, &launch);
    }
    dml__recurrent_state(&gpu, 0, dml__work_at(&gpu, place->h_last), out, true);
    dml__recurrent_state(&gpu, 1, dml__work_at(&gpu, place->c_last), out, true);
    return gpu.status;
}

/* The gradient of input i + beta x what is there, of n floats. */
static void dml__recurrent_axpby(dml__recurrent_gpu *gpu, int i, dml_ref from, size_t n, size_t at)
{
    dml_launch launch = dml__launch("axpby", n, 1);
    launch.buffer[0] = from;
    launch.buffer[1] = dml__ref_at(dml__gradient(gpu->run, gpu->node->input[i]), at);
    launch.integer[0] = (int32_t)n;
    launch.real[0] = 1.0f;
    launch.real[1] = dml__beta(gpu->run, gpu->node, i);
    dml__recurrent_submit(gpu, &launch);
}

static void dml__recurrent_sum_rows(dml__recurrent_gpu *gpu, size_t rows, size_t columns, dml_ref from,
                                    float beta, dml_ref to)
{
    dml_launch launch = dml__launch("sum_rows", columns, 1);
    launch.buffer[0] = from;
    launch.buffer[1] = to;
    launch.integer[0] = (int32_t)rows;
    launch.integer[1] = (int32_t)columns;
    launch.integer[2] = 1;
    launch.real[0] = beta;
    dml__recurrent_submit(gpu, &launch);
}

/* Of an initial state, by what is left of the last one's. */
static void dml__recurrent_initial(dml__recurrent_gpu *gpu, int i, size_t from)
{
    const size_t units = (size_t)gpu->shape.units, batch = (size_t)gpu->shape.batch;
    if (!i || !dml__wants_gradient(gpu->run, gpu->node, i)) return;
    if (gpu->node->input[i]->batched)
        dml__recurrent_axpby(gpu, i, dml__work_at(gpu, from), batch * units, 0);
    else
        dml__recurrent_sum_rows(gpu, batch, units, dml__work_at(gpu, from), dml__beta(gpu->run, gpu->node, i),
                                dml__gradient(gpu->run, gpu->node->input[i]));
}

/* The gradients of what all steps share, from those of their gates. */
static void dml__recurrent_gpu_shared(dml__recurrent_gpu *gpu)
{
    const dml__run *run = gpu->run;
    const dml_node *node = gpu->node;
    const dml__recurrent_layout *place = &gpu->place;
    const size_t units = (size_t)gpu->shape.units, inputs = (size_t)gpu->shape.inputs;
    const size_t rows = (size_t)gpu->shape.batch * (size_t)gpu->shape.steps;
    dml__gate_part parts[2];
    const int count = dml__gate_parts(&gpu->shape, parts);
    for (int p = 0; p < count; p++) {
        const dml_ref dz = dml__work_at(gpu, place->gates + parts[p].column);
        const size_t at = parts[p].row * inputs;
        if (dml__wants_gradient(run, node, 1))
            dml__recurrent_gemm(gpu, true, false, parts[p].rows, inputs, rows, dz, place->width,
                                dml__value(run, node->input[0]), inputs, dml__beta(run, node, 1),
                                dml__ref_at(dml__gradient(run, node->input[1]), at), inputs);
        if (dml__wants_gradient(run, node, 0))
            dml__recurrent_gemm(gpu, false, false, rows, inputs, parts[p].rows, dz, place->width,
                                dml__ref_at(dml__value(run, node->input[1]), at), inputs,
                                p ? 1.0f : dml__beta(run, node, 0), dml__gradient(run, node->input[0]),
                                inputs);
    }
    /* In the order of the inputs: the same parameter may be several of them. */
    if (dml__wants_gradient(run, node, 2))
        dml__recurrent_gemm(gpu, true, false, place->gate_n, units, rows,
                            dml__work_at(gpu, place->gates + place->by_h), place->width,
                            dml__work_at(gpu, place->h), units, dml__beta(run, node, 2),
                            dml__gradient(run, node->input[2]), units);
    const int b_ih = gpu->o->b_ih, b_hh = gpu->o->b_hh;
    if (!b_ih || (!dml__wants_gradient(run, node, b_ih) && !dml__wants_gradient(run, node, b_hh))) return;
    dml__recurrent_sum_rows(gpu, rows, place->width, dml__work_at(gpu, place->gates), 0,
                            dml__work_at(gpu, place->sums));
    for (int p = 0; p < count && dml__wants_gradient(run, node, b_ih); p++)
        dml__recurrent_axpby(gpu, b_ih, dml__work_at(gpu, place->sums + parts[p].column), parts[p].rows,
                             parts[p].row);
    if (dml__wants_gradient(run, node, b_hh))
        dml__recurrent_axpby(gpu, b_hh, dml__work_at(gpu, place->sums + place->by_h), place->gate_n, 0);
}

DML__LOCAL dml_status dml__recurrent_gpu_backward(const dml__run *run, const dml_node *node)
{
    dml__recurrent_gpu gpu = dml__recurrent_gpu_of(run, node);
    const dml__recurrent_layout *place = &gpu.place;
    const size_t units = (size_t)gpu.shape.units, steps = (size_t)gpu.shape.steps;
    const dml_ref dy = dml__gradient(run, node);
    dml__recurrent_state(&gpu, 0, dml__work_at(&gpu, place->dh), dy, false);
    if (gpu.shape.cell == DML_CELL_LSTM)
        dml__recurrent_state(&gpu, 1, dml__work_at(&gpu, place->dc), dy, false);
    const bool to_h0 = gpu.o->h0 && dml__wants_gradient(run, node, gpu.o->h0);
    for (int s = gpu.shape.steps - 1; s >= 0; s--) {
        dml_launch launch = dml__step_launch(&gpu, "recurrent_backward", s, dy);
        const size_t step = (size_t)launch.integer[4];
        launch.buffer[4] = dml__work_at(&gpu, place->dh);
        dml__recurrent_submit(&gpu, &launch);
        if (s == 0 && !to_h0) break;
        dml__recurrent_gemm(&gpu, false, false, (size_t)gpu.shape.batch, units, place->gate_n,
                            dml__work_at(&gpu, place->gates + step * place->width + place->by_h),
                            steps * place->width, dml__value(run, node->input[2]), units, 1,
                            dml__work_at(&gpu, place->dh), units);
    }
    dml__recurrent_gpu_shared(&gpu);
    dml__recurrent_initial(&gpu, gpu.o->h0, place->dh);
    dml__recurrent_initial(&gpu, gpu.o->c0, place->dc);
    return gpu.status;
}

#endif
