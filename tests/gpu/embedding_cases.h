/* embedding_cases.h: the kernels of embedding.cl, for kernels_test.c. */
#ifndef DML_TESTS_GPU_EMBEDDING_CASES_H
#define DML_TESTS_GPU_EMBEDDING_CASES_H

#include "kernel_cases.h"

/* count, width, rows of the table */
static const int embeddings[][3] = {
    { 1, 1, 1 }, { 300, 5, 7 }, { 4, 300, 1000 }, { 600, 1, 900 }, { 301, 19, 40 }
};
enum { EMBEDDINGS = sizeof embeddings / sizeof embeddings[0] };

static int32_t *embedding_indices(const int *shape)
{
    int32_t *indices = malloc((size_t)shape[0] * sizeof *indices);
    for (int i = 0; i < shape[0]; i++) indices[i] = (int32_t)(test_random(&seed) % (unsigned)shape[2]);
    return indices;
}

static void test_embedding_forward(void)
{
    for (int s = quick; s < upto(EMBEDDINGS); s++) {
        const int *shape = embeddings[s];
        const size_t width = (size_t)shape[1], n = (size_t)shape[0] * width, nt = (size_t)shape[2] * width;
        int32_t *indices = embedding_indices(shape);
        float *table = numbers(nt), *y = output(n, 0);
        double *want = malloc(n * sizeof *want);
        for (size_t i = 0; i < n; i++)
            want[i] = (double)table[(size_t)indices[i / width] * width + i % width];
        array ai = upload(indices, (size_t)shape[0]), at_table = upload(table, nt), ay = upload(y, n);
        launch_ok((dml_launch){ .kernel = "embedding_forward",
                                .size = { n, 1 },
                                .buffer = { at(ai), at(at_table), at(ay) },
                                .integer = { shape[0], shape[1] } });
        download(ai, NULL), download(at_table, NULL), download(ay, y);
        check("embedding_forward", y, want, n, 0);
        /* of a part of the table: what isn't in it is zeros */
        const int first = shape[2] / 3, rows = shape[2] - first - shape[2] / 4;
        for (size_t i = 0; i < n; i++)
            if (indices[i / width] < first || indices[i / width] >= first + rows) want[i] = 0;
        ai = upload(indices, (size_t)shape[0]), ay = upload(y, n);
        at_table = upload(table + (size_t)first * width, (size_t)rows * width);
        launch_ok((dml_launch){ .kernel = "embedding_forward",
                                .size = { n, 1 },
                                .buffer = { at(ai), at(at_table), at(ay) },
                                .integer = { shape[0], shape[1], first, rows } });
        download(ai, NULL), download(at_table, NULL), download(ay, y);
        check("embedding_forward of a part", y, want, n, 0);
        free(indices), free(table), free(y), free(want);
    }
}

/* The links, and the sums along them; with `rows`, into a part of the table. */
static void embedding_case(const char *kernel, const int *shape, int first, int rows)
{
    const size_t count = (size_t)shape[0], width = (size_t)shape[1];
    const size_t nt = (size_t)(rows ? rows : shape[2]) * width;
    int32_t *indices = embedding_indices(shape), *links = malloc(2 * count * sizeof *links);
    float *dy = numbers(count * width), *dtable = numbers(nt);
    double *want = malloc(nt * sizeof *want);
    for (size_t i = 0; i < nt; i++) want[i] = (double)dtable[i];
    for (size_t i = 0; i < count * width; i++) {
        const int row = indices[i / width] - first;
        if (row >= 0 && (size_t)row < nt / width) want[(size_t)row * width + i % width] += (double)dy[i];
    }
    array ai = upload(indices, count), al = upload(links, 2 * count), ay = upload(dy, count * width);
    array ad = upload(dtable, nt);
    launch_ok((dml_launch){ .kernel = kernel,
                            .size = { count, 1 },
                            .buffer = { at(ai), at(al) },
                            .integer = { shape[0], shape[1] } });
    launch_ok((dml_launch){ .kernel = "embedding_backward",
                            .size = { count * width, 1 },
                            .buffer = { at(ai), at(al), at(ay), at(ad) },
                            .integer = { shape[0], shape[1], first, rows } });
    download(ai, NULL), download(al, links), download(ay, NULL), download(ad, dtable);
    for (size_t i = 0; i < count; i++) {
        int32_t next = -1, first = 1;
        for (size_t k = count; k-- > 0;) {
            if (k > i && indices[k] == indices[i]) next = (int32_t)k;
            if (k < i && indices[k] == indices[i]) first = 0;
        }
        CHECK_INT(links[i], next);
        CHECK_INT(links[count + i], first);
    }
    check("embedding_backward", dtable, want, nt, 10 + (double)count / 50); /* sums on their way */
    free(indices), free(links), free(dy), free(dtable), free(want);
}

static void embedding_links_cases(const char *kernel)
{
    static const int more[][3] = { { 2100, 1, 3000 }, { 2049, 2, 1 } };
    embedding_case(kernel, embeddings[1], 0, 0);
    for (int s = 0; s < 2 && !quick; s++) embedding_case(kernel, more[s], 0, 0);
}
TEST_PAIR(embedding_links, embedding_links_cases)

static void test_embedding_backward(void)
{
    for (int s = quick; s < upto(EMBEDDINGS); s++) embedding_case("embedding_links", embeddings[s], 0, 0);
    embedding_case("embedding_links", embeddings[1], 2, 3);
    embedding_case("embedding_links", embeddings[4], 0, 20);
}

#endif
