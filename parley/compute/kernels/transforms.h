/* The one-dimensional maps of minimal filtering. With w the taps of a kernel, d what a tile sees and y
 * its outputs,  y = Aᵀ (G w ∘ Bᵀ d): as many products as there are points. The gradients take the
 * adjoints: dw = Gᵀ (A g ∘ Bᵀ d) and dd = B (A g ∘ G w).
 *
 *            outputs  taps  points
 *     F43       4      3    0, ±1, ±2, infinity
 *     F45       4      5    0, ±1, ±2, ±1/2, infinity
 *     F55       5      5    0, ±1/2, ±7/8, ±3/2, ±4: of many tried, those with the smallest error
 *     S43       4      3    a stride of two: even inputs meet the first and the last tap, which is F(4, 2)
 *                           with the points ±1, ±2, infinity; odd ones meet the tap between them, and
 *                           are four products as they are
 *     F22       2      3    a whole map of two pixels between zeros: three products for the four
 *                           that meet it, y0 = w1 (d0 + d1) + (w2 - w1) d1 and likewise y1
 *
 * Every map reads values `step` apart and writes them `to` apart. `f` is a constant: the compiler
 * leaves one of the branches. */
#ifndef PARLEY_TRANSFORMS
#define PARLEY_TRANSFORMS
#include "simd.h"

enum { F43, F45, F55, F22, S43 };

static ALWAYS_INLINE int side_of(const int f) { return f == F55 ? 5 : f == F22 ? 2 : 4; } /* outputs */
static ALWAYS_INLINE int taps_of(const int f) { return f == F45 || f == F55 ? 5 : 3; }
static ALWAYS_INLINE int sight_of(const int f) { /* inputs of a tile */
    return f == F22 ? 2 : f == S43 ? 9 : side_of(f) + taps_of(f) - 1;
}
static ALWAYS_INLINE int points_of(const int f) { return f == F22 ? 3 : sight_of(f); }
#define MOST_POINTS 9
#define MOST_SIDE 5

/* F55 has pairs of points ±q. A row of Bᵀ is the polynomial with all other points as its roots; S1 to S3
 * are the elementary symmetric functions of the squares of the other three pairs, Z1 to Z4 of all four. */
#define Q(i) ((const float[]){0.5f, 0.875f, 1.5f, 4.0f}[i])
#define SQUARE(i) (Q(i) * Q(i))
#define OTHERS(i, a, b, c) const float a = SQUARE((i + 1) % 4), b = SQUARE((i + 2) % 4), c = SQUARE((i + 3) % 4)
static ALWAYS_INLINE float s1(int i) { OTHERS(i, a, b, c); return a + b + c; }
static ALWAYS_INLINE float s2(int i) { OTHERS(i, a, b, c); return a * b + a * c + b * c; }
static ALWAYS_INLINE float s3(int i) { OTHERS(i, a, b, c); return a * b * c; }
#define Z1 (s1(0) + SQUARE(0))
#define Z2 (s2(0) + s1(0) * SQUARE(0))
#define Z3 (s3(0) + s2(0) * SQUARE(0))
#define Z4 (s3(0) * SQUARE(0))
/* What a row of G is divided by: the product of the differences from the other points. */
static ALWAYS_INLINE float span(int i) {
    OTHERS(i, a, b, c);
    return 2 * SQUARE(i) * (SQUARE(i) - a) * (SQUARE(i) - b) * (SQUARE(i) - c);
}

