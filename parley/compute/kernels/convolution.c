/* Convolutions with any kernel, stride, padding, dilation and groups, and linear layers, which are
 * convolutions of a map of one pixel.
 *
 * Forward and back to the input, a pixel gathers: the sum over channels and over those taps of the
 * kernel that meet the map. The gradient of the weights is a product of matrices for each run of
 * pixels: the output's gradient, [out][pixels x samples], times what the taps saw, turned to
 * [pixels x samples][in x taps].
 */
#include "convolution.h"
#include "tiles.h"
#include "winograd.h"

enum { WEIGHT, BIAS };

typedef struct {
    Int offset; /* of the source pixel, in vectors */
    Int tap;    /* of the kernel */
} Tap;

typedef struct { /* what a tile of outputs sums over */
    const vec *in;
    Int channels, channel, area, taps;
    const Tap *tap;
    const float *weights; /* [channels][area][a] */
    const float *bias;    /* [a] or null */
    vec *out;
    Int out_channel, add;
} Gather;

static ALWAYS_INLINE void gather_tile(const int a, const int b, const Gather *g) {
    vec sum[TALL][WIDE]; /* constant bounds: registers, not memory */
    UNROLL for (int i = 0; i < a; i++) {
        vec start = g->bias ? splat(g->bias[i]) : (vec){0};
        UNROLL for (int j = 0; j < b; j++) sum[i][j] = start;
        if (g->add) UNROLL for (int j = 0; j < b; j++) sum[i][j] += g->out[i * g->out_channel + j];
    }
    const Tap *tap = g->tap;
    const Int taps = g->taps, channel = g->channel, area = g->area * a;
    const vec *in = g->in;
    const float *weights = g->weights;
    for (Int c = g->channels; c > 0; c--) {
        for (Int t = 0; t < taps; t++) {
            const vec *from = in + tap[t].offset;
            const float *weight = weights + tap[t].tap * a;
            vec value[WIDE];
            UNROLL for (int j = 0; j < b; j++) value[j] = from[j];
            UNROLL for (int i = 0; i < a; i++) {
                vec factor = splat(weight[i]);
                UNROLL for (int j = 0; j < b; j++) sum[i][j] += factor * value[j];
            }
        }
        in += channel, weights += area;
    }
    UNROLL for (int i = 0; i < a; i++)
        UNROLL for (int j = 0; j < b; j++) g->out[i * g->out_channel + j] = sum[i][j];
}

#define DEFINE(A, B) \
    static void gather_##A##_##B(const Gather *g) { gather_tile(A, B, g); }
EACH_SIZE(DEFINE)
#define ENTRY(A, B) [A][B] = gather_##A##_##B,
static void (*const gatherers[TALL + 1][WIDE + 1])(const Gather *) = {EACH_SIZE(ENTRY)};

/* Which source each tap meets along one axis, forward or back; NOTHING outside the map. */
static Int source(Int at, Int tap, Int stride, Int pad, Int dilation, Int size, int back) {
    if (!back) {
        Int from = at * stride - pad + tap * dilation;
        return from >= 0 && from < size ? from : NOTHING;
    }
    Int from = at + pad - tap * dilation;
    return from >= 0 && from % stride == 0 && from / stride < size ? from / stride : NOTHING;
}

#define MOST_TAPS 1024
#define NEAR 16384 /* bytes of a pixel's sources that stay in the first cache */

/* The taps that meet the map from pixel (y, x), in `tap`; how many. */
static Int taps_at(const Convolution *c, int back, Int y, Int x, Int vecs, Tap *tap) {
    Int rows = back ? c->rows : c->height, columns = back ? c->columns : c->width, taps = 0;
    for (Int i = 0; i < c->kernel_h; i++) {
        Int row = source(y, i, c->stride_h, c->pad_h, c->dilation_h, rows, back);
        if (row < 0) continue;
        for (Int j = 0; j < c->kernel_w; j++) {
            Int column = source(x, j, c->stride_w, c->pad_w, c->dilation_w, columns, back);
            if (column < 0) continue;
            tap[taps++] = (Tap){(row * columns + column) * vecs, i * c->kernel_w + j};
        }
    }
    return taps;
}

