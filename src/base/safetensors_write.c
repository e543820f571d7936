#ifndef DML_BASE_SAFETENSORS_WRITE_C
#define DML_BASE_SAFETENSORS_WRITE_C

#include "base/safetensors.h"

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/file.h"
#include "base/json.h"

#include <stdio.h>
#include <string.h>

/* What is to be written, and what is known of it so far. */
typedef struct dml__plan_of_file {
    const dml__tensor *tensors;
    int count;
    const dml__metadata *metadata;
    int pairs;
    char *header; /* 8 bytes for its length, then its text */
    size_t header_bytes;
    uint64_t data_bytes;
} dml__plan_of_file;

/* ---- whether it can be written ---- */

static uint64_t dml__tensor_bytes(const dml__tensor *tensor)
{
    uint64_t bytes = dml_dtype_size(tensor->dtype);
    for (int i = 0; i < tensor->ndim; i++) bytes *= (uint64_t)tensor->dims[i];
    return bytes;
}

static dml_status dml__check_tensor(const dml__tensor *tensor, int at, dml__error *error)
{
    char shown[DML__SHOWN_BYTES];
    if (!tensor->name)
        return dml__fail(error, DML_ERROR_ARGUMENT, "tensor %d of those to be written has no name", at);
    dml__shown(tensor->name, strlen(tensor->name), shown);
    if (!dml__is_utf8(tensor->name))
        return dml__fail(error, DML_ERROR_ARGUMENT, "the name \"%s\" of a tensor isn't UTF-8", shown);
    if (strcmp(tensor->name, DML__METADATA_NAME) == 0)
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "no tensor can be named \"%s\": the format needs that name", shown);
    uint64_t elements = 1;
    bool fits = true;
    if (!dml_dtype_size(tensor->dtype))
        return dml__fail(error, DML_ERROR_ARGUMENT, "tensor \"%s\" has dtype %d, which is none", shown,
                         (int)tensor->dtype);
    if (tensor->ndim < 0 || tensor->ndim > DML__SAFETENSORS_DIMS)
        return dml__fail(error, DML_ERROR_ARGUMENT, "tensor \"%s\" has %d dimensions, not 0 to %d", shown,
                         tensor->ndim, (int)DML__SAFETENSORS_DIMS);
    for (int i = 0; i < tensor->ndim; i++) {
        if (tensor->dims[i] < 0)
            return dml__fail(error, DML_ERROR_ARGUMENT, "tensor \"%s\" has a dimension of %d", shown,
                             tensor->dims[i]);
        const uint64_t dim = (uint64_t)tensor->dims[i];
        if (dim && elements > UINT64_MAX / 64 / dim) fits = false;
        elements *= dim;
    }
    if (!fits || elements > SIZE_MAX / dml_dtype_size(tensor->dtype))
        return dml__fail(error, DML_ERROR_ARGUMENT, "tensor \"%s\" is larger than memory can be", shown);
    if (!tensor->data && dml__tensor_bytes(tensor))
        return dml__fail(error, DML_ERROR_ARGUMENT, "tensor \"%s\" has no data", shown);
    return DML_OK;
}

static dml_status dml__check_pair(const dml__metadata *pair, dml__error *error)
{
    char shown[DML__SHOWN_BYTES];
    if (!pair->key || !pair->value)
        return dml__fail(error, DML_ERROR_ARGUMENT, "metadata lacks its key or its value");
    dml__shown(pair->key, strlen(pair->key), shown);
    if (!dml__is_utf8(pair->key) || !dml__is_utf8(pair->value))
        return dml__fail(error, DML_ERROR_ARGUMENT, "the metadata \"%s\" isn't UTF-8", shown);
    if (strcmp(pair->key, DML__CHECKSUM_KEY) == 0)
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "\"%s\" can't be given as metadata: it is written by itself", shown);
    return DML_OK;
}

static bool dml__tensor_name_less(const void *context, int a, int b)
{
    const dml__tensor *tensors = (const dml__tensor *)context;
    return strcmp(tensors[a].name, tensors[b].name) < 0;
}

static bool dml__pair_key_less(const void *context, int a, int b)
{
    const dml__metadata *metadata = (const dml__metadata *)context;
    return strcmp(metadata[a].key, metadata[b].key) < 0;
}

static dml_status dml__check_twice(const dml__plan_of_file *plan, int *order, dml__error *error)
{
    char shown[DML__SHOWN_BYTES];
    dml__sort_order(order, plan->count, dml__tensor_name_less, plan->tensors);
    for (int i = 1; i < plan->count; i++) {
        const char *name = plan->tensors[order[i]].name;
        if (strcmp(plan->tensors[order[i - 1]].name, name) == 0)
            return dml__fail(error, DML_ERROR_ARGUMENT, "two tensors are named \"%s\"",
                             dml__shown(name, strlen(name), shown));
    }
    dml__sort_order(order, plan->pairs, dml__pair_key_less, plan->metadata);
    for (int i = 1; i < plan->pairs; i++) {
        const char *key = plan->metadata[order[i]].key;
        if (strcmp(plan->metadata[order[i - 1]].key, key) == 0)
            return dml__fail(error, DML_ERROR_ARGUMENT, "two texts of the metadata have the key \"%s\"",
                             dml__shown(key, strlen(key), shown));
    }
    return DML_OK;
}

