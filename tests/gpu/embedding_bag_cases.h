/* embedding_bag_cases.h: the kernels of bags of rows, for kernels_test.c. */
#ifndef DML_TESTS_GPU_EMBEDDING_BAG_CASES_H
#define DML_TESTS_GPU_EMBEDDING_BAG_CASES_H

#include "kernel_cases.h"

/* bags, length, width, rows, weights, mean */
static const int bag_shapes[][6] = {
    { 1, 1, 1, 1, 0, 0 }, { 5, 3, 70, 4, 1, 0 }, { 130, 2, 3, 9, 0, 1 }, { 3, 90, 1, 50, 0, 0 }
};
enum { BAG_SHAPES = sizeof bag_shapes / sizeof bag_shapes[0] };
enum { BAG_FORWARD, BAG_BACKWARD, BAG_WEIGHTS };

static void bag_case(const int *shape, int kind, float beta)
{
    const size_t bags = (size_t)shape[0], length = (size_t)shape[1], width = (size_t)shape[2];
    const size_t places = bags * length, n = bags * width, nt = (size_t)shape[3] * width;
    int32_t *indices = malloc(places * sizeof *indices), *links = malloc(2 * places * sizeof *links);
    float *weights = numbers(places), *table = numbers(nt), *y = numbers(n), *by = output(places, beta);
    const size_t outputs = kind == BAG_FORWARD ? n : kind == BAG_BACKWARD ? nt : places;
    double *want = calloc(outputs, sizeof *want);
    for (size_t i = 0; i < places; i++)
        indices[i] = (int32_t)(test_random(&seed) % (unsigned)(shape[3] + 1)) - 1;
    for (size_t i = 0; i < places && kind == BAG_WEIGHTS; i++) want[i] = kept(beta, by[i]);
    for (size_t i = 0; i < nt && kind == BAG_BACKWARD; i++) want[i] = (double)table[i];
    for (size_t i = 0; i < places * width; i++) {
        const size_t place = i / width, bag = place / length, c = i % width;
        double count = 0, part = 1;
        for (size_t k = 0; k < length; k++) count += indices[bag * length + k] >= 0;
        if (indices[place] < 0) continue;
        const size_t row = (size_t)indices[place] * width + c;
        if (shape[5]) part = 1 / count;
        if (shape[4]) part = (double)weights[place];
        if (kind == BAG_FORWARD) want[bag * width + c] += part * (double)table[row];
        if (kind == BAG_BACKWARD) want[row] += part * (double)y[bag * width + c];
        if (kind == BAG_WEIGHTS) want[place] += (double)table[row] * (double)y[bag * width + c];
    }
    for (size_t i = 0; i < n && kind == BAG_FORWARD; i++) y[i] = NAN;
    array ai = upload(indices, places), al = upload(links, 2 * places), aw = upload(weights, places);
    array at_table = upload(table, nt), ay = upload(y, n), ab = upload(by, places);
    const dml_ref w = shape[4] ? at(aw) : (dml_ref){ NULL, 0 };
    dml_launch launch = { .integer = { (int)places, shape[2], shape[1], shape[5] }, .real = { beta } };
    launch.buffer[0] = at(ai);
    if (kind == BAG_FORWARD) {
        launch.kernel = "embedding_bag_forward", launch.size[0] = n;
        launch.buffer[1] = w, launch.buffer[2] = at(at_table), launch.buffer[3] = at(ay);
    } else if (kind == BAG_BACKWARD) {
        launch.kernel = "embedding_links", launch.size[0] = places, launch.size[1] = 1;
        launch.buffer[1] = at(al);
        launch_ok(launch);
        launch.kernel = "embedding_bag_backward", launch.size[0] = places * width;
        launch.buffer[2] = w, launch.buffer[3] = at(ay), launch.buffer[4] = at(at_table);
    } else {
        launch.kernel = "embedding_bag_weights", launch.size[0] = places;
        launch.buffer[1] = at(at_table), launch.buffer[2] = at(ay), launch.buffer[3] = at(ab);
    }
    launch.size[1] = 1;
    launch_ok(launch);
    download(ai, NULL), download(al, links), download(aw, NULL), download(at_table, table);
    download(ay, y), download(ab, by);
    check(launch.kernel,
          kind == BAG_FORWARD    ? y
          : kind == BAG_BACKWARD ? table
                                 : by,
          want, outputs, sqrt((double)(length + bags)));
    free(indices), free(links), free(weights), free(table), free(y), free(by), free(want);
}

static void test_embedding_bag_forward(void)
{
    for (int s = quick; s < upto(BAG_SHAPES); s++) bag_case(bag_shapes[s], BAG_FORWARD, 0);
}

static void test_embedding_bag_backward(void)
{
    for (int s = quick; s < upto(BAG_SHAPES); s++) bag_case(bag_shapes[s], BAG_BACKWARD, 0);
}

static void test_embedding_bag_weights(void)
{
    for (int s = quick; s < upto(BAG_SHAPES); s++) bag_case(bag_shapes[s], BAG_WEIGHTS, betas[s % BETAS]);
}

#endif