/* Whether every column of the kernel meets the map: then the next such pixel sees the same, shifted. */
static int sees_all(const Convolution *c, int back, Int x) {
    Int reach = (c->kernel_w - 1) * c->dilation_w;
    if (back) return c->stride_w == 1 && x + c->pad_w >= reach && x + c->pad_w < c->columns;
    Int first = x * c->stride_w - c->pad_w;
    return first >= 0 && first + reach < c->width;
}

/* All channels of one group: `to` gathers from `from`, whose channels the weights are packed for. */
static void gather(
    const Convolution *c, int back, Map from, Int inputs, Map to, Int outputs, Tile tile,
    const float *packed, const float *bias, Int add
) {
    Tap tap[MOST_TAPS];
    Int area = c->kernel_h * c->kernel_w, vecs = to.vecs;
    for (Int y = 0; y < to.rows; y++) {
        Int taps = 0, shift = 0, followed = 0;
        for (Int x = 0; x < to.columns; x++) {
            int all = sees_all(c, back, x);
            shift = all && followed ? shift + (back ? 1 : c->stride_w) * vecs : 0;
            if (!shift) taps = taps_at(c, back, y, x, vecs, tap);
            followed = all;
            Int few = largest(1, NEAR / (largest(1, taps) * tile.wide * (Int)sizeof(vec)));
            for (Int v = 0; v < vecs; v += tile.wide)
                for (Int k = 0; k < inputs; k += few) {
                    Gather g = {
                        .in = from.at + k * from.channel + shift + v,
                        .channels = smallest(few, inputs - k), .channel = from.channel, .area = area,
                        .taps = taps, .tap = tap, .out_channel = to.channel, .add = add || k,
                    };
                    for (Int o = 0; o < outputs; o += tile.tall) {
                        Int a = smallest(tile.tall, outputs - o);
                        g.weights = packed + o * inputs * area + k * area * a;
                        g.bias = bias && !k ? bias + o : 0;
                        g.out = to.at + o * to.channel + (y * to.columns + x) * vecs + v;
                        gatherers[a][smallest(tile.wide, vecs - v)](&g);
                    }
                }
        }
    }
}

/* Weights of one group in the order in which the tiles read them; `back`: in and out change places. */
static void pack(const float *weights, Int outputs, Int inputs, Int area, Int vecs, int back, float *packed) {
    Int high = back ? inputs : outputs, deep = back ? outputs : inputs;
    Int tall = tile_for(high, vecs).tall;
    Int along = back ? area : inputs * area, across = back ? inputs * area : area;
    for (Int o = 0; o < high; o += tall) {
        Int a = smallest(tall, high - o);
        float *to = packed + o * deep * area;
        for (Int k = 0; k < deep; k++)
            for (Int t = 0; t < area; t++)
                for (Int i = 0; i < a; i++)
                    *to++ = weights[(o + i) * along + k * across + t];
    }
}

/* ---- the gradient of the weights ---- */

#define RUN 384     /* samples x pixels of one product */
#define COLUMNS 96  /* in x taps of one product */

/* What tap (i, j) of a channel saw from outputs [x, x + count) of row y. */
static const float *seen(
    const Convolution *c, Map in, Int channel, Int tap, Int y, Int x, Int count, vec *room
) {
    Int vecs = in.vecs, i = tap / c->kernel_w, j = tap % c->kernel_w;
    Int row = source(y, i, c->stride_h, c->pad_h, c->dilation_h, c->height, 0);
    Int first = x * c->stride_w - c->pad_w + j * c->dilation_w;
    const vec *from = in.at + channel * in.channel + row * c->width * vecs;
    if (row >= 0 && c->stride_w == 1 && first >= 0 && first + count <= c->width)
        return (const float *)(from + first * vecs);
    for (Int k = 0; k < count; k++, first += c->stride_w)
        for (Int v = 0; v < vecs; v++)
            room[k * vecs + v] =
                row >= 0 && first >= 0 && first < c->width ? from[first * vecs + v] : (vec){0};
    return (const float *)room;
}

