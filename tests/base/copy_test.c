#include "base/copy.h"

#include "../test.h"

#include <stdlib.h>

/* Bytes of every kind, so that one in the wrong place is seen. */
static unsigned char byte_at(size_t i)
{
    return (unsigned char)(i * 131 + i / 256 * 7 + 1);
}

/* Every distance within a page that goes by lines, and those next to them; lengths around each bound. */
static void every_distance_and_length(void)
{
    enum { PAGE = 4096, MOST = (1 << 20) + 70 };
    static const size_t lengths[] = { 0,    1,    63,   64,           65,      2047,          2048,    2049,
                                      2050, 2111, 2112, 4 * PAGE + 3, 1 << 19, (1 << 20) - 1, 1 << 20, MOST };
    unsigned char *from = (unsigned char *)malloc(MOST), *to = (unsigned char *)malloc(MOST + 3 * PAGE);
    for (size_t i = 0; i < MOST; i++) from[i] = byte_at(i);
    for (size_t ahead = 0; ahead < 36; ahead++)
        for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
            const size_t bytes = lengths[l];
            if (bytes > 4 * PAGE + 3 && ahead % 16 != 1) continue;
            unsigned char *target = to + PAGE - ((uintptr_t)to - (uintptr_t)from) % PAGE + ahead;
            memset(target - 1, 0xee, bytes + 2);
            dml__copy_bytes(target, from, bytes);
            CHECK_MESSAGE(bytes == 0 || memcmp(target, from, bytes) == 0, "%zu bytes, %zu ahead", bytes,
                          ahead);
            CHECK_INT(target[-1], 0xee);
            CHECK_INT(target[bytes], 0xee);
        }
    free(from);
    free(to);
}

int main(void)
{
    RUN(every_distance_and_length);
    return test_report("base/copy");
}
