#include "base/cpu.h"
#include "base/cpu_internal.h"

#include "../test.h"

#include <limits.h>
#ifndef _WIN32
#include <sys/stat.h>
#include <unistd.h>
#endif

static void names(void)
{
    CHECK_STRING(dml_isa_name(DML_ISA_SCALAR), "scalar");
    CHECK_STRING(dml_isa_name(DML_ISA_NEON), "neon");
    CHECK_STRING(dml_isa_name(DML_ISA_AVX2), "avx2");
    CHECK_STRING(dml_isa_name(DML_ISA_AVX512), "avx512");
    CHECK_STRING(dml_isa_name(DML__ISA_COUNT), "?");
}

/* DML_ISA lowers the instruction set and never raises it. */
static void the_environment_only_lowers(void)
{
    unsetenv("DML_ISA");
    const dml_isa best = dml_cpu_isa();
    CHECK((int)best >= 0 && best < DML__ISA_COUNT);
    for (int isa = 0; isa < (int)DML__ISA_COUNT; isa++) {
        setenv("DML_ISA", dml_isa_name((dml_isa)isa), 1);
        CHECK(dml_cpu_isa() <= best);
        CHECK((int)dml_cpu_isa() <= isa || dml_cpu_isa() == best);
    }
    setenv("DML_ISA", "scalar", 1);
    CHECK_INT(dml_cpu_isa(), DML_ISA_SCALAR);
    setenv("DML_ISA", "nonsense", 1);
    CHECK_INT(dml_cpu_isa(), best);
    unsetenv("DML_ISA");
#if defined(__aarch64__)
    CHECK_INT(best, DML_ISA_NEON);
#endif
}

/* A name that is none is found out, so that a slip of the pen doesn't run the best there is. */
static void names_that_are_none(void)
{
    static const char *const none[] = { "avx3", "AVX2", "avx", "avx2 ", "sse", "?" };
    const char *wanted = "";
    unsetenv("DML_ISA");
    CHECK(dml__cpu_isa_known(&wanted));
    for (int isa = 0; isa < (int)DML__ISA_COUNT; isa++) {
        setenv("DML_ISA", dml_isa_name((dml_isa)isa), 1);
        CHECK(dml__cpu_isa_known(&wanted));
    }
    setenv("DML_ISA", "", 1);
    CHECK(dml__cpu_isa_known(&wanted));
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        setenv("DML_ISA", none[i], 1);
        CHECK(!dml__cpu_isa_known(&wanted));
        CHECK_STRING(wanted, none[i]);
    }
    unsetenv("DML_ISA");
}

static void at_least_one_processor(void)
{
    CHECK(dml_cpu_count() >= 1);
}

static void caches_make_sense(void)
{
    const dml_caches caches = dml_cpu_caches();
    CHECK(caches.l1 >= (size_t)1 << 12 && caches.l1 <= (size_t)1 << 24);
    CHECK(caches.l2 >= (size_t)1 << 14 && caches.l2 <= (size_t)1 << 30);
    CHECK(caches.l3 == 0 || caches.l3 >= caches.l1);
    CHECK(caches.l3_cores >= 1 && caches.l3_cores <= 65536);
}

#if defined(__linux__)
static char root[64];

/* A file of the fake machine under `root`, with the folders on the way to it. */
static void put(const char *path, const char *text)
{
    char whole[512];
    snprintf(whole, sizeof whole, "%s%s", root, path);
    for (char *c = whole + strlen(root) + 1; *c; c++)
        if (*c == '/') {
            *c = '\0';
            mkdir(whole, 0700);
            *c = '/';
        }
    FILE *file = fopen(whole, "w");
    CHECK_MESSAGE(file && fputs(text, file) >= 0 && fclose(file) == 0, "%s can't be written", whole);
}

static void fake_machine(void)
{
    strcpy(root, "/tmp/dml_cpu_test_XXXXXX");
    CHECK(mkdtemp(root) != NULL);
}

static void remove_machine(void)
{
    char command[100];
    snprintf(command, sizeof command, "rm -r %s", root);
    CHECK_INT(system(command), 0);
}

static void put_cache(int index, const char *level, const char *type, const char *size, const char *shared)
{
    static const char *const names[] = { "level", "type", "size", "shared_cpu_list" };
    const char *const texts[] = { level, type, size, shared };
    for (int i = 0; i < 4; i++) {
        char path[128];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, names[i]);
        put(path, texts[i]);
    }
}

static void check_caches(size_t l1, size_t l2, size_t l3, int l3_cores)
{
    const dml_caches caches = dml__cpu_caches_of_system(root);
    CHECK_INT(caches.l1, l1);
    CHECK_INT(caches.l2, l2);
    CHECK_INT(caches.l3, l3);
    CHECK_INT(caches.l3_cores, l3_cores);
}

