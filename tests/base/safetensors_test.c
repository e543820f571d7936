#define _GNU_SOURCE
#define _FILE_OFFSET_BITS 64
#include "safetensors_files.h"

/* ---- what a file is ---- */

static void a_file_by_hand(void)
{
    const char *header = "{\"b\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[2,10]},"
                         "\"__metadata__\":{\"format\":\"pt\",\"\":\"\\u00e4\"},"
                         "\"a\":{\"data_offsets\" : [0, 2],\"dtype\":\"BF16\", \"shape\":[ ]},"
                         "\"e\":{\"dtype\":\"I64\",\"shape\":[3,0],\"data_offsets\":[10,10]}} \n\t\r";
    dml__safetensors *file = open_by_hand(header, 10);
    float pair[2];
    uint16_t half;
    int pairs;
    if (!file) return;
    CHECK_INT(dml__safetensors_count(file), 3);
    const dml__safetensors_entry *a = dml__safetensors_at(file, 0), *b = dml__safetensors_at(file, 1),
                                 *e = dml__safetensors_at(file, 2);
    CHECK_STRING(a->name, "a");
    CHECK_STRING(a->dtype_text, "BF16");
    CHECK_INT(a->dtype, DML_BF16);
    CHECK_INT(a->ndim, 0);
    CHECK(a->begin == 0 && a->end == 2);
    CHECK_STRING(b->name, "b");
    CHECK_STRING(b->dtype_text, "F32");
    CHECK_INT(b->dtype, DML_F32);
    CHECK(b->ndim == 2 && b->dims[0] == 1 && b->dims[1] == 2);
    CHECK(b->begin == 2 && b->end == 10);
    CHECK_STRING(e->name, "e");
    CHECK_INT(e->dtype, DML_I64);
    CHECK(e->ndim == 2 && e->dims[0] == 3 && e->dims[1] == 0);
    CHECK(e->begin == 10 && e->end == 10);
    CHECK_INT(dml__safetensors_find(file, "a"), 0);
    CHECK_INT(dml__safetensors_find(file, "b"), 1);
    CHECK_INT(dml__safetensors_find(file, "e"), 2);
    CHECK_INT(dml__safetensors_find(file, "c"), -1);
    CHECK_INT(dml__safetensors_find(file, ""), -1);
    CHECK_INT(dml__safetensors_find(file, "f"), -1);
    const dml__metadata *metadata = dml__safetensors_pairs(file, &pairs);
    CHECK_INT(pairs, 2);
    CHECK_STRING(metadata[0].key, "format");
    CHECK_STRING(dml__safetensors_text(file, "format"), "pt");
    CHECK_STRING(dml__safetensors_text(file, ""), "\xc3\xa4");
    CHECK(dml__safetensors_text(file, "nothing") == NULL);
    CHECK_INT(dml__safetensors_read(file, 0, &half, NULL), DML_OK);
    CHECK_INT(half, 0x0201); /* a BF16 isn't ours, but its size is known */
    CHECK_INT(dml__safetensors_read(file, 1, pair, NULL), DML_OK);
    CHECK(pair[0] == dml__load_f32("\3\4\5\6") && pair[1] == dml__load_f32("\7\10\11\12"));
    CHECK_INT(dml__safetensors_read(file, 2, NULL, NULL), DML_OK);
    dml__safetensors_close(file);
}

static void other_files_that_are_fine(void)
{
    check_accepted("{}", 0);
    check_accepted("{ }      ", 0);
    check_accepted("{\"__metadata__\":{}}", 0);
    check_accepted("{\"\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}", 3);
    /* an empty tensor lies before the one that begins where it does, wherever the header has it */
    check_accepted("{\"e\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
                   "\"x\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}",
                   3);
    check_accepted("{\"x\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
                   "\"e\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
                   3);
    dml__safetensors_close(NULL);
}

/* ---- what we write ---- */

