/* A network's first convolution, with few input channels and stride 1, by minimal filtering along the
 * rows alone: Winograd's method in one dimension. With it, if one follows, the pool of 2 x 2.
 *
 * For so few channels, transforms in two dimensions would cost more than they save. Along rows, with
 * V = Bᵀ d of every row of the input and U = G w of every row of the kernel, a tile of four outputs is
 * Aᵀ (Σ over rows of the kernel and input channels, here called slots, of U ∘ V): for five taps 8
 * products instead of 20. The sums of a few output channels stay in registers until they are
 * transformed, and pooled: only the greatest values are written. The gradient of the weights takes the
 * adjoints, as in winograd.c; that of the outputs is put together in registers, from the pool's. Nobody
 * asks for the input's.
 */
#include "rows.h"
#include "convolution.h"
#include "transforms.h"

#define MOST_SLOTS 32
#define GROUP(f) (24 / points_of(f)) /* output channels whose sums are in registers together */
#define MOST_GROUP 4
#define PART(f) (REGISTERS == 32 ? points_of(f) : points_of(f) / 2) /* and places of them */
#define BACK(f) (REGISTERS == 32 ? points_of(f) / 2 : 2) /* places of U's gradient at a time */
#define BACK_SLOTS 5                                      /* and slots */

typedef struct {
    Convolution c;
    int form, pooled;
    Int tiles, n;    /* of a row; with all vectors of samples */
    Int slots, held; /* of the kernel; of V, whose rows take the places of those that are not needed again */
    float *u;        /* [groups][slots][places][group] */
    vec *v;          /* [parts][held][n][part] */
    vec *du;         /* [out][slots][places] */
    vec *row;        /* two rows of gradients with zeros up to the end of their last tiles */
    bytes *place;    /* of the greatest value of each window: [out][rows][columns][vecs] */
} Plan;

static Plan plan_of(const Graph *graph, const Node *node, Int vecs, vec *memory) {
    Plan p = {.c = convolution_of(graph, node), .pooled = node->convolution.pooled};
    p.form = p.c.kernel_w == 5 ? F45 : F43;
    if (p.pooled) {
        p.c.rows = p.c.height + 2 * p.c.pad_h - p.c.kernel_h + 1;
        p.c.columns = p.c.width + 2 * p.c.pad_w - p.c.kernel_w + 1;
    }
    p.tiles = (p.c.columns + side_of(p.form) - 1) / side_of(p.form);
    p.n = p.tiles * vecs;
    p.slots = p.c.kernel_h * p.c.in;
    p.held = p.slots + p.c.in; /* for two rows of outputs */
    p.u = (float *)(memory + node->prepared);
    p.place = (bytes *)(memory + node->saved);
    p.v = memory + graph->scratch;
    p.du = p.v + p.held * p.n * points_of(p.form);
    p.row = p.du + p.slots * p.c.out * points_of(p.form);
    return p;
}

static Plan plan_at(const Run *run, const Node *node) {
    return plan_of(run->graph, node, run->vecs, run->memory);
}

void rows_sizes(const Graph *graph, const Node *node, Sizes *sizes) {
    Plan p = plan_of(graph, node, graph->vecs, 0);
    const Value *out = graph->value + node->result;
    Int windows = out->channels * out->rows * out->columns + 1; /* the last tile may read one more */
    sizes->prepared = blocks_of(p.c.out * p.slots * points_of(p.form));
    sizes->scratch = (p.held * p.n + p.slots * p.c.out) * points_of(p.form) + 2 * p.n * side_of(p.form);
    sizes->saved = p.pooled ? blocks_of(windows * graph->vecs * LANES / 4 + LANES) : 0;
}

/* ---- weights in and out of the places ---- */

/* Where the taps of a slot are among the weights. */
static ALWAYS_INLINE Int taps_at(const Plan *p, Int o, Int slot) {
    return ((o * p->c.in + slot % p->c.in) * p->c.kernel_h + slot / p->c.in) * p->c.kernel_w;
}