static dml_status dml__check_plan(dml__memory *memory, const dml__plan_of_file *plan, dml__error *error)
{
    const int most = plan->count > plan->pairs ? plan->count : plan->pairs;
    dml_status status = DML_OK;
    if (plan->count < 0 || plan->pairs < 0)
        return dml__fail(error, DML_ERROR_ARGUMENT, "%d tensors and %d texts can't be written", plan->count,
                         plan->pairs);
    for (int i = 0; i < plan->count && status == DML_OK; i++)
        status = dml__check_tensor(&plan->tensors[i], i, error);
    for (int i = 0; i < plan->pairs && status == DML_OK; i++)
        status = dml__check_pair(&plan->metadata[i], error);
    if (status != DML_OK) return status;
    int *order = (int *)dml__allocate_array(memory, (size_t)most, sizeof *order);
    if (!order)
        return dml__fail(error, DML_ERROR_MEMORY, "no memory to write the names of %d tensors", plan->count);
    status = dml__check_twice(plan, order, error);
    dml__release(memory, order);
    return status;
}

/* ---- the header ---- */

#define DML__CHECKSUM_START "{\"" DML__METADATA_NAME "\":{\"" DML__CHECKSUM_KEY "\":\""
enum { DML__CHECKSUM_AT = (int)sizeof DML__CHECKSUM_START - 1 };

static void dml__write_tensor_header(dml__json_writer *writer, const dml__tensor *tensor, uint64_t begin)
{
    dml__json_write(writer, ",");
    dml__json_write_string(writer, tensor->name);
    dml__json_write(writer, ":{\"dtype\":");
    dml__json_write_string(writer, dml__safetensors_dtype(tensor->dtype));
    dml__json_write(writer, ",\"shape\":[");
    for (int i = 0; i < tensor->ndim; i++) {
        if (i) dml__json_write(writer, ",");
        dml__json_write_count(writer, (uint64_t)tensor->dims[i]);
    }
    dml__json_write(writer, "],\"data_offsets\":[");
    dml__json_write_count(writer, begin);
    dml__json_write(writer, ",");
    dml__json_write_count(writer, begin + dml__tensor_bytes(tensor));
    dml__json_write(writer, "]}");
}

/* Writes or counts the header, its checksum 0, and counts the data. */
static void dml__write_plan(dml__plan_of_file *plan, dml__json_writer *writer)
{
    dml__json_write(writer, DML__CHECKSUM_START "00000000\"");
    for (int i = 0; i < plan->pairs; i++) {
        dml__json_write(writer, ",");
        dml__json_write_string(writer, plan->metadata[i].key);
        dml__json_write(writer, ":");
        dml__json_write_string(writer, plan->metadata[i].value);
    }
    dml__json_write(writer, "}");
    plan->data_bytes = 0;
    for (size_t size = 8; size > 0; size /= 2)
        for (int i = 0; i < plan->count; i++) {
            if (dml_dtype_size(plan->tensors[i].dtype) != size) continue;
            dml__write_tensor_header(writer, &plan->tensors[i], plan->data_bytes);
            plan->data_bytes += dml__tensor_bytes(&plan->tensors[i]);
        }
    dml__json_write(writer, "}");
    while (writer->bytes % 8) dml__json_write(writer, " ");
}

static dml_status dml__make_header(dml__memory *memory, dml__plan_of_file *plan, dml__error *error)
{
    dml__json_writer writer = { NULL, 0 };
    dml__write_plan(plan, &writer);
    if (writer.bytes > DML__SAFETENSORS_HEADER)
        return dml__fail(
            error, DML_ERROR_ARGUMENT,
            "names and metadata would make a header of %llu bytes, more than the %d of the format",
            (unsigned long long)writer.bytes, (int)DML__SAFETENSORS_HEADER);
    plan->header_bytes = (size_t)writer.bytes;
    plan->header = (char *)dml__allocate(memory, 8 + plan->header_bytes);
    if (!plan->header)
        return dml__fail(error, DML_ERROR_MEMORY, "no memory for a header of %llu bytes",
                         (unsigned long long)plan->header_bytes);
    dml__store64(plan->header, plan->header_bytes);
    writer.to = plan->header + 8;
    writer.bytes = 0;
    dml__write_plan(plan, &writer);
    return DML_OK;
}

/* ---- the bytes ---- */

/* Where bytes go to: each returns whether to go on. */
typedef dml_status (*dml__put)(void *to, const void *data, size_t bytes, dml__error *error);

