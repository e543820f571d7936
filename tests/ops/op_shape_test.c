/* What the ops that change shapes refuse, and the shapes they give. Their values and gradients are
 * ops_test's. */
#include "ops/op_shape.h"

#include "graph/node.h"
#include "graph/program_internal.h"
#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_dense.h"
#include "ops/op_loss.h"
#include "ops/op_slice2d.h"

#include "../graph/backends.h"
#include "../graph/refused.h"

static void check_shape(const dml_node *node, const char *want)
{
    char text[DML_SHAPE_TEXT];
    const dml_shape shape = dml_node_shape(node);
    CHECK_STRING(dml_shape_format(&shape, text), want);
}

static void check_words(const dml_node *node, const char *want)
{
    char text[64];
    CHECK_STRING(dml_node_describe(node, text, sizeof text), want);
}

static void shapes(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, 4, 5, 6), *part[3];
    dml_node *const both[] = { x, dml_slice(x, 1, 2, 4) };
    check_shape(dml_reshape(x, dml_shape_of(2, -1, 3)), "2 x 20 x 3");
    check_shape(dml_reshape(dml_input(graph, "t", DML_I32, 8), dml_shape_of(2, 4)), "2 x 4");
    check_shape(dml_reshape(dml_slice(dml_slice(dml_slice(x, 0, 1, 2), 1, 0, 1), 2, 5, 6), (dml_shape){ 0 }),
                "scalar");
    check_shape(dml_permute(x, dml_shape_of(2, 0, 1)), "6 x 4 x 5");
    check_words(dml_permute(x, dml_shape_of(2, 0, 1)), "axes 2 0 1");
    check_shape(dml_swap_axes(x, -1, 1), "4 x 6 x 5");
    check_shape(dml_swap_axes(x, 0, 0), "4 x 5 x 6");
    check_shape(both[1], "4 x 2 x 6");
    check_words(both[1], "axis 1, 2 to 3");
    check_shape(dml_pad(x, -2, 1, 3), "4 x 9 x 6");
    check_words(dml_pad(x, -2, 1, 3), "axis 1, 1 before, 3 after");
    check_shape(dml_concat(both, 2, -2), "4 x 7 x 6");
    CHECK_INT(dml_split(x, -1, 3, part), DML_OK);
    for (int i = 0; i < 3; i++) check_shape(part[i], "4 x 5 x 2");
    CHECK_STRING(dml_error(context), "");
    dml_close(context);
}

