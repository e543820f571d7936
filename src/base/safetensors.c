#ifndef DML_BASE_SAFETENSORS_C
#define DML_BASE_SAFETENSORS_C

#include "base/safetensors.h"

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/file.h"
#include "base/float16.h"
#include "base/json.h"

#include <string.h>

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

struct dml__safetensors {
    dml__memory *memory;
    char *name;                 /* what sentences call the file: its path */
    const unsigned char *bytes; /* all of it, in memory; NULL: it is a file */
#ifndef DML_NO_STDIO
    dml__file_reader reader;
#endif
    uint64_t size;
    char *header; /* strings are unescaped in their place */
    size_t header_bytes;
    size_t checksum_at; /* where in the header its digits are; 0: there is none */
    int count, pair_count;
    size_t dim_count;
    dml__safetensors_entry *entries; /* count, as in the header */
    uint64_t *dims;                  /* dim_count */
    int *order;                      /* count: the entries in the order of the data */
    int *by_name;                    /* count: indices into order */
    dml__metadata *pairs;            /* pair_count */
};

DML__LOCAL const char *dml__safetensors_dtype(dml_dtype dtype)
{
    for (int i = 0; i < DML__ELEMENT_KINDS; i++)
        if (dml__elements[i].dtype == dtype && dtype != DML__DTYPE_COUNT) return dml__elements[i].name;
    return NULL;
}

/* ---- sorting: a heap, since qsort of some C libraries allocates, and of others takes n^2 steps ---- */

static void dml__sift_down(int *order, int at, int count, bool (*less)(const void *, int, int),
                           const void *context)
{
    for (int child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && less(context, order[child], order[child + 1])) child++;
        if (!less(context, order[at], order[child])) return;
        const int kept = order[at];
        order[at] = order[child];
        order[child] = kept;
    }
}

DML__LOCAL void dml__sort_order(int *order, int count, bool (*less)(const void *context, int a, int b),
                                const void *context)
{
    for (int i = 0; i < count; i++) order[i] = i;
    for (int i = count / 2 - 1; i >= 0; i--) dml__sift_down(order, i, count, less, context);
    for (int last = count - 1; last > 0; last--) {
        const int largest = order[0];
        order[0] = order[last];
        order[last] = largest;
        dml__sift_down(order, 0, last, less, context);
    }
}

static bool dml__name_less(const void *context, int a, int b)
{
    const dml__safetensors *file = (const dml__safetensors *)context;
    return strcmp(dml__safetensors_at(file, a)->name, dml__safetensors_at(file, b)->name) < 0;
}

static bool dml__data_less(const void *context, int a, int b)
{
    const dml__safetensors_entry *entries = ((const dml__safetensors *)context)->entries;
    if (entries[a].begin != entries[b].begin) return entries[a].begin < entries[b].begin;
    if (entries[a].end != entries[b].end) return entries[a].end < entries[b].end;
    return a < b;
}

static bool dml__key_less(const void *context, int a, int b)
{
    const dml__metadata *pairs = ((const dml__safetensors *)context)->pairs;
    return strcmp(pairs[a].key, pairs[b].key) < 0;
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

static uint64_t dml__data_bytes(const dml__safetensors *file)
{
    return file->size - 8 - file->header_bytes;
}

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

/* Goes through the header: once to check and count, then again to fill the tables. */
static dml_status dml__read_header_text(dml__safetensors *file, dml__error *error)
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

/* ---- opening ---- */

static dml_status dml__read_from(dml__safetensors *file, uint64_t offset, void *to, size_t bytes,
                                 dml__error *error)
{
#ifndef DML_NO_STDIO
    if (!file->bytes) return dml__file_read_at(&file->reader, offset, to, bytes, error);
#endif
    (void)error;
    if (bytes) memcpy(to, file->bytes + offset, bytes);
    return DML_OK;
}

/* What else a file is that begins with these bytes; NULL: who knows. */
static const char *dml__other_format(const unsigned char *bytes, size_t count)
{
    static const struct {
        const char *begin, *what;
    } formats[] = {
        { "PK\003\004",
          "it is a zip archive, as PyTorch and NumPy write; convert it with safetensors.torch or "
          "safetensors.numpy in Python" },
        { "\200\002", "it is a Python pickle; convert it with safetensors.torch in Python" },
        { "\200\003", "it is a Python pickle; convert it with safetensors.torch in Python" },
        { "\200\004", "it is a Python pickle; convert it with safetensors.torch in Python" },
        { "\200\005", "it is a Python pickle; convert it with safetensors.torch in Python" },
        { "DMLCKPT\n", "it is a checkpoint of dml 0.1, which newer versions don't read" },
        { "\223NUMPY", "it is a NumPy array; convert it with safetensors.numpy in Python" },
        { "\211HDF", "it is an HDF5 file" },
        { "\211PNG", "it is a PNG picture" },
        { "GGUF", "it is a GGUF file" },
    };
    /* A length of a header below 4 GB, whatever its first bytes look like. */
    if (count >= 8 && memcmp(bytes + 4, "\0\0\0\0", 4) == 0) return NULL;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        const size_t length = strlen(formats[i].begin);
        if (count >= length && memcmp(bytes, formats[i].begin, length) == 0) return formats[i].what;
    }
    return NULL;
}

