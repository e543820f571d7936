#ifndef DML_TRAIN_IDX_C
#define DML_TRAIN_IDX_C

#include "train/idx.h"

#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "device/context_internal.h"

#include <limits.h>
#include <string.h>

static uint32_t dml__idx_number(const unsigned char *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* "signed bytes", ...; NULL for a number that is no type of the format. */
static const char *dml__idx_type_name(int type)
{
    switch (type) {
    case 0x08: return "unsigned bytes";
    case 0x09: return "signed bytes";
    case 0x0B: return "16-bit integers";
    case 0x0C: return "32-bit integers";
    case 0x0D: return "32-bit floats";
    case 0x0E: return "64-bit floats";
    default: return NULL;
    }
}

/* The four bytes that say what the file is. */
static dml_status dml__idx_magic(dml__error *error, const char *name, const unsigned char *at, size_t size)
{
    if (size >= 2 && at[0] == 0x1F && at[1] == 0x8B)
        return dml__fail(error, DML_ERROR_FORMAT,
                         "%s is packed with gzip: unpack it with make data, or gunzip", name);
    if (size < 4 || at[0] != 0 || at[1] != 0 || !dml__idx_type_name(at[2]))
        return dml__fail(error, DML_ERROR_FORMAT, "%s is not an IDX file: %s", name,
                         size < 4 ? "it has less than 4 bytes" : "its first bytes are others");
    if (at[2] != 0x08)
        return dml__fail(error, DML_ERROR_FORMAT, "%s holds %s; only unsigned bytes can be read", name,
                         dml__idx_type_name(at[2]));
    if (at[3] < 1 || at[3] > DML_IDX_DIMS)
        return dml__fail(error, DML_ERROR_FORMAT, "%s has %d dimensions; 1 to %d can be read", name, at[3],
                         DML_IDX_DIMS);
    return DML_OK;
}

DML_API dml_status dml_idx_parse(dml_context *context, const char *name, const void *bytes, size_t size,
                                 dml_idx *out)
{
    if (out) memset(out, 0, sizeof *out);
    if (!context) return DML_ERROR_ARGUMENT;
    if (!out || (!bytes && size))
        return dml__fail_null(&context->error, "dml_idx_parse", out ? "bytes" : "place for the array");
    const unsigned char *at = (const unsigned char *)bytes;
    dml__error *error = &context->error;
    if (!name) name = "what was given";
    const dml_status status = dml__idx_magic(error, name, at, size);
    if (status != DML_OK) return status;
    const int ndim = at[3];
    const size_t header = 4 + 4 * (size_t)ndim;
    if (size < header)
        return dml__fail(error, DML_ERROR_FORMAT, "%s is cut short: it ends inside its header", name);

    dml_idx idx;
    memset(&idx, 0, sizeof idx);
    idx.ndim = ndim;
    for (int i = 0; i < DML_IDX_DIMS; i++) idx.dims[i] = 1;
    const uint64_t present = size - header;
    uint64_t elements = 1;
    for (int i = 0; i < ndim; i++) {
        const uint32_t dim = dml__idx_number(at + 4 + 4 * i);
        if (dim == 0)
            return dml__fail(error, DML_ERROR_FORMAT, "%s holds nothing: its dimension %d is 0", name, i);
        if (dim > INT_MAX || dim > present / elements)
            return dml__fail(error, DML_ERROR_FORMAT,
                             "%s is cut short: its dimensions ask for more than the %llu bytes it holds",
                             name, (unsigned long long)present);
        idx.dims[i] = (int)dim;
        elements *= dim;
    }
    if (elements != present)
        return dml__fail(error, DML_ERROR_FORMAT,
                         "%s goes on after its end: its dimensions ask for %llu bytes and "
                         "it holds %llu",
                         name, (unsigned long long)elements, (unsigned long long)present);
    idx.data = at + header;
    *out = idx;
    return DML_OK;
}

#ifndef DML_NO_STDIO
DML_API dml_status dml_idx_load(dml_context *context, const char *path, dml_idx *out)
{
    if (out) memset(out, 0, sizeof *out);
    if (!context) return DML_ERROR_ARGUMENT;
    if (!out || !path)
        return dml__fail_null(&context->error, "dml_idx_load", out ? "path" : "place for the array");
    void *bytes;
    size_t size;
    dml_status status = dml__file_read(&context->memory, path, SIZE_MAX, &bytes, &size, &context->error);
    if (status != DML_OK) return status;
    status = dml_idx_parse(context, path, bytes, size, out);
    if (status == DML_OK) {
        out->block = bytes;
    } else {
        dml__release(&context->memory, bytes);
    }
    return status;
}
#endif

DML_API void dml_idx_free(dml_context *context, dml_idx *idx)
{
    if (!idx) return;
    if (context && idx->block) dml__release(&context->memory, idx->block);
    memset(idx, 0, sizeof *idx);
}

#endif
