/* attention.cl: scaled dot-product attention in tiles, of which a group keeps one of TILE x TILE scores; and
   rotary positions. Source: Dao, "FlashAttention-2", 2023, section 3.1.

   Heads lie beside each other in rows of q, k, v and y; those of q, k and v are some step long. `saved` is
   (samples, heads, queries) log_sums, as many levels (each query's sum of y dy), and (samples) lengths as
   ints. Ints of all: samples, queries, keys, heads, kv_heads, width, q_step, k_step, v_step, how many keys
   before and after its own position a query sees, whether there are lengths; floats: the scale of scores. Int
   13, of forward: the lengths are of keys that queries stand behind, and of none after itself a query sees;
   int 14: floats from a head's keys or values to the next head's, 0: they lie beside each other. A group does
   TILE rows, and TILE columns of a head: wider heads compute their scores once for each. */
#ifndef DML_GPU_ATTENTION_CL
#define DML_GPU_ATTENTION_CL

/* sum = X Y^T of rows `row0` and on of x (rows, x_step), and `column0` and on of y (columns, y_step). */
#define ATTENTION_SCORES(x, x_step, row0, rows, y, y_step, column0, columns)                                 \
    do {                                                                                                     \
        for (int i = 0; i < SPAN; i++)                                                                       \
            for (int j = 0; j < SPAN; j++) sum[i][j] = 0.0f;                                                 \
        for (int k0 = 0; k0 < width; k0 += TILE_K) {                                                         \
            for (int j = 0; j < SPAN; j++) {                                                                 \
                const int kk = k0 + ALONG_K_K, row = (row0) + ALONG_K_ROW(j);                                \
                const int column = (column0) + ALONG_K_ROW(j);                                               \
                A_TILE(ALONG_K_K, ALONG_K_ROW(j)) =                                                          \
                    row < (rows) && kk < width ? (x)[(WIDE)row * (x_step) + kk] : 0.0f;                      \
                B_TILE(ALONG_K_K, ALONG_K_ROW(j)) =                                                          \
                    column < (columns) && kk < width ? (y)[(WIDE)column * (y_step) + kk] : 0.0f;             \
            }                                                                                                \
            TILES_MULTIPLY();                                                                                \
        }                                                                                                    \
    } while (0)

/* mixed += the transpose of `scores` (TILE, TILE) times columns `piece` and on of rows `row0` and on of
   x (rows, x_step). All items have written their scores. */
#define MIX_SCORE(kk, row) scores[k0 + (kk)][row]
#define ATTENTION_MIX(x, x_step, row0, rows)                                                                 \
    do {                                                                                                     \
        for (int k0 = 0; k0 < TILE; k0 += TILE_K) {                                                          \
            for (int j = 0; j < SPAN; j++) {                                                                 \
                const int row = (row0) + k0 + ACROSS_K_K(j, TILE), column = piece + ACROSS_K_ROW(TILE);      \
                B_TILE(ACROSS_K_K(j, TILE), ACROSS_K_ROW(TILE)) =                                            \
                    row < (rows) && column < width ? (x)[(WIDE)row * (x_step) + column] : 0.0f;              \
            }                                                                                                \
            BARRIER();                                                                                       \
            UNROLL for (int kk = 0; kk < TILE_K; kk++)                                                       \
            {                                                                                                \
                float a_own[SPAN], b_own[SPAN];                                                              \
                TILES_OWN(a_own, SPAN, MIX_SCORE, OWN_ROW);                                                  \
                TILES_OWN(b_own, SPAN, B_TILE, OWN_COLUMN);                                                  \
                UNROLL for (int i = 0; i < SPAN; i++) UNROLL for (int j = 0; j < SPAN; j++) mixed[i][j] +=   \
                    a_own[i] * b_own[j];                                                                     \
            }                                                                                                \
            BARRIER();                                                                                       \
        }                                                                                                    \
    } while (0)

