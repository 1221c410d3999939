/* Convolutions with stride 1 by Winograd's minimal filtering, with fewer products than the direct way.
 *
 * A tile of outputs sees a tile d of inputs. With U = G w Gᵀ and V = Bᵀ d B, the outputs are
 * Aᵀ (Σ over channels of U ∘ V) A: for 3 x 3 kernels and 4 x 4 outputs 36 products for what takes 144
 * directly. As the outputs are linear in w and in d, both gradients are the transposed maps: with
 * Y = A g Aᵀ,
 *     dU = Σ over tiles of Y Vᵀ,  dw = Gᵀ dU G,      dV = Uᵀ Y,  dd = B dV Bᵀ,
 * so that both share Y, and U serves forward and backward. Each of the places (36 here) is a product
 * of matrices. With samples innermost the transforms are additions of vectors; transforms.h has them
 * along one axis.
 *
 * In float32 a result is about 1e-6 of the largest away from the direct one (a test in
 * tests/compute/test_operations.py holds it below 1e-5).
 */
#include "winograd.h"
#include "convolution.h"
#include "tiles.h"
#include "transforms.h"

#define MOST_PLACES (MOST_POINTS * MOST_POINTS)
#define CACHE (384 << 10) /* bytes of transformed tiles that should stay in the second cache */
#define SUMS (512 << 10)  /* and of dU with a sum for every lane */
#define RUN_MOST 512 /* vectors of a row of a place */

/* ---- the plan of one convolution ---- */

typedef struct {
    Convolution c;
    int form, side, sight, taps, places; /* of transforms.h */
    Int down, across, tiles;  /* tiles of the map */
    Int few;                  /* that are computed together */
    Int in_blocks;            /* vectors of a row of dU */
    int by_lane;              /* whether dU has a sum for every lane: in[LANES] would be mostly padding */
    Int u_place, du_place;    /* vectors from one place to the next */
    vec *u, *du;              /* [places][out][in]; [places][out][in_blocks x LANES] or [.][out][in] vectors */
    vec *v, *y, *panel;
} Plan;

/* From one place to the next: an odd number of cache lines, as powers of two would collide. */
static Int place(Int rows, Int n) {
    Int line = LINE > 0 ? LINE : 1;
    return ((rows * n + line - 1) / line | 1) * line;
}

static Int places_of(const Convolution *c, int form) {
    Int side = side_of(form), points = points_of(form);
    return (c->rows + side - 1) / side * ((c->columns + side - 1) / side) * points * points;
}

static int form_of(const Convolution *c) {
    if (c->kernel_h == 5) return places_of(c, F55) < places_of(c, F45) ? F55 : F45;
    return c->height == 2 && c->width == 2 && c->pad_h == 1 && c->pad_w == 1 ? F22 : F43;
}

static Plan plan_of(const Graph *graph, const Node *node, vec *prepared, vec *scratch) {
    Plan p = {.c = convolution_of(graph, node)};
    p.form = form_of(&p.c);
    p.side = side_of(p.form), p.sight = sight_of(p.form), p.taps = taps_of(p.form);
    p.places = points_of(p.form) * points_of(p.form);
    p.down = (p.c.rows + p.side - 1) / p.side, p.across = (p.c.columns + p.side - 1) / p.side;
    p.tiles = p.down * p.across;
    Int vecs = graph->vecs, each = p.places * (p.c.in + p.c.out) * (Int)sizeof(vec);
    Int n = largest(CACHE / each, WIDE), weights = p.c.in * p.c.out;
    Int most = largest(1, n / vecs), groups = (p.tiles + most - 1) / most;
    p.few = (p.tiles + groups - 1) / groups; /* about as many each time */
    p.in_blocks = blocks_of(p.c.in);
    p.by_lane = 2 * p.c.in <= p.in_blocks * LANES && p.places * weights * (Int)sizeof(vec) <= SUMS;
    p.u_place = place(1, blocks_of(weights));
    p.du_place = p.by_lane ? weights : place(p.c.out, p.in_blocks);
    p.u = prepared;
    p.du = p.u + p.places * p.u_place;
    p.v = scratch;
    p.y = p.v + p.places * place(p.c.in, p.few * vecs);
    p.panel = p.y + p.places * place(p.c.out, p.few * vecs);
    return p;
}

