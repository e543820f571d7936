#ifndef DML_KERNELS_CONV2D_DEPTHWISE_LINE_C
#define DML_KERNELS_CONV2D_DEPTHWISE_LINE_C

#include "kernels/conv2d_depthwise_line.h"

#include "kernels/isa_vectors.h"
#include "kernels/sizes.h"

#include <string.h>

/* Vectors lie along channels. Some pixels of the result beside each other are in registers, and with each
   line of taps in turn also its weights: each vector of the source is loaded once for all of the pixels and
   taps that it belongs to. The gradient of the weights is the same loop, in which pixels of dy stay and the
   taps' sums come and go. So what lies in the padding is left out by one comparison a vector of the source.
   Nothing is copied but the weights, which are transposed on the stack, and the channels behind the last
   whole vector: those of the result always, those of the source where the array ends. */

#define DML__DEPTHWISE_PIXELS 7 /* the sides of images are often multiples of it: 224, 112, ... */

/* The channels behind the last whole vector: floats of the copy of the source, and pixels of the result that
   come of it at once. */
#define DML__DEPTHWISE_COPY 4096
#define DML__DEPTHWISE_COPY_PIXELS 84
#define DML__DEPTHWISE_LANES 8 /* the most */

/* Asks for `count` pixels of `lines` lines, a part of them with each line of the caches that channel c
   begins. Where pixels lie side by side their lines are asked for in the order that they lie in, so that the
   processor looks ahead of that by itself, too. */
DML__INLINE void dml__depthwise_ask(const float *first, ptrdiff_t pixel, const int count, ptrdiff_t line,
                                    const int lines, ptrdiff_t c, ptrdiff_t channels)
{
    const bool dense = pixel == channels;
    const ptrdiff_t step = dense ? DML__DEPTHWISE_LINE : pixel;
    first += dense ? c * count : c;
    for (int l = 0; l < lines; l++, first += line) {
        DML__UNROLL
        for (int i = 0; i < count; i++) DML__PREFETCH(first + i * step);
    }
}

/* Keeps the compiler from making more pointers than there are registers. */
#if defined(__GNUC__) && !defined(__clang__)
#define DML__DEPTHWISE_KEEP(pointer) __asm__("" : "+r"(pointer));
#else
#define DML__DEPTHWISE_KEEP(pointer)
#endif

/* Keeps it from loading a vector again for each of its multiply-adds. */
#if defined(__GNUC__) && !defined(__clang__) && defined(DML__HAS_AVX2) && !defined(DML__EMULATED)
#define DML__DEPTHWISE_HOLD(vector) __asm__("" : "+v"(vector));
#else
#define DML__DEPTHWISE_HOLD(vector)
#endif

/* Bias is where a sum begins. */
#define DML__DEPTHWISE_FINISH(isa, row, to, sum)                                                             \
    {                                                                                                        \
        if ((row)->beta != 0)                                                                                \
            sum = dml__##isa##_fma(dml__##isa##_splat((row)->beta), dml__##isa##_load(to), sum);             \
        if ((row)->relu) sum = dml__##isa##_relu(sum);                                                       \
        dml__##isa##_store(to, sum);                                                                         \
    }

