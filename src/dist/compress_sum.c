#ifndef DML_DIST_COMPRESS_SUM_C
#define DML_DIST_COMPRESS_SUM_C

#include "dist/compress_sum.h"

#include "dist/compress_codec.h"
#include "graph/program_internal.h"
#include "kernels/bf16.h"
#include "kernels/elementwise.h"
#include "kernels/half.h"
#include "train/loss_scale.h"
#include "train/trainer_internal.h"

#include <math.h>
#include <string.h>

DML__LOCAL dml_status dml__check_compression(dml_trainer *trainer, dml_compression *how)
{
    if (how->bits == 0) how->bits = 8;
    if (how->fraction == 0.0f) how->fraction = 0.01f;
    if (how->rank == 0) how->rank = 4;
    if ((int)how->kind < DML_COMPRESS_NONE || how->kind > DML_COMPRESS_POWER)
        return dml_trainer_fail(trainer, DML_ERROR_ARGUMENT,
                                "compression of kind %d asked for; there are %d, from DML_COMPRESS_NONE on",
                                (int)how->kind, DML_COMPRESS_POWER + 1);
    if (how->bits != 8 && how->bits != 4 && how->bits != 1)
        return dml_trainer_fail(trainer, DML_ERROR_ARGUMENT,
                                "gradients of %d bits asked for, it must be 8, 4 or 1", how->bits);
    if (!(how->fraction > 0.0f && how->fraction <= 1.0f))
        return dml_trainer_fail(
            trainer, DML_ERROR_ARGUMENT,
            "a fraction of %g of the gradients asked for, it must be above 0 and at most 1",
            (double)how->fraction);
    if (!(how->momentum >= 0.0f && how->momentum < 1.0f))
        return dml_trainer_fail(
            trainer, DML_ERROR_ARGUMENT,
            "compression with a momentum of %g asked for, it must be 0 or more, and below 1; 0: none",
            (double)how->momentum);
    if (how->warm_up < 0)
        return dml_trainer_fail(trainer, DML_ERROR_ARGUMENT,
                                "compression that warms up for %d steps asked for, it must be 0 or more",
                                how->warm_up);
    if (how->rank < 1)
        return dml_trainer_fail(trainer, DML_ERROR_ARGUMENT,
                                "gradients of rank %d asked for, it must be at least 1", how->rank);
    return DML_OK;
}

static bool dml__keeps(const dml__compressor *c)
{
    return c->how.kind >= DML_COMPRESS_QUANTISE;
}

static bool dml__narrows(const dml__compressor *c)
{
    return c->how.kind == DML_COMPRESS_BF16 || c->how.kind == DML_COMPRESS_F16;
}

/* Of a rank's code of n elements in a step that sends this fraction. */
static size_t dml__code_bytes(const dml__compressor *c, double fraction, size_t n)
{
    switch (c->how.kind) {
    case DML_COMPRESS_BF16:
    case DML_COMPRESS_F16: return 2 * n;
    case DML_COMPRESS_QUANTISE: return dml__quantised_bytes(c->how.bits, n);
    case DML_COMPRESS_TOP_K: return 8 * dml__sparse_count(fraction, n);
    default: return 0;
    }
}

/* From a quarter at step 0 down to what was asked for. */
static double dml__fraction_at(const dml_compression *how, uint64_t step)
{
    const double last = (double)how->fraction, first = 0.25;
    if (step >= (uint64_t)how->warm_up || last >= first) return last;
    return first * pow(last / first, (double)step / how->warm_up);
}