static Plan plan_at(const Run *run, const Node *node) {
    return plan_of(run->graph, node, run->memory + node->prepared, scratch_of(run));
}

void winograd_sizes(const Graph *graph, const Node *node, Sizes *sizes) {
    Plan p = plan_of(graph, node, 0, 0);
    Int n = p.few * graph->vecs;
    sizes->prepared = p.places * (p.u_place + p.du_place);
    sizes->scratch = p.places * (place(p.c.in, n) + place(p.c.out, n)) + n * LANES * p.in_blocks;
}

/* ---- weights in and out of the places ---- */

#define MOST_TAPS 32 /* 25, in whole vectors of any width */

/* U of LANES weights [.][taps x taps], of which `count` are there, to places `apart` floats each. */
static ALWAYS_INLINE void read_weights(const int f, const float *from, Int count, float *to, Int apart) {
    const int taps = taps_of(f), points = points_of(f), area = taps * taps;
    float flat[LANES * area + MOST_TAPS];
    vec w[MOST_TAPS], half[MOST_POINTS * 5], u[MOST_PLACES];
    const float *row[LANES];
    memset(flat + count * area, 0, sizeof flat - count * area * sizeof(float));
    memcpy(flat, from, count * area * sizeof(float));
    for (int l = 0; l < LANES; l++) row[l] = flat + l * area;
    turn(row, blocks_of(area) * LANES, (float *)w, LANES);
    UNROLL for (int x = 0; x < taps; x++) weight_transform(f, w + x, taps, half + x, taps);
    UNROLL for (int y = 0; y < points; y++) weight_transform(f, half + taps * y, 1, u + points * y, 1);
    for (int k = 0; k < points * points; k++) {
        if (count == LANES) *(loose *)(to + k * apart) = u[k];
        else memcpy(to + k * apart, u + k, count * sizeof(float));
    }
}

/* Gᵀ dU G of places `apart` vectors each. */
static ALWAYS_INLINE void weights_of(const int f, const vec *from, Int apart, vec *w) {
    const int taps = taps_of(f), points = points_of(f);
    vec half[MOST_POINTS * 5];
    UNROLL for (int x = 0; x < points; x++)
        weight_adjoint(f, from + x * apart, points * apart, half + x, points);
    UNROLL for (int y = 0; y < taps; y++) weight_adjoint(f, half + points * y, 1, w + taps * y, 1);
}

typedef float quad __attribute__((vector_size(16), may_alias, aligned(4)));

/* Adds the gradient of LANES weights, of which `count` are there. */
static ALWAYS_INLINE void add_weights(const int f, const vec *from, Int apart, Int count, float *to) {
    const int area = taps_of(f) * taps_of(f);
    vec w[MOST_TAPS];
    float flat[LANES * MOST_TAPS];
    const float *column[LANES];
    weights_of(f, from, apart, w);
    for (int t = area; t < blocks_of(area) * LANES; t++) w[t] = (vec){0};
    for (int t = 0; t < area; t += LANES) {
        for (int l = 0; l < LANES; l++) column[l] = (float *)(w + t + l);
        turn(column, LANES, flat + t, MOST_TAPS);
    }
    for (Int l = 0; l < count; l++) {
        float *row = to + l * area, *part = flat + l * MOST_TAPS;
        int t = 0;
        UNROLL for (; t + 4 <= area; t += 4) *(quad *)(row + t) += *(quad *)(part + t);
        for (; t < area; t++) row[t] += part[t];
    }
}

/* The same for one weight with a sum for every lane. */
static ALWAYS_INLINE void add_weight(const int f, const vec *from, Int apart, float *to) {
    const int area = taps_of(f) * taps_of(f);
    vec w[MOST_TAPS];
    weights_of(f, from, apart, w);
    for (int t = 0; t < area; t++) to[t] += total(w[t]);
}

/* ---- tiles in and out of the places ---- */

typedef struct { /* a tile: its corner in the input and in the output */
    Int in_y, in_x, out_y, out_x;
} Corner;

static Corner corner_of(const Plan *p, Int tile) {
    Int y = tile / p->across * p->side, x = tile % p->across * p->side;
    if (p->form == F22) return (Corner){y, x, y, x};
    return (Corner){y - p->c.pad_h, x - p->c.pad_w, y, x};
}

