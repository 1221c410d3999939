/* Runs the list of operations: what Python calls. */
#include "graph.h"
#include "losses.h"
#include "tiles.h"

#define ENTRY(name) &name,
static const Operation *const operations[] = {EACH_OPERATION(ENTRY)};

Int parley_lanes(void) { return LANES; }

void parley_sizes(const Graph *graph, Int node, Sizes *sizes) {
    const Node *n = graph->node + node;
    *sizes = (Sizes){0};
    if (operations[n->kind]->sizes) operations[n->kind]->sizes(graph, n, sizes);
}

/* Vectors of a map, with room for all samples of a chunk. */
Int parley_map_size(const Graph *graph, Int value) { return map_size(graph->value + value, graph->vecs); }

/* ---- inputs ---- */

static Int chunk_size(const Graph *graph) { return map_size(graph->value + graph->input, graph->vecs); }

/* Floats that n converted inputs take. */
Int parley_converted(const Graph *graph, Int n) {
    Int samples = graph->vecs * LANES;
    return (n + samples - 1) / samples * chunk_size(graph) * LANES;
}

/* Lanes without a sample are zero: what they hold is multiplied by zero, which a NaN would survive. */
static void convert(const Graph *graph, const float *inputs, Int n, vec *to) {
    const Value *value = graph->value + graph->input;
    Int pixels = value->rows * value->columns, size = value->channels * pixels;
    Int samples = graph->vecs * LANES;
    for (Int first = 0; first < n; first += samples, to += chunk_size(graph)) {
        Int count = smallest(samples, n - first), vecs = blocks_of(count);
        Int channel = channel_of(pixels, vecs);
        for (Int c = 0; c < value->channels; c++)
            for (Int v = 0; v < vecs; v++) {
                const float *from = inputs + (first + v * LANES) * size + c * pixels;
                Int here = smallest(LANES, count - v * LANES);
                float *at = (float *)(to + c * channel + v);
                if (here == LANES) {
                    const float *sample[LANES];
                    for (Int l = 0; l < LANES; l++) sample[l] = from + l * size;
                    turn(sample, pixels, at, vecs * LANES);
                    continue;
                }
                for (Int p = 0; p < pixels; p++)
                    for (Int l = 0; l < LANES; l++)
                        at[p * vecs * LANES + l] = l < here ? from[l * size + p] : 0;
            }
    }
}

void parley_convert(
    const Graph *graph, Int rows, const float *inputs, Int stride, const Int *sizes, float *to, Int size
) {
    for (Int r = 0; r < rows; r++) convert(graph, inputs + r * stride, sizes[r], (vec *)(to + r * size));
}

/* ---- the passes ---- */

/* A model's weights are prepared just before their first use, and what was collected of a gradient is
 * finished just after its last, while it is in the caches. */
static void forward(const Run *run) {
    for (Int k = 0; k < run->graph->nodes; k++) {
        const Node *node = run->graph->node + k;
        const Operation *operation = operations[node->kind];
        if (!run->first && operation->prepare) operation->prepare(run, node);
        operation->forward(run, node);
    }
}

static void backward(const Run *run, int last) {
    for (Int k = run->graph->nodes - 1; k >= 0; k--) {
        const Node *node = run->graph->node + k;
        const Operation *operation = operations[node->kind];
        if (run->graph->value[node->result].slope == NOTHING) continue; /* nothing is learned */
        operation->backward(run, node);
        if (last && operation->finish) operation->finish(run, node);
    }
}

/* Gradient of one model on one batch; its loss is returned. */
static float one_gradient(
    const Graph *graph, const float *parameters, vec *inputs, const void *targets,
    const float *const *masks, Int size, float *gradient, float *statistics, vec *memory
) {
    Run run = {
        .graph = graph, .memory = memory, .parameters = parameters, .gradient = gradient, .masks = masks,
        .statistics = statistics, .training = 1,
    };
    memset(gradient, 0, sizeof(float) * graph->parameters);
    double loss = 0;
    Int samples = graph->vecs * LANES;
    for (Int first = 0; first < size; first += samples, inputs += chunk_size(graph)) {
        run.samples = smallest(samples, size - first);
        run.vecs = blocks_of(run.samples);
        run.inputs = inputs;
        run.first = first;
        forward(&run);
        loss += loss_and_slopes(&run, targets, 1.0f / size);
        backward(&run, first + samples >= size);
    }
    return loss / size;
}

