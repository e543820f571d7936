#include "train/cifar.h"

#include <limits.h>

#include "../test.h"

enum { RECORDS = 3, VALID = RECORDS * DML_CIFAR_RECORD };

static dml_context *open_small(void)
{
    dml_options options;
    memset(&options, 0, sizeof options);
    options.threads = 1;
    return dml_open(&options);
}

/* Labels 7, 8, 9; a pixel's byte tells where it lies. */
static void make_valid(unsigned char bytes[VALID])
{
    for (int i = 0; i < VALID; i++) bytes[i] = (unsigned char)(31 * (i % DML_CIFAR_RECORD) + i / 1021);
    for (int r = 0; r < RECORDS; r++) bytes[r * DML_CIFAR_RECORD] = (unsigned char)(7 + r);
}

static void a_file_is_read(void)
{
    static unsigned char bytes[VALID];
    char path[256];
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/cifar_test.tmp", folder ? folder : "/tmp");
    make_valid(bytes);
    FILE *file = fopen(path, "wb");
    CHECK(file && fwrite(bytes, 1, VALID, file) == VALID);
    if (file) fclose(file);
    dml_context *context = open_small();
    dml_cifar cifar;
    CHECK_INT(dml_cifar10_load(context, path, &cifar), DML_OK);
    CHECK_STRING(dml_error(context), "");
    CHECK_INT(cifar.count, RECORDS);
    CHECK(cifar.records && memcmp(cifar.records, bytes, VALID) == 0);
    dml_cifar_free(context, &cifar);
    CHECK(!cifar.records && !cifar.count);
    dml_cifar_free(context, &cifar);
    remove(path);
    dml_close(context);
}

static void a_missing_file_is_named(void)
{
    dml_context *context = open_small();
    dml_cifar cifar;
    CHECK_INT(dml_cifar10_load(context, "/no/such/data_batch_1.bin", &cifar), DML_ERROR_IO);
    CHECK_CONTAINS(dml_error(context), "/no/such/data_batch_1.bin");
    CHECK(!cifar.records);
    CHECK_INT(dml_cifar10_load(NULL, "anything", &cifar), DML_ERROR_ARGUMENT);
    dml_clear_error(context);
    CHECK_INT(dml_cifar10_parse(context, "nothing", NULL, 1, &cifar), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_error(context), "dml_cifar10_parse");
    dml_close(context);
}

static void refused(const unsigned char *bytes, size_t size, const char *says)
{
    dml_context *context = open_small();
    dml_cifar cifar;
    CHECK_INT(dml_cifar10_parse(context, "batch.bin", bytes, size, &cifar), DML_ERROR_FORMAT);
    CHECK_CONTAINS(dml_error(context), "batch.bin");
    CHECK_CONTAINS(dml_error(context), says);
    CHECK(!cifar.records && !cifar.count);
    dml_close(context);
}

static void foreign_bytes_are_refused(void)
{
    static unsigned char bytes[VALID + 1];
    make_valid(bytes);
    bytes[VALID] = 0;
    refused(NULL, 0, "holds 0 bytes");
    refused(bytes, 1, "whole records of 3073");
    refused(bytes, DML_CIFAR_RECORD - 1, "holds 3072 bytes");
    refused(bytes, VALID - 1, "cut short");
    refused(bytes, VALID + 1, "holds 9220 bytes");
    bytes[2 * DML_CIFAR_RECORD] = 10;
    refused(bytes, VALID, "label 2 is 10; they are 0 to 9");
    bytes[0] = 0x1F, bytes[1] = 0x8B;
    refused(bytes, VALID, "packed with gzip");
}