/* Ranges are rounded up by themselves, each by at most what a single element takes. */
static dml_status dml__compressor_allocate(dml__compressor *c, int ranges)
{
    const size_t codes =
        c->how.kind == DML_COMPRESS_QUANTISE || c->how.kind == DML_COMPRESS_TOP_K ? (size_t)c->ranks : 1;
    const double most = dml__fraction_at(&c->how, 0);
    const size_t one = dml__code_bytes(c, 1, 1), whole = dml__code_bytes(c, most, c->count);
    if (one && whole < SIZE_MAX / 4) {
        const size_t each = whole + (size_t)ranges * (one + DML__ALIGNMENT);
        c->code_bytes = each < SIZE_MAX / codes ? each * codes : 0;
        c->code = c->code_bytes ? (unsigned char *)dml__allocate_unset(c->memory, c->code_bytes) : NULL;
    }
    if (dml__keeps(c)) c->kept = (float *)dml__allocate_array(c->memory, c->count, sizeof(float));
    const bool moves = c->how.kind == DML_COMPRESS_TOP_K && c->how.momentum > 0.0f;
    if (moves) c->velocity = (float *)dml__allocate_array(c->memory, c->count, sizeof(float));
    return (one && !c->code) || (dml__keeps(c) && !c->kept) || (moves && !c->velocity) ? DML_ERROR_MEMORY
                                                                                       : DML_OK;
}

DML__LOCAL dml_status dml__compressor_open(dml__compressor *c, dml__memory *memory, dml_comm *comm,
                                           dml_trainer *trainer, const dml_compression *how, int ranges)
{
    memset(c, 0, sizeof *c);
    c->memory = memory;
    c->comm = comm;
    c->pool = dml_context_pool(dml_trainer_context(trainer));
    c->how = *how;
    c->ranks = dml_comm_world_size(comm);
    c->rank = dml_comm_rank(comm);
    c->runs = trainer->runs;
    c->count = dml_trainer_count(trainer, DML_GRADIENTS);
    c->unit = c->factor = 1;
    dml_status status = dml__check_compression(trainer, &c->how);
    if (status != DML_OK) return status;
    if (c->how.kind == DML_COMPRESS_TOP_K && c->count > UINT32_MAX)
        return dml_trainer_fail(trainer, DML_ERROR_UNSUPPORTED,
                                "the largest of %zu gradients asked for; their places are sent in 32 bits",
                                c->count);
    status = dml__compressor_allocate(c, ranges);
    if (status == DML_OK && c->how.kind == DML_COMPRESS_POWER &&
        !dml__low_rank_open(&c->low, memory, dml_trainer_program(trainer)->graph, c->how.rank,
                            dml_trainer_get_run(trainer).seed))
        status = DML_ERROR_MEMORY;
    if (status == DML_OK) return status;
    dml__compressor_close(c);
    return dml_trainer_fail(trainer, status, "no memory left to compress %zu gradients", c->count);
}

DML__LOCAL void dml__compressor_close(dml__compressor *c)
{
    if (!c->memory) return;
    dml__low_rank_close(&c->low, c->memory);
    dml__release(c->memory, c->kept);
    dml__release(c->memory, c->velocity);
    dml__release(c->memory, c->code);
    memset(c, 0, sizeof *c);
}

DML__LOCAL double dml__compressor_bytes(const dml__compressor *c)
{
    const size_t n = c->count;
    if (n == 0 || c->how.kind == DML_COMPRESS_NONE) return sizeof(float);
    if (c->how.kind == DML_COMPRESS_POWER)
        return (double)sizeof(float) * (double)(c->low.part[c->low.parts].p + c->low.part[c->low.parts].q) /
               (double)n;
    return (double)dml__code_bytes(c, (double)c->how.fraction, n) / (double)n;
}

DML__LOCAL bool dml__compressor_asks(const dml__compressor *c)
{
    return dml__keeps(c) || c->how.kind == DML_COMPRESS_F16;
}

/* What the run that is over has left isn't the next one's to send. */
static void dml__compressor_follow_run(dml__compressor *c, const dml_trainer *trainer)
{
    if (c->runs == trainer->runs) return;
    c->runs = trainer->runs;
    dml__compressor_forget(c);
    if (c->how.kind == DML_COMPRESS_POWER) dml__low_rank_begin(&c->low, trainer->context->seed);
}