/* Whose length's first bytes are those of another format. */
static void headers_as_long_as_a_pickle_begins(void)
{
    for (int length = 640; length <= 1408; length += 256) {
        char header[1500];
        memset(header, ' ', sizeof header);
        memcpy(header, "{}", 2);
        header[length] = '\0';
        check_accepted(header, 0);
    }
}

static void the_bytes_we_write(void)
{
    const uint64_t bits = 0x3ff0000000000002u;
    double number;
    memcpy(&number, &bits, 8);
    const unsigned char small[3] = { 1, 2, 3 };
    const int two[2] = { 3, 1 };
    const dml__tensor tensors[2] = { { "u", DML_U8, 2, two, small }, { "d\"", DML_F64, 0, NULL, &number } };
    const dml__metadata metadata = { "key", "a\nb" };
    const char *header = "{\"__metadata__\":{\"dml.crc32c\":\"00000000\",\"key\":\"a\\u000ab\"},"
                         "\"d\\\"\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]},"
                         "\"u\":{\"dtype\":\"U8\",\"shape\":[3,1],\"data_offsets\":[8,11]}}";
    unsigned char want[400], got[400];
    size_t length = strlen(header), bytes;
    memcpy(want + 8, header, length);
    while (length % 8) want[8 + length++] = ' ';
    dml__store64(want, length);
    memcpy(want + 8 + length, "\2\0\0\0\0\0\xf0\x3f\1\2\3", 11);
    char digits[9];
    snprintf(digits, sizeof digits, "%08x", (unsigned)dml__crc32c(0, want, 8 + length + 11));
    memcpy(strstr((char *)want + 8, "00000000"), digits, 8);

    CHECK_INT(dml__safetensors_store(&memory, NULL, 0, &bytes, tensors, 2, &metadata, 1, NULL), DML_OK);
    CHECK_INT(bytes, 8 + length + 11);
    memset(got, 0xee, sizeof got);
    CHECK_INT(dml__safetensors_store(&memory, got, bytes, &bytes, tensors, 2, &metadata, 1, NULL), DML_OK);
    CHECK(memcmp(got, want, bytes) == 0);
    CHECK_INT(got[bytes], 0xee);
    memset(got, 0xee, sizeof got);
    dml__error error = { DML_OK, "", 0 };
    CHECK_INT(dml__safetensors_store(&memory, got, bytes - 1, &bytes, tensors, 2, &metadata, 1, &error),
              DML_ERROR_MEMORY);
    CHECK_CONTAINS(error.text, "there is room for");
    CHECK_INT(bytes, 8 + length + 11);
    CHECK_INT(got[0], 0xee);
    CHECK_INT(dml__safetensors_store(&memory, NULL, 0, &bytes, NULL, 0, NULL, 0, NULL), DML_OK);
    CHECK_INT(bytes, 8 + 48);
}

enum { KINDS = 8 };

/* Tensors of all dtypes, scalars, empty ones, odd names. */
static void make_tensors(dml__tensor tensors[KINDS])
{
    static const float f32[6] = { 0, -1.5f, 3.25e-30f, 4, 5e30f, -0.0f };
    static const double f64[2] = { 1.0 / 3, -1e300 };
    static const int32_t i32[3] = { -1, 0x01020304, INT32_MIN };
    static const int64_t i64[1] = { 0x0102030405060708 };
    static const uint8_t u8[5] = { 0, 1, 128, 254, 255 };
    static const int d6[] = { 2, 1, 3 }, d2[] = { 2 }, d3[] = { 3, 1 }, d5[] = { 5 },
                     d0[] = { 4, 0, 1000000000 };
    const dml__tensor all[KINDS] = {
        { "weights/\xce\xb1\xf0\x9f\x98\x80", DML_F32, 3, d6, f32 },
        { "\"quoted\"\\\n\t\x01\x7f", DML_F64, 1, d2, f64 },
        { "", DML_I32, 2, d3, i32 },
        { "scalar", DML_I64, 0, NULL, i64 },
        { "bytes", DML_U8, 1, d5, u8 },
        { "empty", DML_F64, 3, d0, NULL },
        { "empty too", DML_U8, 3, d0, u8 },
        { "scalar float", DML_F32, 0, NULL, f32 + 1 },
    };
    memcpy(tensors, all, sizeof all);
}

