#ifndef DML_OPS_OP_MATMUL_C
#define DML_OPS_OP_MATMUL_C

#include "ops/op_matmul.h"
#include "ops/op_matmul_internal.h"

#include "graph/node.h"
#include "graph/op.h"
#include "ops/table.h"
#include "kernels/gemm.h"
#include "kernels/q8.h"
#include "thread/scratch.h"

#include <stdio.h>
#include <string.h>

/* ---- shapes ---- */

static const dml_matmul_options *dml__matmul_options_of(const dml_node *node)
{
    return (const dml_matmul_options *)node->attributes;
}

/* Of the last two dimensions of input i, the first or second one of the matrix. */
static int dml__matmul_side(const dml_node *node, int i, int side)
{
    const dml_matmul_options *o = dml__matmul_options_of(node);
    const dml_shape *shape = &node->input[i]->shape;
    const bool transposed = i ? o->transpose_b : o->transpose_a;
    return shape->dims[shape->ndim - (transposed == (side == 1) ? 2 : 1)];
}

/* The d-th dimension before the matrix, counted from it; 1 where there is none. */
static int dml__matmul_leading(const dml_shape *shape, int d)
{
    return d < shape->ndim - 2 ? shape->dims[shape->ndim - 3 - d] : 1;
}

static dml_status dml__matmul_refuse(const dml_node *node, const char *why)
{
    const dml_matmul_options *o = dml__matmul_options_of(node);
    char a[DML_SHAPE_TEXT], b[DML_SHAPE_TEXT];
    return dml__node_fail(node, DML_ERROR_SHAPE, "its inputs are %s%s and %s%s%s: %s",
                          dml_shape_format(&node->input[0]->shape, a), o->transpose_a ? " transposed" : "",
                          dml_shape_format(&node->input[1]->shape, b), o->transpose_b ? " transposed" : "",
                          node->input[0]->batched == node->input[1]->batched ? ""
                          : node->input[0]->batched ? ", the second for the whole batch"
                                                    : ", the first for the whole batch",
                          why);
}

static dml_status dml__matmul_infer(dml_node *node)
{
    const dml_matmul_options *o = dml__matmul_options_of(node);
    dml_shape *shape = &node->shape;
    for (int i = 0; i < 2; i++) {
        const dml_node *input = node->input[i];
        if (input->dtype != DML_F32)
            return dml__node_fail(node, DML_ERROR_ARGUMENT, "its input %d is %s, it takes f32", i + 1,
                                  dml_dtype_name(input->dtype));
        if (input->shape.ndim < 2)
            return dml__matmul_refuse(node, "both need two dimensions or more (dml_dense takes rows)");
        if (input->shape.ndim > shape->ndim) shape->ndim = input->shape.ndim;
        node->batched = node->batched || input->batched;
    }
    if (!(o->scale - o->scale == 0))
        return dml__node_fail(node, DML_ERROR_ARGUMENT, "a scale of %g asked for, it must be finite",
                              (double)o->scale);
    if (dml__matmul_side(node, 0, 1) != dml__matmul_side(node, 1, 0))
        return dml__matmul_refuse(
            node, "the first's columns must be as many as the second's rows, in the last two dimensions");
    for (int d = 0; d < shape->ndim - 2; d++) {
        const int a = dml__matmul_leading(&node->input[0]->shape, d),
                  b = dml__matmul_leading(&node->input[1]->shape, d);
        if (a != b && a != 1 && b != 1)
            return dml__matmul_refuse(node, "before the last two, their dimensions must be the same or 1");
        shape->dims[shape->ndim - 3 - d] = a != 1 ? a : b;
    }
    shape->dims[shape->ndim - 2] = dml__matmul_side(node, 0, 0);
    shape->dims[shape->ndim - 1] = dml__matmul_side(node, 1, 1);
    return DML_OK;
}

/* ---- products ---- */

/* What takes part in a product, by number, and which bit of an axis says that it has it. */
enum { DML__MATMUL_A, DML__MATMUL_B, DML__MATMUL_C };
#define DML__MATMUL_HAS(i) (1u << (i))
#define DML__MATMUL_AXES (DML_MAX_DIMS - 1) /* before the matrix: that of samples, and those of one */

