/* Matrix products, and what they need: tiles that fit the registers, and transposes. */
#include "tiles.h"

/* Cycles of one pass over a tile: two multiply-adds and two loads start each cycle, and an
 * accumulator can be used again after four. */
static float tile_cycles(Int a, Int b) {
    float work = a * b / 2.0f, loads = (a + b) / 2.0f;
    return fmaxf(fmaxf(work, loads), 4.0f) + 0.5f;
}

static float cover_cycles(Int high, Int wide, Int a, Int b) {
    Int whole_a = high / a, rest_a = high % a, whole_b = wide / b, rest_b = wide % b;
    float cycles = whole_a * whole_b * tile_cycles(a, b);
    if (rest_a) cycles += whole_b * tile_cycles(rest_a, b);
    if (rest_b) cycles += whole_a * tile_cycles(a, rest_b);
    if (rest_a && rest_b) cycles += tile_cycles(rest_a, rest_b);
    return cycles;
}

Tile tile_for(Int high, Int wide) {
    Tile best = {1, 1};
    float least = INFINITY;
    for (Int i = 1; i <= TALL; i++)
        for (Int j = 1; j <= WIDE; j++) {
            if (!FITS(i, j)) continue;
            float cycles = cover_cycles(high, wide, i, j);
            if (cycles < least) least = cycles, best = (Tile){i, j};
        }
    return best;
}

static ALWAYS_INLINE void multiply_tile(const int a, const int b, const Product *p) {
    vec sum[TALL][WIDE]; /* constant bounds: registers, not memory */
    UNROLL for (int i = 0; i < a; i++)
        UNROLL for (int j = 0; j < b; j++)
            sum[i][j] = p->add ? *(const loose *)(p->c + i * p->c_m + j * LANES) : (vec){0};
    const float *left = p->a, *right = p->b;
    Int a_m = p->a_m, a_k = p->a_k, b_k = p->b_k;
    for (Int k = p->depth; k > 0; k--) {
        vec value[WIDE];
        UNROLL for (int j = 0; j < b; j++) {
            value[j] = ((const loose *)right)[j];
            HOLD(value[j]);
        }
        UNROLL for (int i = 0; i < a; i++) {
            vec factor = splat(left[i * a_m]);
            UNROLL for (int j = 0; j < b; j++) sum[i][j] += factor * value[j];
        }
        left += a_k, right += b_k;
    }
    UNROLL for (int i = 0; i < a; i++)
        UNROLL for (int j = 0; j < b; j++) *(loose *)(p->c + i * p->c_m + j * LANES) = sum[i][j];
}

#define DEFINE(A, B) \
    static void multiply_##A##_##B(const Product *p) { multiply_tile(A, B, p); }
EACH_SIZE(DEFINE)
#define ENTRY(A, B) [A][B] = multiply_##A##_##B,
static void (*const multipliers[TALL + 1][WIDE + 1])(const Product *) = {EACH_SIZE(ENTRY)};

#define DEEP 192 /* rows of b of which a tile's part stays in the first cache */

void multiply(const Product *p, Int m, Int n, Tile best) {
    Product tile = *p;
    Int parts = largest(1, (p->depth + DEEP - 1) / DEEP), deep = (p->depth + parts - 1) / parts;
    for (Int k = 0; k < p->depth; k += deep) {
        tile.depth = smallest(deep, p->depth - k);
        for (Int j = 0; j < n; j += best.wide) {
            Int b = smallest(best.wide, n - j);
            tile.b = p->b + k * p->b_k + j * LANES;
            for (Int i = 0; i < m; i += best.tall) {
                tile.a = p->a + i * p->a_m + k * p->a_k;
                tile.c = p->c + i * p->c_m + j * LANES;
                multipliers[smallest(best.tall, m - i)][b](&tile);
            }
        }
        tile.add = 1;
    }
}

/* ---- sums of every lane by itself ---- */