/* What is kept are means, so that steps of any numbers of samples and with any loss scale add up. f16 takes
   them with the loss scale, which is there for its range, and divided by a power of two, which changes no
   bit. */
DML__LOCAL void dml__compressor_begin(dml__compressor *c, const dml_trainer *trainer, double samples)
{
    const double unit = (double)dml_trainer_loss_scale(trainer) / dml__loss_factor(trainer);
    double whole = 1;
    dml__compressor_follow_run(c, trainer);
    c->code_used = 0;
    c->before = NULL;
    c->fraction = dml__fraction_at(&c->how, dml_trainer_steps(trainer));
    if (c->how.kind == DML_COMPRESS_F16)
        while (whole * unit < samples) whole *= 2;
    else if (dml__keeps(c) && samples > 0)
        whole = samples * dml__loss_factor(trainer);
    c->unit = (float)(1 / whole);
    c->factor = (float)whole;
}

/* ---- a range ---- */

static unsigned char *dml__take_code(dml__compressor *c, size_t bytes)
{
    unsigned char *code = c->code + c->code_used;
    DML_ASSERT(bytes <= c->code_bytes - c->code_used);
    c->code_used += bytes;
    c->code_used = c->code_used / DML__ALIGNMENT * DML__ALIGNMENT +
                   (c->code_used % DML__ALIGNMENT ? (size_t)DML__ALIGNMENT : 0);
    if (c->code_used > c->code_bytes) c->code_used = c->code_bytes;
    return code;
}

static dml_status dml__narrow_start(dml__compressor *c, float *g, dml__coded_sum *sum)
{
    const size_t n = sum->end - sum->begin;
    sum->code = dml__take_code(c, 2 * n);
    if (c->how.kind == DML_COMPRESS_BF16) {
        dml_bf16_from_f32(c->pool, n, g, (dml_bf16 *)(void *)sum->code);
    } else {
        dml_scale(c->pool, n, c->unit, g);
        dml_f16_from_f32(c->pool, n, g, (dml_f16 *)(void *)sum->code);
    }
    sum->request = dml_comm_all_reduce_start(c->comm, sum->code, n,
                                             c->how.kind == DML_COMPRESS_BF16 ? DML_BF16 : DML_F16, DML_SUM);
    return dml_comm_status(c->comm);
}

/* Each rank's code goes to all, this one's from its place among them. */
static dml_status dml__gather_start(dml__compressor *c, const float *g, dml__coded_sum *sum)
{
    const size_t n = sum->end - sum->begin;
    sum->sent = dml__sparse_count(c->fraction, n);
    const size_t bytes = dml__code_bytes(c, c->fraction, n);
    float *kept = c->kept + sum->begin;
    sum->code = dml__take_code(c, bytes * (size_t)c->ranks);
    unsigned char *mine = sum->code + bytes * (size_t)c->rank;
    if (c->how.kind == DML_COMPRESS_QUANTISE)
        dml__quantise(c->pool, c->how.bits, n, g, c->unit, kept, mine);
    else
        dml__sparsify(n, sum->sent, g, c->unit, c->how.momentum,
                      c->velocity ? c->velocity + sum->begin : NULL, kept, mine);
    sum->request = dml_comm_all_gather_start(c->comm, mine, bytes, DML_U8, sum->code);
    return dml_comm_status(c->comm);
}

/* With P summed, Q is on its way. */
static dml_status dml__low_rank_go_on(dml__compressor *c, dml__coded_sum *sum)
{
    size_t first, behind;
    dml_request *request = sum->request;
    sum->request = NULL;
    sum->expands = true;
    if (dml_comm_wait(c->comm, request) != DML_OK) return dml_comm_status(c->comm);
    dml__low_rank_find(&c->low, sum->begin, sum->end, &first, &behind);
    dml__low_rank_back(&c->low, c->pool, first, behind, c->kept);
    const size_t from = c->low.part[first].q, to = c->low.part[behind].q;
    sum->request = dml_comm_all_reduce_start(c->comm, c->low.q + from, to - from, DML_F32, DML_SUM);
    return dml_comm_status(c->comm);
}

