/* tensor_conv2d.cuh: convolutions of rounded factors on tensor cores: conv2d_forward, conv2d_backward_input
   and conv2d_backward_weights of gpu/conv2d.cl, with the same arguments, as products of matrices
   (gpu/tensor.cuh) of which one is gathered from images while it is copied. Where there are many pixels that
   is done in pieces of DML__TENSOR_PATCHES bytes, so that a copy is multiplied while it is in the card's
   cache. */
#ifndef DML_GPU_TENSOR_CONV2D_CUH
#define DML_GPU_TENSOR_CONV2D_CUH

#include "gpu/kernels.cl"
#include "gpu/tensor.cuh"

#ifndef DML__TENSOR_PATCHES /* tests have smaller ones */
#define DML__TENSOR_PATCHES (32 << 20)
#endif

/* A source (gpu/tensor_pack.cuh): row i is what the window of pixel `first` + i meets, column (tap, channel).
   Forward the pixels are those of y and meet x (N, H, W, C); back, those of x and meet dy (N, OH, OW, F). */
template <bool back> struct dml__tensor_patches {
    const float *images;
    dml__kernel_arguments arguments;
    int first, end; /* pixels: the first, and behind the last */
    bool four;      /* four neighbours are of one tap, and may be read at once */
    bool plain;     /* windows are pixels: the patches are the images */
    /* What a thread finds out: */
    dml__gpu_shape s;
    dml__gpu_images pixels;
    dml__gpu_taps taps;
    dml__gpu_divisor stride_h, stride_w;

    __device__ __forceinline__ void prepare()
    {
        s = dml__gpu_shape_of(arguments);
        pixels = dml__gpu_images_of(back ? s.height : s.out_h, back ? s.width : s.out_w);
        taps = dml__gpu_taps_of(s, back ? s.filters : s.channels);
        stride_h = dml__gpu_divisor_of(s.stride_h), stride_w = dml__gpu_divisor_of(s.stride_w);
    }
    __device__ __forceinline__ dml__gpu_place place(int row) const
    {
        return back ? dml__gpu_pixel(first + row, end, pixels, 1, 1, s.pad_h, s.pad_w)
                    : dml__gpu_pixel(first + row, end, pixels, s.stride_h, s.stride_w, -s.pad_h, -s.pad_w);
    }
    /* Where a place and a tap meet; NULL: nowhere. */
    __device__ __forceinline__ const float *at(const dml__gpu_place p, const dml__gpu_tap tap) const
    {
        unsigned h = (unsigned)(back ? p.h - tap.h : p.h + tap.h);
        unsigned w = (unsigned)(back ? p.w - tap.w : p.w + tap.w);
        if (back) {
            const unsigned out_h = dml__gpu_divide(h, stride_h), out_w = dml__gpu_divide(w, stride_w);
            if (out_h * stride_h.number != h || out_w * stride_w.number != w) return NULL;
            h = out_h, w = out_w;
        }
        const int height = back ? s.out_h : s.height, width = back ? s.out_w : s.width;
        if (p.image < 0 || h >= (unsigned)height || w >= (unsigned)width) return NULL;
        const long long pixel = ((long long)p.image * height + (int)h) * width + (int)w;
        return images + pixel * (back ? s.filters : s.channels) + tap.last;
    }
    __device__ __forceinline__ float one(const dml__gpu_place p, int column) const
    {
        const float *from = at(p, dml__gpu_tap_at(column, taps));
        return from ? *from : 0.0f;
    }
    __device__ __forceinline__ bool whole(int rows, int columns) const
    {
        return plain && four && rows <= end - first && columns <= taps.depth;
    }
    __device__ __forceinline__ float4 read(int row, int column) const
    {
        return *(const float4 *)(images + (long long)(first + row) * taps.depth + column);
    }
    __device__ __forceinline__ float4 some(int row, int column) const
    {
        const dml__gpu_place p = place(row);
        if (!four)
            return make_float4(one(p, column), one(p, column + 1), one(p, column + 2), one(p, column + 3));
        const float *from = at(p, dml__gpu_tap_at(column, taps));
        return from ? *(const float4 *)from : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
};

/* Another: the weights (F, taps, C) as they meet patches of dy: row (tap, filter), a column each channel. */
struct dml__tensor_weights {
    const float *weights;
    int filters, taps, channels;
    bool four;

    __device__ __forceinline__ void prepare()
    {
    }
    __device__ __forceinline__ bool whole(int, int) const
    {
        return false;
    }
    __device__ __forceinline__ float4 some(int row, int column) const
    {
        const int tap = row / filters, filter = row - tap * filters;
        return dml__tensor_read(weights + ((size_t)filter * (size_t)taps + (size_t)tap) * (size_t)channels +
                                    column,
                                tap < taps ? channels - column : 0, four);
    }
    __device__ __forceinline__ float4 read(int row, int column) const
    {
        return some(row, column);
    }
};

/* ---- on the host ---- */

typedef struct dml__tensor_conv {
    int type;
    const dml__kernel_arguments *arguments;
    const float *images, *other; /* what patches are of; weights, or dy where it is the weights' gradient */
    dml__tensor_out out;         /* to y, dx or dw; ldc is that of the product */
    int shares;                  /* of dw: so many gradients are written, of which the sum counts */
} dml__tensor_conv;

/* Sizes of a convolution as a product. */
typedef struct dml__tensor_conv_sizes {
    int pixels, taps, channels, filters; /* pixels: of y, or of x where `back` */
} dml__tensor_conv_sizes;

static inline dml__tensor_conv_sizes dml__tensor_conv_sizes_of(const int32_t *of, bool back)
{
    dml__tensor_conv_sizes s;
    s.pixels = of[0] * (back ? of[1] * of[2] : of[11] * of[12]);
    s.taps = of[5] * of[6], s.channels = of[3], s.filters = of[4];
    return s;
}

/* How many of the pixels at once have a copy of so many rows or ks each in DML__TENSOR_PATCHES bytes. */
static inline int dml__tensor_piece(int type, int pixels, int each)
{
    const int64_t most = DML__TENSOR_PATCHES / ((int64_t)each * dml__tensor_words_of(type) * 2);
    const int64_t piece = most / DML__TENSOR_ROWS * DML__TENSOR_ROWS;
    return piece < DML__TENSOR_ROWS ? (pixels < DML__TENSOR_ROWS ? pixels : DML__TENSOR_ROWS)
           : piece < pixels         ? (int)piece
                                    : pixels;
}

template <bool back>
static inline dml__tensor_patches<back> dml__tensor_patches_of(const dml__tensor_conv *c, int first, int end)
{
    const int32_t *of = c->arguments->integer;
    dml__tensor_patches<back> patches;
    memset((void *)&patches, 0, sizeof patches);
    patches.images = c->images, patches.arguments = *c->arguments;
    patches.first = first, patches.end = end;
    patches.four = dml__tensor_fours(c->images, of[back ? 4 : 3]);
    patches.plain =
        of[5] * of[6] == 1 && of[7] * of[8] == 1 && !of[9] && !of[10] && of[11] == of[1] && of[12] == of[2];
    return patches;
}

/* There was a way for what came before, so there is one for this; what is queued can't be taken back. */
static inline cudaError_t dml__tensor_no_way_back(cudaError_t error, int pieces)
{
    return error == cudaErrorNotSupported && pieces > 0 ? cudaErrorInvalidValue : error;
}

/* y, or dx: a piece of its pixels after the other, each times the weights, which are copied once. */
template <bool back>
static inline cudaError_t dml__tensor_conv_pixels(dml__tensor *tensor, cudaStream_t stream,
                                                  const dml__tensor_conv *c)
{
    const dml__tensor_conv_sizes s = dml__tensor_conv_sizes_of(c->arguments->integer, back);
    const int columns = back ? s.channels : s.filters, depth = s.taps * (back ? s.filters : s.channels);
    const int piece = dml__tensor_piece(c->type, s.pixels, dml__tensor_padded(depth, DML__TENSOR_WORDS));
    const size_t right_bytes = dml__tensor_copy_bytes(c->type, columns, depth);
    if (!dml__tensor_can(tensor, c->type, depth)) return cudaErrorNotSupported;
    cudaError_t error =
        dml__tensor_reserve(tensor, stream, right_bytes + dml__tensor_copy_bytes(c->type, piece, depth));
    if (error != cudaSuccess) return error;
    const dml__tensor_copy right = { c->type, columns, depth, (uint16_t *)tensor->workspace };
    if (back) {
        const dml__tensor_weights weights = { c->other, s.filters, s.taps, s.channels,
                                              dml__tensor_fours(c->other, s.channels) };
        error = dml__tensor_pack_transpose(stream, right, weights);
    } else {
        error = dml__tensor_pack(stream, right, dml__tensor_matrix_of(c->other, columns, depth, depth));
    }
    for (int first = 0; first < s.pixels && error == cudaSuccess; first += piece) {
        const int count = s.pixels - first < piece ? s.pixels - first : piece;
        const dml__tensor_copy left = { c->type, count, depth,
                                        (uint16_t *)((char *)tensor->workspace + right_bytes) };
        error = dml__tensor_pack(stream, left, dml__tensor_patches_of<back>(c, first, first + count));
        dml__tensor_out out = c->out;
        out.c += (size_t)first * (size_t)columns;
        const dml__tensor_product p = dml__tensor_product_of(left, right, out);
        if (error == cudaSuccess)
            error = dml__tensor_no_way_back(dml__tensor_multiply(tensor, stream, &p), first);
    }
    return error;
}

/* dw: dy's transpose times the patches of x, whose pixels are what is summed. Pieces go round the shares. */
static inline cudaError_t dml__tensor_conv_weights(dml__tensor *tensor, cudaStream_t stream,
                                                   const dml__tensor_conv *c)
{
    const dml__tensor_conv_sizes s = dml__tensor_conv_sizes_of(c->arguments->integer, false);
    const int columns = s.taps * s.channels, rows = dml__tensor_padded(s.filters, DML__TENSOR_ROWS) +
                                                    dml__tensor_padded(columns, DML__TENSOR_ROWS);
    const int piece = dml__tensor_piece(c->type, s.pixels, rows);
    const size_t left_bytes = dml__tensor_copy_bytes(c->type, s.filters, piece);
    const size_t count = (size_t)s.filters * (size_t)columns;
    if (!dml__tensor_can(tensor, c->type, piece)) return cudaErrorNotSupported;
    cudaError_t error =
        dml__tensor_reserve(tensor, stream, left_bytes + dml__tensor_copy_bytes(c->type, columns, piece));
    int done = 0;
    for (int first = 0; first < s.pixels && error == cudaSuccess; first += piece, done++) {
        const int k = s.pixels - first < piece ? s.pixels - first : piece;
        const dml__tensor_copy left = { c->type, s.filters, k, (uint16_t *)tensor->workspace };
        const dml__tensor_copy right = { c->type, columns, k,
                                         (uint16_t *)((char *)tensor->workspace + left_bytes) };
        error = dml__tensor_pack_transpose(
            stream, left,
            dml__tensor_matrix_of(c->other + (size_t)first * (size_t)s.filters, k, s.filters, s.filters));
        if (error == cudaSuccess)
            error =
                dml__tensor_pack_transpose(stream, right, dml__tensor_patches_of<false>(c, first, first + k));
        dml__tensor_out out = c->out;
        out.c += (size_t)(done % c->shares) * count;
        out.beta = done < c->shares ? c->out.beta : 1.0f;
        const dml__tensor_product p = dml__tensor_product_of(left, right, out);
        if (error == cudaSuccess)
            error = dml__tensor_no_way_back(dml__tensor_multiply(tensor, stream, &p), done);
    }
    if (error == cudaSuccess && done < c->shares) /* their beta is 0 */
        error = cudaMemsetAsync(c->out.c + (size_t)done * count, 0,
                                (size_t)(c->shares - done) * count * sizeof(float), stream);
    return error;
}

#endif