/* Whether query t sees key s of `length`. */
HELPER int dml__attention_sees(int t, int s, int length, int before, int after)
{
    return s < length && (WIDE)t - s <= before && (WIDE)s - t <= after;
}

/* The first and the end of the places from - before .. to + after, of 0 .. limit - 1; the first at the
   beginning of a tile. */
HELPER int dml__attention_first(int from, int before)
{
    return from > before ? (from - before) / TILE * TILE : 0;
}

HELPER int dml__attention_end(int to, int after, int limit)
{
    return (WIDE)to + after + 1 < limit ? to + after + 1 : limit;
}

HELPER int dml__attention_length(GLOBAL const float *saved, WIDE lines, int sample, int there, int keys)
{
    int length = keys;
    if (there) length = ((GLOBAL const int *)saved)[2 * lines + sample];
    return length < keys ? length : keys;
}

/* How many keys a sample's queries stand behind. */
HELPER int dml__attention_past(GLOBAL const float *saved, WIDE lines, int sample, int behind)
{
    return behind ? ((GLOBAL const int *)saved)[2 * lines + sample] : 0;
}

/* Where the keys or values of the group's head begin. */
#define ATTENTION_HEAD_AT(step)                                                                              \
    (INT(14) ? ((WIDE)sample * INT(4) + kv_head) * INT(14) : (WIDE)sample * keys * (step) + kv_head * width)

/* y = softmax(scale q k^T) v, and log_sums. Buffers q, k, v, saved, y; size{queries, samples * heads * pieces
   of TILE columns}. */
