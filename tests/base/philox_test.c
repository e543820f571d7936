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
    RUN(uniform_and_normal_have_their_moments);
    RUN(permutation_holds_each_index_once);
    return test_report("base/philox");
}