/* z = alpha op(x) op(y), of matrices that lie one after the other along some axes, outermost first. An axis
   that z hasn't is summed over; one that x or y hasn't repeats it. */
typedef struct dml__matmul_product {
    int x, y, z; /* of a, b and the result or their gradients */
    bool trans_x, trans_y;
    int m, n, k;
    int axes;
    int size[DML__MATMUL_AXES];
    unsigned of[DML__MATMUL_AXES]; /* who has it */
} dml__matmul_product;

/* Neighbours that the same have are one. */
static void dml__matmul_add_axis(dml__matmul_product *product, int size, unsigned of)
{
    const int last = product->axes - 1;
    if (size == 1) return;
    if (last >= 0 && product->of[last] == of && product->size[last] <= INT32_MAX / size) {
        product->size[last] *= size;
        return;
    }
    product->size[product->axes] = size;
    product->of[product->axes++] = of;
}

/* Whether a whole innermost axis is more rows of one product, or more of its sum. */
static bool dml__matmul_fold(dml__matmul_product *p)
{
    if (p->axes == 0) return false;
    const unsigned of = p->of[p->axes - 1];
    const bool x = of & DML__MATMUL_HAS(p->x), y = of & DML__MATMUL_HAS(p->y), z = of & DML__MATMUL_HAS(p->z);
    int *side = NULL;
    if (x && !y && z && !p->trans_x) side = &p->m;
    if (x && y && !z && p->trans_x && !p->trans_y) side = &p->k;
    if (!side || *side > INT32_MAX / p->size[p->axes - 1]) return false;
    *side *= p->size[--p->axes];
    return true;
}

/* The one that makes z, of `rows` samples. */
static dml__matmul_product dml__matmul_product_of(const dml_node *node, int z, int rows)
{
    const dml_matmul_options *o = dml__matmul_options_of(node);
    const int m = dml__matmul_side(node, 0, 0), k = dml__matmul_side(node, 0, 1);
    const int n = dml__matmul_side(node, 1, 1);
    const dml__matmul_product products[] = {
        { 0, 1, DML__MATMUL_C, o->transpose_a, o->transpose_b, m, n, k, 0, { 0 }, { 0 } },
        /* da = dc b^T; its transpose is b dc^T */
        { 2, 1, DML__MATMUL_A, false, !o->transpose_b, m, k, n, 0, { 0 }, { 0 } },
        { 1, 2, DML__MATMUL_A, o->transpose_b, true, k, m, n, 0, { 0 }, { 0 } },
        /* db = a^T dc; its transpose is dc^T a */
        { 0, 2, DML__MATMUL_B, !o->transpose_a, false, k, n, m, 0, { 0 }, { 0 } },
        { 2, 0, DML__MATMUL_B, true, o->transpose_a, n, k, m, 0, { 0 }, { 0 } },
    };
    dml__matmul_product p = products[z == DML__MATMUL_C   ? 0
                                     : z == DML__MATMUL_A ? 1 + o->transpose_a
                                                          : 3 + o->transpose_b];
    for (int d = node->batched ? -1 : 0; d < node->shape.ndim - 2; d++) {
        unsigned of = DML__MATMUL_HAS(DML__MATMUL_C);
        for (int i = 0; i < 2; i++) {
            const dml_node *input = node->input[i];
            const bool has =
                d < 0 ? input->batched : dml__matmul_leading(&input->shape, node->shape.ndim - 3 - d) > 1;
            of |= has ? DML__MATMUL_HAS(i) : 0;
        }
        dml__matmul_add_axis(&p, d < 0 ? rows : node->shape.dims[d], of);
    }
    while (dml__matmul_fold(&p)) continue;
    return p;
}

static dml_transpose dml__matmul_trans(bool transposed)
{
    return transposed ? DML_TRANS : DML_NO_TRANS;
}