#define DML__DEFINE_DEPTHWISE_PIXEL(isa, target_isa, vector, lanes)                                          \
    /* Any taps, strides and dilations: pixel by pixel. */                                                   \
    target_isa static void dml__depthwise_pixels_##isa(const dml__depthwise_row *row, ptrdiff_t c0,          \
                                                       dml__depthwise_role role)                             \
    {                                                                                                        \
        const ptrdiff_t tap = row->dilation * row->source_pixel, width = row->width;                         \
        for (ptrdiff_t x = 0; x < row->grid_w; x++) {                                                        \
            const ptrdiff_t at = row->origin + x * row->stride;                                              \
            const ptrdiff_t t0 = at >= 0 ? 0 : (row->dilation - 1 - at) / row->dilation;                     \
            const ptrdiff_t inside = at < row->source_w ? (row->source_w - 1 - at) / row->dilation + 1 : 0;  \
            const ptrdiff_t t1 = dml__smaller(row->taps, inside);                                            \
            for (ptrdiff_t c = c0; c + lanes <= row->channels; c += lanes) {                                 \
                const float *from = row->source + x * row->stride * row->source_pixel + c;                   \
                float *weights = row->weights + c, *to = row->target + x * row->target_pixel + c;            \
                vector pixel = dml__##isa##_splat(0);                                                        \
                if (role == DML__DEPTHWISE_GRADIENT)                                                         \
                    pixel = dml__##isa##_load(to);                                                           \
                else if (row->bias)                                                                          \
                    pixel = dml__##isa##_load(row->bias + c);                                                \
                for (ptrdiff_t l = 0; l < row->tap_lines;                                                    \
                     l++, from += row->line, weights += row->taps * width)                                   \
                    for (ptrdiff_t t = t0; t < t1; t++) {                                                    \
                        const vector value = dml__##isa##_load(from + t * tap);                              \
                        const vector weight = dml__##isa##_load(weights + t * width);                        \
                        if (role == DML__DEPTHWISE_GRADIENT)                                                 \
                            dml__##isa##_store(weights + t * width, dml__##isa##_fma(value, pixel, weight)); \
                        else                                                                                 \
                            pixel = dml__##isa##_fma(value, weight, pixel);                                  \
                    }                                                                                        \
                if (role == DML__DEPTHWISE_RESULT) DML__DEPTHWISE_FINISH(isa, row, to, pixel)                \
            }                                                                                                \
        }                                                                                                    \
    }

/* Which loop a row takes, where there is one for its taps and stride; else 0. */
static inline ptrdiff_t dml__depthwise_code(const dml__depthwise_row *row)
{
    const bool tiled = row->dilation == 1 && row->stride <= 2 && row->origin > -row->taps;
    return tiled ? row->taps * 4 + row->stride : 0;
}

