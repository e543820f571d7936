#include "base/memory.h"

#include "../test.h"

/* A host's allocator that counts, hands out the most awkward addresses it may, and fails on request. */
typedef struct host {
    int live, calls;
    int fail_at; /* the call that fails, from 1 */
} host;

static void *host_allocate(void *user, size_t bytes)
{
    host *h = (host *)user;
    if (++h->calls == h->fail_at) return NULL;
    char *memory = (char *)malloc(bytes + 16);
    if (!memory) return NULL;
    h->live++;
    return memory + 16;
}

static void host_release(void *user, void *memory)
{
    ((host *)user)->live--;
    free((char *)memory - 16);
}

static bool aligned(const void *pointer)
{
    return ((uintptr_t)pointer & (DML__ALIGNMENT - 1)) == 0;
}

static bool all_bytes(const unsigned char *memory, size_t bytes, unsigned char value)
{
    for (size_t i = 0; i < bytes; i++)
        if (memory[i] != value) return false;
    return true;
}

enum { SLOTS = 64 };

/* Random allocations and releases; each block is filled with a value of its own, so an overlap shows. */
static void stress(dml__memory *memory, int rounds, size_t most, const char *low, const char *high)
{
    unsigned state = 1;
    unsigned char *block[SLOTS];
    size_t bytes[SLOTS];
    int refused = 0;
    memset(block, 0, sizeof block);
    for (int round = 0; round < rounds; round++) {
        const int i = (int)(test_random(&state) % SLOTS);
        if (block[i]) {
            CHECK(all_bytes(block[i], bytes[i], (unsigned char)(i + 1)));
            dml__release(memory, block[i]);
            block[i] = NULL;
            continue;
        }
        bytes[i] = test_random(&state) % 4 ? test_random(&state) % 200 : test_random(&state) % most;
        block[i] = (unsigned char *)dml__allocate(memory, bytes[i]);
        if (!block[i]) {
            refused++;
            continue;
        }
        CHECK(aligned(block[i]));
        CHECK(!low || ((char *)block[i] >= low && (char *)block[i] + bytes[i] <= high));
        CHECK(all_bytes(block[i], bytes[i], 0));
        memset(block[i], i + 1, bytes[i]);
    }
    CHECK_MESSAGE(low ? refused > 0 : refused == 0, "%d allocations refused", refused);
    for (int i = 0; i < SLOTS; i++) dml__release(memory, block[i]);
}

static void the_callers_allocator(void)
{
    host h = { 0, 0, 0 };
    dml_allocator allocator = { host_allocate, host_release, &h };
    dml__memory memory;
    dml__memory_init(&memory, &allocator, NULL, 0);
    stress(&memory, 5000, 5000, NULL, NULL);
    CHECK(h.calls > 1000);
    CHECK_INT(h.live, 0);
    h.fail_at = h.calls + 1;
    CHECK(dml__allocate(&memory, 10) == NULL);
    CHECK_INT(h.live, 0);
}

static void malloc_by_default(void)
{
    const dml_allocator nothing = { NULL, NULL, NULL };
    dml__memory memory;
    dml__memory_init(&memory, NULL, NULL, 0);
    stress(&memory, 1000, 5000, NULL, NULL);
    dml__memory_init(&memory, &nothing, NULL, 0);
    stress(&memory, 1000, 5000, NULL, NULL);
}

