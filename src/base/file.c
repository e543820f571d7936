#ifndef DML_BASE_FILE_C
#define DML_BASE_FILE_C

#include "base/file.h"

#ifndef DML_NO_STDIO

#include <errno.h>
#include <stdio.h>
#include <string.h>
#if defined(__unix__) || defined(__APPLE__)
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#define DML__FILE_POSIX 1
#endif

static dml_status dml__read_failed(dml__error *error, const char *path)
{
    return dml__fail(error, DML_ERROR_IO, "can't read %s: %s", path, strerror(errno));
}

/* The size of a regular file, or false with errno set. */
static bool dml__file_size(FILE *file, size_t *bytes)
{
#ifdef DML__FILE_POSIX
    struct stat status;
    if (fstat(fileno(file), &status) != 0) return false;
    if (S_ISDIR(status.st_mode)) {
        errno = EISDIR;
        return false;
    }
    if (!S_ISREG(status.st_mode)) {
        errno = EINVAL;
        return false;
    }
#endif
    if (fseek(file, 0, SEEK_END) != 0) return false;
    const long end = ftell(file);
    if (end < 0 || fseek(file, 0, SEEK_SET) != 0) return false;
    *bytes = (size_t)end;
    return true;
}

static dml_status dml__read_open_file(FILE *file, dml__memory *memory, const char *path, size_t most,
                                      unsigned char **data, size_t *bytes, dml__error *error)
{
    if (!dml__file_size(file, bytes)) return dml__read_failed(error, path);
    if (*bytes > most)
        return dml__fail(error, DML_ERROR_IO, "%s has %zu bytes, more than the %zu that are read", path,
                         *bytes, most);
    *data = (unsigned char *)dml__allocate(memory, *bytes);
    if (!*data)
        return dml__fail(error, DML_ERROR_MEMORY, "no memory left to read the %zu bytes of %s", *bytes, path);
    if (fread(*data, 1, *bytes, file) == *bytes) return DML_OK;
    const dml_status status =
        ferror(file) ? dml__read_failed(error, path)
                     : dml__fail(error, DML_ERROR_IO, "%s became shorter while it was read", path);
    dml__release(memory, *data);
    *data = NULL;
    return status;
}

DML__LOCAL dml_status dml__file_read(dml__memory *memory, const char *path, size_t most, unsigned char **data,
                                     size_t *bytes, dml__error *error)
{
    *data = NULL;
    *bytes = 0;
    FILE *file = fopen(path, "rb");
    if (!file) return dml__read_failed(error, path);
    const dml_status status = dml__read_open_file(file, memory, path, most, data, bytes, error);
    fclose(file);
    return status;
}

/* Makes the rename itself survive a power cut. Some file systems can't sync a folder; that is no failure. */
static void dml__sync_folder_of(const char *path)
{
#ifdef DML__FILE_POSIX
    char folder[4096];
    const char *slash = strrchr(path, '/');
    const size_t length = slash ? (size_t)(slash - path) : 0;
    if (length >= sizeof folder) return;
    memcpy(folder, path, length);
    folder[length] = '\0';
    const int descriptor = open(slash ? (length ? folder : "/") : ".", O_RDONLY);
    if (descriptor < 0) return;
    fsync(descriptor);
    close(descriptor);
#else
    (void)path;
#endif
}

static bool dml__write_and_sync(FILE *file, const void *data, size_t bytes)
{
    if (fwrite(data, 1, bytes, file) != bytes || fflush(file) != 0) return false;
#ifdef DML__FILE_POSIX
    if (fsync(fileno(file)) != 0) return false;
#endif
    return true;
}

DML__LOCAL dml_status dml__file_write(const char *path, const void *data, size_t bytes, dml__error *error)
{
    char aside[4096];
    long process = 0;
#ifdef DML__FILE_POSIX
    process = (long)getpid();
#endif
    if (snprintf(aside, sizeof aside, "%s.%ld.tmp", path, process) >= (int)sizeof aside)
        return dml__fail(error, DML_ERROR_IO, "can't write %.80s...: the path is too long", path);
    FILE *file = fopen(aside, "wb");
    if (!file) return dml__fail(error, DML_ERROR_IO, "can't write %s: %s", path, strerror(errno));
    bool ok = dml__write_and_sync(file, data, bytes);
    int cause = errno;
    if (fclose(file) != 0 && ok) {
        ok = false;
        cause = errno;
    }
    if (ok && rename(aside, path) != 0) {
        ok = false;
        cause = errno;
    }
    if (!ok) {
        remove(aside);
        return dml__fail(error, DML_ERROR_IO, "can't write %s: %s", path, strerror(cause));
    }
    dml__sync_folder_of(path);
    return DML_OK;
}

#endif

#endif
