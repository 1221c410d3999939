/* BatchNorm: each channel by the mean and variance of all its values in the batch,
 *     y = (x - mean) r gamma + beta,    r = 1 / sqrt(variance + eps).
 * In training they are the batch's own, so that a batch has to be one chunk; in use, running ones.
 * Lanes without a sample count for nothing, and stay zero.
 */
#include "graph.h"


#define MOST 4 /* vectors of a pixel that are handled together */

typedef struct { /* `width` vectors of every pixel of one channel */
    const vec *x, *q; /* q: the result's gradient */
    vec *to;
    Int pixels, vecs, add;
    float mean, scale, shift, plain, along;
    mask real[MOST]; /* lanes with a sample */
    vec sums[MOST], products[MOST];
} Part;

enum { VALUES, SQUARES, SLOPES }; /* what is added up */

static ALWAYS_INLINE void add_up(const int what, const int width, Part *p) {
    vec sums[MOST][2] = {{{0}}}, products[MOST][2] = {{{0}}};
    for (Int i = 0; i < p->pixels; i++)
        UNROLL for (int j = 0; j < width; j++) {
            Int at = i * p->vecs + j;
            vec value = p->x[at];
            if (what == VALUES) sums[j][i & 1] += value;
            vec away = value - p->mean;
            if (what == SQUARES) sums[j][i & 1] += away * away;
            if (what == SLOPES) sums[j][i & 1] += p->q[at], products[j][i & 1] += p->q[at] * away;
        }
    UNROLL for (int j = 0; j < width; j++) {
        p->sums[j] = sums[j][0] + sums[j][1];
        p->products[j] = products[j][0] + products[j][1];
    }
}

enum { RESULT, GRADIENT }; /* what is written */

static ALWAYS_INLINE void write(const int what, const int width, Part *p) {
    for (Int i = 0; i < p->pixels; i++)
        UNROLL for (int j = 0; j < width; j++) {
            Int at = i * p->vecs + j;
            vec away = p->x[at] - p->mean, made = away * p->scale + p->shift;
            if (what == GRADIENT) made = (p->q[at] - p->plain - away * p->along) * p->scale;
            made = choose(p->real[j], made, (vec){0});
            p->to[at] = made + either(p->add, p->to[at], (vec){0});
        }
}

#define EACH_WIDTH(M, F, W) M(F, W, 1) M(F, W, 2) M(F, W, 3) M(F, W, 4)
#define EACH_BODY(M) \
    EACH_WIDTH(M, add_up, VALUES) EACH_WIDTH(M, add_up, SQUARES) EACH_WIDTH(M, add_up, SLOPES) \
    EACH_WIDTH(M, write, RESULT) EACH_WIDTH(M, write, GRADIENT)
#define DEFINE(F, W, N) \
    static void F##_##W##_##N(Part *p) { F(W, N, p); }
EACH_BODY(DEFINE)
#define BODIES(F, W) {0, F##_##W##_1, F##_##W##_2, F##_##W##_3, F##_##W##_4}
static void (*const adders[][MOST + 1])(Part *) = {
    BODIES(add_up, VALUES), BODIES(add_up, SQUARES), BODIES(add_up, SLOPES),
};
static void (*const writers[][MOST + 1])(Part *) = {BODIES(write, RESULT), BODIES(write, GRADIENT)};

typedef struct {
    Map in, slope, to; /* slope: the result's gradient */
    Int samples, channel;
} Channel;

/* Vectors [from, from + width) of the channel's pixels. */
static Part part_of(const Channel *c, Part settings, Int from, Int width) {
    Part p = settings;
    p.x = c->in.at + c->channel * c->in.channel + from;
    if (c->slope.at) p.q = c->slope.at + c->channel * c->slope.channel + from;
    if (c->to.at) p.to = c->to.at + c->channel * c->to.channel + from;
    p.pixels = c->in.pixels, p.vecs = c->in.vecs;
    for (Int j = 0; j < width; j++) {
        Int here = largest(0, smallest(LANES, c->samples - (from + j) * LANES));
        p.real[j] = lanes_of((1u << here) - 1);
    }
    return p;
}

typedef struct {
    double sum, product;
} Sums;

static Sums added(const Channel *c, int what, Part settings) {
    Sums all = {0};
    for (Int v = 0; v < c->in.vecs; v += MOST) {
        Int width = smallest(MOST, c->in.vecs - v);
        Part p = part_of(c, settings, v, width);
        adders[what][width](&p);
        for (Int l = 0; l < smallest(width * LANES, c->samples - v * LANES); l++)
            all.sum += ((float *)p.sums)[l], all.product += ((float *)p.products)[l];
    }
    return all;
}

static void written(const Channel *c, int what, Part settings) {
    for (Int v = 0; v < c->in.vecs; v += MOST) {
        Int width = smallest(MOST, c->in.vecs - v);
        Part p = part_of(c, settings, v, width);
        writers[what][width](&p);
    }
}

static void forward(const Run *run, const Node *node) {
    Channel c = {map_of(run, node->first), {0}, map_of(run, node->result), run->samples, 0};
    const float *gamma = parameter_of(run, node, GAMMA), *beta = parameter_of(run, node, BETA);
    float *saved = (float *)(run->memory + node->saved), *kept = run->statistics;
    double count = (double)run->samples * c.in.pixels;
    for (Int k = c.channel = 0; k < c.in.channels; c.channel = ++k) {
        Part p = {0};
        double variance;
        if (run->training) {
            p.mean = added(&c, VALUES, p).sum / count;
            double squares = added(&c, SQUARES, p).sum;
            variance = squares / count;
            if (kept) /* running variances are estimates of that of all data */
                kept[node->statistic[MEAN] + k] = p.mean, kept[node->statistic[VARIANCE] + k] = squares / (count - 1);
        } else {
            p.mean = kept[node->statistic[MEAN] + k];
            variance = kept[node->statistic[VARIANCE] + k];
        }
        float r = 1 / sqrt(variance + node->batchnorm.eps);
        saved[2 * k] = p.mean, saved[2 * k + 1] = r;
        p.scale = gamma ? gamma[k] * r : r, p.shift = beta ? beta[k] : 0;
        written(&c, RESULT, p);
    }
}

/* With h = (x - mean) r:  dx = r gamma (q - mean of q - h mean of q h). */
static void backward(const Run *run, const Node *node) {
    Map to = node->wanted[0] ? slope_of(run, node->first) : (Map){0};
    Channel c = {map_of(run, node->first), slope_of(run, node->result), to, run->samples, 0};
    const float *gamma = parameter_of(run, node, GAMMA);
    const float *saved = (const float *)(run->memory + node->saved);
    float *gamma_g = gradient_of(run, node, GAMMA), *beta_g = gradient_of(run, node, BETA);
    double count = (double)run->samples * c.in.pixels;
    for (Int k = c.channel = 0; k < c.in.channels; c.channel = ++k) {
        float r = saved[2 * k + 1];
        Part p = {.mean = saved[2 * k], .add = node->add[0]};
        Sums sums = added(&c, SLOPES, p);
        if (beta_g) beta_g[k] += sums.sum;
        if (gamma_g) gamma_g[k] += sums.product * r;
        if (!to.at) continue;
        p.scale = gamma ? gamma[k] * r : r;
        p.plain = sums.sum / count, p.along = sums.product * r * r / count;
        written(&c, GRADIENT, p);
    }
}

static void sizes(const Graph *graph, const Node *node, Sizes *sizes) {
    sizes->saved = blocks_of(2 * graph->value[node->first].channels);
}

const Operation batch_norm = {.forward = forward, .backward = backward, .sizes = sizes};