/* Whether the first bytes can be those of such a file; then header_bytes is set. */
static dml_status dml__check_start(dml__safetensors *file, dml__error *error)
{
    unsigned char start[9];
    const size_t have = file->size < sizeof start ? (size_t)file->size : sizeof start;
    const dml_status status = dml__read_from(file, 0, start, have, error);
    if (status != DML_OK) return status;
    const char *other = dml__other_format(start, have);
    const uint64_t length = have == sizeof start ? dml__load64(start) : 0;
    if (have < sizeof start && !other)
        return dml__fail(error, DML_ERROR_FORMAT, "\"%.200s\" is no safetensors file: it has only %d bytes",
                         file->name, (int)have);
    if (other || start[8] != '{')
        return dml__fail(error, DML_ERROR_FORMAT, "\"%.200s\" is no safetensors file: %s", file->name,
                         other ? other : "byte 8, where its header would begin, is no '{'");
    if (length > DML__SAFETENSORS_HEADER)
        return dml__fail(
            error, DML_ERROR_FORMAT,
            "\"%.200s\" is damaged or no safetensors file: its header would have %llu bytes, more "
            "than the %d of the format",
            file->name, (unsigned long long)length, (int)DML__SAFETENSORS_HEADER);
    if (length > file->size - 8)
        return dml__fail(error, DML_ERROR_FORMAT,
                         "\"%.200s\" is truncated or damaged: its header has %llu bytes, the whole file %llu",
                         file->name, (unsigned long long)length, (unsigned long long)file->size);
    file->header_bytes = (size_t)length;
    return DML_OK;
}

/* Compares the checksum, if there is one, with the file, its own digits taken as 0. */
static dml_status dml__verify_checksum(dml__safetensors *file, dml__error *error)
{
    unsigned char piece[16384];
    char digits[8];
    if (!file->checksum_at) return DML_OK;
    dml__store64(piece, file->header_bytes);
    uint32_t sum = dml__crc32c(0, piece, 8), want = 0;
    memcpy(digits, file->header + file->checksum_at, 8);
    for (int i = 0; i < 8; i++)
        want = want * 16 + (uint32_t)(digits[i] <= '9' ? digits[i] - '0' : digits[i] - 'a' + 10);
    memset(file->header + file->checksum_at, '0', 8);
    sum = dml__crc32c(sum, file->header, file->header_bytes);
    memcpy(file->header + file->checksum_at, digits, 8);
    for (uint64_t at = 8 + file->header_bytes; at < file->size;) {
        const size_t bytes = file->size - at < sizeof piece ? (size_t)(file->size - at) : sizeof piece;
        const dml_status status = dml__read_from(file, at, piece, bytes, error);
        if (status != DML_OK) return status;
        sum = dml__crc32c(sum, piece, bytes);
        at += bytes;
    }
    if (sum == want) return DML_OK;
    return dml__fail(
        error, DML_ERROR_FORMAT,
        "\"%.200s\" is damaged: its checksum is %08x, but \"dml.crc32c\" in its metadata says %08x. "
        "If another tool has rewritten it and kept that key, have the tool drop it",
        file->name, (unsigned)sum, (unsigned)want);
}

static dml_status dml__fill_tables(dml__safetensors *file, dml__error *error)
{
    dml__memory *memory = file->memory;
    const size_t count = (size_t)file->count, pairs = (size_t)file->pair_count;
    file->dims = (uint64_t *)dml__allocate_array(memory, file->dim_count, sizeof *file->dims);
    file->order = (int *)dml__allocate_array(memory, count > pairs ? count : pairs, sizeof *file->order);
    file->by_name = (int *)dml__allocate_array(memory, count, sizeof *file->by_name);
    file->pairs = (dml__metadata *)dml__allocate_array(memory, pairs, sizeof *file->pairs);
    file->entries = (dml__safetensors_entry *)dml__allocate_array(memory, count, sizeof *file->entries);
    if (!file->dims || !file->order || !file->by_name || !file->pairs || !file->entries)
        return dml__fail(error, DML_ERROR_MEMORY, "no memory for the table of the %d tensors of \"%.200s\"",
                         file->count, file->name);
    return dml__read_header_text(file, error);
}

