#ifndef PARLEY_WINOGRAD
#define PARLEY_WINOGRAD
#include "graph.h"

/* A 3 x 3 convolution with stride 1 by Winograd's F(4 x 4, 3 x 3): see winograd.c. */
void winograd_prepare(const Run *run, const Node *node);
void winograd_forward(const Run *run, const Node *node);
void winograd_backward(const Run *run, const Node *node);
void winograd_finish(const Run *run, const Node *node);
void winograd_sizes(const Graph *graph, const Node *node, Sizes *sizes);

#endif
