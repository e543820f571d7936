#ifndef DML_BASE_CPU_C
#define DML_BASE_CPU_C

#include "base/cpu.h"

#include "base/cpu_internal.h"
#include "base/windows.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>
#elif defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif
#if defined(__APPLE__)
#include <sys/sysctl.h>
#include <sys/types.h>
#endif
#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
#include <cpuid.h>
#endif

DML_API const char *dml_isa_name(dml_isa isa)
{
    static const char *const names[] = { "scalar", "neon", "avx2", "avx512" };
    return (unsigned)isa < DML__ISA_COUNT ? names[isa] : "?";
}

static dml_isa dml__detect_isa(void)
{
#if defined(DML__EMULATED)
    return DML_ISA_AVX512; /* a build for tests, in which plain C stands for all instructions */
#elif defined(DML__HAS_AVX2)
    /* __builtin_cpu_supports also asks the operating system (XGETBV) whether it saves the registers. */
    __builtin_cpu_init();
#if defined(DML__HAS_AVX512)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
        return DML_ISA_AVX512;
#endif
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return DML_ISA_AVX2;
#elif defined(__aarch64__)
    return DML_ISA_NEON; /* part of the architecture */
#endif
    return DML_ISA_SCALAR;
}

DML_API dml_isa dml_cpu_isa(void)
{
    const dml_isa best = dml__detect_isa();
    const char *wanted = getenv("DML_ISA");
    if (!wanted) return best;
    for (int isa = 0; isa < (int)best; isa++) {
        if (isa == DML_ISA_NEON) continue; /* another processor's: nothing to lower AVX to */
        if (strcmp(wanted, dml_isa_name((dml_isa)isa)) == 0) return (dml_isa)isa;
    }
    return best;
}

DML__LOCAL bool dml__cpu_isa_known(const char **wanted)
{
    *wanted = getenv("DML_ISA");
    if (!*wanted || !**wanted || strcmp(*wanted, "avx512_bf16") == 0) return true;
    for (int isa = 0; isa < (int)DML__ISA_COUNT; isa++)
        if (strcmp(*wanted, dml_isa_name((dml_isa)isa)) == 0) return true;
    return false;
}

/* ---- how many processors ---- */

DML__LOCAL int dml__cpu_environment(const char *name)
{
    const char *text = getenv(name);
    if (!text || *text < '0' || *text > '9') return -1;
    char *end;
    const long value = strtol(text, &end, 10);
    if (*end) return -1;
    return value >= INT_MAX ? INT_MAX : (int)value;
}

#if defined(__linux__)
/* The beginning of a file as text; "" when it can't be read. By descriptors, since a build may be without
   stdio. */
