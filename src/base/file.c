#ifndef DML_BASE_FILE_C
#define DML_BASE_FILE_C

#include "base/file.h"

#include "base/windows.h"

#ifndef DML_NO_STDIO

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#ifdef _WIN32
#include <io.h>
#include <process.h>
#else
#include <unistd.h>
#endif

/* ---- the operating system: descriptors, with 64-bit sizes and offsets everywhere ---- */

/* What is behind a path or a descriptor. */
typedef struct dml__file_info {
    uint64_t bytes;
    bool plain;
    bool locked;   /* its own attributes forbid to replace it */
    unsigned mode; /* who may do what with it; 0 where there is no such thing */
} dml__file_info;

/* The most bytes of one call: some systems take no more than an int. */
static size_t dml__piece(size_t bytes)
{
    return bytes < (1u << 30) ? bytes : 1u << 30;
}

#ifdef _WIN32

#define DML__SEPARATORS "/\\:"

static int dml__os_open(const char *path)
{
    return _open(path, _O_RDONLY | _O_BINARY | _O_NOINHERIT);
}

static int dml__os_create(const char *path)
{
    return _open(path, _O_WRONLY | _O_CREAT | _O_EXCL | _O_BINARY | _O_NOINHERIT, _S_IREAD | _S_IWRITE);
}

static ptrdiff_t dml__os_read_at(int descriptor, uint64_t offset, void *to, size_t bytes)
{
    if (_lseeki64(descriptor, (__int64)offset, SEEK_SET) < 0) return -1;
    return _read(descriptor, to, (unsigned)bytes);
}

static ptrdiff_t dml__os_write(int descriptor, const void *from, size_t bytes)
{
    return _write(descriptor, from, (unsigned)bytes);
}

static bool dml__os_sync(int descriptor)
{
    return _commit(descriptor) == 0;
}

static bool dml__os_close(int descriptor)
{
    return _close(descriptor) == 0;
}

static void dml__os_remove(const char *path)
{
    _unlink(path);
}

static bool dml__os_replace(const char *from, const char *to)
{
    if (dml__windows_MoveFileExA(from, to, DML__WINDOWS_REPLACE_EXISTING | DML__WINDOWS_WRITE_THROUGH))
        return true;
    const unsigned long why = dml__windows_GetLastError();
    errno = why == DML__WINDOWS_ACCESS_DENIED || why == DML__WINDOWS_SHARING_VIOLATION ? EACCES
            : why == DML__WINDOWS_DISK_FULL                                            ? ENOSPC
                                                                                       : EIO;
    return false;
}

static bool dml__os_sync_folder(const char *folder)
{
    (void)folder; /* MOVEFILE_WRITE_THROUGH has done it */
    return true;
}

static long dml__os_process(void)
{
    return (long)_getpid();
}

static void dml__os_info_of(const struct _stat64 *from, dml__file_info *info)
{
    info->bytes = (uint64_t)from->st_size;
    info->plain = (from->st_mode & _S_IFMT) == _S_IFREG;
    info->locked = !(from->st_mode & _S_IWRITE);
    info->mode = 0;
}

static void dml__os_set_mode(int descriptor, unsigned mode)
{
    (void)descriptor;
    (void)mode;
}

static bool dml__os_describe(int descriptor, dml__file_info *info)
{
    struct _stat64 found;
    if (_fstat64(descriptor, &found)) return false;
    dml__os_info_of(&found, info);
    return true;
}

static bool dml__os_find(const char *path, dml__file_info *info)
{
    struct _stat64 found;
    if (_stat64(path, &found)) return false;
    dml__os_info_of(&found, info);
    return true;
}

/* Whether only its owner may replace the file, and we aren't. */
static bool dml__os_forbids_replacing(const char *folder, const char *path)
{
    (void)folder;
    (void)path;
    return false; /* `locked` is all there is */
}

#else

#define DML__SEPARATORS "/"

