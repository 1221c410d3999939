/* Norms of each sample by itself, over groups of channels: GroupNorm and LayerNorm,
 *     y = (x - mean) r gamma + beta,    r = 1 / sqrt(variance + eps),
 * and EvoNorm, y = f(x) r gamma + beta with f(x) = x gate(x), in both readings.
 */
#include "graph.h"

/* f(x) and f'(x); for S0 also df/dv. */
static ALWAYS_INLINE vec gated(const int form, vec x, float v, vec *slope, vec *slope_v) {
    if (form == EVONORM_HARD_SWISH) {
        vec gate = at_most(at_least(x * (1.0f / 6) + 0.5f, 0), 1);
        vec inner = choose(less(x, splat(-3)) | less(splat(3), x), (vec){0}, x * (1.0f / 6));
        *slope = gate + inner;
        *slope_v = (vec){0};
        return x * gate;
    }
    vec gate = 1.0f / (1.0f + exponential(x * -v)), f = x * gate, rest = f * (1.0f - gate);
    *slope = gate + v * rest;
    *slope_v = x * rest;
    return f;
}

typedef struct { /* one group of `width` vectors of every pixel, from vector `from` on */
    Map in, out; /* of the group's channels; in the backward pass out is the gradient */
    Map to;
    Int first;     /* its first channel */
    Int channels, from;
    const float *gamma, *beta, *v;
    float *gamma_g, *beta_g, *v_g;
    Int each, add;
    float eps;
    vec *mean, *scale;
} Group;

static ALWAYS_INLINE void forward_group(const int form, const int width, const Group *g) {
    Int vecs = g->in.vecs, pixels = g->in.pixels;
    float count = g->channels * pixels;
    vec sum[4][2] = {{{0}}}, square[4][2] = {{{0}}}, rest[4] = {{0}}, r[4], mean[4], unused, unused_v;
    for (Int c = 0; c < g->channels; c++) {
        const vec *x = g->in.at + c * g->in.channel + g->from;
        Int p = 0; /* two sums, each in a register */
        for (; p + 2 <= pixels; p += 2)
            UNROLL for (int j = 0; j < width; j++)
                sum[j][0] += x[p * vecs + j], sum[j][1] += x[(p + 1) * vecs + j];
        if (p < pixels) UNROLL for (int j = 0; j < width; j++) sum[j][0] += x[p * vecs + j];
    }
    UNROLL for (int j = 0; j < width; j++) mean[j] = (sum[j][0] + sum[j][1]) / count;
    for (Int c = 0; c < g->channels; c++) {
        const vec *x = g->in.at + c * g->in.channel + g->from;
        Int p = 0;
        for (; p + 2 <= pixels; p += 2)
            UNROLL for (int j = 0; j < width; j++) {
                vec d = x[p * vecs + j] - mean[j], e = x[(p + 1) * vecs + j] - mean[j];
                square[j][0] += d * d, square[j][1] += e * e, rest[j] += d + e;
            }
        if (p < pixels) UNROLL for (int j = 0; j < width; j++) {
            vec d = x[p * vecs + j] - mean[j];
            square[j][0] += d * d, rest[j] += d;
        }
    }
    UNROLL for (int j = 0; j < width; j++) {
        rest[j] /= count; /* what rounding has left of the mean, where it is far from zero */
        mean[j] += rest[j];
        vec variance = (square[j][0] + square[j][1]) / count - rest[j] * rest[j] + g->eps;
        for (int l = 0; l < LANES; l++) r[j][l] = 1.0f / sqrtf(variance[l]);
        g->mean[j] = mean[j], g->scale[j] = r[j];
    }
    for (Int c = 0; c < g->channels; c++) {
        const vec *x = g->in.at + c * g->in.channel + g->from;
        vec *y = g->out.at + c * g->out.channel + g->from;
        Int k = g->each ? c * pixels : g->first + c, step = g->each;
        float v = form == EVONORM_S0 ? g->v[g->first + c] : 0;
        for (Int p = 0; p < pixels; p++) {
            float gamma = g->gamma ? g->gamma[k + p * step] : 1, beta = g->beta ? g->beta[k + p * step] : 0;
            UNROLL for (int j = 0; j < width; j++) {
                vec at = x[p * vecs + j];
                vec f = at - mean[j];
                if (form != PLAIN) f = gated(form, at, v, &unused, &unused_v);
                y[p * vecs + j] = f * (r[j] * gamma) + beta;
            }
        }
    }
}

/* PLAIN: with h = (x - mean) r and q = g gamma,  dx = r (q - mean of q - h mean of q h).
 * EvoNorm: dx = q r f'(x) - (x - mean) r^3 mean of q f. */
