#ifndef DML_NET_HOST_MEMORY_C
#define DML_NET_HOST_MEMORY_C

#include "net/host_memory.h"

#include "base/os_thread.h"

#if defined(__linux__)
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#endif

#if defined(__linux__) && defined(SYS_memfd_create) && defined(F_ADD_SEALS) && !defined(DML__NO_HOST_MEMORY)

#define DML__MEMFD_FLAGS 3u /* MFD_CLOEXEC, MFD_ALLOW_SEALING: older headers don't have them */
#define DML__MEMORY_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* FNV-1a (Fowler, Noll, Vo). Who has the same by chance can't open our memory. */
static uint64_t dml__host_mix(uint64_t hash, const void *data, size_t bytes)
{
    const uint8_t *in = (const uint8_t *)data;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ in[i]) * UINT64_C(1099511628211);
    return hash;
}

static bool dml__host_mix_inode(uint64_t *hash, const char *path)
{
    struct stat file;
    if (stat(path, &file) != 0) return false;
    const uint64_t words[2] = { (uint64_t)file.st_dev, (uint64_t)file.st_ino };
    *hash = dml__host_mix(*hash, words, sizeof words);
    return true;
}

static bool dml__host_read(const char *path, void *out, size_t bytes)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    size_t got = 0;
    for (ssize_t n = 1; got < bytes && n != 0;) {
        n = read(fd, (char *)out + got, bytes - got);
        if (n < 0 && errno != EINTR) break;
        if (n > 0) got += (size_t)n;
    }
    close(fd);
    return got == bytes;
}

static bool dml__host_identity(uint64_t *identity)
{
    char boot[36];
    const uint64_t user = (uint64_t)geteuid();
    *identity = UINT64_C(14695981039346656037);
    if (!dml__host_read("/proc/sys/kernel/random/boot_id", boot, sizeof boot)) return false;
    *identity = dml__host_mix(*identity, boot, sizeof boot);
    *identity = dml__host_mix(*identity, &user, sizeof user);
    return dml__host_mix_inode(identity, "/proc/self/ns/net") &&
           dml__host_mix_inode(identity, "/proc/self/ns/pid");
}

static bool dml__host_random(void *out, size_t bytes)
{
    return dml__host_read("/dev/urandom", out, bytes);
}

/* In parts, of which a signal undoes one: of the whole it might do so again and again. */
static bool dml__host_take(int fd, size_t bytes)
{
    int interrupted = 0;
    for (size_t at = 0; at < bytes;) {
        const size_t most = (size_t)256 << 10, part = bytes - at < most ? bytes - at : most;
        const int error = posix_fallocate(fd, (off_t)at, (off_t)part);
        if (error && (error != EINTR || ++interrupted > 10000)) return false;
        if (!error) at += part;
    }
    return true;
}

/* Who grows a file, as this memory is one, beyond that is killed. */
static bool dml__host_may_create(size_t bytes)
{
    struct rlimit most;
    return getrlimit(RLIMIT_FSIZE, &most) != 0 || most.rlim_cur >= bytes;
}

static int dml__host_create(size_t bytes)
{
    if (!dml__host_may_create(bytes)) return -1;
    const int fd = (int)syscall(SYS_memfd_create, "dml", DML__MEMFD_FLAGS);
    if (fd < 0) return -1;
    /* Taken now, since who touches memory that the system doesn't have is killed. */
    if (dml__host_take(fd, bytes) && fcntl(fd, F_ADD_SEALS, DML__MEMORY_SEALS) == 0) return fd;
    close(fd);
    return -1;
}

static int dml__host_open(long process, int fd, size_t bytes)
{
    char path[64];
    struct stat file;
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", process, fd);
    /* Whatever else may lie there by now (a terminal, a pipe): opening it shall do nothing. */
    const int opened = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (opened < 0) return -1;
    if (fstat(opened, &file) == 0 && S_ISREG(file.st_mode) && file.st_size >= 0 &&
        (uint64_t)file.st_size == (uint64_t)bytes && fcntl(opened, F_GET_SEALS) == DML__MEMORY_SEALS)
        return opened;
    close(opened);
    return -1;
}

static void *dml__host_map(int fd, size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static void dml__host_unmap(void *memory, size_t bytes)
{
    munmap(memory, bytes);
}

static void dml__host_close(int fd)
{
    close(fd);
}

#if defined(SYS_process_vm_readv)
static bool dml__host_read_process(long process, const dml__span *into, const uint64_t *from, int count)
{
    struct iovec here[DML__HOST_RANGES], there[DML__HOST_RANGES];
    size_t bytes = 0;
    for (int i = 0; i < count; i++) {
        if (from[i] > UINTPTR_MAX) return false;
        here[i].iov_base = into[i].data;
        there[i].iov_base = (void *)(uintptr_t)from[i];
        here[i].iov_len = there[i].iov_len = into[i].bytes;
        bytes += into[i].bytes;
    }
    return syscall(SYS_process_vm_readv, process, here, (unsigned long)count, there, (unsigned long)count,
                   0ul) == (long)bytes;
}
#define DML__HOST_READS
#endif

#else

static bool dml__host_identity(uint64_t *identity)
{
    *identity = 0;
    return false;
}

static bool dml__host_random(void *out, size_t bytes)
{
    (void)out, (void)bytes;
    return false;
}

static int dml__host_create(size_t bytes)
{
    (void)bytes;
    return -1;
}

static int dml__host_open(long process, int fd, size_t bytes)
{
    (void)process, (void)fd, (void)bytes;
    return -1;
}

static void *dml__host_map(int fd, size_t bytes)
{
    (void)fd, (void)bytes;
    return NULL;
}

static void dml__host_unmap(void *memory, size_t bytes)
{
    (void)memory, (void)bytes;
}

static void dml__host_close(int fd)
{
    (void)fd;
}

#endif

#if !defined(DML__HOST_READS)
static bool dml__host_read_process(long process, const dml__span *into, const uint64_t *from, int count)
{
    (void)process, (void)into, (void)from, (void)count;
    return false;
}
#endif

DML__LOCAL const dml__host_calls *dml__system_host(void)
{
    static const dml__host_calls calls = { dml__host_identity, dml__process_id,  dml__host_create,
                                           dml__host_open,     dml__host_map,    dml__host_unmap,
                                           dml__host_close,    dml__host_random, dml__host_read_process };
    return &calls;
}

#endif
