/* What is no safetensors file, or a damaged one. */
#define _GNU_SOURCE
#define _FILE_OFFSET_BITS 64
#include "safetensors_files.h"

/* ---- what is refused ---- */

static void other_formats(void)
{
    static const struct {
        const char *begin, *part;
    } files[] = {
        { "PK\3\4abcdefghi", "zip archive" },
        { "\x80\2}q\1X\1", "Python pickle" },
        { "\x80\3}q\0", "Python pickle" },
        { "\x80\4\x95q\0", "Python pickle" },
        { "\x80\5\x95q\0", "Python pickle" },
        { "DMLCKPT\n\1", "checkpoint of dml 0.1" },
        { "\x89PNG\r\n\x1a\n{", "PNG" },
        { "\x93NUMPY\1\0{", "NumPy" },
        { "\x89HDF\r\n\x1a\n", "HDF5" },
        { "GGUF\3\0\0\0", "GGUF" },
        { "\2\0\0\0\0\0\0\0[]", "byte 8, where its header would begin" },
        { "{\"a\":{\"dtype\"", "byte 8, where its header would begin" },
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        memset(image, files[i].begin[0] == 2 ? 0 : 'q', 20);
        memcpy(image, files[i].begin, strlen(files[i].begin));
        if (image[0] == 2) image[8] = '[', image[9] = ']';
        check_refused_image(20, files[i].part);
        check_refused_image(20, "is no safetensors file");
    }
    memset(image, 0, 20);
    check_refused_image(0, "only 0 bytes");
    check_refused_image(8, "only 8 bytes");
    check_refused_image(20, "is no safetensors file");
    memcpy(image, "GGUF", 4);
    check_refused_image(4, "GGUF");
    check_refused_image(3, "only 3 bytes");
}

