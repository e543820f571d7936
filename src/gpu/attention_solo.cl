/* attention_solo.cl: the kernels of attention.cl where an item is a whole processor core: the products of
   scores and of what is mixed by them are those of solo.cl, and a row of scores is a few vectors. */
#ifndef DML_GPU_ATTENTION_SOLO_CL
#define DML_GPU_ATTENTION_SOLO_CL
#ifdef SOLO_KERNEL

/* Rows of a head: of its queries, keys or values, or of their gradients. */
typedef struct dml__solo_head {
    GLOBAL const float *first, *end;
    WIDE step;
} dml__solo_head;

HELPER dml__solo_head dml__solo_head_of(GLOBAL const float *first, WIDE step, int rows, int width)
{
    dml__solo_head head;
    head.first = first, head.step = step;
    head.end = first + (rows - 1) * step + width;
    return head;
}

/* s.sum = X Y^T of x's rows `row0` and on and y's rows `column0` and on. */
HELPER void dml__solo_scores(const dml__solo s, const dml__solo_head x, int row0, const dml__solo_head y,
                             int column0, int width)
{
    dml__solo_clear(s);
    for (int k0 = 0; k0 < width; k0 += SOLO_K) {
        const int ks = width - k0 < SOLO_K ? width - k0 : SOLO_K;
        for (int row = 0; row < s.rows; row++)
            dml__solo_copy(s.a + row * SOLO_K, x.first + (row0 + row) * x.step + k0, ks, x.end);
        dml__solo_turn(s, y.first + column0 * y.step + k0, y.step, ks);
        dml__solo_multiply(s, ks);
    }
}

/* The piece where shares (TILE, SOLO_K) mix up to TILE of `columns`; B's place is that of s. */
HELPER dml__solo dml__solo_mix_of(const dml__solo s, float *shares, float *mixed, int columns)
{
    dml__solo m = s;
    m.a = shares, m.sum = mixed;
    m.columns = columns < TILE ? columns : TILE;
    return m;
}

/* m.sum += the shares m.a (TILE, SOLO_K), times columns `piece` and on of x's rows `row0` and on. */
HELPER void dml__solo_mix(const dml__solo m, const dml__solo_head x, int row0, int rows, int piece)
{
    for (int k = 0; k < rows; k++)
        dml__solo_copy(m.b + k * TILE, x.first + (row0 + k) * x.step + piece, m.columns, x.end);
    dml__solo_multiply(m, rows);
}

/* Sets what lies outside of from .. to - 1 of a row of TILE. */
HELPER void dml__solo_mask(float *line, int from, int to, float value)
{
    for (int c = 0; c < from && c < TILE; c++) line[c] = value;
    for (int c = to < 0 ? 0 : to; c < TILE; c++) line[c] = value;
}

/* Turns a row of scores into exponentials of what they are above `most`, the largest so far, which it
   becomes; returns their sum. */
HELPER float dml__solo_exponentials(float *line, float scale, int from, int to, float *most)
{
    float lane[VECTOR_LANES];
    VECTOR largest = VECTOR_OF(*most), sum = VECTOR_OF(0.0f);
    for (int c = 0; c < TILE; c += VECTOR_LANES)
        VECTOR_STORE(line + c, VECTOR_ADD_PRODUCT(VECTOR_OF(0.0f), scale, VECTOR_LOAD(line + c)));
    dml__solo_mask(line, from, to, MINUS_INFINITY);
    for (int c = 0; c < TILE; c += VECTOR_LANES) largest = VECTOR_MOST(largest, VECTOR_LOAD(line + c));
    VECTOR_STORE(lane, largest);
    for (int i = 0; i < VECTOR_LANES; i++)
        if (lane[i] > *most) *most = lane[i];
    const VECTOR base = VECTOR_OF(*most > MINUS_INFINITY ? *most : 0.0f);
    for (int c = 0; c < TILE; c += VECTOR_LANES) {
        const VECTOR e = VECTOR_EXP(VECTOR_ADD_PRODUCT(VECTOR_LOAD(line + c), -1.0f, base));
        VECTOR_STORE(line + c, e);
        sum = VECTOR_ADD_PRODUCT(sum, 1.0f, e);
    }
    return dml__solo_total(sum);
}

