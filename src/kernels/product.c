#ifndef DML_KERNELS_PRODUCT_C
#define DML_KERNELS_PRODUCT_C

#include "kernels/product.h"

#include "kernels/finish.h"
#include "kernels/product_range.h"
#include "kernels/rounded.h"
#include "kernels/thin.h"

#include <string.h>

/* A small C under a long k has too few tiles to share among threads, and one of few more would have each of
   them read factors of many megabytes. Its k is then cut into at most DML__CHUNKS chunks, whose partial sums
   are added up in order. Whether and where to cut depends on the sizes alone. The shared scratch holds those
   sums. */
#define DML__CHUNKS 16
#define DML__CHUNK_K 512 /* of which a chunk is a multiple */

/* Elements of C, at most; and where there are at least DML__LEAST_CHUNKS whose sums are together one part in
   DML__CHUNK_TRAFFIC of the factors. */
#define DML__CHUNKED_C 4096
#define DML__CHUNKED_LARGE_C 131072
#define DML__LEAST_CHUNKS 4
#define DML__CHUNK_TRAFFIC 16

#define DML__CHUNK_BLOCK 2048 /* elements of a block of C, where the chunks' sums are on the stack */

/* Fewer multiply-adds than this are not worth waking anybody. */
#define DML__SERIAL_WORK 100000.0

/* Multiply-adds of a block that is long, of which a thread gets several; the fewest tiles of one; and how
   many multiply-adds take as long as packing a float. */
#define DML__BLOCK_WORK 67108864.0
#define DML__BLOCK_TILES 4
#define DML__PACKING 10.0

/* What the end of a line takes from a product whose sums were formed on the side: terms, `step` apart. */
static dml__finish dml__end_of(const dml__product *product, int terms, ptrdiff_t step)
{
    const dml__finish finish = { terms,
                                 step,
                                 product->alpha,
                                 product->beta,
                                 product->epilogue.bias,
                                 product->epilogue.activation == DML_ACTIVATION_RELU };
    return finish;
}

/* For a product without terms. */
static void dml__scale_c(const dml__product *product)
{
    for (ptrdiff_t i = 0; i < product->m; i++) {
        float *row = product->c + i * product->ldc;
        for (ptrdiff_t j = 0; j < product->n; j++) {
            float value = product->beta == 0 ? 0 : product->beta * row[j];
            if (product->epilogue.bias) value += product->epilogue.bias[j];
            row[j] = product->epilogue.activation == DML_ACTIVATION_RELU && value <= 0 ? 0 : value;
        }
    }
}

/* --- sharing C among the workers, in blocks of rows and columns --- */

typedef struct dml__block_loop {
    const dml__job *job;
    dml_pool *pool;
    ptrdiff_t mc, nc, columns_of_blocks;
} dml__block_loop;

static void dml__block_task(void *argument, int task, int worker)
{
    const dml__block_loop *loop = (const dml__block_loop *)argument;
    const dml__product *product = &loop->job->product;
    const ptrdiff_t i = task / loop->columns_of_blocks, j = task % loop->columns_of_blocks;
    const dml__range range = { i * loop->mc,
                               dml__smaller(product->m, (i + 1) * loop->mc),
                               j ? dml__cut_columns(loop->job, j * loop->nc, product->n) : 0,
                               dml__cut_columns(loop->job, (j + 1) * loop->nc, product->n),
                               0,
                               product->k };
    dml__multiply_as(loop->pool, worker, loop->job, &range);
}

/* How many blocks are wanted: one a thread, and up to four where each is long: who is late then does fewer of
   them, but each block packs its factors anew. */
static ptrdiff_t dml__blocks_wanted(const dml_pool *pool, const dml__product *product)
{
    const double work = (double)product->m * (double)product->n * (double)product->k;
    const double threads = dml_pool_threads(pool), each = work / threads / DML__BLOCK_WORK;
    if (work < DML__SERIAL_WORK || threads == 1) return 1;
    return (ptrdiff_t)(threads * (each < 1 ? 1 : each > 4 ? 4 : (int)each));
}

/* Cuts C into about so many blocks of whole tiles, at least DML__BLOCK_TILES each where it is larger, such
   that all of them in turn take the least: their multiply-adds, and what is packed for them. */
static void dml__cut_into_blocks(dml__block_loop *loop, ptrdiff_t wanted)
{
    const dml__job *job = loop->job;
    const ptrdiff_t high = dml__quotient_up(job->product.m, job->rows);
    const ptrdiff_t wide = dml__quotient_up(job->product.n, job->full);
    wanted = dml__smaller(wanted, dml__quotient_up(high * wide, DML__BLOCK_TILES));
    double least = 0;
    for (ptrdiff_t columns = 1; columns == 1 || columns <= dml__smaller(wanted, wide); columns *= 2) {
        const ptrdiff_t h = dml__quotient_up(high, dml__smaller(high, dml__quotient_up(wanted, columns)));
        const ptrdiff_t w = dml__quotient_up(wide, columns);
        const ptrdiff_t blocks = dml__quotient_up(high, h) * dml__quotient_up(wide, w);
        const double rows = (double)(h * job->rows), across = (double)(w * job->full);
        const double turns = (double)dml__quotient_up(blocks, wanted);
        const double cost = turns * (rows * across + DML__PACKING * (rows + across));
        if (columns > 1 && cost >= least) continue;
        least = cost;
        loop->mc = h * job->rows;
        loop->nc = w * job->full;
    }
    loop->columns_of_blocks = dml__quotient_up(job->product.n, loop->nc);
}