static ALWAYS_INLINE void input_transform(const int f, const vec *d, Int step, vec *t, Int to) { /* Bᵀ */
    if (f == F55) {
        vec d1 = d[step], d2 = d[2 * step], d3 = d[3 * step], d4 = d[4 * step];
        vec d5 = d[5 * step], d6 = d[6 * step], d7 = d[7 * step], d8 = d[8 * step];
        t[0] = d8 - Z1 * d6 + Z2 * d4 - Z3 * d2 + Z4 * d[0];
        UNROLL for (int i = 0; i < 4; i++) {
            vec even = d8 - s1(i) * d6 + s2(i) * d4 - s3(i) * d2;
            vec odd = d7 - s1(i) * d5 + s2(i) * d3 - s3(i) * d1;
            t[(2 * i + 1) * to] = even + Q(i) * odd, t[(2 * i + 2) * to] = even - Q(i) * odd;
        }
        return;
    }
    if (f == F22) {
        t[0] = d[0] + d[step], t[to] = d[step], t[2 * to] = d[0];
        return;
    }
    if (f == S43) {
        vec e0 = d[0], e1 = d[2 * step], e2 = d[4 * step], e3 = d[6 * step], e4 = d[8 * step];
        vec a = e3 - 4.0f * e1, b = e2 - 4.0f * e0, c = e3 - e1, e = e2 - e0;
        t[0] = e4 - 5.0f * e2 + 4.0f * e0;
        t[to] = a + b, t[2 * to] = a - b;
        t[3 * to] = c + 2.0f * e, t[4 * to] = c - 2.0f * e;
        UNROLL for (int k = 0; k < 4; k++) t[(5 + k) * to] = d[(2 * k + 1) * step];
        return;
    }
    vec d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step], d4 = d[4 * step], d5 = d[5 * step];
    if (f == F43) {
        vec a = d4 - 4.0f * d2, b = d3 - 4.0f * d1, c = d4 - d2, e = 2.0f * (d3 - d1);
        t[0] = 4.0f * d0 - 5.0f * d2 + d4;
        t[to] = a + b, t[2 * to] = a - b;
        t[3 * to] = c + e, t[4 * to] = c - e;
        t[5 * to] = 4.0f * d1 - 5.0f * d3 + d5;
        return;
    }
    vec d6 = d[6 * step], d7 = d[7 * step];
    vec even = d2 + d6 - 4.25f * d4, odd = d1 + d5 - 4.25f * d3;
    vec far = 0.25f * d2 + d6 - 1.25f * d4, wide = 0.5f * d1 + 2.0f * d5 - 2.5f * d3;
    vec near = 4.0f * d2 + d6 - 5.0f * d4, thin = 2.0f * d1 + 0.5f * d5 - 2.5f * d3;
    t[0] = d0 - d6 + 5.25f * (d4 - d2);
    t[to] = even + odd, t[2 * to] = even - odd;
    t[3 * to] = far + wide, t[4 * to] = far - wide;
    t[5 * to] = near + thin, t[6 * to] = near - thin;
    t[7 * to] = d7 - d1 + 5.25f * (d3 - d5);
}

static ALWAYS_INLINE void input_adjoint(const int f, const vec *t, Int step, vec *d, Int to) { /* B */
    if (f == F55) {
        vec t0 = t[0], e[4] = {Z4 * t0, -Z3 * t0, Z2 * t0, -Z1 * t0}, o[4] = {{0}};
        d[0] = e[0], e[0] = e[1], e[1] = e[2], e[2] = e[3], e[3] = t0; /* of d2, d4, d6, d8 */
        UNROLL for (int i = 0; i < 4; i++) {
            vec sum = t[(2 * i + 1) * step] + t[(2 * i + 2) * step];
            vec gap = Q(i) * (t[(2 * i + 1) * step] - t[(2 * i + 2) * step]);
            e[0] -= s3(i) * sum, e[1] += s2(i) * sum, e[2] -= s1(i) * sum, e[3] += sum;
            o[0] -= s3(i) * gap, o[1] += s2(i) * gap, o[2] -= s1(i) * gap, o[3] += gap;
        }
        UNROLL for (int k = 0; k < 4; k++) d[(2 * k + 1) * to] = o[k], d[(2 * k + 2) * to] = e[k];
        return;
    }
    vec t0 = t[0];
    if (f == F22) {
        d[0] = t0 + t[2 * step], d[to] = t0 + t[step];
        return;
    }
    vec plus = t[step] + t[2 * step], minus = t[step] - t[2 * step];
    vec far = t[3 * step] + t[4 * step], wide = t[3 * step] - t[4 * step];
    if (f == S43) {
        d[0] = 4.0f * (t0 - minus) - 2.0f * wide;
        d[2 * to] = -4.0f * plus - far;
        d[4 * to] = minus + 2.0f * wide - 5.0f * t0;
        d[6 * to] = plus + far;
        d[8 * to] = t0;
        UNROLL for (int k = 0; k < 4; k++) d[(2 * k + 1) * to] = t[(5 + k) * step];
        return;
    }
    if (f == F43) {
        vec t5 = t[5 * step];
        wide *= 2.0f;
        d[0] = 4.0f * t0;
        d[to] = 4.0f * (t5 - minus) - wide;
        d[2 * to] = -5.0f * t0 - 4.0f * plus - far;
        d[3 * to] = minus + wide - 5.0f * t5;
        d[4 * to] = t0 + plus + far;
        d[5 * to] = t5;
        return;
    }
    vec near = t[5 * step] + t[6 * step], thin = t[5 * step] - t[6 * step], t7 = t[7 * step];
    d[0] = t0;
    d[to] = minus + 0.5f * wide + 2.0f * thin - t7;
    d[2 * to] = plus - 5.25f * t0 + 0.25f * far + 4.0f * near;
    d[3 * to] = 5.25f * t7 - 4.25f * minus - 2.5f * (wide + thin);
    d[4 * to] = 5.25f * t0 - 4.25f * plus - 1.25f * far - 5.0f * near;
    d[5 * to] = minus - 5.25f * t7 + 2.0f * wide + 0.5f * thin;
    d[6 * to] = plus - t0 + far + near;
    d[7 * to] = t7;
}

