#include "kernels/conv2d.h"

#include "base/cpu.h"
#include "exact.h"
#include "kernel_test.h"

#include <fenv.h>

typedef struct arrays {
    dml_conv2d_shape s;
    int out_h, out_w;
    size_t x_count, w_count, y_count;
    float *x, *w, *bias, *dy;
    exact_sum *y, *dx, *dw; /* the reference, without bias and beta */
} arrays;

static float *new_floats(size_t n)
{
    return (float *)malloc(n ? n * sizeof(float) : 1);
}

static float *random_floats(unsigned *state, size_t n)
{
    float *x = new_floats(n);
    test_fill(state, x, n);
    return x;
}

static exact_sum *no_sums(size_t n)
{
    return (exact_sum *)calloc(n + 1, sizeof(exact_sum));
}

static arrays make(dml_conv2d_shape s, unsigned *state)
{
    arrays r;
    r.s = s;
    r.out_h =
        s.out_h ? s.out_h : exact_conv2d_output(s.height, s.kernel_h, s.stride_h, s.pad_h, s.dilation_h);
    r.out_w = s.out_w ? s.out_w : exact_conv2d_output(s.width, s.kernel_w, s.stride_w, s.pad_w, s.dilation_w);
    r.x_count = (size_t)(s.batch * s.height * s.width * s.channels);
    r.w_count = (size_t)(s.filters * s.kernel_h * s.kernel_w * s.channels / exact_or_one(s.groups));
    r.y_count = (size_t)(s.batch * r.out_h * r.out_w * s.filters);
    r.x = random_floats(state, r.x_count);
    r.w = random_floats(state, r.w_count);
    r.bias = random_floats(state, (size_t)s.filters);
    r.dy = random_floats(state, r.y_count);
    r.y = no_sums(r.y_count), r.dx = no_sums(r.x_count), r.dw = no_sums(r.w_count);
    exact_conv2d(&r.s, r.x, r.w, r.dy, r.y, r.dx, r.dw);
    return r;
}

static void discard(arrays *r)
{
    free(r->x), free(r->w), free(r->bias), free(r->dy);
    free(r->y), free(r->dx), free(r->dw);
}

enum { RANDOM_SHAPES = TEST_EMULATOR ? 15 : TEST_SLOW ? 40 : 150 };
enum { FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHTS, DIRECTIONS };
static const char *const directions[] = { "forward", "backward_input", "backward_weights" };

static size_t result_count(const arrays *r, int direction)
{
    return direction == FORWARD ? r->y_count : direction == BACKWARD_INPUT ? r->x_count : r->w_count;
}

/* What comes after a forward pass's sums. */
typedef struct end {
    bool bias, relu;
    float beta;
} end;

static void call(dml_pool *pool, const arrays *r, int direction, end e, float *result)
{
    const float beta = e.beta;
    const dml_epilogue epilogue = { e.bias ? r->bias : NULL,
                                    e.relu ? DML_ACTIVATION_RELU : DML_ACTIVATION_NONE };
    dml_status status;
    if (direction == FORWARD && !e.relu && beta == 0)
        status = dml_conv2d_forward(pool, &r->s, r->x, r->w, epilogue.bias, result);
    else if (direction == FORWARD)
        status = dml_conv2d_forward_fused(pool, &r->s, r->x, r->w, beta, &epilogue, result);
    else if (direction == BACKWARD_INPUT)
        status = dml_conv2d_backward_input(pool, &r->s, r->dy, r->w, beta, result);
    else
        status = dml_conv2d_backward_weights(pool, &r->s, r->x, r->dy, beta, result);
    CHECK_INT(status, DML_OK);
}

static void check_direction(const arrays *r, int direction, end e, dml_pool **pools, int pool_count,
                            unsigned *state)
{
    const dml_conv2d_shape *s = &r->s;
    const size_t count = result_count(r, direction);
    const exact_sum *want = direction == FORWARD ? r->y : direction == BACKWARD_INPUT ? r->dx : r->dw;
    float *old = random_floats(state, count), *first = new_floats(count), *got = new_floats(count);
    if (e.beta == 0)
        for (size_t i = 0; i < count; i++) old[i] = NAN;
    for (int p = 0; p < pool_count; p++) {
        float *result = p ? got : first;
        for (size_t i = 0; i < count; i++) result[i] = old[i];
        call(pools[p], r, direction, e, result);
        if (p && count)
            CHECK_MESSAGE(memcmp(first, got, count * sizeof *got) == 0, "%s: pool %d differs",
                          directions[direction], p);
    }
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) {
        const double bias = direction == FORWARD && e.bias ? (double)r->bias[i % (size_t)s->filters] : 0;
        const double before = e.beta != 0 ? (double)e.beta * (double)old[i] : 0;
        const double sum = want[i].value + bias + before;
        const double exact = direction == FORWARD && e.relu && sum < 0 ? 0 : sum;
        wrong +=
            !(fabs(exact - (double)first[i]) <= 20.0 / 16777216 * (want[i].size + fabs(bias) + fabs(before)));
    }
    CHECK_MESSAGE(wrong == 0,
                  "%s N=%d %dx%dx%d F=%d kernel %dx%d stride %dx%d pad %dx%d dilation %dx%d groups %d beta "
                  "%g bias %d relu %d: "
                  "%zu of %zu are wrong",
                  directions[direction], s->batch, s->height, s->width, s->channels, s->filters, s->kernel_h,
                  s->kernel_w, s->stride_h, s->stride_w, s->pad_h, s->pad_w, s->dilation_h, s->dilation_w,
                  s->groups, (double)e.beta, e.bias, e.relu, wrong, count);
    free(old);
    free(first);
    free(got);
}

static void check(dml_conv2d_shape s, dml_pool **pools, int pool_count, unsigned *state)
{
    static const float betas[] = { 0, 1, 0.5f };
    arrays r = make(s, state);
    for (int direction = 0; direction < DIRECTIONS; direction++) {
        const end e = { (test_random(state) >> 8 & 1) != 0, (test_random(state) >> 8 & 1) != 0,
                        betas[(test_random(state) >> 8) % 3] };
        check_direction(&r, direction, e, pools, pool_count, state);
    }
    discard(&r);
}

