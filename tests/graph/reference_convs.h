/* reference_convs.h: convolutions and pooling in float64, for reference_ops.h, which includes this in its
 * middle. */
#ifndef DML_TESTS_GRAPH_REFERENCE_CONVS_H
#define DML_TESTS_GRAPH_REFERENCE_CONVS_H

#include "ops/op_conv_transpose2d.h"
#include "ops/op_local2d.h"

/* Samples as images; those of two dimensions are lines, images of height 1. */
typedef struct reference_image {
    int h, w, c;
} reference_image;

static reference_image reference_image_of(const dml_node *node)
{
    const int *d = node->shape.dims;
    const reference_image line = { 1, d[0], d[1] }, image = { d[0], d[1], d[2] };
    CHECK(node->shape.ndim == 2 || node->shape.ndim == 3);
    return node->shape.ndim == 2 ? line : image;
}

static void reference_has_size(const dml_node *node, int h, int w, int c)
{
    const reference_image is = reference_image_of(node);
    CHECK(is.h == h && is.w == w && is.c == c);
}

/* Output sizes by counting the places where a window fits between the padding before and behind. */
static int reference_places(int size, int kernel, int stride, int before, int behind)
{
    int places = 0;
    for (int at = -before; at + kernel <= size + behind; at += stride) places++;
    return places;
}

static void reference_conv2d(const dml_node *node, int rows, double *const *in, double *out)
{
    const dml_conv2d_options *o = (const dml_conv2d_options *)node->attributes;
    const reference_image d = reference_image_of(node->input[0]);
    const int size[2] = { d.h, d.w }, c = d.c, filters = o->filters, of_group = c / o->groups;
    int before[2], places[2];
    for (int axis = 0; axis < 2; axis++) {
        const int reach = (o->kernel[axis] - 1) * o->dilation[axis] + 1;
        int behind = before[axis] = o->padding[axis];
        for (int side = 0; side < 4; side++)
            if (o->padding_sides[side])
                before[axis] = o->padding_sides[2 * axis], behind = o->padding_sides[2 * axis + 1];
        if (o->same) { /* zeros are added, behind first, until there are enough places */
            const int wanted = (size[axis] + o->stride[axis] - 1) / o->stride[axis];
            for (before[axis] = behind = 0;
                 reference_places(size[axis], reach, o->stride[axis], before[axis], behind) < wanted;)
                ++*(behind > before[axis] ? &before[axis] : &behind);
        }
        places[axis] = reference_places(size[axis], reach, o->stride[axis], before[axis], behind);
    }
    const int oh = places[0], ow = places[1];
    reference_has_size(node, oh, ow, filters);
    for (int at = 0; at < rows * oh * ow * filters; at++) {
        const int f = at % filters, x = at / filters % ow, y = at / filters / ow % oh;
        const int r = at / filters / ow / oh;
        double sum = node->inputs > 2 ? in[2][f] : 0;
        for (int ky = 0; ky < o->kernel[0]; ky++)
            for (int kx = 0; kx < o->kernel[1]; kx++) {
                const int iy = y * o->stride[0] - before[0] + ky * o->dilation[0];
                const int ix = x * o->stride[1] - before[1] + kx * o->dilation[1];
                if (iy < 0 || iy >= d.h || ix < 0 || ix >= d.w) continue;
                for (int k = 0; k < of_group; k++)
                    sum += in[0][((r * d.h + iy) * d.w + ix) * c + f / (filters / o->groups) * of_group + k] *
                           in[1][((f * o->kernel[0] + ky) * o->kernel[1] + kx) * of_group + k];
            }
        out[at] = sum;
    }
}

/* Each pixel of x spreads over a window of y. */
static void reference_conv_transpose(const dml_node *node, int rows, double *const *in, double *out)
{
    const dml_conv_transpose2d_options *o = (const dml_conv_transpose2d_options *)node->attributes;
    const reference_image d = reference_image_of(node->input[0]), e = reference_image_of(node);
    const int of_x = d.c / o->groups, of_y = e.c / o->groups;
    const int size[2] = { d.h, d.w };
    int out_size[2];
    for (int axis = 0; axis < 2; axis++)
        out_size[axis] = (size[axis] - 1) * o->stride[axis] - 2 * o->padding[axis] +
                         o->dilation[axis] * (o->kernel[axis] - 1) + o->output_padding[axis] + 1;
    reference_has_size(node, out_size[0], out_size[1], o->filters);
    for (int i = 0; i < rows * e.h * e.w * e.c; i++) out[i] = node->inputs > 2 ? in[2][i % e.c] : 0;
    for (int at = 0; at < rows * d.h * d.w * d.c; at++) {
        const int c = at % d.c, x = at / d.c % d.w, y = at / d.c / d.w % d.h, r = at / d.c / d.w / d.h;
        for (int ky = 0; ky < o->kernel[0]; ky++)
            for (int kx = 0; kx < o->kernel[1]; kx++) {
                const int oy = y * o->stride[0] - o->padding[0] + ky * o->dilation[0];
                const int ox = x * o->stride[1] - o->padding[1] + kx * o->dilation[1];
                if (oy < 0 || oy >= e.h || ox < 0 || ox >= e.w) continue;
                for (int k = 0; k < of_y; k++)
                    out[((r * e.h + oy) * e.w + ox) * e.c + c / of_x * of_y + k] +=
                        in[0][at] * in[1][((c * o->kernel[0] + ky) * o->kernel[1] + kx) * of_y + k];
            }
    }
}

