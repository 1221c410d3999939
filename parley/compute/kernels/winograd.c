/* 3 x 3 convolutions with stride 1 by Winograd's minimal filtering F(4 x 4, 3 x 3).
 *
 * A tile of 4 x 4 outputs sees 6 x 6 inputs d. With U = G w Gᵀ and V = Bᵀ d B, the outputs are
 * Aᵀ (Σ over channels of U ∘ V) A: 36 products for what takes 144 directly. As the outputs are
 * linear in w and in d, both gradients are the transposed maps: with Y = A g Aᵀ,
 *     dU = Σ over tiles of Y Vᵀ,  dw = Gᵀ dU G,      dV = Uᵀ Y,  dd = B dV Bᵀ,
 * so that both share Y, and U serves forward and backward. Each of the 36 places is a product of
 * matrices. With samples innermost the transforms are additions of vectors.
 *
 * Points 0, ±1, ±2 and infinity. In float32 a result is about 1e-6 of the largest away from the
 * direct one (tests/compute/test_graph.py holds it below 1e-5).
 */
#include "winograd.h"
#include "convolution.h"
#include "tiles.h"

#define PLACES 36
#define SIDE 4   /* outputs of a tile */
#define SIGHT 6  /* inputs of a tile */
#define CACHE (384 << 10) /* bytes of transformed tiles that should stay in the second cache */
#define RUN_MOST 512 /* vectors of a row of a place */

/* ---- one-dimensional transforms ---- */

static ALWAYS_INLINE void input_transform(const vec *d, Int step, vec *t, Int to) { /* Bᵀ */
    vec d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step], d4 = d[4 * step], d5 = d[5 * step];
    vec a = d4 - 4.0f * d2, b = d3 - 4.0f * d1, c = d4 - d2, e = 2.0f * (d3 - d1);
    t[0] = 4.0f * d0 - 5.0f * d2 + d4;
    t[to] = a + b, t[2 * to] = a - b;
    t[3 * to] = c + e, t[4 * to] = c - e;
    t[5 * to] = 4.0f * d1 - 5.0f * d3 + d5;
}

static ALWAYS_INLINE void input_adjoint(const vec *t, Int step, vec *d, Int to) { /* B */
    vec t0 = t[0], t5 = t[5 * step];
    vec plus = t[step] + t[2 * step], minus = t[step] - t[2 * step];
    vec far = t[3 * step] + t[4 * step], wide = 2.0f * (t[3 * step] - t[4 * step]);
    d[0] = 4.0f * t0;
    d[to] = 4.0f * (t5 - minus) - wide;
    d[2 * to] = -5.0f * t0 - 4.0f * plus - far;
    d[3 * to] = minus + wide - 5.0f * t5;
    d[4 * to] = t0 + plus + far;
    d[5 * to] = t5;
}

static ALWAYS_INLINE void output_transform(const vec *m, Int step, vec *y, Int to) { /* Aᵀ */
    vec plus = m[step] + m[2 * step], minus = m[step] - m[2 * step];
    vec far = m[3 * step] + m[4 * step], wide = m[3 * step] - m[4 * step];
    y[0] = m[0] + plus + far;
    y[to] = minus + 2.0f * wide;
    y[2 * to] = plus + 4.0f * far;
    y[3 * to] = minus + 8.0f * wide + m[5 * step];
}

static ALWAYS_INLINE void output_adjoint(const vec *g, Int step, vec *y, Int to) { /* A */
    vec g0 = g[0], g1 = g[step], g2 = g[2 * step], g3 = g[3 * step];
    vec even = g0 + g2, odd = g1 + g3, far = g0 + 4.0f * g2, wide = 2.0f * g1 + 8.0f * g3;
    y[0] = g0, y[5 * to] = g3;
    y[to] = even + odd, y[2 * to] = even - odd;
    y[3 * to] = far + wide, y[4 * to] = far - wide;
}

static ALWAYS_INLINE void weight_transform(const vec *w, Int step, vec *u, Int to) { /* G */
    vec w0 = w[0], w1 = w[step], w2 = w[2 * step];
    vec even = w0 + w2, far = w0 + 4.0f * w2;
    u[0] = w0 * 0.25f, u[5 * to] = w2;
    u[to] = (even + w1) * (-1.0f / 6), u[2 * to] = (even - w1) * (-1.0f / 6);
    u[3 * to] = (far + 2.0f * w1) * (1.0f / 24), u[4 * to] = (far - 2.0f * w1) * (1.0f / 24);
}

