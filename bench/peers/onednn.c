/* onednn: a peer of bench/gemm and bench/conv, through oneDNN's C API. usage: onednn THREADS */
#define _GNU_SOURCE
#include "peer.h"

#include "oneapi/dnnl/dnnl.h"

enum { ARGUMENTS_MAX = 4, WAYS = 2, NONE = -1 };

/* One way to do a convolution: with the formats of all arrays left to the library, or with images as (N, H,
 * W, C). */
typedef struct way {
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t arguments[ARGUMENTS_MAX];
    int count;
} way;

static dnnl_engine_t engine;
static dnnl_stream_t stream;
static way ways[WAYS];
static const way *chosen;
static int m, n, k, trans_a, trans_b;
static float *a, *b, *c;
static int narrow; /* the case is one of bf16 */

static void run_sgemm(void)
{
    dnnl_sgemm(trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', m, n, k, 1, a, trans_a ? m : k, b, trans_b ? k : n,
               0, c, n);
}

static void run_way(void)
{
    dnnl_primitive_execute(chosen->primitive, stream, chosen->count, chosen->arguments);
    dnnl_stream_wait(stream);
}

static void run(void)
{
    if (chosen)
        run_way();
    else
        run_sgemm();
}

static void release(void)
{
    int i, j;
    for (i = 0; i < WAYS; i++) {
        for (j = 0; j < ways[i].count; j++) dnnl_memory_destroy(ways[i].arguments[j].memory);
        if (ways[i].primitive) dnnl_primitive_destroy(ways[i].primitive);
    }
    memset(ways, 0, sizeof ways);
    chosen = NULL;
    free(a), free(b), free(c);
    a = b = c = NULL;
}

/* An array of the primitive's own format, filled: with floats, or with pairs of bf16. */
static int argument(way *w, const_dnnl_primitive_desc_t description, dnnl_query_t which, int name)
{
    const_dnnl_memory_desc_t format = dnnl_primitive_desc_query_md(description, which, 0);
    dnnl_memory_t memory;
    void *data;
    size_t i, count;
    if (dnnl_memory_create(&memory, format, engine, DNNL_MEMORY_ALLOCATE) != dnnl_success) return 0;
    w->arguments[w->count].arg = name;
    w->arguments[w->count++].memory = memory;
    if (dnnl_memory_map_data(memory, &data) != dnnl_success) return 0;
    count = dnnl_memory_desc_get_size(format) / sizeof(float);
    for (i = 0; i < count; i++) {
        const float value = (float)(i * 7919 % 1000) * 0.002f - 1;
        unsigned bits;
        memcpy(&bits, &value, sizeof bits);
        if (narrow) bits = (bits & 0xffff0000u) | bits >> 16;
        memcpy((float *)data + i, &bits, sizeof bits);
    }
    return dnnl_memory_unmap_data(memory, data) == dnnl_success;
}

typedef struct conv {
    char what[16];
    dnnl_dim_t batch, height, width, channels, filters, kernel_h, kernel_w, stride, pad, dilation, groups;
} conv;

static int make(way *w, const conv *v, dnnl_format_tag_t images)
{
    const dnnl_dim_t out_h = (v->height + 2 * v->pad - v->dilation * (v->kernel_h - 1) - 1) / v->stride + 1;
    const dnnl_dim_t out_w = (v->width + 2 * v->pad - v->dilation * (v->kernel_w - 1) - 1) / v->stride + 1;
    const dnnl_dims_t x_dims = { v->batch, v->channels, v->height, v->width };
    const dnnl_dims_t y_dims = { v->batch, v->filters, out_h, out_w };
    const dnnl_dims_t plain_dims = { v->filters, v->channels, v->kernel_h, v->kernel_w };
    const dnnl_dims_t group_dims = { v->groups, v->filters / v->groups, v->channels / v->groups, v->kernel_h,
                                     v->kernel_w };
    const dnnl_dims_t strides = { v->stride, v->stride }, pads = { v->pad, v->pad };
    const dnnl_dims_t dilates = { v->dilation - 1, v->dilation - 1 };
    dnnl_memory_desc_t x, y, weights;
    dnnl_primitive_desc_t forward, description;
    dnnl_status_t status;
    int ok;
    dnnl_memory_desc_create_with_tag(&x, 4, x_dims, dnnl_f32, images);
    dnnl_memory_desc_create_with_tag(&y, 4, y_dims, dnnl_f32, images);
    if (v->groups > 1)
        dnnl_memory_desc_create_with_tag(&weights, 5, group_dims, dnnl_f32, dnnl_format_tag_any);
    else
        dnnl_memory_desc_create_with_tag(&weights, 4, plain_dims, dnnl_f32, dnnl_format_tag_any);
    if (dnnl_convolution_forward_primitive_desc_create(&forward, engine, dnnl_forward_training,
                                                       dnnl_convolution_direct, x, weights, NULL, y, strides,
                                                       dilates, pads, pads, NULL) != dnnl_success)
        return 0;
    if (strcmp(v->what, "input") == 0)
        status = dnnl_convolution_backward_data_primitive_desc_create(
            &description, engine, dnnl_convolution_direct, x, weights, y, strides, dilates, pads, pads,
            forward, NULL);
    else if (strcmp(v->what, "weights") == 0)
        status = dnnl_convolution_backward_weights_primitive_desc_create(
            &description, engine, dnnl_convolution_direct, x, weights, NULL, y, strides, dilates, pads, pads,
            forward, NULL);
    else
        status = dnnl_primitive_desc_clone(&description, forward);
    if (status != dnnl_success || dnnl_primitive_create(&w->primitive, description) != dnnl_success) return 0;
    if (strcmp(v->what, "input") == 0)
        ok = argument(w, description, dnnl_query_diff_src_md, DNNL_ARG_DIFF_SRC) &&
             argument(w, description, dnnl_query_weights_md, DNNL_ARG_WEIGHTS) &&
             argument(w, description, dnnl_query_diff_dst_md, DNNL_ARG_DIFF_DST);
    else if (strcmp(v->what, "weights") == 0)
        ok = argument(w, description, dnnl_query_src_md, DNNL_ARG_SRC) &&
             argument(w, description, dnnl_query_diff_weights_md, DNNL_ARG_DIFF_WEIGHTS) &&
             argument(w, description, dnnl_query_diff_dst_md, DNNL_ARG_DIFF_DST);
    else
        ok = argument(w, description, dnnl_query_src_md, DNNL_ARG_SRC) &&
             argument(w, description, dnnl_query_weights_md, DNNL_ARG_WEIGHTS) &&
             argument(w, description, dnnl_query_dst_md, DNNL_ARG_DST);
    dnnl_primitive_desc_destroy(description);
    dnnl_primitive_desc_destroy(forward);
    dnnl_memory_desc_destroy(x);
    dnnl_memory_desc_destroy(y);
    dnnl_memory_desc_destroy(weights);
    return ok;
}