static int all_inside(Map map, Int y, Int x, Int side) {
    return y >= 0 && x >= 0 && y + side <= map.rows && x + side <= map.columns;
}

/* One value of a tile, or zero outside the map. */
static ALWAYS_INLINE vec near_by(Map map, const vec *channel, Int y, Int x, Int v, int inside) {
    if (!inside && (y < 0 || x < 0 || y >= map.rows || x >= map.columns)) return (vec){0};
    return channel[(y * map.columns + x) * map.vecs + v];
}

/* V = Bᵀ d B of a channel's tile, to places `apart` each. */
static ALWAYS_INLINE void read_input(
    const int f, Map in, const vec *channel, Corner at, Int v, int inside, vec *to, Int apart
) {
    const int sight = sight_of(f), points = points_of(f);
    vec half[MOST_PLACES];
    UNROLL for (int x = 0; x < sight; x++) {
        vec column[MOST_POINTS];
        UNROLL for (int y = 0; y < sight; y++)
            column[y] = near_by(in, channel, at.in_y + y, at.in_x + x, v, inside);
        input_transform(f, column, 1, half + x, sight);
    }
    UNROLL for (int y = 0; y < points; y++)
        input_transform(f, half + sight * y, 1, to + points * y * apart, apart);
}

static ALWAYS_INLINE void read_inputs(const int f, const Plan *p, Map in, Int first, Int count, vec *to) {
    Int n = count * in.vecs, apart = place(p->c.in, n);
    for (Int t = 0; t < count; t++) {
        Corner at = corner_of(p, first + t);
        int inside = all_inside(in, at.in_y, at.in_x, sight_of(f));
        for (Int c = 0; c < p->c.in; c++) {
            const vec *channel = in.at + c * in.channel;
            for (Int v = 0; v < in.vecs; v++) {
                vec *place = to + c * n + t * in.vecs + v;
                if (inside) read_input(f, in, channel, at, v, 1, place, apart);
                else read_input(f, in, channel, at, v, 0, place, apart);
            }
        }
    }
}

/* Aᵀ m A of all channels' tiles to the output. */
static ALWAYS_INLINE void write_outputs(
    const int f, const Plan *p, const vec *from, Int first, Int count, Map out, const float *bias
) {
    const int side = side_of(f), points = points_of(f);
    Int n = count * out.vecs, apart = place(p->c.out, n);
    for (Int t = 0; t < count; t++) {
        Corner at = corner_of(p, first + t);
        int inside = all_inside(out, at.out_y, at.out_x, side);
        for (Int c = 0; c < p->c.out; c++) {
            vec *channel = out.at + c * out.channel, start = bias ? splat(bias[c]) : (vec){0};
            for (Int v = 0; v < out.vecs; v++) {
                const vec *m = from + c * n + t * out.vecs + v;
                vec half[MOST_SIDE * MOST_POINTS], y[MOST_SIDE * MOST_SIDE];
                UNROLL for (int x = 0; x < points; x++)
                    output_transform(f, m + x * apart, points * apart, half + x, points);
                UNROLL for (int i = 0; i < side; i++)
                    output_transform(f, half + points * i, 1, y + side * i, 1);
                for (Int i = 0; i < side; i++)
                    for (Int j = 0; j < side; j++)
                        if (inside || (at.out_y + i < out.rows && at.out_x + j < out.columns))
                            channel[((at.out_y + i) * out.columns + at.out_x + j) * out.vecs + v] =
                                y[side * i + j] + start;
            }
        }
    }
}

/* Y = A g Aᵀ of all channels' tiles. */
static ALWAYS_INLINE void read_slopes(const int f, const Plan *p, Map g, Int first, Int count, vec *to) {
    const int side = side_of(f), points = points_of(f);
    Int n = count * g.vecs, apart = place(p->c.out, n);
    for (Int t = 0; t < count; t++) {
        Corner at = corner_of(p, first + t);
        int inside = all_inside(g, at.out_y, at.out_x, side);
        for (Int c = 0; c < p->c.out; c++) {
            const vec *channel = g.at + c * g.channel;
            for (Int v = 0; v < g.vecs; v++) {
                vec half[MOST_POINTS * MOST_SIDE], *y = to + c * n + t * g.vecs + v;
                UNROLL for (int x = 0; x < side; x++) {
                    vec column[MOST_SIDE];
                    UNROLL for (int i = 0; i < side; i++)
                        column[i] = near_by(g, channel, at.out_y + i, at.out_x + x, v, inside);
                    output_adjoint(f, column, 1, half + x, side);
                }
                UNROLL for (int i = 0; i < points; i++)
                    output_adjoint(f, half + side * i, 1, y + points * i * apart, apart);
            }
        }
    }
}