static ALWAYS_INLINE void read_weights(const int f, const Plan *p, const float *weights) {
    const int taps = taps_of(f), points = points_of(f);
    for (Int o = 0; o < p->c.out; o += GROUP(f)) {
        Int group = smallest(GROUP(f), p->c.out - o);
        float *to = p->u + o * p->slots * points;
        for (Int slot = 0; slot < p->slots; slot++, to += points * group) {
            vec w[5] = {{0}}, u[MOST_POINTS]; /* a channel in each lane */
            for (Int l = 0; l < group; l++)
                for (int t = 0; t < taps; t++) w[t][l] = weights[taps_at(p, o + l, slot) + t];
            weight_transform(f, w, 1, u, 1);
            for (int k = 0; k < points; k++) memcpy(to + k * group, u + k, group * sizeof(float));
        }
    }
}

static ALWAYS_INLINE void add_weights(const int f, const Plan *p, float *gradient) {
    for (Int o = 0; o < p->c.out; o++)
        for (Int slot = 0; slot < p->slots; slot++) {
            vec w[5];
            weight_adjoint(f, p->du + (o * p->slots + slot) * points_of(f), 1, w, 1);
            for (int t = 0; t < taps_of(f); t++) gradient[taps_at(p, o, slot) + t] += total(w[t]);
        }
}

/* ---- the rows that are seen ---- */

/* V of one row of the input. */
static ALWAYS_INLINE void read_row(const int f, const int part, const Plan *p, Map in, Int y, vec *to) {
    const int side = side_of(f), sight = sight_of(f), points = points_of(f);
    for (Int c = 0; c < in.channels; c++) {
        const vec *row = in.at + c * in.channel + y * in.columns * in.vecs;
        for (Int x = -p->c.pad_w; x < p->tiles * side - p->c.pad_w; x += side)
            for (Int v = 0; v < in.vecs; v++, to += part) {
                vec made[MOST_POINTS], edge[MOST_POINTS];
                if (x >= 0 && x + sight <= in.columns) {
                    input_transform(f, row + x * in.vecs + v, in.vecs, made, 1);
                } else {
                    for (Int i = 0; i < sight; i++)
                        edge[i] = x + i >= 0 && x + i < in.columns ? row[(x + i) * in.vecs + v] : (vec){0};
                    input_transform(f, edge, 1, made, 1);
                }
                UNROLL for (int k = 0; k < points; k++)
                    to[k / part * p->held * p->n * part + k % part] = made[k];
            }
    }
}

typedef struct { /* what a row of outputs sees */
    Int begin, count; /* the slots that meet the map */
    const vec *row[MOST_SLOTS];
} Seen;

/* Rows of the input up to `known` have been read. */
static ALWAYS_INLINE Seen look(const int f, const int part, const Plan *p, Map in, Int y, Int *known) {
    Int top = y - p->c.pad_h, begin = largest(0, -top), end = smallest(p->c.kernel_h, in.rows - top);
    Seen seen = {begin * p->c.in, 0, {0}};
    for (Int row = top + begin; row < top + end; row++) {
        vec *at = p->v + row * p->c.in % p->held * p->n * part;
        if (row >= *known) read_row(f, part, p, in, row, at), *known = row + 1;
        for (Int c = 0; c < p->c.in; c++) seen.row[seen.count++] = at + c * p->n * part;
    }
    return seen;
}

/* ---- forward ---- */

/* The sums of tile j for `a` channels, in a part of the places from q on. */
static ALWAYS_INLINE void sum_slots(
    const int f, const int a, const int q, const Plan *p, const Seen *seen, Int j, const float *u,
    vec m[][MOST_POINTS]
) {
    const int part = PART(f);
    vec sum[MOST_GROUP][MOST_POINTS];
    UNROLL for (int i = 0; i < a; i++)
        UNROLL for (int k = 0; k < part; k++) sum[i][k] = (vec){0};
    for (Int s = 0; s < seen->count; s++, u += points_of(f) * a) {
        const vec *v = seen->row[s] + q * p->held * p->n + j * part;
        UNROLL for (int k = 0; k < part; k++) {
            vec value = v[k];
            HOLD(value);
            UNROLL for (int i = 0; i < a; i++) sum[i][k] += splat(u[(q + k) * a + i]) * value;
        }
    }
    UNROLL for (int i = 0; i < a; i++)
        UNROLL for (int k = 0; k < part; k++) m[i][q + k] = sum[i][k];
}

