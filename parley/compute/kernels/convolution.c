/* Convolutions with any kernel, stride, padding, dilation and groups, and linear layers, which are
 * convolutions of a map of one pixel.
 *
 * Forward and back to the input, a pixel gathers: the sum over channels and over those taps of the
 * kernel that meet the map. The gradient of the weights is in correlate.c.
 */
#include "convolution.h"
#include "rows.h"
#include "tiles.h"
#include "winograd.h"

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
            UNROLL for (int j = 0; j < b; j++) {
                value[j] = from[j];
                HOLD(value[j]);
            }
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
    if (back) return x + c->pad_w >= reach && x + c->pad_w <= (c->columns - 1) * c->stride_w;
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
    /* Backwards, pixels a stride apart see the same taps. */
    Int step = back ? c->stride_w : 1, ahead = back ? 1 : c->stride_w;
    for (Int y = 0; y < to.rows; y++)
        for (Int first = 0; first < step; first++) {
            Int taps = 0, shift = 0, followed = 0;
            for (Int x = first; x < to.columns; x += step) {
                int all = sees_all(c, back, x);
                shift = all && followed ? shift + ahead * vecs : 0;
                if (!shift) taps = taps_at(c, back, y, x, vecs, tap);
                followed = all;
                if (!taps && add) continue;
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

/* ---- 1 x 1 with a stride ---- */

/* The pixels that such a convolution sees, as a map of their own. */
static Map seen_by(const Convolution *c, Map in, vec *room) {
    Int pixels = c->rows * c->columns;
    Map seen = {room, c->in, c->rows, c->columns, pixels, in.vecs, channel_of(pixels, in.vecs)};
    return c->stride_h == 1 && c->stride_w == 1 ? in : seen;
}

static void pick(const Convolution *c, Map from, Map to) {
    for (Int k = 0; k < to.channels; k++)
        for (Int y = 0; y < to.rows; y++) {
            const vec *row = from.at + k * from.channel + y * c->stride_h * from.columns * from.vecs;
            vec *at = to.at + k * to.channel + y * to.columns * to.vecs;
            for (Int x = 0; x < to.columns; x++)
                for (Int v = 0; v < to.vecs; v++) at[x * to.vecs + v] = row[x * c->stride_w * from.vecs + v];
        }
}

/* Adds them to where they were picked. */
static void put_back(const Convolution *c, Map from, Map to) {
    for (Int k = 0; k < to.channels; k++)
        for (Int y = 0; y < from.rows; y++) {
            const vec *at = from.at + k * from.channel + y * from.columns * from.vecs;
            vec *row = to.at + k * to.channel + y * c->stride_h * to.columns * to.vecs;
            for (Int x = 0; x < from.columns; x++)
                for (Int v = 0; v < to.vecs; v++) row[x * c->stride_w * to.vecs + v] += at[x * from.vecs + v];
        }
}

/* ---- the operation ---- */

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

static void prepare(const Run *run, const Node *node) {
    Convolution c = convolution_of(run->graph, node);
    if (c.method == WINOGRAD) winograd_prepare(run, node);
    if (c.method == BY_ROWS) rows_prepare(run, node);
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
    if (c.method == BY_ROWS) {
        rows_forward(run, node);
        return;
    }
    Map in = map_of(run, node->first), out = map_of(run, node->result);
    const float *weights = parameter_of(run, node, WEIGHT), *bias = parameter_of(run, node, BIAS);
    if (c.method == POINTWISE) {
        Map seen = seen_by(&c, in, scratch_of(run));
        if (seen.at != in.at) pick(&c, in, seen);
        for (Int o = 0; bias && o < c.out; o++)
            for (Int i = 0; i < out.pixels * out.vecs; i++) out.at[o * out.channel + i] = splat(bias[o]);
        Product p = {
            weights, c.in, 1, (float *)seen.at, seen.channel * LANES, c.in,
            (float *)out.at, out.channel * LANES, bias != 0,
        };
        multiply(&p, c.out, out.pixels * out.vecs, tile_for(c.out, out.pixels * out.vecs));
        return;
    }
    Int inputs = c.in / c.groups, outputs = c.out / c.groups, area = c.kernel_h * c.kernel_w;
    const float *packed = (float *)(run->memory + node->prepared);
    for (Int k = 0; k < c.groups; k++)
        gather(&c, 0, channels_from(in, k * inputs), inputs, channels_from(out, k * outputs), outputs,
               tile_for(outputs, run->graph->vecs), packed + k * inputs * outputs * area, bias ? bias + k * outputs : 0, 0);
}

static void pointwise_backward(const Run *run, const Node *node, const Convolution *c, Map in, Map g) {
    Map seen = seen_by(c, in, scratch_of(run)), row = seen, slopes = g;
    int strided = seen.at != in.at;
    Convolution flat = *c; /* the pixels are one long row */
    flat.height = flat.rows = row.rows = slopes.rows = flat.stride_h = flat.stride_w = 1;
    flat.width = flat.columns = row.columns = slopes.columns = g.pixels;
    float *gradient = gradient_of(run, node, WEIGHT);
    if (gradient) {
        if (strided) pick(c, in, seen);
        vec *scratch = scratch_of(run) + (strided ? c->in * seen.channel : 0);
        correlate(&flat, slopes, c->out, row, c->in, scratch, gradient);
    }
    if (!node->wanted[0]) return;
    Map in_g = slope_of(run, node->first), to = strided ? seen : in_g;
    Product p = {
        parameter_of(run, node, WEIGHT), 1, c->in, (float *)g.at, g.channel * LANES, c->out,
        (float *)to.at, to.channel * LANES, node->add[0] && !strided,
    };
    multiply(&p, c->in, g.pixels * g.vecs, tile_for(c->in, g.pixels * g.vecs));
    if (!strided) return;
    if (!node->add[0]) memset(in_g.at, 0, sizeof(vec) * in_g.channels * in_g.channel);
    put_back(c, seen, in_g);
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
    if (c.method == BY_ROWS) {
        rows_backward(run, node);
        return;
    }
    Int inputs = c.in / c.groups, outputs = c.out / c.groups, area = c.kernel_h * c.kernel_w;
    float *gradient = gradient_of(run, node, WEIGHT);
    if (c.method == POINTWISE) {
        pointwise_backward(run, node, &c, in, g);
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
    if (c.method == BY_ROWS) {
        rows_sizes(graph, node, sizes);
        return;
    }
    Int entries = c.in / c.groups * c.kernel_h * c.kernel_w;
    if (c.method == DIRECT) sizes->prepared = blocks_of(2 * c.out * entries);
    if (c.method == DEPTHWISE) return;
    if (c.method == POINTWISE) {
        if (c.stride_h > 1 || c.stride_w > 1) sizes->scratch = c.in * channel_of(c.rows * c.columns, graph->vecs);
        c.columns *= c.rows, c.rows = c.stride_h = c.stride_w = 1;
    }
    sizes->scratch += correlate_size(&c, c.out / c.groups, c.in / c.groups, graph->vecs);
}

const Operation convolution = {forward, backward, prepare, finish, sizes};