static void caches_as_linux_describes_them(void)
{
    fake_machine();
    check_caches(0, 0, 0, 1);
    put_cache(0, "1\n", "Data\n", "64K\n", "0\n");
    put_cache(1, "1\n", "Instruction\n", "128K\n", "0\n");
    put_cache(2, "2\n", "Unified\n", "4M\n", "0-3\n");
    check_caches(64 << 10, 1 << 20, 0, 1); /* four cores share an L2: each has a quarter */
    put_cache(2, "2\n", "Unified\n", "512K\n", "0,8\n");
    put_cache(3, "3\n", "Unified\n", "32768K\n", "0-7,8-15\n");
    check_caches(64 << 10, 256 << 10, 32 << 20, 16);
    put_cache(0, "1\n", "Data\n", "64K\n", "0,8\n"); /* two threads a core */
    check_caches(64 << 10, 512 << 10, 32 << 20, 8);
    put_cache(3, "3\n", "Unified\n", "", "nonsense");
    check_caches(64 << 10, 512 << 10, 0, 1);
    put_cache(3, "9\n", "Unified\n", "1K", "3-1,-2");
    check_caches(64 << 10, 512 << 10, 0, 1);
    remove_machine();
}
static void quotas_of_version_2(void)
{
    fake_machine();
    CHECK_INT(dml__cpu_quota(root), INT_MAX);
    put("/proc/self/cgroup", "0::/a/b\n");
    CHECK_INT(dml__cpu_quota(root), INT_MAX);
    put("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    CHECK_INT(dml__cpu_quota(root), INT_MAX);
    put("/sys/fs/cgroup/a/cpu.max", "350000 100000\n"); /* a group that ours is in */
    CHECK_INT(dml__cpu_quota(root), 3);
    put("/sys/fs/cgroup/a/b/cpu.max", "200000 100000\n");
    CHECK_INT(dml__cpu_quota(root), 2);
    put("/sys/fs/cgroup/cpu.max", "50000 100000\n"); /* less than one is one */
    CHECK_INT(dml__cpu_quota(root), 1);
    put("/sys/fs/cgroup/cpu.max", "800000 100000\n");
    put("/proc/self/cgroup", "0::/\n"); /* a container's own view */
    CHECK_INT(dml__cpu_quota(root), 8);
    put("/proc/self/cgroup", "0::/elsewhere/outside\n"); /* the outer system's path, the container's files */
    CHECK_INT(dml__cpu_quota(root), 8);
    static const char *const none[] = { "",          "\n",      "max",     "5",  "100000 0",
                                        "-1 100000", "nan nan", "1e300 1", "0 1" };
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        put("/sys/fs/cgroup/cpu.max", none[i]);
        CHECK_MESSAGE(dml__cpu_quota(root) == INT_MAX, "'%s' is a quota", none[i]);
    }
    remove_machine();
}

static void quotas_of_version_1(void)
{
    fake_machine();
    put("/proc/self/cgroup",
        "4:memory:/m\n3:cpuset:/s\n2:cpu,cpuacct:/job/of mine\n1:name=systemd:/\n0::/\n");
    put("/sys/fs/cgroup/cpu,cpuacct/job/of mine/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu,cpuacct/job/of mine/cpu.cfs_period_us", "100000\n");
    CHECK_INT(dml__cpu_quota(root), INT_MAX);
    put("/sys/fs/cgroup/cpu,cpuacct/job/of mine/cpu.cfs_quota_us", "250000\n");
    CHECK_INT(dml__cpu_quota(root), 2);
    put("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "100000\n");
    CHECK_INT(dml__cpu_quota(root), 2); /* no period: none */
    put("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
    CHECK_INT(dml__cpu_quota(root), 1);
    put("/sys/fs/cgroup/memory/m/cpu.cfs_quota_us", "1\n"); /* another controller's */
    put("/sys/fs/cgroup/memory/m/cpu.cfs_period_us", "1\n");
    put("/proc/self/cgroup", "2:cpu:/x\n");
    CHECK_INT(dml__cpu_quota(root), INT_MAX);
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "700000\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    CHECK_INT(dml__cpu_quota(root), 7);
    static const char *const none[] = { "", ":", "::", "2:cpu", "2:cpux:/", "2:xcpu,acpu:/", "2:,,:/\n3" };
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        put("/proc/self/cgroup", none[i]);
        CHECK_MESSAGE(dml__cpu_quota(root) == INT_MAX, "'%s' names a group", none[i]);
    }
    remove_machine();
}
#else
static void caches_as_linux_describes_them(void)
{
    SKIP("this isn't Linux");
}

static void quotas_of_version_2(void)
{
    CHECK_INT(dml__cpu_quota(""), INT_MAX);
}

static void quotas_of_version_1(void)
{
}
#endif

static void ranks_share_the_processors(void)
{
    unsetenv("LOCAL_WORLD_SIZE");
    const int all = dml_cpu_count();
    CHECK_INT(dml_cpu_share(), all);
    for (int ranks = 0; ranks <= all + 1; ranks++) {
        char text[20];
        snprintf(text, sizeof text, "%d", ranks);
        setenv("LOCAL_WORLD_SIZE", text, 1);
        CHECK_INT(dml_cpu_share(), ranks < 2 ? all : ranks > all ? 1 : all / ranks);
    }
    static const char *const none[] = { "many", "-3", "2x", " 2" };
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        setenv("LOCAL_WORLD_SIZE", none[i], 1);
        CHECK_INT(dml_cpu_share(), all);
    }
    setenv("LOCAL_WORLD_SIZE", "99999999999999999999999", 1);
    CHECK_INT(dml_cpu_share(), 1);
    unsetenv("LOCAL_WORLD_SIZE");
}

int main(void)
{
    RUN(names);
    RUN(the_environment_only_lowers);
    RUN(names_that_are_none);
    RUN(at_least_one_processor);
    RUN(caches_make_sense);
    RUN(caches_as_linux_describes_them);
    RUN(quotas_of_version_2);
    RUN(quotas_of_version_1);
    RUN(ranks_share_the_processors);
    return test_report("base/cpu");
}
