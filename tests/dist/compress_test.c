/* The codes of compressed gradients, against float64: what arrives and what is kept add up to all that was
   put in, and what arrives is what the papers say. */
#include "dist/compress_codec.h"

#include "base/clock.h" /* first of the system's: it asks for POSIX */
#include "dist/compress_low_rank.h"
#include "graph/node.h"
#include "graph/program.h"
#include "ops/op_dense.h"
#include "ops/op_loss.h"
#include "thread/pool_internal.h"

#include "../test.h"

enum { MOST = 20000, RANKS = 3, STEPS = 7 };

static const size_t sizes[] = { 0, 1, 2, 255, 256, 257, 1023, 17001 };
static const int bits[] = { 8, 4, 1 };

static float g[MOST], kept[MOST], other[MOST], sum[MOST];
static double put_in[MOST], came[MOST];
static unsigned char code[RANKS * 8 * MOST];

static void add_up(size_t n, float unit)
{
    for (size_t i = 0; i < n; i++) put_in[i] += (double)unit * g[i], came[i] += sum[i];
}

static double worst_of_identity(size_t n)
{
    double worst = 0;
    for (size_t i = 0; i < n; i++) worst = fmax(worst, fabs(came[i] + (double)kept[i] - put_in[i]));
    return worst;
}

static void begin(size_t n)
{
    memset(kept, 0, sizeof kept);
    memset(put_in, 0, n * sizeof *put_in);
    memset(came, 0, n * sizeof *came);
}

/* With gradients of very different sizes in different blocks. */
static void random_gradient(unsigned *seed, size_t n)
{
    test_fill(seed, g, n);
    for (size_t i = 0; i < n; i++) g[i] *= (float)pow(10, (double)(i / 256 % 9) - 6);
}

static void quantised_steps_add_up(void)
{
    unsigned seed = 5;
    for (int b = 0; b < 3; b++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            const size_t n = sizes[s];
            begin(n);
            for (int step = 0; step < STEPS; step++) {
                random_gradient(&seed, n);
                dml__quantise(NULL, bits[b], n, g, 0.125f, kept, code);
                dml__quantised_sum(NULL, bits[b], n, code, 1, 1, sum);
                add_up(n, 0.125f);
            }
            CHECK_MESSAGE(worst_of_identity(n) < 2e-4, "%d bits, %zu elements: off by %g", bits[b], n,
                          worst_of_identity(n));
        }
}

/* Each block's scale is its own: what is kept of it is at most half a level. */
static void levels_are_rounded_to_nearest(void)
{
    unsigned seed = 9;
    const size_t n = 5000;
    for (int b = 0; b < 2; b++) {
        begin(n);
        random_gradient(&seed, n);
        dml__quantise(NULL, bits[b], n, g, 1, kept, code);
        dml__quantised_sum(NULL, bits[b], n, code, 1, 1, sum);
        for (size_t from = 0; from < n; from += 256) {
            const size_t to = from + 256 < n ? from + 256 : n;
            double most = 0;
            for (size_t i = from; i < to; i++) most = fmax(most, fabs((double)g[i]));
            const double level = most / (bits[b] == 8 ? 127 : 7) * (1 + 1.0 / 128);
            for (size_t i = from; i < to; i++) CHECK(fabs((double)sum[i] - g[i]) <= level / 2 * (1 + 1e-5));
        }
    }
}

static void one_bit_is_the_sign_and_the_mean(void)
{
    unsigned seed = 11;
    const size_t n = 700;
    begin(n);
    random_gradient(&seed, n);
    dml__quantise(NULL, 1, n, g, 1, kept, code);
    dml__quantised_sum(NULL, 1, n, code, 1, 1, sum);
    for (size_t from = 0; from < n; from += 256) {
        const size_t to = from + 256 < n ? from + 256 : n;
        double mean = 0;
        for (size_t i = from; i < to; i++) mean += fabs((double)g[i]) / (double)(to - from);
        for (size_t i = from; i < to; i++)
            CHECK_NEAR(sum[i], g[i] < 0 ? -mean : mean, mean / 127); /* its scale has 8 bits */
    }
}