static void headers_that_arent_right(void)
{
    by_hand("{}", 0);
    dml__store64(image, 3);
    check_refused_image(10, "its header has 3 bytes, the whole file 10");
    dml__store64(image, UINT64_MAX);
    check_refused_image(10, "18446744073709551615");
    dml__store64(image, 0);
    check_refused_image(10, "at byte 8");
    dml__store64(image, 1);
    check_refused_image(10, "at byte 9");
    check_refused("{}x", 0, "the end was expected at byte 10");
    check_refused("{}{}", 0, "the end was expected at byte 10");
    check_refused("{,}", 0, "a string was expected at byte 9");
    check_refused("{\"a\":" TENSOR("U8", "1", "0,1") ",}", 1, "a string was expected");
    check_refused("{\"a\":" TENSOR("U8", "1", "0,1") " \"b\"}", 1, "',' or '}' was expected");
    check_refused("{\"a\" " TENSOR("U8", "1", "0,1") "}", 1, "':' was expected");
    check_refused("{\"a\":[]}", 0, "'{' was expected at byte 13");
    check_refused("{\"a\":null}", 0, "'{' was expected");
    check_refused("{\"a\":" TENSOR("U8", "1,", "0,1") "}", 1, "a whole number was expected");
    check_refused("{\"a\":" TENSOR("U8", "-1", "0,1") "}", 1, "a whole number was expected");
    check_refused("{\"a\":" TENSOR("U8", "1 1", "0,1") "}", 1, "',' or ']' was expected");
    check_refused("{\"a\":" TENSOR("U8", "1", "0") "}", 1, "',' was expected");
    check_refused("{\"a\":" TENSOR("U8", "1", "0,1,1") "}", 1, "']' was expected");
    check_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":1,\"data_offsets\":[0,1]}}", 1, "'[' was expected");
    check_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":0}}", 1, "'[' was expected");
    check_refused("{\"a\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "a string was expected");
    check_refused("{\"a\":{}}", 0, "lacks its dtype, shape or data_offsets at byte 14");
    check_refused("{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "lacks");
    check_refused("{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "lacks");
    check_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "lacks");
    check_refused("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
                  "a tensor has a field twice at byte 27");
    check_refused("{\"a\":{\"shape\":[1],\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
                  "twice");
    check_refused("{\"a\":{\"more\":1,\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
                  "none of dtype, shape, data_offsets at byte 14");
    check_refused("{\"__metadata__\":[]}", 0, "'{' was expected");
    check_refused("{\"__metadata__\":{\"a\":1}}", 0, "a string was expected");
    check_refused("{\"__metadata__\":{\"a\"}}", 0, "':' was expected");
    check_refused("{\"__metadata__\":{\"a\":\"\"]}", 0, "',' or '}' was expected");
    check_refused("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "a second \"__metadata__\"");
    check_refused("{\"__metadata__\":{},\"__metadat\\u0061__\":{}}", 0, "a second \"__metadata__\"");
    check_refused("{\"__metadata__\":{\"k\":\"\",\"j\":\"\",\"\\u006b\":\"\"}}", 0,
                  "\"k\" in its metadata twice");
    check_refused("{\"\xff\":" TENSOR("U8", "1", "0,1") "}", 1, "isn't UTF-8 at byte 10");
    check_refused("{\"a\\u0000\":" TENSOR("U8", "1", "0,1") "}", 1, "\\u0000 at byte 11");
    check_refused("{\"", 0, "a string has no end at byte 9");
}

static void tensors_that_dont_fit(void)
{
    check_refused("{\"x\":" TENSOR("U8", "1", "0,1") ",\"y\":" TENSOR(
                      "U8", "1", "1,2") ",\"\\u0078\":" TENSOR("U8", "1", "2,3") "}",
                  3, "two tensors \"x\"");
    check_refused("{\"x\":" TENSOR("U8", "3", "0,3") "}", 2,
                  "\"x\" ends at byte 3 of the data, the file has 2");
    check_refused("{\"x\":" TENSOR("U8", "3", "0,3") "}", 4, "end at byte 3 of the data, the file has 4");
    check_refused("{\"x\":" TENSOR("U8", "2", "1,3") "}", 3,
                  "\"x\" begins at byte 1 of the data, nothing ends");
    check_refused("{\"x\":" TENSOR("U8", "1", "0,1") ",\"y\":" TENSOR("U8", "1", "2,3") "}", 3,
                  "\"y\" begins at byte 2 of the data, the one before it ends at 1");
    check_refused("{\"x\":" TENSOR("U8", "2", "0,2") ",\"y\":" TENSOR("U8", "2", "1,3") "}", 3,
                  "\"y\" begins at byte 1 of the data, the one before it ends at 2");
    check_refused("{\"x\":" TENSOR("U8", "2", "0,2") ",\"y\":" TENSOR("U8", "2", "0,2") "}", 2,
                  "begins at byte 0");
    check_refused("{\"x\":" TENSOR("U8", "0", "1,0") "}", 1, "before it begins");
    check_refused("{\"x\":" TENSOR("U8", "4", "0,3") "}", 3, "doesn't fit its 3 bytes");
    check_refused("{\"x\":" TENSOR("U8", "2", "0,3") "}", 3, "doesn't fit its 3 bytes");
    check_refused("{\"x\":" TENSOR("F32", "", "0,3") "}", 3, "of type F32, doesn't fit its 3 bytes");
    check_refused("{\"x\":" TENSOR("F4", "3", "0,1") "}", 1, "doesn't fit");
    check_refused("{\"x\":" TENSOR("F4", "3", "0,2") "}", 2, "doesn't fit");
    check_refused("{\"x\":" TENSOR("U8", "3", "0,18446744073709551616") "}", 3, "too large");
    check_refused("{\"x\":" TENSOR("U8", "3", "0,18446744073709551615") "}", 3,
                  "ends at byte 18446744073709551615");
    /* products that would be 0 or 2 in 64 bits */
    check_refused("{\"x\":" TENSOR("U8", "4294967296,4294967296", "0,0") "}", 0, "doesn't fit");
    check_refused("{\"x\":" TENSOR("F64", "2305843009213693952", "0,0") "}", 0, "doesn't fit");
    check_refused("{\"x\":" TENSOR("WHO", "4294967296,4294967296", "0,0") "}", 0, "doesn't fit");
    check_refused("{\"x\":" TENSOR("U8", "9223372036854775809,2", "0,2") "}", 2, "doesn't fit");
    check_accepted("{\"x\":" TENSOR("U8", "0,18446744073709551615,18446744073709551615", "0,0") "}", 0);
}

static void too_many_dimensions(void)
{
    char header[400] = "{\"x\":{\"dtype\":\"U8\",\"data_offsets\":[0,1],\"shape\":[1";
    for (int i = 1; i < DML__SAFETENSORS_DIMS; i++) strcat(header, ",1");
    const size_t length = strlen(header);
    strcat(header, "]}}");
    dml__safetensors *file = open_by_hand(header, 1);
    if (file) CHECK_INT(dml__safetensors_at(file, 0)->ndim, DML__SAFETENSORS_DIMS);
    dml__safetensors_close(file);
    strcpy(header + length, ",1]}}");
    check_refused(header, 1, "more than 64 dimensions");
}

static void dtypes_of_others(void)
{
    static const struct {
        const char *name;
        int bits; /* 0: nobody knows, so that any size fits */
    } kinds[] = {
        { "BOOL", 8 },        { "U8", 8 },          { "I8", 8 },         { "F8_E5M2", 8 }, { "F8_E4M3", 8 },
        { "F8_E8M0", 8 },     { "I16", 16 },        { "U16", 16 },       { "F16", 16 },    { "BF16", 16 },
        { "I32", 32 },        { "U32", 32 },        { "F32", 32 },       { "F64", 64 },    { "I64", 64 },
        { "U64", 64 },        { "C64", 64 },        { "F4", 4 },         { "F6_E2M3", 6 }, { "F6_E3M2", 6 },
        { "F8_E4M3FNUZ", 8 }, { "F8_E5M2FNUZ", 8 }, { "NEVER_SEEN", 0 },
    };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        char header[200];
        const int bytes = kinds[i].bits ? kinds[i].bits : 5;
        snprintf(header, sizeof header, "{\"x\":" TENSOR("%s", "4,2", "0,%d") "}", kinds[i].name, bytes);
        dml__safetensors *file = open_by_hand(header, (size_t)bytes);
        if (!file) continue;
        unsigned char data[64];
        CHECK_STRING(dml__safetensors_at(file, 0)->dtype_text, kinds[i].name);
        CHECK_INT(dml__safetensors_read(file, 0, data, NULL), DML_OK);
        if (kinds[i].bits < 16) CHECK(memcmp(data, "\1\2\3\4", 4) == 0);
        if (kinds[i].bits == 16) CHECK(*(uint16_t *)(void *)data == 0x0201);
        if (kinds[i].bits == 64 && kinds[i].name[0] != 'C')
            CHECK(*(uint64_t *)(void *)data == 0x0807060504030201);
        if (kinds[i].bits == 32 || kinds[i].name[0] == 'C') CHECK(*(uint32_t *)(void *)data == 0x04030201);
        dml__safetensors_close(file);
        snprintf(header, sizeof header, "{\"x\":" TENSOR("%s", "4,2", "0,%d") "}", kinds[i].name, bytes + 1);
        if (kinds[i].bits)
            check_refused(header, (size_t)bytes + 1, "doesn't fit");
        else
            check_accepted(header, (size_t)bytes + 1);
    }
    CHECK_STRING(dml__safetensors_dtype(DML_F32), "F32");
    CHECK_STRING(dml__safetensors_dtype(DML_F64), "F64");
    CHECK_STRING(dml__safetensors_dtype(DML_I32), "I32");
    CHECK_STRING(dml__safetensors_dtype(DML_I64), "I64");
    CHECK_STRING(dml__safetensors_dtype(DML_U8), "U8");
    CHECK_STRING(dml__safetensors_dtype(DML_I8), "I8");
    CHECK(dml__safetensors_dtype(DML__DTYPE_COUNT) == NULL);
}

