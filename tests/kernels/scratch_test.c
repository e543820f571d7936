/* What products and convolutions do with a pool's scratch: the same bits with any, no more of it used than
   they say, and all of it when it is there. */
#include "kernels/conv2d.h"
#include "kernels/gemm.h"

#include "kernel_test.h"

enum { GEMM, FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHTS };

typedef struct product {
    int kind;
    int m, n, k; /* GEMM */
    dml_transpose trans_b;
    dml_conv2d_shape s; /* the others */
} product;

typedef struct arrays {
    size_t a_count, b_count, c_count;
    float *a, *b, *c, *want, *got;
} arrays;

/* With trans_b both factors are packed, without, B may be used in place. */
static const struct {
    int m, n, k;
    dml_transpose trans_b;
} products[] = {
    { 5, 7, 3, DML_NO_TRANS },      { 5, 7, 3, DML_TRANS },       { 1, 1, 1, DML_NO_TRANS },
    { 64, 10, 84, DML_TRANS },      { 64, 120, 400, DML_TRANS },  { 30, 800, 300, DML_NO_TRANS },
    { 10, 800, 300, DML_TRANS },    { 8, 1600, 40, DML_TRANS },   { 300, 3, 70, DML_NO_TRANS },
    { 300, 3, 70, DML_TRANS },      { 100, 9, 300, DML_TRANS },   { 3, 300, 300, DML_NO_TRANS },
    { 32, 32, 1300, DML_NO_TRANS }, { 9, 32, 4200, DML_TRANS },   { 6, 25, 5001, DML_TRANS },
    { 64, 64, 1024, DML_TRANS },    { 1, 1, 2000, DML_TRANS },    { 300, 3, 1100, DML_TRANS },
    { 3, 300, 1100, DML_NO_TRANS }, { 2, 1000, 1030, DML_TRANS }, { 1000, 2, 1030, DML_TRANS },
};
enum { PRODUCTS = sizeof products / sizeof products[0] };

static const dml_conv2d_shape convolutions[] = {
    { 9, 14, 14, 1, 6, 5, 5, 1, 1, 2, 2, 0, 0, 0, 0, 0 },
    { 3, 9, 11, 37, 33, 3, 3, 1, 1, 1, 1, 0, 0, 0, 0, 0 },
    { 2, 13, 12, 3, 17, 3, 2, 2, 3, 1, 0, 0, 0, 0, 0, 0 },
    { 4, 28, 28, 1, 8, 3, 3, 1, 1, 3, 3, 0, 0, 0, 0, 0 },
    { 1, 3, 3, 1, 1, 3, 3, 1, 1, 0, 0, 0, 0, 0, 0, 0 },
    { 9, 14, 15, 3, 16, 3, 3, 1, 1, 1, 1, 0, 0, 0, 0, 0 }, /* chunks of a turned gradient */
};
enum { CONVOLUTIONS = sizeof convolutions / sizeof convolutions[0] };

static size_t volume(int a, int b, int c, int d)
{
    return (size_t)a * (size_t)b * (size_t)c * (size_t)d;
}

static arrays arrays_create(const product *p, unsigned *state)
{
    arrays r;
    const dml_conv2d_shape *s = &p->s;
    if (p->kind == GEMM) {
        r.a_count = volume(p->m, p->k, 1, 1), r.b_count = volume(p->k, p->n, 1, 1);
        r.c_count = volume(p->m, p->n, 1, 1);
    } else {
        const int out_h = dml_conv2d_output_size(s->height, s->kernel_h, s->stride_h, s->pad_h);
        const int out_w = dml_conv2d_output_size(s->width, s->kernel_w, s->stride_w, s->pad_w);
        const size_t x = volume(s->batch, s->height, s->width, s->channels);
        const size_t w = volume(s->filters, s->kernel_h, s->kernel_w, s->channels);
        const size_t y = volume(s->batch, out_h, out_w, s->filters);
        r.a_count = p->kind == BACKWARD_INPUT ? y : x;
        r.b_count = p->kind == BACKWARD_WEIGHTS ? y : w;
        r.c_count = p->kind == FORWARD ? y : p->kind == BACKWARD_INPUT ? x : w;
    }
    r.a = kernel_array(r.a_count, state), r.b = kernel_array(r.b_count, state);
    r.c = kernel_array(r.c_count, state);
    r.want = kernel_copy(r.c, r.c_count), r.got = kernel_copy(r.c, r.c_count);
    return r;
}