/* Kernels, strides and pads along the one axis against others along the other. */
static void kernels_strides_pads(void)
{
    static const int kernels[] = { 1, 2, 3, 5 };
    unsigned state = 1;
    for (int i = 0; i < 4 * 3 * 3; i++) {
        dml_conv2d_shape s = { 2, 7, 6, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 };
        s.kernel_h = kernels[i % 4];
        s.stride_h = 1 + i / 4 % 3;
        s.pad_h = i / 12;
        s.kernel_w = kernels[(test_random(&state) >> 8) % 4];
        s.stride_w = 1 + (int)((test_random(&state) >> 8) % 3);
        s.pad_w = (int)((test_random(&state) >> 8) % 3);
        s.channels = 1 + (int)((test_random(&state) >> 8) % 7);
        s.filters = 1 + (int)((test_random(&state) >> 8) % 19);
        check(s, kernel_pools, 2, &state);
    }
}

static void larger_shapes(void)
{
    static const dml_conv2d_shape shapes[] = {
        { 9, 14, 14, 1, 6, 5, 5, 1, 1, 2, 2, 0, 0, 0, 0, 0 },  /* a long sum over pixels into a small dw */
        { 3, 9, 11, 37, 33, 3, 3, 1, 1, 1, 1, 0, 0, 0, 0, 0 }, /* k over several blocks */
        { 1, 5, 5, 130, 3, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0 },  /* one by one */
        { 2, 13, 12, 3, 17, 3, 2, 2, 3, 1, 0, 0, 0, 0, 0, 0 }, /* unlike along the two axes */
        { 1, 2, 2, 2, 2, 5, 5, 1, 1, 4, 4, 0, 0, 0, 0, 0 },    /* a kernel and a pad larger than the image */
        { 2, 6, 5, 3, 4, 3, 2, 1, 1, 3, 2, 0, 0, 0, 0,
          0 }, /* pads as large as the kernel: outputs of padding alone
                */
        { 2, 6, 5, 3, 4, 2, 3, 3, 2, 2, 3, 0, 0, 0, 0, 0 },   /* and with strides */
        { 1, 3, 4, 2, 3, 2, 2, 1, 2, 5, 4, 0, 0, 0, 0, 0 },   /* pads larger than the kernel */
        { 1, 40, 1, 5, 65, 7, 1, 3, 1, 3, 0, 0, 0, 0, 0, 0 }, /* a line */
        { 1, 4, 6, 5, 300, 1, 1, 2, 2, 0, 0, 0, 0, 0, 0, 0 }, /* inputs that meet no tap, of many filters */
        { 2, 4, 6, 5, 300, 1, 1, 1, 2, 0, 0, 0, 0, 0, 0, 0 },
        { 1, 5, 6, 5, 300, 3, 1, 2, 3, 1, 0, 0, 0, 0, 0, 0 },
        { 2, 9, 10, 19, 23, 1, 1, 2, 2, 0, 0, 0, 0, 0, 0,
          0 }, /* strided pixels: tiles go through several lines */
        { 2, 14, 14, 6, 16, 5, 5, 1, 1, 0, 0, 0, 0, 0, 0,
          0 }, /* gradients onto few channels, through many taps */
        { 1, 20, 18, 3, 50, 3, 4, 1, 1, 1, 2, 0, 0, 0, 0, 0 },
        { 2, 9, 35, 1, 33, 4, 5, 1, 1, 2, 1, 2, 0, 0, 0, 0 },
        { 3, 20, 21, 3, 16, 3, 3, 1, 1, 1, 1, 0, 0, 0, 0, 0 }, /* dw of lines of taps shorter than vectors */
        { 2, 30, 31, 3, 24, 7, 7, 2, 2, 3, 3, 0, 0, 0, 0, 0 },
        { 1, 3, 600, 3, 40, 3, 3, 1, 2, 1, 1, 2, 0, 0, 0, 0 },
        { 2, 12, 13, 6, 64, 3, 3, 2, 1, 1, 1, 0, 0, 2, 0, 0 },
        { 1, 40, 41, 24, 100, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0 }, /* more pixels than stay in a second cache */
        { 1, 40, 41, 40, 120, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0 },
        { 5, 8, 12, 3, 16, 3, 3, 1, 1, 1, 1, 0, 0, 0, 0, 0 },  /* tall tiles, of runs that are whole groups */
        { 4, 15, 13, 5, 16, 3, 3, 1, 1, 1, 1, 0, 0, 0, 0, 0 }, /* and of groups that overlap */
        { 4, 9, 31, 7, 13, 3, 3, 1, 1, 1, 1, 0, 0, 0, 0, 0 },  /* of less than a vector */
        { 4, 20, 9, 16, 16, 3, 3, 1, 2, 1, 1, 0, 0, 0, 0, 0 }, /* along columns */
        { 5, 19, 10, 1, 6, 5, 5, 1, 1, 2, 2, 0, 0, 0, 0, 0 },  /* lines of dy that end with the last filter */
        { 2, 70, 91, 1, 4, 3, 3, 1, 1, 1, 1, 0, 0, 0, 0,
          0 }, /* dw of one channel, by several pieces an image */
        { 19, 9, 32, 1, 5, 2, 5, 2, 1, 1, 3, 3, 2, 0, 0, 0 }, /* of whole vectors; more images than chunks */
        { 3, 12, 17, 1, 1, 7, 9, 1, 1, 9, 4, 0, 0, 0, 0, 0 }, /* of a kernel that reaches beyond the image */
        { 2, 9, 20, 1, 3, 3, 3, 1, 1, 1, 3, 0, 0, 0, 5, 13 }, /* of an output that ends before the image */
        { 1, 5, 6, 33, 10, 3, 3, 1, 1, 4, 4, 4, 4, 0, 0, 0 }, /* dw of taps that few lines and pixels meet */
        { 2, 9, 13, 40, 9, 3, 3, 2, 2, 2, 2, 0, 0, 0, 0, 0 },
        { 1, 3, 301, 33, 9, 5, 3, 1, 1, 2, 1, 0, 0, 0, 0, 0 }, /* and of such that no line of a strip meets */
        { 0, 5, 5, 3, 4, 3, 3, 1, 1, 1, 1, 0, 0, 0, 0, 0 },    /* an empty batch: dw is beta dw */
        { 2, 9, 8, 1040, 1040, 3, 3, 1, 1, 1, 1, 0, 0, 1040, 0,
          0 },                                                   /* depthwise: channels in several blocks */
        { 5, 30, 29, 21, 21, 3, 3, 1, 1, 1, 1, 0, 0, 21, 0, 0 }, /* and lines in several groups */
        { 19, 9, 8, 5, 5, 2, 3, 1, 1, 1, 0, 1, 2, 5, 0, 0 },
        { 2, 33, 17, 530, 530, 3, 3, 1, 1, 1, 1, 0, 0, 530, 0, 0 },
        { 1, 40, 70, 24, 24, 12, 10, 1, 1, 5, 5, 0, 0, 24, 0, 0 }, /* many taps */
        { 2, 9, 200, 5, 5, 3, 3, 1, 1, 1, 1, 1, 1, 5, 0, 0 },      /* few, and lines in several parts */
        { 2, 122, 60, 11, 11, 16, 8, 1, 2, 3, 5, 8, 8, 11, 0, 0 }, /* of a window that isn't copied */
        { 5, 60, 61, 72, 72, 3, 3, 2, 2, 1, 1, 0, 0, 72, 0, 0 },   /* beyond the level-2 caches */
        { 2, 17, 9, 20, 20, 3, 3, 3, 2, 1, 1, 0, 0, 20, 0, 0 },    /* more phases than go at once */
        { 2, 1, 9, 20, 20, 3, 3, 2, 2, 1, 1, 0, 0, 20, 0, 0 },     /* fewer lines than phases */
    };
    const int pools = TEST_EMULATOR ? 3 : KERNEL_POOLS; /* without scratch, alone and not, and with it */
    unsigned state = 2;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (int p = 2; p < pools; p++) /* the others have none */
            CHECK_INT(dml_pool_reserve(kernel_pools[p], dml_conv2d_scratch(&shapes[i], true)), DML_OK);
        check(shapes[i], kernel_pools, pools, &state);
    }
}

