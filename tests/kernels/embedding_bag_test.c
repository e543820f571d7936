/* Sums of rows of a table by number, on raw arrays. */
#include "kernels/embedding_bag.h"

#include "kernel_test.h"

/* bags, length, width, rows */
static const size_t shapes[][4] = { { 0, 3, 5, 3 },     { 1, 1, 1, 1 },     { 7, 3, 3, 5 },
                                    { 40, 9, 64, 13 },  { 50, 4, 129, 40 }, { 3, 30, 700, 9 },
                                    { 700, 30, 1, 99 }, { 2, 5, 0, 3 } };
enum { SHAPES = sizeof shapes / sizeof shapes[0] };
enum { SUM, MEAN, WEIGHTED, KINDS };

/* What is made of bounds of float64 sums: |got - want| <= 2 (length + 1) eps sum |terms|. */
static void compare(const char *what, const float *got, const double *want, const double *size, size_t n,
                    size_t terms)
{
    for (size_t i = 0; i < n; i++) {
        const double bound = 1.2e-7 * (double)(terms + 2) * size[i];
        CHECK_MESSAGE(fabs((double)got[i] - want[i]) <= bound, "%s[%zu] is %g, not %g", what, i,
                      (double)got[i], want[i]);
    }
}

static void shape_case(const size_t *shape, int kind, float beta)
{
    unsigned state = 1 + (unsigned)shape[0];
    const size_t bags = shape[0], length = shape[1], width = shape[2], rows = shape[3];
    const size_t places = bags * length, n = bags * width, nt = rows * width;
    int32_t *indices = (int32_t *)malloc((places + 1) * sizeof *indices);
    for (size_t i = 0; i < places; i++)
        indices[i] = i / length % 5 == 3 ? -1 : (int32_t)(test_random(&state) % (unsigned)(rows + 1)) - 1;
    float *table = kernel_array(nt, &state), *dy = kernel_array(n, &state), *old = kernel_array(nt, &state);
    float *weights = kernel_array(places, &state), *old_weights = kernel_array(places, &state);
    double *y = (double *)calloc(2 * n + 1, sizeof *y), *dt = (double *)calloc(2 * nt + 1, sizeof *dt);
    double *dw = (double *)calloc(2 * places + 1, sizeof *dw);
    for (size_t i = 0; i < nt; i++) dt[i] = (double)old[i], dt[nt + i] = fabs(dt[i]);
    for (size_t i = 0; i < places; i++) {
        dw[i] = beta != 0 ? (double)beta * (double)old_weights[i] : 0, dw[places + i] = fabs(dw[i]);
        if (beta == 0) old_weights[i] = NAN;
        size_t count = 0;
        for (size_t k = 0; k < length; k++) count += indices[i / length * length + k] >= 0;
        if (indices[i] < 0) continue;
        const double part = kind == WEIGHTED ? (double)weights[i] : kind == MEAN ? 1 / (double)count : 1;
        for (size_t c = 0; c < width; c++) {
            const size_t at = (size_t)indices[i] * width + c, of = i / length * width + c;
            y[of] += part * (double)table[at], y[n + of] += fabs(part * (double)table[at]);
            dt[at] += part * (double)dy[of], dt[nt + at] += fabs(part * (double)dy[of]);
            dw[i] += (double)table[at] * (double)dy[of],
                dw[places + i] += fabs((double)table[at] * (double)dy[of]);
        }
    }
    float *first[3] = { NULL, NULL, NULL };
    const size_t count[3] = { n, nt, places };
    for (int p = 0; p < KERNEL_POOLS; p++) {
        float *got[3] = { kernel_copy(dy, n), kernel_copy(old, nt), kernel_copy(old_weights, places) };
        for (size_t i = 0; i < n; i++) got[0][i] = NAN;
        const float *by = kind == WEIGHTED ? weights : NULL;
        dml_embedding_bag_forward(kernel_pools[p], bags, length, width, kind == MEAN, indices, by, table,
                                  got[0]);
        dml_embedding_bag_backward(kernel_pools[p], bags, length, width, kind == MEAN, indices, by, dy,
                                   got[1]);
        dml_embedding_bag_backward_weights(kernel_pools[p], bags, length, width, indices, table, dy, beta,
                                           got[2]);
        compare("y", got[0], y, y + n, n, length);
        compare("dtable", got[1], dt, dt + nt, nt, places);
        compare("dweights", got[2], dw, dw + places, places, width);
        for (int k = 0; k < 3; k++) {
            if (p) CHECK(kernel_same(got[k], first[k], count[k]));
            if (p) kernel_free(got[k]);
            if (!p) first[k] = got[k];
        }
    }
    for (int k = 0; k < 3; k++) kernel_free(first[k]);
    kernel_free(table), kernel_free(dy), kernel_free(old), kernel_free(weights), kernel_free(old_weights);
    free(indices), free(y), free(dt), free(dw);
}

static void all(void)
{
    static const float betas[] = { 0, 1, 0.5f };
    for (int s = 0; s < SHAPES; s++)
        for (int kind = 0; kind < KINDS; kind++) shape_case(shapes[s], kind, betas[(s + kind) % 3]);
}

/* A NaN or an infinity of a row that is there is seen, and of one that isn't is not read. */
static void not_finite(void)
{
    const int32_t indices[] = { 2, -1, 0, -1 };
    const float table[] = { 1, NAN, INFINITY }, weights[] = { 1, NAN, 2, INFINITY };
    float y[2];
    dml_embedding_bag_forward(NULL, 2, 2, 1, false, indices, weights, table, y);
    CHECK(isinf(y[0]) && y[1] == 2);
    const float dy[] = { NAN, 1 };
    float dtable[] = { 5, 6, 7 };
    dml_embedding_bag_backward(NULL, 2, 2, 1, true, indices, NULL, dy, dtable);
    CHECK(dtable[0] == 6 && dtable[1] == 6 && isnan(dtable[2]));
}

static void every_isa(void)
{
    kernel_each_isa(all);
    kernel_each_isa(not_finite);
}

int main(void)
{
    kernel_pools_open();
    RUN(every_isa);
    kernel_pools_close();
    return test_report("kernels/embedding_bag");
}