static Int run_of(Int vecs) { return largest(1, RUN / (vecs * LANES)); } /* pixels */

/* Vectors of scratch: sums, the turned panel, room for LANES rows of it and a row of zeros. */
static Int correlate_size(Int outputs, Int entries, Int vecs) {
    Int run = largest(vecs, RUN / LANES);
    return outputs * blocks_of(entries) + run * LANES * COLUMNS / LANES + LANES * run + run;
}

/* Adds the gradient of one group's weights [outputs][inputs][area]. */
static void correlate(
    const Convolution *c, Map g, Int outputs, Map in, Int inputs, vec *scratch, float *gradient
) {
    Int vecs = in.vecs, area = c->kernel_h * c->kernel_w, entries = inputs * area;
    Int run = run_of(vecs), padded = blocks_of(entries) * LANES;
    vec *sums = scratch, *panel = sums + outputs * blocks_of(entries);
    vec *room = panel + run * vecs * COLUMNS, *zeros = room + LANES * run * vecs;
    int direct = entries % LANES == 0;
    float *to = direct ? gradient : (float *)sums;
    Tile tile = tile_for(outputs, smallest(COLUMNS, padded) / LANES);
    memset(zeros, 0, run * vecs * sizeof(vec));
    if (!direct) memset(sums, 0, outputs * blocks_of(entries) * sizeof(vec));
    for (Int y = 0; y < g.rows; y++)
        for (Int x = 0; x < g.columns; x += run) {
            Int count = smallest(run, g.columns - x), depth = count * vecs * LANES;
            for (Int first = 0; first < padded; first += COLUMNS) {
                Int wide = smallest(COLUMNS, padded - first);
                for (Int e = 0; e < wide; e += LANES) {
                    const float *from[LANES];
                    for (Int l = 0; l < LANES; l++) {
                        Int entry = first + e + l;
                        from[l] = entry >= entries ? (const float *)zeros
                                                   : seen(c, in, entry / area, entry % area, y, x,
                                                          count, room + l * run * vecs);
                    }
                    turn(from, depth, (float *)panel + e, wide);
                }
                Product p = {
                    (const float *)(g.at + (y * g.columns + x) * vecs), g.channel * LANES, 1,
                    (const float *)panel, wide, depth, to + first, padded, 1,
                };
                multiply(&p, outputs, wide / LANES, tile);
            }
        }
    if (direct) return;
    for (Int o = 0; o < outputs; o++)
        for (Int e = 0; e < entries; e++) gradient[o * entries + e] += to[o * padded + e];
}

static void add_bias_gradient(Map g, float *gradient) {
    for (Int c = 0; c < g.channels; c++) {
        vec sum[4] = {{0}}; /* an addition can start before the last one has ended */
        Int size = g.pixels * g.vecs, i = 0;
        const vec *from = g.at + c * g.channel;
        for (; i + 4 <= size; i += 4) UNROLL for (int j = 0; j < 4; j++) sum[j] += from[i + j];
        for (; i < size; i++) sum[0] += from[i];
        gradient[c] += total(sum[0] + sum[1] + (sum[2] + sum[3]));
    }
}

/* ---- one channel each: depthwise ---- */

