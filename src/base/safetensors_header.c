#ifndef DML_BASE_SAFETENSORS_HEADER_C
#define DML_BASE_SAFETENSORS_HEADER_C

#include "base/safetensors_internal.h"

#include "base/json.h"

#include <string.h>

/* ---- types ---- */

/* What the format calls a type, the bits of an element, the bytes that a host of the other byte order turns
   round together, and ours, if it is one of them. */
typedef struct dml__element {
    const char *name;
    int bits, width;
    dml_dtype dtype;
} dml__element;

static const dml__element dml__elements[] = {
    { "F32", 32, 4, DML_F32 },
    { "F64", 64, 8, DML_F64 },
    { "I32", 32, 4, DML_I32 },
    { "I64", 64, 8, DML_I64 },
    { "U8", 8, 1, DML_U8 },
    { "BOOL", 8, 1, DML__DTYPE_COUNT },
    { "I8", 8, 1, DML_I8 },
    { "I16", 16, 2, DML__DTYPE_COUNT },
    { "U16", 16, 2, DML__DTYPE_COUNT },
    { "U32", 32, 4, DML__DTYPE_COUNT },
    { "U64", 64, 8, DML__DTYPE_COUNT },
    { "F16", 16, 2, DML_F16 },
    { "BF16", 16, 2, DML_BF16 },
    { "C64", 64, 4, DML__DTYPE_COUNT },
    { "F8_E4M3", 8, 1, DML__DTYPE_COUNT },
    { "F8_E5M2", 8, 1, DML__DTYPE_COUNT },
    { "F8_E8M0", 8, 1, DML__DTYPE_COUNT },
    { "F8_E4M3FNUZ", 8, 1, DML__DTYPE_COUNT },
    { "F8_E5M2FNUZ", 8, 1, DML__DTYPE_COUNT },
    { "F6_E2M3", 6, 1, DML__DTYPE_COUNT },
    { "F6_E3M2", 6, 1, DML__DTYPE_COUNT },
    { "F4", 4, 1, DML__DTYPE_COUNT },
};
enum { DML__ELEMENT_KINDS = (int)(sizeof dml__elements / sizeof dml__elements[0]) };

DML__LOCAL const char *dml__safetensors_dtype(dml_dtype dtype)
{
    for (int i = 0; i < DML__ELEMENT_KINDS; i++)
        if (dml__elements[i].dtype == dtype && dtype != DML__DTYPE_COUNT) return dml__elements[i].name;
    return NULL;
}

DML__LOCAL size_t dml__element_width(const char *name)
{
    for (int i = 0; i < DML__ELEMENT_KINDS; i++)
        if (strcmp(dml__elements[i].name, name) == 0) return (size_t)dml__elements[i].width;
    return 1;
}

/* ---- the header's text ---- */

/* A tensor as it is met in the header. */
typedef struct dml__met {
    dml__json_string name, dtype;
    const dml__element *element; /* NULL: unknown */
    int ndim;
    uint64_t dims[DML__SAFETENSORS_DIMS];
    uint64_t begin, end;
} dml__met;

static bool dml__read_shape(dml__json *json, dml__met *met)
{
    met->ndim = 0;
    if (!dml__json_expect(json, '[')) return false;
    for (bool first = true; dml__json_more(json, ']', &first); met->ndim++) {
        if (met->ndim == DML__SAFETENSORS_DIMS)
            return dml__json_fail(json, json->at, "a tensor has more than 64 dimensions");
        if (!dml__json_read_count(json, &met->dims[met->ndim])) return false;
    }
    return !json->problem;
}

static bool dml__read_offsets(dml__json *json, dml__met *met)
{
    return dml__json_expect(json, '[') && dml__json_read_count(json, &met->begin) &&
           dml__json_expect(json, ',') && dml__json_read_count(json, &met->end) &&
           dml__json_expect(json, ']');
}

/* The object behind a tensor's name. Each of its fields comes once, in any order. */
static bool dml__read_tensor(dml__json *json, dml__met *met)
{
    unsigned seen = 0;
    if (!dml__json_expect(json, '{')) return false;
    for (bool first = true; dml__json_more(json, '}', &first);) {
        dml__json_string field;
        const size_t at = json->at;
        if (!dml__json_read_name(json, &field)) return false;
        const unsigned which = dml__json_is(field, "dtype")          ? 1
                               : dml__json_is(field, "shape")        ? 2
                               : dml__json_is(field, "data_offsets") ? 4
                                                                     : 0;
        if (!which)
            return dml__json_fail(json, at,
                                  "a tensor has a field that is none of dtype, shape, data_offsets");
        if (seen & which) return dml__json_fail(json, at, "a tensor has a field twice");
        seen |= which;
        if (!(which == 1   ? dml__json_read_string(json, &met->dtype)
              : which == 2 ? dml__read_shape(json, met)
                           : dml__read_offsets(json, met)))
            return false;
    }
    if (!json->problem && seen != 7)
        return dml__json_fail(json, json->at - 1, "a tensor lacks its dtype, shape or data_offsets");
    return !json->problem;
}

