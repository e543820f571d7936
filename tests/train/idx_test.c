#include "train/idx.h"

#include "../test.h"

/* A file of 3 images of 2 x 5. */
enum { HEADER = 16, VALID = HEADER + 30 };
static void make_valid(unsigned char bytes[VALID])
{
    static const unsigned char header[HEADER] = { 0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 5 };
    memcpy(bytes, header, HEADER);
    for (int i = 0; i < VALID - HEADER; i++) bytes[HEADER + i] = (unsigned char)(7 * i);
}

static dml_context *open_small(void)
{
    dml_options options;
    memset(&options, 0, sizeof options);
    options.threads = 1;
    return dml_open(&options);
}

/* Writes a file for one test and returns its name. */
static const char *write_file(const unsigned char *bytes, size_t size)
{
    static char path[256];
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/idx_test.tmp", folder ? folder : "/tmp");
    FILE *file = fopen(path, "wb");
    CHECK(file && fwrite(bytes, 1, size, file) == size);
    if (file) fclose(file);
    return path;
}

static void a_file_is_read(void)
{
    dml_context *context = open_small();
    unsigned char bytes[VALID];
    make_valid(bytes);
    const char *path = write_file(bytes, VALID);
    dml_idx idx;
    CHECK_INT(dml_idx_load(context, path, &idx), DML_OK);
    CHECK_STRING(dml_error(context), "");
    CHECK_INT(idx.ndim, 3);
    CHECK_INT(idx.dims[0], 3);
    CHECK_INT(idx.dims[1], 2);
    CHECK_INT(idx.dims[2], 5);
    CHECK_INT(idx.dims[3], 1);
    CHECK(idx.data && memcmp(idx.data, bytes + HEADER, VALID - HEADER) == 0);
    dml_idx_free(context, &idx);
    CHECK(!idx.data && !idx.ndim);
    dml_idx_free(context, &idx);
    remove(path);
    dml_close(context);
}

static void a_missing_file_is_named(void)
{
    dml_context *context = open_small();
    dml_idx idx;
    CHECK_INT(dml_idx_load(context, "/no/such/train-images", &idx), DML_ERROR_IO);
    CHECK_CONTAINS(dml_error(context), "/no/such/train-images");
    CHECK(!idx.data);
    CHECK_INT(dml_idx_load(NULL, "anything", &idx), DML_ERROR_ARGUMENT);
    dml_close(context);
}

static void without_a_name(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_idx idx;
    CHECK_INT(dml_idx_parse(context, NULL, NULL, 0, &idx), DML_ERROR_FORMAT);
    CHECK_CONTAINS(dml_error(context), "what was given is not an IDX file: it has less than 4 bytes");
    dml_close(context);
}

/* Parses, checks the sentence, and clears it. */
static void refused(dml_context *context, const unsigned char *bytes, size_t size, const char *says)
{
    dml_idx idx;
    CHECK_INT(dml_idx_parse(context, "digits.idx", bytes, size, &idx), DML_ERROR_FORMAT);
    CHECK_CONTAINS(dml_error(context), "digits.idx");
    CHECK_CONTAINS(dml_error(context), says);
    CHECK(!idx.data && !idx.ndim);
    dml_clear_error(context);
}

static void foreign_bytes_are_refused(void)
{
    dml_context *context = open_small();
    unsigned char bytes[VALID + 1];
    make_valid(bytes);
    bytes[VALID] = 0;
    for (size_t size = 0; size < VALID; size++)
        refused(context, bytes, size, size < 4 ? "less than 4" : "cut short");
    refused(context, bytes, VALID + 1, "goes on after its end");
    refused(context, NULL, 0, "less than 4 bytes");

    static const struct {
        int at, value;
        const char *says;
    } cases[] = {
        { 0, 1, "not an IDX file" },  { 1, 1, "not an IDX file" },
        { 2, 7, "not an IDX file" },  { 2, 0x0D, "holds 32-bit floats" },
        { 3, 0, "has 0 dimensions" }, { 3, 5, "has 5 dimensions" },
        { 7, 0, "dimension 0 is 0" }, { 15, 0, "dimension 2 is 0" },
        { 4, 0x80, "cut short" }, /* more than an int holds */
        { 7, 4, "cut short" },        { 7, 2, "goes on after its end" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        make_valid(bytes);
        bytes[cases[i].at] = (unsigned char)cases[i].value;
        refused(context, bytes, VALID, cases[i].says);
    }
    static const unsigned char packed[] = { 0x1F, 0x8B, 8, 0, 0, 0, 0, 0 };
    refused(context, packed, sizeof packed, "gzip");
    /* 2^31 - 1 cubed and more wraps around any integer */
    unsigned char huge[4 + 16 + 1] = { 0, 0, 8, 4 };
    for (int i = 0; i < 4; i++) memset(huge + 4 + 4 * i, 0xFF, 4), huge[4 + 4 * i] = 0x7F;
    refused(context, huge, sizeof huge, "cut short");
    for (int i = 0; i < 4; i++) memset(huge + 4 + 4 * i, 0, 4), huge[4 + 4 * i + 1] = 1; /* 65536^4 = 2^64 */
    refused(context, huge, sizeof huge, "cut short");
    dml_close(context);
}

/* Random damage to a valid file: it is refused with a sentence, or what it says lies inside it. */
static void damaged_files_do_no_harm(void)
{
    dml_context *context = open_small();
    unsigned state = 1;
    int accepted = 0, refusals = 0;
    for (int round = 0; round < 200000; round++) {
        unsigned char valid[VALID];
        make_valid(valid);
        const size_t size = test_random(&state) % 4 ? VALID : test_random(&state) % (VALID + 1);
        for (unsigned n = test_random(&state) % 4; n > 0; n--)
            valid[test_random(&state) % (test_random(&state) % 2 ? HEADER : VALID)] =
                (unsigned char)(test_random(&state) >> test_random(&state) % 8);
        unsigned char *bytes =
            (unsigned char *)malloc(size ? size : 1); /* so that a sanitizer sees its end */
        memcpy(bytes, valid, size);
        dml_idx idx;
        const dml_status status = dml_idx_parse(context, "damaged", bytes, size, &idx);
        if (status == DML_OK) {
            size_t elements = 1;
            for (int i = 0; i < DML_IDX_DIMS; i++) elements *= (size_t)idx.dims[i];
            CHECK(idx.data + elements == bytes + size);
            accepted++;
        } else {
            CHECK(status == DML_ERROR_FORMAT && dml_error(context)[0] && !idx.data);
            dml_clear_error(context);
            refusals++;
        }
        free(bytes);
    }
    CHECK(accepted > 1000 && refusals > 1000);
    dml_close(context);
}

int main(void)
{
    RUN(without_a_name);
    RUN(a_file_is_read);
    RUN(a_missing_file_is_named);
    RUN(foreign_bytes_are_refused);
    RUN(damaged_files_do_no_harm);
    return test_report("train/idx");
}