static ALWAYS_INLINE void weight_adjoint(const vec *u, Int step, vec *w, Int to) { /* Gᵀ */
    vec plus = (u[step] + u[2 * step]) * (1.0f / 6), minus = (u[2 * step] - u[step]) * (1.0f / 6);
    vec far = (u[3 * step] + u[4 * step]) * (1.0f / 6), wide = (u[3 * step] - u[4 * step]) * (1.0f / 12);
    w[0] = u[0] * 0.25f - plus + far * 0.25f;
    w[to] = minus + wide;
    w[2 * to] = far - plus + u[5 * step];
}

/* ---- the plan of one convolution ---- */

typedef struct {
    Convolution c;
    Int down, across, tiles;  /* tiles of the map */
    Int few;                  /* that are computed together */
    Int in_blocks;            /* vectors of a row of dU */
    float *u, *du;            /* [PLACES][out][in], [PLACES][out][in_blocks x LANES] */
    vec *v, *y, *panel;
} Plan;

/* From one place to the next: an odd number of cache lines, as powers of two would collide. */
static Int place(Int rows, Int n) {
    Int line = LINE > 0 ? LINE : 1;
    return ((rows * n + line - 1) / line | 1) * line;
}

static Plan plan_of(const Graph *graph, const Node *node, vec *prepared, vec *scratch) {
    Plan p = {.c = convolution_of(graph, node)};
    p.down = (p.c.rows + SIDE - 1) / SIDE, p.across = (p.c.columns + SIDE - 1) / SIDE;
    p.tiles = p.down * p.across;
    Int vecs = graph->vecs, each = PLACES * (p.c.in + p.c.out) * (Int)sizeof(vec);
    Int n = largest(CACHE / each, WIDE);
    p.few = smallest(p.tiles, largest(1, n / vecs));
    p.in_blocks = blocks_of(p.c.in);
    p.u = (float *)prepared;
    p.du = (float *)(prepared + blocks_of(PLACES * p.c.in * p.c.out));
    p.v = scratch;
    p.y = p.v + PLACES * place(p.c.in, p.few * vecs);
    p.panel = p.y + PLACES * place(p.c.out, p.few * vecs);
    return p;
}

static Plan plan_at(const Run *run, const Node *node) {
    return plan_of(run->graph, node, run->memory + node->prepared, scratch_of(run));
}

void winograd_sizes(const Graph *graph, const Node *node, Sizes *sizes) {
    Plan p = plan_of(graph, node, 0, 0);
    sizes->prepared = blocks_of(PLACES * p.c.in * p.c.out) + PLACES * p.c.out * p.in_blocks;
    sizes->scratch = PLACES * (place(p.c.in, p.few * graph->vecs) + place(p.c.out, p.few * graph->vecs)) +
                     p.few * graph->vecs * LANES * p.in_blocks;
}

void winograd_prepare(const Run *run, const Node *node) {
    Plan p = plan_at(run, node);
    const float *weights = parameter_of(run, node, 0);
    if (run->gradient) memset(p.du, 0, sizeof(vec) * PLACES * p.c.out * p.in_blocks);
    for (Int o = 0; o < p.c.out; o++)
        for (Int i = 0; i < p.c.in; i += LANES) {
            Int count = smallest(LANES, p.c.in - i);
            vec w[9] = {{0}}, half[18], u[PLACES];
            const float *from = weights + (o * p.c.in + i) * 9;
            for (Int l = 0; l < count; l++)
                for (Int t = 0; t < 9; t++) ((float *)(w + t))[l] = from[l * 9 + t];
            UNROLL for (int x = 0; x < 3; x++) weight_transform(w + x, 3, half + x, 3);
            UNROLL for (int y = 0; y < SIGHT; y++) weight_transform(half + 3 * y, 1, u + 6 * y, 1);
            for (Int k = 0; k < PLACES; k++)
                memcpy(p.u + (k * p.c.out + o) * p.c.in + i, u + k, count * sizeof(float));
        }
}

void winograd_finish(const Run *run, const Node *node) {
    Plan p = plan_at(run, node);
    float *gradient = gradient_of(run, node, 0);
    if (!gradient) return;
    for (Int o = 0; o < p.c.out; o++)
        for (Int i = 0; i < p.c.in; i += LANES) {
            Int count = smallest(LANES, p.c.in - i);
            vec u[PLACES], half[18], w[9];
            for (Int k = 0; k < PLACES; k++)
                u[k] = ((vec *)p.du)[(k * p.c.out + o) * p.in_blocks + i / LANES];
            UNROLL for (int x = 0; x < SIGHT; x++) weight_adjoint(u + x, SIGHT, half + x, SIGHT);
            UNROLL for (int y = 0; y < 3; y++) weight_adjoint(half + SIGHT * y, 1, w + 3 * y, 1);
            float *to = gradient + (o * p.c.in + i) * 9;
            for (Int l = 0; l < count; l++)
                for (Int t = 0; t < 9; t++) to[l * 9 + t] += ((float *)(w + t))[l];
        }
}