/* Outputs that meet padding alone, of sums over several blocks of k: they are finished, too. */
static void outputs_of_padding(void)
{
    static const dml_conv2d_shape shapes[] = {
        { 8, 6, 7, 65, 1, 3, 3, 1, 1, 3, 1, 0, 0, 0, 0, 0 },
        { 7, 5, 8, 52, 2, 3, 3, 1, 1, 3, 0, 0, 0, 0, 0, 0 },
        { 3, 6, 23, 70, 3, 2, 2, 1, 1, 2, 3, 0, 0, 0, 0, 0 },
        { 3, 8, 20, 60, 5, 3, 3, 1, 1, 3, 1, 0, 0, 0, 0, 0 },
    };
    static const end ends[] = { { true, true, 0 }, { false, true, 1 }, { true, false, 0.5f } };
    unsigned state = 4;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (size_t e = 0; e < sizeof ends / sizeof ends[0]; e++) {
            arrays r = make(shapes[i], &state);
            check_direction(&r, FORWARD, ends[e], kernel_pools, 2, &state);
            discard(&r);
        }
}

/* Any shape, with any pool: one without scratch (NULL), and ones with what dml_conv2d_scratch says. */
static void random_shapes(void)
{
    unsigned state = 4;
    for (int i = 0; i < RANDOM_SHAPES; i++) {
        dml_conv2d_shape s;
        int *const axes[][5] = { { &s.height, &s.kernel_h, &s.stride_h, &s.pad_h, &s.dilation_h },
                                 { &s.width, &s.kernel_w, &s.stride_w, &s.pad_w, &s.dilation_w } };
        memset(&s, 0, sizeof s);
        s.groups = (int)(test_random(&state) >> 8) % 3 ? 1 : 1 + (int)((test_random(&state) >> 8) % 3);
        s.batch = (int)((test_random(&state) >> 8) % 4);
        s.channels =
            s.groups * (1 + (int)((test_random(&state) >> 8) % ((test_random(&state) >> 8) % 2 ? 5 : 40)));
        s.filters =
            s.groups * (1 + (int)((test_random(&state) >> 8) % ((test_random(&state) >> 8) % 2 ? 7 : 50)));
        if ((test_random(&state) >> 8) % 4 == 0) s.filters = s.groups = s.channels;
        for (int axis = 0; axis < 2; axis++) {
            *axes[axis][1] = 1 + (int)((test_random(&state) >> 8) % 5);
            *axes[axis][2] =
                1 + (int)((test_random(&state) >> 8) % ((test_random(&state) >> 8) % 8 ? 3 : 10));
            *axes[axis][3] = (int)((test_random(&state) >> 8) % 4);
            *axes[axis][4] = (int)((test_random(&state) >> 8) % 4);
            const int extent = dml_conv2d_extent(*axes[axis][1], exact_or_one(*axes[axis][4]));
            const int least = extent - 2 * *axes[axis][3];
            *axes[axis][0] = (least < 1 ? 1 : least) + (int)((test_random(&state) >> 8) % 14);
            if ((test_random(&state) >> 8) % 4 == 0) {
                const int out =
                    dml_conv2d_output_size(*axes[axis][0], extent, *axes[axis][2], *axes[axis][3]);
                const int other = out - 3 + (int)((test_random(&state) >> 8) % 7);
                *(axis ? &s.out_w : &s.out_h) = other < 1 ? 1 : other;
            }
        }
        for (int p = 1; p < KERNEL_POOLS; p++)
            CHECK_INT(dml_pool_reserve(kernel_pools[p], dml_conv2d_scratch(&s, true)), DML_OK);
        check(s, kernel_pools, 4, &state);
    }
}

/* Lines of every length around the pixels that depthwise kernels take at once, and all of their kernels. */
static void depthwise(void)
{
    unsigned state = 5;
    for (int i = 0; i < 5 * 3 * 16; i++) {
        dml_conv2d_shape s = { 2, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0 };
        s.kernel_w = 1 + i % 5, s.kernel_h = 1 + (int)((test_random(&state) >> 8) % 5);
        s.stride_w = 1 + i / 5 % 3, s.stride_h = 1 + (int)((test_random(&state) >> 8) % 2);
        s.pad_w = (int)((test_random(&state) >> 8) % 4), s.pad_h = (int)((test_random(&state) >> 8) % 3);
        s.height = s.kernel_h + (int)((test_random(&state) >> 8) % 3);
        s.width = s.kernel_w + i / 15 + (s.stride_w - 1) * 8;
        s.channels = s.filters = s.groups = 2 + (int)((test_random(&state) >> 8) % 36);
        if (i % 7 == 0) s.out_h = 1 + i % 9, s.out_w = 1 + i % 11;
        check(s, kernel_pools, 3, &state);
    }
}