static void arrays_destroy(arrays *r)
{
    kernel_free(r->a), kernel_free(r->b), kernel_free(r->c), kernel_free(r->want), kernel_free(r->got);
}

static void run(dml_pool *pool, const product *p, const arrays *r, float *result)
{
    dml_status status;
    memcpy(result, r->c, r->c_count * sizeof(float));
    if (p->kind == GEMM)
        status = dml_sgemm(pool, DML_ROW_MAJOR, DML_NO_TRANS, p->trans_b, p->m, p->n, p->k, 0.5f, r->a, p->k,
                           r->b, p->trans_b == DML_TRANS ? p->k : p->n, 0.25f, result, p->n);
    else if (p->kind == FORWARD)
        status = dml_conv2d_forward(pool, &p->s, r->a, r->b, r->b, result);
    else if (p->kind == BACKWARD_INPUT)
        status = dml_conv2d_backward_input(pool, &p->s, r->a, r->b, 0.25f, result);
    else
        status = dml_conv2d_backward_weights(pool, &p->s, r->a, r->b, 0.25f, result);
    CHECK_INT(status, DML_OK);
}

static dml_scratch need_of(const product *p)
{
    if (p->kind == GEMM) return dml_sgemm_scratch(DML_NO_TRANS, p->trans_b, p->m, p->n, p->k);
    return dml_conv2d_scratch(&p->s, p->kind != FORWARD);
}

static void each_product(void (*test)(const product *p))
{
    const dml_conv2d_shape no_images = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 };
    for (int i = 0; i < PRODUCTS; i++) {
        const product p = {
            GEMM, products[i].m, products[i].n, products[i].k, products[i].trans_b, no_images
        };
        test(&p);
    }
    for (int i = 0; i < CONVOLUTIONS; i++)
        for (int kind = FORWARD; kind <= BACKWARD_WEIGHTS; kind++) {
            const product p = { kind, 0, 0, 0, DML_NO_TRANS, convolutions[i] };
            test(&p);
        }
}

#define SAY_PRODUCT(p)                                                                                       \
    (p)->kind, (p)->m, (p)->n, (p)->k, (p)->s.batch, (p)->s.height, (p)->s.width, (p)->s.channels,           \
        (p)->s.filters
#define PRODUCT_FORMAT "kind %d, %d x %d x %d, images %d x %d x %d x %d to %d"

static void check_bits(const product *p, const arrays *r, dml_pool_options *options)
{
    dml_pool *pool = dml_pool_create(options);
    CHECK(pool);
    run(pool, p, r, r->got);
    CHECK_MESSAGE(kernel_same(r->got, r->want, r->c_count),
                  PRODUCT_FORMAT " differs with %d threads, scratch %zu + %zu", SAY_PRODUCT(p),
                  options->threads, options->scratch.worker, options->scratch.shared);
    dml_pool_destroy(pool);
}

static void bits_of(const product *p)
{
    unsigned state = 5;
    arrays r = arrays_create(p, &state);
    const dml_scratch need = need_of(p);
    const dml_scratch scratches[] = { { 0, 0 },
                                      { 4, 4 },
                                      { need.worker / 2, need.shared / 2 },
                                      { need.worker ? need.worker - 4 : 0, need.shared },
                                      { need.worker, 0 },
                                      { 0, need.shared },
                                      { need.worker, need.shared },
                                      { 2000000, 600000 } };
    run(NULL, p, &r, r.want);
    for (size_t i = 0; i < sizeof scratches / sizeof scratches[0]; i++)
        for (size_t other = 0; other < 4;
             other += TEST_EMULATOR ? 4 : 2) { /* all numbers of threads, among the products */
            dml_pool_options options;
            memset(&options, 0, sizeof options);
            options.threads = 1 + (int)((i + other + r.c_count) % 4);
            options.scratch = scratches[i];
            check_bits(p, &r, &options);
        }
    arrays_destroy(&r);
}

