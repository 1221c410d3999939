/* Losses, and their gradients by the network's answer. */
#include "losses.h"

/* With q the target's shares of the classes, smoothed and weighted, the loss of a sample is
 * Σ q (log Σ e^z - z). Sum of the chunk's losses; the logits' gradient times `scale`. */
static double cross_entropy(const Run *run, const Int *targets, float scale) {
    const Graph *graph = run->graph;
    Map z = map_of(run, graph->output), g = slope_of(run, graph->output);
    Int classes = z.channels;
    const float *weights = graph->class_weights;
    float rest = graph->smoothing / classes, main = 1 - graph->smoothing, all = 0;
    for (Int k = 0; k < classes; k++) all += rest * (weights ? weights[k] : 1);
    double loss = 0;
    for (Int v = 0; v < z.vecs; v++) {
        vec most = z.at[v], sum = {0};
        for (Int k = 1; k < classes; k++) {
            vec at = z.at[k * z.channel + v];
            most = choose(less(most, at) | is_nan(at), at, most);
        }
        for (Int k = 0; k < classes; k++) {
            vec e = exponential(z.at[k * z.channel + v] - most);
            g.at[k * g.channel + v] = e, sum += e;
        }
        Int here = smallest(LANES, run->samples - v * LANES);
        union {
            ivec all;
            int32_t each[LANES];
        } target;
        union {
            vec all;
            float each[LANES];
        } weight = {{0}}, sums = {sum}, missed;
        for (Int l = 0; l < LANES; l++) {
            target.each[l] = l < here ? targets[v * LANES + l] : -1;
            if (l < here) weight.each[l] = main * (weights ? weights[target.each[l]] : 1);
        }
        mask real = ~same(target.all, -1);
        vec mass = choose(real, weight.all + all, (vec){0}), share = mass * scale / sum, part = {0};
        for (Int k = 0; k < classes; k++) {
            float evenly = rest * (weights ? weights[k] : 1);
            vec *at = g.at + k * g.channel + v;
            vec q = choose(same(target.all, k), weight.all, (vec){0}) + choose(real, splat(evenly), (vec){0});
            *at = *at * share - q * scale;
            vec gap = most - z.at[k * z.channel + v];
            part += choose(graph->smoothing == 0 ? same(target.all, k) : real, q * gap, (vec){0});
        }
        missed.all = part;
        for (Int l = 0; l < here; l++)
            loss += (double)(weight.each[l] + all) * logf(sums.each[l]) + missed.each[l];
    }
    return loss;
}

typedef union {
    vec all;
    float each[LANES];
} Lanes;

/* Losses of every output by itself, averaged over those of a sample. The targets t of binary
 * cross-entropy are smoothed towards a half; with w the weight of a positive answer, the loss is
 * (1 - t) z + (1 + (w - 1) t) log(1 + e^-z). */
static double of_each_output(const Run *run, const float *targets, float scale) {
    const Graph *graph = run->graph;
    Map z = map_of(run, graph->output), g = slope_of(run, graph->output);
    Int outputs = z.channels;
    float smoothing = graph->smoothing;
    double loss = 0;
    for (Int k = 0; k < outputs; k++)
        for (Int v = 0; v < z.vecs; v++) {
            Lanes at = {z.at[k * z.channel + v]}, slope = {{0}};
            for (Int l = 0; l < smallest(LANES, run->samples - v * LANES); l++) {
                float t = targets[(v * LANES + l) * outputs + k], x = at.each[l];
                if (graph->loss == SQUARED_ERROR) {
                    loss += (double)(x - t) * (x - t);
                    slope.each[l] = 2 * (x - t);
                    continue;
                }
                t = t * (1 - smoothing) + smoothing / 2;
                float weight = 1 + ((graph->class_weights ? graph->class_weights[k] : 1) - 1) * t;
                float e = expf(-fabsf(x)), other = (x > 0 ? e : 1) / (1 + e);
                loss += (1 - t) * x + weight * (log1pf(e) + (x < 0 ? -x : 0));
                slope.each[l] = 1 - t - weight * other;
            }
            g.at[k * g.channel + v] = slope.all * (scale / outputs);
        }
    return loss / outputs;
}

double loss_and_slopes(const Run *run, const void *targets, float scale) {
    const Graph *graph = run->graph;
    if (graph->loss == CROSS_ENTROPY) return cross_entropy(run, (const Int *)targets + run->first, scale);
    Int outputs = graph->value[graph->output].channels;
    return of_each_output(run, (const float *)targets + run->first * outputs, scale);
}