/* What attention_forward_team computes, of the same arguments. The scores (TILE, SOLO_K) are what mixes. */
SOLO_KERNEL(attention_forward_solo)
{
    const int samples = INT(0), queries = INT(1), keys = INT(2), heads = INT(3), width = INT(5);
    const int pieces = (width + TILE - 1) / TILE, line = GROUP_Y / pieces, column0 = GROUP_Y % pieces * TILE;
    if (line >= samples * heads) return; /* groups may be more than there is */
    const int sample = line / heads, head = line % heads, kv_head = head / (heads / INT(4));
    const WIDE lines = (WIDE)samples * heads * queries;
    const dml__solo_head q = dml__solo_head_of(
        BUFFER(0, const float) + (WIDE)sample * queries * INT(6) + head * width, INT(6), queries, width);
    const dml__solo_head k =
        dml__solo_head_of(BUFFER(1, const float) + ATTENTION_HEAD_AT(INT(7)), INT(7), keys, width);
    const dml__solo_head v =
        dml__solo_head_of(BUFFER(2, const float) + ATTENTION_HEAD_AT(INT(8)), INT(8), keys, width);
    GLOBAL float *saved = BUFFER(3, float);
    GLOBAL float *y = BUFFER(4, float) + (WIDE)sample * queries * heads * width + head * width + column0;
    const int past = dml__attention_past(saved, lines, sample, INT(13));
    const int length = INT(13) ? past + queries : dml__attention_length(saved, lines, sample, INT(11), keys);
    const int t0 = GROUP_X * TILE, before = INT(9) - past, after = INT(10) + past;
    const int end = dml__attention_end(t0 + TILE - 1, after, length);
    SOLO_LOCAL float mixed_piece[TILE * TILE];
    SOLO_LOCAL float largest[TILE];
    SOLO_LOCAL float total[TILE];
    SOLO_BEGIN(0, queries - t0, length);
    const dml__solo mix = dml__solo_mix_of(piece, piece.sum, mixed_piece, width - column0);
    dml__solo_zero(mixed_piece, TILE * TILE);
    for (int row = 0; row < piece.rows; row++) largest[row] = MINUS_INFINITY, total[row] = 0.0f;
    for (int s0 = dml__attention_first(t0, before); s0 < end; s0 += TILE) {
        piece.columns = length - s0 < TILE ? length - s0 : TILE;
        dml__solo_scores(piece, q, t0, k, s0, width);
        for (int row = 0; row < piece.rows; row++) {
            const int t = t0 + row, from = (t > before ? t - before : 0) - s0;
            const float old = largest[row];
            const float sum =
                dml__solo_exponentials(piece.sum + row * TILE, REAL(0), from,
                                       dml__attention_end(t, after, length) - s0, largest + row);
            if (largest[row] > old && old > MINUS_INFINITY) {
                const float factor = EXP(old - largest[row]);
                total[row] *= factor;
                for (int j = 0; j < mix.columns; j++) mix.sum[row * TILE + j] *= factor;
            }
            total[row] += sum;
        }
        dml__solo_mix(mix, v, s0, piece.columns, column0);
    }
    for (int row = 0; row < piece.rows; row++) {
        const float of_row = total[row];
        GLOBAL float *to = y + (WIDE)(t0 + row) * heads * width;
        for (int j = 0; j < mix.columns; j++)
            to[j] = of_row == 0.0f ? 0.0f : mix.sum[row * TILE + j] / of_row;
        if (column0 == 0)
            saved[(WIDE)line * queries + t0 + row] =
                of_row == 0.0f ? -MINUS_INFINITY : largest[row] + LOG(of_row);
    }
}

/* What a tile of scores is told of its queries: minus their log_sums, or minus their levels times the scale.
 */
HELPER void dml__solo_of_queries(float *to, GLOBAL const float *from, int n, float factor)
{
    for (int i = 0; i < n; i++) to[i] = factor * from[i];
    for (int i = n; i < TILE; i++) to[i] = 0.0f;
}

/* Turns a row of scores into shares, or, of scores of dy and values, shares into slopes. Of each column there
   is an `own`, or of the row alone one. */
HELPER void dml__solo_shares(float *line, float *shares, float scale, const float *own, int by_column,
                             int slopes)
{
    for (int c = 0; c < TILE; c += VECTOR_LANES) {
        const VECTOR base = by_column ? VECTOR_LOAD(own + c) : VECTOR_OF(*own);
        const VECTOR value = VECTOR_ADD_PRODUCT(base, scale, VECTOR_LOAD(line + c));
        VECTOR_STORE(shares + c, slopes ? VECTOR_ADD_PRODUCTS(VECTOR_OF(0.0f), VECTOR_LOAD(shares + c), value)
                                        : VECTOR_EXP(value));
    }
}

