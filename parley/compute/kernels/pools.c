/* Greatest and mean values of windows; adaptive windows divide the map evenly. */
#include "graph.h"

typedef struct { /* along one axis: `count` places from `from` on, `step` apart */
    Int from, count, step;
    Int padded; /* how many places count for a mean that includes the padding */
} Window;

static Window window_of(const Node *node, Int at, Int size, Int results, int axis) {
    const PoolOptions *o = &node->pool;
    if (o->adaptive) {
        Int from = at * size / results, to = ((at + 1) * size + results - 1) / results;
        return (Window){from, to - from, 1, to - from};
    }
    Int kernel = o->kernel[axis], pad = o->pad[axis], step = o->dilation[axis];
    Int begin = at * o->stride[axis] - pad, from = begin, count = kernel;
    while (from < 0) from += step, count--;
    while (count > 0 && from + (count - 1) * step >= size) count--;
    return (Window){from, count, step, smallest(begin + kernel, size + pad) - begin};
}

#define PLACES(run, node) ((uint8_t *)((run)->memory + (node)->saved))

/* Whether it is the most common pool: whole windows of 2 x 2, side by side. */
static int halves(const Node *node, Map in, Map out) {
    static const PoolOptions plain = {.kernel = {2, 2}, .stride = {2, 2}, .dilation = {1, 1}};
    if (memcmp(&node->pool, &plain, sizeof plain)) return 0;
    return 2 * out.rows <= in.rows && 2 * out.columns <= in.columns;
}

/* `kept`: which value of a window is the greatest is written for the backward pass. */
static ALWAYS_INLINE void halve(const int kept, Map in, Map out, bytes *place) {
    Int vecs = in.vecs, below = in.columns * vecs;
    for (Int c = 0; c < out.channels; c++)
        for (Int y = 0; y < out.rows; y++)
            for (Int x = 0; x < out.columns; x++)
                for (Int v = 0; v < vecs; v++) {
                    const vec *a = in.at + c * in.channel + (2 * y * in.columns + 2 * x) * vecs + v;
                    vec most = a[0], z[3] = {a[vecs], a[below], a[below + vecs]};
                    ivec which = {0};
                    UNROLL for (int k = 0; k < 3; k++) {
                        mask m = less(most, z[k]) | is_nan(z[k]);
                        most = choose(m, z[k], most);
                        which = choose_int(m, (ivec){0} + (k + 1), which);
                    }
                    out.at[c * out.channel + (y * out.columns + x) * vecs + v] = most;
                    if (kept) *place++ = bytes_of(which);
                }
}

/* Writes every value of the windows; what lies outside of them is zero. */
static void halve_back(Map g, Map to, const bytes *place) {
    Int vecs = g.vecs, below = to.columns * vecs;
    int whole = 2 * g.rows == to.rows && 2 * g.columns == to.columns;
    for (Int c = 0; c < g.channels; c++) {
        if (!whole) memset(to.at + c * to.channel, 0, sizeof(vec) * to.pixels * vecs);
        for (Int y = 0; y < g.rows; y++)
            for (Int x = 0; x < g.columns; x++)
                for (Int v = 0; v < vecs; v++) {
                    vec slope = g.at[c * g.channel + (y * g.columns + x) * vecs + v], none = {0};
                    vec *a = to.at + c * to.channel + (2 * y * to.columns + 2 * x) * vecs + v;
                    bytes which = *place++;
                    a[0] = choose(same_byte(which, 0), slope, none);
                    a[vecs] = choose(same_byte(which, 1), slope, none);
                    a[below] = choose(same_byte(which, 2), slope, none);
                    a[below + vecs] = choose(same_byte(which, 3), slope, none);
                }
    }
}

static void max_forward(const Run *run, const Node *node) {
    Map in = map_of(run, node->first), out = map_of(run, node->result);
    bytes *place = (bytes *)PLACES(run, node);
    if (halves(node, in, out)) {
        if (run->training) halve(1, in, out, place);
        else halve(0, in, out, place);
        return;
    }
    for (Int c = 0; c < out.channels; c++)
        for (Int y = 0; y < out.rows; y++) {
            Window down = window_of(node, y, in.rows, out.rows, 0);
            for (Int x = 0; x < out.columns; x++) {
                Window along = window_of(node, x, in.columns, out.columns, 1);
                const vec *first = in.at + c * in.channel + (down.from * in.columns + along.from) * in.vecs;
                for (Int v = 0; v < in.vecs; v++) {
                    vec most = first[v];
                    ivec which = {0};
                    int k = 0; /* in PyTorch's order: the first greatest, and a NaN wins */
                    for (Int i = 0; i < down.count; i++)
                        for (Int j = 0; j < along.count; j++, k++) {
                            vec z = first[(i * down.step * in.columns + j * along.step) * in.vecs + v];
                            mask m = less(most, z) | is_nan(z);
                            most = choose(m, z, most);
                            which = choose_int(m, (ivec){0} + k, which);
                        }
                    out.at[c * out.channel + (y * out.columns + x) * out.vecs + v] = most;
                    *place++ = bytes_of(which);
                }
            }
        }
}