/* Random sizes and damage: refused, or what it says lies inside. */
static void damaged_files_do_no_harm(void)
{
    static unsigned char valid[VALID];
    make_valid(valid);
    dml_context *context = open_small();
    unsigned state = 1;
    int accepted = 0, refusals = 0;
    for (int round = 0; round < 3000; round++) {
        const size_t size = test_random(&state) % 2
                                ? test_random(&state) % (VALID + 1)
                                : test_random(&state) % (RECORDS + 1) * (size_t)DML_CIFAR_RECORD;
        unsigned char *bytes = (unsigned char *)malloc(size ? size : 1); /* a sanitizer sees its end */
        memcpy(bytes, valid, size);
        const size_t at = test_random(&state) % RECORDS * DML_CIFAR_RECORD;
        if (at < size) bytes[at] = (unsigned char)(test_random(&state) % 20);
        dml_cifar cifar;
        if (dml_cifar10_parse(context, "damaged", bytes, size, &cifar) == DML_OK) {
            float image[3 * DML_CIFAR_PLANE];
            CHECK_INT(cifar.count, size / DML_CIFAR_RECORD);
            for (int i = 0; i < cifar.count; i++) CHECK(cifar.records[i * DML_CIFAR_RECORD] < 10);
            dml_cifar_image(cifar.records + (cifar.count - 1) * DML_CIFAR_RECORD,
                            dml_cifar_random_change(1, 2, (uint64_t)round, 40), 0, 1, image);
            accepted++;
        } else {
            CHECK(dml_error(context)[0] && !cifar.records);
            dml_clear_error(context);
            refusals++;
        }
        free(bytes);
    }
    CHECK(accepted > 300 && refusals > 300);
    dml_close(context);
}

static void an_image_is_moved_and_mirrored(void)
{
    static unsigned char record[VALID];
    static float image[3 * DML_CIFAR_PLANE];
    const int side = DML_CIFAR_SIDE;
    make_valid(record);
    for (int down = -4; down <= 4; down += 2)
        for (int right = -4; right <= 4; right += 4)
            for (int mirrored = 0; mirrored < 2; mirrored++) {
                const dml_cifar_change change = { down, right, mirrored != 0 };
                dml_cifar_image(record, change, 100, 50, image);
                int wrong = 0, outside = 0;
                for (int p = 0; p < 3 * side * side; p++) {
                    const int plane = p % 3, h = p / 3 / side, w = p / 3 % side;
                    const int from_h = h - down, from_w = (mirrored ? 31 - w : w) - right;
                    float want = 0;
                    if (from_h < 0 || from_h > 31 || from_w < 0 || from_w > 31)
                        outside++;
                    else
                        want = (record[1 + plane * 1024 + from_h * 32 + from_w] - 100.0f) / 50;
                    wrong += !(fabsf(image[p] - want) <= 1e-6f);
                }
                CHECK_INT(wrong, 0);
                CHECK_INT(outside, 3 * (1024 - (32 - abs(down)) * (32 - abs(right))));
            }
}

static void an_image_is_moved_out_of_sight(void)
{
    static unsigned char record[VALID];
    static float image[3 * DML_CIFAR_PLANE];
    make_valid(record);
    for (int i = 0; i < 4; i++) {
        const dml_cifar_change change = { i % 2 ? INT_MAX : INT_MIN, i / 2 ? INT_MAX : INT_MIN, i == 3 };
        image[0] = image[3 * DML_CIFAR_PLANE - 1] = 1;
        dml_cifar_image(record, change, 100, 50, image);
        for (int p = 0; p < 3 * DML_CIFAR_PLANE; p++) CHECK(image[p] == 0);
    }
}

/* The same for the same numbers, otherwise any; each of the 2 x 81 about as often. */
static void changes_are_of_their_sample(void)
{
    int seen[9][9][2] = { { { 0 } } }, same = 0;
    for (int i = 0; i < 16200; i++) {
        const dml_cifar_change c = dml_cifar_random_change(3, 5, (uint64_t)i, 4),
                               again = dml_cifar_random_change(3, 5, (uint64_t)i, 4),
                               later = dml_cifar_random_change(3, 6, (uint64_t)i, 4);
        CHECK(c.down >= -4 && c.down <= 4 && c.right >= -4 && c.right <= 4);
        CHECK(c.down == again.down && c.right == again.right && c.mirrored == again.mirrored);
        same += c.down == later.down && c.right == later.right && c.mirrored == later.mirrored;
        seen[c.down + 4][c.right + 4][c.mirrored]++;
    }
    for (int i = 0; i < 162; i++) CHECK(seen[i / 18][i / 2 % 9][i % 2] > 50);
    CHECK(same < 200);
    const dml_cifar_change none = dml_cifar_random_change(1, 1, 1, 0);
    CHECK(none.down == 0 && none.right == 0);
}

int main(void)
{
    RUN(a_file_is_read);
    RUN(a_missing_file_is_named);
    RUN(foreign_bytes_are_refused);
    RUN(damaged_files_do_no_harm);
    RUN(an_image_is_moved_and_mirrored);
    RUN(an_image_is_moved_out_of_sight);
    RUN(changes_are_of_their_sample);
    return test_report("train/cifar");
}