static ALWAYS_INLINE void backward_group(const int form, const int width, const Group *g) {
    Int vecs = g->in.vecs, pixels = g->in.pixels;
    float count = g->channels * pixels;
    vec plain[4] = {{0}}, along[4] = {{0}}, slope, slope_v;
    for (Int c = 0; c < g->channels; c++) {
        const vec *x = g->in.at + c * g->in.channel + g->from, *q = g->out.at + c * g->out.channel + g->from;
        vec beta[4] = {{0}}, gamma[4] = {{0}}, gate[4] = {{0}};
        float v = form == EVONORM_S0 ? g->v[g->first + c] : 0;
        for (Int p = 0; p < pixels; p++) {
            vec each_beta = {0}, each_gamma = {0};
            float factor = g->each && g->gamma ? g->gamma[c * pixels + p] : 1;
            UNROLL for (int j = 0; j < width; j++) {
                vec at = x[p * vecs + j], passed = q[p * vecs + j];
                vec f = (at - g->mean[j]) * g->scale[j];
                if (form != PLAIN) f = gated(form, at, v, &slope, &slope_v);
                if (form == EVONORM_S0) gate[j] += passed * slope_v;
                if (g->each) {
                    each_beta += passed, each_gamma += passed * f;
                    passed *= factor;
                }
                beta[j] += passed;
                gamma[j] += passed * f;
            }
            if (g->each && g->gamma_g) g->gamma_g[c * pixels + p] += total(each_gamma);
            if (g->each && g->beta_g) g->beta_g[c * pixels + p] += total(each_beta);
        }
        vec beta_sum = {0}, gamma_sum = {0}, gate_sum = {0};
        float factor = g->each || !g->gamma ? 1 : g->gamma[g->first + c];
        UNROLL for (int j = 0; j < width; j++) {
            vec r = form == PLAIN ? splat(1) : g->scale[j];
            beta_sum += beta[j], gamma_sum += gamma[j] * r, gate_sum += gate[j] * r;
            plain[j] += beta[j] * factor, along[j] += gamma[j] * factor;
        }
        if (!g->each && g->beta_g) g->beta_g[g->first + c] += total(beta_sum);
        if (!g->each && g->gamma_g) g->gamma_g[g->first + c] += total(gamma_sum);
        if (form == EVONORM_S0 && g->v_g) g->v_g[g->first + c] += total(gate_sum) * factor;
    }
    if (!g->to.at) return;
    vec r[4], mean[4], k[4];
    UNROLL for (int j = 0; j < width; j++) {
        r[j] = g->scale[j], mean[j] = g->mean[j], plain[j] = plain[j] * r[j] / count;
        k[j] = form == PLAIN ? along[j] * r[j] * r[j] / count : along[j] * r[j] * r[j] * r[j] / count;
    }
    for (Int c = 0; c < g->channels; c++) {
        const vec *x = g->in.at + c * g->in.channel + g->from, *q = g->out.at + c * g->out.channel + g->from;
        vec *to = g->to.at + c * g->to.channel + g->from;
        float v = form == EVONORM_S0 ? g->v[g->first + c] : 0;
        float factor = g->each || !g->gamma ? 1 : g->gamma[g->first + c];
        for (Int p = 0; p < pixels; p++) {
            if (g->each && g->gamma) factor = g->gamma[c * pixels + p];
            UNROLL for (int j = 0; j < width; j++) {
                vec at = x[p * vecs + j], passed = q[p * vecs + j] * (r[j] * factor);
                if (form != PLAIN) gated(form, at, v, &slope, &slope_v);
                vec result = (form == PLAIN ? passed - plain[j] : passed * slope) - k[j] * (at - mean[j]);
                to[p * vecs + j] = result + either(g->add, to[p * vecs + j], (vec){0});
            }
        }
    }
}

/* One compiled body for each form and width, so that neither is asked for at every pixel. */
#define EACH_BODY(M) \
    M(PLAIN, 1) M(PLAIN, 2) M(PLAIN, 3) M(PLAIN, 4) \
    M(EVONORM_HARD_SWISH, 1) M(EVONORM_HARD_SWISH, 2) M(EVONORM_HARD_SWISH, 3) M(EVONORM_HARD_SWISH, 4) \
    M(EVONORM_S0, 1) M(EVONORM_S0, 2) M(EVONORM_S0, 3) M(EVONORM_S0, 4)
#define DEFINE(F, W) \
    static void forward_##F##_##W(const Group *g) { forward_group(F, W, g); } \
    static void backward_##F##_##W(const Group *g) { backward_group(F, W, g); }
EACH_BODY(DEFINE)
#define FORWARD(F, W) [F][W] = forward_##F##_##W,
#define BACKWARD(F, W) [F][W] = backward_##F##_##W,
static void (*const forwards[3][5])(const Group *) = {EACH_BODY(FORWARD)};
static void (*const backwards[3][5])(const Group *) = {EACH_BODY(BACKWARD)};

static void all_groups(const Run *run, const Node *node, Map in, Map out, Map to, int back) {
    Int groups = node->norm.groups, channels = in.channels / groups;
    vec *saved = run->memory + node->saved;
    Group g = {
        .channels = channels, .each = node->norm.each, .eps = node->norm.eps, .add = node->add[0],
        .gamma = parameter_of(run, node, GAMMA), .beta = parameter_of(run, node, BETA),
        .v = parameter_of(run, node, V),
    };
    if (back)
        g.gamma_g = gradient_of(run, node, GAMMA), g.beta_g = gradient_of(run, node, BETA),
        g.v_g = gradient_of(run, node, V);
    for (Int k = 0; k < groups; k++) {
        g.first = k * channels;
        g.in = in, g.out = out, g.to = to;
        g.in.at += g.first * in.channel, g.out.at += g.first * out.channel;
        if (to.at) g.to.at += g.first * to.channel;
        for (Int v = 0; v < in.vecs; v += 4) {
            Int width = smallest(4, in.vecs - v);
            g.from = v;
            g.mean = saved + 2 * k * in.vecs + v, g.scale = g.mean + in.vecs;
            (back ? backwards : forwards)[node->norm.form][width](&g);
        }
    }
}

static void forward(const Run *run, const Node *node) {
    all_groups(run, node, map_of(run, node->first), map_of(run, node->result), (Map){0}, 0);
}

static void backward(const Run *run, const Node *node) {
    Map to = node->wanted[0] ? slope_of(run, node->first) : (Map){0};
    all_groups(run, node, map_of(run, node->first), slope_of(run, node->result), to, 1);
}

static void sizes(const Graph *graph, const Node *node, Sizes *sizes) {
    sizes->saved = 2 * node->norm.groups * graph->vecs;
}

const Operation norm = {.forward = forward, .backward = backward, .sizes = sizes};
