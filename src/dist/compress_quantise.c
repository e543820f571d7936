#ifndef DML_DIST_COMPRESS_QUANTISE_C
#define DML_DIST_COMPRESS_QUANTISE_C

#include "dist/compress_codec.h"

#include "kernels/blocks.h"
#include "kernels/vector.h"
#include "thread/pool_internal.h"

#include <string.h>

/* A block's code: its scale, the upper half of an f32 (two bytes, the low one first), and its levels. Such a
   scale has 8 bits, and a level at most 7: their product is exact, so that decoders with an FMA and without
   one get the same sum. The last block is filled up with zeros. */
enum { DML__QUANTISED_BLOCK = 256, DML__QUANTISED_TASK = 64 /* blocks */ };

static size_t dml__quantised_block_bytes(int bits)
{
    return 2 + (size_t)(DML__QUANTISED_BLOCK / 8 * bits);
}

DML__LOCAL size_t dml__quantised_bytes(int bits, size_t n)
{
    return dml__divide_up(n, DML__QUANTISED_BLOCK) * dml__quantised_block_bytes(bits);
}

static float dml__scale_of_bits(uint32_t bits)
{
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}

/* The next larger float of which only the upper half is there. 0 for what is so small that its reciprocal
   would be infinite; infinity becomes a NaN. */
static float dml__short_scale(float scale)
{
    uint32_t bits;
    if (scale < 1e-37f) return 0;
    memcpy(&bits, &scale, sizeof bits);
    if (scale - scale == 0) bits += 0xFFFF;
    bits &= 0xFFFF0000u;
    return bits < 0x7F800000u ? dml__scale_of_bits(bits) : dml__scale_of_bits(0x7FC00000u);
}

/* x = kept + unit g, its largest magnitude, and the sum of all. */
DML__BODY void dml__quantise_add(const float *g, float unit, const float *kept, float *x, float *most,
                                 float *total)
{
    dml__vf largest = { 0 }, sum = { 0 };
    for (int i = 0; i < DML__QUANTISED_BLOCK; i += DML__LANES) {
        const dml__vf value = DML__LOAD(kept + i) + unit * DML__LOAD(g + i);
        const dml__vf size = (dml__vf)((dml__vi)value & 0x7FFFFFFF);
        const dml__vi larger = size > largest;
        largest = (dml__vf)(((dml__vi)size & larger) | ((dml__vi)largest & ~larger));
        sum += size;
        DML__STORE(x + i, value);
    }
    *most = *total = 0;
    for (int i = 0; i < DML__LANES; i++) {
        *most = largest[i] > *most ? largest[i] : *most;
        *total += sum[i];
    }
}

/* level = x / scale, rounded to nearest by a number that leaves no place for a fraction; kept = x - level
   scale. */
DML__BODY void dml__quantise_levels(const float *x, float scale, float *kept, int32_t *level)
{
    const float inverse = scale > 0 ? 1 / scale : 0, round = 12582912.0f; /* 1.5 2^23 */
    for (int i = 0; i < DML__QUANTISED_BLOCK; i += DML__LANES) {
        const dml__vf value = DML__LOAD(x + i), rounded = value * inverse + round;
        DML__STORE_INT(level + i, (dml__vi)rounded - 0x4B400000);
        DML__STORE(kept + i, value - (rounded - round) * scale);
    }
}

DML__BODY void dml__quantise_signs(const float *x, float scale, float *kept, int32_t *level)
{
    uint32_t bits;
    memcpy(&bits, &scale, sizeof bits);
    for (int i = 0; i < DML__QUANTISED_BLOCK; i += DML__LANES) {
        const dml__vf value = DML__LOAD(x + i);
        const dml__vi negative = value < 0.0f;
        DML__STORE_INT(level + i, negative & 1);
        DML__STORE(kept + i, value - (dml__vf)((negative & (int32_t)0x80000000) | (int32_t)bits));
    }
}

/* Elements that lie apart share a byte, so that neighbours are packed by the same instruction. */
DML__BODY void dml__pack_levels(int bits, const int32_t *level, unsigned char *code)
{
    if (bits == 8) {
        for (int i = 0; i < 256; i++) code[i] = (unsigned char)level[i];
    } else if (bits == 4) {
        for (int i = 0; i < 128; i++) code[i] = (unsigned char)((level[i] & 15) | (level[128 + i] & 15) << 4);
    } else {
        for (int i = 0; i < 32; i++) {
            int byte = 0;
            for (int b = 0; b < 8; b++) byte |= level[32 * b + i] << b;
            code[i] = (unsigned char)byte;
        }
    }
}

/* A whole block, of which `filled` elements count. */
DML__BODY void dml__quantise_block_body(int bits, int filled, const float *g, float unit, float *kept,
                                        unsigned char *code)
{
    float x[DML__QUANTISED_BLOCK], most, total;
    int32_t level[DML__QUANTISED_BLOCK];
    dml__quantise_add(g, unit, kept, x, &most, &total);
    const float wanted = bits == 1 ? total / (float)filled : most / (bits == 8 ? 127.0f : 7.0f);
    const float scale = dml__short_scale(total - total == 0 ? wanted : total);
    uint32_t scale_bits;
    memcpy(&scale_bits, &scale, sizeof scale_bits);
    code[0] = (unsigned char)(scale_bits >> 16);
    code[1] = (unsigned char)(scale_bits >> 24);
    if (scale != scale) {
        memset(kept, 0, DML__QUANTISED_BLOCK * sizeof *kept);
        memset(code + 2, 0, (size_t)(DML__QUANTISED_BLOCK / 8 * bits));
        return;
    }
    if (bits == 1)
        dml__quantise_signs(x, scale, kept, level);
    else
        dml__quantise_levels(x, scale, kept, level);
    dml__pack_levels(bits, level, code + 2);
}
DML__PER_ISA(dml__quantise_block,
             (int bits, int filled, const float *g, float unit, float *kept, unsigned char *code),
             (bits, filled, g, unit, kept, code))