/* Several filters for each channel, and kernels, strides and dilations of every kind: what has no loop of its
   own. Kernels that are long along an axis are cut into bands and segments. */
static void depthwise_any_kernel(void)
{
    static const dml_conv2d_shape shapes[] = {
        { 2, 9, 70, 40, 40, 7, 7, 1, 1, 3, 3, 1, 1, 40, 0, 0 },   /* units of channels, bands of lines */
        { 1, 15, 16, 35, 35, 7, 7, 2, 2, 3, 3, 1, 1, 35, 0, 0 },  /* units, the last not full */
        { 3, 7, 7, 150, 300, 3, 3, 1, 1, 1, 1, 1, 1, 150, 0, 0 }, /* two filters of each channel, in blocks */
        { 1, 9, 130, 3, 12, 3, 3, 1, 1, 1, 1, 1, 1, 3, 0, 0 },
        { 1, 3, 90, 5, 5, 1, 40, 1, 1, 0, 20, 1, 1, 5, 0, 0 },     /* one long line of taps */
        { 1, 90, 5, 5, 5, 40, 1, 1, 1, 20, 0, 1, 1, 5, 0, 0 },     /* many short ones */
        { 1, 12, 70, 17, 34, 3, 3, 1, 1, 9, 20, 9, 20, 17, 0, 0 }, /* taps far apart */
        { 1, 12, 71, 4, 4, 2, 3, 3, 4, 1, 1, 2, 30, 4, 0, 0 },     /* and strides */
        { 1, 14, 15, 6, 84, 3, 3, 1, 1, 1, 1, 1, 1, 6, 0, 0 },     /* as many filters as there is room for */
        { 1, 14, 15, 6, 90, 3, 3, 1, 1, 1, 1, 1, 1, 6, 0, 0 },     /* and more */
    };
    unsigned state = 8;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) check(shapes[i], kernel_pools, 3, &state);
    for (int i = 0; i < (TEST_SLOW ? 4 : 15) * 8; i++) {
        dml_conv2d_shape s = { 2, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0 };
        s.kernel_w = 1 + i % 8, s.kernel_h = 1 + (int)((test_random(&state) >> 8) % 8);
        s.stride_w = 1 + i / 8 % 4, s.stride_h = 1 + (int)((test_random(&state) >> 8) % 4);
        s.pad_w = (int)((test_random(&state) >> 8) % 5), s.pad_h = (int)((test_random(&state) >> 8) % 5);
        s.dilation_w = (int)((test_random(&state) >> 8) % 4),
        s.dilation_h = (int)((test_random(&state) >> 8) % 4);
        s.height = dml_conv2d_extent(s.kernel_h, s.dilation_h) + (int)((test_random(&state) >> 8) % 6);
        s.width = dml_conv2d_extent(s.kernel_w, s.dilation_w) + (int)((test_random(&state) >> 8) % 20);
        s.channels = s.groups = 2 + (int)((test_random(&state) >> 8) % 36);
        s.filters = s.channels * (1 + (int)((test_random(&state) >> 8) % 3));
        if (i % 7 == 0) s.out_h = 1 + i % 9, s.out_w = 1 + i % 11;
        check(s, kernel_pools, 3, &state);
    }
}

/* An infinite pixel at the end of a line goes into the taps that meet it, and no others. */
static void infinities_stay_with_their_taps(void)
{
    const dml_conv2d_shape s = { 2, 9, 28, 1, 6, 5, 5, 1, 1, 2, 2, 0, 0, 0, 0, 0 };
    unsigned state = 9;
    arrays r = make(s, &state);
    const size_t count = result_count(&r, BACKWARD_WEIGHTS);
    const end bare = { false, false, 0 };
    float *dw = new_floats(count);
    for (int y = 0; y < s.batch * s.height; y++) r.x[y * s.width + s.width - 1] = INFINITY;
    call(kernel_pools[1], &r, BACKWARD_WEIGHTS, bare, dw);
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) wrong += (i % 5 < 2) != (isfinite(dw[i]) != 0);
    CHECK_MESSAGE(wrong == 0, "%zu of %zu taps", wrong, count);
    free(dw);
    discard(&r);
}

static void infinities_stay_with_their_taps_on_each_isa(void)
{
    kernel_each_isa(infinities_stay_with_their_taps);
}

/* What one channel holds the others never see. */
static void depthwise_channels_are_apart(void)
{
    enum { MOST = 13 };
    unsigned state = 6;
    for (int channels = 2; channels <= MOST; channels++)
        for (int kernel = 1; kernel <= 7; kernel += 2) {
            const dml_conv2d_shape s = { 1, 9,          8,          channels, channels, kernel,   kernel, 1,
                                         1, kernel / 2, kernel / 2, 1,        1,        channels, 0,      0 };
            arrays r = make(s, &state);
            const int bad = (int)((test_random(&state) >> 8) % (unsigned)channels);
            for (int direction = 0; direction < DIRECTIONS; direction++) {
                const size_t count = result_count(&r, direction), last = count / (size_t)channels;
                const end bare = { false, false, 0 };
                float *clean = new_floats(count), *got = new_floats(count);
                float *spoilt = direction == BACKWARD_INPUT ? r.dy : r.x;
                float *kept = new_floats(r.x_count);
                memcpy(kept, spoilt, r.x_count * sizeof *kept);
                call(kernel_pools[1], &r, direction, bare, clean);
                for (size_t i = (size_t)bad; i < r.x_count; i += (size_t)channels)
                    spoilt[i] = i % 2 ? NAN : INFINITY;
                call(kernel_pools[1], &r, direction, bare, got);
                memcpy(spoilt, kept, r.x_count * sizeof *kept);
                size_t wrong = 0;
                for (size_t i = 0; i < count; i++) {
                    const size_t channel = direction == BACKWARD_WEIGHTS ? i / last : i % (size_t)channels;
                    wrong += channel != (size_t)bad && memcmp(&clean[i], &got[i], sizeof *got) != 0;
                }
                CHECK_MESSAGE(wrong == 0, "%s, %d channels, kernel %d, channel %d: %zu differ",
                              directions[direction], channels, kernel, bad, wrong);
                free(clean), free(got), free(kept);
            }
            discard(&r);
        }
}