/* ---- damage ---- */

static size_t our_file(void)
{
    static const float x[3] = { 1, 2, 3 };
    static const int three = 3;
    static const uint8_t byte = 200;
    const dml__tensor tensors[2] = { { "layer\xc3\xa9", DML_F32, 1, &three, x },
                                     { "b", DML_U8, 0, NULL, &byte } };
    const dml__metadata text = { "k\"y", "value" };
    size_t size = 0;
    CHECK_INT(dml__safetensors_store(&memory, image, sizeof image, &size, tensors, 2, &text, 1, NULL),
              DML_OK);
    return size;
}

static void each_flipped_bit_is_found(void)
{
    const size_t size = our_file();
    dml__safetensors *file = NULL;
    CHECK_INT(dml__safetensors_open_memory(&memory, "here", image, size, &file, NULL), DML_OK);
    dml__safetensors_close(file);
    for (size_t bit = 0; bit < 8 * size; bit++) {
        image[bit / 8] = (unsigned char)(image[bit / 8] ^ 1u << bit % 8);
        check_refused_image(size, "here");
        image[bit / 8] = (unsigned char)(image[bit / 8] ^ 1u << bit % 8);
    }
    image[size - 1]++;
    check_refused_image(size, "is damaged: its checksum is ");
    check_refused_image(size, "have the tool drop it");
    memcpy(strstr((char *)image + 8, "crc32c\":\"") + 9, "0123456X", 8);
    check_refused_image(size, "without 8 digits");
    strstr((char *)image + 8, "crc32c\"")[4] = '3';
    check_refused_image(size, "a damaged \"dml.crc32c\" is at byte 25");
}