static void check_same(dml__safetensors *file, const dml__tensor *tensors, int count)
{
    CHECK(file != NULL);
    if (!file) return;
    CHECK_INT(dml__safetensors_count(file), count);
    for (int t = 0; t < count; t++) {
        const int i = dml__safetensors_find(file, tensors[t].name);
        CHECK(i >= 0);
        if (i < 0) return;
        const dml__safetensors_entry *entry = dml__safetensors_at(file, i);
        uint64_t bytes = dml_dtype_size(tensors[t].dtype);
        CHECK_STRING(entry->name, tensors[t].name);
        CHECK_INT(entry->dtype, tensors[t].dtype);
        CHECK_STRING(entry->dtype_text, dml__safetensors_dtype(tensors[t].dtype));
        CHECK_INT(entry->ndim, tensors[t].ndim);
        for (int d = 0; d < tensors[t].ndim; d++) {
            CHECK(entry->dims[d] == (uint64_t)tensors[t].dims[d]);
            bytes *= (uint64_t)tensors[t].dims[d];
        }
        CHECK(entry->end - entry->begin == bytes);
        CHECK(entry->begin % dml_dtype_size(tensors[t].dtype) == 0);
        unsigned char *data = (unsigned char *)malloc(bytes + 1);
        data[bytes] = 0xee;
        CHECK_INT(dml__safetensors_read(file, i, data, NULL), DML_OK);
        CHECK(bytes == 0 || memcmp(data, tensors[t].data, bytes) == 0);
        CHECK_INT(data[bytes], 0xee);
        free(data);
    }
}

static void round_trips(void)
{
    dml__tensor tensors[KINDS];
    unsigned char bytes[2000];
    size_t size;
    dml__error error = { DML_OK, "", 0 };
    dml__safetensors *file;
    const dml__metadata metadata[2] = { { "note", "\"\\/\b\x1f\xc3\xa9" }, { "", "" } };
    const char *path = in_folder("all.safetensors");
    make_tensors(tensors);
    for (int count = 0; count <= KINDS; count++) {
        CHECK_INT(
            dml__safetensors_store(&memory, bytes, sizeof bytes, &size, tensors, count, metadata, 2, &error),
            DML_OK);
        CHECK_INT(dml__safetensors_open_memory(&memory, "here", bytes, size, &file, &error), DML_OK);
        check_same(file, tensors, count);
        CHECK_STRING(dml__safetensors_text(file, "note"), metadata[0].value);
        CHECK_STRING(dml__safetensors_text(file, ""), "");
        dml__safetensors_close(file);
        CHECK_INT(dml__safetensors_save(&memory, path, tensors, count, metadata, 2, &error), DML_OK);
        CHECK_INT(dml__safetensors_open_file(&memory, path, &file, &error), DML_OK);
        check_same(file, tensors, count);
        dml__safetensors_close(file);
    }
    CHECK_STRING(error.text, "");
    CHECK_INT(unlink(path), 0);
}

static void a_thousand_tensors(void)
{
    enum { N = 1000, ROOM = N * 120 };
    static char names[N][16];
    static dml__tensor tensors[N];
    static int order[N];
    static float data[N];
    static const int one = 1;
    unsigned state = 7;
    size_t size;
    dml__safetensors *file = NULL;
    unsigned char *bytes = (unsigned char *)malloc(ROOM);
    for (int i = 0; i < N; i++) order[i] = i;
    for (int i = N - 1; i > 0; i--) {
        const int j = (int)(test_random(&state) % (unsigned)(i + 1)), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "t%d", order[i]);
        data[i] = (float)i;
        tensors[i].name = names[i];
        tensors[i].dtype = DML_F32;
        tensors[i].ndim = 1;
        tensors[i].dims = &one;
        tensors[i].data = &data[i];
    }
    CHECK_INT(dml__safetensors_store(&memory, bytes, ROOM, &size, tensors, N, NULL, 0, NULL), DML_OK);
    CHECK_INT(dml__safetensors_open_memory(&memory, "here", bytes, size, &file, NULL), DML_OK);
    check_same(file, tensors, N);
    for (int i = 0; i < N; i++) CHECK_STRING(dml__safetensors_at(file, i)->name, names[i]);
    dml__safetensors_close(file);
    free(bytes);
}