KERNEL(attention_forward_team)
{
    const int samples = INT(0), queries = INT(1), keys = INT(2), heads = INT(3), width = INT(5);
    const int pieces = (width + TILE - 1) / TILE, line = GROUP_Y / pieces, piece = GROUP_Y % pieces * TILE;
    const int inside = line < samples * heads; /* groups may be more than there is */
    const int sample = inside ? line / heads : 0, head = line % heads, kv_head = head / (heads / INT(4));
    const WIDE lines = (WIDE)samples * heads * queries;
    GLOBAL const float *q = BUFFER(0, const float) + (WIDE)sample * queries * INT(6) + head * width;
    GLOBAL const float *k = BUFFER(1, const float) + ATTENTION_HEAD_AT(INT(7));
    GLOBAL const float *v = BUFFER(2, const float) + ATTENTION_HEAD_AT(INT(8));
    GLOBAL float *saved = BUFFER(3, float);
    GLOBAL float *y = BUFFER(4, float) + (WIDE)sample * queries * heads * width + head * width;
    const int past = dml__attention_past(saved, lines, sample, INT(13));
    const int length = INT(13) ? past + queries : dml__attention_length(saved, lines, sample, INT(11), keys);
    const int t0 = GROUP_X * TILE, before = INT(9) - past, after = INT(10) + past;
    const int end = inside ? dml__attention_end(t0 + TILE - 1, after, length) : 0;
    const float scale = REAL(0);
    const int own = ITEM / 4, lane = ITEM % 4;       /* of a row of scores, 4 items */
    LOCAL_QUADS float scores[TILE][TILE + TILE_PAD]; /* (keys, queries) */
    LOCAL float part[DML__GROUP_ITEMS];
    LOCAL float largest[TILE];
    LOCAL float total[TILE];
    LOCAL float factor[TILE];
    LOCAL_QUADS float a_tile[TILE_K_OF(TILE) * (TILE + TILE_PAD)];
    LOCAL_QUADS float b_tile[TILE_K_OF(TILE) * (TILE + TILE_PAD)];
    const int tile_rows = TILE, tile_columns = TILE;
    TILES_BEGIN();
    float mixed[SPAN][SPAN];
    for (int i = 0; i < SPAN; i++)
        for (int j = 0; j < SPAN; j++) mixed[i][j] = 0.0f;
    if (lane == 0) largest[own] = MINUS_INFINITY, total[own] = 0.0f;
    for (int s0 = dml__attention_first(t0, before); s0 < end; s0 += TILE) {
        ATTENTION_SCORES(q, INT(6), t0, queries, k, INT(7), s0, length);
        for (int i = 0; i < SPAN; i++)
            for (int j = 0; j < SPAN; j++)
                scores[OWN_COLUMN(j)][OWN_ROW(i)] =
                    dml__attention_sees(t0 + OWN_ROW(i), s0 + OWN_COLUMN(j), length, before, after)
                        ? scale * sum[i][j]
                        : MINUS_INFINITY;
        BARRIER();
        float most = largest[own], added = 0.0f;
        for (int c = lane; c < TILE; c += 4)
            if (scores[c][own] > most) most = scores[c][own];
        part[ITEM] = most;
        REDUCE_MAX(part, lane, 4, 1);
        most = part[ITEM - lane];
        BARRIER(); /* all have read it before its place is used again */
        const float base = most > MINUS_INFINITY ? most : 0.0f;
        for (int c = lane; c < TILE; c += 4) {
            const float e = EXP(scores[c][own] - base);
            scores[c][own] = e;
            added += e;
        }
        part[ITEM] = added;
        REDUCE_SUM(part, lane, 4, 1);
        if (lane == 0) {
            factor[own] = largest[own] > MINUS_INFINITY ? EXP(largest[own] - base) : 1.0f;
            total[own] = total[own] * factor[own] + part[ITEM];
            largest[own] = most;
        }
        BARRIER();
        for (int i = 0; i < SPAN; i++)
            for (int j = 0; j < SPAN; j++) mixed[i][j] *= factor[OWN_ROW(i)];
        ATTENTION_MIX(v, INT(8), s0, length);
    }
    BARRIER();
    for (int i = 0; i < SPAN; i++) {
        const int t = t0 + OWN_ROW(i);
        const float of_row = total[OWN_ROW(i)];
        for (int j = 0; j < SPAN; j++) {
            const int column = piece + OWN_COLUMN(j);
            if (inside && t < queries && column < width)
                y[(WIDE)t * heads * width + column] = of_row == 0.0f ? 0.0f : mixed[i][j] / of_row;
        }
    }
    if (lane == 0 && piece == 0 && inside && t0 + own < queries)
        saved[(WIDE)line * queries + t0 + own] =
            total[own] == 0.0f ? -MINUS_INFINITY : largest[own] + LOG(total[own]);
}

/* levels = the sums of y dy of each head of each query. Buffers y, dy, nothing, saved; size{samples * heads *
   queries}. */
KERNEL(attention_levels)
{
    const unsigned queries = (unsigned)INT(1), heads = (unsigned)INT(3), width = (unsigned)INT(5);
    const unsigned lines = (unsigned)INT(0) * heads * queries;
    if (ELEMENT < lines) {
        const unsigned t = ELEMENT % queries, head = ELEMENT / queries % heads;
        const WIDE from = (((WIDE)(ELEMENT / queries / heads) * queries + t) * heads + head) * width;
        GLOBAL const float *y = BUFFER(0, const float) + from;
        GLOBAL const float *dy = BUFFER(1, const float) + from;
        float sum = 0.0f;
        for (unsigned c = 0; c < width; c++) sum += y[c] * dy[c];
        BUFFER(3, float)[(WIDE)lines + ELEMENT] = sum;
    }
}

/* The gradient of q, k or v, as int 12 is 0, 1 or 2: += beta x what is there. Rows are queries, or keys, and
   then the scores are those of keys by queries, of all heads that share them. Buffers q, k, v, saved, dy, the
   gradient; floats beta after the scale; size{queries or keys, samples * heads or kv_heads * pieces}. */