/* ---- tiles in and out of the 36 places ---- */

typedef struct { /* a tile: its corner in the input and in the output */
    Int in_y, in_x, out_y, out_x;
} Corner;

static Corner corner_of(const Plan *p, Int tile) {
    Int y = tile / p->across * SIDE, x = tile % p->across * SIDE;
    return (Corner){y - p->c.pad_h, x - p->c.pad_w, y, x};
}

static int all_inside(Map map, Int y, Int x, Int side) {
    return y >= 0 && x >= 0 && y + side <= map.rows && x + side <= map.columns;
}

/* One value of a tile, or zero outside the map. */
static ALWAYS_INLINE vec near(Map map, const vec *channel, Int y, Int x, Int v, int inside) {
    if (!inside && (y < 0 || x < 0 || y >= map.rows || x >= map.columns)) return (vec){0};
    return channel[(y * map.columns + x) * map.vecs + v];
}

/* V = Bᵀ d B of a channel's tile, to places `apart` each. */
static ALWAYS_INLINE void read_input(Map in, const vec *channel, Corner at, Int v, int inside, vec *to, Int apart) {
    vec half[PLACES];
    UNROLL for (int x = 0; x < SIGHT; x++) {
        vec column[SIGHT];
        UNROLL for (int y = 0; y < SIGHT; y++)
            column[y] = near(in, channel, at.in_y + y, at.in_x + x, v, inside);
        input_transform(column, 1, half + x, SIGHT);
    }
    UNROLL for (int y = 0; y < SIGHT; y++)
        input_transform(half + SIGHT * y, 1, to + SIGHT * y * apart, apart);
}

static void read_inputs(const Plan *p, Map in, Int first, Int count, vec *to) {
    Int n = count * in.vecs, apart = place(p->c.in, n);
    for (Int t = 0; t < count; t++) {
        Corner at = corner_of(p, first + t);
        int inside = all_inside(in, at.in_y, at.in_x, SIGHT);
        for (Int c = 0; c < p->c.in; c++) {
            const vec *channel = in.at + c * in.channel;
            for (Int v = 0; v < in.vecs; v++) {
                vec *place = to + c * n + t * in.vecs + v;
                if (inside) read_input(in, channel, at, v, 1, place, apart);
                else read_input(in, channel, at, v, 0, place, apart);
            }
        }
    }
}

/* Aᵀ m A of all channels' tiles to the output. */
static void write_outputs(const Plan *p, const vec *from, Int first, Int count, Map out, const float *bias) {
    Int n = count * out.vecs, apart = place(p->c.out, n);
    for (Int t = 0; t < count; t++) {
        Corner at = corner_of(p, first + t);
        int inside = all_inside(out, at.out_y, at.out_x, SIDE);
        for (Int c = 0; c < p->c.out; c++) {
            vec *channel = out.at + c * out.channel, start = bias ? splat(bias[c]) : (vec){0};
            for (Int v = 0; v < out.vecs; v++) {
                const vec *m = from + c * n + t * out.vecs + v;
                vec half[SIDE * SIGHT], y[SIDE * SIDE];
                UNROLL for (int x = 0; x < SIGHT; x++)
                    output_transform(m + x * apart, SIGHT * apart, half + x, SIGHT);
                UNROLL for (int i = 0; i < SIDE; i++) output_transform(half + SIGHT * i, 1, y + SIDE * i, 1);
                for (Int i = 0; i < SIDE; i++)
                    for (Int j = 0; j < SIDE; j++)
                        if (inside || (at.out_y + i < out.rows && at.out_x + j < out.columns))
                            channel[((at.out_y + i) * out.columns + at.out_x + j) * out.vecs + v] =
                                y[SIDE * i + j] + start;
            }
        }
    }
}

/* Y = A g Aᵀ of all channels' tiles. */
static void read_slopes(const Plan *p, Map g, Int first, Int count, vec *to) {
    Int n = count * g.vecs, apart = place(p->c.out, n);
    for (Int t = 0; t < count; t++) {
        Corner at = corner_of(p, first + t);
        int inside = all_inside(g, at.out_y, at.out_x, SIDE);
        for (Int c = 0; c < p->c.out; c++) {
            const vec *channel = g.at + c * g.channel;
            for (Int v = 0; v < g.vecs; v++) {
                vec half[SIGHT * SIDE], *y = to + c * n + t * g.vecs + v;
                UNROLL for (int x = 0; x < SIDE; x++) {
                    vec column[SIDE];
                    UNROLL for (int i = 0; i < SIDE; i++)
                        column[i] = near(g, channel, at.out_y + i, at.out_x + x, v, inside);
                    output_adjoint(column, 1, half + x, SIDE);
                }
                UNROLL for (int i = 0; i < SIGHT; i++)
                    output_adjoint(half + SIDE * i, 1, y + SIGHT * i * apart, apart);
            }
        }
    }
}

