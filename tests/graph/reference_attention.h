/* reference_attention.h: attention and rotary positions in float64, by their definitions. */
#ifndef DML_TESTS_GRAPH_REFERENCE_ATTENTION_H
#define DML_TESTS_GRAPH_REFERENCE_ATTENTION_H

#include "ops/op_attention_internal.h"
#include "ops/op_rotary_internal.h"

#include <math.h>
#include <stdlib.h>

/* One row of q, k or v of a head: part 0, 1 or 2. */
static const double *reference_head(const dml_node *node, double *const *in, int part, int sample, int row,
                                    int head)
{
    const dml__attention *o = (const dml__attention *)node->attributes;
    const int i = dml__attention_input(o, part), width = node->shape.dims[1] / o->heads;
    const int *dims = node->input[i]->shape.dims;
    return in[i] + (sample * dims[0] + row) * dims[1] + dml__attention_column(o, part, width) + head * width;
}

static void reference_attention(const dml_node *node, int rows, double *const *in, double *out)
{
    const dml__attention *o = (const dml__attention *)node->attributes;
    const int queries = node->shape.dims[0], width = node->shape.dims[1] / o->heads;
    const int keys = node->input[dml__attention_input(o, 1)]->shape.dims[0];
    const dml_node *lengths = dml__attention_lengths(node);
    const double scale = o->scale != 0 ? (double)o->scale : 1 / sqrt(width);
    double *p = (double *)malloc((size_t)keys * sizeof *p);
    for (int at = 0; at < (node->batched ? rows : 1) * queries * o->heads; at++, out += width) {
        const int h = at % o->heads, t = at / o->heads % queries, n = at / o->heads / queries;
        const int kv = h / (o->heads / o->kv_heads);
        const int length = lengths ? (int)in[dml__attention_input(o, 2) + 1][n] : keys;
        double most = -HUGE_VAL, sum = 0;
        for (int s = 0; s < keys; s++) {
            const double *q = reference_head(node, in, 0, n, t, h),
                         *k = reference_head(node, in, 1, n, s, kv);
            p[s] = -HUGE_VAL;
            if (s >= length || (o->causal && s > t) || (o->window && abs(s - t) >= o->window)) continue;
            p[s] = 0;
            for (int c = 0; c < width; c++) p[s] += scale * q[c] * k[c];
            most = fmax(most, p[s]);
        }
        for (int s = 0; s < keys; s++) p[s] = p[s] > -HUGE_VAL ? exp(p[s] - most) : 0, sum += p[s];
        for (int c = 0; c < width; c++) out[c] = 0;
        for (int s = 0; s < keys; s++)
            for (int c = 0; c < width && p[s] > 0; c++)
                out[c] += p[s] / sum * reference_head(node, in, 2, n, s, kv)[c];
    }
    free(p);
}

static void reference_rotary(const dml_node *node, int rows, double *const *in, double *out)
{
    const dml__rotary *o = (const dml__rotary *)node->attributes;
    const int positions = node->shape.dims[0], width = node->shape.dims[1] / o->heads, half = width / 2;
    for (int at = 0; at < (node->batched ? rows : 1) * positions * o->heads * half; at++) {
        const int i = at % half, h = at / half % o->heads, row = at / half / o->heads;
        const int first = (row * o->heads + h) * width;
        const int a = first + (o->interleaved ? 2 * i : i), b = o->interleaved ? a + 1 : a + half;
        const double angle = (row % positions + o->offset) * pow((double)o->base, -2.0 * i / width);
        const bool turned = h < o->rotated;
        out[a] = turned ? in[0][a] * cos(angle) - in[0][b] * sin(angle) : in[0][a];
        out[b] = turned ? in[0][b] * cos(angle) + in[0][a] * sin(angle) : in[0][b];
    }
}

#endif
