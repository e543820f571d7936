#ifndef DML_TRAIN_CIFAR_C
#define DML_TRAIN_CIFAR_C

#include "train/cifar.h"

#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/philox.h"
#include "device/context_internal.h"

#include <limits.h>
#include <string.h>

#define DML__CIFAR_STREAM 0x63696661u /* of the changes' random numbers */

DML_API dml_status dml_cifar10_parse(dml_context *context, const char *name, const void *bytes, size_t size,
                                     dml_cifar *out)
{
    if (out) memset(out, 0, sizeof *out);
    if (!context) return DML_ERROR_ARGUMENT;
    if (!out || (!bytes && size))
        return dml__fail_null(&context->error, "dml_cifar10_parse", out ? "bytes" : "place for the images");
    const unsigned char *at = (const unsigned char *)bytes;
    const size_t count = size / DML_CIFAR_RECORD;
    if (size >= 2 && at[0] == 0x1F && at[1] == 0x8B)
        return dml__fail(&context->error, DML_ERROR_FORMAT, "%s is packed with gzip: unpack it with tar -xzf",
                         name);
    if (count == 0 || size % DML_CIFAR_RECORD != 0 || count > INT_MAX)
        return dml__fail(&context->error, DML_ERROR_FORMAT,
                         "%s holds %zu bytes, and not CIFAR-10's whole records of %d: it is cut short, or "
                         "another file",
                         name, size, (int)DML_CIFAR_RECORD);
    for (size_t i = 0; i < count; i++) {
        const int label = at[i * DML_CIFAR_RECORD];
        if (label >= DML_CIFAR_CLASSES)
            return dml__fail(&context->error, DML_ERROR_FORMAT,
                             "%s is no file of CIFAR-10: label %zu is %d; they are 0 to %d", name, i, label,
                             DML_CIFAR_CLASSES - 1);
    }
    out->count = (int)count;
    out->records = at;
    return DML_OK;
}

#ifndef DML_NO_STDIO
DML_API dml_status dml_cifar10_load(dml_context *context, const char *path, dml_cifar *out)
{
    if (out) memset(out, 0, sizeof *out);
    if (!context) return DML_ERROR_ARGUMENT;
    if (!out || !path)
        return dml__fail_null(&context->error, "dml_cifar10_load", out ? "path" : "place for the images");
    void *bytes;
    size_t size;
    dml_status status = dml__file_read(&context->memory, path, SIZE_MAX, &bytes, &size, &context->error);
    if (status != DML_OK) return status;
    status = dml_cifar10_parse(context, path, bytes, size, out);
    if (status == DML_OK)
        out->block = bytes;
    else
        dml__release(&context->memory, bytes);
    return status;
}
#endif

DML_API void dml_cifar_free(dml_context *context, dml_cifar *cifar)
{
    if (!cifar) return;
    if (context && cifar->block) dml__release(&context->memory, cifar->block);
    memset(cifar, 0, sizeof *cifar);
}

DML_API void dml_cifar_image(const unsigned char *record, dml_cifar_change change, float mean,
                             float deviation, float *image)
{
    const int side = DML_CIFAR_SIDE;
    const float scale = 1 / deviation;
    for (int h = 0; h < side; h++)
        for (int w = 0; w < side; w++, image += 3) {
            const int64_t from_h = (int64_t)h - change.down,
                          from_w = (int64_t)(change.mirrored ? side - 1 - w : w) - change.right;
            const bool inside = from_h >= 0 && from_h < side && from_w >= 0 && from_w < side;
            for (int plane = 0; plane < 3; plane++) {
                const int64_t from = 1 + plane * DML_CIFAR_PLANE + from_h * side + from_w;
                image[plane] = inside ? ((float)record[from] - mean) * scale : 0.0f;
            }
        }
}

DML_API dml_cifar_change dml_cifar_random_change(uint64_t seed, uint32_t epoch, uint64_t sample, int most)
{
    dml_random random;
    const int side = 1 << 20; /* beyond it a pixel is lost in a float, and the image is long outside */
    if (most > side) most = side;
    if (most < 0) most = 0;
    random.seed = seed;
    random.stream = DML__CIFAR_STREAM;
    random.step = epoch;
    const float ways = 2.0f * (float)most + 1.0f;
    dml_cifar_change change;
    change.down = (int)(dml_random_uniform(&random, 3 * sample) * ways) - most;
    change.right = (int)(dml_random_uniform(&random, 3 * sample + 1) * ways) - most;
    change.mirrored = dml_random_uniform(&random, 3 * sample + 2) < 0.5f;
    return change;
}

#endif