static void depthwise_channels_are_apart_on_each_isa(void)
{
    kernel_each_isa(depthwise_channels_are_apart);
}

static void depthwise_on_each_isa(void)
{
    kernel_each_isa(depthwise);
    kernel_each_isa(depthwise_any_kernel);
}

static void random_shapes_on_each_isa(void)
{
    kernel_each_isa(random_shapes);
}

static void kernels_strides_pads_on_each_isa(void)
{
    kernel_each_isa(kernels_strides_pads);
}

static void larger_shapes_on_each_isa(void)
{
    kernel_each_isa(larger_shapes);
    kernel_each_isa(outputs_of_padding);
}

static double dot(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return sum;
}

/* conv is linear in x and in w: <dy, conv(x, w)> = <dx, x> = <dw, w>. */
static void gradients_are_adjoint(void)
{
    unsigned state = 3;
    const dml_conv2d_shape s = { 3, 17, 15, 5, 9, 3, 4, 2, 1, 1, 2, 0, 0, 0, 0, 0 };
    arrays r = make(s, &state);
    float *y = new_floats(r.y_count), *dx = new_floats(r.x_count), *dw = new_floats(r.w_count);
    const end bare = { false, false, 0 };
    call(NULL, &r, FORWARD, bare, y);
    call(NULL, &r, BACKWARD_INPUT, bare, dx);
    call(NULL, &r, BACKWARD_WEIGHTS, bare, dw);
    const double through_y = dot(r.dy, y, r.y_count);
    CHECK(fabs(through_y) > 1);
    CHECK_NEAR(dot(dx, r.x, r.x_count), through_y, 1e-4 * fabs(through_y));
    CHECK_NEAR(dot(dw, r.w, r.w_count), through_y, 1e-4 * fabs(through_y));
    free(y), free(dx), free(dw);
    discard(&r);
}

static void output_sizes(void)
{
    CHECK_INT(dml_conv2d_output_size(28, 5, 1, 2), 28);
    CHECK_INT(dml_conv2d_output_size(7, 3, 2, 0), 3);
    CHECK_INT(dml_conv2d_output_size(8, 3, 2, 0), 3);
    CHECK_INT(dml_conv2d_output_size(1, 1, 9, 0), 1);
    CHECK_INT(dml_conv2d_output_size(2, 3, 1, 0), 0);
    CHECK_INT(dml_conv2d_output_size(0, 1, 1, 1), 0);
    CHECK_INT(dml_conv2d_output_size(3, 0, 1, 0), 0);
    CHECK_INT(dml_conv2d_output_size(3, 1, 0, 0), 0);
    CHECK_INT(dml_conv2d_output_size(3, 1, 1, -1), 0);
    CHECK_INT(dml_conv2d_output_size(2147483647, 1, 1, 2147483647), 0);
    CHECK_INT(dml_conv2d_extent(3, 1), 3);
    CHECK_INT(dml_conv2d_extent(3, 4), 9);
    CHECK_INT(dml_conv2d_extent(1, 2147483647), 1);
    CHECK_INT(dml_conv2d_extent(3, 1 << 30), 0);
    CHECK_INT(dml_conv2d_extent(0, 1), 0);
    CHECK_INT(dml_conv2d_extent(3, 0), 3);
    CHECK_INT(dml_conv2d_extent(3, -1), 0);
}

static void bad_shapes_write_nothing(void)
{
    const dml_conv2d_shape good = { 1, 4, 4, 2, 3, 3, 3, 1, 1, 1, 1, 0, 0, 0, 0, 0 };
    const float x[64] = { 1 }, w[64] = { 1 };
    float y[64] = { 7 };
    CHECK_INT(dml_conv2d_forward(NULL, NULL, x, w, NULL, y), DML_ERROR_ARGUMENT);
    for (int field = 0; field < 14; field++) {
        dml_conv2d_shape s = good;
        int *const fields[] = { &s.batch,    &s.height,   &s.width,    &s.channels, &s.filters, &s.kernel_h,
                                &s.kernel_w, &s.stride_h, &s.stride_w, &s.pad_h,    &s.pad_w };
        if (field < 11)
            *fields[field] = field == 0 || field > 8 ? -1 : 0;
        else if (field == 11)
            s.kernel_w = 7; /* doesn't fit 4 + 2 */
        else
            *(field == 12 ? &s.out_h : &s.out_w) = -1;
        CHECK_MESSAGE(dml_conv2d_forward(NULL, &s, x, w, NULL, y) == DML_ERROR_ARGUMENT, "field %d", field);
        CHECK_INT(dml_conv2d_backward_input(NULL, &s, x, w, 0, y), DML_ERROR_ARGUMENT);
        CHECK_INT(dml_conv2d_backward_weights(NULL, &s, x, w, 0, y), DML_ERROR_ARGUMENT);
        CHECK(y[0] == 7);
    }
}

/* Windows that reach far beyond an image, of which nothing but padding is copied: as without scratch. */
static void far_reaching_shapes(void)
{
    static const dml_conv2d_shape shapes[] = {
        { 2, 6, 8, 3, 3, 2, 2, 2147483647, 2, 1, 2, 2, 1048576, 1, 6, 1 },
        { 2, 8, 3, 4, 3, 3, 3, 1073741824, 1431655766, 1, 0, 1, 1048576, 1, 4, 1 },
        { 1, 6, 4, 4, 3, 2, 3, 1431655766, 3, 2, 3, 2, 1048576, 1, 0, 1 },
        { 2, 7, 1, 1, 3, 3, 3, 1073741824, 3, 2, 1, 2, 1048576, 1, 0, 1 },
    };
    unsigned state = 9;
    float *x = random_floats(&state, 2000), *dy = random_floats(&state, 2000);
    float *want = new_floats(2000), *got = new_floats(2000);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        dml_pool *pool = dml_pool_create(NULL);
        CHECK_INT(dml_pool_reserve(pool, dml_conv2d_scratch(&shapes[i], true)), DML_OK);
        const dml_status without = dml_conv2d_backward_weights(NULL, &shapes[i], x, dy, 0, want);
        CHECK_INT(dml_conv2d_backward_weights(pool, &shapes[i], x, dy, 0, got), without);
        const size_t count = (size_t)(shapes[i].filters * shapes[i].channels) *
                             (size_t)(shapes[i].kernel_h * shapes[i].kernel_w);
        if (without == DML_OK) CHECK(memcmp(got, want, count * sizeof *got) == 0);
        dml_pool_destroy(pool);
    }
    free(x), free(dy), free(want), free(got);
}

