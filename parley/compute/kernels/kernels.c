/* Loss and gradient of small convolutional networks, without autograd.
 *
 * Layout. Samples are the innermost axis: LANES of them side by side, one vector register wide. A
 * value of a feature map is therefore a vector, `map[channel][row][column]` is one of them, and
 * every convolution is a sum of (weight broadcast to all lanes) x (vector): no im2col, no shuffles,
 * and a loaded vector serves all output channels of a register tile. A block is LANES samples; a
 * chunk is the few blocks that go through the dense layers together.
 *
 * Maps have a halo of zero columns left and right, as wide as the padding, so that the innermost
 * loop needs no tests. Rows outside the map are skipped instead. Halos are zero because the
 * workspace comes zeroed and nothing ever writes there.
 *
 * Everything is C with GCC's vector extension (GCC and Clang), except comparisons on AVX-512. Not
 * compiled with -ffinite-math-only: a NaN must reach the loss.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX__)
#include <immintrin.h>
#endif
#if defined(__AVX512F__)
#define LANES 16
#define REGISTERS 32
#elif defined(__AVX__)
#define LANES 8
#define REGISTERS 16
#elif defined(__aarch64__)
#define LANES 4
#define REGISTERS 32
#else
#define LANES 4
#define REGISTERS 16
#endif

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

typedef int64_t Int;
typedef float vec __attribute__((vector_size(LANES * 4), may_alias));
typedef float loose __attribute__((vector_size(LANES * 4), may_alias, aligned(4)));
typedef int32_t ivec __attribute__((vector_size(LANES * 4), may_alias));
typedef uint8_t bytes __attribute__((vector_size(LANES), may_alias, aligned(1)));

static ALWAYS_INLINE vec splat(float a) { return a - (vec){0}; }

/* Comparisons and choice by lane. A comparison with NaN is false. */
#if defined(__AVX512F__)
typedef __mmask16 mask;
static ALWAYS_INLINE mask less(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
static ALWAYS_INLINE mask is_nan(vec a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
static ALWAYS_INLINE mask same(ivec a, int b) {
    return _mm512_cmpeq_epi32_mask((__m512i)a, _mm512_set1_epi32(b));
}
static ALWAYS_INLINE vec choose(mask m, vec a, vec b) { return _mm512_mask_blend_ps(m, b, a); }
static ALWAYS_INLINE ivec choose_int(mask m, ivec a, ivec b) {
    return (ivec)_mm512_mask_blend_epi32(m, (__m512i)b, (__m512i)a);
}
static ALWAYS_INLINE mask lanes_of(uint32_t bits) { return bits; }
#else
typedef ivec mask;
static ALWAYS_INLINE mask less(vec a, vec b) { return a < b; }
static ALWAYS_INLINE mask is_nan(vec a) { return a != a; }
static ALWAYS_INLINE mask same(ivec a, int b) { return a == b; }
static ALWAYS_INLINE vec choose(mask m, vec a, vec b) {
    return (vec)((m & (ivec)a) | (~m & (ivec)b));
}
static ALWAYS_INLINE ivec choose_int(mask m, ivec a, ivec b) { return (m & a) | (~m & b); }
static ALWAYS_INLINE mask lanes_of(uint32_t bits) { /* lane k by bit k */
#if LANES == 8
    const ivec each = {1, 2, 4, 8, 16, 32, 64, 128};
#else
    const ivec each = {1, 2, 4, 8};
#endif
    return (((ivec){0} + (int32_t)bits) & each) != 0;
}
#endif

/* The operand order lets a NaN in x through. */
static ALWAYS_INLINE vec at_least(vec x, float low) { return choose(less(x, splat(low)), splat(low), x); }
static ALWAYS_INLINE vec at_most(vec x, float high) { return choose(less(splat(high), x), splat(high), x); }

static ALWAYS_INLINE float total(vec v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps(v);
#else
    float sum[LANES];
    memcpy(sum, &v, sizeof v);
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++) sum[l] += sum[l + half];
    return sum[0];
#endif
}

/* e^x to 2e-7: 2^n times a polynomial of the rest (Cephes' coefficients). */
static ALWAYS_INLINE vec exponential(vec x) {
    x = at_most(at_least(x, -87.0f), 88.0f);
    const vec magic = splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to a whole number */
    vec shifted = x * 1.44269504f + magic;
    vec n = shifted - magic;
    vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vec p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    ivec scale = (((ivec)shifted - (ivec)magic) + 127) << 23;
    return p * (vec)scale;
}

/* ---- the network, as Python describes it (parley/fused.py has the same structures) ---- */

enum { NONE, RELU, HARD_SWISH, S0 };
#define MOST 32

typedef struct { /* convolution, activation, 2 x 2 max-pool; offsets into the parameters or -1 */
    Int in, height, width, out, kernel_h, kernel_w, pad_h, pad_w;
    Int activation, groups, pool;
    Int weight, bias, gamma, beta, v;
    float eps;
} Stage;

typedef struct {
    Int in, out, relu, weight, bias;
} Dense;

typedef struct {
    Int stages, denses, parameters, inputs, chunk;
    Stage stage[MOST];
    Dense dense[MOST];
} Net;

static Int blocks_of(Int n) { return (n + LANES - 1) / LANES; }
static Int rows_of(const Stage *s) { return s->height + 2 * s->pad_h - s->kernel_h + 1; }
static Int columns_of(const Stage *s) { return s->width + 2 * s->pad_w - s->kernel_w + 1; }
static Int pooled_rows(const Stage *s) { return s->pool ? rows_of(s) / 2 : rows_of(s); }
static Int pooled_columns(const Stage *s) { return s->pool ? columns_of(s) / 2 : columns_of(s); }
static int evonorm(const Stage *s) { return s->activation >= HARD_SWISH; }
static Int largest(Int a, Int b) { return a > b ? a : b; }
static Int smallest(Int a, Int b) { return a < b ? a : b; }

/* A feature map of one block: where it is and how far apart its channels and rows are, in vecs. */
typedef struct {
    vec *at;
    Int channel, row;
} Map;

static Map map_of(vec *base, Int rows, Int columns, Int halo) {
    Int row = columns + 2 * halo;
    return (Map){base + halo, rows * row, row};
}

/* ---- register tiles ----
 * Each is one function for every (a, b) with a x b accumulators that fit the registers beside the
 * b + 1 vectors in flight; constant sizes let the compiler keep all of them in registers. */

#if REGISTERS == 32
#define TALL 8
#define WIDE 6
#define EACH_SIZE(M) \
    M(1, 1) M(1, 2) M(1, 3) M(1, 4) M(1, 5) M(1, 6) M(2, 1) M(2, 2) M(2, 3) M(2, 4) M(2, 5) M(2, 6) \
    M(3, 1) M(3, 2) M(3, 3) M(3, 4) M(3, 5) M(3, 6) M(4, 1) M(4, 2) M(4, 3) M(4, 4) M(4, 5) M(4, 6) \
    M(5, 1) M(5, 2) M(5, 3) M(5, 4) M(5, 5) M(6, 1) M(6, 2) M(6, 3) M(6, 4) \
    M(7, 1) M(7, 2) M(7, 3) M(8, 1) M(8, 2) M(8, 3)
#define FITS(a, b) ((a) * (b) <= 25 && (a) <= TALL && (b) <= WIDE)
#else
#define TALL 6
#define WIDE 4
#define EACH_SIZE(M) \
    M(1, 1) M(1, 2) M(1, 3) M(1, 4) M(2, 1) M(2, 2) M(2, 3) M(2, 4) M(3, 1) M(3, 2) M(3, 3) M(3, 4) \
    M(4, 1) M(4, 2) M(4, 3) M(5, 1) M(5, 2) M(6, 1) M(6, 2)
#define FITS(a, b) ((a) * (b) <= 12 && (a) <= TALL && (b) <= WIDE)
#endif

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

/* The tile that covers high x wide in the fewest cycles. */
static void best_tile(Int high, Int wide, Int *a, Int *b) {
    float least = INFINITY;
    for (Int i = 1; i <= TALL; i++)
        for (Int j = 1; j <= WIDE; j++) {
            if (!FITS(i, j)) continue;
            float cycles = cover_cycles(high, wide, i, j);
            if (cycles < least) least = cycles, *a = i, *b = j;
        }
}

typedef struct {
    Int tall, wide;
} Tile;

static Tile tile_for(Int high, Int wide) {
    Tile t = {1, 1};
    if (wide) best_tile(high, wide, &t.tall, &t.wide);
    return t;
}

typedef struct { /* what a convolution tile sums over */
    const vec *in;
    Int channels, channel, row;       /* of the input map */
    Int from_y, to_y, from_x, to_x;   /* the part of the kernel that meets the map */
    Int kernel_h, kernel_w;
    const float *weights;             /* [channels][kernel_h][kernel_w][a] */
    const float *bias;                /* [a] or null */
    vec *out;
    Int out_channel;
} Window;

/* a output channels x b neighbouring columns of a convolution. */
static ALWAYS_INLINE void convolve_tile(const int a, const int b, const Window *w) {
    vec sum[TALL][WIDE]; /* constant bounds: registers, not memory */
    UNROLL for (int i = 0; i < a; i++) {
        vec start = w->bias ? splat(w->bias[i]) : (vec){0};
        UNROLL for (int j = 0; j < b; j++) sum[i][j] = start;
    }
    for (Int c = 0; c < w->channels; c++)
        for (Int y = w->from_y; y < w->to_y; y++) {
            const vec *in = w->in + c * w->channel + y * w->row;
            const float *weights = w->weights + (c * w->kernel_h + y) * w->kernel_w * a;
            for (Int x = w->from_x; x < w->to_x; x++) {
                vec value[WIDE];
                UNROLL for (int j = 0; j < b; j++) value[j] = in[x + j];
                UNROLL for (int i = 0; i < a; i++) {
                    vec weight = splat(weights[x * a + i]);
                    UNROLL for (int j = 0; j < b; j++) sum[i][j] += weight * value[j];
                }
            }
        }
    UNROLL for (int i = 0; i < a; i++)
        UNROLL for (int j = 0; j < b; j++) w->out[i * w->out_channel + j] = sum[i][j];
}

typedef struct { /* what a weight-gradient tile sums over */
    const vec *g, *in;
    Int g_channel, g_row, in_row, rows, columns;
    vec *sums; /* [a][b], kept between calls */
} Overlap;

/* Products of a channels of g with one input channel at b neighbouring offsets. */
static ALWAYS_INLINE void correlate_tile(const int a, const int b, const Overlap *o) {
    vec sum[TALL][WIDE]; /* constant bounds: registers, not memory */
    UNROLL for (int i = 0; i < a; i++)
        UNROLL for (int j = 0; j < b; j++) sum[i][j] = o->sums[i * b + j];
    for (Int y = 0; y < o->rows; y++) {
        const vec *g = o->g + y * o->g_row, *in = o->in + y * o->in_row;
        for (Int x = 0; x < o->columns; x++) {
            vec value[WIDE];
            UNROLL for (int j = 0; j < b; j++) value[j] = in[x + j];
            UNROLL for (int i = 0; i < a; i++) {
                vec slope = g[i * o->g_channel + x];
                UNROLL for (int j = 0; j < b; j++) sum[i][j] += slope * value[j];
            }
        }
    }
    UNROLL for (int i = 0; i < a; i++)
        UNROLL for (int j = 0; j < b; j++) o->sums[i * b + j] = sum[i][j];
}

typedef struct { /* c[m][n] (+)= sum over k of a[m, k] b[k][n], n in vecs */
    const float *a;
    Int a_m, a_k;
    const float *b;
    Int b_k, depth;
    float *c;
    Int c_m, add;
} Product;

static ALWAYS_INLINE void multiply_tile(const int a, const int b, const Product *p) {
    vec sum[TALL][WIDE]; /* constant bounds: registers, not memory */
    UNROLL for (int i = 0; i < a; i++)
        UNROLL for (int j = 0; j < b; j++)
            sum[i][j] = p->add ? *(const loose *)(p->c + i * p->c_m + j * LANES) : (vec){0};
    for (Int k = 0; k < p->depth; k++) {
        vec value[WIDE];
        UNROLL for (int j = 0; j < b; j++) value[j] = ((const vec *)(p->b + k * p->b_k))[j];
        UNROLL for (int i = 0; i < a; i++) {
            vec factor = splat(p->a[i * p->a_m + k * p->a_k]);
            UNROLL for (int j = 0; j < b; j++) sum[i][j] += factor * value[j];
        }
    }
    UNROLL for (int i = 0; i < a; i++)
        UNROLL for (int j = 0; j < b; j++) *(loose *)(p->c + i * p->c_m + j * LANES) = sum[i][j];
}

#define DEFINE(A, B)                                                                       \
    static void convolve_##A##_##B(const Window *w) { convolve_tile(A, B, w); }            \
    static void correlate_##A##_##B(const Overlap *o) { correlate_tile(A, B, o); }         \
    static void multiply_##A##_##B(const Product *p) { multiply_tile(A, B, p); }
EACH_SIZE(DEFINE)
#define CONVOLVE(A, B) [A][B] = convolve_##A##_##B,
#define CORRELATE(A, B) [A][B] = correlate_##A##_##B,
#define MULTIPLY(A, B) [A][B] = multiply_##A##_##B,
static void (*const convolvers[TALL + 1][WIDE + 1])(const Window *) = {EACH_SIZE(CONVOLVE)};
static void (*const correlators[TALL + 1][WIDE + 1])(const Overlap *) = {EACH_SIZE(CORRELATE)};
static void (*const multipliers[TALL + 1][WIDE + 1])(const Product *) = {EACH_SIZE(MULTIPLY)};

/* ---- convolutions ---- */

typedef struct { /* of one map to another; the backward pass to the input is one too */
    Int in, height, width, out, kernel_h, kernel_w, pad_h, pad_w, rows, columns;
    Int tall, wide; /* of its tiles */
    const float *packed, *bias;
} Convolution;

/* Rows [y, y + count) of all output channels into out, whose row 0 is row y. */
static void convolve_rows(const Convolution *c, Map in, Map out, Int y, Int count) {
    Int kernel = c->in * c->kernel_h * c->kernel_w;
    for (Int r = 0; r < count; r++)
        for (Int o = 0; o < c->out; o += c->tall) {
            Int a = smallest(c->tall, c->out - o), top = y + r - c->pad_h;
            for (Int x = 0; x < c->columns; x += c->wide) {
                Int b = smallest(c->wide, c->columns - x), left = x - c->pad_w;
                Window w = {
                    .in = in.at + top * in.row + left,
                    .channels = c->in, .channel = in.channel, .row = in.row,
                    .from_y = largest(0, -top), .to_y = smallest(c->kernel_h, c->height - top),
                    .from_x = largest(0, 1 - b - left),
                    .to_x = smallest(c->kernel_w, c->width - left),
                    .kernel_h = c->kernel_h, .kernel_w = c->kernel_w,
                    .weights = c->packed + o * kernel, .bias = c->bias ? c->bias + o : 0,
                    .out = out.at + o * out.channel + r * out.row + x,
                    .out_channel = out.channel,
                };
                convolvers[a][b](&w);
            }
        }
}

/* Weights [out][in][h][w] in the order in which the tiles read them. */
static void pack(const Convolution *c, const float *weights, float *packed) {
    Int area = c->kernel_h * c->kernel_w, kernel = c->in * area;
    for (Int o = 0; o < c->out; o += c->tall) {
        Int a = smallest(c->tall, c->out - o);
        for (Int i = 0; i < a; i++)
            for (Int k = 0; k < kernel; k++)
                packed[o * kernel + k * a + i] = weights[(o + i) * kernel + k];
    }
}

/* The same for the backward pass: in and out change places, and the kernel is turned around. */
static void pack_turned(const Convolution *c, const float *weights, float *packed) {
    Int area = c->kernel_h * c->kernel_w;
    for (Int o = 0; o < c->out; o += c->tall) {
        Int a = smallest(c->tall, c->out - o);
        float *to = packed + o * c->in * area;
        for (Int i = 0; i < c->in; i++)
            for (Int k = 0; k < area; k++)
                for (Int j = 0; j < a; j++)
                    to[(i * area + k) * a + j] = weights[(i * c->out + o + j) * area + area - 1 - k];
    }
}

#define BAND 384 /* vecs of g that one tile row of channels may have: half of the first cache */
#define OFFSETS (WIDE < 5 ? WIDE : 5)

/* Adds the gradient of the weights; sums is scratch of tall x in x kernel area vecs. */
static void correlate(const Stage *s, Map g, Map in, vec *sums, float *gradient) {
    Int rows = rows_of(s), columns = columns_of(s), area = s->kernel_h * s->kernel_w;
    Int wide = s->kernel_w <= OFFSETS ? s->kernel_w : OFFSETS, tall = TALL;
    while (!FITS(tall, wide)) tall--;
    tall = (s->out + (s->out + tall - 1) / tall - 1) / ((s->out + tall - 1) / tall);
    Int band = largest(1, BAND / (tall * columns));
    for (Int o = 0; o < s->out; o += tall) {
        Int a = smallest(tall, s->out - o);
        memset(sums, 0, sizeof(vec) * a * s->in * area);
        for (Int y = 0; y < rows; y += band) {
            vec *sum = sums;
            for (Int c = 0; c < s->in; c++)
                for (Int dy = 0; dy < s->kernel_h; dy++) {
                    Int from = largest(y, s->pad_h - dy);
                    Int to = smallest(smallest(y + band, rows), s->height + s->pad_h - dy);
                    for (Int dx = 0; dx < s->kernel_w; dx += wide) {
                        Int b = smallest(wide, s->kernel_w - dx);
                        Overlap overlap = {
                            .g = g.at + o * g.channel + from * g.row,
                            .in = in.at + c * in.channel + (from + dy - s->pad_h) * in.row + dx -
                                  s->pad_w,
                            .g_channel = g.channel, .g_row = g.row, .in_row = in.row,
                            .rows = to - from, .columns = columns, .sums = sum,
                        };
                        if (to > from) correlators[a][b](&overlap);
                        sum += a * b;
                    }
                }
        }
        const vec *sum = sums;
        for (Int c = 0; c < s->in; c++)
            for (Int dy = 0; dy < s->kernel_h; dy++)
                for (Int dx = 0; dx < s->kernel_w; dx += wide) {
                    Int b = smallest(wide, s->kernel_w - dx);
                    for (Int i = 0; i < a; i++)
                        for (Int j = 0; j < b; j++)
                            gradient[((o + i) * s->in + c) * area + dy * s->kernel_w + dx + j] +=
                                total(*sum++);
                }
    }
}

/* ---- activation and pool ---- */

/* Which of four was the first greatest, in the order of PyTorch: a NaN wins and stays. */
static ALWAYS_INLINE vec greatest(vec a, vec b, vec c, vec d, ivec *which) {
    vec most = a;
    ivec at = {0};
    mask m = less(most, b) | is_nan(b);
    most = choose(m, b, most), at = choose_int(m, (ivec){0} + 1, at);
    m = less(most, c) | is_nan(c);
    most = choose(m, c, most), at = choose_int(m, (ivec){0} + 2, at);
    m = less(most, d) | is_nan(d);
    most = choose(m, d, most), at = choose_int(m, (ivec){0} + 3, at);
    *which = at;
    return most;
}

#define INACTIVE 4 /* a place in the pool's window that does not exist: no gradient passes */

/* ReLU (or nothing) and pool of convolved rows: `count` of them give one row y of the output. */
static void activate_row(const Stage *s, Map in, Map out, uint8_t *places, Int y) {
    Int columns = pooled_columns(s), rows = pooled_rows(s);
    int relu = s->activation == RELU;
    for (Int c = 0; c < s->out; c++) {
        const vec *from = in.at + c * in.channel;
        vec *to = out.at + c * out.channel + y * out.row;
        if (!s->pool) {
            for (Int x = 0; x < columns; x++) to[x] = relu ? at_least(from[x], 0) : from[x];
            continue;
        }
        bytes *place = (bytes *)places + (c * rows + y) * columns;
        for (Int x = 0; x < columns; x++) {
            const vec *a = from + 2 * x, *b = a + in.row;
            ivec which;
            vec most = greatest(a[0], a[1], b[0], b[1], &which);
            if (relu) {
                mask active = less((vec){0}, most);
                which = choose_int(active, which, (ivec){0} + INACTIVE);
                most = at_least(most, 0);
            }
            to[x] = most;
            place[x] = __builtin_convertvector(which, bytes);
        }
    }
}

/* The gradient of the output, out_g, back to that of the convolution, g. */
static void activate_back(const Stage *s, Map out_g, Map out, const uint8_t *places, Map g, float *bias) {
    Int columns = pooled_columns(s), rows = pooled_rows(s);
    int relu = s->activation == RELU;
    for (Int c = 0; c < s->out; c++) {
        vec sum = {0};
        for (Int y = 0; y < rows; y++) {
            const vec *from = out_g.at + c * out_g.channel + y * out_g.row;
            if (!s->pool) {
                const vec *result = out.at + c * out.channel + y * out.row;
                vec *to = g.at + c * g.channel + y * g.row;
                for (Int x = 0; x < columns; x++) {
                    vec passed = relu ? choose(less((vec){0}, result[x]), from[x], (vec){0}) : from[x];
                    to[x] = passed, sum += passed;
                }
                continue;
            }
            const bytes *place = (const bytes *)places + (c * rows + y) * columns;
            for (Int x = 0; x < columns; x++) {
                vec *a = g.at + c * g.channel + 2 * y * g.row + 2 * x, *b = a + g.row;
                ivec which = __builtin_convertvector(place[x], ivec);
                vec none = {0};
                a[0] = choose(same(which, 0), from[x], none);
                a[1] = choose(same(which, 1), from[x], none);
                b[0] = choose(same(which, 2), from[x], none);
                b[1] = choose(same(which, 3), from[x], none);
                sum += choose(same(which, INACTIVE), none, from[x]);
            }
        }
        if (bias) bias[c] += total(sum);
    }
}

/* ---- EvoNorm and pool: y = f(x) r gamma + beta, f(x) = x gate(x), r = 1 / sqrt(s^2 + eps) ---- */

/* f(x) and f'(x); for form S0 also df/dv. */
static ALWAYS_INLINE vec gated(int form, vec x, float v, vec *slope, vec *slope_v) {
    if (form == HARD_SWISH) {
        vec gate = at_most(at_least(x * (1.0f / 6) + 0.5f, 0), 1);
        vec inner = choose(less(x, splat(-3)) | less(splat(3), x), (vec){0}, x * (1.0f / 6));
        *slope = gate + inner;
        *slope_v = (vec){0};
        return x * gate;
    }
    vec gate = 1.0f / (1.0f + exponential(x * -v)), f = x * gate, rest = f * (1.0f - gate);
    *slope = gate + v * rest;
    *slope_v = x * rest;
    return f;
}

static ALWAYS_INLINE void normalise_form(
    const int form, const Stage *s, const float *parameters, Map z, Map out, uint8_t *places,
    vec *means, vec *scales
) {
    Int rows = rows_of(s), columns = columns_of(s), channels = s->out / s->groups;
    Int out_rows = pooled_rows(s), out_columns = pooled_columns(s);
    vec unused, unused_v;
    for (Int group = 0; group < s->groups; group++) {
        const vec *first = z.at + group * channels * z.channel;
        Int pixels = channels * rows * columns; /* z has no halo: a group is contiguous */
        vec sum[4] = {{0}};
        for (Int i = 0; i < pixels; i++) sum[i & 3] += first[i];
        vec mean = (sum[0] + sum[1] + sum[2] + sum[3]) / (float)pixels;
        vec square[4] = {{0}};
        for (Int i = 0; i < pixels; i++) {
            vec d = first[i] - mean;
            square[i & 3] += d * d;
        }
        vec variance = (square[0] + square[1] + square[2] + square[3]) / (float)pixels + s->eps, r;
        for (int l = 0; l < LANES; l++) r[l] = 1.0f / sqrtf(variance[l]);
        means[group] = mean, scales[group] = r;
        for (Int c = group * channels; c < (group + 1) * channels; c++) {
            vec factor = r * parameters[s->gamma + c], beta = splat(parameters[s->beta + c]);
            float v = form == S0 ? parameters[s->v + c] : 0;
            for (Int y = 0; y < out_rows; y++) {
                vec *to = out.at + c * out.channel + y * out.row;
                if (!s->pool) {
                    const vec *from = z.at + c * z.channel + y * z.row;
                    for (Int x = 0; x < out_columns; x++)
                        to[x] = gated(form, from[x], v, &unused, &unused_v) * factor + beta;
                    continue;
                }
                bytes *place = (bytes *)places + (c * out_rows + y) * out_columns;
                for (Int x = 0; x < out_columns; x++) {
                    const vec *a = z.at + c * z.channel + 2 * y * z.row + 2 * x, *b = a + z.row;
                    ivec which;
                    to[x] = greatest(
                        gated(form, a[0], v, &unused, &unused_v) * factor + beta,
                        gated(form, a[1], v, &unused, &unused_v) * factor + beta,
                        gated(form, b[0], v, &unused, &unused_v) * factor + beta,
                        gated(form, b[1], v, &unused, &unused_v) * factor + beta, &which
                    );
                    place[x] = __builtin_convertvector(which, bytes);
                }
            }
        }
    }
}

/* With f the gated value and k = -r^3 / N * sum of (out_g gamma f) over the group,
 * g = out_g gamma r f'(x) + k (x - mean). Overwrites out_g with out_g f'(x). */
static ALWAYS_INLINE void normalise_back_form(
    const int form, const Stage *s, const float *parameters, Map out_g, Map z,
    const uint8_t *places, const vec *means, const vec *scales, Map g, float *gradient
) {
    Int rows = rows_of(s), columns = columns_of(s), channels = s->out / s->groups;
    Int out_rows = pooled_rows(s), out_columns = pooled_columns(s);
    for (Int group = 0; group < s->groups; group++) {
        vec mean = means[group], r = scales[group], together = {0};
        for (Int c = group * channels; c < (group + 1) * channels; c++) {
            vec beta = {0}, gamma = {0}, gate = {0}, slope, slope_v;
            float v = form == S0 ? parameters[s->v + c] : 0;
            for (Int y = 0; y < out_rows; y++) {
                vec *from = out_g.at + c * out_g.channel + y * out_g.row;
                const vec *plain = z.at + c * z.channel + y * z.row;
                const bytes *place = (const bytes *)places + (c * out_rows + y) * out_columns;
                for (Int x = 0; x < out_columns; x++) {
                    vec value;
                    if (s->pool) {
                        const vec *a = z.at + c * z.channel + 2 * y * z.row + 2 * x;
                        const vec *b = a + z.row;
                        ivec which = __builtin_convertvector(place[x], ivec);
                        value = choose(same(which, 1), a[1], a[0]);
                        value = choose(same(which, 2), b[0], value);
                        value = choose(same(which, 3), b[1], value);
                    } else {
                        value = plain[x];
                    }
                    vec f = gated(form, value, v, &slope, &slope_v);
                    beta += from[x];
                    gamma += from[x] * f;
                    if (form == S0) gate += from[x] * slope_v;
                    from[x] *= slope;
                }
            }
            float scale = parameters[s->gamma + c];
            gradient[s->beta + c] += total(beta);
            gradient[s->gamma + c] += total(gamma * r);
            if (form == S0) gradient[s->v + c] += total(gate * r) * scale;
            together += gamma * scale;
        }
        vec k = -together * r * r * r / (float)(channels * rows * columns);
        for (Int c = group * channels; c < (group + 1) * channels; c++) {
            vec factor = r * parameters[s->gamma + c];
            for (Int y = 0; y < rows; y++) {
                const vec *value = z.at + c * z.channel + y * z.row;
                vec *to = g.at + c * g.channel + y * g.row;
                if (!s->pool) {
                    const vec *from = out_g.at + c * out_g.channel + y * out_g.row;
                    for (Int x = 0; x < columns; x++)
                        to[x] = from[x] * factor + k * (value[x] - mean);
                    continue;
                }
                Int pooled = y / 2 < out_rows ? out_columns : 0, half = y % 2 * 2;
                const vec *from = out_g.at + c * out_g.channel + y / 2 * out_g.row;
                const bytes *place = (const bytes *)places + (c * out_rows + y / 2) * out_columns;
                for (Int x = 0; x < pooled; x++) {
                    ivec which = __builtin_convertvector(place[x], ivec);
                    vec passed = from[x] * factor, none = {0};
                    to[2 * x] = choose(same(which, half), passed, none) + k * (value[2 * x] - mean);
                    to[2 * x + 1] =
                        choose(same(which, half + 1), passed, none) + k * (value[2 * x + 1] - mean);
                }
                for (Int x = 2 * pooled; x < columns; x++) to[x] = k * (value[x] - mean);
            }
        }
    }
}

/* One compiled body for each form, so that the choice is not made per pixel. */
static void normalise(
    const Stage *s, const float *parameters, Map z, Map out, uint8_t *places, vec *means, vec *scales
) {
    if (s->activation == S0) normalise_form(S0, s, parameters, z, out, places, means, scales);
    else normalise_form(HARD_SWISH, s, parameters, z, out, places, means, scales);
}

static void normalise_back(
    const Stage *s, const float *parameters, Map out_g, Map z, const uint8_t *places,
    const vec *means, const vec *scales, Map g, float *gradient
) {
    if (s->activation == S0)
        normalise_back_form(S0, s, parameters, out_g, z, places, means, scales, g, gradient);
    else normalise_back_form(HARD_SWISH, s, parameters, out_g, z, places, means, scales, g, gradient);
}

/* ---- dense layers: features [in][n], n the samples of a chunk ---- */

/* c[m][n] (+)= sum over k of a[m, k] b[k][n]. b's rows are whole vecs; c's last may be cut. */
static void multiply(const Product *p, Int m, Int n, Tile best) {
    Int tall = best.tall, wide = best.wide, whole = n / LANES, rest = n % LANES;
    Product tile = *p;
    if (whole) {
        for (Int j = 0; j < whole; j += wide) {
            Int b = smallest(wide, whole - j);
            tile.b = p->b + j * LANES;
            for (Int i = 0; i < m; i += tall) {
                tile.a = p->a + i * p->a_m;
                tile.c = p->c + i * p->c_m + j * LANES;
                multipliers[smallest(tall, m - i)][b](&tile);
            }
        }
    }
    if (!rest) return;
    vec cut[TALL];
    tile.b = p->b + whole * LANES;
    tile.c = (float *)cut, tile.c_m = LANES, tile.add = 0;
    for (Int i = 0; i < m; i += TALL) {
        Int a = smallest(TALL, m - i);
        tile.a = p->a + i * p->a_m;
        multipliers[a][1](&tile);
        for (Int r = 0; r < a; r++) {
            float *c = p->c + (i + r) * p->c_m + whole * LANES;
            const float *part = (const float *)(cut + r);
            for (Int l = 0; l < rest; l++) c[l] = p->add ? c[l] + part[l] : part[l];
        }
    }
}

/* LANES x LANES values: rows of `from` become columns of `to`. Values a power of two apart change
 * places, one power after the other. */
#if defined(__GNUC__) && !defined(__clang__)
#define POWERS 4
static ivec upper[POWERS], lower[POWERS];

static __attribute__((constructor)) void fill_shuffles(void) {
    for (int p = 0, s = 1; s < LANES; p++, s *= 2)
        for (int l = 0; l < LANES; l++) {
            upper[p][l] = l & s ? LANES + l - s : l;
            lower[p][l] = l & s ? LANES + l : l + s;
        }
}

static ALWAYS_INLINE void turn_tile(const float *from, Int from_row, float *to, Int to_row) {
    vec v[LANES];
    UNROLL for (int i = 0; i < LANES; i++) v[i] = *(const loose *)(from + i * from_row);
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
    UNROLL for (int i = 0; i < LANES; i++) *(vec *)(to + i * to_row) = v[i];
}
#else
static void turn_tile(const float *from, Int from_row, float *to, Int to_row) {
    for (Int i = 0; i < LANES; i++)
        for (Int j = 0; j < LANES; j++) to[i * to_row + j] = from[j * from_row + i];
}
#endif

/* from[rows][columns] to to[columns][rows padded to whole vecs]. */
static void transpose(const float *from, Int rows, Int columns, float *to) {
    Int stride = blocks_of(rows) * LANES;
    for (Int r = 0; r < rows; r += LANES) {
        Int here = smallest(LANES, rows - r), c = 0;
        const float *row = from + r * columns;
        if (here == LANES)
            for (; c + LANES <= columns; c += LANES)
                turn_tile(row + c, columns, to + c * stride + r, stride);
        for (; c < columns; c++)
            for (Int i = 0; i < here; i++) to[c * stride + r + i] = row[i * columns + c];
    }
}

/* ---- workspace ---- */

typedef struct {
    vec *in[MOST], *z[MOST], *means[MOST], *scales[MOST]; /* of every block of a chunk */
    uint8_t *places[MOST];
    vec *g[MOST], *in_g, *rows, *sums, *flat; /* of one block, flat of every block */
    float *packed[MOST], *turned[MOST];
    float *own_features, *features[MOST + 1], *features_g[MOST + 1], *turned_features;
    Convolution forward[MOST], backward[MOST];
    Tile out_tile[MOST], weight_tile[MOST], in_tile[MOST]; /* of the dense layers' products */
    Int flat_size; /* features that enter the dense layers */
} Work;

static void *take(char **next, Int size) {
    char *taken = *next;
    *next += (size + 63) / 64 * 64;
    return taken;
}

static Int input_block(const Net *net);

/* Lays the buffers out from `base` and returns how many bytes they take. */
static Int lay_out(const Net *net, char *base, Work *work) {
    char *next = base;
    Int n = net->chunk, in_g = 0, rows = 0, sums = 0;
    work->flat_size = net->inputs;
    for (Int i = 0; i < net->stages; i++) {
        const Stage *s = net->stage + i;
        Int area = s->kernel_h * s->kernel_w, halo = s->kernel_w - 1 - s->pad_w;
        Convolution *f = work->forward + i, *b = work->backward + i;
        *f = (Convolution){
            s->in, s->height, s->width, s->out, s->kernel_h, s->kernel_w, s->pad_h, s->pad_w,
            rows_of(s), columns_of(s), 0, 0, 0, 0,
        };
        *b = (Convolution){
            s->out, rows_of(s), columns_of(s), s->in, s->kernel_h, s->kernel_w,
            s->kernel_h - 1 - s->pad_h, halo, s->height, s->width, 0, 0, 0, 0,
        };
        best_tile(f->out, f->columns, &f->tall, &f->wide);
        best_tile(b->out, b->columns, &b->tall, &b->wide);
        Int map = s->out * rows_of(s) * columns_of(s);
        Int pooled = s->out * pooled_rows(s) * pooled_columns(s);
        work->in[i] = take(&next, n * s->in * s->height * (s->width + 2 * s->pad_w) * sizeof(vec));
        work->z[i] = take(&next, evonorm(s) * n * map * sizeof(vec));
        work->means[i] = take(&next, evonorm(s) * n * s->groups * sizeof(vec));
        work->scales[i] = take(&next, evonorm(s) * n * s->groups * sizeof(vec));
        work->places[i] = take(&next, s->pool * n * pooled * LANES);
        work->g[i] = take(&next, s->out * rows_of(s) * (columns_of(s) + 2 * halo) * sizeof(vec));
        f->packed = work->packed[i] = take(&next, s->out * s->in * area * sizeof(float));
        b->packed = work->turned[i] = take(&next, s->out * s->in * area * sizeof(float));
        in_g = largest(in_g, largest(pooled, i ? s->in * s->height * s->width : 0));
        rows = largest(rows, s->out * 2 * columns_of(s));
        sums = largest(sums, TALL * s->in * area);
        work->flat_size = pooled;
    }
    work->in_g = take(&next, in_g * sizeof(vec));
    work->rows = take(&next, rows * sizeof(vec));
    work->sums = take(&next, sums * sizeof(vec));
    work->flat = take(&next, n * (net->stages ? work->flat_size : input_block(net)) * sizeof(vec));
    Int widest = 0;
    for (Int i = 0; i <= net->denses; i++) {
        Int features = i < net->denses ? net->dense[i].in : net->dense[i - 1].out;
        work->features[i] = take(&next, n * features * sizeof(vec));
        work->features_g[i] = take(&next, n * features * sizeof(vec));
        widest = largest(widest, features);
    }
    work->own_features = work->features[0];
    for (Int i = 0; i < net->denses; i++) {
        const Dense *d = net->dense + i;
        work->out_tile[i] = tile_for(d->out, n);
        work->weight_tile[i] = tile_for(d->out, d->in / LANES);
        work->in_tile[i] = tile_for(d->in, n);
    }
    work->turned_features = take(&next, n * LANES * blocks_of(widest) * sizeof(vec));
    return next - base;
}

static Int first_halo(const Net *net) { return net->stages ? net->stage[0].pad_w : 0; }

/* Vecs of one block of converted inputs. For a network of dense layers only, a chunk has the
 * features [in][n] and after them the samples [n][in padded to whole vecs], which is what the
 * gradient of the first layer's weights needs. */
static Int input_block(const Net *net) {
    if (!net->stages) return net->inputs + blocks_of(net->inputs) * LANES;
    const Stage *s = net->stage;
    return s->in * s->height * (s->width + 2 * s->pad_w);
}

static Map input_map(const Work *w, const Stage *s, Int i, vec *inputs, Int block) {
    vec *base = i ? w->in[i] : inputs;
    base += block * s->in * s->height * (s->width + 2 * s->pad_w);
    return map_of(base, s->height, s->width, s->pad_w);
}

static Map output_map(const Net *net, const Work *w, Int i, Int block) {
    const Stage *s = net->stage + i;
    if (i + 1 < net->stages) return input_map(w, s + 1, i + 1, 0, block);
    return map_of(w->flat + block * w->flat_size, pooled_rows(s), pooled_columns(s), 0);
}

static Map z_map(const Work *w, const Stage *s, Int i, Int block) {
    vec *base = w->z[i] + block * s->out * rows_of(s) * columns_of(s);
    return map_of(base, rows_of(s), columns_of(s), 0);
}

static uint8_t *places_of(const Work *w, const Stage *s, Int i, Int block) {
    return w->places[i] + block * s->out * pooled_rows(s) * pooled_columns(s) * LANES;
}

/* ---- the passes ---- */

static void prepare(const Net *net, Work *w, const float *parameters, int backward) {
    for (Int i = 0; i < net->stages; i++) {
        const Stage *s = net->stage + i;
        w->forward[i].bias = s->bias < 0 ? 0 : parameters + s->bias;
        pack(w->forward + i, parameters + s->weight, w->packed[i]);
        if (backward && i) pack_turned(w->backward + i, parameters + s->weight, w->turned[i]);
    }
}

static void stage_forward(const Net *net, Work *w, const float *parameters, vec *inputs, Int i, Int block) {
    const Stage *s = net->stage + i;
    const Convolution *c = w->forward + i;
    Map in = input_map(w, s, i, inputs, block), out = output_map(net, w, i, block);
    uint8_t *places = places_of(w, s, i, block);
    if (evonorm(s)) {
        Map z = z_map(w, s, i, block);
        convolve_rows(c, in, z, 0, rows_of(s));
        normalise(s, parameters, z, out, places, w->means[i] + block * s->groups,
                  w->scales[i] + block * s->groups);
        return;
    }
    /* Rows go through the activation while they are in the first cache. */
    Int step = s->pool ? 2 : 1;
    Map rows = map_of(w->rows, step, columns_of(s), 0);
    for (Int y = 0; y < pooled_rows(s); y++) {
        convolve_rows(c, in, rows, y * step, step);
        activate_row(s, rows, out, places, y);
    }
}

static void stage_backward(
    const Net *net, Work *w, const float *parameters, vec *inputs, Int i, Int block, float *gradient
) {
    const Stage *s = net->stage + i;
    Map in = input_map(w, s, i, inputs, block), out = output_map(net, w, i, block);
    Map out_g = map_of(w->in_g, pooled_rows(s), pooled_columns(s), 0);
    Map g = map_of(w->g[i], rows_of(s), columns_of(s), w->backward[i].pad_w);
    const uint8_t *places = places_of(w, s, i, block);
    float *bias = s->bias < 0 ? 0 : gradient + s->bias;
    if (evonorm(s)) {
        normalise_back(s, parameters, out_g, z_map(w, s, i, block), places,
                       w->means[i] + block * s->groups, w->scales[i] + block * s->groups, g, gradient);
        if (bias)
            for (Int c = 0; c < s->out; c++)
                for (Int y = 0; y < rows_of(s); y++) {
                    vec sum = {0};
                    for (Int x = 0; x < columns_of(s); x++) sum += g.at[c * g.channel + y * g.row + x];
                    bias[c] += total(sum);
                }
    } else {
        activate_back(s, out_g, out, places, g, bias);
    }
    correlate(s, g, in, w->sums, gradient + s->weight);
    if (i) {
        Map in_g = map_of(w->in_g, s->height, s->width, 0);
        convolve_rows(w->backward + i, g, in_g, 0, s->height);
    }
}

/* All layers of the blocks of one chunk; leaves the logits [classes][blocks x LANES]. */
static void forward(const Net *net, Work *w, const float *parameters, vec *inputs, Int blocks) {
    Int n = blocks * LANES;
    for (Int b = 0; b < blocks; b++)
        for (Int i = 0; i < net->stages; i++) stage_forward(net, w, parameters, inputs, i, b);
    if (net->stages) {
        vec *features = (vec *)w->own_features;
        for (Int f = 0; f < w->flat_size; f++)
            for (Int b = 0; b < blocks; b++) features[f * blocks + b] = w->flat[b * w->flat_size + f];
        w->features[0] = w->own_features;
    } else w->features[0] = (float *)inputs;
    for (Int i = 0; i < net->denses; i++) {
        const Dense *d = net->dense + i;
        Product p = {parameters + d->weight, d->in, 1, w->features[i], n, d->in, w->features[i + 1], n, 0};
        multiply(&p, d->out, n, w->out_tile[i]);
        vec *out = (vec *)w->features[i + 1];
        for (Int o = 0; o < d->out; o++) {
            float bias = d->bias < 0 ? 0 : parameters[d->bias + o];
            for (Int b = 0; b < blocks; b++) {
                vec sum = out[o * blocks + b] + bias;
                out[o * blocks + b] = d->relu ? at_least(sum, 0) : sum;
            }
        }
    }
}

/* Sum of the losses of the chunk's `count` samples, if wanted; the logits' gradient times `scale`. */
static double cross_entropy(
    const Net *net, Work *w, const Int *targets, Int count, Int blocks, float scale, int wanted
) {
    Int classes = net->dense[net->denses - 1].out;
    const vec *logits = (const vec *)w->features[net->denses];
    vec *g = (vec *)w->features_g[net->denses];
    double loss = 0;
    for (Int b = 0; b < blocks; b++) {
        vec most = logits[b], sum = {0};
        for (Int k = 1; k < classes; k++) {
            vec z = logits[k * blocks + b];
            most = choose(less(most, z) | is_nan(z), z, most);
        }
        for (Int k = 0; k < classes; k++) {
            vec e = exponential(logits[k * blocks + b] - most);
            g[k * blocks + b] = e, sum += e;
        }
        Int here = smallest(LANES, count - b * LANES);
        union {
            ivec all;
            int32_t each[LANES];
        } target;
        for (Int l = 0; l < LANES; l++) target.each[l] = l < here ? targets[b * LANES + l] : -1;
        vec real = choose(same(target.all, -1), (vec){0}, splat(scale)), answer = {0};
        vec share = real / sum;
        for (Int k = 0; k < classes; k++) {
            mask is_answer = same(target.all, k);
            vec *at = g + k * blocks + b;
            *at = *at * share - choose(is_answer, splat(scale), (vec){0});
            answer = choose(is_answer, logits[k * blocks + b], answer);
        }
        if (!wanted) continue;
        union {
            vec all;
            float each[LANES];
        } sums = {sum}, missed = {most - answer};
        for (Int l = 0; l < here; l++) loss += logf(sums.each[l]) + missed.each[l];
    }
    return loss;
}

static void dense_backward(const Net *net, Work *w, const float *parameters, Int blocks, int add, float *gradient) {
    Int n = blocks * LANES;
    for (Int i = net->denses - 1; i >= 0; i--) {
        const Dense *d = net->dense + i;
        vec *g = (vec *)w->features_g[i + 1];
        const vec *out = (const vec *)w->features[i + 1];
        for (Int o = 0; o < d->out; o++) {
            vec sum = {0};
            for (Int b = 0; b < blocks; b++) {
                vec *at = g + o * blocks + b;
                if (d->relu) *at = choose(less((vec){0}, out[o * blocks + b]), *at, (vec){0});
                sum += *at;
            }
            if (d->bias >= 0) gradient[d->bias + o] = total(sum) + (add ? gradient[d->bias + o] : 0);
        }
        const float *turned = w->features[0] + n * d->in; /* see input_block */
        if (i || net->stages) {
            transpose(w->features[i], d->in, n, w->turned_features);
            turned = w->turned_features;
        }
        Int stride = blocks_of(d->in) * LANES;
        Product weights = {(float *)g, n, 1, turned, stride, n, gradient + d->weight, d->in, add};
        multiply(&weights, d->out, d->in, w->weight_tile[i]);
        if (i || net->stages) {
            Product data = {parameters + d->weight, 1, d->in, (float *)g, n, d->out, w->features_g[i], n, 0};
            multiply(&data, d->in, n, w->in_tile[i]);
        }
    }
}

static double backward(
    const Net *net, Work *w, const float *parameters, vec *inputs, const Int *targets, Int count,
    float scale, int wanted, int add, float *gradient
) {
    Int blocks = blocks_of(count);
    double loss = cross_entropy(net, w, targets, count, blocks, scale, wanted);
    dense_backward(net, w, parameters, blocks, add, gradient);
    const vec *features_g = (const vec *)w->features_g[0];
    for (Int b = 0; b < blocks && net->stages; b++) {
        for (Int f = 0; f < w->flat_size; f++) w->in_g[f] = features_g[f * blocks + b];
        for (Int i = net->stages - 1; i >= 0; i--)
            stage_backward(net, w, parameters, inputs, i, b, gradient);
    }
    return loss;
}

/* The stages add to their gradients; the dense layers overwrite theirs at the first chunk. */
static void clear(const Net *net, float *gradient) {
    for (Int i = 0; i < net->stages; i++) {
        const Stage *s = net->stage + i;
        memset(gradient + s->weight, 0, sizeof(float) * s->out * s->in * s->kernel_h * s->kernel_w);
        if (s->bias >= 0) memset(gradient + s->bias, 0, sizeof(float) * s->out);
        if (!evonorm(s)) continue;
        memset(gradient + s->gamma, 0, sizeof(float) * s->out);
        memset(gradient + s->beta, 0, sizeof(float) * s->out);
        if (s->activation == S0) memset(gradient + s->v, 0, sizeof(float) * s->out);
    }
}

/* ---- what Python calls ---- */

Int parley_lanes(void) { return LANES; }

/* Bytes of zeroed, 64-byte aligned memory that the other calls need as `workspace`. */
Int parley_workspace(const Net *net) {
    Work work;
    return lay_out(net, 0, &work);
}

/* Floats that n converted inputs take. */
Int parley_converted(const Net *net, Int n) { return blocks_of(n) * input_block(net) * LANES; }

/* Inputs [n][in] to chunks of features and samples, see input_block. Lanes without a sample are
 * zero: what they hold is multiplied by zero, which a NaN would survive. */
static void convert_flat(const Net *net, const float *inputs, Int n, float *to) {
    Int size = net->inputs, padded = blocks_of(size) * LANES, samples = net->chunk * LANES;
    for (Int first = 0; first < n; first += samples) {
        Int count = smallest(samples, n - first), all = blocks_of(count) * LANES;
        const float *from = inputs + first * size;
        float *features = to + first * input_block(net), *rows = features + size * all;
        if (count < all) memset(features, 0, sizeof(float) * size * all);
        transpose(from, count, size, features);
        for (Int r = 0; r < all; r++) {
            Int copied = r < count ? size : 0;
            memcpy(rows + r * padded, from + r * size, sizeof(float) * copied);
            memset(rows + r * padded + copied, 0, sizeof(float) * (padded - copied));
        }
    }
}

/* Inputs [n][channels][height][width] to blocks of maps. Halos in `to` must be zero already. */
static void convert(const Net *net, const float *inputs, Int n, float *to) {
    if (!net->stages) {
        convert_flat(net, inputs, n, to);
        return;
    }
    Int halo = first_halo(net), width = net->stages ? net->stage[0].width : net->inputs;
    Int lines = net->inputs / width, size = net->inputs;
    for (Int b = 0; b < blocks_of(n); b++) {
        const float *from = inputs + b * LANES * size;
        Int here = smallest(LANES, n - b * LANES);
        for (Int y = 0; y < lines; y++) {
            float *row = to + (b * input_block(net) + y * (width + 2 * halo) + halo) * LANES;
            for (Int x = 0; x < width; x++)
                for (Int l = 0; l < LANES; l++)
                    row[x * LANES + l] = l < here ? from[l * size + y * width + x] : 0;
        }
    }
}

/* All rows of a batch; row r has sizes[r] samples and goes to `to` + r * size. */
void parley_convert(
    const Net *net, Int rows, const float *inputs, Int stride, const Int *sizes, float *to, Int size
) {
    for (Int r = 0; r < rows; r++) convert(net, inputs + r * stride, sizes[r], to + r * size);
}

/* Gradient of one model on one batch of `size` samples; its loss is returned if wanted. */
static float one_gradient(
    const Net *net, Work *work, const float *parameters, float *converted, const Int *targets,
    Int size, int wanted, float *gradient
) {
    prepare(net, work, parameters, 1);
    clear(net, gradient);
    if (!size) memset(gradient, 0, sizeof(float) * net->parameters);
    double loss = 0;
    Int samples = net->chunk * LANES;
    for (Int first = 0; first < size; first += samples) {
        Int count = smallest(samples, size - first);
        vec *inputs = (vec *)converted + first / LANES * input_block(net);
        forward(net, work, parameters, inputs, blocks_of(count));
        loss += backward(net, work, parameters, inputs, targets + first, count, 1.0f / size, wanted,
                         first > 0, gradient);
    }
    return loss / size;
}

/* Loss and gradient of `pairs` models [.][parameters], each on its batch; converted[p] and
 * targets[p] are those of pair p, sizes[p] its number of samples. */
void parley_gradients(
    const Net *net, Int pairs, const float *models, Int model_stride, float *const *converted,
    const Int *const *targets, const Int *sizes, float *losses, float *gradients, Int gradient_stride,
    char *workspace
) {
    Work work;
    lay_out(net, workspace, &work);
    for (Int p = 0; p < pairs; p++)
        losses[p] = one_gradient(net, &work, models + p * model_stride, converted[p], targets[p],
                                 sizes[p], 1, gradients + p * gradient_stride);
}

void add_row_float(const float *row, float weight, Int size, float *sum); /* in average.c */

/* The same for models[model[p]], but each gradient is added at once, while it is in the cache:
 * weight[s][p] times it to row target[s][p] of sums[s], for every share s. `gradient` has room for
 * one. */
void parley_accumulate(
    const Net *net, Int pairs, const float *models, Int model_stride, const Int *model,
    float *const *converted, const Int *const *targets, const Int *sizes, Int shares,
    const Int *target, const float *weight, float *const *sums, const Int *sum_strides,
    float *gradient, char *workspace
) {
    Work work;
    lay_out(net, workspace, &work);
    for (Int p = 0; p < pairs; p++) {
        one_gradient(net, &work, models + model[p] * model_stride, converted[p], targets[p], sizes[p],
                     0, gradient);
        for (Int s = 0; s < shares; s++)
            add_row_float(gradient, weight[s * pairs + p], net->parameters,
                          sums[s] + target[s * pairs + p] * sum_strides[s]);
    }
}

/* Logits [n][classes] of one model. */
void parley_predict(const Net *net, const float *parameters, const float *inputs, Int n, float *logits, char *workspace) {
    Work work;
    lay_out(net, workspace, &work);
    prepare(net, &work, parameters, 0);
    Int classes = net->dense[net->denses - 1].out, samples = net->chunk * LANES;
    vec *converted = net->stages ? work.in[0] : work.flat;
    for (Int first = 0; first < n; first += samples) {
        Int count = smallest(samples, n - first), stride = blocks_of(count) * LANES;
        convert(net, inputs + first * net->inputs, count, (float *)converted);
        forward(net, &work, parameters, converted, blocks_of(count));
        const float *out = work.features[net->denses];
        for (Int i = 0; i < count; i++)
            for (Int k = 0; k < classes; k++) logits[(first + i) * classes + k] = out[k * stride + i];
    }
}

/* Messages of one bit an entry: a scale for each segment, then the signs, eight to a byte. */

static float mean_size(const float *p, Int n) {
    double sum = 0;
    Int i = 0;
    while (i + LANES <= n) { /* float lanes in short runs, double across them */
        vec part = {0};
        for (Int end = smallest(n - LANES, i + 64 * LANES); i <= end; i += LANES) {
            vec v = *(const loose *)(p + i);
            part += choose(less(v, splat(0)), -v, v);
        }
        sum += total(part);
    }
    for (; i < n; i++) sum += fabsf(p[i]);
    return n ? sum / n : 0;
}

static void pack_signs(const float *p, Int n, uint8_t *signs) {
    Int i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16) {
        uint16_t word = _mm512_cmp_ps_mask(_mm512_loadu_ps(p + i), _mm512_setzero_ps(), _CMP_GE_OQ);
        memcpy(signs + i / 8, &word, 2);
    }
#elif defined(__AVX__)
    for (; i + 8 <= n; i += 8) {
        __m256 more = _mm256_cmp_ps(_mm256_loadu_ps(p + i), _mm256_setzero_ps(), _CMP_GE_OQ);
        signs[i / 8] = _mm256_movemask_ps(more);
    }
#endif
    for (; i < n; i += 8) {
        uint8_t byte = 0;
        for (Int k = 0; k < smallest(8, n - i); k++) byte |= (p[i + k] >= 0) << k;
        signs[i / 8] = byte;
    }
}