static void bad_shapes(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, 4, 5, 6), *t = dml_input(graph, "t", DML_I32, 4);
    dml_node *row = dml_input(graph, "row", DML_F32, 4), *part[7];
    dml_node *p = dml_parameter(graph, "p", dml_init_constant(0), 4, 5, 6);
    dml_node *numbers = dml_input(graph, "numbers", DML_I32, 2, 2, 2);
    dml_node *huge = dml_input(graph, "huge", DML_F32, 9000, 9000, 1);
    CHECK(!dml_reshape(NULL, dml_shape_of(1)) && !dml_permute(NULL, dml_shape_of(0)) &&
          !dml_swap_axes(NULL, 0, 0));
    CHECK(!dml_slice(NULL, 0, 0, 1) && !dml_pad(NULL, 0, 1, 1));
    CHECK_STRING(dml_error(context), "");
    REFUSED(dml_reshape(x, dml_shape_of(7, 17)), DML_ERROR_SHAPE,
            "reshape 'reshape_1': its input is 4 x 5 x 6, 120 elements, and can't be 7 x 17");
    REFUSED(dml_reshape(x, dml_shape_of(7, -1)), DML_ERROR_SHAPE, "can't be 7 x -1");
    REFUSED(dml_reshape(x, dml_shape_of(-1, -1)), DML_ERROR_SHAPE, "one may be -1");
    REFUSED(dml_reshape(x, dml_shape_of(0, 120)), DML_ERROR_SHAPE, "can't be 0 x 120");
    REFUSED(dml_reshape(x, dml_shape_of(240, -1)), DML_ERROR_SHAPE, "can't be");
    REFUSED(dml_reshape(x, dml_shape_of(2, 2, 5, 6, 1, 1)), DML_ERROR_SHAPE, "of more dimensions");
    REFUSED(dml_upsample2d(x, 0), DML_ERROR_SHAPE,
            "upsample2d: 0 times asked for, of f32 4 x 5 x 6; it takes");
    REFUSED(dml_upsample2d(x, 9), DML_ERROR_SHAPE,
            "9 times asked for, of f32 4 x 5 x 6; it takes factors of 1 to 8");
    REFUSED(dml_upsample2d(row, 2), DML_ERROR_SHAPE, "of f32 4; it takes f32 images of height x width");
    REFUSED(dml_upsample2d(numbers, 2), DML_ERROR_SHAPE, "of i32 2 x 2 x 2");
    REFUSED(dml_upsample2d(huge, 6), DML_ERROR_SHAPE, "no more than 2147483647 elements");
    CHECK(!dml_upsample2d(NULL, 2) && dml_upsample2d(x, 1) == x);
    CHECK_STRING(dml_node_name(dml_upsample2d(x, 2)), "upsample2d_1");
    CHECK_STRING(dml_node_name(dml_upsample2d(x, 3)), "upsample2d_2");
    CHECK(dml_graph_find(graph, "upsample2d_2.concat_1"));
    CHECK_STRING(dml_node_name(dml_concat((dml_node *[]){ x, x }, 2, 0)), "concat_1");
    REFUSED(dml_permute(x, dml_shape_of(0, 1)), DML_ERROR_ARGUMENT, "each axis from 0 to 2 once");
    REFUSED(dml_permute(x, dml_shape_of(0, 1, 1)), DML_ERROR_ARGUMENT, "the order of its axes 0 x 1 x 1");
    REFUSED(dml_permute(x, dml_shape_of(0, 1, 3)), DML_ERROR_ARGUMENT, "once");
    REFUSED(dml_permute(t, dml_shape_of(0)), DML_ERROR_ARGUMENT, "its input is i32, it takes f32");
    REFUSED(dml_swap_axes(row, 0, 1), DML_ERROR_ARGUMENT, "axes 0 and 1 of 'row' asked for, which has 1");
    REFUSED(dml_swap_axes(row, -2, 0), DML_ERROR_ARGUMENT, "which has 1");
    REFUSED(dml_slice(x, 3, 0, 1), DML_ERROR_ARGUMENT, "axis 3 asked for, of an input of 4 x 5 x 6");
    REFUSED(dml_slice(x, -4, 0, 1), DML_ERROR_ARGUMENT, "it must be in -3 .. 2");
    REFUSED(dml_slice(x, 1, 2, 2), DML_ERROR_ARGUMENT,
            "of an axis of 5, places from 2 up to, without, 2 asked for");
    REFUSED(dml_slice(x, 1, -1, 2), DML_ERROR_ARGUMENT, "there must be at least one");
    REFUSED(dml_slice(x, 1, 0, 6), DML_ERROR_ARGUMENT, "up to, without, 6");
    REFUSED(dml_slice(t, 0, 0, 1), DML_ERROR_ARGUMENT, "i32");
    REFUSED(dml_pad(x, 0, -1, 0), DML_ERROR_ARGUMENT, "-1 zeros before and 0 after");
    REFUSED(dml_pad(x, 0, INT32_MAX, 1), DML_ERROR_ARGUMENT, "at most");
    REFUSED(dml_pad(x, 0, INT32_MAX - 4, 0), DML_ERROR_SHAPE, "more than");
    REFUSED(dml_split(x, 2, 4, part) == DML_OK, DML_ERROR_ARGUMENT,
            "axis 2 of 'x', which is 6, can't be cut");
    REFUSED(dml_split(x, 3, 4, part) == DML_OK, DML_ERROR_ARGUMENT, "can't be cut into 4 equal parts");
    CHECK(!part[0] && !part[3]);
    dml_node *const mixed[] = { x, row }, *const whole[] = { x, p }, *const ints[] = { t, t };
    dml_node *const missing[] = { x, NULL };
    REFUSED(dml_concat(mixed, 2, 0), DML_ERROR_SHAPE, "its input 2 is 4 and the first 4 x 5 x 6;");
    REFUSED(dml_concat(whole, 2, 0), DML_ERROR_SHAPE,
            "its input 2, 4 x 5 x 6, is for the whole batch and the first, 4 x 5 x 6, for each sample;");
    REFUSED(dml_concat(ints, 2, 0), DML_ERROR_SHAPE, "its input 1 is i32");
    REFUSED(dml_concat(whole, 1, 3), DML_ERROR_ARGUMENT, "axis 3 asked for");
    REFUSED(dml_concat(missing, 2, 0), DML_ERROR_ARGUMENT, "its input 2 of 2 is NULL");
    REFUSED(dml_split(x, 0, 2, NULL) == DML_OK, DML_ERROR_ARGUMENT, "there is no array for its 2 parts");
    CHECK(!dml_concat(NULL, 2, 0) && !dml_concat(whole, 0, 0) && !dml_concat(missing + 1, -1, 0));
    REFUSED(dml_permute(x, dml_shape_of(-4, 1, 2)), DML_ERROR_ARGUMENT, "once");
    const dml_shape turned = dml_node_shape(dml_permute(x, dml_shape_of(-1, 0, -2)));
    CHECK(turned.dims[0] == 6 && turned.dims[1] == 4 && turned.dims[2] == 5);
    dml_close(context);
}