/* Arrays and places that no address reaches, some of which wrap around to few. */
static void impossible_shapes(void)
{
    enum { MOST = 2147483647 };
    static const dml_conv2d_shape shapes[] = {
        { MOST, 4, 4, MOST, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0 },                   /* x */
        { 1 << 20, 1 << 20, 1 << 12, 1 << 12, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0 }, /* x, 2^64 */
        { 1 << 22, 1, 1, 1, 1, 1, 1, 1, 1, 1 << 20, 1 << 20, 0, 0, 0, 0, 0 },       /* y, 2^64 and some */
        { MOST, 1, 1, 1, MOST, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0 },                   /* y */
        { 1, 1 << 16, 1 << 16, 1 << 15, 1 << 17, 1 << 16, 1 << 16, 1, 1, 0, 0, 0, 0, 0, 0, 0 }, /* w, 2^64 */
        { 1, 1, 1, MOST, 1, 1, 1, 1 << 30, 1 << 30, 0, MOST, 0, 0, 0, 0, 0 }, /* a line with its padding */
        { 1, 1, 1, 1, MOST, 1, 1, 1 << 30, 1 << 30, 0, MOST, 0, 0, 0, 0, 0 },
        { 0, 4, 4, MOST, MOST, 2, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0 },       /* no images, but w */
        { 1, 1, 1, 1 << 16, 1, 1, 1, 1, MOST, 0, 0, 0, 0, 0, 0, MOST }, /* windows' reach */
        { 1, 1, 1, 1 << 16, 1, 1, 1, 1 << 30, 1 << 30, 0, 0, 1, 1, 1, 5, (1 << 18) + 1 }, /* an image */
        { 1, 1, 1, 1, 1, 2, 2, 1 << 30, 1 << 30, 0, 0, 1, (1 << 27) - 1, 1, 1, 16 }, /* what of x is copied */
    };
    const float x[4] = { 1 }, w[4] = { 1 };
    float y[4] = { 7 };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        CHECK_MESSAGE(dml_conv2d_forward(NULL, &shapes[i], x, w, NULL, y) == DML_ERROR_ARGUMENT, "shape %zu",
                      i);
        CHECK_INT(dml_conv2d_backward_input(NULL, &shapes[i], x, w, 0, y), DML_ERROR_ARGUMENT);
        CHECK_INT(dml_conv2d_backward_weights(NULL, &shapes[i], x, w, 0, y), DML_ERROR_ARGUMENT);
        CHECK_INT(dml_conv2d_scratch(&shapes[i], true).worker, 0);
        CHECK(y[0] == 7);
    }
}

/* What the scratch is asked for is enough for pools of any number of threads: it is written to. */
static void scratch_is_enough(void)
{
    static const dml_conv2d_shape shapes[] = { { 2, 90, 240, 8, 6, 3, 3, 1, 1, 1, 1, 1, 1, 1, 0, 0 },
                                               { 3, 70, 250, 6, 5, 3, 3, 1, 1, 1, 1, 1, 1, 1, 0, 0 } };
    const dml_conv2d_shape wide = { 1, 32, 32, 1, 2048, 2, 2, 1, 1, 0, 0, 1, 1, 1, 0, 0 };
    CHECK(dml_conv2d_scratch(&wide, true).worker <= 1300000);
    unsigned state = 7;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int p = 1; p < KERNEL_POOLS; p++) {
            const dml_conv2d_shape *s = &shapes[i];
            const size_t image = (size_t)(s->batch * s->height * s->width);
            float *x = random_floats(&state, image * (size_t)s->channels),
                  *w = random_floats(&state, (size_t)(s->filters * 9 * s->channels)),
                  *y = new_floats(image * (size_t)s->filters);
            dml_pool_options options;
            memset(&options, 0, sizeof options);
            options.threads = p;
            dml_pool *pool = dml_pool_create(&options);
            CHECK_INT(dml_pool_reserve(pool, dml_conv2d_scratch(s, false)), DML_OK);
            const size_t bytes = dml_pool_scratch_bytes(pool).worker;
            for (int worker = 0; worker < p; worker++) memset(dml_pool_scratch(pool, worker), 0x55, bytes);
            CHECK_INT(dml_conv2d_forward(pool, s, x, w, NULL, y), DML_OK);
            size_t written = 0;
            for (int worker = 0; worker < p; worker++)
                for (size_t j = 0; j < bytes; j++)
                    written += ((unsigned char *)dml_pool_scratch(pool, worker))[j] != 0x55;
            CHECK_MESSAGE(bytes == 0 || written > 0, "shape %zu, %d threads: none of %zu bytes", i, p, bytes);
            dml_pool_destroy(pool);
            free(x), free(w), free(y);
        }
}

/* A scratch for a batch is enough for a smaller one, such as an epoch's last. */
static void scratch_is_enough_for_fewer(void)
{
    unsigned state = 8;
    for (int i = 0; i < 300; i++) {
        const int kernel = 2 + (int)((test_random(&state) >> 8) % 4);
        const int size = kernel + (int)((test_random(&state) >> 8) % 30);
        const int channels = 1 + (int)((test_random(&state) >> 8) % 140);
        const int filters = 1 + (int)((test_random(&state) >> 8) % 140);
        const int stride = 1 + (int)((test_random(&state) >> 8) % 2), pad = i % 3 ? kernel / 2 : 0;
        dml_conv2d_shape s = { 0,      size, size, channels, filters, kernel, kernel, stride,
                               stride, pad,  pad,  1,        1,       1,      0,      0 };
        dml_scratch largest = { 0, 0 };
        for (s.batch = 1; s.batch <= 66; s.batch++) {
            const dml_scratch got = dml_conv2d_scratch(&s, i % 4 > 0);
            CHECK_MESSAGE(
                got.worker >= largest.worker && got.shared >= largest.shared,
                "%d x %d x %d to %d, kernel %d, stride %d, pad %d, batch %d: %zu + %zu, fewer %zu + %zu",
                size, size, channels, filters, kernel, stride, pad, s.batch, got.worker, got.shared,
                largest.worker, largest.shared);
            if (got.worker > largest.worker) largest.worker = got.worker;
            if (got.shared > largest.shared) largest.shared = got.shared;
        }
    }
}