/* sum += what the code says */
DML__BODY void dml__unquantise_block_body(int bits, const unsigned char *code, float *sum)
{
    const float scale = dml__scale_of_bits((uint32_t)code[0] << 16 | (uint32_t)code[1] << 24);
    const unsigned char *level = code + 2;
    if (bits == 8) {
        for (int i = 0; i < 256; i++) sum[i] += scale * (float)(signed char)level[i];
    } else if (bits == 4) {
        for (int i = 0; i < 128; i++) {
            sum[i] += scale * (float)(((level[i] & 15) ^ 8) - 8);
            sum[128 + i] += scale * (float)((level[i] >> 4 ^ 8) - 8);
        }
    } else {
        for (int b = 0; b < 8; b++)
            for (int i = 0; i < 32; i++) sum[32 * b + i] += scale * (float)(1 - 2 * (level[i] >> b & 1));
    }
}
DML__PER_ISA(dml__unquantise_block, (int bits, const unsigned char *code, float *sum), (bits, code, sum))

typedef struct dml__quantise_call {
    dml_isa isa;
    int bits, ranks;
    size_t n, bytes; /* of the range; of a rank's code of it */
    const float *g;
    float *kept, *sum;
    unsigned char *code;
    const unsigned char *codes;
    float factor;
} dml__quantise_call;

static void dml__quantise_task(void *argument, int task, int worker)
{
    const dml__quantise_call *call = (const dml__quantise_call *)argument;
    const size_t first = (size_t)task * DML__QUANTISED_TASK * DML__QUANTISED_BLOCK;
    const size_t behind = first + (size_t)DML__QUANTISED_TASK * DML__QUANTISED_BLOCK;
    float g[DML__QUANTISED_BLOCK], kept[DML__QUANTISED_BLOCK];
    (void)worker;
    for (size_t at = first; at < behind && at < call->n; at += DML__QUANTISED_BLOCK) {
        unsigned char *code = call->code + at / DML__QUANTISED_BLOCK * dml__quantised_block_bytes(call->bits);
        const size_t left = call->n - at;
        if (left >= DML__QUANTISED_BLOCK) {
            dml__quantise_block(call->isa, call->bits, DML__QUANTISED_BLOCK, call->g + at, call->factor,
                                call->kept + at, code);
            continue;
        }
        memset(g, 0, sizeof g);
        memset(kept, 0, sizeof kept);
        memcpy(g, call->g + at, left * sizeof *g);
        memcpy(kept, call->kept + at, left * sizeof *kept);
        dml__quantise_block(call->isa, call->bits, (int)left, g, call->factor, kept, code);
        memcpy(call->kept + at, kept, left * sizeof *kept);
    }
}

static void dml__quantised_sum_task(void *argument, int task, int worker)
{
    const dml__quantise_call *call = (const dml__quantise_call *)argument;
    const size_t first = (size_t)task * DML__QUANTISED_TASK * DML__QUANTISED_BLOCK;
    const size_t behind = first + (size_t)DML__QUANTISED_TASK * DML__QUANTISED_BLOCK;
    float sum[DML__QUANTISED_BLOCK];
    (void)worker;
    for (size_t at = first; at < behind && at < call->n; at += DML__QUANTISED_BLOCK) {
        const unsigned char *code =
            call->codes + at / DML__QUANTISED_BLOCK * dml__quantised_block_bytes(call->bits);
        memset(sum, 0, sizeof sum);
        for (int r = 0; r < call->ranks; r++, code += call->bytes)
            dml__unquantise_block(call->isa, call->bits, code, sum);
        const size_t count = dml__minimum(DML__QUANTISED_BLOCK, call->n - at);
        for (size_t i = 0; i < count; i++) call->sum[at + i] = call->factor * sum[i];
    }
}

static void dml__quantise_run(dml_pool *pool, dml_pool_task task, dml__quantise_call *call, int bits,
                              size_t n, float factor)
{
    call->isa = dml__pool_machine(pool).isa;
    call->bits = bits;
    call->n = n;
    call->bytes = dml__quantised_bytes(bits, n);
    call->factor = factor;
    dml_pool_run(pool, (int)dml__divide_up(n, (size_t)DML__QUANTISED_TASK * DML__QUANTISED_BLOCK), task,
                 call);
}

DML__LOCAL void dml__quantise(dml_pool *pool, int bits, size_t n, const float *g, float unit, float *kept,
                              unsigned char *code)
{
    dml__quantise_call call;
    memset(&call, 0, sizeof call);
    call.g = g;
    call.kept = kept;
    call.code = code;
    dml__quantise_run(pool, dml__quantise_task, &call, bits, n, unit);
}

DML__LOCAL void dml__quantised_sum(dml_pool *pool, int bits, size_t n, const unsigned char *codes, int ranks,
                                   float factor, float *sum)
{
    dml__quantise_call call;
    memset(&call, 0, sizeof call);
    call.codes = codes;
    call.ranks = ranks;
    call.sum = sum;
    dml__quantise_run(pool, dml__quantised_sum_task, &call, bits, n, factor);
}

#endif
