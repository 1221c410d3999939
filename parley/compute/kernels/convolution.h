#ifndef PARLEY_CONVOLUTION
#define PARLEY_CONVOLUTION
#include "graph.h"

typedef struct { /* of a convolution, as its node describes it; a linear layer is one too */
    Int in, height, width, out, rows, columns, groups;
    Int kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    Int method;
} Convolution;

static ALWAYS_INLINE Convolution convolution_of(const Graph *graph, const Node *node) {
    const Value *in = graph->value + node->first, *out = graph->value + node->result;
    ConvolutionOptions o = node->convolution;
    return (Convolution){
        in->channels, in->rows, in->columns, out->channels, out->rows, out->columns, o.groups,
        o.kernel[0], o.kernel[1], o.stride[0], o.stride[1], o.pad[0], o.pad[1], o.dilation[0], o.dilation[1],
        o.method,
    };
}

/* Which source each tap meets along one axis, forward or back; NOTHING outside the map. */
static ALWAYS_INLINE Int source(Int at, Int tap, Int stride, Int pad, Int dilation, Int size, int back) {
    if (!back) {
        Int from = at * stride - pad + tap * dilation;
        return from >= 0 && from < size ? from : NOTHING;
    }
    Int from = at + pad - tap * dilation;
    return from >= 0 && from % stride == 0 && from / stride < size ? from / stride : NOTHING;
}

static ALWAYS_INLINE Map channels_from(Map map, Int first) {
    map.at += first * map.channel;
    return map;
}

/* Adds the gradient of one group's weights [outputs][inputs][area]: correlate.c. */
void correlate(const Convolution *c, Map g, Int outputs, Map in, Int inputs, vec *scratch, float *gradient);
Int correlate_size(const Convolution *c, Int outputs, Int inputs, Int vecs);

void depthwise_forward(const Run *run, const Node *node, Convolution c); /* depthwise.c */
void depthwise_backward(const Run *run, const Node *node, Convolution c);

#endif