static void reference_local2d(const dml_node *node, int rows, double *const *in, double *out)
{
    const dml_local2d_options *o = (const dml_local2d_options *)node->attributes;
    const reference_image d = reference_image_of(node->input[0]);
    const int oh = reference_places(d.h, o->kernel[0], o->stride[0], 0, 0);
    const int ow = reference_places(d.w, o->kernel[1], o->stride[1], 0, 0);
    reference_has_size(node, oh, ow, o->filters);
    for (int at = 0; at < rows * oh * ow * o->filters; at++) {
        const int weights = at % (oh * ow * o->filters), place = weights / o->filters;
        const int y = place / ow, x = place % ow, r = at / (oh * ow * o->filters);
        double sum = node->inputs > 2 ? in[2][weights] : 0;
        for (int ky = 0; ky < o->kernel[0]; ky++)
            for (int kx = 0; kx < o->kernel[1]; kx++)
                for (int k = 0; k < d.c; k++)
                    sum +=
                        in[0][((r * d.h + y * o->stride[0] + ky) * d.w + x * o->stride[1] + kx) * d.c + k] *
                        in[1][((weights * o->kernel[0] + ky) * o->kernel[1] + kx) * d.c + k];
        out[at] = sum;
    }
}

/* PyTorch's rule for rounding up: one more window, if it begins before the image or the padding behind it. */
static void reference_pool2d(const dml_node *node, int rows, const double *in, double *out, bool max)
{
    const dml_pool2d_options *o = (const dml_pool2d_options *)node->attributes;
    const reference_image d = reference_image_of(node->input[0]);
    const int size[2] = { d.h, d.w };
    int before[2], places[2];
    for (int axis = 0; axis < 2; axis++) {
        const int kernel = o->kernel[axis], stride = o->stride[axis];
        int behind = before[axis] = o->padding[axis];
        if (o->same) {
            const int wanted = (size[axis] + stride - 1) / stride;
            while (reference_places(size[axis], kernel, stride, before[axis], behind) < wanted)
                ++*(behind > before[axis] ? &before[axis] : &behind);
        }
        places[axis] = reference_places(size[axis], kernel, stride, before[axis], behind);
        const int next = places[axis] * stride - before[axis];
        if (o->ceil_mode && next - stride + kernel < size[axis] + behind && next < size[axis]) places[axis]++;
    }
    const int oh = places[0], ow = places[1], c = d.c;
    reference_has_size(node, oh, ow, c);
    for (int at = 0; at < rows * oh * ow * c; at++) {
        const int k = at % c, x = at / c % ow, y = at / c / ow % oh, r = at / c / ow / oh;
        double sum = 0, largest = -HUGE_VAL;
        int count = 0;
        for (int ky = 0; ky < o->kernel[0]; ky++)
            for (int kx = 0; kx < o->kernel[1]; kx++) {
                const int iy = y * o->stride[0] - before[0] + ky;
                const int ix = x * o->stride[1] - before[1] + kx;
                count += o->count_include_pad && iy < d.h + before[0] && ix < d.w + before[1];
                if (iy < 0 || iy >= d.h || ix < 0 || ix >= d.w) continue;
                const double v = in[((r * d.h + iy) * d.w + ix) * c + k];
                if (v > largest) largest = v;
                sum += v;
                count += !o->count_include_pad;
            }
        out[at] = max ? largest : sum / count;
    }
}

static void reference_max_pool2d(const dml_node *node, int rows, double *const *in, double *out)
{
    reference_pool2d(node, rows, in[0], out, true);
}

static void reference_avg_pool2d(const dml_node *node, int rows, double *const *in, double *out)
{
    reference_pool2d(node, rows, in[0], out, false);
}

#endif