#define DML__DEFINE_DEPTHWISE_TILES(isa, target_isa, vector, lanes)                                          \
    /* Writes (count, DML__DEPTHWISE_LINE), a line of the caches of each pixel, past them. */                \
    target_isa DML__NOINLINE static void dml__depthwise_flush_##isa(const float *lines, ptrdiff_t count,     \
                                                                    float *to, ptrdiff_t to_pixel)           \
    {                                                                                                        \
        for (; count > 0; count--, lines += DML__DEPTHWISE_LINE, to += to_pixel)                             \
            for (int i = 0; i < DML__DEPTHWISE_LINE; i += lanes)                                             \
                dml__##isa##_stream(to + i, dml__##isa##_load(lines + i));                                   \
    }                                                                                                        \
    target_isa DML__INLINE void dml__depthwise_tile_##isa(                                                   \
        const dml__depthwise_row *line, ptrdiff_t x, const int taps, const int stride, const int pixels,     \
        const bool whole, const dml__depthwise_role role)                                                    \
    {                                                                                                        \
        const dml__depthwise_row row = *line; /* which no store can change */                                \
        const bool plain = row.beta == 0 && !row.relu;                                                       \
        const ptrdiff_t begin = -row.origin - x * stride, end = row.source_w + begin;                        \
        const ptrdiff_t count = row.grid_w - x;                                                              \
        const int behind = whole ? (pixels - 1) * stride + 1 : 0; /* the first that may be */                \
        /* From and to memory a line of the caches of each pixel at a time: what the next line of pixels     \
           needs is asked for, and results that go past the caches wait until they are whole lines. */       \
        const ptrdiff_t run = row.ask || row.stream ? DML__DEPTHWISE_LINE : row.channels;                    \
        float kept[DML__DEPTHWISE_PIXELS * DML__DEPTHWISE_LINE];                                             \
        const bool stream = row.stream && role == DML__DEPTHWISE_RESULT;                                     \
        const ptrdiff_t to_pixel = stream ? DML__DEPTHWISE_LINE : row.target_pixel;                          \
        for (ptrdiff_t c0 = 0; c0 < row.channels; c0 += run) {                                               \
            const float *source = row.source + x * stride * row.source_pixel;                                \
            float *target = row.target + x * row.target_pixel, *block = stream ? kept : target + c0;         \
            const ptrdiff_t c1 = dml__smaller(c0 + run, row.channels);                                       \
            if (row.ask) {                                                                                   \
                dml__depthwise_ask(source + row.ahead, row.source_pixel, pixels * stride, row.source_line,   \
                                   stride, c0, row.channels);                                                \
                if (role == DML__DEPTHWISE_GRADIENT)                                                         \
                    dml__depthwise_ask(target + row.target_line, row.target_pixel, pixels, 0, 1, c0,         \
                                       row.channels);                                                        \
            }                                                                                                \
            for (ptrdiff_t c = c0; c + lanes <= c1; c += lanes, block += lanes) {                            \
                vector pixel[DML__DEPTHWISE_PIXELS], tap[5];                                                 \
                const float *from = source + c;                                                              \
                float *weights = row.weights + c, *to = block;                                               \
                vector first = dml__##isa##_splat(0);                                                        \
                if (role == DML__DEPTHWISE_RESULT && row.bias) first = dml__##isa##_load(row.bias + c);      \
                DML__UNROLL                                                                                  \
                for (int p = 0; p < pixels; p++) {                                                           \
                    pixel[p] = first;                                                                        \
                    if (role == DML__DEPTHWISE_GRADIENT && (whole || p < count))                             \
                        pixel[p] = dml__##isa##_load(to + p * row.target_pixel);                             \
                }                                                                                            \
                for (ptrdiff_t l = row.tap_lines; l > 0;                                                     \
                     l--, from += row.line, weights += taps * row.width) {                                   \
                    DML__UNROLL                                                                              \
                    for (int t = 0; t < taps; t++) tap[t] = dml__##isa##_load(weights + t * row.width);      \
                    const float *third = from; /* pixel i - i % 3 */                                         \
                    DML__UNROLL                                                                              \
                    for (int i = 0; i < (pixels - 1) * stride + taps; i++) {                                 \
                        if (i && i % 3 == 0) {                                                               \
                            third += 3 * row.source_pixel;                                                   \
                            DML__DEPTHWISE_KEEP(third)                                                       \
                        }                                                                                    \
                        if ((i < taps - 1 && i < begin) || (i >= behind && i >= end)) continue;              \
                        vector value = dml__##isa##_load(third + i % 3 * row.source_pixel);                  \
                        DML__DEPTHWISE_HOLD(value)                                                           \
                        DML__UNROLL                                                                          \
                        for (int t = 0; t < taps; t++) {                                                     \
                            const int p = (i - t) / stride;                                                  \
                            if (i < t || (i - t) % stride || p >= pixels) continue;                          \
                            if (role == DML__DEPTHWISE_GRADIENT)                                             \
                                tap[t] = dml__##isa##_fma(value, pixel[p], tap[t]);                          \
                            else                                                                             \
                                pixel[p] = dml__##isa##_fma(value, tap[t], pixel[p]);                        \
                        }                                                                                    \
                    }                                                                                        \
                    if (role == DML__DEPTHWISE_GRADIENT) {                                                   \
                        DML__UNROLL                                                                          \
                        for (int t = 0; t < taps; t++) dml__##isa##_store(weights + t * row.width, tap[t]);  \
                    }                                                                                        \
                }                                                                                            \
                if (role == DML__DEPTHWISE_GRADIENT) continue;                                               \
                DML__UNROLL                                                                                  \
                for (int p = 0; p < pixels; p++) {                                                           \
                    if (!whole && p >= count) continue;                                                      \
                    if (plain)                                                                               \
                        dml__##isa##_store(to + p * to_pixel, pixel[p]);                                     \
                    else                                                                                     \
                        DML__DEPTHWISE_FINISH(isa, &row, to + p * to_pixel, pixel[p])                        \
                }                                                                                            \
            }                                                                                                \
            if (stream)                                                                                      \
                dml__depthwise_flush_##isa(kept, dml__smaller(pixels, count), target + c0,                   \
                                           row.target_pixel);                                                \
        }                                                                                                    \
    }                                                                                                        \
    target_isa DML__INLINE void dml__depthwise_tiles_##isa(const dml__depthwise_row *line, const int taps,   \
                                                           const int stride, const int pixels,               \
                                                           const dml__depthwise_role role)                   \
    {                                                                                                        \
        const dml__depthwise_row row = *line;                                                                \
        ptrdiff_t x = 0;                                                                                     \
        /* Of pixels whose first taps all lie in the image only the last taps are asked about: a gradient    \
           gains by that, and its rest goes pixel by pixel. */                                               \
        const ptrdiff_t inside = dml__smaller(row.grid_w, (row.source_w - row.origin - 1) / stride + 1);     \
        for (; role == DML__DEPTHWISE_GRADIENT && x + pixels <= inside; x += pixels)                         \
            dml__depthwise_tile_##isa(&row, x, taps, stride, pixels, true, role);                            \
        const int rest = role == DML__DEPTHWISE_GRADIENT ? 1 : pixels;                                       \
        for (; x < row.grid_w; x += rest)                                                                    \
            dml__depthwise_tile_##isa(&row, x, taps, stride, rest, false, role);                             \
    }

