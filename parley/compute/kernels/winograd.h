#ifndef PARLEY_WINOGRAD
#define PARLEY_WINOGRAD
#include "graph.h"

/* A convolution with 3 x 3 taps and a stride of 1 or 2, or with 5 x 5 taps, by Winograd's method: see
 * winograd.c. */
void winograd_prepare(const Run *run, const Node *node);
void winograd_forward(const Run *run, const Node *node);
void winograd_backward(const Run *run, const Node *node);
void winograd_finish(const Run *run, const Node *node);
void winograd_sizes(const Graph *graph, const Node *node, Sizes *sizes);

#endif
