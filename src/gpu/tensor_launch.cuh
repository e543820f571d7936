/* tensor_launch.cuh: which launches tensor cores do, and how: each has the shared kernel of its name, which
   does what isn't taken here. */
#ifndef DML_GPU_TENSOR_LAUNCH_CUH
#define DML_GPU_TENSOR_LAUNCH_CUH

#include "device/backend.h"
#include "gpu/launch.h"
#include "gpu/tensor_attention.cuh"
#include "gpu/tensor_conv2d.cuh"

#include <string.h>

/* Of fewer multiply-adds a product isn't worth the copies of its factors. Nor is a convolution that a step's
   graph would otherwise hold; tests go lower. */
enum { DML__TENSOR_GEMM_LEAST = 1 << 22 };
#ifndef DML__TENSOR_CONV_LEAST
#define DML__TENSOR_CONV_LEAST (1 << 27)
#endif

typedef enum dml__tensor_job {
    DML__TENSOR_NOTHING, /* for tensor cores */
    DML__TENSOR_GEMM,
    DML__TENSOR_ATTENTION,
    DML__TENSOR_ATTENTION_BACK,
    DML__TENSOR_CONV,
    DML__TENSOR_CONV_INPUT,
    DML__TENSOR_CONV_WEIGHTS,
    DML__TENSOR_JOBS
} dml__tensor_job;

/* The launch's name, and that of what is done instead. */
static inline const char *dml__tensor_job_name(int job, bool own)
{
    static const char *const names[DML__TENSOR_JOBS][2] = {
        { "", "" },
        { "gemm", "gemm_tensor" },
        { "attention_forward", "attention_forward_tensor" },
        { "attention_backward", "attention_backward_tensor" },
        { "conv2d_forward", "conv2d_forward_tensor" },
        { "conv2d_backward_input", "conv2d_backward_input_tensor" },
        { "conv2d_backward_weights", "conv2d_backward_weights_tensor" },
    };
    return names[job][own];
}

/* What the factors of products may be rounded to now; 0: to nothing. */
static inline int dml__tensor_type_of(const dml_device *device)
{
    if (device->factors == (int)DML_BF16) return DML__TENSOR_BF16;
    if (device->factors == (int)DML_F16) return DML__TENSOR_F16;
    return device->allow_tf32 ? DML__TENSOR_TF32 : 0;
}

/* Which job a launch is with factors of that type: one that is worth it, and of a kind that is there. */
static inline dml__tensor_job dml__tensor_job_of(const dml_launch *launch, int type)
{
    const int32_t *of = launch->integer;
    int job = DML__TENSOR_GEMM;
    while (job < DML__TENSOR_JOBS && strcmp(launch->kernel, dml__tensor_job_name(job, false)) != 0) job++;
    if (job == DML__TENSOR_JOBS) return DML__TENSOR_NOTHING;
    const double product = (double)of[0] * of[1] * of[2];
    const double conv = (double)of[0] * of[11] * of[12] * of[4] * of[5] * of[6] * of[3];
    const bool several = job == DML__TENSOR_GEMM && (of[8] || of[13] > 1); /* matrices */
    const bool in_groups = job >= DML__TENSOR_CONV && of[15] > 1;
    const bool attention = job == DML__TENSOR_ATTENTION || job == DML__TENSOR_ATTENTION_BACK;
    const bool small = job == DML__TENSOR_GEMM   ? product < DML__TENSOR_GEMM_LEAST
                       : job >= DML__TENSOR_CONV ? conv < DML__TENSOR_CONV_LEAST
                                                 : false;
    const bool none = several || in_groups || small || (attention && (type == DML__TENSOR_TF32 || of[13]));
    return none ? DML__TENSOR_NOTHING : (dml__tensor_job)job;
}

/* Queues it, but for what dml__tensor_end does; cudaErrorNotSupported: there is no way here, and nothing was
   queued that matters. */