/* The gradient of `lines` lines of three taps, whose sums stay in registers along a line of dy: with strides
   each pixel meets too few others for the loop above, for vectors of which there are so many registers. */
#define DML__DEFINE_DEPTHWISE_STRIDED(isa, target_isa, vector, lanes)                                        \
    target_isa DML__INLINE void dml__depthwise_sums_##isa(const dml__depthwise_row *row,                     \
                                                          const ptrdiff_t line, const int lines)             \
    {                                                                                                        \
        const ptrdiff_t tap = row->source_pixel, step = row->stride * tap, grid_w = row->grid_w;             \
        const ptrdiff_t source_w = row->source_w, target_pixel = row->target_pixel;                          \
        /* Pixels x0 <= x < x1 find all of their taps in the image. */                                       \
        const ptrdiff_t last = source_w - 3 - row->origin;                                                   \
        const ptrdiff_t x0 =                                                                                 \
            dml__smaller(grid_w, row->origin < 0 ? dml__quotient_up(-row->origin, row->stride) : 0);         \
        const ptrdiff_t x1 = dml__larger(x0, last < 0 ? 0 : dml__smaller(grid_w, last / row->stride + 1));   \
        for (ptrdiff_t c = 0; c + lanes <= row->channels; c += lanes) {                                      \
            vector sum[9];                                                                                   \
            const float *at[3], *to = row->target + c;                                                       \
            float *const sums = row->weights + line * 3 * row->width + c;                                    \
            DML__UNROLL                                                                                      \
            for (int l = 0; l < lines; l++) at[l] = row->source + (line + l) * row->line + c;                \
            DML__UNROLL                                                                                      \
            for (int t = 0; t < lines * 3; t++) sum[t] = dml__##isa##_load(sums + t * row->width);           \
            for (ptrdiff_t x = 0; x < grid_w;) {                                                             \
                for (; x < grid_w && (x < x0 || x >= x1); x++, to += target_pixel) {                         \
                    const ptrdiff_t t0 = -row->origin - x * row->stride, t1 = t0 + source_w;                 \
                    const vector pixel = dml__##isa##_load(to);                                              \
                    DML__UNROLL                                                                              \
                    for (int t = 0; t < 3; t++) {                                                            \
                        if (t < t0 || t >= t1) continue;                                                     \
                        DML__UNROLL                                                                          \
                        for (int l = 0; l < lines; l++)                                                      \
                            sum[l * 3 + t] =                                                                 \
                                dml__##isa##_fma(dml__##isa##_load(at[l] + t * tap), pixel, sum[l * 3 + t]); \
                    }                                                                                        \
                    DML__UNROLL                                                                              \
                    for (int l = 0; l < lines; l++) at[l] += step;                                           \
                }                                                                                            \
                for (; x < x1; x++, to += target_pixel) {                                                    \
                    if (row->ask) {                                                                          \
                        const float *next = at[0] + row->ahead;                                              \
                        DML__PREFETCH(next), DML__PREFETCH(next + row->source_line);                         \
                        DML__PREFETCH(next + tap), DML__PREFETCH(next + row->source_line + tap);             \
                        DML__PREFETCH(to + row->target_line);                                                \
                    }                                                                                        \
                    const vector pixel = dml__##isa##_load(to);                                              \
                    DML__UNROLL                                                                              \
                    for (int l = 0; l < lines; l++) {                                                        \
                        DML__UNROLL                                                                          \
                        for (int t = 0; t < 3; t++)                                                          \
                            sum[l * 3 + t] =                                                                 \
                                dml__##isa##_fma(dml__##isa##_load(at[l] + t * tap), pixel, sum[l * 3 + t]); \
                        at[l] += step;                                                                       \
                        DML__DEPTHWISE_KEEP(at[l])                                                           \
                    }                                                                                        \
                }                                                                                            \
            }                                                                                                \
            DML__UNROLL                                                                                      \
            for (int t = 0; t < lines * 3; t++) dml__##isa##_store(sums + t * row->width, sum[t]);           \
        }                                                                                                    \
    }                                                                                                        \
    target_isa static void dml__depthwise_strided_##isa(const dml__depthwise_row *row)                       \
    {                                                                                                        \
        for (ptrdiff_t line = 0; line < row->tap_lines; line += 3) {                                         \
            const ptrdiff_t lines = row->tap_lines - line;                                                   \
            if (lines >= 3)                                                                                  \
                dml__depthwise_sums_##isa(row, line, 3);                                                     \
            else if (lines == 2)                                                                             \
                dml__depthwise_sums_##isa(row, line, 2);                                                     \
            else                                                                                             \
                dml__depthwise_sums_##isa(row, line, 1);                                                     \
        }                                                                                                    \
    }

