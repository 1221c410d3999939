#ifndef PARLEY_WINOGRAD
#define PARLEY_WINOGRAD
#include "graph.h"

/* A convolution with stride 1 and 3 x 3 or 5 x 5 taps by Winograd's method: see winograd.c. */
void winograd_prepare(const Run *run, const Node *node);
void winograd_forward(const Run *run, const Node *node);
void winograd_backward(const Run *run, const Node *node);
void winograd_finish(const Run *run, const Node *node);
void winograd_sizes(const Graph *graph, const Node *node, Sizes *sizes);

#endif