static void bits(void)
{
    each_product(bits_of);
}

/* A host that numbers its workers wrongly gets slower products, no wrong ones, and no memory is harmed. */
static void lend_wrongly(void *host, int workers, int tasks, dml_pool_task task, void *argument)
{
    (void)host;
    for (int i = 0; i < tasks; i++) task(argument, i, i % 3 == 0 ? -1 - i : i % 3 == 1 ? workers + i : 0);
}

static void wrong_workers_of(const product *p)
{
    unsigned state = 6;
    arrays r = arrays_create(p, &state);
    dml_pool_options options;
    memset(&options, 0, sizeof options);
    options.threads = 2;
    options.host_parallel = lend_wrongly;
    options.scratch = need_of(p);
    run(NULL, p, &r, r.want);
    check_bits(p, &r, &options);
    arrays_destroy(&r);
}

static void wrong_workers(void)
{
    each_product(wrong_workers_of);
}

/* An allocator that knows where its last block ends. */
static char *last_block;
static size_t last_bytes;

static void *marked_allocate(void *user, size_t bytes)
{
    (void)user;
    last_block = (char *)malloc(bytes);
    last_bytes = bytes;
    if (last_block) memset(last_block, 0x5A, bytes);
    return last_block;
}

static void marked_release(void *user, void *memory)
{
    (void)user;
    free(memory);
}

static bool all_marked(const char *from, const char *end)
{
    return from >= end || (*from == 0x5A && memcmp(from, from + 1, (size_t)(end - from) - 1) == 0);
}

/* With just enough, nothing behind it is touched, and with more, nothing beyond what is enough. */
static void use_of(const product *p)
{
    unsigned state = 7;
    arrays r = arrays_create(p, &state);
    const dml_scratch need = need_of(p);
    run(NULL, p, &r, r.want);
    for (int threads = 1; threads <= 3; threads++)
        for (size_t more = 0; more <= 6400; more += 6400) {
            dml_pool_options options;
            memset(&options, 0, sizeof options);
            options.threads = threads;
            options.allocator.allocate = marked_allocate;
            options.allocator.release = marked_release;
            dml_pool *pool = dml_pool_create(&options);
            const dml_scratch given = { need.worker + more, need.shared ? need.shared + more : 0 };
            CHECK(pool);
            CHECK_INT(dml_pool_reserve(pool, given), DML_OK);
            char *shared = (char *)dml_pool_shared_scratch(pool);
            char *first = (char *)dml_pool_scratch(pool, 0), *end = last_block + last_bytes;
            if (first) memset(first, 0x5A, (size_t)(end - first));
            run(pool, p, &r, r.got);
            CHECK(kernel_same(r.got, r.want, r.c_count));
            for (int w = 0; first && w < dml_pool_threads(pool); w++) {
                char *own = (char *)dml_pool_scratch(pool, w), *next = (char *)dml_pool_scratch(pool, w + 1);
                CHECK_MESSAGE(all_marked(own + need.worker, next     ? next
                                                            : shared ? shared
                                                                     : end),
                              PRODUCT_FORMAT " goes beyond %zu bytes, worker %d of %d", SAY_PRODUCT(p),
                              need.worker, w, threads);
            }
            CHECK(!shared || all_marked(shared + need.shared, end));
            /* It is all used: the last float of the partial sums, and, where one worker packs all of B, of
               the panels. (A first cache of more than 32 KiB may keep a panel for which the need, which knows
               no caches, has more.) */
            if (p->trans_b == DML_TRANS && threads == 1 && need.worker && dml_cpu_caches().l1 <= 32768)
                CHECK_MESSAGE(!all_marked(first + need.worker - 4, first + need.worker),
                              PRODUCT_FORMAT " doesn't use its %zu bytes", SAY_PRODUCT(p), need.worker);
            if (p->kind == GEMM && shared)
                CHECK_MESSAGE(!all_marked(shared + need.shared - 4, shared + need.shared),
                              PRODUCT_FORMAT " doesn't use its shared %zu bytes", SAY_PRODUCT(p),
                              need.shared);
            dml_pool_destroy(pool);
        }
    arrays_destroy(&r);
}