static void ranks_are_added_in_their_order(void)
{
    unsigned seed = 13;
    const size_t n = 600;
    for (int b = 0; b < 3; b++) {
        const size_t bytes = dml__quantised_bytes(bits[b], n);
        memset(put_in, 0, sizeof put_in);
        for (int r = 0; r < RANKS; r++) {
            begin(0);
            random_gradient(&seed, n);
            dml__quantise(NULL, bits[b], n, g, 1, kept, code + (size_t)r * bytes);
            for (size_t i = 0; i < n; i++) put_in[i] += (double)g[i] - kept[i];
        }
        dml__quantised_sum(NULL, bits[b], n, code, RANKS, 4, sum);
        for (size_t i = 0; i < n; i++) CHECK_NEAR(sum[i], 4 * put_in[i], 1e-5 * (fabs(put_in[i]) + 1e-6));
    }
}

/* The same code by every instruction set and number of threads is not asked for; the same sum of a code is.
 */
static void every_rank_decodes_the_same(void)
{
    static const char *const isas[] = { "scalar", "avx2", "avx512" };
    unsigned seed = 17;
    const size_t n = MOST;
    for (int b = 0; b < 3; b++) {
        const size_t bytes = dml__quantised_bytes(bits[b], n);
        for (int r = 0; r < RANKS; r++) {
            begin(0);
            random_gradient(&seed, n);
            dml__quantise(NULL, bits[b], n, g, 1, kept, code + (size_t)r * bytes);
        }
        dml__quantised_sum(NULL, bits[b], n, code, RANKS, 3.3f, sum);
        for (int i = 0; i < 3; i++) {
            setenv("DML_ISA", isas[i], 1);
            dml_pool *pool = dml_pool_create(&(dml_pool_options){ .threads = i + 1 });
            unsetenv("DML_ISA");
            dml__quantised_sum(pool, bits[b], n, code, RANKS, 3.3f, other);
            CHECK_MESSAGE(memcmp(other, sum, n * sizeof *sum) == 0, "%d bits, %s", bits[b], isas[i]);
            dml_pool_destroy(pool);
        }
    }
}

static void what_is_not_finite_spoils_its_block_alone(void)
{
    static const float bad[] = { INFINITY, -INFINITY, NAN, 3.4e38f };
    unsigned seed = 19;
    const size_t n = 800;
    for (int b = 0; b < 3; b++)
        for (int v = 0; v < 4; v++) {
            begin(n);
            random_gradient(&seed, n);
            memcpy(kept, g, n * sizeof *kept);
            g[300] = bad[v], g[301] = bad[v];
            dml__quantise(NULL, bits[b], n, g, 1, kept, code);
            dml__quantised_sum(NULL, bits[b], n, code, 1, 1, sum);
            const bool can_be = v == 3 && bits[b] < 8 + 1 && sum[300] - sum[300] == 0;
            CHECK(can_be || sum[256] != sum[256]);
            CHECK(sum[255] - sum[255] == 0 && sum[512] - sum[512] == 0);
            for (size_t i = 0; i < n; i++) CHECK(kept[i] - kept[i] == 0);
        }
}

/* Numbers whose scale has no reciprocal wait until they have grown. */
static void tiny_gradients_are_kept(void)
{
    for (int b = 0; b < 3; b++) {
        begin(MOST);
        for (size_t i = 0; i < 300; i++) g[i] = 1e-40f;
        dml__quantise(NULL, bits[b], 300, g, 1, kept, code);
        dml__quantised_sum(NULL, bits[b], 300, code, 1, 1, sum);
        CHECK(sum[7] == 0 && kept[7] == g[7]);
    }
}

/* ---- the largest ---- */

static int larger_first(const void *a, const void *b)
{
    const double x = fabs(*(const double *)a), y = fabs(*(const double *)b);
    return (x < y) - (x > y);
}