/* to (+)= the convolution of from with weights [kernel_h][kernel_w], one channel. */
static ALWAYS_INLINE void depthwise_channel(
    const int kernel_w, const Convolution *c, Map from, Map to, const float *weights, float bias, Int add
) {
    Int vecs = to.vecs, stride = c->stride_w * vecs, step = c->dilation_w * vecs;
    /* Columns whose every tap is inside. */
    Int begin = smallest(to.columns, (c->pad_w + c->stride_w - 1) / c->stride_w);
    Int reach = (kernel_w - 1) * c->dilation_w;
    Int free = from.columns - 1 - reach + c->pad_w;
    Int end = largest(begin, free < 0 ? 0 : smallest(to.columns, free / c->stride_w + 1));
    for (Int y = 0; y < to.rows; y++) {
        vec *row = to.at + y * to.columns * vecs;
        if (!add)
            for (Int i = 0; i < to.columns * vecs; i++) row[i] = splat(bias);
        for (Int i = 0; i < c->kernel_h; i++) {
            Int at = source(y, i, c->stride_h, c->pad_h, c->dilation_h, from.rows, 0);
            if (at < 0) continue;
            const vec *in = from.at + at * from.columns * vecs;
            vec weight[8];
            UNROLL for (int j = 0; j < kernel_w; j++) weight[j] = splat(weights[i * kernel_w + j]);
            for (Int x = begin; x < end; x++) {
                const vec *near = in + x * stride - c->pad_w * vecs;
                for (Int v = 0; v < vecs; v++) {
                    vec sum = row[x * vecs + v];
                    UNROLL for (int j = 0; j < kernel_w; j++) sum += weight[j] * near[j * step + v];
                    row[x * vecs + v] = sum;
                }
            }
            for (Int x = 0; x < to.columns; x++) {
                if (x == begin) x = end;
                if (x >= to.columns) break;
                UNROLL for (int j = 0; j < kernel_w; j++) {
                    Int at_x = source(x, j, c->stride_w, c->pad_w, c->dilation_w, from.columns, 0);
                    if (at_x < 0) continue;
                    for (Int v = 0; v < vecs; v++)
                        row[x * vecs + v] += weight[j] * in[at_x * vecs + v];
                }
            }
        }
    }
}

/* Adds each product of g with a weight to where the input was. */
static void depthwise_scatter(const Convolution *c, Map g, Map to, const float *weights) {
    Int vecs = g.vecs;
    for (Int y = 0; y < g.rows; y++)
        for (Int i = 0; i < c->kernel_h; i++) {
            Int row = source(y, i, c->stride_h, c->pad_h, c->dilation_h, to.rows, 0);
            if (row < 0) continue;
            for (Int x = 0; x < g.columns; x++)
                for (Int j = 0; j < c->kernel_w; j++) {
                    Int column = source(x, j, c->stride_w, c->pad_w, c->dilation_w, to.columns, 0);
                    if (column < 0) continue;
                    vec weight = splat(weights[i * c->kernel_w + j]);
                    for (Int v = 0; v < vecs; v++)
                        to.at[(row * to.columns + column) * vecs + v] +=
                            weight * g.at[(y * g.columns + x) * vecs + v];
                }
        }
}

/* Adds the gradient of one channel's weights. */
static ALWAYS_INLINE void depthwise_weights(
    const int kernel_w, const Convolution *c, Map g, Map in, float *gradient
) {
    Int vecs = g.vecs;
    Int begin = smallest(g.columns, (c->pad_w + c->stride_w - 1) / c->stride_w);
    Int free = in.columns - 1 - (kernel_w - 1) * c->dilation_w + c->pad_w;
    Int end = largest(begin, free < 0 ? 0 : smallest(g.columns, free / c->stride_w + 1));
    for (Int i = 0; i < c->kernel_h; i++) {
        vec sum[8] = {{0}};
        for (Int y = 0; y < g.rows; y++) {
            Int row = source(y, i, c->stride_h, c->pad_h, c->dilation_h, in.rows, 0);
            if (row < 0) continue;
            const vec *slope = g.at + y * g.columns * vecs, *from = in.at + row * in.columns * vecs;
            for (Int x = begin; x < end; x++) {
                const vec *near = from + (x * c->stride_w - c->pad_w) * vecs;
                for (Int v = 0; v < vecs; v++)
                    UNROLL for (int j = 0; j < kernel_w; j++)
                        sum[j] += slope[x * vecs + v] * near[j * c->dilation_w * vecs + v];
            }
            for (Int x = 0; x < g.columns; x++) {
                if (x == begin) x = end;
                if (x >= g.columns) break;
                UNROLL for (int j = 0; j < kernel_w; j++) {
                    Int at = source(x, j, c->stride_w, c->pad_w, c->dilation_w, in.columns, 0);
                    if (at < 0) continue;
                    for (Int v = 0; v < vecs; v++)
                        sum[j] += slope[x * vecs + v] * from[at * vecs + v];
                }
            }
        }
        for (int j = 0; j < kernel_w; j++) gradient[i * kernel_w + j] += total(sum[j]);
    }
}