static dml_status dml__matmul_on_host(const dml__run *run, const dml__matmul_product *p, float alpha,
                                      const dml_ref ref[3], float beta)
{
    const float *x = (const float *)dml__host(ref[p->x]), *y = (const float *)dml__host(ref[p->y]);
    float *z = (float *)dml__host(ref[p->z]);
    size_t step[3][DML__MATMUL_AXES] = { { 0 } }, each[3], others = 1;
    int along = -1; /* the innermost axis of z, whose products are a batch */
    each[p->x] = (size_t)p->m * (size_t)p->k;
    each[p->y] = (size_t)p->k * (size_t)p->n;
    each[p->z] = (size_t)p->m * (size_t)p->n;
    for (int d = p->axes - 1; d >= 0; d--) {
        if (along < 0 && (p->of[d] & DML__MATMUL_HAS(p->z))) along = d;
        if (along != d) others *= (size_t)p->size[d];
        for (int i = 0; i < 3; i++) {
            if (!(p->of[d] & DML__MATMUL_HAS(i))) continue;
            step[i][d] = each[i];
            each[i] *= (size_t)p->size[d];
        }
    }
    dml_status status = DML_OK;
    for (size_t other = 0; other < others && status == DML_OK; other++) {
        size_t left = other, at[3] = { 0, 0, 0 };
        bool first = true; /* of a sum */
        for (int d = p->axes - 1; d >= 0; d--) {
            if (d == along) continue;
            const size_t index = left % (size_t)p->size[d];
            left /= (size_t)p->size[d];
            for (int i = 0; i < 3; i++) at[i] += index * step[i][d];
            first = first && (index == 0 || (p->of[d] & DML__MATMUL_HAS(p->z)));
        }
        status = dml_sgemm_batched(
            run->pool, dml__matmul_trans(p->trans_x), dml__matmul_trans(p->trans_y), p->m, p->n, p->k, alpha,
            x + at[p->x], p->trans_x ? p->m : p->k, along < 0 ? 0 : (ptrdiff_t)step[p->x][along],
            y + at[p->y], p->trans_y ? p->k : p->n, along < 0 ? 0 : (ptrdiff_t)step[p->y][along],
            first ? beta : 1.0f, z + at[p->z], p->n, along < 0 ? 0 : (ptrdiff_t)step[p->z][along],
            along < 0 ? 1 : p->size[along]);
    }
    return status;
}

/* All matrices in one launch. */
static dml_status dml__matmul_on_device(const dml__run *run, const dml__matmul_product *p, float alpha,
                                        const dml_ref ref[3], float beta)
{
    const int32_t integers[] = {
        p->m, p->n, p->k, p->trans_x, p->trans_y, p->trans_x ? p->m : p->k, p->trans_y ? p->k : p->n, p->n
    };
    size_t matrices = 1;
    dml_launch launch = dml__launch("gemm", (size_t)p->n, (size_t)p->m);
    memcpy(launch.integer, integers, sizeof integers);
    for (int d = 0; d < p->axes; d++) {
        const bool x = p->of[d] & DML__MATMUL_HAS(p->x), y = p->of[d] & DML__MATMUL_HAS(p->y),
                   z = p->of[d] & DML__MATMUL_HAS(p->z);
        launch.integer[8 + d] = p->size[d];
        launch.integer[12] |= (x | y << 1 | z << 2) << 3 * d;
        if (z) matrices *= (size_t)p->size[d];
    }
    if (matrices > 1) launch.size[1] = matrices * (((size_t)p->m + 63) / 64 * 64);
    launch.buffer[0] = ref[p->x];
    launch.buffer[1] = ref[p->y];
    launch.buffer[2] = ref[p->z];
    launch.real[0] = alpha;
    launch.real[1] = beta;
    return dml__submit(run->device, &launch);
}

static dml_status dml__matmul_make(const dml__run *run, const dml_node *node, int z, float beta)
{
    const dml__matmul_product product = dml__matmul_product_of(node, z, run->rows);
    const float scale = dml__matmul_options_of(node)->scale, alpha = scale == 0.0f ? 1.0f : scale;
    dml_ref ref[3];
    for (int i = 0; i < 3; i++) {
        const dml_node *at = i == DML__MATMUL_C ? node : node->input[i];
        const bool gradient = z != DML__MATMUL_C && (i == z || i == DML__MATMUL_C);
        ref[i] = gradient ? dml__gradient(run, at) : dml__value(run, at);
    }
    return run->device->host_memory ? dml__matmul_on_host(run, &product, alpha, ref, beta)
                                    : dml__matmul_on_device(run, &product, alpha, ref, beta);
}