static void the_largest_are_sent(void)
{
    static const double fractions[] = { 1e-9, 0.01, 0.3, 1 };
    static double sorted[MOST];
    unsigned seed = 23;
    for (int f = 0; f < 4; f++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            const size_t n = sizes[s], k = dml__sparse_count(fractions[f], n);
            CHECK(n ? k >= 1 && k <= n : k == 0);
            begin(n);
            for (int step = 0; step < STEPS; step++) {
                random_gradient(&seed, n);
                for (size_t i = 0; i < n; i++) sorted[i] = (double)(kept[i] + 0.5f * g[i]);
                qsort(sorted, n, sizeof *sorted, larger_first);
                dml__sparsify(n, k, g, 0.5f, 0, NULL, kept, code);
                dml__sparse_sum(n, k, code, 1, 1, sum);
                size_t sent = 0;
                for (size_t i = 0; i < n; i++) {
                    if (sum[i] != 0) sent++;
                    CHECK(sum[i] == 0 || fabs((double)sum[i]) >= fabs(sorted[k - 1]) * (1 - 1e-6));
                    CHECK(sum[i] == 0 || kept[i] == 0);
                }
                CHECK_INT(sent, k);
                add_up(n, 0.5f);
            }
            CHECK(worst_of_identity(n) < 1e-3);
        }
}

static void of_equal_ones_the_first(void)
{
    begin(10);
    for (size_t i = 0; i < 10; i++) g[i] = i % 2 ? -2.0f : 2.0f;
    g[4] = 1, g[9] = 3;
    dml__sparsify(10, 4, g, 1, 0, NULL, kept, code);
    dml__sparse_sum(10, 4, code, 1, 1, sum);
    static const float want[] = { 2, -2, 2, 0, 0, 0, 0, 0, 0, 3 };
    for (size_t i = 0; i < 10; i++) CHECK(sum[i] == want[i]);
}

/* Deep gradient compression, algorithm 4, in float64. */
static void velocities_are_corrected(void)
{
    enum { N = 500, K = 40 };
    static double u[N], v[N];
    unsigned seed = 29;
    begin(N);
    memset(other, 0, sizeof other);
    for (int step = 0; step < 20; step++) {
        test_fill(&seed, g, N);
        dml__sparsify(N, K, g, 1, 0.9f, other, kept, code);
        dml__sparse_sum(N, K, code, 1, 1, sum);
        for (int i = 0; i < N; i++) {
            u[i] = (double)0.9f * u[i] + g[i];
            v[i] += u[i];
            if (sum[i] == 0) continue;
            CHECK_NEAR(sum[i], v[i], 1e-5);
            u[i] = v[i] = 0;
        }
        for (int i = 0; i < N; i++) CHECK_NEAR(kept[i], v[i], 1e-5);
        for (int i = 0; i < N; i++) CHECK_NEAR(other[i], u[i], 1e-5);
    }
}

static void sparse_ranges_that_are_not_finite(void)
{
    unsigned seed = 31;
    begin(100);
    test_fill(&seed, g, 100);
    memcpy(kept, g, sizeof kept);
    g[50] = NAN;
    dml__sparsify(100, 3, g, 1, 0, NULL, kept, code);
    dml__sparse_sum(100, 3, code, 1, 1, sum);
    CHECK(sum[0] != sum[0]);
    for (int i = 0; i < 100; i++) CHECK(kept[i] == 0);
}

/* ---- matrices ---- */

enum { IN = 30, OUT = 20, PER = IN * OUT + OUT };

typedef struct matrices {
    dml_context *context;
    dml_pool *pool;
    dml__memory memory;
    dml__low_rank low;
} matrices;