static void check_not_written(const dml__tensor *tensors, int count, const dml__metadata *metadata, int pairs,
                              const char *part)
{
    unsigned char bytes[1000];
    size_t size = 1;
    dml__error error = { DML_OK, "", 0 };
    CHECK_INT(
        dml__safetensors_store(&memory, bytes, sizeof bytes, &size, tensors, count, metadata, pairs, &error),
        DML_ERROR_ARGUMENT);
    CHECK_INT(size, 0);
    CHECK_CONTAINS(error.text, part);
    CHECK_INT(dml__safetensors_save(&memory, in_folder("no"), tensors, count, metadata, pairs, NULL),
              DML_ERROR_ARGUMENT);
    CHECK(access(in_folder("no"), F_OK) != 0);
}

static void what_cant_be_written(void)
{
    const float x[2] = { 1, 2 };
    const int two = 2, negative = -1;
    int many[DML__SAFETENSORS_DIMS + 1], huge[8];
    const dml__tensor good = { "x", DML_F32, 1, &two, x };
    dml__tensor bad[3] = { good, good, good };
    dml__metadata text[3] = { { "a", "" }, { "b", "" }, { "a", "" } };
    for (int i = 0; i <= DML__SAFETENSORS_DIMS; i++) many[i] = 1;
    for (int i = 0; i < 8; i++) huge[i] = 1 << 30;
    bad[1].name = "y";
    check_not_written(bad, 3, NULL, 0, "two tensors are named \"x\"");
    check_not_written(bad, -1, NULL, 0, "-1 tensors");
    check_not_written(bad, 1, text, -1, "-1 texts");
    check_not_written(bad, 1, text, 3, "key \"a\"");
    text[1].key = "dml.crc32c";
    check_not_written(bad, 1, text, 2, "by itself");
    text[1].key = "\xff";
    check_not_written(bad, 1, text, 2, "\"?\" isn't UTF-8");
    text[1].key = "b";
    text[1].value = "\xc0\x80";
    check_not_written(bad, 1, text, 2, "\"b\" isn't UTF-8");
    text[1].value = NULL;
    check_not_written(bad, 1, text, 2, "lacks");
    text[1].key = NULL;
    text[1].value = "";
    check_not_written(bad, 1, text, 2, "lacks");
    bad[0].name = NULL;
    check_not_written(bad, 1, NULL, 0, "tensor 0 of those to be written has no name");
    bad[0].name = "__metadata__";
    check_not_written(bad, 1, NULL, 0, "__metadata__");
    bad[0].name = "\xed\xa0\x80";
    check_not_written(bad, 1, NULL, 0, "isn't UTF-8");
    bad[0] = good;
    bad[0].dtype = DML__DTYPE_COUNT;
    check_not_written(bad, 1, NULL, 0, "which is none");
    bad[0] = good;
    bad[0].ndim = -1;
    check_not_written(bad, 1, NULL, 0, "-1 dimensions");
    bad[0].ndim = DML__SAFETENSORS_DIMS + 1;
    bad[0].dims = many;
    check_not_written(bad, 1, NULL, 0, "65 dimensions, not 0 to 64");
    bad[0].dims = &negative;
    bad[0].ndim = 1;
    check_not_written(bad, 1, NULL, 0, "a dimension of -1");
    bad[0].dims = huge;
    bad[0].ndim = 8;
    check_not_written(bad, 1, NULL, 0, "larger than memory");
    huge[7] = 0; /* other readers multiply what comes before the 0 */
    check_not_written(bad, 1, NULL, 0, "larger than memory");
    bad[0].ndim = 1;
    if (sizeof(size_t) == 4) check_not_written(bad, 1, NULL, 0, "larger than memory");
    bad[0] = good;
    bad[0].data = NULL;
    check_not_written(bad, 1, NULL, 0, "has no data");
    bad[0] = good;
    bad[0].dims = many;
    bad[0].ndim = DML__SAFETENSORS_DIMS; /* just good enough */
    size_t size;
    CHECK_INT(dml__safetensors_store(&memory, NULL, 0, &size, bad, 1, NULL, 0, NULL), DML_OK);
}