/* Whatever size the scratch has, nothing behind it is touched. */
static void any_size_of(const product *p)
{
    unsigned state = 8;
    arrays r = arrays_create(p, &state);
    const dml_scratch need = need_of(p);
    run(NULL, p, &r, r.want);
    for (size_t part = 1; part <= 14; part += TEST_EMULATOR ? 6 : 1) {
        dml_pool_options options;
        memset(&options, 0, sizeof options);
        options.threads = 1;
        options.allocator.allocate = marked_allocate;
        options.allocator.release = marked_release;
        dml_pool *pool = dml_pool_create(&options);
        const dml_scratch given = { need.worker * part / 52 * 4 + 4 * part, 0 };
        CHECK(pool);
        CHECK_INT(dml_pool_reserve(pool, given), DML_OK);
        char *first = (char *)dml_pool_scratch(pool, 0), *end = last_block + last_bytes;
        memset(first, 0x5A, (size_t)(end - first));
        run(pool, p, &r, r.got);
        CHECK(kernel_same(r.got, r.want, r.c_count));
        CHECK_MESSAGE(all_marked(first + given.worker, end),
                      PRODUCT_FORMAT " goes beyond the %zu bytes it has", SAY_PRODUCT(p), given.worker);
        dml_pool_destroy(pool);
    }
    arrays_destroy(&r);
}

/* Widths that fill the stack's array to the last column, and a little more, on any instruction set: what is
   written behind it is for the sanitizer to see. */
static void any_size(void)
{
    const dml_conv2d_shape no_images = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 };
    each_product(any_size_of);
    for (int n = 20; n <= 52; n += TEST_EMULATOR ? 8 : 1) {
        const product p = { GEMM, 40, n, 256, n % 2 ? DML_TRANS : DML_NO_TRANS, no_images };
        any_size_of(&p);
    }
}

static void use(void)
{
    each_product(use_of);
}