KERNEL(attention_backward_team)
{
    const int samples = INT(0), queries = INT(1), keys = INT(2), heads = INT(3), width = INT(5);
    const int of_keys = INT(12) > 0, group = of_keys ? heads / INT(4) : 1, own_heads = heads / group;
    const int pieces = (width + TILE - 1) / TILE, line = GROUP_Y / pieces, piece = GROUP_Y % pieces * TILE;
    const int inside = line < samples * own_heads;
    const int sample = inside ? line / own_heads : 0;
    const int kv_head = of_keys ? line % own_heads : line % own_heads / (heads / INT(4));
    const WIDE lines = (WIDE)samples * heads * queries;
    GLOBAL const float *k = BUFFER(1, const float) + (WIDE)sample * keys * INT(7) + kv_head * width;
    GLOBAL const float *v = BUFFER(2, const float) + (WIDE)sample * keys * INT(8) + kv_head * width;
    GLOBAL const float *saved = BUFFER(3, const float);
    const int length = dml__attention_length(saved, lines, sample, INT(11), keys);
    const int row0 = GROUP_X * TILE, before = of_keys ? INT(10) : INT(9), after = of_keys ? INT(9) : INT(10);
    const int limit = of_keys ? queries : length, y_step = heads * width;
    const int end =
        inside && (!of_keys || row0 < length) ? dml__attention_end(row0 + TILE - 1, after, limit) : 0;
    const int mixed_step = INT(12) == 0 ? INT(7) : INT(12) == 1 ? INT(6) : y_step;
    const float scale = REAL(0), beta = REAL(1);
    LOCAL_QUADS float scores[TILE][TILE + TILE_PAD]; /* (columns, rows) */
    LOCAL_QUADS float a_tile[TILE_K_OF(TILE) * (TILE + TILE_PAD)];
    LOCAL_QUADS float b_tile[TILE_K_OF(TILE) * (TILE + TILE_PAD)];
    const int tile_rows = TILE, tile_columns = TILE;
    TILES_BEGIN();
    float mixed[SPAN][SPAN], p[SPAN][SPAN];
    for (int i = 0; i < SPAN; i++)
        for (int j = 0; j < SPAN; j++) mixed[i][j] = 0.0f;
    for (int of_group = 0; of_group < group; of_group++) {
        const int head = line % own_heads * group + of_group;
        const WIDE first = ((WIDE)sample * heads + head) * queries;
        GLOBAL const float *q = BUFFER(0, const float) + (WIDE)sample * queries * INT(6) + head * width;
        GLOBAL const float *dy = BUFFER(4, const float) + (WIDE)sample * queries * y_step + head * width;
        GLOBAL const float *mixes = INT(12) == 0 ? k : INT(12) == 1 ? q : dy;
        for (int column0 = dml__attention_first(row0, before); column0 < end; column0 += TILE) {
            /* The probabilities, and then the slopes of the scores: of queries and keys, and of dy and
             * values. */
            for (int slopes = 0; slopes < (INT(12) < 2 ? 2 : 1); slopes++) {
                GLOBAL const float *by_query = slopes ? dy : q;
                GLOBAL const float *by_key = slopes ? v : k;
                GLOBAL const float *own = of_keys ? by_key : by_query;
                GLOBAL const float *other = of_keys ? by_query : by_key;
                const int query_step = slopes ? y_step : INT(6), key_step = slopes ? INT(8) : INT(7);
                const int own_step = of_keys ? key_step : query_step;
                const int other_step = of_keys ? query_step : key_step;
                ATTENTION_SCORES(own, own_step, row0, of_keys ? length : queries, other, other_step, column0,
                                 limit);
                for (int i = 0; i < SPAN; i++)
                    for (int j = 0; j < SPAN; j++) {
                        const int row = row0 + OWN_ROW(i), column = column0 + OWN_COLUMN(j);
                        const int t = of_keys ? column : row, s = of_keys ? row : column;
                        const int seen = t < queries && dml__attention_sees(t, s, length, INT(9), INT(10));
                        if (!seen)
                            p[i][j] = 0.0f;
                        else if (!slopes)
                            p[i][j] = EXP(scale * sum[i][j] - saved[first + t]);
                        else
                            p[i][j] *= scale * (sum[i][j] - saved[lines + first + t]);
                    }
            }
            for (int i = 0; i < SPAN; i++)
                for (int j = 0; j < SPAN; j++) scores[OWN_COLUMN(j)][OWN_ROW(i)] = p[i][j];
            BARRIER();
            ATTENTION_MIX(mixes, mixed_step, column0, limit);
        }
    }
    const int step = INT(12) == 0 ? INT(6) : INT(12) == 1 ? INT(7) : INT(8);
    const int rows = of_keys ? keys : queries, head = line % own_heads;
    GLOBAL float *to = BUFFER(5, float) + (WIDE)sample * rows * step + head * width;
    for (int i = 0; i < SPAN; i++) {
        for (int j = 0; j < SPAN; j++) {
            const int row = row0 + OWN_ROW(i), column = piece + OWN_COLUMN(j);
            if (inside && row < rows && column < width) {
                GLOBAL float *at = to + (WIDE)row * step + column;
                *at = dml__with_beta(mixed[i][j], beta, at);
            }
        }
    }
}