static void dml__multiply_blocks(dml_pool *pool, const dml__job *job)
{
    const ptrdiff_t wanted = dml__blocks_wanted(pool, &job->product);
    if (wanted == 1) {
        const dml__range all = { 0, job->product.m, 0, job->product.n, 0, job->product.k };
        dml__multiply_as(pool, 0, job, &all);
        return;
    }
    dml__block_loop loop = { job, pool, 0, 0, 0 };
    dml__cut_into_blocks(&loop, wanted);
    const ptrdiff_t tasks = dml__quotient_up(job->product.m, loop.mc) * loop.columns_of_blocks;
    dml_pool_run(pool, (int)tasks, dml__block_task, &loop);
}

/* --- sharing k, in chunks --- */

/* Into how many chunks k is cut at most; 1: it isn't. Of a larger C only so many that their sums are a small
   part of the factors, which then come from memory once. (Two threads, 56 x 56 x 64 to 256 at batch 8: 2.0.)
 */
static ptrdiff_t dml__most_chunks(ptrdiff_t m, ptrdiff_t n, ptrdiff_t k)
{
    if (k < 2 * DML__CHUNK_K) return 1;
    if (m <= DML__CHUNKED_C / n) return DML__CHUNKS;
    if (m > DML__CHUNKED_LARGE_C / n) return 1;
    const ptrdiff_t chunks = k / DML__CHUNK_TRAFFIC * (m + n) / (m * n);
    return chunks < DML__LEAST_CHUNKS ? 1 : dml__smaller(chunks, DML__CHUNKS);
}

static bool dml__is_chunked(ptrdiff_t m, ptrdiff_t n, ptrdiff_t k)
{
    return dml__most_chunks(m, n, k) > 1;
}

static ptrdiff_t dml__chunk_size(ptrdiff_t m, ptrdiff_t n, ptrdiff_t k)
{
    const ptrdiff_t blocks = dml__quotient_up(k, DML__CHUNK_K), most = dml__most_chunks(m, n, k);
    return most == 1 ? k : dml__quotient_up(blocks, dml__smaller(blocks, most)) * DML__CHUNK_K;
}

typedef struct dml__chunk_loop {
    const dml__product *product;
    dml__job job; /* its partial sums, dense; C is set for each chunk */
    dml_pool *pool;
    ptrdiff_t chunk; /* of k */
    int chunks;
    float *partial;                      /* (chunks, m, n), or NULL: */
    ptrdiff_t mc, nc, columns_of_blocks; /* the blocks of the job's C that are computed through all chunks */
} dml__chunk_loop;

/* Chunk c's partial sums of a range of the job's C, where that range's first element is to lie at `partial`.
 */
static void dml__compute_chunk(const dml__chunk_loop *loop, int c, dml__range range, float *partial,
                               int worker)
{
    dml__job job = loop->job;
    job.product.c = partial;
    job.product.c -= dml__job_c(&job, range.i0, range.j0) - partial;
    range.k0 = c * loop->chunk;
    range.k1 = dml__smaller(job.product.k, range.k0 + loop->chunk);
    dml__multiply_as(loop->pool, worker, &job, &range);
}

static void dml__chunk_task(void *argument, int task, int worker)
{
    const dml__chunk_loop *loop = (const dml__chunk_loop *)argument;
    const dml__range all = { 0, loop->job.product.m, 0, loop->job.product.n, 0, 0 };
    dml__compute_chunk(loop, task, all, loop->partial + task * loop->product->m * loop->product->n, worker);
}

static void dml__add_chunks_task(void *argument, int task, int worker)
{
    const dml__chunk_loop *loop = (const dml__chunk_loop *)argument;
    const dml__product *product = loop->product;
    const dml__finish finish = dml__end_of(product, loop->chunks, product->m * product->n);
    (void)worker;
    dml__finish_line(loop->job.isa, (size_t)product->n, &finish, loop->partial + task * product->n,
                     product->c + task * product->ldc);
}