/* Tile j of a row of outputs, for `a` channels from o on. */
static ALWAYS_INLINE void outputs_of(
    const int f, const int a, const Plan *p, const Seen *seen, Int j, Int o, const float *bias,
    vec made[][MOST_SIDE]
) {
    const float *u = p->u + (o * p->slots + seen->begin * a) * points_of(f);
    vec m[MOST_GROUP][MOST_POINTS];
    sum_slots(f, a, 0, p, seen, j, u, m);
    if (PART(f) < points_of(f)) sum_slots(f, a, points_of(f) - PART(f), p, seen, j, u, m);
    UNROLL for (int i = 0; i < a; i++) {
        output_transform(f, m[i], 1, made[i], 1);
        vec start = splat(bias ? bias[o + i] : 0);
        UNROLL for (int k = 0; k < side_of(f); k++) made[i][k] += start;
    }
}

/* One compiled body for each form and number of channels: between two of them nothing has to stay in
 * registers. */
typedef void OutputsOf(const Plan *p, const Seen *seen, Int j, Int o, const float *bias, vec made[][MOST_SIDE]);
#define DEFINE(F, A) \
    static __attribute__((noinline)) void outputs_##F##_##A( \
        const Plan *p, const Seen *seen, Int j, Int o, const float *bias, vec made[][MOST_SIDE] \
    ) { \
        outputs_of(F, A, p, seen, j, o, bias, made); \
    }
DEFINE(F45, 1) DEFINE(F45, 2) DEFINE(F45, 3) DEFINE(F43, 1) DEFINE(F43, 2) DEFINE(F43, 3) DEFINE(F43, 4)
static OutputsOf *const outputs[][MOST_GROUP + 1] = {
    [F45] = {0, outputs_F45_1, outputs_F45_2, outputs_F45_3},
    [F43] = {0, outputs_F43_1, outputs_F43_2, outputs_F43_3, outputs_F43_4},
};

/* The greatest of the windows of two tiles, one above the other; `place` as in pools.c. */
static ALWAYS_INLINE void pool(
    const int f, const vec above[MOST_SIDE], const vec below[MOST_SIDE], Int windows, Int vecs, vec *to,
    bytes *place
) {
    UNROLL for (int w = 0; w < side_of(f) / 2; w++) {
        if (w >= windows) break;
        vec most = above[2 * w], z[3] = {above[2 * w + 1], below[2 * w], below[2 * w + 1]};
        ivec which = {0};
        UNROLL for (int k = 0; k < 3; k++) {
            mask m = less(most, z[k]) | is_nan(z[k]);
            most = choose(m, z[k], most);
            which = choose_int(m, (ivec){0} + (k + 1), which);
        }
        to[w * vecs] = most;
        if (place) place[w * vecs] = bytes_of(which);
    }
}

/* Tile j of `a` channels from o on, in one row or, for a pool, in two. */
static ALWAYS_INLINE void write_tile(
    const int f, const int pooled, const Plan *p, const Seen *seen, Int y, Int j, Int o, Int a, Map out,
    const float *bias, bytes *places
) {
    const int side = side_of(f);
    vec made[2][MOST_GROUP][MOST_SIDE];
    Int vecs = out.vecs, x = j / vecs * side, v = j % vecs;
    for (int r = 0; r < (pooled ? 2 : 1); r++) outputs[f][a](p, seen + r, j, o, bias, made[r]);
    for (Int i = 0; i < a; i++) {
        Int at = pooled ? y / 2 * out.columns + x / 2 : y * out.columns + x;
        vec *to = out.at + (o + i) * out.channel + at * vecs + v;
        if (pooled) {
            bytes *place = places ? places + ((o + i) * out.pixels + at) * vecs + v : 0;
            pool(f, made[0][i], made[1][i], out.columns - x / 2, vecs, to, place);
            continue;
        }
        UNROLL for (int k = 0; k < side; k++)
            if (x + k < out.columns) to[k * vecs] = made[0][i][k];
    }
}