/* What attention_backward_team computes, of the same arguments. */
SOLO_KERNEL(attention_backward_solo)
{
    const int samples = INT(0), queries = INT(1), keys = INT(2), heads = INT(3), width = INT(5);
    const int of_keys = INT(12) > 0, group = of_keys ? heads / INT(4) : 1, own_heads = heads / group;
    const int pieces = (width + TILE - 1) / TILE, line = GROUP_Y / pieces, column0 = GROUP_Y % pieces * TILE;
    if (line >= samples * own_heads) return;
    const int sample = line / own_heads, y_step = heads * width;
    const int kv_head = of_keys ? line % own_heads : line % own_heads / (heads / INT(4));
    const WIDE lines = (WIDE)samples * heads * queries;
    const dml__solo_head k = dml__solo_head_of(
        BUFFER(1, const float) + (WIDE)sample * keys * INT(7) + kv_head * width, INT(7), keys, width);
    const dml__solo_head v = dml__solo_head_of(
        BUFFER(2, const float) + (WIDE)sample * keys * INT(8) + kv_head * width, INT(8), keys, width);
    GLOBAL const float *saved = BUFFER(3, const float);
    const int length = dml__attention_length(saved, lines, sample, INT(11), keys);
    const int row0 = GROUP_X * TILE, before = of_keys ? INT(10) : INT(9), after = of_keys ? INT(9) : INT(10);
    const int rows = of_keys ? keys : queries, limit = of_keys ? queries : length;
    const int row_end = of_keys ? length : queries; /* of those that see, or are seen by, anything */
    const int end = row0 < row_end ? dml__attention_end(row0 + TILE - 1, after, limit) : 0;
    const float scale = REAL(0), beta = REAL(1);
    SOLO_LOCAL float shares[TILE * SOLO_K];
    SOLO_LOCAL float mixed_piece[TILE * TILE];
    SOLO_LOCAL float own[TILE];
    SOLO_BEGIN(0, rows - row0, limit);
    const dml__solo mix = dml__solo_mix_of(piece, shares, mixed_piece, width - column0);
    dml__solo_zero(mixed_piece, TILE * TILE);
    dml__solo_zero(shares, TILE * SOLO_K); /* of rows that nothing is known of, too */
    if (piece.rows > row_end - row0) piece.rows = row_end > row0 ? row_end - row0 : 0;
    for (int of_group = 0; of_group < group; of_group++) {
        const int head = line % own_heads * group + of_group;
        const WIDE first = ((WIDE)sample * heads + head) * queries;
        const dml__solo_head q = dml__solo_head_of(
            BUFFER(0, const float) + (WIDE)sample * queries * INT(6) + head * width, INT(6), queries, width);
        const dml__solo_head dy = dml__solo_head_of(
            BUFFER(4, const float) + (WIDE)sample * queries * y_step + head * width, y_step, queries, width);
        for (int s0 = dml__attention_first(row0, before); s0 < end; s0 += TILE) {
            const int t0 = of_keys ? s0 : row0; /* the first query */
            piece.columns = limit - s0 < TILE ? limit - s0 : TILE;
            for (int slopes = 0; slopes < (INT(12) < 2 ? 2 : 1); slopes++) {
                dml__solo_scores(piece,
                                 of_keys  ? (slopes ? v : k)
                                 : slopes ? dy
                                          : q,
                                 row0,
                                 of_keys  ? (slopes ? dy : q)
                                 : slopes ? v
                                          : k,
                                 s0, width);
                dml__solo_of_queries(own, saved + (slopes ? lines : 0) + first + t0,
                                     of_keys ? piece.columns : piece.rows, slopes ? -scale : -1.0f);
                for (int row = 0; row < piece.rows; row++) {
                    const int at = row0 + row;
                    dml__solo_shares(piece.sum + row * TILE, shares + row * SOLO_K, scale,
                                     of_keys ? own : own + row, of_keys, slopes);
                    dml__solo_mask(shares + row * SOLO_K, (at > before ? at - before : 0) - s0,
                                   dml__attention_end(at, after, limit) - s0, 0.0f);
                }
            }
            dml__solo_mix(mix, INT(12) == 0 ? k : INT(12) == 1 ? q : dy, s0, piece.columns, column0);
        }
    }
    const int step = INT(12) == 0 ? INT(6) : INT(12) == 1 ? INT(7) : INT(8);
    GLOBAL float *to = BUFFER(5, float) + (WIDE)sample * rows * step + line % own_heads * width + column0 +
                       (WIDE)row0 * step;
    dml__solo_write(mix, to, step, 1.0f, beta, 0, 0);
}

#endif
#endif