/* The data of one tensor as the file has it. */
static dml_status dml__put_tensor(const dml__tensor *tensor, dml__put put, void *to, dml__error *error)
{
    const char *from = (const char *)tensor->data;
    const size_t width = dml_dtype_size(tensor->dtype);
    size_t left = (size_t)dml__tensor_bytes(tensor);
    if (left == 0) return DML_OK;
    if (dml__little_endian() || width == 1) return put(to, from, left, error);
    while (left > 0) {
        char piece[4096];
        const size_t bytes = left < sizeof piece ? left : sizeof piece;
        dml__swap_bytes(piece, from, bytes / width, width);
        const dml_status status = put(to, piece, bytes, error);
        if (status != DML_OK) return status;
        from += bytes;
        left -= bytes;
    }
    return DML_OK;
}

static dml_status dml__put_all(const dml__plan_of_file *plan, dml__put put, void *to, dml__error *error)
{
    dml_status status = put(to, plan->header, 8 + plan->header_bytes, error);
    for (size_t size = 8; size > 0; size /= 2)
        for (int i = 0; i < plan->count && status == DML_OK; i++)
            if (dml_dtype_size(plan->tensors[i].dtype) == size)
                status = dml__put_tensor(&plan->tensors[i], put, to, error);
    return status;
}

static dml_status dml__put_checksum(void *to, const void *data, size_t bytes, dml__error *error)
{
    uint32_t *sum = (uint32_t *)to;
    (void)error;
    *sum = dml__crc32c(*sum, data, bytes);
    return DML_OK;
}

static dml_status dml__put_memory(void *to, const void *data, size_t bytes, dml__error *error)
{
    char **at = (char **)to;
    (void)error;
    memcpy(*at, data, bytes);
    *at += bytes;
    return DML_OK;
}

/* Puts the checksum of everything into the header. */
static void dml__seal(dml__plan_of_file *plan)
{
    uint32_t sum = 0;
    char digits[9];
    dml__put_all(plan, dml__put_checksum, &sum, NULL);
    snprintf(digits, sizeof digits, "%08x", (unsigned)sum);
    memcpy(plan->header + 8 + DML__CHECKSUM_AT, digits, 8);
}

static dml_status dml__start_plan(dml__memory *memory, dml__plan_of_file *plan, const dml__tensor *tensors,
                                  int count, const dml__metadata *metadata, int pairs, dml__error *error)
{
    memset(plan, 0, sizeof *plan);
    plan->tensors = tensors;
    plan->count = count;
    plan->metadata = metadata;
    plan->pairs = pairs;
    const dml_status status = dml__check_plan(memory, plan, error);
    return status == DML_OK ? dml__make_header(memory, plan, error) : status;
}

DML__LOCAL dml_status dml__safetensors_store(dml__memory *memory, void *to, size_t capacity, size_t *bytes,
                                             const dml__tensor *tensors, int count,
                                             const dml__metadata *metadata, int pairs, dml__error *error)
{
    dml__plan_of_file plan;
    *bytes = 0;
    dml_status status = dml__start_plan(memory, &plan, tensors, count, metadata, pairs, error);
    if (status != DML_OK) return status;
    const uint64_t needed = 8 + plan.header_bytes + plan.data_bytes;
    if (needed > SIZE_MAX) {
        status = dml__fail(error, DML_ERROR_MEMORY, "%llu bytes of tensors are more than memory can hold",
                           (unsigned long long)needed);
    } else {
        *bytes = (size_t)needed;
        if (to && needed > capacity)
            status = dml__fail(error, DML_ERROR_MEMORY, "%d tensors take %llu bytes, there is room for %llu",
                               count, (unsigned long long)needed, (unsigned long long)capacity);
        else if (to) {
            char *at = (char *)to;
            dml__seal(&plan);
            dml__put_all(&plan, dml__put_memory, &at, NULL);
        }
    }
    dml__release(memory, plan.header);
    return status;
}

#ifndef DML_NO_STDIO

static dml_status dml__put_file(void *to, const void *data, size_t bytes, dml__error *error)
{
    return dml__file_append((dml__file_writer *)to, data, bytes, error);
}

DML__LOCAL dml_status dml__safetensors_save(dml__memory *memory, const char *path, const dml__tensor *tensors,
                                            int count, const dml__metadata *metadata, int pairs,
                                            dml__error *error)
{
    dml__plan_of_file plan;
    dml__file_writer file;
    dml_status status = dml__start_plan(memory, &plan, tensors, count, metadata, pairs, error);
    if (status == DML_OK) status = dml__file_create(&file, path, error);
    if (status == DML_OK) {
        dml__seal(&plan);
        status = dml__put_all(&plan, dml__put_file, &file, error);
        if (status == DML_OK)
            status = dml__file_commit(&file, error);
        else
            dml__file_abandon(&file);
    }
    dml__release(memory, plan.header);
    return status;
}

#endif

#endif