/* All ranks have to start their calls in one order, whenever answers come: the Q of a range follows the P of
 * the next, for which there was a range's time. */
static dml_status dml__low_rank_start(dml__compressor *c, const float *g, dml__coded_sum *sum)
{
    size_t first, behind;
    dml__low_rank_find(&c->low, sum->begin, sum->end, &first, &behind);
    dml__low_rank_project(&c->low, c->pool, first, behind, g, c->unit, c->kept);
    const size_t from = c->low.part[first].p, to = c->low.part[behind].p;
    dml__coded_sum *before = c->before;
    c->before = sum;
    sum->request = dml_comm_all_reduce_start(c->comm, c->low.p + from, to - from, DML_F32, DML_SUM);
    if (!sum->request) return dml_comm_status(c->comm);
    return before ? dml__low_rank_go_on(c, before) : DML_OK;
}

DML__LOCAL dml_status dml__coded_sum_start(dml__compressor *c, float *g, size_t begin, size_t end,
                                           dml__coded_sum *sum)
{
    memset(sum, 0, sizeof *sum);
    sum->begin = begin;
    sum->end = end;
    if (dml__narrows(c)) return dml__narrow_start(c, g, sum);
    if (c->how.kind == DML_COMPRESS_POWER) return dml__low_rank_start(c, g, sum);
    if (dml__keeps(c)) return dml__gather_start(c, g, sum);
    sum->request = dml_comm_all_reduce_start(c->comm, g, end - begin, DML_F32, DML_SUM);
    return dml_comm_status(c->comm);
}

static void dml__coded_sum_decode(dml__compressor *c, float *g, const dml__coded_sum *sum)
{
    const size_t n = sum->end - sum->begin;
    size_t first, behind;
    switch (c->how.kind) {
    case DML_COMPRESS_BF16: dml_bf16_to_f32(c->pool, n, (const dml_bf16 *)(const void *)sum->code, g); break;
    case DML_COMPRESS_F16:
        dml_f16_to_f32(c->pool, n, (const dml_f16 *)(const void *)sum->code, g);
        dml_scale(c->pool, n, c->factor, g);
        break;
    case DML_COMPRESS_QUANTISE:
        dml__quantised_sum(c->pool, c->how.bits, n, sum->code, c->ranks, c->factor, g);
        break;
    case DML_COMPRESS_TOP_K: dml__sparse_sum(n, sum->sent, sum->code, c->ranks, c->factor, g); break;
    case DML_COMPRESS_POWER:
        dml__low_rank_find(&c->low, sum->begin, sum->end, &first, &behind);
        dml__low_rank_expand(&c->low, c->pool, first, behind, c->factor, g);
        break;
    default: break;
    }
}

DML__LOCAL dml_status dml__coded_sum_take(dml__compressor *c, float *g, dml__coded_sum *sum)
{
    if (c->before) {
        dml__coded_sum *last = c->before;
        c->before = NULL;
        if (dml__low_rank_go_on(c, last) != DML_OK) return dml_comm_status(c->comm);
    }
    dml_request *request = sum->request;
    sum->request = NULL;
    if (dml_comm_wait(c->comm, request) != DML_OK) return dml_comm_status(c->comm);
    dml__coded_sum_decode(c, g, sum);
    return DML_OK;
}

DML__LOCAL void dml__coded_sum_drop(dml__compressor *c, dml__coded_sum *sum)
{
    if (sum->request) dml_comm_wait(c->comm, sum->request);
    memset(sum, 0, sizeof *sum);
    c->before = NULL;
}

DML__LOCAL void dml__compressor_forget(dml__compressor *c)
{
    if (c->kept) memset(c->kept, 0, c->count * sizeof *c->kept);
    if (c->velocity) memset(c->velocity, 0, c->count * sizeof *c->velocity);
}

#endif