/* The largest block that can be had. */
static size_t largest(dml__memory *memory, size_t limit)
{
    size_t low = 0, high = limit + 1; /* low works, high doesn't */
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        void *block = dml__allocate(memory, middle);
        dml__release(memory, block);
        if (block)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Nothing but the buffer is used, and after everything is released it is one block again. */
static void the_callers_buffer(void)
{
    enum { BYTES = 20000, MARGIN = 64 };
    char *around = (char *)malloc(BYTES + 2 * MARGIN);
    for (size_t shift = 0; shift < 64; shift += 7) {
        dml__memory memory;
        char *buffer = around + shift;
        memset(around, 0x77, BYTES + 2 * MARGIN);
        dml__memory_init(&memory, NULL, buffer, BYTES);
        const size_t before = largest(&memory, BYTES);
        CHECK(before >= BYTES - 3 * DML__ALIGNMENT && before <= BYTES);
        stress(&memory, 20000, BYTES / 8, buffer, buffer + BYTES);
        CHECK_INT(largest(&memory, BYTES), before);
        CHECK(all_bytes((unsigned char *)around, shift, 0x77));
        CHECK(all_bytes((unsigned char *)buffer + BYTES, 2 * MARGIN - shift, 0x77));
    }
    free(around);
}

enum { FEW = 8 };

/* Takes and gives back blocks, empty ones among them; false: there was no room for one. */
static bool all_fit(dml__memory *memory, unsigned state)
{
    static const size_t sizes[] = { 0, 1, 64, 65, 300 };
    void *block[FEW] = { NULL };
    for (int round = 0; round < 20; round++) {
        const unsigned i = test_random(&state) % FEW, size = test_random(&state) % 5;
        dml__release(memory, block[i]);
        block[i] = dml__allocate(memory, sizes[size]);
        if (!block[i]) return false;
    }
    return true;
}

/* A buffer that begins in the worst place is enough, too. */
static void what_is_needed_is_enough(void)
{
    static char around[8192];
    char *buffer = around + (-(intptr_t)around & (DML__ALIGNMENT - 1)) + 1;
    int wrong = 0;
    for (unsigned seed = 1; seed <= 500; seed++) {
        dml__memory memory;
        dml__memory_init(&memory, NULL, buffer, 8000);
        CHECK(all_fit(&memory, seed));
        dml__memory_init(&memory, NULL, buffer, dml__memory_needed(&memory));
        wrong += !all_fit(&memory, seed);
    }
    CHECK_INT(wrong, 0);
}

static void a_buffer_too_small_for_anything(void)
{
    char buffer[200];
    for (size_t bytes = 0; bytes < sizeof buffer; bytes++) {
        dml__memory memory;
        dml__memory_init(&memory, NULL, buffer, bytes);
        void *block = dml__allocate(&memory, bytes);
        CHECK(!block || bytes == 0);
        block = dml__allocate(&memory, 1);
        CHECK(!block || ((char *)block > buffer && (char *)block < buffer + bytes));
    }
}

static void sizes_that_do_not_fit(void)
{
    char buffer[4096];
    for (int from_buffer = 0; from_buffer < 2; from_buffer++) {
        dml__memory memory;
        dml__memory_init(&memory, NULL, from_buffer ? buffer : NULL, sizeof buffer);
        CHECK(dml__allocate(&memory, SIZE_MAX) == NULL);
        CHECK(dml__allocate(&memory, SIZE_MAX - DML__ALIGNMENT) == NULL);
        CHECK(dml__allocate_array(&memory, SIZE_MAX / 2, 3) == NULL);
        CHECK(dml__allocate_array(&memory, 3, SIZE_MAX / 2) == NULL);
        for (size_t count = 0; count < 2; count++) {
            void *none = dml__allocate_array(&memory, count, 1 - count);
            CHECK(none && aligned(none));
            dml__release(&memory, none);
        }
        dml__release(&memory, NULL);
    }
}

static void rounding_up(void)
{
    CHECK_INT(dml__align_up(0), 0);
    CHECK_INT(dml__align_up(1), 64);
    CHECK_INT(dml__align_up(64), 64);
    CHECK_INT(dml__align_up(65), 128);
}

/* Whatever the memory, however the range lies on its pages. */
static void pages_become_zero(void)
{
    enum { BYTES = 50000 };
    static char buffer[BYTES + 4096];
    static const size_t ranges[][2] = { { 0, BYTES },    { 1, BYTES },     { 63, 64 },       { 5000, 40001 },
                                        { 4096, 12288 }, { 7777, 7777 },   { BYTES, BYTES }, { 100, 9000 },
                                        { 3, 16387 },    { 16387, 49999 }, { 0, 1 } };
    for (int kind = 0; kind < 3; kind++) {
        dml__memory memory;
        host h = { 0, 0, 0 };
        const dml_allocator own = { host_allocate, host_release, &h };
        dml__memory_init(&memory, kind == 1 ? &own : NULL, kind == 2 ? buffer : NULL, sizeof buffer);
        char *block = (char *)dml__allocate(&memory, BYTES);
        CHECK(block);
        for (size_t r = 0; block && r < sizeof ranges / sizeof ranges[0]; r++) {
            const size_t begin = ranges[r][0], end = ranges[r][1];
            int wrong = 0;
            memset(block, 7, BYTES);
            dml__zero_pages(&memory, block + begin, end - begin);
            for (size_t i = 0; i < BYTES; i++) wrong += block[i] != (i >= begin && i < end ? 0 : 7);
            CHECK_INT(wrong, 0);
        }
        dml__release(&memory, block);
    }
}

/* The flags that the system says the mapping has that holds `at`; false: it says none. */
static bool flags_of(const void *at, char *flags, int size)
{
    FILE *maps = fopen("/proc/self/smaps", "r");
    char line[512];
    bool inside = false, found = false;
    while (maps && !found && fgets(line, sizeof line, maps)) {
        unsigned long long from, to;
        if (sscanf(line, "%llx-%llx ", &from, &to) == 2)
            inside = (uintptr_t)at >= (uintptr_t)from && (uintptr_t)at < (uintptr_t)to;
        else if (inside && strncmp(line, "VmFlags:", 8) == 0)
            found = snprintf(flags, (size_t)size, "%s", line + 8) > 0;
    }
    if (maps) fclose(maps);
    return found;
}

static void large_blocks_in_large_pages(void)
{
    enum { LARGE = 9 << 20, SMALL = 1 << 20 };
    FILE *enabled = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    char flags[512] = "";
    dml__memory memory;
    host h = { 0, 0, 0 };
    const dml_allocator own = { host_allocate, host_release, &h };
    if (enabled) fclose(enabled);
    for (int kind = 0; kind < 3; kind++) { /* ours; too small; the caller's, which is none of our business */
        dml__memory_init(&memory, kind == 2 ? &own : NULL, NULL, 0);
        unsigned char *block = (unsigned char *)dml__allocate(&memory, kind == 1 ? SMALL : LARGE);
        CHECK(block && all_bytes(block, kind == 1 ? SMALL : LARGE, 0));
        if (!enabled || TEST_EMULATOR || !flags_of(block + SMALL / 2, flags, sizeof flags))
            SKIP("the system doesn't say which pages are large");
        else
            CHECK_MESSAGE((strstr(flags, " hg") != NULL) == (kind == 0), "block %d:%s", kind, flags);
        dml__release(&memory, block);
    }
    CHECK_INT(h.live, 0);
}

int main(void)
{
    RUN(the_callers_allocator);
    RUN(malloc_by_default);
    RUN(the_callers_buffer);
    RUN(what_is_needed_is_enough);
    RUN(a_buffer_too_small_for_anything);
    RUN(sizes_that_do_not_fit);
    RUN(rounding_up);
    RUN(pages_become_zero);
    RUN(large_blocks_in_large_pages);
    return test_report("base/memory");
}