/* The loss (a h)^2 with a stop before the first factor: of d/dw = 2 a h x only half arrives, and nothing has
   a gradient behind the other stop. */
/* Each pixel is where it belongs, for all factors. */
static void upsamples(void)
{
    enum { ROWS = 2, H = 2, W = 3, C = 2, MOST = 8 };
    static float x[ROWS][H][W][C], got[ROWS * H * MOST * W * MOST * C];
    for (int i = 0; i < ROWS * H * W * C; i++) ((float *)x)[i] = (float)i;
    for (int f = 1; f <= MOST; f++) {
        dml_context *context = open_here(&(dml_options){ .threads = 1 });
        dml_node *in = dml_input(dml_graph_create(context), "x", DML_F32, H, W, C);
        dml_node *y = dml_affine(dml_upsample2d(in, f), 1, 0);
        dml_program *p = dml_compile(y, &(dml_program_options){ .batch = ROWS });
        int wrong = 0;
        CHECK_INT(dml_program_run(p, ROWS, DML_INPUTS(x), got), DML_OK);
        for (int i = 0; i < ROWS * H * f * W * f * C; i++) {
            const int c = i % C, w = i / C % (W * f), h = i / C / (W * f) % (H * f);
            wrong += got[i] != x[i / (H * f * W * f * C)][h / f][w / f][c];
        }
        CHECK_MESSAGE(wrong == 0, "%d times: %d are wrong", f, wrong);
        dml_close(context);
    }
}
EACH_BACKEND(upsamples)

static void stops(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, 1), *zero = dml_input(graph, "zero", DML_F32, 1);
    dml_node *w = dml_parameter(graph, "w", dml_init_constant(3), 1, 1);
    dml_node *u = dml_parameter(graph, "u", dml_init_constant(5), 1, 1);
    dml_node *h = dml_dense_with(x, w, NULL), *teacher = dml_dense_with(x, u, NULL);
    dml_node *target = dml_mul(dml_stop_gradient(teacher), zero);
    dml_node *loss = dml_mean_squared_error(dml_mul(dml_stop_gradient(h), h), target);
    dml_program *p = dml_compile(loss, &(dml_program_options){ .batch = 1, .training = true });
    const float two = 2, none = 0;
    const void *const inputs[] = { &two, &none };
    const dml__training training = { .loss_scale = 1 };
    float value, *g;
    CHECK_MESSAGE(p, "%s", dml_error(context));
    CHECK(!p->slot[p->slot_of_node[teacher->index]].has_gradient);
    CHECK(!p->slot[p->slot_of_node[target->index]].has_gradient);
    CHECK(p->slot[p->slot_of_node[h->index]].has_gradient);
    CHECK_INT(dml__program_train(p, 1, inputs, &training, &value), DML_OK);
    g = (float *)p->g->host;
    CHECK(value == 36 * 36);
    CHECK(g[w->offset] == 2 * 36 * 6 * 2); /* 2 y, times the factor that is kept, times x */
    CHECK(g[u->offset] == 0);
    dml_node *labels = dml_stop_gradient(dml_input(graph, "t", DML_I32, 3));
    check_shape(labels, "3");
    CHECK_INT(dml_node_dtype(labels), DML_I32);
    check_words(labels, "");
    CHECK(!dml_stop_gradient(NULL));
    CHECK(!dml_compile(dml_mean_squared_error(dml_stop_gradient(h), zero),
                       &(dml_program_options){ .batch = 1, .training = true }));
    CHECK_CONTAINS(dml_error(context), "it depends on no trained parameter");
    dml_close(context);
}

int main(void)
{
    RUN(shapes);
    RUN(stops);
    RUN(bad_shapes);
    RUN_EACH(upsamples);
    return test_report("ops/op_shape");
}