/* On 32-bit glibc the plain names stop at 2 GiB, unless the whole program is compiled otherwise. */
#if defined(__GLIBC__) && defined(_LARGEFILE64_SOURCE)
typedef struct stat64 dml__stat;
#define DML__STAT stat64
#define DML__FSTAT fstat64
#define DML__PREAD pread64
#define DML__OFFSET off64_t
#define DML__OPEN_FLAGS (O_CLOEXEC | O_LARGEFILE)
#else
typedef struct stat dml__stat;
#define DML__STAT stat
#define DML__FSTAT fstat
#define DML__PREAD pread
#define DML__OFFSET off_t
#define DML__OPEN_FLAGS O_CLOEXEC
#endif

static int dml__os_open(const char *path)
{
    /* O_NONBLOCK: a named pipe that came here meanwhile must not keep us waiting for its writer. */
    return open(path, O_RDONLY | O_NONBLOCK | DML__OPEN_FLAGS);
}

static int dml__os_create(const char *path)
{
    return open(path, O_WRONLY | O_CREAT | O_EXCL | DML__OPEN_FLAGS, 0666);
}

static ptrdiff_t dml__os_read_at(int descriptor, uint64_t offset, void *to, size_t bytes)
{
    return DML__PREAD(descriptor, to, bytes, (DML__OFFSET)offset);
}

static ptrdiff_t dml__os_write(int descriptor, const void *from, size_t bytes)
{
    return write(descriptor, from, bytes);
}

static bool dml__os_sync(int descriptor)
{
    return fsync(descriptor) == 0;
}

static bool dml__os_close(int descriptor)
{
    return close(descriptor) == 0;
}

static void dml__os_remove(const char *path)
{
    unlink(path);
}

static bool dml__os_replace(const char *from, const char *to)
{
    return rename(from, to) == 0;
}

/* Who may read and write it, as of the file that it replaces; where that is refused it stays as it is. */
static void dml__os_set_mode(int descriptor, unsigned mode)
{
    (void)!fchmod(descriptor, (mode_t)mode);
}

/* The new name itself must reach the disk; a file system that can't do that for folders says EINVAL. */
static bool dml__os_sync_folder(const char *folder)
{
    const int descriptor = open(folder, O_RDONLY | DML__OPEN_FLAGS);
    if (descriptor < 0) return errno == EACCES; /* a folder that we may write to but not list */
    const bool ok = fsync(descriptor) == 0 || errno == EINVAL;
    const int reason = errno;
    close(descriptor);
    errno = reason;
    return ok;
}

static long dml__os_process(void)
{
    return (long)getpid();
}

static void dml__os_info_of(const dml__stat *from, dml__file_info *info)
{
    info->bytes = (uint64_t)from->st_size;
    info->plain = S_ISREG(from->st_mode);
    info->locked = false; /* renaming asks the folder only */
    info->mode = (unsigned)from->st_mode & 0777u;
}

static bool dml__os_describe(int descriptor, dml__file_info *info)
{
    dml__stat found;
    if (DML__FSTAT(descriptor, &found)) return false;
    dml__os_info_of(&found, info);
    return true;
}

static bool dml__os_find(const char *path, dml__file_info *info)
{
    dml__stat found;
    if (DML__STAT(path, &found)) return false;
    dml__os_info_of(&found, info);
    return true;
}

/* Whether only its owner may replace the file, and we aren't: folders such as /tmp are so. */
static bool dml__os_forbids_replacing(const char *folder, const char *path)
{
#ifdef S_ISVTX
    dml__stat of_folder, of_file;
    if (DML__STAT(folder, &of_folder) || DML__STAT(path, &of_file)) return false;
    const uid_t us = geteuid();
    return (of_folder.st_mode & S_ISVTX) && us != 0 && us != of_folder.st_uid && us != of_file.st_uid;
#else
    (void)folder;
    (void)path;
    return false;
#endif
}

#endif

static dml_status dml__file_fail(dml__error *error, const char *what, const char *path)
{
    return dml__fail(error, DML_ERROR_IO, "can't %s \"%.300s\": %s", what, path, strerror(errno));
}

/* ---- reading ---- */