/* Dense layers of 30 to 20 and of 20 to 30. */
static void open_matrices(matrices *m, int rank)
{
    m->context = dml_open(&(dml_options){ .threads = 1 });
    m->pool = dml_pool_create(&(dml_pool_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(m->context);
    dml_node *x = dml_input(graph, "x", DML_F32, IN), *t = dml_input(graph, "t", DML_I32);
    dml_node *loss = dml_softmax_cross_entropy(dml_dense(dml_dense(x, OUT), IN), t);
    CHECK(dml_compile(loss, &(dml_program_options){ .batch = 1, .training = true }));
    dml__memory_init(&m->memory, NULL, NULL, 0);
    CHECK(dml__low_rank_open(&m->low, &m->memory, graph, rank, 7));
}

static void close_matrices(matrices *m)
{
    dml__low_rank_close(&m->low, &m->memory);
    dml_pool_destroy(m->pool);
    dml_close(m->context);
}

static size_t send_matrices(matrices *m, float unit)
{
    size_t first, behind;
    const size_t n = PER + IN * OUT + IN;
    dml__low_rank_find(&m->low, 0, n, &first, &behind);
    CHECK_INT(behind - first, 4);
    dml__pool_round_to(m->pool,
                       DML_BF16); /* as while backward runs in 16 bits, but for what is done after it */
    dml__low_rank_project(&m->low, m->pool, first, behind, g, unit, kept);
    dml__low_rank_back(&m->low, m->pool, first, behind, kept);
    dml__pool_round_to(m->pool, DML_F32);
    dml__low_rank_expand(&m->low, m->pool, first, behind, 1 / unit, sum);
    return n;
}

static bool is_bias(size_t i)
{
    return (i >= IN * OUT && i < PER) || i >= PER + IN * OUT;
}

static void low_rank_steps_add_up(void)
{
    unsigned seed = 37;
    for (int rank = 1; rank <= 40; rank += rank < 4 ? 1 : 36) {
        matrices m;
        open_matrices(&m, rank);
        CHECK_INT(m.low.part[0].rank, rank < 4 ? rank : rank == 4 ? 4 : 0); /* 20 is no saving */
        size_t n = PER + IN * OUT + IN;
        begin(n);
        for (int step = 0; step < STEPS; step++) {
            test_fill(&seed, g, n);
            n = send_matrices(&m, 0.5f);
            for (size_t i = 0; i < n; i++) CHECK(!is_bias(i) || sum[i] == g[i]);
            add_up(n, 1);
        }
        for (size_t i = 0; i < n; i++) CHECK_NEAR(came[i] + 2 * (double)kept[i], put_in[i], 1e-4);
        close_matrices(&m);
    }
}

/* A matrix of that rank arrives whole; a larger one's best part, after a few steps. */
static void low_ranks_are_found(void)
{
    unsigned seed = 41;
    static float a[OUT], b[IN];
    matrices m;
    open_matrices(&m, 2);
    begin(MOST);
    memset(g, 0, sizeof g);
    for (int product = 0; product < 2; product++) {
        test_fill(&seed, a, OUT), test_fill(&seed, b, IN);
        for (int i = 0; i < IN * OUT; i++) g[i] += a[i / IN] * b[i % IN]; /* the weight is (OUT, IN) */
    }
    send_matrices(&m, 1);
    for (int i = 0; i < IN * OUT; i++) CHECK_NEAR(sum[i], g[i], 1e-5);
    /* A matrix of zeros leaves nothing to go on from; the next comes all the same. */
    memcpy(other, g, sizeof g);
    memset(g, 0, sizeof g);
    begin(MOST);
    for (int step = 0; step < 3; step++) send_matrices(&m, 1);
    memcpy(g, other, sizeof g);
    send_matrices(&m, 1);
    for (int i = 0; i < IN * OUT; i++) CHECK_NEAR(sum[i], g[i], 1e-5);
    /* Nor does one that isn't finite. */
    g[5] = NAN;
    send_matrices(&m, 1);
    CHECK(sum[0] != sum[0]);
    memcpy(g, other, sizeof g);
    send_matrices(&m, 1);
    for (int i = 0; i < IN * OUT; i++) CHECK_NEAR(sum[i], g[i], 1e-5);
    close_matrices(&m);
}

int main(void)
{
    RUN(quantised_steps_add_up);
    RUN(levels_are_rounded_to_nearest);
    RUN(one_bit_is_the_sign_and_the_mean);
    RUN(ranks_are_added_in_their_order);
    RUN(every_rank_decodes_the_same);
    RUN(what_is_not_finite_spoils_its_block_alone);
    RUN(tiny_gradients_are_kept);
    RUN(the_largest_are_sent);
    RUN(of_equal_ones_the_first);
    RUN(velocities_are_corrected);
    RUN(sparse_ranges_that_are_not_finite);
    RUN(low_rank_steps_add_up);
    RUN(low_ranks_are_found);
    return test_report("dist/compress");
}