/* to[i] = ± scale, or to[i] -= ± scale, for the signs from number `begin` to `end`. */
static ALWAYS_INLINE void unpack_signs(
    const uint8_t *signs, Int begin, Int end, Int all, float scale, float *to, int subtract
) {
    Int i = begin;
    for (; i + LANES <= end && i / 8 + 4 <= (all + 7) / 8; i += LANES) {
        uint32_t word;
        memcpy(&word, signs + i / 8, 4);
        vec value = choose(lanes_of(word >> i % 8), splat(scale), splat(-scale));
        if (subtract) value = (vec)(*(loose *)(to + i)) - value;
        *(loose *)(to + i) = value;
    }
    for (; i < end; i++) {
        float value = signs[i / 8] >> i % 8 & 1 ? scale : -scale;
        to[i] = subtract ? to[i] - value : value;
    }
}

static Int sum_of(const Int *sizes, Int segments) {
    Int sum = 0;
    for (Int s = 0; s < segments; s++) sum += sizes[s];
    return sum;
}

void parley_encode_signs(const float *p, Int rows, const Int *sizes, Int segments, uint8_t *wire) {
    Int n = sum_of(sizes, segments), bytes_each = 4 * segments + (n + 7) / 8;
    for (Int r = 0; r < rows; r++, p += n, wire += bytes_each) {
        const float *part = p;
        for (Int s = 0; s < segments; part += sizes[s++]) {
            float scale = mean_size(part, sizes[s]);
            memcpy(wire + 4 * s, &scale, 4);
        }
        pack_signs(p, n, wire + 4 * segments);
    }
}

void parley_decode_signs(
    const uint8_t *wire, Int rows, const Int *sizes, Int segments, float *to, int subtract
) {
    Int n = sum_of(sizes, segments), bytes_each = 4 * segments + (n + 7) / 8;
    for (Int r = 0; r < rows; r++, to += n, wire += bytes_each)
        for (Int s = 0, begin = 0; s < segments; begin += sizes[s++]) {
            float scale;
            memcpy(&scale, wire + 4 * s, 4);
            if (subtract)
                unpack_signs(wire + 4 * segments, begin, begin + sizes[s], n, scale, to, 1);
            else
                unpack_signs(wire + 4 * segments, begin, begin + sizes[s], n, scale, to, 0);
        }
}