static void max_backward(const Run *run, const Node *node) {
    if (!node->wanted[0]) return;
    Map g = slope_of(run, node->result), to = slope_of(run, node->first);
    const bytes *place = (const bytes *)PLACES(run, node);
    if (halves(node, to, g) && !node->add[0]) {
        halve_back(g, to, place);
        return;
    }
    for (Int c = 0; c < g.channels; c++) {
        vec *channel = to.at + c * to.channel;
        if (!node->add[0]) memset(channel, 0, sizeof(vec) * to.pixels * to.vecs);
        for (Int y = 0; y < g.rows; y++) {
            Window down = window_of(node, y, to.rows, g.rows, 0);
            for (Int x = 0; x < g.columns; x++) {
                Window along = window_of(node, x, to.columns, g.columns, 1);
                vec *first = channel + (down.from * to.columns + along.from) * to.vecs;
                for (Int v = 0; v < to.vecs; v++) {
                    vec slope = g.at[c * g.channel + (y * g.columns + x) * g.vecs + v], none = {0};
                    bytes which = *place++;
                    int k = 0;
                    for (Int i = 0; i < down.count; i++)
                        for (Int j = 0; j < along.count; j++, k++)
                            first[(i * down.step * to.columns + j * along.step) * to.vecs + v] +=
                                choose(same_byte(which, k), slope, none);
                }
            }
        }
    }
}

static void max_sizes(const Graph *graph, const Node *node, Sizes *sizes) {
    const Value *out = graph->value + node->result;
    sizes->saved = blocks_of(out->channels * out->rows * out->columns * graph->vecs * LANES / 4 + LANES);
}

const Operation max_pool = {.forward = max_forward, .backward = max_backward, .sizes = max_sizes};

static float share_of(const Node *node, Window down, Window along) {
    if (node->pool.divisor) return 1.0f / node->pool.divisor;
    if (node->pool.padded) return 1.0f / (down.padded * along.padded);
    return 1.0f / (down.count * along.count);
}

static void mean_forward(const Run *run, const Node *node) {
    Map in = map_of(run, node->first), out = map_of(run, node->result);
    for (Int c = 0; c < out.channels; c++)
        for (Int y = 0; y < out.rows; y++) {
            Window down = window_of(node, y, in.rows, out.rows, 0);
            for (Int x = 0; x < out.columns; x++) {
                Window along = window_of(node, x, in.columns, out.columns, 1);
                const vec *first = in.at + c * in.channel + (down.from * in.columns + along.from) * in.vecs;
                float share = share_of(node, down, along);
                for (Int v = 0; v < in.vecs; v++) {
                    vec sum = {0};
                    for (Int i = 0; i < down.count; i++)
                        for (Int j = 0; j < along.count; j++)
                            sum += first[(i * in.columns + j) * in.vecs + v];
                    out.at[c * out.channel + (y * out.columns + x) * out.vecs + v] = sum * share;
                }
            }
        }
}

static void mean_backward(const Run *run, const Node *node) {
    if (!node->wanted[0]) return;
    Map g = slope_of(run, node->result), to = slope_of(run, node->first);
    for (Int c = 0; c < g.channels; c++) {
        vec *channel = to.at + c * to.channel;
        if (!node->add[0]) memset(channel, 0, sizeof(vec) * to.pixels * to.vecs);
        for (Int y = 0; y < g.rows; y++) {
            Window down = window_of(node, y, to.rows, g.rows, 0);
            for (Int x = 0; x < g.columns; x++) {
                Window along = window_of(node, x, to.columns, g.columns, 1);
                vec *first = channel + (down.from * to.columns + along.from) * to.vecs;
                float share = share_of(node, down, along);
                for (Int v = 0; v < to.vecs; v++) {
                    vec part = g.at[c * g.channel + (y * g.columns + x) * g.vecs + v] * share;
                    for (Int i = 0; i < down.count; i++)
                        for (Int j = 0; j < along.count; j++)
                            first[(i * to.columns + j) * to.vecs + v] += part;
                }
            }
        }
    }
}

const Operation mean_pool = {.forward = mean_forward, .backward = mean_backward};