static ALWAYS_INLINE void output_transform(const int f, const vec *m, Int step, vec *y, Int to) { /* Aᵀ */
    if (f == F55) {
        vec sum[5] = {m[0]};
        UNROLL for (int i = 0; i < 4; i++) {
            vec plus = m[(2 * i + 1) * step] + m[(2 * i + 2) * step];
            vec minus = Q(i) * (m[(2 * i + 1) * step] - m[(2 * i + 2) * step]);
            sum[0] += plus, sum[1] += minus, sum[2] += SQUARE(i) * plus, sum[3] += SQUARE(i) * minus;
            sum[4] += SQUARE(i) * SQUARE(i) * plus;
        }
        UNROLL for (int k = 0; k < 5; k++) y[k * to] = sum[k];
        return;
    }
    if (f == F22) {
        y[0] = m[0] + m[step], y[to] = m[0] + m[2 * step];
        return;
    }
    vec plus = m[step] + m[2 * step], minus = m[step] - m[2 * step];
    vec far = m[3 * step] + m[4 * step], wide = m[3 * step] - m[4 * step];
    if (f == S43) {
        y[0] = m[5 * step] + plus + far;
        y[to] = m[6 * step] + minus + 2.0f * wide;
        y[2 * to] = m[7 * step] + plus + 4.0f * far;
        y[3 * to] = m[8 * step] + m[0] + minus + 8.0f * wide;
        return;
    }
    if (f == F43) {
        y[0] = m[0] + plus + far;
        y[to] = minus + 2.0f * wide;
        y[2 * to] = plus + 4.0f * far;
        y[3 * to] = minus + 8.0f * wide + m[5 * step];
        return;
    }
    vec near = m[5 * step] + m[6 * step], thin = m[5 * step] - m[6 * step];
    y[0] = m[0] + plus + (far + near);
    y[to] = minus + 2.0f * wide + 0.5f * thin;
    y[2 * to] = plus + 4.0f * far + 0.25f * near;
    y[3 * to] = minus + 8.0f * wide + 0.125f * thin + m[7 * step];
}

static ALWAYS_INLINE void output_adjoint(const int f, const vec *g, Int step, vec *y, Int to) { /* A */
    if (f == F55) {
        vec g1 = g[step], g2 = g[2 * step], g3 = g[3 * step], g4 = g[4 * step];
        y[0] = g[0];
        UNROLL for (int i = 0; i < 4; i++) {
            vec even = g[0] + SQUARE(i) * g2 + SQUARE(i) * SQUARE(i) * g4, odd = g1 + SQUARE(i) * g3;
            y[(2 * i + 1) * to] = even + Q(i) * odd, y[(2 * i + 2) * to] = even - Q(i) * odd;
        }
        return;
    }
    vec g0 = g[0], g1 = g[step];
    if (f == F22) {
        y[0] = g0 + g1, y[to] = g0, y[2 * to] = g1;
        return;
    }
    vec g2 = g[2 * step], g3 = g[3 * step];
    vec even = g0 + g2, odd = g1 + g3, far = g0 + 4.0f * g2, wide = 2.0f * g1 + 8.0f * g3;
    y[0] = f == S43 ? g3 : g0;
    y[to] = even + odd, y[2 * to] = even - odd;
    y[3 * to] = far + wide, y[4 * to] = far - wide;
    if (f == S43) {
        y[5 * to] = g0, y[6 * to] = g1, y[7 * to] = g2, y[8 * to] = g3;
        return;
    }
    if (f == F45) {
        vec near = g0 + 0.25f * g2, thin = 0.5f * g1 + 0.125f * g3;
        y[5 * to] = near + thin, y[6 * to] = near - thin;
    }
    y[(points_of(f) - 1) * to] = g3;
}

