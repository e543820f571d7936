#ifndef DML_BASE_SAFETENSORS_C
#define DML_BASE_SAFETENSORS_C

#include "base/safetensors.h"

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/file.h"
#include "base/float16.h"
#include "base/json.h"
#include "base/safetensors_internal.h"

#include <string.h>

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
    const size_t width = dml__element_width(entry->dtype_text);
    dml__swap_bytes(to, to, (size_t)bytes / width, width);
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