static ALWAYS_INLINE void dot_tile(const int a, const int b, const Dots *d) {
    vec sum[TALL][WIDE];
    const vec *right[WIDE], *left = d->left;
    Int left_m = d->left_m, depth = d->depth;
    UNROLL for (int i = 0; i < a; i++)
        UNROLL for (int j = 0; j < b; j++) sum[i][j] = d->add ? d->sum[i * d->sum_m + j] : (vec){0};
    UNROLL for (int j = 0; j < b; j++) right[j] = d->right[j];
    for (Int k = 0; k < depth; k++) {
        vec value[WIDE];
        UNROLL for (int j = 0; j < b; j++) value[j] = right[j][k];
        UNROLL for (int i = 0; i < a; i++) {
            vec factor = left[i * left_m + k];
            HOLD(factor);
            UNROLL for (int j = 0; j < b; j++) sum[i][j] += factor * value[j];
        }
    }
    UNROLL for (int i = 0; i < a; i++)
        UNROLL for (int j = 0; j < b; j++) d->sum[i * d->sum_m + j] = sum[i][j];
}

#define DEFINE_DOTS(A, B) \
    static void dots_##A##_##B(const Dots *d) { dot_tile(A, B, d); }
EACH_SIZE(DEFINE_DOTS)
#define DOTS_ENTRY(A, B) [A][B] = dots_##A##_##B,
static void (*const dot_tiles[TALL + 1][WIDE + 1])(const Dots *) = {EACH_SIZE(DOTS_ENTRY)};

void dots(const Dots *d, Int m, Int n) {
    const Int tall = TALL, wide = REGISTERS == 32 ? 3 : 2; /* wider ones lack registers for addresses */
    Dots tile = *d;
    for (Int i = 0; i < m; i += tall) {
        Int a = smallest(tall, m - i);
        tile.left = d->left + i * d->left_m;
        for (Int j = 0; j < n; j += wide) {
            tile.right = d->right + j;
            tile.sum = d->sum + i * d->sum_m + j;
            dot_tiles[a][smallest(wide, n - j)](&tile);
        }
    }
}

/* LANES x LANES values. Values a power of two apart change places, one power after the other. */
#if defined(__AVX__) && !defined(__AVX512F__)
static ALWAYS_INLINE void turn_tile(const float *const from[LANES], Int at, float *to, Int to_row) {
    __m256 a[8], b[8];
    UNROLL for (int i = 0; i < 8; i++) a[i] = _mm256_loadu_ps(from[i] + at);
    UNROLL for (int i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
    UNROLL for (int i = 0; i < 8; i += 4)
        UNROLL for (int j = 0; j < 2; j++) {
            a[i + 2 * j] = _mm256_shuffle_ps(b[i + j], b[i + j + 2], 0x44);
            a[i + 2 * j + 1] = _mm256_shuffle_ps(b[i + j], b[i + j + 2], 0xEE);
        }
    UNROLL for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(to + i * to_row, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * to_row, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
    }
}
#elif defined(__GNUC__) && !defined(__clang__)
#define POWERS 4
static ivec upper[POWERS], lower[POWERS];

static __attribute__((constructor)) void fill_shuffles(void) {
    for (int p = 0, s = 1; s < LANES; p++, s *= 2)
        for (int l = 0; l < LANES; l++) {
            upper[p][l] = l & s ? LANES + l - s : l;
            lower[p][l] = l & s ? LANES + l : l + s;
        }
}

static ALWAYS_INLINE void turn_tile(const float *const from[LANES], Int at, float *to, Int to_row) {
    vec v[LANES];
    UNROLL for (int i = 0; i < LANES; i++) v[i] = *(const loose *)(from[i] + at);
    UNROLL for (int p = 0; p < POWERS; p++) {
        const int s = 1 << p;
        if (s >= LANES) break;
        UNROLL for (int i = 0; i < LANES; i++) {
            if (i & s) continue;
            vec a = v[i], b = v[i + s];
            v[i] = __builtin_shuffle(a, b, upper[p]);
            v[i + s] = __builtin_shuffle(a, b, lower[p]);
        }
    }
    UNROLL for (int i = 0; i < LANES; i++) *(loose *)(to + i * to_row) = v[i];
}
#else
static void turn_tile(const float *const from[LANES], Int at, float *to, Int to_row) {
    for (Int i = 0; i < LANES; i++)
        for (Int j = 0; j < LANES; j++) to[i * to_row + j] = from[j][at + i];
}
#endif

void turn(const float *const from[LANES], Int count, float *to, Int to_row) {
    for (Int c = 0; c + LANES <= count; c += LANES) turn_tile(from, c, to + c * to_row, to_row);
    for (Int c = count / LANES * LANES; c < count; c++)
        for (Int i = 0; i < LANES; i++) to[c * to_row + i] = from[i][c];
}
