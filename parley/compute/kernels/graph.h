/* A network as a list of operations on feature maps.
 *
 * Layout. Samples are the innermost axis: `vecs` vectors of LANES of them, so that a value of a
 * feature map is a few vectors side by side and every operation is plain vector arithmetic: no
 * im2col, no shuffles. A map is [channel][row][column][vecs]; the distance from one channel to the
 * next is an odd number of cache lines, as powers of two would all fall into the same place of a
 * cache. There is no halo: a convolution asks which taps of its kernel meet the map.
 *
 * A chunk of samples passes through all operations, forward and then backward; where samples depend
 * on each other (BatchNorm), the whole batch is one chunk. The planner
 * (parley/compute/planner.py) has laid out the maps, their gradients and what operations keep, each
 * for as long as somebody needs it, in one workspace; offsets are in vectors from its start.
 */
#ifndef PARLEY_GRAPH
#define PARLEY_GRAPH
#include "interface.h" /* made by interface.py, which has the structs, enums and options */

typedef struct { /* one model on one chunk */
    const Graph *graph;
    vec *memory;
    vec *inputs;
    const float *parameters;
    float *gradient;
    float *statistics; /* in training, where those of the batch go, or null; in use, running ones */
    Int vecs, samples;
    const float *const *masks; /* of dropout, [samples][values] each, from the chunk's batch on */
    Int first;                 /* the chunk's first sample in its batch */
    int training;
} Run;

typedef struct {
    vec *at;
    Int channels, rows, columns, pixels;
    Int vecs, channel; /* vectors of a pixel; from one channel to the next */
} Map;

typedef struct {
    void (*forward)(const Run *, const Node *);
    void (*backward)(const Run *, const Node *);
    void (*prepare)(const Run *, const Node *); /* once for each model, before its first chunk */
    void (*finish)(const Run *, const Node *);  /* once for each gradient, after its last chunk */
    void (*sizes)(const Graph *, const Node *, Sizes *);
} Operation;

#define DECLARE(name) extern const Operation name;
EACH_OPERATION(DECLARE)

#define LINE (64 / (Int)sizeof(vec)) /* vectors of a cache line; 0 where a vector is longer */

static ALWAYS_INLINE Int channel_of(Int pixels, Int vecs) {
    Int size = pixels * vecs, line = LINE > 0 ? LINE : 1;
    return pixels == 1 ? size : ((size + line - 1) / line | 1) * line;
}

static ALWAYS_INLINE Int map_size(const Value *v, Int vecs) {
    return v->channels * channel_of(v->rows * v->columns, vecs);
}

static ALWAYS_INLINE Map map_at(const Run *run, Int value, vec *at) {
    const Value *v = run->graph->value + value;
    Int pixels = v->rows * v->columns;
    return (Map){at, v->channels, v->rows, v->columns, pixels, run->vecs, channel_of(pixels, run->vecs)};
}

static ALWAYS_INLINE Map map_of(const Run *run, Int value) {
    Int at = run->graph->value[value].at;
    return map_at(run, value, value == run->graph->input ? run->inputs : run->memory + at);
}

static ALWAYS_INLINE Map slope_of(const Run *run, Int value) {
    return map_at(run, value, run->memory + run->graph->value[value].slope);
}

static ALWAYS_INLINE vec *scratch_of(const Run *run) { return run->memory + run->graph->scratch; }

static ALWAYS_INLINE const float *parameter_of(const Run *run, const Node *node, int which) {
    if (node->frozen[which]) return node->frozen[which];
    return node->parameter[which] < 0 ? 0 : run->parameters + node->parameter[which];
}

/* Where a parameter's gradient is added up; null where there is none to learn. */
static ALWAYS_INLINE float *gradient_of(const Run *run, const Node *node, int which) {
    return node->parameter[which] < 0 ? 0 : run->gradient + node->parameter[which];
}

#endif