static void checksums_by_hand(void)
{
    const char *digits = "{\"__metadata__\":{\"dml.crc32c\":\"00000000\"}}";
    char text[9];
    const size_t size = by_hand(digits, 0);
    snprintf(text, sizeof text, "%08x", (unsigned)dml__crc32c(0, image, size));
    memcpy(strstr((char *)image + 8, "00000000"), text, 8);
    dml__safetensors *file = NULL;
    CHECK_INT(dml__safetensors_open_memory(&memory, "here", image, size, &file, NULL), DML_OK);
    if (file) CHECK_STRING(dml__safetensors_text(file, "dml.crc32c"), text);
    dml__safetensors_close(file);
    check_refused("{\"__metadata__\":{\"dml.crc32c\":\"0000000\"}}", 0, "without 8 digits");
    check_refused("{\"__metadata__\":{\"dml.crc32c\":\"000000000\"}}", 0, "without 8 digits");
    check_refused("{\"__metadata__\":{\"dml.crc32c\":\"\"}}", 0, "without 8 digits");
    check_refused("{\"__metadata__\":{\"dml.crc32d\":\"\"}}", 0, "a damaged \"dml.crc32c\"");
    check_accepted("{\"__metadata__\":{\"dml.crc33d\":\"\",\"dml.crc32\":\"\",\"dml.crc32cc\":\"\"}}", 0);
}

static void each_truncation_is_found(void)
{
    const size_t size = our_file();
    for (size_t n = 0; n < size; n++) check_refused_image(n, "here");
    const size_t other = by_hand("{\"x\":" TENSOR("U8", "9", "0,9") "}", 9); /* without checksum */
    for (size_t n = 0; n < other; n++) check_refused_image(n, "here");
    check_refused_image(other - 1, "truncated");
}

/* Whatever comes, it is opened and read or refused with a sentence. */
static bool survives(const unsigned char *bytes, size_t size)
{
    dml__error error = { DML_OK, "", 0 };
    dml__safetensors *file;
    void *block;
    const dml_status status = open_copy(bytes, size, &file, &block, &error);
    if (status != DML_OK) {
        CHECK(file == NULL && status == DML_ERROR_FORMAT && error.text[0] != '\0');
    } else {
        for (int i = 0; i < dml__safetensors_count(file); i++) {
            const dml__safetensors_entry *entry = dml__safetensors_at(file, i);
            void *data = malloc((size_t)(entry->end - entry->begin) + 1);
            CHECK_INT(dml__safetensors_read(file, i, data, &error), DML_OK);
            CHECK_INT(dml__safetensors_find(file, entry->name), i);
            CHECK(entry->ndim >= 0 && entry->ndim <= DML__SAFETENSORS_DIMS);
            free(data);
        }
        dml__safetensors_close(file);
    }
    free(block);
    return status == DML_OK;
}

static void random_mutations(void)
{
    static const char alphabet[] = "{}[]\",:\\u0019 dtypesha_offsetF32\xc3\xa9\xed";
    const char *header = "{\"__metadata__\":{\"a\\ud83d\\ude00\":\"\\n\\\"b\"},\"w\\u00e9\":" TENSOR(
        "F32", "1,2", "4,12") ",\"\xc3\xa9\":" TENSOR("U8", "2,0", "12,12") ",\"b\":" TENSOR("BF16", "2",
                                                                                             "0,4") "}   ";
    unsigned state = 20240607;
    int opened = 0;
    for (int round = 0; round < 40000; round++) {
        unsigned char bytes[600];
        size_t size = by_hand(header, 12), length = size - 20;
        memcpy(bytes, image, size);
        for (unsigned m = test_random(&state) % 4 + 1; m > 0; m--) {
            const size_t at = 8 + test_random(&state) % length;
            const unsigned char c = test_random(&state) % 8
                                        ? (unsigned char)alphabet[test_random(&state) % (sizeof alphabet - 1)]
                                        : (unsigned char)test_random(&state);
            switch (test_random(&state) % 4) {
            case 0: bytes[at] = c; break;
            case 1: bytes[at] = (unsigned char)(bytes[at] ^ 1u << test_random(&state) % 8); break;
            case 2:
                memmove(bytes + at + 1, bytes + at, size - at);
                bytes[at] = c;
                size++, length++;
                break;
            default: memmove(bytes + at, bytes + at + 1, size - at - 1); size--, length--;
            }
        }
        if (test_random(&state) % 16) dml__store64(bytes, length);
        if (survives(bytes, size)) opened++;
    }
    CHECK_MESSAGE(opened > 400 && opened < 20000, "%d mutations were opened: too few or many to tell",
                  opened);
}

static void all(void)
{
    RUN(other_formats);
    RUN(headers_that_arent_right);
    RUN(tensors_that_dont_fit);
    RUN(too_many_dimensions);
    RUN(dtypes_of_others);
    RUN(each_flipped_bit_is_found);
    RUN(checksums_by_hand);
    RUN(each_truncation_is_found);
    RUN(random_mutations);
}

int main(void)
{
    return with_folder(all, "base/safetensors_refused");
}
