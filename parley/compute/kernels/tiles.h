/* Register tiles: a x b accumulators that the compiler keeps in registers, because a and b are
 * constants. EACH_SIZE lists every (a, b) that fits beside the b + 1 vectors in flight. */
#ifndef PARLEY_TILES
#define PARLEY_TILES
#include "simd.h"

#if REGISTERS == 32
#define TALL 8
#define WIDE 6
#define EACH_SIZE(M) \
    M(1, 1) M(1, 2) M(1, 3) M(1, 4) M(1, 5) M(1, 6) M(2, 1) M(2, 2) M(2, 3) M(2, 4) M(2, 5) M(2, 6) \
    M(3, 1) M(3, 2) M(3, 3) M(3, 4) M(3, 5) M(3, 6) M(4, 1) M(4, 2) M(4, 3) M(4, 4) M(4, 5) M(4, 6) \
    M(5, 1) M(5, 2) M(5, 3) M(5, 4) M(5, 5) M(6, 1) M(6, 2) M(6, 3) M(6, 4) \
    M(7, 1) M(7, 2) M(7, 3) M(8, 1) M(8, 2) M(8, 3)
#else
#define TALL 6
#define WIDE 4
#define EACH_SIZE(M) \
    M(1, 1) M(1, 2) M(1, 3) M(1, 4) M(2, 1) M(2, 2) M(2, 3) M(2, 4) M(3, 1) M(3, 2) M(3, 3) \
    M(4, 1) M(4, 2) M(4, 3) M(5, 1) M(5, 2) M(6, 1) M(6, 2)
#endif
#define FITS(a, b) ((a) * (b) + (b) + 1 <= REGISTERS && (a) <= TALL && (b) <= WIDE)

typedef struct {
    Int tall, wide;
} Tile;

/* The tile that covers high x wide in the fewest cycles. */
Tile tile_for(Int high, Int wide);

typedef struct { /* c[m][n] (+)= sum over k of a[m, k] b[k][n]; strides in floats */
    const float *a;
    Int a_m, a_k;
    const float *b;
    Int b_k, depth;
    float *c;
    Int c_m, add;
} Product;

/* n counts vectors: rows of b and c are whole ones. */
void multiply(const Product *p, Int m, Int n, Tile tile);

typedef struct { /* sum[m][n] (+)= sum over k of left[m, k] * right[n][k], lane by lane */
    const vec *left;
    Int left_m;
    const vec *const *right;
    Int depth;
    vec *sum;
    Int sum_m, add;
} Dots;

void dots(const Dots *d, Int m, Int n);

/* Columns of from[LANES][.] become the rows of to[count][.], for `count` columns. */
void turn(const float *const from[LANES], Int count, float *to, Int to_row);

#endif
