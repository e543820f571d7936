/* Dense arrays to and from parts of others, on raw arrays. */
#include "kernels/strided.h"

#include "kernel_test.h"

/* The count and the step of each dimension: whole, lines, columns, transposed, in many tasks, empty. */
static const dml_strided cases[] = {
    { { 1, 1, 1, 1, 1, 1 }, { 0, 0, 0, 0, 0, 0 } },     { { 1, 2, 3, 4, 5, 6 }, { 0, 360, 120, 30, 6, 1 } },
    { { 3, 1, 2, 1, 7, 5 }, { 200, 9, 80, 9, 10, 1 } }, { { 3, 1, 2, 1, 7, 5 }, { 200, 9, 80, 9, 10, 2 } },
    { { 1, 1, 2, 5, 3, 4 }, { 0, 0, 60, 1, 5, 15 } },   { { 300, 1, 1, 1, 40, 9 }, { 400, 0, 0, 0, 1, 40 } },
    { { 2, 3, 0, 1, 4, 1 }, { 9, 1, 1, 1, 1, 1 } },     { { 1, 1, 1, 1, 1, 50000 }, { 0, 0, 0, 0, 0, 1 } },
};
enum { CASES = sizeof cases / sizeof cases[0] };

static size_t place_of(const dml_strided *s, size_t i)
{
    size_t place = 0;
    for (int d = DML_STRIDED_DIMS - 1; d >= 0; d--) {
        place += i % s->count[d] * s->step[d];
        i /= s->count[d];
    }
    return place;
}

static void one_case(const dml_strided *s, bool unpacks, float beta)
{
    size_t n = 1, part = 1;
    unsigned state = 3;
    for (int d = 0; d < DML_STRIDED_DIMS; d++) n *= s->count[d];
    if (n) part = place_of(s, n - 1) + 1;
    const size_t n_from = unpacks ? n : part, n_to = unpacks ? part : n;
    float *from = kernel_array(n_from, &state), *old = kernel_array(n_to, &state);
    float *want = kernel_copy(old, n_to);
    for (size_t i = 0; i < n; i++) {
        const size_t place = place_of(s, i), to = unpacks ? place : i;
        want[to] = from[unpacks ? i : place] + (beta == 0 ? 0 : beta * old[to]);
        if (beta == 0) old[to] = NAN;
    }
    for (int p = 0; p < KERNEL_POOLS; p++) {
        float *to = kernel_copy(old, n_to);
        (unpacks ? dml_strided_unpack : dml_strided_pack)(kernel_pools[p], s, from, beta, to);
        for (size_t i = 0; i < n_to; i++) CHECK_NEAR(to[i], want[i], 1e-6); /* what lies between stays */
        kernel_free(to);
    }
    kernel_free(from), kernel_free(old), kernel_free(want);
}

static void every_case(void)
{
    static const float betas[] = { 0, 1, 0.5f };
    for (int c = 0; c < CASES; c++)
        for (int b = 0; b < 3; b++) {
            one_case(&cases[c], false, betas[b]);
            one_case(&cases[c], true, betas[b]);
        }
}

int main(void)
{
    kernel_pools_open();
    RUN(every_case);
    kernel_pools_close();
    return test_report("kernels/strided");
}
