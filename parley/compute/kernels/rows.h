#ifndef PARLEY_ROWS
#define PARLEY_ROWS
#include "graph.h"

/* A network's first convolution, with few input channels and three or five taps along rows: rows.c. */
void rows_prepare(const Run *run, const Node *node);
void rows_forward(const Run *run, const Node *node);
void rows_backward(const Run *run, const Node *node);
void rows_sizes(const Graph *graph, const Node *node, Sizes *sizes);

#endif
