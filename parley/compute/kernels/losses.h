#ifndef PARLEY_LOSSES
#define PARLEY_LOSSES
#include "graph.h"

/* Sum of the losses of a chunk's samples, and the gradient of the network's answer, times `scale`.
 * Targets are those of the whole batch: classes as Int, or a float for every output. */
double loss_and_slopes(const Run *run, const void *targets, float scale);

#endif