DML__LOCAL dml_status dml__file_open(dml__file_reader *file, const char *path, dml__error *error)
{
    dml__file_info info;
    file->path = path;
    file->bytes = 0;
    file->descriptor = -1;
    /* Before it is opened, since some systems don't open a folder and then say that we may not. */
    if (dml__os_find(path, &info) && !info.plain)
        return dml__fail(error, DML_ERROR_IO, "can't read \"%.300s\": it is no plain file", path);
    file->descriptor = dml__os_open(path);
    if (file->descriptor < 0) return dml__file_fail(error, "open", path);
    if (!dml__os_describe(file->descriptor, &info)) {
        const dml_status status = dml__file_fail(error, "read", path);
        dml__file_close(file);
        return status;
    }
    file->bytes = info.bytes;
    return DML_OK;
}

DML__LOCAL dml_status dml__file_read_at(dml__file_reader *file, uint64_t offset, void *to, size_t bytes,
                                        dml__error *error)
{
    char *at = (char *)to;
    while (bytes > 0) {
        const ptrdiff_t got = dml__os_read_at(file->descriptor, offset, at, dml__piece(bytes));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return dml__file_fail(error, "read", file->path);
        if (got == 0)
            return dml__fail(error, DML_ERROR_IO, "\"%.300s\" became shorter while it was read", file->path);
        at += got;
        offset += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return DML_OK;
}

DML__LOCAL void dml__file_close(dml__file_reader *file)
{
    dml__os_close(file->descriptor);
}

DML__LOCAL dml_status dml__file_read(dml__memory *memory, const char *path, size_t limit, void **data,
                                     size_t *bytes, dml__error *error)
{
    dml__file_reader file;
    *data = NULL;
    *bytes = 0;
    dml_status status = dml__file_open(&file, path, error);
    if (status != DML_OK) return status;
    char *content = NULL;
    if (file.bytes > limit)
        status =
            dml__fail(error, DML_ERROR_FORMAT, "\"%.300s\" has %llu bytes, more than the %llu it may have",
                      path, (unsigned long long)file.bytes, (unsigned long long)limit);
    else if (!(content = (char *)dml__allocate(memory, (size_t)file.bytes)))
        status = dml__fail(error, DML_ERROR_MEMORY, "no memory for the %llu bytes of \"%.300s\"",
                           (unsigned long long)file.bytes, path);
    else
        status = dml__file_read_at(&file, 0, content, (size_t)file.bytes, error);
    dml__file_close(&file);
    if (status != DML_OK) {
        dml__release(memory, content);
        return status;
    }
    *data = content;
    *bytes = (size_t)file.bytes;
    return DML_OK;
}

/* ---- writing ---- */

/* How many bytes of `path` come before the file's own name. */
static size_t dml__own_name_at(const char *path)
{
    size_t at = strlen(path);
    while (at > 0 && !strchr(DML__SEPARATORS, path[at - 1])) at--;
    return at;
}

/* How often a name is taken; and how much of the file's own name is in it, so that it isn't too long. */
enum { DML__TEMPORARIES = 1000, DML__TEMPORARY_BYTES = 200 };

/* Opens a new file beside `path` and writes its name. One that is there may have been left by a process that
   was killed, or be another container's that writes it now: either has our number. So it stays. */
static int dml__open_temporary(const char *path, char name[DML__PATH_BYTES])
{
    const size_t own = dml__own_name_at(path);
    size_t end = strlen(path);
    if (end - own > DML__TEMPORARY_BYTES) {
        end = own + DML__TEMPORARY_BYTES;
        while (end > own && ((unsigned char)path[end] & 0xC0) == 0x80) end--; /* whole characters of UTF-8 */
    }
    for (int attempt = 0; attempt < DML__TEMPORARIES; attempt++) {
        const int length =
            snprintf(name, DML__PATH_BYTES, "%.*s.%ld-%d.tmp", (int)end, path, dml__os_process(), attempt);
        if (length < 0 || length >= DML__PATH_BYTES) {
            errno = ENAMETOOLONG;
            return -1;
        }
        const int descriptor = dml__os_create(name);
        if (descriptor >= 0 || errno != EEXIST) return descriptor;
    }
    return -1;
}

/* The folder that `path` is in, shorter than DML__PATH_BYTES. */
static void dml__folder_of(const char *path, char folder[DML__PATH_BYTES])
{
    size_t length = dml__own_name_at(path);
    if (length > 1) length--; /* the separator, unless it is all: the root */
    memcpy(folder, path, length);
    strcpy(folder + length, length ? "" : ".");
}

DML__LOCAL dml_status dml__file_create(dml__file_writer *file, const char *path, dml__error *error)
{
    dml__file_info info;
    file->path = path;
    file->descriptor = -1;
    if (!*path) return dml__fail(error, DML_ERROR_IO, "can't write a file without a name");
    const bool there = dml__os_find(path, &info);
    if (there && !info.plain)
        return dml__fail(error, DML_ERROR_IO, "can't write \"%.300s\": it is there and no plain file", path);
    /* The temporary's name may be short enough where the file's isn't. */
    if (!there && errno == ENAMETOOLONG) return dml__file_fail(error, "create", path);
    file->descriptor = dml__open_temporary(path, file->temporary);
    if (file->descriptor >= 0) {
        if (there) dml__os_set_mode(file->descriptor, info.mode);
        return DML_OK;
    }
    if (errno != EEXIST) return dml__file_fail(error, "create", path);
    return dml__fail(
        error, DML_ERROR_IO,
        "can't create \"%.350s\": it and the %d before it are there, left by processes that were "
        "killed; remove them",
        file->temporary, DML__TEMPORARIES - 1);
}

DML__LOCAL dml_status dml__file_append(dml__file_writer *file, const void *data, size_t bytes,
                                       dml__error *error)
{
    const char *from = (const char *)data;
    while (bytes > 0) {
        const ptrdiff_t put = dml__os_write(file->descriptor, from, dml__piece(bytes));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return dml__file_fail(error, "write", file->path);
        from += put;
        bytes -= (size_t)put;
    }
    return DML_OK;
}

DML__LOCAL void dml__file_abandon(dml__file_writer *file)
{
    dml__os_close(file->descriptor);
    dml__os_remove(file->temporary);
}

DML__LOCAL dml_status dml__file_commit(dml__file_writer *file, dml__error *error)
{
    char folder[DML__PATH_BYTES];
    bool ok = dml__os_sync(file->descriptor);
    const int reason = errno;
    if (dml__os_close(file->descriptor)) {
        if (!ok) errno = reason;
    } else {
        ok = false;
    }
    if (!ok || !dml__os_replace(file->temporary, file->path)) {
        const dml_status status = dml__file_fail(error, "write", file->path);
        dml__os_remove(file->temporary);
        return status;
    }
    dml__folder_of(file->path, folder);
    if (!dml__os_sync_folder(folder)) return dml__file_fail(error, "write the folder of", file->path);
    return DML_OK;
}

DML__LOCAL dml_status dml__file_write(const char *path, const dml__file_part *parts, int count,
                                      dml__error *error)
{
    dml__file_writer file;
    dml_status status = dml__file_create(&file, path, error);
    if (status != DML_OK) return status;
    for (int i = 0; i < count && status == DML_OK; i++)
        status = dml__file_append(&file, parts[i].data, parts[i].bytes, error);
    if (status == DML_OK) return dml__file_commit(&file, error);
    dml__file_abandon(&file);
    return status;
}

DML__LOCAL dml_status dml__file_check_writable(const char *path, dml__error *error)
{
    dml__file_writer file;
    dml__file_info info;
    char folder[DML__PATH_BYTES];
    dml_status status = dml__file_create(&file, path, error);
    if (status != DML_OK) return status;
    status = dml__file_append(&file, "", 1, error); /* a full disk takes a name, but no byte */
    dml__file_abandon(&file);
    if (status != DML_OK) return status;
    dml__folder_of(path, folder);
    if (dml__os_find(path, &info) && (info.locked || dml__os_forbids_replacing(folder, path)))
        return dml__fail(error, DML_ERROR_IO, "can't write \"%.300s\": it is there and may not be replaced",
                         path);
    return DML_OK;
}

#endif

#endif
