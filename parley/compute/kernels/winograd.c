/* Convolutions by Winograd's minimal filtering, with fewer products than the direct way.
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
    vec *zeros; /* a row of a place, or of what a tile sees */
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
    if (c->stride_h == 2) return S43;
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
    Int most = largest(1, n / vecs), parts = (p.across + most - 1) / most;
    if (parts > 1) p.few = (p.across + parts - 1) / parts; /* equal parts of a row of tiles */
    else p.few = smallest(most / p.across, p.down) * p.across; /* or whole rows, which lie side by side */
    p.in_blocks = blocks_of(p.c.in);
    p.by_lane = 2 * p.c.in <= p.in_blocks * LANES && p.places * weights * (Int)sizeof(vec) <= SUMS;
    p.u_place = place(1, blocks_of(weights));
    p.du_place = p.by_lane ? weights : place(p.c.out, p.in_blocks);
    p.u = prepared;
    p.du = p.u + p.places * p.u_place;
    p.v = scratch;
    p.y = p.v + p.places * place(p.c.in, p.few * vecs);
    p.panel = p.y + p.places * place(p.c.out, p.few * vecs);
    p.zeros = p.panel + p.few * vecs * LANES * p.in_blocks;
    return p;
}

static Int zeros_of(const Plan *p, Int vecs) { return largest(p->few, p->sight) * vecs; }

static Plan plan_at(const Run *run, const Node *node) {
    return plan_of(run->graph, node, run->memory + node->prepared, scratch_of(run));
}

