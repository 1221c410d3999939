#ifndef PARLEY_CONVOLUTION
#define PARLEY_CONVOLUTION
#include "graph.h"

typedef struct { /* of a convolution, as its node describes it; a linear layer is one too */
    Int in, height, width, out, rows, columns, groups;
    Int kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    Int method;
} Convolution;

enum { DIRECT, POINTWISE, DEPTHWISE, WINOGRAD, ROWS }; /* methods */
enum { POOLED = 10 }; /* option of ROWS: the result is that of a pool of 2 x 2 */

static ALWAYS_INLINE Convolution convolution_of(const Graph *graph, const Node *node) {
    const Value *in = graph->value + node->first, *out = graph->value + node->result;
    const Int *o = node->option;
    return (Convolution){
        in->channels, in->rows, in->columns, out->channels, out->rows, out->columns, o[0],
        o[1], o[2], o[3], o[4], o[5], o[6], o[7], o[8], o[9],
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

enum { WEIGHT, BIAS }; /* parameters */

/* Adds the gradient of one group's weights [outputs][inputs][area]: correlate.c. */
void correlate(const Convolution *c, Map g, Int outputs, Map in, Int inputs, vec *scratch, float *gradient);
Int correlate_size(const Convolution *c, Int outputs, Int inputs, Int vecs);

void depthwise_forward(const Run *run, const Node *node, Convolution c); /* depthwise.c */
void depthwise_backward(const Run *run, const Node *node, Convolution c);

#endif
