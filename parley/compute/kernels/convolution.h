#ifndef PARLEY_CONVOLUTION
#define PARLEY_CONVOLUTION
#include "graph.h"

typedef struct { /* of a convolution, as its node describes it; a linear layer is one too */
    Int in, height, width, out, rows, columns, groups;
    Int kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    Int method;
} Convolution;

enum { DIRECT, POINTWISE, DEPTHWISE, WINOGRAD }; /* methods */

static ALWAYS_INLINE Convolution convolution_of(const Graph *graph, const Node *node) {
    const Value *in = graph->value + node->first, *out = graph->value + node->result;
    const Int *o = node->option;
    return (Convolution){
        in->channels, in->rows, in->columns, out->channels, out->rows, out->columns, o[0],
        o[1], o[2], o[3], o[4], o[5], o[6], o[7], o[8], o[9],
    };
}

#endif