/* A block of C through all chunks, with sums on the stack: packs more often than the chunks do. */
static void dml__chunked_block_task(void *argument, int task, int worker)
{
    const dml__chunk_loop *loop = (const dml__chunk_loop *)argument;
    dml__chunk_loop block = *loop;
    const dml__product *whole = &loop->job.product;
    const ptrdiff_t i = task / loop->columns_of_blocks * loop->mc,
                    j = task % loop->columns_of_blocks * loop->nc;
    const dml__range range = { i, dml__smaller(i + loop->mc, whole->m),
                               j, dml__smaller(j + loop->nc, whole->n),
                               0, 0 };
    const bool transposed = loop->job.transposed;
    const ptrdiff_t lines = transposed ? range.j1 - range.j0 : range.i1 - range.i0;
    const ptrdiff_t length = transposed ? range.i1 - range.i0 : range.j1 - range.j0;
    const ptrdiff_t line = transposed ? range.j0 : range.i0, first = transposed ? range.i0 : range.j0;
    static const dml__finish add = { 1, 0, 1, 1, NULL, false };
    dml__finish finish = dml__end_of(loop->product, 1, 0);
    float sum[DML__CHUNK_BLOCK], partial[DML__CHUNK_BLOCK]; /* (lines, length) */
    block.job.product.ldc = length;
    for (int c = 0; c < loop->chunks; c++) {
        dml__compute_chunk(&block, c, range, c ? partial : sum, worker);
        if (c) dml__finish_line(loop->job.isa, (size_t)(lines * length), &add, partial, sum);
    }
    if (finish.bias) finish.bias += first;
    for (ptrdiff_t l = 0; l < lines; l++)
        dml__finish_line(loop->job.isa, (size_t)length, &finish, sum + l * length,
                         loop->product->c + (line + l) * loop->product->ldc + first);
}

static void dml__multiply_chunks(dml_pool *pool, const dml__product *product)
{
    dml__product part = *product;
    part.alpha = 1;
    part.beta = 0;
    memset(&part.epilogue, 0, sizeof part.epilogue);
    part.ldc = part.n;
    const ptrdiff_t chunk = dml__chunk_size(product->m, product->n, product->k);
    const int chunks = (int)dml__quotient_up(product->k, chunk);
    dml__chunk_loop loop = {
        product, dml__plan_product(dml__pool_machine(pool), &part), pool, chunk, chunks, NULL, 0, 0, 0
    };
    const dml__job *job = &loop.job;
    const size_t partial_bytes = (size_t)chunks * (size_t)(product->m * product->n) * sizeof(float);
    if (dml_pool_scratch_bytes(pool).shared >= partial_bytes) {
        loop.partial = (float *)dml_pool_shared_scratch(pool);
        dml_pool_run(pool, loop.chunks, dml__chunk_task, &loop);
        dml_pool_run(pool, (int)product->m, dml__add_chunks_task, &loop);
        return;
    }
    loop.nc = 2 * job->full;
    loop.mc = DML__CHUNK_BLOCK / loop.nc / job->rows * job->rows;
    loop.columns_of_blocks = dml__quotient_up(job->product.n, loop.nc);
    dml_pool_run(pool, (int)(dml__quotient_up(job->product.m, loop.mc) * loop.columns_of_blocks),
                 dml__chunked_block_task, &loop);
}

DML__LOCAL dml_scratch dml__product_scratch(const dml__product *product)
{
    dml_scratch scratch = { 0, 0 };
    const ptrdiff_t m = product->m, n = product->n, k = product->k;
    const dml__machine machine = dml__pool_machine(NULL);
    if (m <= 0 || n <= 0 || k <= 0 || dml__thin_kind(product, machine.isa) != DML__NOT_THIN) return scratch;
    const dml__job job = dml__plan_product(machine, product);
    const dml__range all = { 0, job.product.m, 0, job.product.n, 0, dml__chunk_size(m, n, k) };
    scratch.worker = dml__range_scratch(&job, &all);
    if (dml__is_chunked(m, n, k))
        scratch.shared = (size_t)(dml__quotient_up(k, dml__chunk_size(m, n, k)) * m * n) * sizeof(float);
    return scratch;
}

DML__LOCAL bool dml__multiply_alone(dml_pool *pool, int worker, const dml__product *asked)
{
    dml__rounded_product rounded;
    const dml__product *product = dml__as_the_pool_rounds(pool, asked, &rounded);
    const ptrdiff_t m = product->m, n = product->n, k = product->k;
    if (m <= 0 || n <= 0) return true;
    if (k <= 0 || product->alpha == 0) {
        dml__scale_c(product);
    } else if (dml__thin_kind(product, dml__pool_machine(pool).isa) != DML__NOT_THIN) {
        dml__multiply_thin(NULL, product);
    } else if (dml__is_chunked(m, n, k)) {
        return false;
    } else {
        const dml__job job = dml__plan_product(dml__pool_machine(pool), product);
        const dml__range all = { 0, job.product.m, 0, job.product.n, 0, k };
        dml__multiply_as(pool, worker, &job, &all);
    }
    return true;
}

DML__LOCAL void dml__multiply(dml_pool *pool, const dml__product *asked)
{
    dml__rounded_product rounded;
    const dml__product *product = dml__as_the_pool_rounds(pool, asked, &rounded);
    if (product->m <= 0 || product->n <= 0) return;
    if (product->k <= 0 || product->alpha == 0) {
        dml__scale_c(product);
    } else if (dml__thin_kind(product, dml__pool_machine(pool).isa) != DML__NOT_THIN) {
        dml__multiply_thin(pool, product);
    } else if (dml__is_chunked(product->m, product->n, product->k)) {
        dml__multiply_chunks(pool, product);
    } else {
        const dml__job job = dml__plan_product(dml__pool_machine(pool), product);
        dml__multiply_blocks(pool, &job);
    }
}

#endif