static ALWAYS_INLINE void forward(const int f, const int pooled, const Run *run, const Node *node) {
    Plan p = plan_at(run, node);
    Map in = map_of(run, node->first), out = map_of(run, node->result);
    const float *bias = parameter_of(run, node, BIAS);
    bytes *places = run->training ? p.place : 0;
    Seen seen[2];
    Int known = 0, step = pooled ? 2 : 1;
    for (Int y = 0; y < step * out.rows; y += step) {
        for (Int i = 0; i < step; i++) seen[i] = look(f, PART(f), &p, in, y + i, &known);
        for (Int j = 0; j < p.n; j++)
            for (Int o = 0; o < p.c.out; o += GROUP(f))
                write_tile(f, pooled, &p, seen, y, j, o, smallest(GROUP(f), p.c.out - o), out, bias, places);
    }
}

/* ---- backward ---- */

typedef struct { /* one or two rows of one channel's gradients */
    const vec *at;
    Int below;          /* from the first row to the second */
    const bytes *place; /* of a pool's, or null: then `at` has both rows, */
    int row;            /* of which this is the first that counts */
} Slopes;

/* A g of a tile in one row or in two. */
static ALWAYS_INLINE void read_slopes(
    const int f, const int rows, const int pooled, const Slopes *from, Int tile, Int vecs, Int v,
    vec y[][MOST_POINTS]
) {
    const int side = side_of(f);
    if (!pooled) {
        for (int r = 0; r < rows; r++)
            output_adjoint(f, from->at + r * from->below + tile * side * vecs + v, vecs, y[r], 1);
        return;
    }
    vec g[2][MOST_SIDE];
    UNROLL for (int w = 0; w < side / 2; w++) {
        Int at = (tile * side / 2 + w) * vecs + v;
        bytes which = from->place[at];
        vec slope = from->at[at];
        UNROLL for (int r = 0; r < rows; r++) {
            int first = 2 * (from->row + r);
            g[r][2 * w] = choose(same_byte(which, first), slope, (vec){0});
            g[r][2 * w + 1] = choose(same_byte(which, first + 1), slope, (vec){0});
        }
    }
    UNROLL for (int r = 0; r < rows; r++) output_adjoint(f, g[r], 1, y[r], 1);
}

/* Adds what a row gives, or two, to the gradient of U: `b` slots, and a part of the places from q on. The
 * second row sees the same as the first, one slot later. */
static ALWAYS_INLINE void add_rows(
    const int f, const int q, const int b, const int rows, const int pooled, const Plan *p,
    const vec *const *seen, const Slopes *from, Int vecs, vec *du
) {
    const int part = BACK(f), points = points_of(f);
    vec sum[BACK_SLOTS][MOST_POINTS / 2];
    const vec *v[BACK_SLOTS + 1];
    UNROLL for (int s = 0; s < b + rows - 1; s++) v[s] = seen[s] + q * p->held * p->n;
    UNROLL for (int s = 0; s < b; s++)
        UNROLL for (int k = 0; k < part; k++) sum[s][k] = du[s * points + q + k];
    for (Int j = 0, tile = 0; tile < p->tiles; tile++)
        for (Int i = 0; i < vecs; i++, j++) {
            vec y[2][MOST_POINTS];
            read_slopes(f, rows, pooled, from, tile, vecs, i, y);
            UNROLL for (int k = 0; k < part; k++)
                UNROLL for (int s = 0; s < b + rows - 1; s++) {
                    vec value = v[s][j * part + k];
                    if (s < b) sum[s][k] += y[0][q + k] * value;
                    if (rows == 2 && s) sum[s - 1][k] += y[1][q + k] * value;
                }
        }
    UNROLL for (int s = 0; s < b; s++)
        UNROLL for (int k = 0; k < part; k++) du[s * points + q + k] = sum[s][k];
}