/* What lies in the scratch takes no part: here signalling NaNs, which a host that traps invalid operations
   would fall over. One filter: the pixels fill the vectors, and the last of them not whole. */
static void unused_lanes_are_zero(void)
{
    const dml_conv2d_shape s = { 1, 5, 7, 2, 1, 3, 3, 1, 1, 0, 0, 0, 0, 0, 0, 0 };
    const uint32_t signalling = 0x7fa00000u;
    float x[70], w[18], y[15];
    for (int i = 0; i < 70; i++) x[i] = (float)(i % 5);
    for (int i = 0; i < 18; i++) w[i] = (float)(i % 3);
    CHECK_INT(dml_pool_reserve(kernel_pools[1], dml_conv2d_scratch(&s, false)), DML_OK);
    char *scratch = (char *)dml_pool_scratch(kernel_pools[1], 0);
    for (size_t at = 0; at < dml_pool_scratch_bytes(kernel_pools[1]).worker / 4 * 4; at += 4)
        memcpy(scratch + at, &signalling, 4);
    feclearexcept(FE_ALL_EXCEPT);
    CHECK_INT(dml_conv2d_forward(kernel_pools[1], &s, x, w, NULL, y), DML_OK);
    CHECK_INT(fetestexcept(FE_INVALID), 0);
}

static void unused_lanes_are_zero_on_each_isa(void)
{
    kernel_each_isa(unused_lanes_are_zero);
}

