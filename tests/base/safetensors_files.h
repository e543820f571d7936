/* safetensors_files.h: safetensors files made byte by byte, and a folder to write in. */
#ifndef DML_TESTS_BASE_SAFETENSORS_FILES_H
#define DML_TESTS_BASE_SAFETENSORS_FILES_H

#include "base/safetensors.h"
#include "base/bytes.h"
#include "base/checksum.h"

#ifdef _WIN32
#include <direct.h>
#include <io.h>
#include <unistd.h>
#define mkdtemp(name) (_mktemp(name) && _mkdir(name) == 0 ? (name) : NULL)
#define rmdir _rmdir
#else
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>
#endif

#include "../test.h"

static dml__memory memory;
static char folder[64];

TEST__UNUSED static const char *in_folder(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* ---- files by hand ---- */

/* What a header says of a tensor. */
#define TENSOR(dtype, shape, offsets)                                                                        \
    "{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" offsets "]}"

static unsigned char image[4096]; /* of one file */

/* Writes such a file, its header as given and `data` bytes 1, 2, ... of data; returns its size. */
static size_t by_hand(const char *header, size_t data)
{
    const size_t length = strlen(header);
    dml__store64(image, length);
    memcpy(image + 8, header, length);
    for (size_t i = 0; i < data; i++) image[8 + length + i] = (unsigned char)(i + 1);
    return 8 + length + data;
}

/* Opens bytes that lie in a block of just their size, so that a byte read too far is noticed. */
TEST__UNUSED static dml_status open_copy(const void *bytes, size_t size, dml__safetensors **file,
                                         void **block, dml__error *error)
{
    *block = malloc(size ? size : 1);
    memcpy(*block, bytes, size);
    return dml__safetensors_open_memory(&memory, "here", *block, size, file, error);
}

TEST__UNUSED static void check_refused_image(size_t size, const char *part)
{
    dml__error error = { DML_OK, "", 0 };
    dml__safetensors *file = (dml__safetensors *)&error;
    void *block;
    CHECK_INT(open_copy(image, size, &file, &block, &error), DML_ERROR_FORMAT);
    CHECK(file == NULL);
    CHECK_CONTAINS(error.text, "\"here\"");
    CHECK_CONTAINS(error.text, part);
    free(block);
}

TEST__UNUSED static void check_refused(const char *header, size_t data, const char *part)
{
    check_refused_image(by_hand(header, data), part);
}

TEST__UNUSED static dml__safetensors *open_by_hand(const char *header, size_t data)
{
    dml__error error = { DML_OK, "", 0 };
    dml__safetensors *file;
    const size_t size = by_hand(header, data);
    CHECK_MESSAGE(dml__safetensors_open_memory(&memory, "here", image, size, &file, &error) == DML_OK,
                  "%s: %s", header, error.text);
    return file;
}

/* A file that is refused only sometimes: accepted here. */
TEST__UNUSED static void check_accepted(const char *header, size_t data)
{
    dml__safetensors_close(open_by_hand(header, data));
}

/* Runs the tests of one file. */
static int with_folder(void (*run)(void), const char *name)
{
    snprintf(folder, sizeof folder, "/tmp/dml-%s-XXXXXX",
             strrchr(name, '/') + 1); /* programs run side by side */
    if (!mkdtemp(folder)) {
        printf("can't make a folder in /tmp\n");
        return 1;
    }
    dml__memory_init(&memory, NULL, NULL, 0);
    run();
    rmdir(folder);
    return test_report(name);
}

#endif