static dml_status dml__check_names(dml__safetensors *file, dml__error *error)
{
    char shown[DML__SHOWN_BYTES];
    dml__sort_order(file->order, file->pair_count, dml__key_less, file);
    for (int i = 1; i < file->pair_count; i++) {
        const char *key = file->pairs[file->order[i]].key;
        if (strcmp(file->pairs[file->order[i - 1]].key, key) == 0)
            return dml__fail(error, DML_ERROR_FORMAT, "\"%.200s\" has \"%s\" in its metadata twice",
                             file->name, dml__shown(key, strlen(key), shown));
    }
    dml__sort_order(file->order, file->count, dml__data_less, file);
    dml__sort_order(file->by_name, file->count, dml__name_less, file);
    for (int i = 1; i < file->count; i++) {
        const char *name = dml__safetensors_at(file, file->by_name[i])->name;
        if (strcmp(dml__safetensors_at(file, file->by_name[i - 1])->name, name) == 0)
            return dml__fail(error, DML_ERROR_FORMAT, "\"%.200s\" has two tensors \"%s\"", file->name,
                             dml__shown(name, strlen(name), shown));
    }
    return DML_OK;
}

/* Whether the tensors lie one behind the other and fill the data. */
static dml_status dml__check_places(const dml__safetensors *file, dml__error *error)
{
    char shown[DML__SHOWN_BYTES];
    uint64_t end = 0;
    for (int i = 0; i < file->count; i++) {
        const dml__safetensors_entry *entry = dml__safetensors_at(file, i);
        if (entry->begin != end)
            return dml__fail(
                error, DML_ERROR_FORMAT,
                "\"%.200s\" is damaged: tensor \"%s\" begins at byte %llu of the data, %s ends at "
                "%llu",
                file->name, dml__shown(entry->name, strlen(entry->name), shown),
                (unsigned long long)entry->begin, i ? "the one before it" : "nothing",
                (unsigned long long)end);
        end = entry->end;
    }
    if (end != dml__data_bytes(file))
        return dml__fail(error, DML_ERROR_FORMAT,
                         "\"%.200s\" is damaged: its tensors end at byte %llu of the data, the file has %llu",
                         file->name, (unsigned long long)end, (unsigned long long)dml__data_bytes(file));
    return DML_OK;
}

static dml_status dml__read_header_of(dml__safetensors *file, dml__error *error)
{
    dml_status status = dml__check_start(file, error);
    if (status != DML_OK) return status;
    file->header = (char *)dml__allocate(file->memory, file->header_bytes);
    if (!file->header)
        return dml__fail(error, DML_ERROR_MEMORY, "no memory for the %llu bytes of the header of \"%.200s\"",
                         (unsigned long long)file->header_bytes, file->name);
    status = dml__read_from(file, 8, file->header, file->header_bytes, error);
    if (status == DML_OK) status = dml__read_header_text(file, error);
    if (status == DML_OK) status = dml__verify_checksum(file, error);
    if (status == DML_OK) status = dml__fill_tables(file, error);
    if (status == DML_OK) status = dml__check_names(file, error);
    if (status == DML_OK) status = dml__check_places(file, error);
    return status;
}

static dml__safetensors *dml__new_safetensors(dml__memory *memory, const char *name, dml__error *error)
{
    dml__safetensors *file = (dml__safetensors *)dml__allocate(memory, sizeof *file);
    char *copy = (char *)dml__allocate(memory, strlen(name) + 1);
    if (!file || !copy) {
        dml__release(memory, file);
        dml__release(memory, copy);
        dml__fail(error, DML_ERROR_MEMORY, "no memory to open \"%.200s\"", name);
        return NULL;
    }
    file->memory = memory;
    file->name = strcpy(copy, name);
    return file;
}

/* Hands out the file if its header is as it should be, else closes it. */
static dml_status dml__finish_open(dml__safetensors *file, dml__safetensors **out, dml__error *error)
{
    const dml_status status = dml__read_header_of(file, error);
    if (status == DML_OK)
        *out = file;
    else
        dml__safetensors_close(file);
    return status;
}

DML__LOCAL dml_status dml__safetensors_open_memory(dml__memory *memory, const char *name, const void *bytes,
                                                   size_t size, dml__safetensors **out, dml__error *error)
{
    *out = NULL;
    dml__safetensors *file = dml__new_safetensors(memory, name, error);
    if (!file) return DML_ERROR_MEMORY;
    file->bytes = (const unsigned char *)(size ? bytes : "");
    file->size = size;
    return dml__finish_open(file, out, error);
}