/* Adds B dV Bᵀ of all channels' tiles to the gradient of the input. */
static ALWAYS_INLINE void add_inputs(
    const int f, const Plan *p, const vec *from, Int first, Int count, Map in_g
) {
    const int sight = sight_of(f), points = points_of(f);
    Int n = count * in_g.vecs, apart = place(p->c.in, n);
    for (Int t = 0; t < count; t++) {
        Corner at = corner_of(p, first + t);
        int inside = all_inside(in_g, at.in_y, at.in_x, sight);
        for (Int c = 0; c < p->c.in; c++) {
            vec *channel = in_g.at + c * in_g.channel;
            for (Int v = 0; v < in_g.vecs; v++) {
                const vec *dv = from + c * n + t * in_g.vecs + v;
                vec half[MOST_PLACES], d[MOST_PLACES];
                UNROLL for (int x = 0; x < points; x++)
                    input_adjoint(f, dv + x * apart, points * apart, half + x, points);
                UNROLL for (int y = 0; y < sight; y++)
                    input_adjoint(f, half + points * y, 1, d + sight * y, 1);
                for (Int y = 0; y < sight; y++)
                    for (Int x = 0; x < sight; x++) {
                        Int row = at.in_y + y, column = at.in_x + x;
                        if (inside || (row >= 0 && column >= 0 && row < in_g.rows && column < in_g.columns))
                            channel[(row * in_g.columns + column) * in_g.vecs + v] += d[sight * y + x];
                    }
            }
        }
    }
}

/* One compiled body for each form. */
typedef struct {
    void (*read_weights)(const float *from, Int count, float *to, Int apart);
    void (*add_weights)(const vec *from, Int apart, Int count, float *to);
    void (*add_weight)(const vec *from, Int apart, float *to);
    void (*read_inputs)(const Plan *p, Map in, Int first, Int count, vec *to);
    void (*write_outputs)(const Plan *p, const vec *from, Int first, Int count, Map out, const float *bias);
    void (*read_slopes)(const Plan *p, Map g, Int first, Int count, vec *to);
    void (*add_inputs)(const Plan *p, const vec *from, Int first, Int count, Map in_g);
} Body;

#define EACH_FORM(M) M(F43) M(F45) M(F55) M(F22)
#define DEFINE(F) \
    static void read_weights_##F(const float *w, Int n, float *to, Int a) { read_weights(F, w, n, to, a); } \
    static void add_weights_##F(const vec *u, Int a, Int n, float *to) { add_weights(F, u, a, n, to); } \
    static void add_weight_##F(const vec *u, Int a, float *to) { add_weight(F, u, a, to); } \
    static void read_inputs_##F(const Plan *p, Map m, Int t, Int n, vec *to) { read_inputs(F, p, m, t, n, to); } \
    static void write_outputs_##F(const Plan *p, const vec *y, Int t, Int n, Map m, const float *b) { \
        write_outputs(F, p, y, t, n, m, b); \
    } \
    static void read_slopes_##F(const Plan *p, Map m, Int t, Int n, vec *to) { read_slopes(F, p, m, t, n, to); } \
    static void add_inputs_##F(const Plan *p, const vec *v, Int t, Int n, Map m) { add_inputs(F, p, v, t, n, m); }