#define DML__DEFINE_DEPTHWISE(isa, target_isa, vector, lanes)                                                \
    DML__DEFINE_DEPTHWISE_PIXEL(isa, target_isa, vector, lanes)                                              \
    DML__DEFINE_DEPTHWISE_TILES(isa, target_isa, vector, lanes)                                              \
    target_isa static void dml__depthwise_result_##isa(const dml__depthwise_row *row)                        \
    {                                                                                                        \
        switch (dml__depthwise_code(row)) {                                                                  \
        case 3 * 4 + 1: dml__depthwise_tiles_##isa(row, 3, 1, 7, DML__DEPTHWISE_RESULT); break;              \
        case 3 * 4 + 2: dml__depthwise_tiles_##isa(row, 3, 2, 7, DML__DEPTHWISE_RESULT); break;              \
        case 5 * 4 + 1: dml__depthwise_tiles_##isa(row, 5, 1, 7, DML__DEPTHWISE_RESULT); break;              \
        case 1 * 4 + 1: dml__depthwise_tiles_##isa(row, 1, 1, 7, DML__DEPTHWISE_RESULT); break;              \
        case 2 * 4 + 1: dml__depthwise_tiles_##isa(row, 2, 1, 7, DML__DEPTHWISE_RESULT); break;              \
        default: dml__depthwise_pixels_##isa(row, 0, DML__DEPTHWISE_RESULT); break;                          \
        }                                                                                                    \
    }                                                                                                        \
    target_isa static void dml__depthwise_gradient_##isa(const dml__depthwise_row *row)                      \
    {                                                                                                        \
        switch (dml__depthwise_code(row)) {                                                                  \
        case 3 * 4 + 1: dml__depthwise_tiles_##isa(row, 3, 1, 7, DML__DEPTHWISE_GRADIENT); break;            \
        case 3 * 4 + 2: dml__depthwise_tiles_##isa(row, 3, 2, 7, DML__DEPTHWISE_GRADIENT); break;            \
        case 5 * 4 + 1: dml__depthwise_tiles_##isa(row, 5, 1, 7, DML__DEPTHWISE_GRADIENT); break;            \
        default: dml__depthwise_pixels_##isa(row, 0, DML__DEPTHWISE_GRADIENT); break;                        \
        }                                                                                                    \
    }

DML__DEFINE_DEPTHWISE_PIXEL(plain, , dml__v4, 4)
#if defined(DML__HAS_AVX2)
DML__DEFINE_DEPTHWISE(avx2, DML__AVX2, __m256, 8)
#endif
#if defined(DML__HAS_AVX512)
DML__DEFINE_DEPTHWISE_TILES(avx512, DML__AVX512, __m512, 16)
DML__DEFINE_DEPTHWISE_STRIDED(avx512, DML__AVX512, __m512, 16)