/* Under a sanitizer on the best instruction set alone: the others go the same ways, slowly. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ON_EACH_ISA(test) test()
#else
#define ON_EACH_ISA(test) kernel_each_isa(test)
#endif

static void any_size_on_each_isa(void)
{
    kernel_each_isa(any_size);
}

static void bits_on_each_isa(void)
{
    ON_EACH_ISA(bits);
}

static void wrong_workers_on_each_isa(void)
{
    ON_EACH_ISA(wrong_workers);
}

static void use_on_each_isa(void)
{
    ON_EACH_ISA(use);
}

/* By the kilobyte: what little products ask for is little, what large ones ask for is bounded. */
static void what_is_asked_for(void)
{
    static const int none[][3] = { { 0, 1, 1 },  { 1, 0, 1 },  { 1, 1, 0 },
                                   { -1, 5, 5 }, { 5, -1, 5 }, { 5, 5, -1 } };
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        const dml_scratch scratch =
            dml_sgemm_scratch(DML_NO_TRANS, DML_TRANS, none[i][0], none[i][1], none[i][2]);
        CHECK(scratch.worker == 0 && scratch.shared == 0);
    }
    CHECK(dml_sgemm_scratch(DML_NO_TRANS, DML_TRANS, 4, 8, 3).worker <= 14 * 3 * 4 + 16 * 3 * 4 + 64);
    CHECK_INT(dml_sgemm_scratch(DML_NO_TRANS, DML_TRANS, 64, 8, 84).worker, 0);
    CHECK_INT(dml_sgemm_scratch(DML_NO_TRANS, DML_NO_TRANS, 1, 1000, 1000).worker, 0);
    CHECK_INT(dml_sgemm_scratch(DML_TRANS, DML_NO_TRANS, 1000, 1000, 1).worker, 0);
    CHECK_INT(dml_sgemm_scratch(DML_NO_TRANS, DML_TRANS, 2000, 2000, 2000).shared, 0);
    CHECK_INT(dml_sgemm_scratch(DML_NO_TRANS, DML_TRANS, 64, 64, 1023).shared, 0);
    CHECK_INT(dml_sgemm_scratch(DML_NO_TRANS, DML_TRANS, 64, 65, 1024).shared, 0);
    CHECK_INT(dml_sgemm_scratch(DML_NO_TRANS, DML_TRANS, 64, 64, 1024).shared, 2 * 4096 * 4);
    CHECK_INT(dml_sgemm_scratch(DML_NO_TRANS, DML_TRANS, 64, 64, 2147483647).shared, 16 * 4096 * 4);
    CHECK_INT(dml_sgemm_scratch(DML_TRANS, DML_TRANS, 1, 3, 1025).shared, 3 * 3 * 4);
    for (int n = 1; n < 1000000000; n *= 2) {
        const dml_scratch a = dml_sgemm_scratch(DML_NO_TRANS, DML_TRANS, 2147483647, n, 2147483647);
        const dml_scratch b = dml_sgemm_scratch(DML_NO_TRANS, DML_TRANS, n, 2147483647, 300);
        CHECK(a.worker <= 1310000 && b.worker <= 910000);
    }
    const dml_conv2d_shape good = { 2, 5, 5, 3, 9, 3, 3, 1, 1, 1, 1, 0, 0, 0, 0, 0 };
    const dml_conv2d_shape bad = { 2, 9, 9, 3, 5, 13, 3, 1, 1, 1, 1, 0, 0, 0, 0, 0 };
    const dml_scratch forward = dml_conv2d_scratch(&good, false), all = dml_conv2d_scratch(&good, true);
    CHECK_INT(forward.worker, 2 * 7 * 7 * 3 * 4); /* the padded images: most of their pixels lack taps */
    CHECK(forward.shared >= 27 * 12 * 4 &&
          forward.shared <= 27 * 16 * 4); /* the weights, padded to vectors */
    CHECK(all.worker >= forward.worker && all.worker <= 100000 && all.shared <= 20000);
    CHECK_INT(dml_conv2d_scratch(&bad, true).worker, 0);
    CHECK_INT(dml_conv2d_scratch(NULL, true).worker, 0);
    const dml_conv2d_shape images = { 64, 28, 28, 1, 6, 5, 5, 1, 1, 2, 2, 0, 0, 0, 0, 0 };
    /* The sums of dw's chunks, of which there are 15 or 16 by the width of vectors. */
    const size_t sums = dml_conv2d_scratch(&images, true).shared;
    CHECK_MESSAGE(sums >= 15 * 6 * 25 * 4 && sums <= 16 * 6 * 25 * 4, "%zu bytes", sums);
    const dml_conv2d_shape large = { 64, 224, 224, 256, 512, 3, 3, 1, 1, 1, 1, 0, 0, 0, 0, 0 };
    CHECK(dml_conv2d_scratch(&large, true).worker <= 2000000);
    CHECK(dml_conv2d_scratch(&large, true).shared <= 512 * 9 * 256 * 4);
}

int main(void)
{
    kernel_pools_open();
    RUN(bits_on_each_isa);
    RUN(wrong_workers_on_each_isa);
    RUN(use_on_each_isa);
    RUN(what_is_asked_for);
    kernel_pools_close();
    RUN(any_size_on_each_isa);
    return test_report("kernels/scratch");
}