/* The heads of rows of x (samples, rows, x_step) into y (samples, heads, y_step), each row of a head behind
   as many as buffer 1, of ints, says of its sample. Buffers x, the ints, y; ints samples x rows x heads x
   width, rows, heads, width, x_step, y_step; size{the first}. */
KERNEL(keep_rows)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL float *y = BUFFER(2, float);
    const unsigned rows = (unsigned)INT(1), heads = (unsigned)INT(2), width = (unsigned)INT(3);
    if (ELEMENT < (unsigned)INT(0)) {
        const unsigned column = ELEMENT % width, head = ELEMENT / width % heads;
        const unsigned row = ELEMENT / width / heads % rows, sample = ELEMENT / width / heads / rows;
        const WIDE place = (WIDE)BUFFER(1, const int)[sample] + row;
        y[((WIDE)sample * heads + head) * INT(5) + place * width + column] =
            x[((WIDE)sample * rows + row) * INT(4) + head * width + column];
    }
}

/* y = the pairs of x turned + beta y. Buffers x, table (positions, 2, width / 2), y; ints pairs, positions,
   heads, width, heads that are turned, whether pairs are neighbours, whether buffer 3 says which position
   each row has; floats 1 or, to turn back, -1, and beta; size{pairs}. y may be x. */
KERNEL(rotary)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *table = BUFFER(1, const float);
    GLOBAL float *y = BUFFER(2, float);
    const unsigned heads = (unsigned)INT(2), width = (unsigned)INT(3), half_width = width / 2;
    const float beta = REAL(1);
    if (ELEMENT < (unsigned)INT(0)) {
        const unsigned pair = ELEMENT % half_width, head = ELEMENT / half_width % heads;
        const unsigned row = ELEMENT / half_width / heads;
        const unsigned position = INT(6) ? (unsigned)BUFFER(3, const int)[row] : row % (unsigned)INT(1);
        const WIDE first = ((WIDE)row * heads + head) * width;
        const WIDE a = first + (INT(5) ? 2 * pair : pair), b = INT(5) ? a + 1 : a + half_width;
        const float from_a = x[a], from_b = x[b];
        const int turned = head < (unsigned)INT(4);
        const float cosine = turned ? table[(WIDE)position * width + pair] : 1.0f;
        const float sine = turned ? REAL(0) * table[(WIDE)position * width + half_width + pair] : 0.0f;
        const float to_a = turned ? from_a * cosine - from_b * sine : from_a;
        const float to_b = turned ? from_b * cosine + from_a * sine : from_b;
        y[a] = dml__with_beta(to_a, beta, y + a);
        y[b] = dml__with_beta(to_b, beta, y + b);
    }
}

#endif