static const char *prepare_conv(const char *words)
{
    static const dnnl_format_tag_t formats[WAYS] = { dnnl_format_tag_any, dnnl_nhwc };
    conv v;
    double best = 0;
    int i;
    long long d[11];
    const way *fastest = NULL;
    if (sscanf(words, "conv %15s %lld %lld %lld %lld %lld %lld %lld %lld %lld %lld %lld", v.what, &d[0],
               &d[1], &d[2], &d[3], &d[4], &d[5], &d[6], &d[7], &d[8], &d[9], &d[10]) != 12)
        return "such case";
    v.batch = d[0], v.height = d[1], v.width = d[2], v.channels = d[3], v.filters = d[4], v.kernel_h = d[5];
    v.kernel_w = d[6], v.stride = d[7], v.pad = d[8], v.dilation = d[9], v.groups = d[10];
    for (i = 0; i < WAYS; i++) {
        if (!make(&ways[i], &v, formats[i])) continue;
        chosen = &ways[i];
        run_way();
        const double seconds = peer_time(run_way, 5e-3);
        if (!fastest || seconds < best) best = seconds, fastest = chosen;
    }
    chosen = fastest;
    return chosen ? NULL : "primitive for it";
}

/* A product of bf16 with a result of f32, of matrices in row-major order. */
static const char *prepare_bf16(void)
{
    const dnnl_dims_t a_dims = { m, k }, b_dims = { k, n }, c_dims = { m, n };
    dnnl_memory_desc_t left, right, product;
    dnnl_primitive_desc_t description;
    dnnl_status_t status;
    way *w = &ways[0];
    int ok;
    dnnl_memory_desc_create_with_tag(&left, 2, a_dims, dnnl_bf16, trans_a ? dnnl_ba : dnnl_ab);
    dnnl_memory_desc_create_with_tag(&right, 2, b_dims, dnnl_bf16, trans_b ? dnnl_ba : dnnl_ab);
    dnnl_memory_desc_create_with_tag(&product, 2, c_dims, dnnl_f32, dnnl_ab);
    status = dnnl_matmul_primitive_desc_create(&description, engine, left, right, NULL, product, NULL);
    ok = status == dnnl_success && dnnl_primitive_create(&w->primitive, description) == dnnl_success &&
         argument(w, description, dnnl_query_src_md, DNNL_ARG_SRC) &&
         argument(w, description, dnnl_query_weights_md, DNNL_ARG_WEIGHTS) &&
         argument(w, description, dnnl_query_dst_md, DNNL_ARG_DST);
    if (status == dnnl_success) dnnl_primitive_desc_destroy(description);
    dnnl_memory_desc_destroy(left);
    dnnl_memory_desc_destroy(right);
    dnnl_memory_desc_destroy(product);
    chosen = w;
    return ok ? NULL : "product of bf16 here";
}

static const char *prepare(const char *words)
{
    release();
    narrow = sscanf(words, "bf16gemm %d %d %d %d %d", &m, &n, &k, &trans_a, &trans_b) == 5;
    if (narrow) return prepare_bf16();
    if (strncmp(words, "conv ", 5) == 0) return prepare_conv(words);
    if (sscanf(words, "gemm %d %d %d %d %d", &m, &n, &k, &trans_a, &trans_b) != 5) return "such case";
    a = peer_floats((size_t)m * (size_t)k);
    b = peer_floats((size_t)k * (size_t)n);
    c = peer_floats((size_t)m * (size_t)n);
    return NULL;
}

int main(void)
{
    const dnnl_version_t *v = dnnl_version();
    char version[64];
    if (dnnl_engine_create(&engine, dnnl_cpu, 0) != dnnl_success ||
        dnnl_stream_create(&stream, engine, dnnl_stream_in_order) != dnnl_success) {
        peer_say("no", "engine for this processor");
        return 1;
    }
    snprintf(version, sizeof version, "%d.%d.%d", v->major, v->minor, v->patch);
    return peer_serve(version, prepare, run);
}
