#include "base/bytes.h"

#include "../test.h"

/* At every place of a line, so that no access may rely on alignment. */
static void little_endian_at_any_address(void)
{
    unsigned char bytes[24];
    for (int at = 0; at < 9; at++) {
        memset(bytes, 0xee, sizeof bytes);
        dml__store16(bytes + at, 0x8102);
        CHECK(memcmp(bytes + at, "\x02\x81\xee", 3) == 0);
        CHECK(dml__load16(bytes + at) == 0x8102);
        dml__store32(bytes + at, 0x81020304);
        CHECK(memcmp(bytes + at, "\x04\x03\x02\x81\xee", 5) == 0);
        CHECK(dml__load32(bytes + at) == 0x81020304);
        dml__store64(bytes + at, 0x8102030405060708);
        CHECK(memcmp(bytes + at, "\x08\x07\x06\x05\x04\x03\x02\x81\xee", 9) == 0);
        CHECK(dml__load64(bytes + at) == 0x8102030405060708);
        for (int i = 0; i < at; i++) CHECK_INT(bytes[i], 0xee);
    }
}

static void extremes(void)
{
    const uint64_t values[] = { 0, 1, 0x7f, 0x80, 0xff, 0xffff, 0x7fffffff, 0x80000000, UINT64_MAX };
    unsigned char bytes[8];
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        dml__store64(bytes, values[i]);
        CHECK(dml__load64(bytes) == values[i]);
        dml__store32(bytes, (uint32_t)values[i]);
        CHECK(dml__load32(bytes) == (uint32_t)values[i]);
        dml__store16(bytes, (uint16_t)values[i]);
        CHECK(dml__load16(bytes) == (uint16_t)values[i]);
    }
}

static void floats_keep_their_bits(void)
{
    const float values[] = { 0, -0.0f, 1, -1.5f, 1e-45f, 3.4e38f, INFINITY };
    unsigned char bytes[5];
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        dml__store_f32(bytes + 1, values[i]);
        const float back = dml__load_f32(bytes + 1);
        CHECK(memcmp(&back, &values[i], sizeof back) == 0);
    }
    dml__store_f32(bytes, 1);
    CHECK(memcmp(bytes, "\0\0\x80\x3f", 4) == 0);
}

static void swapped_bytes(void)
{
    unsigned char bytes[25], got[25];
    for (int i = 0; i < 25; i++) bytes[i] = (unsigned char)i;
    for (size_t width = 1; width <= 8; width++) {
        memset(got, 0xee, sizeof got);
        dml__swap_bytes(got, bytes, 3, width);
        for (size_t i = 0; i < 3 * width; i++)
            CHECK_INT(got[i], bytes[i / width * width + (width - 1 - i % width)]);
        CHECK_INT(got[3 * width], 0xee);
        dml__swap_bytes(got, got, 3, width); /* in its place, and back */
        CHECK(memcmp(got, bytes, 3 * width) == 0);
    }
}

static void the_order_of_this_machine(void)
{
    uint32_t number;
    dml__store32(&number, 0x01020304);
    CHECK(dml__little_endian() == (number == 0x01020304));
}

int main(void)
{
    RUN(little_endian_at_any_address);
    RUN(extremes);
    RUN(floats_keep_their_bits);
    RUN(swapped_bytes);
    RUN(the_order_of_this_machine);
    return test_report("base/bytes");
}