DML__LOCAL bool dml__matmul_of_rows(const dml_node *node, bool *transposed)
{
    const dml_matmul_options *o = dml__matmul_options_of(node);
    *transposed = o->transpose_b;
    return !o->transpose_a && (o->scale == 0 || o->scale == 1);
}

/* The weights of a product that the program reads in 8 bits; NULL: it doesn't. */
static const dml__q8_parameter *dml__matmul_in_q8(const dml__run *run, const dml_node *node,
                                                  dml__matmul_product *product)
{
    bool transposed;
    if (!dml__matmul_of_rows(node, &transposed)) return NULL;
    const dml__q8_parameter *q8 = dml__weights_in_q8(run, node->input[1], transposed);
    if (!q8) return NULL;
    *product = dml__matmul_product_of(node, DML__MATMUL_C, run->rows);
    return product->axes ? NULL : q8;
}

static dml_status dml__matmul_op_forward(const dml__run *run, const dml_node *node)
{
    dml__matmul_product product;
    const dml__q8_parameter *q8 = dml__matmul_in_q8(run, node, &product);
    if (q8)
        return dml_q8gemm(run->pool, product.m, product.n, product.k, dml__host_value(run, node->input[0]),
                          product.k, q8->q8, dml__host_value(run, node), product.n, NULL);
    return dml__matmul_make(run, node, DML__MATMUL_C, 0.0f);
}

static dml_status dml__matmul_op_backward(const dml__run *run, const dml_node *node)
{
    dml_status status = DML_OK;
    for (int i = 0; i < 2 && status == DML_OK; i++)
        if (dml__wants_gradient(run, node, i))
            status = dml__matmul_make(run, node, i, dml__beta(run, node, i));
    return status;
}

/* ---- the op ---- */

static void dml__matmul_describe(const dml_node *node, char *text, size_t bytes)
{
    const dml_matmul_options *o = dml__matmul_options_of(node);
    const char *both = o->transpose_a && o->transpose_b ? ", " : "";
    const int used = snprintf(text, bytes, "%s%s%s", o->transpose_a ? "a transposed" : "", both,
                              o->transpose_b ? "b transposed" : "");
    if (o->scale != 0.0f && used >= 0 && (size_t)used < bytes)
        snprintf(text + used, bytes - (size_t)used, "%sscale %g", used ? ", " : "", (double)o->scale);
}

static double dml__matmul_flops(const dml_node *node)
{
    return 2.0 * (double)dml_shape_count(&node->shape) * dml__matmul_side(node, 0, 1);
}

static dml_scratch dml__matmul_scratch(const dml_node *node, int rows, bool training)
{
    dml_scratch most = { 0, 0 };
    for (int z = training ? DML__MATMUL_A : DML__MATMUL_C; z <= DML__MATMUL_C; z++) {
        const dml__matmul_product p = dml__matmul_product_of(node, z, rows);
        most = dml__larger_scratch(most, dml_sgemm_scratch(dml__matmul_trans(p.trans_x),
                                                           dml__matmul_trans(p.trans_y), p.m, p.n, p.k));
    }
    return most;
}

DML__LOCAL const dml__op *dml__matmul_op(void)
{
    static const dml__op op = { "matmul",
                                dml__matmul_infer,
                                dml__matmul_op_forward,
                                dml__matmul_op_backward,
                                DML__NEEDS_INPUT(0) | DML__NEEDS_INPUT(1),
                                NULL,
                                false,
                                false,
                                dml__matmul_describe,
                                dml__matmul_flops,
                                dml__matmul_scratch };
    return &op;
}

DML_API dml_node *dml_matmul_with(dml_node *a, dml_node *b, const dml_matmul_options *options)
{
    dml_node *const inputs[] = { a, b };
    dml_matmul_options o;
    memset(&o, 0, sizeof o);
    if (options) o = *options;
    return dml__node_create(dml__matmul_op(), 2, inputs, &o, sizeof o);
}

DML_API dml_node *dml_matmul(dml_node *a, dml_node *b)
{
    return dml_matmul_with(a, b, NULL);
}

#endif
