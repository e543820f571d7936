#ifndef DML_KERNELS_CONV2D_PRODUCT_C
#define DML_KERNELS_CONV2D_PRODUCT_C

#include "kernels/conv2d_product.h"

#include "kernels/conv2d_patches.h"
#include "kernels/product.h"
#include "kernels/sizes.h"
#include "thread/pool_internal.h"

#include <string.h>

#if defined(DML__HAS_AVX512_BF16)

/* Weights for the input's gradient: lanes are channels, k taps, the last first, and filters. */
typedef struct dml__conv_turned {
    const float *w; /* (filters, taps, channels) */
    ptrdiff_t filters, taps, channels;
} dml__conv_turned;

static void dml__conv_pack_turned(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc,
                                  int width, float *out)
{
    const dml__conv_turned *t = (const dml__conv_turned *)source;
    for (ptrdiff_t k = k0; k < k0 + kc; k++, out += width) {
        const ptrdiff_t tap = t->taps - 1 - k / t->filters, filter = k % t->filters;
        memcpy(out, t->w + (filter * t->taps + tap) * t->channels + first, (size_t)lanes * sizeof *out);
        memset(out + lanes, 0, (size_t)(width - lanes) * sizeof *out);
    }
}

DML__DRIVERS_BEGIN

/* What a convolution's products have in common. */
typedef struct dml__conv_sizes {
    ptrdiff_t out_h, out_w, channels, filters, taps; /* channels and filters of a group */
} dml__conv_sizes;

static dml__conv_sizes dml__conv_sizes_of(const dml_conv2d_shape *s)
{
    const dml__conv_sizes sizes = { s->out_h, s->out_w, s->channels / s->groups, s->filters / s->groups,
                                    (ptrdiff_t)s->kernel_h * s->kernel_w };
    return sizes;
}

/* The outputs, with the pixels of x that each meets. */
static dml__conv_patches dml__conv_patches_of_x(const dml_conv2d_shape *s, const dml__conv_sizes *sizes,
                                                const float *x)
{
    const ptrdiff_t line = (ptrdiff_t)s->width * s->channels;
    const dml__conv_patches p = { x,
                                  s->height * line,
                                  s->batch * sizes->out_h * sizes->out_w,
                                  sizes->channels,
                                  { sizes->out_h, s->kernel_h, s->stride_h, -(ptrdiff_t)s->pad_h,
                                    s->dilation_h, 1, s->height, line },
                                  { sizes->out_w, s->kernel_w, s->stride_w, -(ptrdiff_t)s->pad_w,
                                    s->dilation_w, 1, s->width, s->channels } };
    return p;
}

static dml__product dml__conv_empty_product(float beta, float *c, ptrdiff_t ldc)
{
    dml__product product;
    memset(&product, 0, sizeof product);
    product.alpha = 1;
    product.beta = beta;
    product.c = c;
    product.ldc = ldc;
    return product;
}

DML__LOCAL void dml__conv2d_product_forward(dml_pool *pool, const dml_conv2d_shape *s, const float *x,
                                            const float *w, float beta, const dml_epilogue *epilogue,
                                            float *y)
{
    const dml__conv_sizes z = dml__conv_sizes_of(s);
    for (int group = 0; group < s->groups; group++) {
        const dml__conv_patches patches = dml__conv_patches_of_x(s, &z, x + group * z.channels);
        const ptrdiff_t k = z.taps * z.channels;
        const dml__matrix weights = { w + group * z.filters * k, k, 1 };
        dml__product product = dml__conv_empty_product(beta, y + group * z.filters, s->filters);
        product.m = s->batch * z.out_h * z.out_w;
        product.n = z.filters;
        product.k = k;
        product.a.as_pairs = dml__patches_as_pairs(false);
        product.a.source = &patches;
        product.b.pack = dml__pack_matrix;
        product.b.source = &weights;
        if (epilogue) product.epilogue = *epilogue;
        if (product.epilogue.bias) product.epilogue.bias += group * z.filters;
        dml__multiply(pool, &product);
    }
}

DML__LOCAL void dml__conv2d_product_input(dml_pool *pool, const dml_conv2d_shape *s, const float *dy,
                                          const float *w, float beta, float *dx)
{
    const dml__conv_sizes z = dml__conv_sizes_of(s);
    const ptrdiff_t line = z.out_w * s->filters;
    for (int group = 0; group < s->groups; group++) {
        dml__product product = dml__conv_empty_product(beta, dx + group * z.channels, s->channels);
        product.m = (ptrdiff_t)s->batch * s->height * s->width;
        const dml__conv_patches patches = {
            dy + group * z.filters,
            z.out_h * line,
            product.m,
            z.filters,
            { s->height, s->kernel_h, 1, s->pad_h - (ptrdiff_t)(s->kernel_h - 1) * s->dilation_h,
              s->dilation_h, s->stride_h, z.out_h, line },
            { s->width, s->kernel_w, 1, s->pad_w - (ptrdiff_t)(s->kernel_w - 1) * s->dilation_w,
              s->dilation_w, s->stride_w, z.out_w, s->filters }
        };
        const dml__conv_turned weights = { w + group * z.filters * z.taps * z.channels, z.filters, z.taps,
                                           z.channels };
        product.n = z.channels;
        product.k = z.taps * z.filters;
        product.a.as_pairs = dml__patches_as_pairs(false);
        product.a.source = &patches;
        product.b.pack = dml__conv_pack_turned;
        product.b.source = &weights;
        dml__multiply(pool, &product);
    }
}

DML__LOCAL void dml__conv2d_product_weights(dml_pool *pool, const dml_conv2d_shape *s, const float *x,
                                            const float *dy, float beta, float *dw)
{
    const dml__conv_sizes z = dml__conv_sizes_of(s);
    for (int group = 0; group < s->groups; group++) {
        const dml__conv_patches patches = dml__conv_patches_of_x(s, &z, x + group * z.channels);
        const dml__matrix columns = { dy + group * z.filters, 1, s->filters };
        const ptrdiff_t n = z.taps * z.channels;
        dml__product product = dml__conv_empty_product(beta, dw + group * z.filters * n, n);
        product.m = z.filters;
        product.n = n;
        product.k = s->batch * z.out_h * z.out_w;
        product.a.pack = dml__pack_matrix;
        product.a.source = &columns;
        product.b.as_pairs = dml__patches_as_pairs(true);
        product.b.source = &patches;
        dml__multiply(pool, &product);
    }
}

DML__DRIVERS_END

#else

DML__LOCAL void dml__conv2d_product_forward(dml_pool *pool, const dml_conv2d_shape *s, const float *x,
                                            const float *w, float beta, const dml_epilogue *epilogue,
                                            float *y)
{
    (void)pool, (void)s, (void)x, (void)w, (void)beta, (void)epilogue, (void)y;
}

DML__LOCAL void dml__conv2d_product_input(dml_pool *pool, const dml_conv2d_shape *s, const float *dy,
                                          const float *w, float beta, float *dx)
{
    (void)pool, (void)s, (void)dy, (void)w, (void)beta, (void)dx;
}

DML__LOCAL void dml__conv2d_product_weights(dml_pool *pool, const dml_conv2d_shape *s, const float *x,
                                            const float *dy, float beta, float *dw)
{
    (void)pool, (void)s, (void)x, (void)dy, (void)beta, (void)dw;
}

#endif
#endif