/* The channels of whole vectors of 16, for the commonest kernels; how many those are. */
DML__AVX512 static ptrdiff_t dml__depthwise_avx512(const dml__depthwise_row *row, dml__depthwise_role role)
{
    const ptrdiff_t code = dml__depthwise_code(row);
    if (row->channels < 16) return 0;
    if (code == 3 * 4 + 1 && role == DML__DEPTHWISE_RESULT)
        dml__depthwise_tiles_avx512(row, 3, 1, 7, DML__DEPTHWISE_RESULT);
    else if (code == 3 * 4 + 1)
        dml__depthwise_tiles_avx512(row, 3, 1, 7, DML__DEPTHWISE_GRADIENT);
    else if (code == 3 * 4 + 2 && role == DML__DEPTHWISE_RESULT)
        dml__depthwise_tiles_avx512(row, 3, 2, 7, DML__DEPTHWISE_RESULT);
    else if (code == 3 * 4 + 2)
        dml__depthwise_strided_avx512(row);
    else if (code == 2 * 4 + 1 && role == DML__DEPTHWISE_RESULT) /* of an input gradient's phases */
        dml__depthwise_tiles_avx512(row, 2, 1, 7, DML__DEPTHWISE_RESULT);
    else if (code == 1 * 4 + 1 && role == DML__DEPTHWISE_RESULT)
        dml__depthwise_tiles_avx512(row, 1, 1, 7, DML__DEPTHWISE_RESULT);
    else
        return 0;
    return row->channels / 16 * 16;
}
#endif
#if defined(__aarch64__)
DML__DEFINE_DEPTHWISE(neon, , float32x4_t, 4)
#endif

/* Vectors of one, for windows on the source that are too large to copy. */
#define dml__one_load(from) (*(from))
#define dml__one_store(to, value) (*(to) = (value))
#define dml__one_splat(x) (x)
#define dml__one_fma(a, b, c) ((a) * (b) + (c))
#define dml__one_relu(x) ((x) <= 0 ? 0 : (x))
DML__DEFINE_DEPTHWISE_PIXEL(one, , float, 1)

/* The channels of whole vectors. */
static void dml__depthwise_whole(dml_isa isa, const dml__depthwise_row *row, dml__depthwise_role role)
{
#if defined(DML__HAS_AVX512)
    dml__depthwise_row rest;
    if (isa == DML_ISA_AVX512) {
        const ptrdiff_t done = dml__depthwise_avx512(row, role);
        if (row->channels - done < 8) return;
        rest = *row;
        rest.channels -= done, rest.source += done, rest.weights += done, rest.target += done;
        if (rest.bias) rest.bias += done;
        row = &rest;
    }
#endif
    switch (isa) {
#if defined(DML__HAS_AVX2)
    case DML_ISA_AVX512:
    case DML_ISA_AVX2:
        if (role == DML__DEPTHWISE_RESULT)
            dml__depthwise_result_avx2(row);
        else
            dml__depthwise_gradient_avx2(row);
        break;
#endif
#if defined(__aarch64__)
    case DML_ISA_NEON:
        if (role == DML__DEPTHWISE_RESULT)
            dml__depthwise_result_neon(row);
        else
            dml__depthwise_gradient_neon(row);
        break;
#endif
    default: dml__depthwise_pixels_plain(row, 0, role); break;
    }
}

/* The first `channels`, fewer than DML__DEPTHWISE_LANES, of pixels. */
static void dml__depthwise_copy(const float *from, ptrdiff_t from_pixel, ptrdiff_t pixels, ptrdiff_t channels,
                                float *to, ptrdiff_t to_pixel)
{
    for (; pixels > 0; pixels--, from += from_pixel, to += to_pixel) {
        if (channels & 4) memcpy(to, from, 4 * sizeof *to);
        if (channels & 2) memcpy(to + (channels & 4), from + (channels & 4), 2 * sizeof *to);
        if (channels & 1) to[channels - 1] = from[channels - 1];
    }
}

/* Channels c0 and those behind it, fewer than `lanes`. The lanes behind them compute with what lies behind
   them in the source, the next pixels, and are left where they are. (Masked loads take the loop a quarter
   longer.) */