/* The header may have 100,000,000 bytes, and not one more. */
static void the_longest_header(void)
{
    const size_t room = DML__SAFETENSORS_HEADER;
    const size_t frame = strlen("{\"__metadata__\":{\"dml.crc32c\":\"00000000\",\"\":\"\"}}");
    dml__metadata text;
    size_t size;
    dml__safetensors *file = NULL;
    char *bytes = (char *)malloc(room + 9);
    dml__error error = { DML_OK, "", 0 };
    memset(bytes, ' ', room + 9);
    memcpy(bytes + 8, "{}", 2);
    dml__store64(bytes, room);
    CHECK_INT(dml__safetensors_open_memory(&memory, "here", bytes, room + 8, &file, NULL), DML_OK);
    dml__safetensors_close(file);
    dml__store64(bytes, room + 1);
    CHECK_INT(dml__safetensors_open_memory(&memory, "here", bytes, room + 9, &file, &error),
              DML_ERROR_FORMAT);
    CHECK_CONTAINS(error.text, "100000001 bytes, more than the 100000000");
    text.key = "";
    text.value = bytes;
    bytes[0] = '"'; /* so that the value begins with one that takes two bytes */
    memset(bytes + 1, 'x', room);
    bytes[room - frame - 1] = '\0';
    CHECK_INT(dml__safetensors_store(&memory, NULL, 0, &size, NULL, 0, &text, 1, NULL), DML_OK);
    CHECK_INT(size, room + 8);
    bytes[room - frame - 1] = 'x';
    bytes[room - frame] = '\0';
    error.status = DML_OK;
    CHECK_INT(dml__safetensors_store(&memory, NULL, 0, &size, NULL, 0, &text, 1, &error), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(error.text, "more than the 100000000");
    free(bytes);
}

/* ---- memory ---- */

static int allocations, live, fail_at;

static void *counting_allocate(void *user, size_t bytes)
{
    (void)user;
    if (++allocations == fail_at) return NULL;
    live++;
    return malloc(bytes);
}

static void counting_release(void *user, void *pointer)
{
    (void)user;
    live--;
    free(pointer);
}

static void each_allocation_may_fail(void)
{
    const dml_allocator allocator = { counting_allocate, counting_release, NULL };
    dml__memory counted;
    dml__tensor tensors[KINDS];
    unsigned char bytes[2000];
    const char *path = in_folder("failing.safetensors");
    dml__memory_init(&counted, &allocator, NULL, 0);
    make_tensors(tensors);
    for (int way = 0; way < 4; way++) {
        dml_status status = DML_ERROR_MEMORY;
        for (fail_at = 1; status != DML_OK && fail_at < 50; fail_at++) {
            dml__error error = { DML_OK, "", 0 };
            dml__safetensors *file = NULL;
            size_t size = 0;
            allocations = live = 0;
            const int before = fail_at;
            if (way == 0)
                status = dml__safetensors_store(&counted, bytes, sizeof bytes, &size, tensors, KINDS, NULL, 0,
                                                &error);
            if (way == 1) status = dml__safetensors_save(&counted, path, tensors, KINDS, NULL, 0, &error);
            if (way == 2) status = dml__safetensors_open_file(&counted, path, &file, &error);
            if (way == 3) {
                dml__safetensors_store(&memory, bytes, sizeof bytes, &size, tensors, KINDS, NULL, 0, NULL);
                status = dml__safetensors_open_memory(&counted, "here", bytes, size, &file, &error);
            }
            CHECK(before == fail_at);
            if (status != DML_OK) {
                CHECK_INT(status, DML_ERROR_MEMORY);
                CHECK_CONTAINS(error.text, "no memory");
                CHECK(file == NULL);
                if (way == 1) CHECK(access(path, F_OK) != 0);
            }
            dml__safetensors_close(file);
            CHECK_INT(live, 0);
        }
        CHECK_INT(status, DML_OK);
        CHECK_INT(fail_at - 2, way < 2 ? 2 : 8);
    }
    fail_at = 0;
    CHECK_INT(unlink(path), 0);
}

/* The weights may be much larger than the memory that is there for reading and writing them. */
static void little_memory(void)
{
    enum { N = 1 << 20 };
    static char buffer[4096];
    const int n = N;
    float *x = (float *)malloc(N * sizeof *x), *y = (float *)malloc(N * sizeof *y);
    unsigned state = 3;
    dml__memory small;
    dml__safetensors *file = NULL;
    const dml__tensor tensor = { "x", DML_F32, 1, &n, x };
    const char *path = in_folder("large.safetensors");
    test_fill(&state, x, N);
    dml__memory_init(&small, NULL, buffer, sizeof buffer);
    CHECK_INT(dml__safetensors_save(&small, path, &tensor, 1, NULL, 0, NULL), DML_OK);
    CHECK_INT(dml__safetensors_open_file(&small, path, &file, NULL), DML_OK);
    if (file) {
        CHECK_INT(dml__safetensors_read(file, 0, y, NULL), DML_OK);
        CHECK(memcmp(x, y, N * sizeof *x) == 0);
    }
    dml__safetensors_close(file);
    dml__error error = { DML_OK, "", 0 };
    dml__memory_init(&small, NULL, buffer, 700);
    CHECK_INT(dml__safetensors_open_file(&small, path, &file, &error), DML_ERROR_MEMORY);
    CHECK_CONTAINS(error.text, "no memory");
    unlink(path);
    free(x);
    free(y);
}

/* ---- files ---- */

#ifndef _WIN32

static void write_image(const char *path, size_t size)
{
    FILE *to = fopen(path, "wb");
    CHECK(to && fwrite(image, 1, size, to) == size);
    if (to) fclose(to);
}

static int open_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;
    while (dir && readdir(dir)) count++;
    if (dir) closedir(dir);
    return count;
}

