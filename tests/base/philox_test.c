#include "base/philox.h"

#include "../test.h"

/* The known answers of the authors' Random123 distribution (kat_vectors, philox4x32 10). */
static void known_answers(void)
{
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } cases[] = {
        { { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff },
          { 0xffffffff, 0xffffffff },
          { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
          { 0xa4093822, 0x299f31d0 },
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        uint32_t out[4];
        dml_philox4x32(cases[c].counter, cases[c].key, out);
        for (int i = 0; i < 4; i++) CHECK_INT(out[i], cases[c].out[i]);
    }
}

/* Numbers of streams, from the definition in other words: element e's bits are word e mod 4 of the block with
   the counter (e / 4, stream, step) under the key seed; the uniform is their upper 24 bits / 2^24; the normal
   is Box and Muller's of words 2 (e mod 2) and the next of block e / 2. Computed in float64 apart from the
   library. */
static void known_numbers(void)
{
    static const struct {
        dml_random random;
        uint64_t element;
        uint32_t bits;
        float uniform;
        double normal;
    } cases[] = {
        { { 0x0u, 0x0u, 0x0u }, 0x0u, 0x6627e8d5u, 0.399046421f, 0.991137475 },
        { { 0x0u, 0x0u, 0x0u }, 0x1u, 0xe169c58du, 0.880520165f, -0.617609055 },
        { { 0x0u, 0x0u, 0x0u }, 0x2u, 0xbc57ac4cu, 0.735712767f, -0.153638112 },
        { { 0x0u, 0x0u, 0x0u }, 0x3u, 0x9b00dbd8u, 0.605481803f, 0.831735127 },
        { { 0x0u, 0x0u, 0x0u }, 0x4u, 0xf8e4cca4u, 0.972241163f, -1.1863568 },
        { { 0x0u, 0x0u, 0x0u }, 0x7u, 0x097eff67u, 0.0370940566f, -0.898825915 },
        { { 0x0u, 0x0u, 0x0u }, 0xf4243u, 0xad59679eu, 0.677145422f, -2.00584732 },
        { { 0x0u, 0x0u, 0x0u }, 0x400000001u, 0xea236249u, 0.914602399f, -0.230054809 },
        { { 0x0u, 0x0u, 0x0u }, 0xffffffffffffffffu, 0x31eb18f7u, 0.194993496f, 0.166621548 },
        { { 0x123456789abcdefu, 0xfedcba98u, 0x76543210u }, 0x0u, 0x332198bau, 0.19973135f, 0.043158631 },
        { { 0x123456789abcdefu, 0xfedcba98u, 0x76543210u }, 0x1u, 0x3f052ccdu, 0.246172667f, 0.323015918 },
        { { 0x123456789abcdefu, 0xfedcba98u, 0x76543210u }, 0x2u, 0x11c7e9c9u, 0.0694566369f, -2.46634542 },
        { { 0x123456789abcdefu, 0xfedcba98u, 0x76543210u }, 0x3u, 0xc5b7975eu, 0.772332609f, 0.742284353 },
        { { 0x123456789abcdefu, 0xfedcba98u, 0x76543210u }, 0x4u, 0x0c3a6644u, 0.0477660894f, 0.376582582 },
        { { 0x123456789abcdefu, 0xfedcba98u, 0x76543210u }, 0x7u, 0x2dbd5604u, 0.178670287f, -2.56088542 },
        { { 0x123456789abcdefu, 0xfedcba98u, 0x76543210u },
          0xf4243u,
          0x8364e7fdu,
          0.513258398f,
          -0.831622182 },
        { { 0x123456789abcdefu, 0xfedcba98u, 0x76543210u },
          0x400000001u,
          0xa580aaf0u,
          0.646494508f,
          -1.28730065 },
        { { 0x123456789abcdefu, 0xfedcba98u, 0x76543210u },
          0xffffffffffffffffu,
          0xdce92733u,
          0.862932622f,
          -0.396003425 },
        { { 0x7u, 0x1u, 0x2u }, 0x0u, 0x1460bfddu, 0.0796012282f, 0.220488024 },
        { { 0x7u, 0x1u, 0x2u }, 0x1u, 0xc3ffdf5au, 0.765623033f, -0.110105807 },
        { { 0x7u, 0x1u, 0x2u }, 0x2u, 0x6bbd60e7u, 0.420858383f, -0.5701301 },
        { { 0x7u, 0x1u, 0x2u }, 0x3u, 0xbc9610aeu, 0.736664772f, -0.0265181959 },
        { { 0x7u, 0x1u, 0x2u }, 0x4u, 0xd8cbeb5du, 0.846861541f, -0.00674409186 },
        { { 0x7u, 0x1u, 0x2u }, 0x7u, 0xbeacb331u, 0.744822681f, -1.11498152 },
        { { 0x7u, 0x1u, 0x2u }, 0xf4243u, 0xaf70b9b0u, 0.685313761f, -1.14545167 },
        { { 0x7u, 0x1u, 0x2u }, 0x400000001u, 0x37c72196u, 0.217882216f, 0.795993521 },
        { { 0x7u, 0x1u, 0x2u }, 0xffffffffffffffffu, 0x3013388fu, 0.187793255f, 0.282129237 },
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        CHECK_INT(dml_random_bits(&cases[c].random, cases[c].element), cases[c].bits);
        CHECK(dml_random_uniform(&cases[c].random, cases[c].element) == cases[c].uniform);
        CHECK_NEAR(dml_random_normal(&cases[c].random, cases[c].element), cases[c].normal, 3e-6);
    }
}

/* Fisher and Yates's shuffle from the end, i changing places with bits(i) (i + 1) / 2^32. */
static void known_permutations(void)
{
    static const int first[20] = { 16, 12, 14, 19, 18, 17, 3, 9, 11, 7, 0, 1, 4, 10, 6, 2, 8, 13, 5, 15 };
    static const int second[10] = { 7, 1, 9, 5, 6, 2, 4, 8, 0, 3 };
    static const int third[8] = { 986, 839, 63, 703, 482, 380, 160, 231 };
    const dml_random a = { 0x0123456789abcdefu, 5, 9 }, b = { 0, 0, 0 }, c = { 7, 3, 0 };
    int order[1000] = { 0 };
    dml_random_permutation(&a, order, 20);
    CHECK(memcmp(order, first, sizeof first) == 0);
    dml_random_permutation(&b, order, 10);
    CHECK(memcmp(order, second, sizeof second) == 0);
    dml_random_permutation(&c, order, 1000);
    CHECK(memcmp(order, third, sizeof third) == 0);
    order[0] = order[1] = 9;
    dml_random_permutation(&c, order, 1);
    CHECK(order[0] == 0 && order[1] == 9);
    dml_random_permutation(&c, order, 0);
    CHECK(order[0] == 0);
}

static void uniform_and_normal_have_their_moments(void)
{
    const dml_random random = { 7, 1, 2 };
    const int n = 100000;
    double sum = 0, square = 0, normal = 0, normal_square = 0;
    for (int i = 0; i < n; i++) {
        const double u = (double)dml_random_uniform(&random, (uint64_t)i);
        const double z = (double)dml_random_normal(&random, (uint64_t)i);
        CHECK(u >= 0 && u < 1);
        sum += u, square += u * u, normal += z, normal_square += z * z;
    }
    CHECK_NEAR(sum / n, 0.5, 0.005);
    CHECK_NEAR(square / n, 1.0 / 3, 0.005);
    CHECK_NEAR(normal / n, 0, 0.015);
    CHECK_NEAR(normal_square / n, 1, 0.02);
}

static void permutation_holds_each_index_once(void)
{
    enum { N = 1000 };
    const dml_random random = { 7, 3, 0 };
    int order[N], seen[N] = { 0 }, moved = 0;
    dml_random_permutation(&random, order, N);
    for (int i = 0; i < N; i++) {
        CHECK(order[i] >= 0 && order[i] < N);
        seen[order[i]]++;
        moved += order[i] != i;
    }
    for (int i = 0; i < N; i++) CHECK_INT(seen[i], 1);
    CHECK(moved > N / 2);
}

int main(void)
{
    RUN(known_answers);
    RUN(known_numbers);
    RUN(known_permutations);
    RUN(uniform_and_normal_have_their_moments);
    RUN(permutation_holds_each_index_once);
    return test_report("base/philox");
}
