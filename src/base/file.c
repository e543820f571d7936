#ifndef DML_BASE_FILE_C
#define DML_BASE_FILE_C

#include "base/file.h"

#ifndef DML_NO_STDIO

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DML__PATH_BYTES 4096

static dml_status dml__file_fail(dml__error *error, const char *what, const char *path)
{
    return dml__fail(error, DML_ERROR_IO, "can't %s \"%.300s\": %s", what, path, strerror(errno));
}

/* Up to `bytes` bytes; fewer at the end of the file, -1 and errno on failure. */
static ptrdiff_t dml__read_fully(int descriptor, char *to, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        const size_t left = bytes - done;
        const ssize_t got = read(descriptor, to + done, left < (1u << 30) ? left : 1u << 30);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        done += (size_t)got;
    }
    return (ptrdiff_t)done;
}

static bool dml__write_fully(int descriptor, const char *from, size_t bytes)
{
    while (bytes > 0) {
        const ssize_t put = write(descriptor, from, bytes < (1u << 30) ? bytes : 1u << 30);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return false;
        from += put;
        bytes -= (size_t)put;
    }
    return true;
}

static dml_status dml__read_open_file(int descriptor, dml__memory *memory, const char *path, size_t limit,
                                      void **data, size_t *bytes, dml__error *error)
{
    struct stat info;
    if (fstat(descriptor, &info)) return dml__file_fail(error, "read", path);
    if (!S_ISREG(info.st_mode))
        return dml__fail(error, DML_ERROR_IO, "can't read \"%s\": it is no plain file", path);
    if ((uint64_t)info.st_size > limit)
        return dml__fail(error, DML_ERROR_FORMAT, "\"%s\" has %llu bytes, more than the %llu it may have",
                         path, (unsigned long long)info.st_size, (unsigned long long)limit);
    const size_t size = (size_t)info.st_size;
    char *content = (char *)dml__allocate(memory, size);
    if (!content)
        return dml__fail(error, DML_ERROR_MEMORY, "no memory for the %llu bytes of \"%s\"",
                         (unsigned long long)size, path);
    const ptrdiff_t got = dml__read_fully(descriptor, content, size);
    if (got != (ptrdiff_t)size) {
        dml__release(memory, content);
        if (got < 0) return dml__file_fail(error, "read", path);
        return dml__fail(error, DML_ERROR_IO, "\"%s\" became shorter while it was read", path);
    }
    *data = content;
    *bytes = size;
    return DML_OK;
}

DML__LOCAL dml_status dml__file_read(dml__memory *memory, const char *path, size_t limit, void **data,
                                     size_t *bytes, dml__error *error)
{
    *data = NULL;
    *bytes = 0;
    /* O_NONBLOCK: a named pipe must not keep us waiting for its writer before we see that it is one. */
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) return dml__file_fail(error, "open", path);
    const dml_status status = dml__read_open_file(descriptor, memory, path, limit, data, bytes, error);
    close(descriptor);
    return status;
}

/* Opens a new file beside `path` and writes its name. */
static int dml__open_temporary(const char *path, char name[DML__PATH_BYTES])
{
    for (int attempt = 0; attempt < 100; attempt++) {
        const int length = snprintf(name, DML__PATH_BYTES, "%s.%ld-%d.tmp", path, (long)getpid(), attempt);
        if (length < 0 || length >= DML__PATH_BYTES) {
            errno = ENAMETOOLONG;
            return -1;
        }
        const int descriptor = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (descriptor >= 0 || errno != EEXIST) return descriptor;
    }
    return -1;
}

/* The new name itself must reach the disk; a file system that can't do that for folders says EINVAL. */
static bool dml__sync_folder_of(const char *path)
{
    char folder[DML__PATH_BYTES];
    const char *slash = strrchr(path, '/');
    const size_t length = slash ? (size_t)(slash - path) : 0;
    if (length >= sizeof folder) return false;
    memcpy(folder, path, length);
    folder[length] = '\0';
    const int descriptor = open(length ? folder : slash ? "/" : ".", O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return errno == EACCES; /* a folder that we may write to but not list */
    const bool ok = fsync(descriptor) == 0 || errno == EINVAL;
    const int reason = errno;
    close(descriptor);
    errno = reason;
    return ok;
}

static bool dml__write_parts(int descriptor, const dml__file_part *parts, int count)
{
    for (int i = 0; i < count; i++)
        if (!dml__write_fully(descriptor, (const char *)parts[i].data, parts[i].bytes)) return false;
    return fsync(descriptor) == 0;
}

DML__LOCAL dml_status dml__file_write(const char *path, const dml__file_part *parts, int count,
                                      dml__error *error)
{
    char temporary[DML__PATH_BYTES];
    struct stat info;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return dml__fail(error, DML_ERROR_IO, "can't write \"%s\": it is there and no plain file", path);
    const int descriptor = dml__open_temporary(path, temporary);
    if (descriptor < 0) return dml__file_fail(error, "create", path);
    bool ok = dml__write_parts(descriptor, parts, count);
    const int reason = errno;
    if (close(descriptor) == 0 && !ok) errno = reason;
    ok = ok && rename(temporary, path) == 0;
    if (!ok) {
        const int why = errno;
        unlink(temporary);
        errno = why;
        return dml__file_fail(error, "write", path);
    }
    if (!dml__sync_folder_of(path)) return dml__file_fail(error, "write the folder of", path);
    return DML_OK;
}

#endif

#endif