static void files_that_fail(void)
{
    const char *path = in_folder("short.safetensors");
    const int descriptors = open_descriptors();
    dml__error error = { DML_OK, "", 0 };
    dml__safetensors *file = NULL;
    char data[100];
    CHECK_INT(dml__safetensors_open_file(&memory, path, &file, &error), DML_ERROR_IO);
    CHECK_CONTAINS(error.text, "No such file");
    error.status = DML_OK;
    CHECK_INT(dml__safetensors_open_file(&memory, folder, &file, &error), DML_ERROR_IO);
    CHECK_CONTAINS(error.text, "no plain file");
    const size_t size = by_hand("{\"x\":" TENSOR("U8", "9", "0,9") "}", 9);
    write_image(path, size - 1);
    error.status = DML_OK;
    CHECK_INT(dml__safetensors_open_file(&memory, path, &file, &error), DML_ERROR_FORMAT);
    CHECK_CONTAINS(error.text, path);
    write_image(path, size);
    error.status = DML_OK;
    CHECK_INT(dml__safetensors_open_file(&memory, path, &file, &error), DML_OK);
    CHECK(truncate(path, (off_t)size - 1) == 0); /* behind our back */
    CHECK_INT(dml__safetensors_read(file, 0, data, &error), DML_ERROR_IO);
    CHECK_CONTAINS(error.text, "became shorter");
    dml__safetensors_close(file);
    CHECK_INT(open_descriptors(), descriptors);
    unlink(path);
}