#define BY_WIDTH(call) \
    switch (c.kernel_w) { \
    case 1: call(1); break; \
    case 2: call(2); break; \
    case 3: call(3); break; \
    case 4: call(4); break; \
    case 5: call(5); break; \
    case 6: call(6); break; \
    default: call(7); \
    }

static Map channels_from(Map map, Int first) {
    map.at += first * map.channel;
    return map;
}

static void depthwise_forward(const Run *run, const Node *node, Convolution c) {
    Map in = map_of(run, node->first), out = map_of(run, node->result);
    const float *weights = parameter_of(run, node, WEIGHT), *bias = parameter_of(run, node, BIAS);
    Int area = c.kernel_h * c.kernel_w;
    for (Int k = 0; k < c.out; k++) {
        Map from = channels_from(in, k), to = channels_from(out, k);
#define CALL(W) depthwise_channel(W, &c, from, to, weights + k * area, bias ? bias[k] : 0, 0)
        BY_WIDTH(CALL)
#undef CALL
    }
}

static void depthwise_backward(const Run *run, const Node *node, Convolution c) {
    Map in = map_of(run, node->first), g = slope_of(run, node->result);
    const float *weights = parameter_of(run, node, WEIGHT);
    float *gradient = gradient_of(run, node, WEIGHT);
    Int area = c.kernel_h * c.kernel_w;
    for (Int k = 0; gradient && k < c.out; k++) {
        Map from = channels_from(in, k), slope = channels_from(g, k);
#define CALL(W) depthwise_weights(W, &c, slope, from, gradient + k * area)
        BY_WIDTH(CALL)
#undef CALL
    }
    if (!node->wanted[0]) return;
    Map in_g = slope_of(run, node->first);
    int plain = c.stride_h == 1 && c.stride_w == 1;
    Convolution back = c; /* with stride 1 it is a convolution with the kernel turned around */
    back.pad_h = (c.kernel_h - 1) * c.dilation_h - c.pad_h;
    back.pad_w = (c.kernel_w - 1) * c.dilation_w - c.pad_w;
    plain = plain && back.pad_h >= 0 && back.pad_w >= 0 && area <= 49;
    for (Int k = 0; k < c.out; k++) {
        Map slope = channels_from(g, k), to = channels_from(in_g, k);
        if (!plain) {
            if (!node->add[0]) memset(to.at, 0, to.pixels * to.vecs * sizeof(vec));
            depthwise_scatter(&c, slope, to, weights + k * area);
            continue;
        }
        float turned[49];
        for (Int t = 0; t < area; t++) turned[t] = weights[k * area + area - 1 - t];
#define CALL(W) depthwise_channel(W, &back, slope, to, turned, 0, node->add[0])
        BY_WIDTH(CALL)
#undef CALL
    }
}

/* ---- the operation ---- */

static void prepare(const Run *run, const Node *node) {
    Convolution c = convolution_of(run->graph, node);
    if (c.method == WINOGRAD) winograd_prepare(run, node);
    if (c.method != DIRECT) return;
    const float *weights = parameter_of(run, node, WEIGHT);
    float *forward = (float *)(run->memory + node->prepared);
    Int inputs = c.in / c.groups, outputs = c.out / c.groups, area = c.kernel_h * c.kernel_w;
    Int size = inputs * outputs * area, vecs = run->graph->vecs;
    for (Int k = 0; k < c.groups; k++) {
        pack(weights + k * size, outputs, inputs, area, vecs, 0, forward + k * size);
        if (run->gradient && node->wanted[0])
            pack(weights + k * size, outputs, inputs, area, vecs, 1, forward + (c.groups + k) * size);
    }
}

