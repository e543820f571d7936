#include "base/checksum.h"

#include "../test.h"

static void check_vectors(void)
{
    unsigned char data[32];
    CHECK(dml__crc32c(0, "123456789", 9) == 0xe3069283); /* the check value of the CRC catalogues */
    CHECK(dml__crc32c(0, NULL, 0) == 0);
    /* RFC 3720, B.4 */
    memset(data, 0, sizeof data);
    CHECK(dml__crc32c(0, data, 32) == 0x8a9136aa);
    memset(data, 0xff, sizeof data);
    CHECK(dml__crc32c(0, data, 32) == 0x62a8ab43);
    for (int i = 0; i < 32; i++) data[i] = (unsigned char)i;
    CHECK(dml__crc32c(0, data, 32) == 0x46dd794e);
    for (int i = 0; i < 32; i++) data[i] = (unsigned char)(31 - i);
    CHECK(dml__crc32c(0, data, 32) == 0x113fdb5c);
}

/* Also without the processor's instruction. */
static void known_answers(void)
{
    check_vectors();
    setenv("DML_ISA", "scalar", 1);
    check_vectors();
    unsetenv("DML_ISA");
}

static void any_cut_gives_the_same(void)
{
    enum { N = 300 };
    unsigned state = 1;
    unsigned char data[N];
    for (int i = 0; i < N; i++) data[i] = (unsigned char)test_random(&state);
    const uint32_t whole = dml__crc32c(0, data, N);
    for (size_t cut = 0; cut <= N; cut++)
        CHECK(dml__crc32c(dml__crc32c(0, data, cut), data + cut, N - cut) == whole);
}

static void each_flipped_bit_shows(void)
{
    unsigned char data[50];
    memset(data, 0x5a, sizeof data);
    const uint32_t whole = dml__crc32c(0, data, sizeof data);
    for (size_t bit = 0; bit < 8 * sizeof data; bit++) {
        data[bit / 8] = (unsigned char)(data[bit / 8] ^ 1u << bit % 8);
        CHECK(dml__crc32c(0, data, sizeof data) != whole);
        data[bit / 8] = (unsigned char)(data[bit / 8] ^ 1u << bit % 8);
    }
}

int main(void)
{
    RUN(known_answers);
    RUN(any_cut_gives_the_same);
    RUN(each_flipped_bit_shows);
    return test_report("base/checksum");
}