/* A full disk, played by a limit on the size of files. */
static void a_failed_write_keeps_the_old_file(void)
{
    enum { N = 100000 };
    static float x[N];
    const int n = N;
    const dml__tensor tensor = { "x", DML_F32, 1, &n, x };
    const int descriptors = open_descriptors();
    const char *path = in_folder("kept.safetensors");
    struct rlimit old, low;
    dml__error error = { DML_OK, "", 0 };
    dml__safetensors *file = NULL;
    CHECK_INT(dml__safetensors_save(&memory, path, &tensor, 0, NULL, 0, NULL), DML_OK);
    CHECK(getrlimit(RLIMIT_FSIZE, &old) == 0);
    low = old;
    low.rlim_cur = 10000;
    signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &low) == 0);
    CHECK_INT(dml__safetensors_save(&memory, path, &tensor, 1, NULL, 0, &error), DML_ERROR_IO);
    CHECK(setrlimit(RLIMIT_FSIZE, &old) == 0);
    signal(SIGXFSZ, SIG_DFL);
    CHECK_CONTAINS(error.text, "kept.safetensors");
    CHECK_INT(dml__safetensors_open_file(&memory, path, &file, NULL), DML_OK);
    CHECK_INT(dml__safetensors_count(file), 0);
    dml__safetensors_close(file);
    CHECK_INT(open_descriptors(), descriptors);
    unlink(path);
    CHECK_INT(rmdir(folder), 0); /* nothing was left in it */
    CHECK_INT(dml__safetensors_save(&memory, path, &tensor, 1, NULL, 0, NULL), DML_ERROR_IO);
    CHECK(mkdtemp(strcpy(folder, "/tmp/dml-safetensors-test-XXXXXX")) != NULL);
}

/* Offsets beyond 4 GiB, also on 32 bits; the file is a hole but for its ends. */
static void a_file_of_six_gibibytes(void)
{
    const char *path = in_folder("six.safetensors");
    const char *header = "{\"big\":" TENSOR("U8", "6,1073741824", "0,6442450944") ",\"last\":" TENSOR(
        "F32", "1", "6442450944,6442450948") "}";
    const size_t size = by_hand(header, 0);
    const float value = 1.5f;
    unsigned char last[4];
    dml__safetensors *file = NULL;
    dml__error error = { DML_OK, "", 0 };
    write_image(path, size);
    dml__store_f32(last, value);
    const int descriptor = open(path, O_WRONLY);
    const bool written = descriptor >= 0 && pwrite(descriptor, last, 4, (off_t)size + 6442450944) == 4;
    if (descriptor >= 0) close(descriptor);
    if (!written) {
        SKIP("/tmp takes no file of 6 GiB with a hole");
    } else {
        float got = 0;
        CHECK_INT(dml__safetensors_open_file(&memory, path, &file, &error), DML_OK);
        CHECK_STRING(error.text, "");
        if (file) CHECK_INT(dml__safetensors_read(file, 1, &got, &error), DML_OK);
        CHECK(got == value);
        if (file && sizeof(size_t) == 4)
            CHECK_INT(dml__safetensors_read(file, 0, NULL, &error), DML_ERROR_MEMORY);
        dml__safetensors_close(file);
    }
    unlink(path);
}

#else

static void files_that_fail(void)
{
    SKIP("an open file can't be cut short on Windows");
}

static void a_failed_write_keeps_the_old_file(void)
{
    SKIP("Windows has no limit on the size of files");
}

static void a_file_of_six_gibibytes(void)
{
    SKIP("files on Windows have no holes unless asked for");
}

#endif

static void all(void)
{
    RUN(a_file_by_hand);
    RUN(other_files_that_are_fine);
    RUN(headers_as_long_as_a_pickle_begins);
    RUN(the_bytes_we_write);
    RUN(round_trips);
    RUN(a_thousand_tensors);
    RUN(what_cant_be_written);
    RUN(the_longest_header);
    RUN(each_allocation_may_fail);
    RUN(little_memory);
    RUN(files_that_fail);
    RUN(a_failed_write_keeps_the_old_file);
    RUN(a_file_of_six_gibibytes);
}

int main(void)
{
    return with_folder(all, "base/safetensors");
}