#ifndef DML_NO_STDIO

DML__LOCAL dml_status dml__safetensors_open_file(dml__memory *memory, const char *path,
                                                 dml__safetensors **out, dml__error *error)
{
    dml__file_reader reader;
    *out = NULL;
    const dml_status status = dml__file_open(&reader, path, error);
    if (status != DML_OK) return status;
    dml__safetensors *file = dml__new_safetensors(memory, path, error);
    if (!file) {
        dml__file_close(&reader);
        return DML_ERROR_MEMORY;
    }
    file->reader = reader;
    file->reader.path = file->name;
    file->size = reader.bytes;
    return dml__finish_open(file, out, error);
}

#endif

DML__LOCAL void dml__safetensors_close(dml__safetensors *file)
{
    if (!file) return;
#ifndef DML_NO_STDIO
    if (!file->bytes) dml__file_close(&file->reader);
#endif
    dml__memory *memory = file->memory;
    dml__release(memory, file->header);
    dml__release(memory, file->dims);
    dml__release(memory, file->order);
    dml__release(memory, file->by_name);
    dml__release(memory, file->pairs);
    dml__release(memory, file->entries);
    dml__release(memory, file->name);
    dml__release(memory, file);
}

/* ---- what is in an open file ---- */

DML__LOCAL int dml__safetensors_count(const dml__safetensors *file)
{
    return file->count;
}

DML__LOCAL const dml__safetensors_entry *dml__safetensors_at(const dml__safetensors *file, int i)
{
    return &file->entries[file->order[i]];
}

DML__LOCAL int dml__safetensors_find(const dml__safetensors *file, const char *name)
{
    int low = 0, high = file->count;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        const int order = strcmp(name, dml__safetensors_at(file, file->by_name[middle])->name);
        if (order == 0) return file->by_name[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return -1;
}

DML__LOCAL const dml__metadata *dml__safetensors_pairs(const dml__safetensors *file, int *pairs)
{
    *pairs = file->pair_count;
    return file->pairs;
}

DML__LOCAL const char *dml__safetensors_text(const dml__safetensors *file, const char *key)
{
    for (int i = 0; i < file->pair_count; i++)
        if (strcmp(file->pairs[i].key, key) == 0) return file->pairs[i].value;
    return NULL;
}

DML__LOCAL dml_status dml__safetensors_read(dml__safetensors *file, int i, void *to, dml__error *error)
{
    const dml__safetensors_entry *entry = dml__safetensors_at(file, i);
    const uint64_t bytes = entry->end - entry->begin;
    if (bytes > SIZE_MAX)
        return dml__fail(error, DML_ERROR_MEMORY,
                         "a tensor of \"%.200s\" has %llu bytes, more than memory can", file->name,
                         (unsigned long long)bytes);
    const uint64_t offset = 8 + file->header_bytes + entry->begin;
    const dml_status status = dml__read_from(file, offset, to, (size_t)bytes, error);
    if (status != DML_OK || dml__little_endian()) return status;
    for (int kind = 0; kind < DML__ELEMENT_KINDS; kind++) {
        const size_t width = (size_t)dml__elements[kind].width;
        if (strcmp(dml__elements[kind].name, entry->dtype_text) == 0)
            dml__swap_bytes(to, to, (size_t)bytes / width, width);
    }
    return DML_OK;
}

DML__LOCAL bool dml__safetensors_is_float(const dml__safetensors *file, int i)
{
    const dml_dtype dtype = dml__safetensors_at(file, i)->dtype;
    return dtype == DML_F32 || dtype == DML_BF16 || dtype == DML_F16;
}

/* What has 16 bits goes to the end of the place first, from which its floats never overtake it. */
DML__LOCAL dml_status dml__safetensors_read_floats(dml__safetensors *file, int i, float *to,
                                                   dml__error *error)
{
    const dml__safetensors_entry *entry = dml__safetensors_at(file, i);
    uint16_t line[256];
    if (entry->dtype == DML_F32) return dml__safetensors_read(file, i, to, error);
    const size_t n = (size_t)((entry->end - entry->begin) / 2), most = sizeof line / sizeof *line;
    char *const narrow = (char *)to + 2 * n;
    const dml_status status = dml__safetensors_read(file, i, narrow, error);
    for (size_t at = 0; status == DML_OK && at < n; at += most) {
        const size_t part = n - at < most ? n - at : most;
        memcpy(line, narrow + 2 * at, 2 * part);
        dml__widen_line(dml_cpu_isa(), entry->dtype, part, line, to + at);
    }
    return status;
}

#endif