/* Adds B dV Bᵀ of all channels' tiles to the gradient of the input. */
static void add_inputs(const Plan *p, const vec *from, Int first, Int count, Map in_g) {
    Int n = count * in_g.vecs, apart = place(p->c.in, n);
    for (Int t = 0; t < count; t++) {
        Corner at = corner_of(p, first + t);
        int inside = all_inside(in_g, at.in_y, at.in_x, SIGHT);
        for (Int c = 0; c < p->c.in; c++) {
            vec *channel = in_g.at + c * in_g.channel;
            for (Int v = 0; v < in_g.vecs; v++) {
                const vec *dv = from + c * n + t * in_g.vecs + v;
                vec half[PLACES], d[PLACES];
                UNROLL for (int x = 0; x < SIGHT; x++)
                    input_adjoint(dv + x * apart, SIGHT * apart, half + x, SIGHT);
                UNROLL for (int y = 0; y < SIGHT; y++) input_adjoint(half + SIGHT * y, 1, d + SIGHT * y, 1);
                for (Int y = 0; y < SIGHT; y++)
                    for (Int x = 0; x < SIGHT; x++) {
                        Int row = at.in_y + y, column = at.in_x + x;
                        if (inside || (row >= 0 && column >= 0 && row < in_g.rows && column < in_g.columns))
                            channel[(row * in_g.columns + column) * in_g.vecs + v] += d[SIGHT * y + x];
                    }
            }
        }
    }
}

/* ---- the passes ---- */

void winograd_forward(const Run *run, const Node *node) {
    Plan p = plan_at(run, node);
    Map in = map_of(run, node->first), out = map_of(run, node->result);
    Tile tile = tile_for(p.c.out, p.few * in.vecs);
    for (Int first = 0; first < p.tiles; first += p.few) {
        Int count = smallest(p.few, p.tiles - first), n = count * in.vecs;
        read_inputs(&p, in, first, count, p.v);
        for (Int k = 0; k < PLACES; k++) {
            Product product = {
                p.u + k * p.c.out * p.c.in, p.c.in, 1,
                (float *)(p.v + k * place(p.c.in, n)), n * LANES, p.c.in,
                (float *)(p.y + k * place(p.c.out, n)), n * LANES, 0,
            };
            multiply(&product, p.c.out, n, tile);
        }
        write_outputs(&p, p.y, first, count, out, parameter_of(run, node, 1));
    }
}

/* dU of one place: the turned inputs are what makes it a plain product. */
static void weight_slopes(const Plan *p, Int k, Int n, Tile tile) {
    static const float zeros[RUN_MOST * LANES];
    const float *v = (const float *)(p->v + k * place(p->c.in, n));
    Int wide = p->in_blocks * LANES;
    for (Int i = 0; i < wide; i += LANES) {
        const float *from[LANES];
        for (Int l = 0; l < LANES; l++) from[l] = i + l < p->c.in ? v + (i + l) * n * LANES : zeros;
        turn(from, n * LANES, (float *)p->panel + i, wide);
    }
    Product product = {
        (float *)(p->y + k * place(p->c.out, n)), n * LANES, 1, (float *)p->panel, wide, n * LANES,
        p->du + k * p->c.out * wide, wide, 1,
    };
    multiply(&product, p->c.out, p->in_blocks, tile);
}

void winograd_backward(const Run *run, const Node *node) {
    Plan p = plan_at(run, node);
    Map in = map_of(run, node->first), g = slope_of(run, node->result), in_g = in;
    if (node->wanted[0]) {
        in_g = slope_of(run, node->first);
        if (!node->add[0]) memset(in_g.at, 0, sizeof(vec) * in_g.channels * in_g.channel);
    }
    Tile weight_tile = tile_for(p.c.out, p.in_blocks), tile = tile_for(p.c.in, p.few * in.vecs);
    for (Int first = 0; first < p.tiles; first += p.few) {
        Int count = smallest(p.few, p.tiles - first), n = count * in.vecs;
        read_inputs(&p, in, first, count, p.v);
        read_slopes(&p, g, first, count, p.y);
        for (Int k = 0; k < PLACES; k++) {
            if (gradient_of(run, node, 0)) weight_slopes(&p, k, n, weight_tile);
            if (!node->wanted[0]) continue;
            Product product = {
                p.u + k * p.c.out * p.c.in, 1, p.c.in,
                (float *)(p.y + k * place(p.c.out, n)), n * LANES, p.c.out,
                (float *)(p.v + k * place(p.c.in, n)), n * LANES, 0,
            };
            multiply(&product, p.c.in, n, tile);
        }
        if (node->wanted[0]) add_inputs(&p, p.v, first, count, in_g);
    }
}