EACH_FORM(DEFINE)
#define ENTRY(F) \
    [F] = {read_weights_##F, add_weights_##F, add_weight_##F, read_inputs_##F, write_outputs_##F, \
           read_slopes_##F, add_inputs_##F},
static const Body bodies[] = {EACH_FORM(ENTRY)};

/* ---- the passes ---- */

void winograd_prepare(const Run *run, const Node *node) {
    Plan p = plan_at(run, node);
    const float *weights = parameter_of(run, node, 0);
    for (Int o = 0; o < p.c.out; o++)
        for (Int i = 0; i < p.c.in; i += LANES) {
            Int at = o * p.c.in + i;
            bodies[p.form].read_weights(weights + at * p.taps * p.taps, smallest(LANES, p.c.in - i),
                                        (float *)p.u + at, p.u_place * LANES);
        }
}

void winograd_finish(const Run *run, const Node *node) {
    Plan p = plan_at(run, node);
    float *gradient = gradient_of(run, node, 0);
    Int area = p.taps * p.taps;
    if (!gradient) return;
    for (Int at = 0; p.by_lane && at < p.c.out * p.c.in; at++)
        bodies[p.form].add_weight(p.du + at, p.du_place, gradient + at * area);
    for (Int o = 0; !p.by_lane && o < p.c.out; o++)
        for (Int i = 0; i < p.c.in; i += LANES)
            bodies[p.form].add_weights(p.du + o * p.in_blocks + i / LANES, p.du_place,
                                       smallest(LANES, p.c.in - i), gradient + (o * p.c.in + i) * area);
}

void winograd_forward(const Run *run, const Node *node) {
    Plan p = plan_at(run, node);
    Map in = map_of(run, node->first), out = map_of(run, node->result);
    Tile tile = tile_for(p.c.out, p.few * in.vecs);
    for (Int first = 0; first < p.tiles; first += p.few) {
        Int count = smallest(p.few, p.tiles - first), n = count * in.vecs;
        bodies[p.form].read_inputs(&p, in, first, count, p.v);
        for (Int k = 0; k < p.places; k++) {
            Product product = {
                (float *)(p.u + k * p.u_place), p.c.in, 1,
                (float *)(p.v + k * place(p.c.in, n)), n * LANES, p.c.in,
                (float *)(p.y + k * place(p.c.out, n)), n * LANES, 0,
            };
            multiply(&product, p.c.out, n, tile);
        }
        bodies[p.form].write_outputs(&p, p.y, first, count, out, parameter_of(run, node, 1));
    }
}

/* dU of one place: the turned inputs are what makes it a plain product. */
static void weight_slopes(const Plan *p, Int k, Int n, Tile tile, Int add) {
    static const float zeros[RUN_MOST * LANES];
    const vec *v = p->v + k * place(p->c.in, n), *y = p->y + k * place(p->c.out, n);
    vec *to = p->du + k * p->du_place;
    if (p->by_lane) {
        const vec *row[LANES];
        for (Int i = 0; i < p->c.in; i++) row[i] = v + i * n;
        Dots d = {y, n, row, n, to, p->c.in, add};
        dots(&d, p->c.out, p->c.in);
        return;
    }
    Int wide = p->in_blocks * LANES;
    for (Int i = 0; i < wide; i += LANES) {
        const float *from[LANES];
        for (Int l = 0; l < LANES; l++) from[l] = i + l < p->c.in ? (float *)(v + (i + l) * n) : zeros;
        turn(from, n * LANES, (float *)p->panel + i, wide);
    }
    Product product = {
        (float *)y, n * LANES, 1, (float *)p->panel, wide, n * LANES, (float *)to, wide, add,
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
    Tile weight_tile = tile_for(p.c.out, p.in_blocks);
    Tile tile = tile_for(p.c.in, p.few * in.vecs);
    for (Int first = 0; first < p.tiles; first += p.few) {
        Int count = smallest(p.few, p.tiles - first), n = count * in.vecs;
        bodies[p.form].read_inputs(&p, in, first, count, p.v);
        bodies[p.form].read_slopes(&p, g, first, count, p.y);
        for (Int k = 0; k < p.places; k++) {
            if (gradient_of(run, node, 0)) weight_slopes(&p, k, n, weight_tile, run->first || first);
            if (!node->wanted[0]) continue;
            Product product = {
                (float *)(p.u + k * p.u_place), 1, p.c.in,
                (float *)(p.y + k * place(p.c.out, n)), n * LANES, p.c.out,
                (float *)(p.v + k * place(p.c.in, n)), n * LANES, 0,
            };
            multiply(&product, p.c.in, n, tile);
        }
        if (node->wanted[0]) bodies[p.form].add_inputs(&p, p.v, first, count, in_g);
    }
}