static void forward(const Run *run, const Node *node) {
    Convolution c = convolution_of(run->graph, node);
    if (c.method == DEPTHWISE) {
        depthwise_forward(run, node, c);
        return;
    }
    if (c.method == WINOGRAD) {
        winograd_forward(run, node);
        return;
    }
    Map in = map_of(run, node->first), out = map_of(run, node->result);
    const float *weights = parameter_of(run, node, WEIGHT), *bias = parameter_of(run, node, BIAS);
    if (c.method == POINTWISE) {
        for (Int o = 0; bias && o < c.out; o++)
            for (Int i = 0; i < out.pixels * out.vecs; i++) out.at[o * out.channel + i] = splat(bias[o]);
        Product p = {
            weights, c.in, 1, (float *)in.at, in.channel * LANES, c.in,
            (float *)out.at, out.channel * LANES, bias != 0,
        };
        multiply(&p, c.out, in.pixels * in.vecs, tile_for(c.out, in.pixels * in.vecs));
        return;
    }
    Int inputs = c.in / c.groups, outputs = c.out / c.groups, area = c.kernel_h * c.kernel_w;
    const float *packed = (float *)(run->memory + node->prepared);
    for (Int k = 0; k < c.groups; k++)
        gather(&c, 0, channels_from(in, k * inputs), inputs, channels_from(out, k * outputs), outputs,
               tile_for(outputs, run->graph->vecs), packed + k * inputs * outputs * area, bias ? bias + k * outputs : 0, 0);
}

static void backward(const Run *run, const Node *node) {
    Convolution c = convolution_of(run->graph, node);
    Map in = map_of(run, node->first), g = slope_of(run, node->result);
    if (node->parameter[BIAS] >= 0) add_bias_gradient(g, gradient_of(run, node, BIAS));
    if (c.method == DEPTHWISE) {
        depthwise_backward(run, node, c);
        return;
    }
    if (c.method == WINOGRAD) {
        winograd_backward(run, node);
        return;
    }
    Int inputs = c.in / c.groups, outputs = c.out / c.groups, area = c.kernel_h * c.kernel_w;
    float *gradient = gradient_of(run, node, WEIGHT);
    if (c.method == POINTWISE) { /* the pixels are one long row */
        Map row = in, slopes = g;
        Convolution flat = c;
        flat.height = flat.rows = row.rows = slopes.rows = 1;
        flat.width = flat.columns = row.columns = slopes.columns = in.pixels;
        if (gradient) correlate(&flat, slopes, c.out, row, c.in, scratch_of(run), gradient);
        if (!node->wanted[0]) return;
        Map in_g = slope_of(run, node->first);
        Product p = {
            parameter_of(run, node, WEIGHT), 1, c.in, (float *)g.at, g.channel * LANES, c.out,
            (float *)in_g.at, in_g.channel * LANES, node->add[0],
        };
        multiply(&p, c.in, in.pixels * in.vecs, tile_for(c.in, in.pixels * in.vecs));
        return;
    }
    const float *packed = (float *)(run->memory + node->prepared);
    for (Int k = 0; k < c.groups; k++) {
        Map from = channels_from(in, k * inputs), slopes = channels_from(g, k * outputs);
        Int size = inputs * outputs * area;
        if (gradient) correlate(&c, slopes, outputs, from, inputs, scratch_of(run), gradient + k * size);
        if (node->wanted[0])
            gather(&c, 1, slopes, outputs, channels_from(slope_of(run, node->first), k * inputs), inputs,
                   tile_for(inputs, run->graph->vecs), packed + (c.groups + k) * size, 0, node->add[0]);
    }
}

static void finish(const Run *run, const Node *node) {
    if (convolution_of(run->graph, node).method == WINOGRAD) winograd_finish(run, node);
}

static void sizes(const Graph *graph, const Node *node, Sizes *sizes) {
    Convolution c = convolution_of(graph, node);
    if (c.method == WINOGRAD) {
        winograd_sizes(graph, node, sizes);
        return;
    }
    Int entries = c.in / c.groups * c.kernel_h * c.kernel_w;
    if (c.method == DIRECT) sizes->prepared = blocks_of(2 * c.out * entries);
    if (c.method != DEPTHWISE)
        sizes->scratch = correlate_size(c.out / c.groups, entries, graph->vecs);
}

const Operation convolution = {forward, backward, prepare, finish, sizes};