static void dml__read_text(char *text, size_t size, const char *root, const char *path)
{
    char whole[1024];
    text[0] = '\0';
    const int length = snprintf(whole, sizeof whole, "%s%s", root, path);
    if (length < 0 || (size_t)length >= sizeof whole) return;
    const int file = open(whole, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    const ssize_t got = read(file, text, size - 1);
    close(file);
    text[got > 0 ? got : 0] = '\0';
}

/* The quota in the group `path` of the hierarchy at `mount`, in processors; INT_MAX for none. */
static int dml__quota_of(const char *root, const char *mount, const char *path, bool version2)
{
    char name[768], text[64];
    double quota, period = 0;
    char *end;
    snprintf(name, sizeof name, "%s%s/%s", mount, path, version2 ? "cpu.max" : "cpu.cfs_quota_us");
    dml__read_text(text, sizeof text, root, name);
    quota = strtod(text, &end); /* version 2: "200000 100000", or "max 100000" */
    if (version2) {
        period = strtod(end, NULL);
    } else if (quota > 0) {
        snprintf(name, sizeof name, "%s%s/cpu.cfs_period_us", mount, path);
        dml__read_text(text, sizeof text, root, name);
        period = strtod(text, NULL);
    }
    if (!(quota > 0) || !(period > 0) || quota / period >= INT_MAX) return INT_MAX;
    return quota < period ? 1 : (int)(quota / period);
}

/* The smallest quota of a group and of those that it is in. Inside a container the path may be the outer
   system's: then only the last, the mounted root, is there, and is the container's own. */
static int dml__least_quota(const char *root, const char *mount, char *path, bool version2)
{
    int least = INT_MAX;
    for (;;) {
        char *slash = strrchr(path, '/');
        if (slash && !slash[1]) *slash = '\0'; /* "/" is "" */
        const int quota = dml__quota_of(root, mount, path, version2);
        if (quota < least) least = quota;
        slash = strrchr(path, '/');
        if (!slash) return least;
        *slash = '\0';
    }
}

/* Whether "cpuset,cpu,cpuacct" names cpu. */
static bool dml__names_cpu(const char *names, const char *end)
{
    while (names < end) {
        const char *comma = (const char *)memchr(names, ',', (size_t)(end - names));
        const char *stop = comma ? comma : end;
        if (stop - names == 3 && memcmp(names, "cpu", 3) == 0) return true;
        names = stop + 1;
    }
    return false;
}

/* Each line of /proc/self/cgroup is "number:controllers:path"; version 2's is "0::path". */
DML__LOCAL int dml__cpu_quota(const char *root)
{
    static const char *const mounts2[] = { "/sys/fs/cgroup", "/sys/fs/cgroup/unified" };
    static const char *const mounts1[] = { "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct" };
    char groups[4096];
    int least = INT_MAX;
    dml__read_text(groups, sizeof groups, root, "/proc/self/cgroup");
    for (char *line = groups, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = '\0';
        const char *names = strchr(line, ':');
        const char *path = names ? strchr(names + 1, ':') : NULL;
        if (!path) continue;
        const bool version2 = path == names + 1;
        if (!version2 && !dml__names_cpu(names + 1, path)) continue;
        for (int i = 0; i < 2; i++) {
            char copy[512];
            if (snprintf(copy, sizeof copy, "%s", path + 1) >= (int)sizeof copy) continue;
            const int quota = dml__least_quota(root, version2 ? mounts2[i] : mounts1[i], copy, version2);
            if (quota < least) least = quota;
        }
    }
    return least;
}
#else
DML__LOCAL int dml__cpu_quota(const char *root)
{
    (void)root;
    return INT_MAX;
}
#endif

static int dml__cpu_online(void)
{
#if defined(_WIN32)
    return (int)dml__windows_GetActiveProcessorCount(0xFFFF);
#elif defined(_SC_NPROCESSORS_ONLN)
    return (int)sysconf(_SC_NPROCESSORS_ONLN);
#else
    return 1;
#endif
}

static int dml__cpu_in_mask(void)
{
#if defined(_WIN32)
    /* The mask is 0 for a process in several groups of processors (of more than 64). */
    size_t mine = 0, everyones = 0;
    int count = 0;
    if (dml__windows_GetProcessAffinityMask(dml__windows_GetCurrentProcess(), &mine, &everyones))
        for (; mine; mine &= mine - 1) count++;
    if (count > 0) return count;
#endif
#if defined(__linux__) && defined(CPU_COUNT)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
#endif
    const int online = dml__cpu_online();
    return online > 0 ? online : 1;
}

DML__LOCAL int dml__processor_number(void)
{
#if defined(__linux__) && defined(CPU_COUNT) /* (as much as _GNU_SOURCE) */
    return sched_getcpu();
#else
    return -1;
#endif
}

DML__LOCAL bool dml__is_intel(void)
{
#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
    unsigned a, b, c, d;
    return __get_cpuid(0, &a, &b, &c, &d) && b == signature_INTEL_ebx;
#else
    return false;
#endif
}

DML_API int dml_cpu_count(void)
{
    const int count = dml__cpu_in_mask();
    const int quota = count > 1 ? dml__cpu_quota("") : 1;
    return quota < count ? quota : count;
}

DML_API int dml_cpu_share(void)
{
    const int count = dml_cpu_count(), ranks = dml__cpu_environment("LOCAL_WORLD_SIZE");
    if (ranks <= 1) return count;
    return count > ranks ? count / ranks : 1;
}

/* ---- caches ---- */

/* What a cache says of itself: its bytes, and how many logical processors share it. */
typedef struct dml__cache {
    size_t bytes;
    int sharers;
} dml__cache;

/* Threads of one core share its L1; so many fewer cores than processors share the others. */
static dml_caches dml__caches_from(const dml__cache level[4]) /* [1] to [3] */
{
    dml_caches caches = { level[1].bytes, level[2].bytes, level[3].bytes, 1 };
    const int threads = level[1].sharers > 1 ? level[1].sharers : 1;
    if (level[2].sharers > threads) caches.l2 /= (size_t)(level[2].sharers / threads);
    if (level[3].sharers > threads) caches.l3_cores = level[3].sharers / threads;
    return caches;
}

#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
/* Leaf 4 of Intel's processors and 0x8000001D of AMD's describe one cache a subleaf, in the same words. */
static dml_caches dml__caches_of_processor(void)
{
    dml__cache level[4];
    memset(level, 0, sizeof level);
    unsigned a = 0, b = 0, c = 0, d = 0;
    static const unsigned leaves[2] = { 4, 0x8000001Du };
    for (int which = 0; which < 2 && !level[1].bytes; which++) {
        __cpuid(leaves[which] & 0x80000000u, a, b, c, d);
        if (a < leaves[which]) continue;
        for (unsigned i = 0; i < 16; i++) {
            __cpuid_count(leaves[which], i, a, b, c, d);
            const unsigned type = a & 31, number = a >> 5 & 7; /* 1: data, 2: instructions, 3: both */
            if (type == 0) break;
            if (type == 2 || number < 1 || number > 3) continue;
            level[number].bytes =
                (size_t)((b >> 22) + 1) * ((b >> 12 & 0x3FF) + 1) * ((b & 0xFFF) + 1) * ((size_t)c + 1);
            level[number].sharers = (int)(a >> 14 & 0xFFF) + 1;
        }
    }
    return dml__caches_from(level);
}
#elif defined(__APPLE__)
static size_t dml__sysctl(const char *name)
{
    uint64_t value = 0; /* of 4 or 8 bytes; little endian */
    size_t bytes = sizeof value;
    return sysctlbyname(name, &value, &bytes, NULL, 0) == 0 ? (size_t)value : 0;
}

/* perflevel0 are the fast cores. */
static dml_caches dml__caches_of_processor(void)
{
    dml__cache level[4];
    memset(level, 0, sizeof level);
    level[1].bytes = dml__sysctl("hw.perflevel0.l1dcachesize");
    level[2].bytes = dml__sysctl("hw.perflevel0.l2cachesize");
    level[2].sharers = (int)dml__sysctl("hw.perflevel0.cpusperl2");
    if (!level[1].bytes) level[1].bytes = dml__sysctl("hw.l1dcachesize");
    if (!level[2].bytes) level[2].bytes = dml__sysctl("hw.l2cachesize");
    level[3].bytes = dml__sysctl("hw.l3cachesize");
    return dml__caches_from(level);
}
#else
static dml_caches dml__caches_of_processor(void)
{
    const dml_caches none = { 0, 0, 0, 1 };
    return none;
}
#endif

#if defined(__linux__)
/* How many processors "0-3,8,10-11" names. */
static int dml__count_list(const char *list)
{
    int count = 0;
    while (*list >= '0' && *list <= '9') {
        char *end;
        const long first = strtol(list, &end, 10);
        const long last = *end == '-' ? strtol(end + 1, &end, 10) : first;
        if (last >= first && last - first < 65536) count += (int)(last - first) + 1;
        list = *end == ',' ? end + 1 : "";
    }
    return count;
}

DML__LOCAL dml_caches dml__cpu_caches_of_system(const char *root)
{
    dml__cache level[4];
    memset(level, 0, sizeof level);
    for (int i = 0; i < 8; i++) {
        char path[80], text[256];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/level", i);
        char *name = strrchr(path, '/') + 1;
        const size_t room = sizeof path - (size_t)(name - path);
        dml__read_text(text, sizeof text, root, path);
        const int number = text[0] - '0';
        if (number < 1 || number > 3) continue;
        snprintf(name, room, "type");
        dml__read_text(text, sizeof text, root, path);
        if (text[0] != 'D' && text[0] != 'U') continue; /* Data, Unified */
        snprintf(name, room, "size");
        dml__read_text(text, sizeof text, root, path);
        char *unit;
        const unsigned long size = strtoul(text, &unit, 10);
        level[number].bytes = (size_t)size << (*unit == 'K' ? 10 : *unit == 'M' ? 20 : 0);
        snprintf(name, room, "shared_cpu_list");
        dml__read_text(text, sizeof text, root, path);
        level[number].sharers = dml__count_list(text);
    }
    return dml__caches_from(level);
}
#else
DML__LOCAL dml_caches dml__cpu_caches_of_system(const char *root)
{
    const dml_caches none = { 0, 0, 0, 1 };
    (void)root;
    return none;
}
#endif

DML_API dml_caches dml_cpu_caches(void)
{
    dml_caches caches = dml__caches_of_processor();
    if (!caches.l1 || !caches.l2) caches = dml__cpu_caches_of_system("");
    if (!caches.l1) caches.l1 = DML__LEAST_L1;
    if (!caches.l2) caches.l2 = DML__LEAST_L2;
    /* A virtual machine shows the cache of the whole, and some of its cores. */
    const int online = dml__cpu_online();
    if (caches.l3_cores > online) caches.l3_cores = online > 0 ? online : 1;
    return caches;
}

#endif