/* Loss and gradient of `pairs` models [.][parameters], each on its batch; converted[p] and
 * targets[p] are those of pair p, sizes[p] its number of samples, masks[p] those of its dropout. Row p
 * of `statistics`, if given, gets those of its batch. */
void parley_gradients(
    const Graph *graph, Int pairs, const float *models, Int model_stride, float *const *converted,
    const void *const *targets, const float *const *const *masks, const Int *sizes, float *losses,
    float *gradients, Int gradient_stride, float *statistics, Int statistics_stride, vec *workspace
) {
    for (Int p = 0; p < pairs; p++)
        losses[p] = one_gradient(graph, models + p * model_stride, (vec *)converted[p], targets[p],
                                 masks ? masks[p] : 0, sizes[p], gradients + p * gradient_stride,
                                 statistics ? statistics + p * statistics_stride : 0, workspace);
}

void add_row_float(const float *row, float weight, Int size, float *sum); /* in average.c */

/* The same for models[model[p]], but each gradient is added at once, while it is in the cache:
 * weight[s][p] times it to row target[s][p] of sums[s], for every share s. `gradient` has room for
 * one. */
void parley_accumulate(
    const Graph *graph, Int pairs, const float *models, Int model_stride, const Int *model,
    float *const *converted, const void *const *targets, const Int *sizes, Int shares,
    const Int *target, const float *weight, float *const *sums, const Int *sum_strides,
    float *gradient, vec *workspace
) {
    for (Int p = 0; p < pairs; p++) {
        one_gradient(graph, models + model[p] * model_stride, (vec *)converted[p], targets[p], 0,
                     sizes[p], gradient, 0, workspace);
        for (Int s = 0; s < shares; s++)
            add_row_float(gradient, weight[s * pairs + p], graph->parameters,
                          sums[s] + target[s * pairs + p] * sum_strides[s]);
    }
}

/* What normalising layers of `pairs` models see of their batches, in training. */
void parley_statistics(
    const Graph *graph, Int pairs, const float *models, Int model_stride, float *const *converted,
    const Int *sizes, float *statistics, Int statistics_stride, vec *workspace
) {
    for (Int p = 0; p < pairs; p++) {
        Run run = {
            .graph = graph, .memory = workspace, .parameters = models + p * model_stride,
            .inputs = (vec *)converted[p], .statistics = statistics + p * statistics_stride,
            .vecs = blocks_of(sizes[p]), .samples = sizes[p], .training = 1,
        };
        forward(&run);
    }
}

/* Outputs [n][features] of each model, parameters with running statistics behind them, for the same
 * n converted inputs; `stride` is from one model's outputs to the next one's. */
void parley_predict(
    const Graph *graph, Int count, float *const *models, const float *converted, Int n, float *outputs,
    Int stride, vec *workspace
) {
    Int features = graph->value[graph->output].channels, samples = graph->vecs * LANES;
    for (Int m = 0; m < count; m++, outputs += stride) {
        Run run = {
            .graph = graph, .memory = workspace, .parameters = models[m],
            .statistics = models[m] + graph->parameters, .inputs = (vec *)converted,
        };
        for (Int first = 0; first < n; first += samples, run.inputs += chunk_size(graph)) {
            run.samples = smallest(samples, n - first);
            run.vecs = blocks_of(run.samples);
            run.first = first;
            forward(&run);
            Map z = map_of(&run, graph->output);
            for (Int i = 0; i < run.samples; i++)
                for (Int k = 0; k < features; k++)
                    outputs[(first + i) * features + k] = ((float *)(z.at + k * z.channel))[i];
        }
    }
}
