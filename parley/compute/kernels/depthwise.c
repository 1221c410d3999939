/* Convolutions of each channel by itself: depthwise. */
#include "convolution.h"

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

void depthwise_forward(const Run *run, const Node *node, Convolution c) {
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

void depthwise_backward(const Run *run, const Node *node, Convolution c) {
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