static ALWAYS_INLINE void backward(const int f, const int pooled, const Run *run, const Node *node) {
    const int part = BACK(f), points = points_of(f), side = side_of(f), taps = taps_of(f);
    Plan p = plan_at(run, node);
    Map in = map_of(run, node->first), g = slope_of(run, node->result);
    Int size = g.columns * g.vecs, rows = (pooled ? 2 : 1) * g.rows, known = 0, count;
    Int padded = p.tiles * (pooled ? side / 2 : side) * g.vecs;
    memset(p.du, 0, sizeof(vec) * points * p.slots * p.c.out);
    memset(p.row, 0, sizeof(vec) * 2 * p.n * side);
    for (Int y = 0; y < rows; y += count) {
        Seen seen = look(f, part, &p, in, y, &known);
        count = 1;
        if (p.slots == taps && seen.count == taps && y + 1 < rows && !(pooled && y % 2)) {
            Seen next = look(f, part, &p, in, y + 1, &known);
            if (next.count == taps) seen.row[taps] = next.row[taps - 1], count = 2;
        }
        UNROLL for (int q = 0; q < points; q += part) /* a part of V stays in the first cache */
            for (Int o = 0; o < p.c.out; o++) {
                Int at = (pooled ? y / 2 : y) * size;
                Slopes from = {g.at + o * g.channel + at, size, 0, y % 2};
                if (pooled) from.place = p.place + o * g.pixels * g.vecs + at;
                if (padded > size) {
                    for (Int r = 0; r < (pooled ? 1 : count); r++)
                        memcpy(p.row + r * padded, from.at + r * size, sizeof(vec) * size);
                    from.at = p.row, from.below = padded;
                }
                if (count == 2) {
                    add_rows(f, q, taps, 2, pooled, &p, seen.row, &from, g.vecs, p.du + o * taps * points);
                    continue;
                }
                for (Int s = 0; s < seen.count; s += BACK_SLOTS) {
                    vec *du = p.du + (o * p.slots + seen.begin + s) * points;
                    switch (smallest(BACK_SLOTS, seen.count - s)) {
                    case 1: add_rows(f, q, 1, 1, pooled, &p, seen.row + s, &from, g.vecs, du); break;
                    case 2: add_rows(f, q, 2, 1, pooled, &p, seen.row + s, &from, g.vecs, du); break;
                    case 3: add_rows(f, q, 3, 1, pooled, &p, seen.row + s, &from, g.vecs, du); break;
                    case 4: add_rows(f, q, 4, 1, pooled, &p, seen.row + s, &from, g.vecs, du); break;
                    default: add_rows(f, q, BACK_SLOTS, 1, pooled, &p, seen.row + s, &from, g.vecs, du);
                    }
                }
            }
    }
    add_weights(f, &p, gradient_of(run, node, WEIGHT));
}

/* ---- one compiled body for each form ---- */

void rows_prepare(const Run *run, const Node *node) {
    Plan p = plan_at(run, node);
    const float *weights = parameter_of(run, node, WEIGHT);
    if (p.form == F45) read_weights(F45, &p, weights);
    else read_weights(F43, &p, weights);
}

void rows_forward(const Run *run, const Node *node) {
    Plan p = plan_at(run, node);
    if (p.form == F45 && p.pooled) forward(F45, 1, run, node);
    else if (p.form == F45) forward(F45, 0, run, node);
    else if (p.pooled) forward(F43, 1, run, node);
    else forward(F43, 0, run, node);
}

void rows_backward(const Run *run, const Node *node) {
    Plan p = plan_at(run, node);
    if (!gradient_of(run, node, WEIGHT)) return;
    if (p.form == F45 && p.pooled) backward(F45, 1, run, node);
    else if (p.form == F45) backward(F45, 0, run, node);
    else if (p.pooled) backward(F43, 1, run, node);
    else backward(F43, 0, run, node);
}