/* Whether dtype, shape and place of a tensor fit each other and the file. */
static dml_status dml__check_met(const dml__safetensors *file, dml__met *met, dml__error *error)
{
    char name[DML__SHOWN_BYTES], dtype[DML__SHOWN_BYTES];
    uint64_t elements = 1;
    dml__shown(met->name.from, met->name.bytes, name);
    dml__shown(met->dtype.from, met->dtype.bytes, dtype);
    met->element = NULL;
    for (int i = 0; i < DML__ELEMENT_KINDS; i++)
        if (dml__json_is(met->dtype, dml__elements[i].name)) met->element = &dml__elements[i];
    if (met->begin > met->end)
        return dml__fail(
            error, DML_ERROR_FORMAT,
            "\"%.200s\" is damaged: tensor \"%s\" ends at byte %llu of the data, before it begins "
            "at %llu",
            file->name, name, (unsigned long long)met->end, (unsigned long long)met->begin);
    if (met->end > dml__data_bytes(file))
        return dml__fail(
            error, DML_ERROR_FORMAT,
            "\"%.200s\" is truncated or damaged: tensor \"%s\" ends at byte %llu of the data, the "
            "file has %llu",
            file->name, name, (unsigned long long)met->end, (unsigned long long)dml__data_bytes(file));
    bool fits = true;
    for (int i = 0; i < met->ndim; i++) {
        if (met->dims[i] && elements > UINT64_MAX / 64 / met->dims[i]) fits = false;
        elements *= met->dims[i];
    }
    if (!met->element && fits) return DML_OK;
    const uint64_t bits = met->element ? elements * (uint64_t)met->element->bits : 0;
    if (!fits || bits % 8 || bits / 8 != met->end - met->begin)
        return dml__fail(
            error, DML_ERROR_FORMAT,
            "\"%.200s\" is damaged: the shape of tensor \"%s\", of type %s, doesn't fit its %llu "
            "bytes",
            file->name, name, dtype, (unsigned long long)(met->end - met->begin));
    return DML_OK;
}

static const char *dml__keep_string(dml__safetensors *file, dml__json_string string)
{
    char *to = file->header + (string.from - file->header);
    dml__json_unescape(to, string);
    return to;
}

/* Keeps a tensor in the tables, if there are any yet. */
static void dml__keep_met(dml__safetensors *file, const dml__met *met)
{
    if (file->entries) {
        dml__safetensors_entry *entry = &file->entries[file->count];
        uint64_t *dims = file->dims + file->dim_count;
        if (met->ndim) memcpy(dims, met->dims, (size_t)met->ndim * sizeof *dims);
        entry->name = dml__keep_string(file, met->name);
        entry->dtype_text = dml__keep_string(file, met->dtype);
        entry->dtype = met->element ? met->element->dtype : DML__DTYPE_COUNT;
        entry->ndim = met->ndim;
        entry->dims = dims;
        entry->begin = met->begin;
        entry->end = met->end;
    }
    file->count++;
    file->dim_count += (size_t)met->ndim;
}

/* Whether a key is ours but for one character: then the file would seem to have no checksum. */
static bool dml__nearly_checksum(dml__json_string key)
{
    int differ = 0;
    if (key.bytes != strlen(DML__CHECKSUM_KEY)) return false;
    for (size_t i = 0; i < key.bytes; i++) differ += key.from[i] != DML__CHECKSUM_KEY[i];
    return differ == 1;
}

static bool dml__is_checksum(dml__json_string value)
{
    if (value.bytes != 8) return false;
    for (size_t i = 0; i < 8; i++)
        if (!memchr("0123456789abcdef", value.from[i], 16)) return false;
    return true;
}

/* The texts under "__metadata__". */
static bool dml__read_metadata(dml__safetensors *file, dml__json *json)
{
    if (!dml__json_expect(json, '{')) return false;
    for (bool first = true; dml__json_more(json, '}', &first); file->pair_count++) {
        dml__json_string key, value;
        const size_t at = json->at;
        if (!dml__json_read_name(json, &key) || !dml__json_read_string(json, &value)) return false;
        if (dml__nearly_checksum(key)) return dml__json_fail(json, at, "a damaged \"dml.crc32c\" is");
        if (dml__json_is(key, DML__CHECKSUM_KEY)) {
            if (!dml__is_checksum(value))
                return dml__json_fail(json, at, "a \"dml.crc32c\" without 8 digits of 0-9a-f is");
            file->checksum_at = (size_t)(value.from - file->header);
        }
        if (file->pairs) {
            file->pairs[file->pair_count].key = dml__keep_string(file, key);
            file->pairs[file->pair_count].value = dml__keep_string(file, value);
        }
    }
    return !json->problem;
}

static dml_status dml__read_members(dml__safetensors *file, dml__json *json, dml__error *error)
{
    dml__met met;
    bool metadata = false;
    dml__json_expect(json, '{');
    for (bool first = true; dml__json_more(json, '}', &first);) {
        const size_t at = json->at;
        if (!dml__json_read_name(json, &met.name)) break;
        if (dml__json_is(met.name, DML__METADATA_NAME)) {
            if (metadata) dml__json_fail(json, at, "a second \"__metadata__\" is");
            metadata = true;
            if (!dml__read_metadata(file, json)) break;
            continue;
        }
        if (!dml__read_tensor(json, &met)) break;
        const dml_status status = dml__check_met(file, &met, error);
        if (status != DML_OK) return status;
        dml__keep_met(file, &met);
    }
    return DML_OK;
}

DML__LOCAL dml_status dml__read_header_text(dml__safetensors *file, dml__error *error)
{
    dml__json json;
    file->count = file->pair_count = 0;
    file->dim_count = 0;
    dml__json_start(&json, file->header, file->header_bytes);
    const dml_status status = dml__read_members(file, &json, error);
    if (status != DML_OK) return status;
    if (!dml__json_end(&json))
        return dml__fail(error, DML_ERROR_FORMAT,
                         "\"%.200s\" is damaged or no safetensors file: in its header, %s at byte %llu",
                         file->name, json.problem, (unsigned long long)(8 + json.at));
    return DML_OK;
}

#endif