static void what_isnt_there(void)
{
    const dml_conv2d_shape s = { 1, 3, 3, 1, 1, 2, 2, 1, 1, 0, 0, 1, 1, 1, 0, 0 };
    dml_conv2d_shape empty = s;
    float a[9] = { 1 }, b[4] = { 1 }, c[9] = { 7 };
    const dml_epilogue unknown = { NULL, (dml_activation)9 };
    CHECK_INT(dml_conv2d_forward(NULL, &s, NULL, b, NULL, c), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_conv2d_forward(NULL, &s, a, NULL, NULL, c), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_conv2d_forward(NULL, &s, a, b, NULL, NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_conv2d_forward_fused(NULL, &s, a, b, 0, &unknown, c), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_conv2d_backward_input(NULL, &s, NULL, b, 0, c), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_conv2d_backward_input(NULL, &s, a, NULL, 0, c), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_conv2d_backward_input(NULL, &s, a, b, 0, NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_conv2d_backward_weights(NULL, &s, NULL, a, 0, c), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_conv2d_backward_weights(NULL, &s, a, NULL, 0, c), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_conv2d_backward_weights(NULL, &s, a, a, 0, NULL), DML_ERROR_ARGUMENT);
    CHECK(c[0] == 7);
    empty.batch = 0;
    CHECK_INT(dml_conv2d_forward(NULL, &empty, NULL, NULL, NULL, NULL), DML_OK);
    CHECK_INT(dml_conv2d_backward_input(NULL, &empty, NULL, NULL, 0, NULL), DML_OK);
    CHECK_INT(dml_conv2d_backward_weights(NULL, &empty, NULL, NULL, 0, NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_conv2d_backward_weights(NULL, &empty, NULL, NULL, 0, c), DML_OK);
    CHECK(c[0] == 0);
}

/* Taps that meet none of some inputs, along one axis or both: those gradients are zeros, or what beta leaves.
 */
static void gradients_without_taps(void)
{
    static const dml_conv2d_shape shapes[] = {
        { 1, 1, 2, 1, 1, 1, 1, 1, 2, 0, 0, 1, 3, 1, 0, 0 },
        { 1, 1, 1, 1, 1, 1, 1, 3, 3, 0, 1, 1, 2, 1, 0, 0 },
        { 1, 1, 8, 2, 29, 1, 9, 3, 1, 1, 1, 1, 1, 1, 0, 0 },
        { 1, 3, 3, 1, 29, 1, 9, 2, 1, 2, 4, 1, 1, 1, 0, 0 },
        { 2, 5, 7, 3, 300, 1, 1, 2, 2, 0, 0, 1, 1, 1, 0, 0 },
        { 1, 6, 6, 4, 4, 2, 2, 3, 3, 0, 0, 2, 2, 4, 0, 0 },
    };
    static float dy[20000], w[20000], dx[2000];
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const dml_conv2d_shape *s = &shapes[i];
        const size_t count = (size_t)s->batch * (size_t)s->height * (size_t)s->width * (size_t)s->channels;
        for (size_t j = 0; j < count; j++) dx[j] = NAN;
        CHECK_INT(dml_conv2d_backward_input(NULL, s, dy, w, 0, dx), DML_OK);
        for (size_t j = 0; j < count; j++) CHECK(dx[j] == 0);
        for (size_t j = 0; j < count; j++) dx[j] = 4;
        CHECK_INT(dml_conv2d_backward_input(NULL, s, dy, w, 0.5f, dx), DML_OK);
        for (size_t j = 0; j < count; j++) CHECK(dx[j] == 2);
    }
}

/* Runs two images at once and one by one, with results that begin at lines of the caches or beside them. */
static void check_large_result(dml_conv2d_shape s, int direction, bool relu, unsigned *state)
{
    arrays both;
    memset(&both, 0, sizeof both);
    both.s = s;
    both.x_count = (size_t)(s.batch * s.height * s.width * s.channels);
    both.w_count = (size_t)(s.filters * s.kernel_h * s.kernel_w * s.channels / s.groups);
    both.y_count =
        (size_t)(s.batch * exact_conv2d_output(s.height, s.kernel_h, s.stride_h, s.pad_h, s.dilation_h) *
                 exact_conv2d_output(s.width, s.kernel_w, s.stride_w, s.pad_w, s.dilation_w) * s.filters);
    both.x = random_floats(state, both.x_count), both.w = random_floats(state, both.w_count);
    both.bias = random_floats(state, (size_t)s.filters), both.dy = random_floats(state, both.y_count);
    const size_t count = result_count(&both, direction), x_image = both.x_count / 2,
                 y_image = both.y_count / 2;
    float *whole = new_floats(count + 32), *images = new_floats(count);
    float *lines = whole + (size_t)(-(intptr_t)whole & 63) / sizeof *whole;
    const end e = { true, relu, 0 };
    for (size_t n = 0; n < 2; n++) {
        arrays one = both;
        one.s.batch = 1;
        one.x += n * x_image, one.dy += n * y_image;
        call(NULL, &one, direction, e, images + n * (count / 2));
    }
    for (int beside = 0; beside < 2; beside++) {
        float *got = lines + beside;
        for (size_t j = 0; j < count; j++) got[j] = NAN;
        call(kernel_pools[1], &both, direction, e, got);
        CHECK(memcmp(got, images, count * sizeof *got) == 0);
    }
    free(whole), free(images);
    discard(&both);
}

/* What goes past the caches are the same bits, all of them; vectors of whole lines or not. */
static void large_results(void)
{
    static const dml_conv2d_shape shapes[] = {
        { 2, 112, 112, 16, 96, 1, 1, 1, 1, 0, 0, 1, 1, 1, 0, 0 },
        { 2, 150, 150, 8, 56, 1, 1, 1, 1, 0, 0, 1, 1, 1, 0, 0 },
        { 2, 115, 111, 3, 112, 3, 3, 1, 1, 1, 1, 1, 1, 1, 0, 0 },
        { 2, 112, 112, 96, 96, 3, 3, 1, 1, 1, 1, 1, 1, 96, 0, 0 },
        { 2, 116, 110, 96, 96, 3, 3, 1, 1, 1, 1, 1, 1, 96, 0, 0 },
    };
    const dml_conv2d_shape strided = { 2, 114, 110, 96, 96, 3, 3, 2, 2, 1, 1, 1, 1, 96, 0, 0 };
    unsigned state = 5;
    /* (Past the caches goes what vectors of x86-64 write; elsewhere one shape stands for all.) */
    for (size_t i = TEST_EMULATOR ? 4 : 0; i < sizeof shapes / sizeof shapes[0]; i++)
        check_large_result(shapes[i], FORWARD, i % 2 == 0, &state);
    check_large_result(strided, BACKWARD_INPUT, false, &state);
}

/* A weights' gradient of few pixels that goes past the caches, or doesn't since it begins beside a line of
   them, or isn't made of whole lines. */
static void large_gradients(void)
{
    static const dml_conv2d_shape shapes[] = {
        { 1, 7, 7, 512, 512, 3, 3, 1, 1, 1, 1, 1, 1, 1, 0, 0 },
        { 1, 7, 7, 528, 500, 3, 3, 1, 1, 1, 1, 1, 1, 1, 0, 0 },
        { 1, 8, 8, 516, 500, 3, 3, 1, 1, 1, 1, 1, 1, 1, 0, 0 },
        { 2, 3, 3, 3, 78000, 3, 3, 1, 1, 1, 1, 1, 1, 1, 0, 0 },
    };
    dml_pool *pool = kernel_pools[2];
    unsigned state = 6;
    for (size_t i = 0; !TEST_EMULATOR && i < sizeof shapes / sizeof shapes[0]; i++) {
        const dml_conv2d_shape *s = &shapes[i];
        arrays r;
        memset(&r, 0, sizeof r);
        r.s = *s;
        r.x_count = (size_t)(s->batch * s->height * s->width * s->channels);
        r.w_count = (size_t)(s->filters * s->kernel_h * s->kernel_w * s->channels);
        r.y_count = (size_t)(s->batch * s->height * s->width * s->filters);
        r.x = random_floats(&state, r.x_count), r.dy = random_floats(&state, r.y_count);
        CHECK_INT(dml_pool_reserve(pool, dml_conv2d_scratch(s, true)), DML_OK);
        float *all = new_floats(r.w_count + 32), *want = new_floats(r.w_count);
        float *lines = all + (size_t)(-(intptr_t)all & 63) / sizeof *all;
        end e = { false, false, 0 };
        call(NULL, &r, BACKWARD_WEIGHTS, e, want); /* on the stack */
        for (int beside = 0; beside < 2; beside++) {
            float *got = lines + beside;
            for (size_t j = 0; j < r.w_count; j++) got[j] = NAN;
            call(pool, &r, BACKWARD_WEIGHTS, e, got);
            CHECK(memcmp(got, want, r.w_count * sizeof *got) == 0);
        }
        e.beta = 1;
        for (size_t j = 0; j < r.w_count; j++) lines[j] = 0;
        call(pool, &r, BACKWARD_WEIGHTS, e, lines);
        call(pool, &r, BACKWARD_WEIGHTS, e, lines);
        for (size_t j = 0; j < r.w_count; j += 997) CHECK_NEAR(lines[j], 2 * want[j], 1e-3);
        free(all), free(want);
        discard(&r);
    }
}

int main(void)
{
    kernel_pools_open();
    RUN(kernels_strides_pads_on_each_isa);
    RUN(larger_shapes_on_each_isa);
    RUN(random_shapes_on_each_isa);
    RUN(depthwise_on_each_isa);
    RUN(infinities_stay_with_their_taps_on_each_isa);
    RUN(depthwise_channels_are_apart_on_each_isa);
    RUN(scratch_is_enough);
    RUN(scratch_is_enough_for_fewer);
    RUN(unused_lanes_are_zero_on_each_isa);
    RUN(gradients_are_adjoint);
    RUN(output_sizes);
    RUN(bad_shapes_write_nothing);
    RUN(impossible_shapes);
    RUN(far_reaching_shapes);
    RUN(what_isnt_there);
    RUN(gradients_without_taps);
    RUN(large_results);
    RUN(large_gradients);
    kernel_pools_close();
    return test_report("kernels/conv2d");
}