static void dml__depthwise_rest(dml_isa isa, const dml__depthwise_row *row, ptrdiff_t c0, ptrdiff_t lanes,
                                dml__depthwise_role role)
{
    float source[DML__DEPTHWISE_COPY];                                       /* (tap_lines, window, lanes) */
    float target[DML__DEPTHWISE_COPY_PIXELS * DML__DEPTHWISE_LANES] = { 0 }; /* (pixels, lanes) */
    float bias[DML__DEPTHWISE_LANES] = { 0 };
    const ptrdiff_t channels = row->channels - c0, extent = (row->taps - 1) * row->dilation + 1;
    const ptrdiff_t last_line = (row->tap_lines - 1) * row->line, step = row->stride * row->source_pixel;
    const float *last = row->source + last_line + (row->source_w - 1 - row->origin) * row->source_pixel + c0;
    const bool copied = row->source_end - last < lanes;
    ptrdiff_t pixels = DML__DEPTHWISE_COPY_PIXELS;
    dml__depthwise_row some = *row;
    while (copied && pixels &&
           row->tap_lines * ((pixels - 1) * row->stride + extent) * lanes > DML__DEPTHWISE_COPY)
        pixels /= 2;
    if (!pixels) {
        dml__depthwise_pixels_one(row, c0, role);
        return;
    }
    some.channels = some.target_pixel = lanes;
    some.ask = some.stream = false;
    some.weights += c0;
    some.target = target;
    if (row->bias) dml__depthwise_copy(row->bias + c0, 0, 1, channels, bias, 0), some.bias = bias;
    for (ptrdiff_t x = 0; x < row->grid_w; x += pixels) {
        const float *from = row->source + x * step + c0;
        float *to = row->target + x * row->target_pixel + c0;
        some.grid_w = dml__smaller(pixels, row->grid_w - x);
        some.origin = row->origin + x * row->stride, some.source = from;
        if (copied) {
            const ptrdiff_t at = some.origin, first = dml__larger(0, at);
            const ptrdiff_t end = at + (some.grid_w - 1) * row->stride + extent;
            some.source_w = dml__larger(0, dml__smaller(row->source_w, end) - first);
            some.source_pixel = lanes, some.line = some.source_w * lanes;
            some.origin = at - first, some.source = source + some.origin * lanes;
            memset(source, 0, (size_t)(some.tap_lines * some.line) * sizeof *source);
            from += (first - at) * row->source_pixel;
            for (ptrdiff_t l = 0; l < some.tap_lines; l++)
                dml__depthwise_copy(from + l * row->line, row->source_pixel, some.source_w, channels,
                                    source + l * some.line, lanes);
        }
        if (role == DML__DEPTHWISE_GRADIENT || row->beta != 0)
            dml__depthwise_copy(to, row->target_pixel, some.grid_w, channels, target, lanes);
        dml__depthwise_whole(isa, &some, role);
        if (role == DML__DEPTHWISE_RESULT)
            dml__depthwise_copy(target, lanes, some.grid_w, channels, to, row->target_pixel);
    }
}

static void dml__depthwise_phase(dml_isa isa, const dml__depthwise_row *row, dml__depthwise_role role)
{
    ptrdiff_t lanes = 4;
#if defined(DML__HAS_AVX2)
    if (isa >= DML_ISA_AVX2) lanes = 8;
#endif
    dml__depthwise_whole(isa, row, role);
    if (row->channels % lanes) dml__depthwise_rest(isa, row, row->channels / lanes * lanes, lanes, role);
}

/* Without strides every dilation-th pixel meets every dilation-th pixel of the source: lines that have no
   dilation. */
DML__LOCAL void dml__depthwise_line(dml_isa isa, const dml__depthwise_row *row, dml__depthwise_role role)
{
    const ptrdiff_t step = row->stride == 1 ? row->dilation : 1;
    if (step == 1) dml__depthwise_phase(isa, row, role);
    for (ptrdiff_t first = 0; step > 1 && first < step && first < row->grid_w; first++) {
        dml__depthwise_row phase = *row;
        const ptrdiff_t at = row->origin + first, before = at < 0 ? dml__quotient_up(-at, step) : 0;
        const ptrdiff_t from = at + before * step; /* in the image */
        phase.grid_w = (row->grid_w - 1 - first) / step + 1;
        phase.origin = at >= 0 ? at / step : -before;
        phase.source_w = row->source_w > from % step ? (row->source_w - 1 - from % step) / step + 1 : 0;
        phase.dilation = 1;
        phase.source += first * row->source_pixel, phase.source_pixel *= step;
        phase.target += first * row->target_pixel, phase.target_pixel *= step;
        phase.ask = false;
        dml__depthwise_phase(isa, &phase, role);
    }
}

#endif