void winograd_sizes(const Graph *graph, const Node *node, Sizes *sizes) {
    Plan p = plan_of(graph, node, 0, 0);
    Int n = p.few * graph->vecs;
    sizes->prepared = p.places * (p.u_place + p.du_place);
    sizes->scratch = p.places * (place(p.c.in, n) + place(p.c.out, n));
    sizes->scratch += n * LANES * p.in_blocks + zeros_of(&p, graph->vecs);
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

/* What a tile is read from and written to: the map of inputs, or that of outputs. */
enum { INPUTS, OUTPUTS };

static ALWAYS_INLINE int size_on(const int map, const int f) {
    return map == INPUTS ? sight_of(f) : side_of(f);
}

static ALWAYS_INLINE void to_points(const int f, const int map, const vec *from, vec *to) {
    if (map == INPUTS) input_transform(f, from, 1, to, 1);
    else output_adjoint(f, from, 1, to, 1);
}

static ALWAYS_INLINE void from_points(const int f, const int map, const vec *from, Int step, vec *to) {
    if (map == INPUTS) input_adjoint(f, from, step, to, 1);
    else output_transform(f, from, step, to, 1);
}

typedef struct { /* of a tile on its map */
    Int y, x;
    int inside; /* all of it */
} Corner;

static ALWAYS_INLINE Corner corner_of(const Plan *p, const int f, const int which, Map map, Int tile) {
    Int y = tile / p->across * side_of(f), x = tile % p->across * side_of(f), size = size_on(which, f);
    if (which == INPUTS && f != F22) y = y * p->c.stride_h - p->c.pad_h, x = x * p->c.stride_w - p->c.pad_w;
    return (Corner){y, x, y >= 0 && x >= 0 && y + size <= map.rows && x + size <= map.columns};
}

/* The compiler shall not work out the addresses of all places beforehand: it would have to keep them in
 * memory. */
#define ADVANCE(pointer, by) \
    do { \
        pointer += by; \
        __asm__("" : "+r"(pointer)); \
    } while (0)

/* Where the two axes of a tile do not fit the registers together, it is done in parts: as many of one
 * axis' points at a time as share their arithmetic. With 5 x 5 taps that would read too much twice. */
static ALWAYS_INLINE int in_parts(const int f) { return taps_of(f) == 3; }

/* Writes a tile's points to places `apart` each; columns outside [begin, end) are zero. */
static ALWAYS_INLINE void read_tile(
    const int f, const int map, const vec *const *row, Int step, const int inside, Int begin, Int end, vec *to,
    Int apart
) {
    const int size = size_on(map, f), points = points_of(f), parts = in_parts(f) ? points / 2 + 1 : 1;
    UNROLL for (int part = 0; part < parts; part++) { /* 0; 1 and 2; 3 and 4; ... */
        const int first = part ? 2 * part - 1 : 0, after = parts > 1 ? 2 * part + 1 : points;
        vec half[MOST_PLACES];
        UNROLL for (int x = 0; x < size; x++) {
            vec column[MOST_POINTS], t[MOST_POINTS];
            if (inside || (x >= begin && x < end)) {
                UNROLL for (int y = 0; y < size; y++) column[y] = row[y][x * step];
            } else {
                UNROLL for (int y = 0; y < size; y++) column[y] = (vec){0};
            }
            to_points(f, map, column, t);
            UNROLL for (int y = first; y < after && y < points; y++) half[(y - first) * size + x] = t[y];
        }
        UNROLL for (int y = first; y < after && y < points; y++) {
            vec t[MOST_POINTS];
            to_points(f, map, half + (y - first) * size, t);
            UNROLL for (int x = 0; x < points; x++) {
                *to = t[x];
                ADVANCE(to, apart);
            }
        }
    }
}

/* Asks for the next channel's tile to come to the second cache: the processor does not foresee it. */
static ALWAYS_INLINE void fetch_next(const int f, const int which, const vec *const *row, Map map) {
    const int wide = side_of(f) * (which == INPUTS && f == S43 ? 2 : 1); /* from one tile to the next */
    for (int y = 0; y < size_on(which, f); y++)
        for (Int i = 0; i < wide * map.vecs; i += LINE > 0 ? LINE : 1)
            __builtin_prefetch(row[y] + map.channel + i, 0, 2);
}

static ALWAYS_INLINE void read_tiles(
    const int f, const int which, const Plan *p, Map map, Int first, Int count, vec *to
) {
    const int size = size_on(which, f);
    Int n = count * map.vecs, apart = place(map.channels, n);
    for (Int c = 0; c < map.channels; c++)
        for (Int t = 0; t < count; t++) {
            Corner at = corner_of(p, f, which, map, first + t);
            const vec *row[MOST_POINTS];
            for (int y = 0; y < size; y++) {
                int there = at.inside || (at.y + y >= 0 && at.y + y < map.rows);
                row[y] = there ? map.at + c * map.channel + ((at.y + y) * map.columns + at.x) * map.vecs : p->zeros;
            }
            fetch_next(f, which, row, map);
            for (Int v = 0; v < map.vecs; v++) {
                vec *place = to + c * n + t * map.vecs + v;
                if (at.inside) read_tile(f, which, row, map.vecs, 1, 0, 0, place, apart);
                else read_tile(f, which, row, map.vecs, 0, -at.x, map.columns - at.x, place, apart);
                UNROLL for (int y = 0; y < size; y++) ADVANCE(row[y], 1);
            }
        }
}

/* The other way: outputs are written, and gradients of inputs, which tiles share, are added. */
static ALWAYS_INLINE void write_tile(
    const int f, const int map, const vec *from, Int apart, vec *const *row, Int step, const int inside,
    const Corner *at, Int rows, Int columns, vec start
) {
    const int size = size_on(map, f), points = points_of(f);
    const int parts = in_parts(f) && (map == INPUTS || REGISTERS < 32) ? 2 : 1;
    UNROLL for (int part = 0; part < parts; part++) { /* even ones; odd ones */
        vec half[MOST_PLACES];
        const vec *place = from;
        UNROLL for (int y = 0; y < points; y++) {
            vec m[MOST_POINTS], t[MOST_POINTS];
            UNROLL for (int x = 0; x < points; x++) {
                m[x] = *place;
                ADVANCE(place, apart);
            }
            from_points(f, map, m, 1, t);
            UNROLL for (int x = part; x < size; x += parts) half[y * size + x] = t[x];
        }
        UNROLL for (int x = part; x < size; x += parts) {
            vec t[MOST_POINTS];
            from_points(f, map, half + x, size, t);
            if (!inside && (at->x + x < 0 || at->x + x >= columns)) continue;
            UNROLL for (int y = 0; y < size; y++) {
                if (!inside && (at->y + y < 0 || at->y + y >= rows)) continue;
                vec *to = row[y] + x * step;
                *to = t[y] + (map == INPUTS ? *to : start);
            }
        }
    }
}

static ALWAYS_INLINE void write_tiles(
    const int f, const int which, const Plan *p, const vec *from, Int first, Int count, Map map, const float *bias
) {
    const int size = size_on(which, f);
    Int n = count * map.vecs, apart = place(map.channels, n);
    for (Int c = 0; c < map.channels; c++) {
        vec start = bias ? splat(bias[c]) : (vec){0};
        for (Int t = 0; t < count; t++) {
            Corner at = corner_of(p, f, which, map, first + t);
            vec *row[MOST_POINTS];
            for (int y = 0; y < size; y++)
                row[y] = map.at + c * map.channel + ((at.y + y) * map.columns + at.x) * map.vecs;
            fetch_next(f, which, (const vec *const *)row, map);
            for (Int v = 0; v < map.vecs; v++) {
                const vec *place = from + c * n + t * map.vecs + v;
                if (at.inside) write_tile(f, which, place, apart, row, map.vecs, 1, &at, 0, 0, start);
                else write_tile(f, which, place, apart, row, map.vecs, 0, &at, map.rows, map.columns, start);
                UNROLL for (int y = 0; y < size; y++) ADVANCE(row[y], 1);
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

#define EACH_FORM(M) M(F43) M(F45) M(F55) M(F22) M(S43)
#define DEFINE(F) \
    static void read_weights_##F(const float *w, Int n, float *to, Int a) { read_weights(F, w, n, to, a); } \
    static void add_weights_##F(const vec *u, Int a, Int n, float *to) { add_weights(F, u, a, n, to); } \
    static void add_weight_##F(const vec *u, Int a, float *to) { add_weight(F, u, a, to); } \
    static void read_inputs_##F(const Plan *p, Map m, Int t, Int n, vec *to) { \
        read_tiles(F, INPUTS, p, m, t, n, to); \
    } \
    static void write_outputs_##F(const Plan *p, const vec *y, Int t, Int n, Map m, const float *b) { \
        write_tiles(F, OUTPUTS, p, y, t, n, m, b); \
    } \
    static void read_slopes_##F(const Plan *p, Map m, Int t, Int n, vec *to) { \
        read_tiles(F, OUTPUTS, p, m, t, n, to); \
    } \
    static void add_inputs_##F(const Plan *p, const vec *v, Int t, Int n, Map m) { \
        write_tiles(F, INPUTS, p, v, t, n, m, 0); \
    }
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
    memset(p.zeros, 0, sizeof(vec) * zeros_of(&p, in.vecs));
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
        for (Int l = 0; l < LANES; l++) from[l] = i + l < p->c.in ? (float *)(v + (i + l) * n) : (float *)p->zeros;
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
    memset(p.zeros, 0, sizeof(vec) * zeros_of(&p, in.vecs));
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