static inline cudaError_t dml__tensor_run(dml__tensor *tensor, cudaStream_t stream, int type,
                                          dml__tensor_job job, const dml_launch *launch,
                                          const dml__kernel_arguments *arguments)
{
    const int32_t *of = launch->integer;
    const float *real = launch->real;
    char *base[DML_LAUNCH_BUFFERS];
    float *at[DML_LAUNCH_BUFFERS];
    for (int i = 0; i < DML_LAUNCH_BUFFERS; i++) {
        base[i] = launch->buffer[i].buffer ? (char *)launch->buffer[i].buffer->handle : NULL;
        at[i] = base[i] ? (float *)(base[i] + launch->buffer[i].offset) : NULL;
    }
    if (job == DML__TENSOR_GEMM) { /* m, n, k, trans_a, trans_b, lda, ldb, ldc */
        const dml__tensor_out out = { at[2], at[3], of[7], real[2] != 0.0f, real[0], real[1] };
        return dml__tensor_gemm(tensor, stream, type, of[0], of[1], of[2], of[3] != 0, of[4] != 0, at[0],
                                of[5], at[1], of[6], out);
    }
    if (job < DML__TENSOR_CONV)
        return dml__tensor_attention(stream, type, job == DML__TENSOR_ATTENTION_BACK, base, arguments);
    const dml__tensor_out y = { at[3], at[2], of[4], real[1] != 0.0f, 1.0f, real[0] };
    const dml__tensor_out dx = { at[2], NULL, of[3], 0, 1.0f, real[0] };
    const dml__tensor_out dw = { at[2], NULL, of[5] * of[6] * of[3], 0, 1.0f, real[0] };
    const int shares = job == DML__TENSOR_CONV_WEIGHTS && real[1] > 1.0f ? (int)real[1] : 1;
    const dml__tensor_conv conv = {
        type,  arguments, at[0], at[1], job == DML__TENSOR_CONV ? y : job == DML__TENSOR_CONV_INPUT ? dx : dw,
        shares
    };
    return job == DML__TENSOR_CONV         ? dml__tensor_conv_pixels<false>(tensor, stream, &conv)
           : job == DML__TENSOR_CONV_INPUT ? dml__tensor_conv_pixels<true>(tensor, stream, &conv)
                                           : dml__tensor_conv_weights(tensor, stream, &conv);
}

/* to (outer, columns) = the sums of from (outer, n, columns) + beta to. */
static inline dml_status dml__tensor_sums(dml_device *device, dml_ref from, int outer, int n, int columns,
                                          float beta, dml_ref to)
{
    dml_launch sums;
    memset(&sums, 0, sizeof sums);
    sums.kernel = "sum_rows";
    sums.size[0] = (size_t)columns, sums.size[1] = (size_t)outer;
    sums.buffer[0] = from, sums.buffer[1] = to;
    sums.integer[0] = n, sums.integer[1] = columns, sums.integer[2] = outer;
    sums.real[0] = beta;
    return device->backend->launch(device, &sums);
}

/* db, the sums of dy, in as many shares as dw: each of so many pixels, and the first of what is left. */
static inline dml_status dml__tensor_bias_gradient(dml_device *device, const dml_launch *launch)
{
    const int32_t *of = launch->integer;
    const int pixels = of[0] * of[11] * of[12], filters = of[4];
    const int shares = launch->real[1] > 1.0f ? (int)launch->real[1] : 1, each = pixels / shares;
    const dml_ref db = launch->buffer[3];
    dml_ref dy = launch->buffer[1];
    dml_status status =
        each ? dml__tensor_sums(device, dy, shares, each, filters, launch->real[2], db)
             : device->backend->zero(device, db, (size_t)shares * (size_t)filters * sizeof(float));
    dy.offset += (size_t)shares * (size_t)each * (size_t)filters * sizeof(float);
    if (status == DML_OK && pixels > shares * each)
        status = dml__tensor_sums(device, dy, 1, pixels - shares * each, filters, 1.0f, db);
    return status;
}

/* What a job that was queued leaves for shared kernels: the bias' gradient. */
static inline dml_status dml__tensor_end(dml_device *device, dml__tensor_job job, const dml_launch *launch)
{
    return job == DML__TENSOR_CONV_WEIGHTS && launch->buffer[3].buffer
               ? dml__tensor_bias_gradient(device, launch)
               : DML_OK;
}

#endif
