#ifndef DML_DIST_COMPRESS_SPARSE_C
#define DML_DIST_COMPRESS_SPARSE_C

#include "dist/compress_codec.h"

#include "base/bytes.h"

#include <string.h>

/* As numbers, these are in the order of magnitudes; those of infinities and NaNs are the largest. */
static uint32_t dml__magnitude_key(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7FFFFFFFu;
}

DML__LOCAL size_t dml__sparse_count(double fraction, size_t n)
{
    const double wanted = fraction * (double)n;
    size_t k = (size_t)wanted;
    if ((double)k < wanted) k++;
    return k < n ? k : n;
}

/* The key of the k-th largest magnitude of x, k at least 1, by three passes that each find 11 of its bits (10
 * the last time); *equal is how many of those with that key are among the k. */
static uint32_t dml__kth_magnitude(size_t n, const float *x, size_t k, size_t *equal)
{
    static const int shift[] = { 20, 10, 0 };
    size_t count[2048];
    uint32_t found = 0;
    for (int pass = 0; pass < 3; pass++) {
        const int above = pass ? shift[pass - 1] : 31;
        const uint32_t mask = (1u << (above - shift[pass])) - 1;
        memset(count, 0, sizeof count);
        for (size_t i = 0; i < n; i++) {
            const uint32_t key = dml__magnitude_key(x[i]);
            if (key >> above == found >> above) count[key >> shift[pass] & mask]++;
        }
        uint32_t digit = mask;
        while (digit > 0 && count[digit] < k) k -= count[digit--];
        found |= digit << shift[pass];
    }
    *equal = k;
    return found;
}

static bool dml__all_finite(size_t n, const float *x)
{
    uint32_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t key = dml__magnitude_key(x[i]);
        largest = key > largest ? key : largest;
    }
    return largest < 0x7F800000u;
}

static void dml__sparse_store(unsigned char *code, size_t k, size_t entry, size_t place, float value)
{
    dml__store32(code + 4 * entry, (uint32_t)place);
    dml__store_f32(code + 4 * (k + entry), value);
}

DML__LOCAL void dml__sparsify(size_t n, size_t k, const float *g, float unit, float momentum, float *velocity,
                              float *kept, unsigned char *code)
{
    if (n == 0) return;
    if (!dml__all_finite(n, g)) {
        const uint32_t nan_bits = 0x7FC00000u;
        float nan;
        memcpy(&nan, &nan_bits, sizeof nan);
        memset(kept, 0, n * sizeof *kept);
        if (velocity) memset(velocity, 0, n * sizeof *velocity);
        for (size_t e = 0; e < k; e++) dml__sparse_store(code, k, e, e, nan);
        return;
    }
    if (velocity) {
        for (size_t i = 0; i < n; i++) {
            velocity[i] = momentum * velocity[i] + unit * g[i];
            kept[i] += velocity[i];
        }
    } else {
        for (size_t i = 0; i < n; i++) kept[i] += unit * g[i];
    }
    size_t equal, entry = 0;
    const uint32_t least = dml__kth_magnitude(n, kept, k, &equal);
    for (size_t i = 0; i < n; i++) {
        const uint32_t key = dml__magnitude_key(kept[i]);
        if (key < least || (key == least && equal == 0)) continue;
        if (key == least) equal--;
        dml__sparse_store(code, k, entry++, i, kept[i]);
        kept[i] = 0;
        if (velocity) velocity[i] = 0;
    }
    DML_ASSERT(entry == k);
}

DML__LOCAL void dml__sparse_sum(size_t n, size_t k, const unsigned char *codes, int ranks, float factor,
                                float *sum)
{
    memset(sum, 0, n * sizeof *sum);
    for (int r = 0; r < ranks; r++, codes += 8 * k)
        for (size_t e = 0; e < k; e++) {
            const uint32_t place = dml__load32(codes + 4 * e);
            if (place < n) sum[place] += dml__load_f32(codes + 4 * (k + e));
        }
    for (size_t i = 0; i < n; i++) sum[i] *= factor;
}

#endif
