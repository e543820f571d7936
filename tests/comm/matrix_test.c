/* Every collective by every algorithm, in worlds of 1 to 9 and 16, over every transport, dtype and op:
   against sums of whole numbers that every type holds, whatever the order in which they are added. */
#include "ranks.h"

static const char *const transports[] = { "local", "tcp", "shm" };
static const int worlds[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 16 };
enum { WORLDS = 10, MOST = 262145, CUSTOM = DML__REDUCE_OP_COUNT };

/* What a case is; the same on all ranks. */
typedef struct matrix {
    int world, most_root;
    const char *algorithm;
    size_t counts[3]; /* of elements, of a rank's part */
    int dtypes;       /* this many of them, from `dtype` on */
    int dtype;
} matrix;

/* Element i of rank r. Products are of 1, 2 and -1 with few 2s, sums below 256: exact in bf16 and u8 too. */
static int element(int rank, size_t i, int op)
{
    const unsigned mix = (unsigned)rank * 2654435761u + (unsigned)i * 40503u + 12345u;
    if (op == DML_PROD) return (unsigned)rank == i % 5 ? 2 : 1;
    return (int)(mix >> 7) % 13 < 0 ? 0 : (int)((mix >> 7) % 13);
}

/* A user's: the greatest common divisor of the whole numbers; anything with 0 is the other. */
static int divisor(int a, int b)
{
    while (b) {
        const int rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* ---- elements of every type ---- */

static uint16_t half_bits(int value) /* 0 to 2047 */
{
    int exponent = 0;
    if (!value) return 0;
    while (value >> (exponent + 1)) exponent++;
    return (uint16_t)((exponent + 15) << 10 | ((value << 10 >> exponent) & 0x3ff));
}

static void store(void *data, size_t i, dml_dtype dtype, int value)
{
    const float f = (float)value;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    switch (dtype) {
    case DML_F32: ((float *)data)[i] = f; break;
    case DML_F64: ((double *)data)[i] = value; break;
    case DML_I32: ((int32_t *)data)[i] = value; break;
    case DML_I64: ((int64_t *)data)[i] = value; break;
    case DML_BF16: ((uint16_t *)data)[i] = (uint16_t)(bits >> 16); break;
    case DML_F16: ((uint16_t *)data)[i] = half_bits(value); break;
    default: ((uint8_t *)data)[i] = (uint8_t)value; break;
    }
}

static double load(const void *data, size_t i, dml_dtype dtype)
{
    const uint32_t bf16 = dtype == DML_BF16 ? (uint32_t)((const uint16_t *)data)[i] << 16 : 0;
    float f;
    memcpy(&f, &bf16, sizeof f);
    switch (dtype) {
    case DML_F32: return (double)((const float *)data)[i];
    case DML_F64: return ((const double *)data)[i];
    case DML_I32: return (double)((const int32_t *)data)[i];
    case DML_I64: return (double)((const int64_t *)data)[i];
    case DML_BF16: return (double)f;
    case DML_F16: {
        const unsigned half = ((const uint16_t *)data)[i];
        return half ? ldexp(1024 + (half & 0x3ff), (int)(half >> 10) - 25) : 0;
    }
    default: return (double)((const uint8_t *)data)[i];
    }
}

static void divide(void *into, const void *from, size_t count, dml_dtype dtype, void *user)
{
    (void)user;
    for (size_t i = 0; i < count; i++)
        store(into, i, dtype, divisor((int)load(into, i, dtype), (int)load(from, i, dtype)));
}

static double expected(int world, size_t i, dml_dtype dtype, int op)
{
    int result = element(0, i, op);
    for (int rank = 1; rank < world; rank++) {
        const int x = element(rank, i, op);
        if (op == DML_SUM || op == DML_MEAN) result += x;
        if (op == DML_PROD) result *= x;
        if (op == DML_MIN && x < result) result = x;
        if (op == DML_MAX && x > result) result = x;
        if (op == CUSTOM) result = divisor(result, x);
    }
    if (op != DML_MEAN) return result;
    if (dtype == DML_F32) return (double)((float)result / (float)world);
    return dtype == DML_F64 ? (double)result / world : (double)(result / world);
}

static bool as_expected(double got, int world, size_t i, dml_dtype dtype, int op)
{
    const double want = expected(world, i, dtype, op);
    /* The halves' means are rounded, here and there. */
    if (op == DML_MEAN && (dtype == DML_BF16 || dtype == DML_F16)) {
        const double mean = expected(world, i, DML_F64, op);
        return fabs(got - mean) <= mean / 128;
    }
    if (op == DML_MEAN && dtype == DML_F32) return fabs(got - want) <= want * 1.2e-7;
    return op == DML_MEAN && dtype == DML_F64 ? fabs(got - want) <= want * 2.3e-16 : got == want;
}

static void fill(void *data, size_t count, size_t from, int rank, dml_dtype dtype, int op)
{
    for (size_t i = 0; i < count; i++) store(data, i, dtype, element(rank, from + i, op));
}

static void check(test_rank *me, const void *data, size_t count, size_t from, dml_dtype dtype, int op)
{
    for (size_t i = 0; i < count; i++)
        me->bad += !as_expected(load(data, i, dtype), me->world, from + i, dtype, op);
}

/* Row r of `data` is what rank r gave of its elements from `from` on. */
static void check_rows(test_rank *me, const char *data, size_t count, size_t from, dml_dtype dtype)
{
    const size_t row = count * dml_dtype_size(dtype);
    for (int rank = 0; rank < me->world; rank++)
        for (size_t i = 0; i < count; i++)
            me->bad += load(data + (size_t)rank * row, i, dtype) != element(rank, from + i, DML_SUM);
}

/* ---- the collectives ---- */

typedef struct arrays {
    char *in, *out; /* (world * most) elements of up to 8 bytes */
    dml_reduce_op ops[DML__REDUCE_OP_COUNT + 1];
} arrays;

static void reductions(test_rank *me, const arrays *a, size_t count, dml_dtype dtype, int op, int roots)
{
    const size_t size = dml_dtype_size(dtype), all = count * (size_t)me->world,
                 mine = count * (size_t)me->rank;
    const dml_reduce_op by = a->ops[op];
    fill(a->out, count, 0, me->rank, dtype, op);
    me->bad += dml_comm_all_reduce(me->comm, a->out, count, dtype, by) != DML_OK;
    check(me, a->out, count, 0, dtype, op);
    ranks_digest(me, a->out, count * size);
    for (int root = 0; root < roots; root++) {
        fill(a->out, count, 0, me->rank, dtype, op);
        me->bad += dml_comm_reduce(me->comm, a->out, count, dtype, by, root) != DML_OK;
        if (me->rank == root) check(me, a->out, count, 0, dtype, op);
    }
    for (int in_place = 0; in_place < 2; in_place++) {
        char *out = in_place ? a->in + mine * size : a->out;
        fill(a->in, all, 0, me->rank, dtype, op);
        me->bad += dml_comm_reduce_scatter(me->comm, a->in, count, dtype, by, out) != DML_OK;
        check(me, out, count, mine, dtype, op);
    }
}

static void movements(test_rank *me, const arrays *a, size_t count, dml_dtype dtype, int roots)
{
    const size_t size = dml_dtype_size(dtype), all = count * (size_t)me->world,
                 mine = count * (size_t)me->rank;
    const size_t row = count * size;
    for (int root = 0; root < roots; root++) {
        fill(a->out, count, 0, me->rank, dtype, DML_SUM);
        me->bad += dml_comm_broadcast(me->comm, a->out, count, dtype, root) != DML_OK;
        for (size_t i = 0; i < count; i++) me->bad += load(a->out, i, dtype) != element(root, i, DML_SUM);
        for (int in_place = 0; in_place < 2; in_place++) {
            const bool same = in_place && me->rank == root;
            char *out = same ? a->in + mine * size : a->out;
            fill(a->in, all, 0, me->rank, dtype, DML_SUM);
            me->bad += dml_comm_scatter(me->comm, me->rank == root ? a->in : NULL, count, dtype, out, root) !=
                       DML_OK;
            for (size_t i = 0; i < count; i++)
                me->bad += load(out, i, dtype) != element(root, mine + i, DML_SUM);
            char *in = same ? a->out + mine * size : a->in;
            memset(a->out, 0xee, all * size);
            fill(in, count, 0, me->rank, dtype, DML_SUM);
            me->bad +=
                dml_comm_gather(me->comm, in, count, dtype, me->rank == root ? a->out : NULL, root) != DML_OK;
            if (me->rank == root) check_rows(me, a->out, count, 0, dtype);
        }
    }
    for (int in_place = 0; in_place < 2; in_place++) {
        char *in = in_place ? a->out + mine * size : a->in;
        memset(a->out, 0xee, all * size);
        fill(in, count, 0, me->rank, dtype, DML_SUM);
        me->bad += dml_comm_all_gather(me->comm, in, count, dtype, a->out) != DML_OK;
        check_rows(me, a->out, count, 0, dtype);
    }
    for (int in_place = 0; in_place < 2; in_place++) {
        char *in = in_place ? a->out : a->in;
        memset(a->out, 0xee, all * size);
        fill(in, all, 0, me->rank, dtype, DML_SUM);
        me->bad += dml_comm_all_to_all(me->comm, in, count, dtype, a->out) != DML_OK;
        check_rows(me, a->out, count, mine, dtype);
    }
    (void)row;
}

/* Parts of different sizes, some of them empty, with holes between them or none, in the opposite order. */
static void parts(test_rank *me, const arrays *a, size_t count, dml_dtype dtype, int op, bool holes)
{
    size_t counts[RANKS_MOST], offsets[RANKS_MOST], end = 0;
    const size_t size = dml_dtype_size(dtype);
    const int root = (int)(count % (size_t)me->world);
    for (int rank = 0; rank < me->world; rank++)
        counts[rank] = (size_t)rank % 3 == 1 ? 0 : count * (size_t)(rank % 4) / 3;
    for (int k = 0; k < me->world; k++) {
        const int rank = holes ? me->world - 1 - k : k;
        offsets[rank] = end;
        end += counts[rank] + (holes ? 1 : 0);
    }
    const size_t mine = counts[me->rank], *given = holes ? offsets : NULL;
    fill(a->in, end, 0, me->rank, dtype, DML_SUM);
    me->bad += dml_comm_scatterv(me->comm, a->in, counts, given, dtype, a->out, root) != DML_OK;
    for (size_t i = 0; i < mine; i++)
        me->bad += load(a->out, i, dtype) != element(root, offsets[me->rank] + i, DML_SUM);
    for (int everywhere = 0; everywhere < 2; everywhere++) {
        memset(a->out, 0xee, end * size);
        fill(a->in, mine, 0, me->rank, dtype, DML_SUM);
        me->bad +=
            (everywhere ? dml_comm_all_gatherv(me->comm, a->in, counts, given, dtype, a->out)
                        : dml_comm_gatherv(me->comm, a->in, counts, given, dtype, a->out, root)) != DML_OK;
        if (!everywhere && me->rank != root) continue;
        for (int rank = 0; rank < me->world; rank++) {
            const char *part = a->out + offsets[rank] * size;
            for (size_t i = 0; i < counts[rank]; i++)
                me->bad += load(part, i, dtype) != element(rank, i, DML_SUM);
            if (holes) me->bad += (unsigned char)part[counts[rank] * size] != 0xee;
        }
    }
    fill(a->in, end, 0, me->rank, dtype, op);
    me->bad += dml_comm_reduce_scatterv(me->comm, a->in, counts, given, dtype, a->ops[op], a->out) != DML_OK;
    check(me, a->out, mine, offsets[me->rank], dtype, op);
}

static void matrix_body(test_rank *me)
{
    const matrix *m = (const matrix *)me->user;
    size_t most = 1;
    arrays a;
    for (int c = 0; c < 3; c++) most = m->counts[c] > most ? m->counts[c] : most;
    const size_t bytes =
        (most + 1) * (size_t)m->world * (m->dtypes > 1 ? 8 : dml_dtype_size((dml_dtype)m->dtype));
    a.in = (char *)malloc(bytes);
    a.out = (char *)malloc(bytes);
    for (int op = 0; op < DML__REDUCE_OP_COUNT; op++) a.ops[op] = (dml_reduce_op)op;
    a.ops[CUSTOM] = dml_comm_add_reduce(me->comm, divide, NULL);
    const int roots = m->most_root < m->world ? m->most_root : m->world;
    for (int d = 0; d < m->dtypes; d++)
        for (int c = 0; c < 3; c++) {
            const dml_dtype dtype = (dml_dtype)((m->dtype + d) % DML__DTYPE_COUNT);
            if (c && m->counts[c] == m->counts[c - 1]) continue;
            for (int op = 0; op <= CUSTOM; op++) {
                if (m->dtypes == 1 && op != DML_SUM) continue;
                reductions(me, &a, m->counts[c], dtype, op, op == DML_SUM ? roots : 1);
            }
            movements(me, &a, m->counts[c], dtype, roots);
            parts(me, &a, m->counts[c], dtype, (d + c) % (CUSTOM + 1), d % 2);
            me->bad += dml_comm_barrier(me->comm) != DML_OK;
        }
    free(a.in);
    free(a.out);
}

static void run_case(matrix *m, const char *transport, size_t segment_bytes)
{
    test_rank ranks[RANKS_MOST];
    ranks_prepare(ranks, m->world, 30, matrix_body, m);
    for (int rank = 0; rank < m->world; rank++) {
        ranks[rank].options.algorithm = m->algorithm;
        ranks[rank].options.segment_bytes = segment_bytes;
        ranks[rank].options.max_requests = 4;
    }
    ranks_run_on(ranks, m->world, transport);
    for (int rank = 0; rank < m->world; rank++)
        CHECK_MESSAGE(!ranks[rank].status && !ranks[rank].bad && ranks[rank].digest == ranks[0].digest,
                      "%s over %s: rank %d of %d: %d wrong: %s",
                      m->algorithm ? m->algorithm : "the usual ones", transport, rank, m->world,
                      ranks[rank].bad, ranks[rank].error);
}

/* All names that there are, once each. */
static int algorithm_names(const char *names[64])
{
    int count, found = 0;
    const dml__algorithm_info *all = dml__algorithms(&count);
    for (int i = 0; i < count; i++) {
        int k = 0;
        while (k < found && strcmp(names[k], all[i].name) != 0) k++;
        if (k == found && found < 64) names[found++] = all[i].name;
    }
    return found;
}

/* Small counts of every dtype and op; every algorithm; the transports by turns. */
static void every_algorithm(void)
{
    const char *names[64];
    const int count = algorithm_names(names);
    int turn = 0;
    for (int w = 0; w < WORLDS; w++)
        for (int k = -1; k < count; k++, turn++) {
            matrix m;
            memset(&m, 0, sizeof m);
            m.world = worlds[w];
            m.most_root = m.world <= 5 ? m.world : 2;
            m.algorithm = k < 0 ? NULL : names[k];
            m.counts[0] = turn % 3 == 0 ? 0 : 1;
            m.counts[1] = 13;
            m.counts[2] = m.world <= 9 ? 331 : 37;
            m.dtype = turn % DML__DTYPE_COUNT;
            m.dtypes = m.world <= 4 ? DML__DTYPE_COUNT : 2;
            /* Sockets take longer to open: not for each of them. */
            const bool shared = m.algorithm && strcmp(m.algorithm, "shared") == 0;
            const bool opens = w + k >= 0 && (w + k) % 4 == 0 && m.world <= 9;
            run_case(&m, shared ? "shm" : opens ? transports[1 + turn % 2] : "local", turn % 2 ? 64 : 0);
        }
}

/* More than segments, stores and rounds hold, of one dtype each. */
static void large_counts(void)
{
    const char *names[64];
    const int count = algorithm_names(names);
    static const int sizes[] = { 2, 3, 5 };
    for (int k = -1; k < count; k++)
        for (int s = 0; s < 3; s++) {
            matrix m;
            const int turn = k + 1 + s;
            memset(&m, 0, sizeof m);
            m.world = sizes[s];
            m.most_root = 1;
            m.algorithm = k < 0 ? NULL : names[k];
            m.counts[0] = 4097;
            m.counts[1] = m.counts[2] = s == 0 ? MOST : 20011;
            m.dtype = turn % 2 ? DML_F32 : (dml_dtype)(turn / 2 % DML__DTYPE_COUNT);
            m.dtypes = 1;
            run_case(&m, transports[turn % 3], turn % 4 == 3 ? 5000 : 0);
        }
}

int main(void)
{
    RUN(every_algorithm);
    RUN(large_counts);
    return test_report("comm/matrix");
}