static ALWAYS_INLINE void weight_transform(const int f, const vec *w, Int step, vec *u, Int to) { /* G */
    if (f == F55) { /* as for the output's gradient, and divided */
        vec u_all[9];
        output_adjoint(f, w, step, u_all, 1);
        u[0] = u_all[0] * (1 / Z4);
        UNROLL for (int k = 1; k < 9; k++) u[k * to] = u_all[k] * (1 / span((k - 1) / 2));
        return;
    }
    vec w0 = w[0], w1 = w[step], w2 = w[2 * step];
    if (f == F22) {
        u[0] = w1, u[to] = w2 - w1, u[2 * to] = w0 - w1;
        return;
    }
    if (f == S43) {
        u[0] = w2;
        u[to] = (w0 + w2) * (-1.0f / 6), u[2 * to] = (w0 - w2) * (1.0f / 6);
        u[3 * to] = (w0 + 2.0f * w2) * (1.0f / 12), u[4 * to] = (w0 - 2.0f * w2) * (-1.0f / 12);
        UNROLL for (int k = 5; k < 9; k++) u[k * to] = w1;
        return;
    }
    if (f == F43) {
        vec even = w0 + w2, far = w0 + 4.0f * w2;
        u[0] = w0 * 0.25f, u[5 * to] = w2;
        u[to] = (even + w1) * (-1.0f / 6), u[2 * to] = (even - w1) * (-1.0f / 6);
        u[3 * to] = (far + 2.0f * w1) * (1.0f / 24), u[4 * to] = (far - 2.0f * w1) * (1.0f / 24);
        return;
    }
    vec w3 = w[3 * step], w4 = w[4 * step];
    vec even = w0 + w2 + w4, odd = w1 + w3;
    vec far = w0 + 4.0f * w2 + 16.0f * w4, wide = 2.0f * w1 + 8.0f * w3;
    vec near = w0 + 0.25f * w2 + 0.0625f * w4, thin = 0.5f * w1 + 0.125f * w3;
    u[0] = w0, u[7 * to] = w4;
    u[to] = (even + odd) * (-2.0f / 9), u[2 * to] = (even - odd) * (-2.0f / 9);
    u[3 * to] = (far + wide) * (1.0f / 90), u[4 * to] = (far - wide) * (1.0f / 90);
    u[5 * to] = (near + thin) * (32.0f / 45), u[6 * to] = (near - thin) * (32.0f / 45);
}

static ALWAYS_INLINE void weight_adjoint(const int f, const vec *u, Int step, vec *w, Int to) { /* Gᵀ */
    if (f == F55) {
        vec u_all[9];
        u_all[0] = u[0] * (1 / Z4);
        UNROLL for (int k = 1; k < 9; k++) u_all[k] = u[k * step] * (1 / span((k - 1) / 2));
        output_transform(f, u_all, 1, w, to);
        return;
    }
    if (f == F22) {
        w[0] = u[2 * step], w[to] = u[0] - u[step] - u[2 * step], w[2 * to] = u[step];
        return;
    }
    if (f == S43) {
        vec first = (u[2 * step] - u[step]) * (1.0f / 6), last = (u[step] + u[2 * step]) * (-1.0f / 6);
        vec third = (u[3 * step] - u[4 * step]) * (1.0f / 12), sum = (u[3 * step] + u[4 * step]) * (1.0f / 6);
        w[0] = first + third;
        w[to] = u[5 * step] + u[6 * step] + (u[7 * step] + u[8 * step]);
        w[2 * to] = last + sum + u[0];
        return;
    }
    if (f == F43) {
        vec plus = (u[step] + u[2 * step]) * (1.0f / 6), minus = (u[2 * step] - u[step]) * (1.0f / 6);
        vec far = (u[3 * step] + u[4 * step]) * (1.0f / 6), wide = (u[3 * step] - u[4 * step]) * (1.0f / 12);
        w[0] = u[0] * 0.25f - plus + far * 0.25f;
        w[to] = minus + wide;
        w[2 * to] = far - plus + u[5 * step];
        return;
    }
    vec plus = (u[step] + u[2 * step]) * (-2.0f / 9), minus = (u[step] - u[2 * step]) * (-2.0f / 9);
    vec far = (u[3 * step] + u[4 * step]) * (1.0f / 90), wide = (u[3 * step] - u[4 * step]) * (1.0f / 45);
    vec near = (u[5 * step] + u[6 * step]) * (32.0f / 45), thin = (u[5 * step] - u[6 * step]) * (16.0f / 45);
    w[0] = u[0] + plus + (far + near);
    w[to] = minus + wide + thin;
    w[2 * to] = plus + 4.0f * far + 0.25f * near;
    w[3 * to] = minus + 4.0f * wide + 0.25f * thin;
    w[4 * to] = plus + 16.0f * far + 0.0625f * near + u[7 * step];
}

#endif
