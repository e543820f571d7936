/* Every kernel of gpu/kernel_list.h on every device against a float64 reference. A kernel without a case in
   its family's header doesn't compile. */
#include "gpu/choice.h"
#include "gpu/kernel_list.h"

#include "attention_cases.h"
#include "conv2d_cases.h"
#include "elementwise_cases.h"
#include "embedding_bag_cases.h"
#include "embedding_cases.h"
#include "gemm_cases.h"
#include "half_cases.h"
#include "local2d_cases.h"
#include "loss_cases.h"
#include "norm_cases.h"
#include "pool2d_cases.h"
#include "recurrent_cases.h"
#include "reduce_cases.h"
#include "sample_norm_cases.h"
#include "slice2d_cases.h"
#include "strided_cases.h"
#include "update_cases.h"

/* The same launch twice gives the same bits. */
static void results_repeat(void)
{
    const shape s = { 2, 9, 9, 3, 5, 3, 3, 1, 1, 1, 1, 0, 0, 0 };
    const size_t nx = 2 * 9 * 9 * 3, ny = 2 * 9 * 9 * 5, nw = 5 * 3 * 3 * 3;
    float *x = numbers(nx), *dy = numbers(ny), *dw[2];
    for (int run = 0; run < 2; run++) {
        dw[run] = output(nw, 0);
        array ax = upload(x, nx), ay = upload(dy, ny), aw = upload(dw[run], nw);
        dml_launch launch = { .kernel = "conv2d_backward_weights",
                              .size = { 27, 5 },
                              .buffer = { at(ax), at(ay), at(aw) } };
        set_shape(&launch, &s);
        launch_ok(launch);
        download(ax, NULL), download(ay, NULL), download(aw, dw[run]);
    }
    CHECK(memcmp(dw[0], dw[1], nw * sizeof(float)) == 0);
    free(x), free(dy), free(dw[0]), free(dw[1]);
}

/* Launches that name a family, whose kernel is chosen. */
static void families(void)
{
    /* These are cut into shares of k. */
    if (quick) gemm_rides_case("gemm", 3, 5, 520, true, false, 1);
    for (int t = 0; t < 4 && !quick; t++) gemm_rides_case("gemm", 65 + 64 * t, 66, 1100 - t, t & 1, t & 2, 1);
    gemm_case("gemm", 65, 70, 67, true, false, 1, 0.5f);
    conv_case("conv2d_forward", &conv_shapes[1], 1, true);
    conv_case("conv2d_backward_input", &conv_shapes[1], 1, false);
    conv_case("conv2d_backward_weights", &conv_shapes[1], 1, false);
    sample_forward_case("sample_norm_forward", sample_create(sample_shapes[1], false, true));
    sample_backward_case("sample_norm_backward", sample_create(sample_shapes[1], false, true), 1);
    attention_case("attention_forward", "attention_backward", attentions[quick ? 0 : 2], 1);
}

/* All tiles add in the same order, so that what is chosen changes no bit; the solo kernels may contract
 * otherwise. */
static void tiles_give_the_same_bits(void)
{
    enum { M = 70, N = 37, K = 45 };
    static const char *const kernels[] = { "gemm_128x128", "gemm_128x64", "gemm_64x64",
                                           "gemm_64x16",   "gemm_16x64",  "gemm_16x16" };
    float *a = numbers(M * K), *b = numbers(K * N), *c[DML__TILE_SHAPES];
    for (int i = 0; i < (int)DML__TILE_SHAPES; i++) {
        c[i] = output(M * N, 0);
        array da = upload(a, M * K), db = upload(b, K * N), dc = upload(c[i], M * N);
        launch_ok((dml_launch){ .kernel = kernels[i],
                                .size = { N, M },
                                .buffer = { at(da), at(db), at(dc) },
                                .integer = { M, N, K, 0, 0, K, N, N },
                                .real = { 1, 0 } });
        download(da, NULL), download(db, NULL), download(dc, c[i]);
        CHECK(memcmp(c[i], c[0], M * N * sizeof(float)) == 0);
    }
    for (int i = 0; i < (int)DML__TILE_SHAPES; i++) free(c[i]);
    free(a), free(b);
}

/* DML_TEST_KERNEL=name runs that kernel's case alone. */
static const char *only_kernel;
static void every_kernel(void)
{
#define CASE(name, covers_x, covers_y)                                                                       \
    if (!only_kernel || strcmp(only_kernel, #name) == 0) test_##name();
    DML__KERNEL_LIST(CASE) DML__SOLO_LIST(CASE)
#undef CASE
}

int main(void)
{
    only_kernel = getenv("DML_TEST_KERNEL");
    const bool oclgrind = getenv("OCLGRIND_DATA_RACES") != NULL; /* races are what it looks for, not bits */
    quick = UNDER_TSAN || oclgrind || getenv("DML_TEST_QUICK");
    RUN_ON_EVERY_DEVICE(every_kernel);
    if (!only_kernel) RUN_ON_EVERY_DEVICE(families);
    if (!oclgrind) RUN_ON_EVERY_DEVICE(results_repeat);
    if (!oclgrind) RUN_ON_EVERY_DEVICE(tiles_give_the_same_bits);
    return test_report("gpu/kernels");
}
