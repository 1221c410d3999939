/* Operations that treat every value by itself: activations, sums, products, copies. */
#include "graph.h"

/* ---- activations ---- */

static ALWAYS_INLINE vec sigmoid(vec x) { return 1.0f / (1.0f + exponential(-x)); }

static ALWAYS_INLINE vec absolute(vec x) { return choose(less(x, (vec){0}), -x, x); }

/* Near zero a polynomial (Cephes' coefficients), as the other form cancels there. */
static ALWAYS_INLINE vec hyperbolic_tangent(vec x) {
    vec far = 1.0f - 2.0f / (exponential(2.0f * absolute(x)) + 1.0f), square = x * x;
    far = choose(less(x, (vec){0}), -far, far);
    vec p = splat(-5.70498872745e-3f);
    p = p * square + 2.06390887954e-2f;
    p = p * square - 5.37397155531e-2f;
    p = p * square + 1.33314422036e-1f;
    p = p * square - 3.33332819422e-1f;
    return choose(less(absolute(x), splat(0.625f)), x + x * square * p, far);
}

/* An odd function as x P(x²) / Q(x²) with minimax coefficients, the constant first, and Q(0) = 1; from
 * `limit` on it is constant. */
static ALWAYS_INLINE vec odd_ratio(vec x, float limit, const float p[6], const float q[5]) {
    x = at_most(at_least(x, -limit), limit);
    vec t = x * x, above = splat(p[5]), below = splat(q[4]);
    UNROLL for (int k = 4; k >= 0; k--) above = above * t + p[k];
    UNROLL for (int k = 3; k >= 0; k--) below = below * t + q[k];
    return x * above / (below * t + 1.0f);
}

/* With N and n the normal distribution and its density, GELU is x N(x). Far below zero the factor is
 * bounded, as what is left of N there is rounding. N to 2e-7: */
static ALWAYS_INLINE vec gelu(vec x) {
    static const float p[] = {
        0.398942232f, 0.033852648f, 0.00467726029f, 0.000168825602f, 6.35210836e-06f, 2.27493508e-08f,
    }, q[] = {0.251521915f, 0.0286458712f, 0.0018844445f, 7.36474249e-05f, 1.1975028e-06f};
    return at_least(x, -5.5f) * (0.5f + odd_ratio(x, 5.5f, p, q));
}

/* N(x) + x n(x) to 3e-7. */
static ALWAYS_INLINE vec gelu_slope(vec x) {
    static const float p[] = {
        0.797884524f, -0.0307434089f, 0.0142091708f, 2.41847556e-05f, 3.58505822e-05f, 1.90884919e-07f,
    }, q[] = {0.294805735f, 0.0410647169f, 0.00352876191f, 0.000193520187f, 8.887474e-06f};
    return 0.5f + odd_ratio(x, 6.0f, p, q);
}

static ALWAYS_INLINE vec value_of(const int form, vec x, float a, float b) {
    switch (form) {
    case RELU: return at_least(x, 0);
    case RELU6: return at_most(at_least(x, 0), 6);
    case SIGMOID: return sigmoid(x);
    case TANH: return hyperbolic_tangent(x);
    case LEAKY_RELU: return choose(less((vec){0}, x), x, x * a);
    case GELU: return gelu(x);
    case GELU_TANH: return 0.5f * x * (1.0f + hyperbolic_tangent(0.79788456f * (x + 0.044715f * x * x * x)));
    case SILU: return x * sigmoid(x);
    case HARD_SWISH: return x * at_most(at_least(x * (1.0f / 6) + 0.5f, 0), 1);
    case HARD_SIGMOID: return at_most(at_least(x * (1.0f / 6) + 0.5f, 0), 1);
    case ELU: return choose(less((vec){0}, x), x, a * (exponential(x) - 1.0f));
    default: return x * a + b;
    }
}

/* The slope, from the result up to LAST_FROM_RESULT and from the input for the others. */
static ALWAYS_INLINE vec slope_at(const int form, vec x, float a) {
    vec one = splat(1), none = {0};
    switch (form) {
    case RELU: return choose(less(none, x), one, none);
    case RELU6: return choose(less(none, x), choose(less(x, splat(6)), one, none), none);
    case SIGMOID: return x * (1.0f - x);
    case TANH: return 1.0f - x * x;
    case LEAKY_RELU: return choose(less(none, x), one, splat(a));
    case GELU: return gelu_slope(x);
    case GELU_TANH: {
        vec t = hyperbolic_tangent(0.79788456f * (x + 0.044715f * x * x * x));
        return 0.5f * (1.0f + t) + 0.39894228f * x * (1.0f - t * t) * (1.0f + 0.134145f * x * x);
    }
    case SILU: {
        vec gate = sigmoid(x);
        return gate * (1.0f + x * (1.0f - gate));
    }
    case HARD_SWISH: {
        vec inner = x * (1.0f / 3) + 0.5f;
        return choose(less(x, splat(-3)), none, choose(less(splat(3), x), one, inner));
    }
    case HARD_SIGMOID: return choose(less(splat(-3), x), choose(less(x, splat(3)), splat(1.0f / 6), none), none);
    case ELU: return choose(less(none, x), one, a * exponential(x));
    default: return splat(a);
    }
}

static ALWAYS_INLINE void activate(const int form, Map in, Map out, float a, float b) {
    for (Int c = 0; c < in.channels; c++) {
        const vec *from = in.at + c * in.channel;
        vec *to = out.at + c * out.channel;
        for (Int i = 0; i < in.pixels * in.vecs; i++) to[i] = value_of(form, from[i], a, b);
    }
}

static ALWAYS_INLINE void activate_back(const int form, Map known, Map g, Map to, float a, Int add) {
    for (Int c = 0; c < g.channels; c++) {
        const vec *at = known.at + c * known.channel, *from = g.at + c * g.channel;
        vec *in_g = to.at + c * to.channel;
        for (Int i = 0; i < g.pixels * g.vecs; i++) {
            vec slope = from[i] * slope_at(form, at[i], a);
            in_g[i] = slope + either(add, in_g[i], (vec){0});
        }
    }
}

static void activation_forward(const Run *run, const Node *node) {
    Map in = map_of(run, node->first), out = map_of(run, node->result);
    switch (node->activation.curve) {
#define CASE(F) \
    case F: activate(F, in, out, node->activation.a, node->activation.b); break;
        EACH_CURVE(CASE)
#undef CASE
    }
}

static void activation_backward(const Run *run, const Node *node) {
    if (!node->wanted[0]) return;
    Int form = node->activation.curve;
    Map known = map_of(run, form <= LAST_FROM_RESULT ? node->result : node->first);
    Map g = slope_of(run, node->result), to = slope_of(run, node->first);
    switch (form) {
#define CASE(F) \
    case F: activate_back(F, known, g, to, node->activation.a, node->add[0]); break;
        EACH_CURVE(CASE)
#undef CASE
    }
}

const Operation activation = {.forward = activation_forward, .backward = activation_backward};

/* ---- sums, products and copies ---- */

/* to (+)= from, channel by channel; the planner may have given both the same place. */
static void pass(Map from, Map to, Int add) {
    if (from.at == to.at) return;
    for (Int c = 0; c < to.channels; c++) {
        const vec *a = from.at + c * from.channel;
        vec *b = to.at + c * to.channel;
        for (Int i = 0; i < to.pixels * to.vecs; i++) b[i] = a[i] + either(add, b[i], (vec){0});
    }
}

static void addition_forward(const Run *run, const Node *node) {
    Map a = map_of(run, node->first), b = map_of(run, node->second), out = map_of(run, node->result);
    for (Int c = 0; c < out.channels; c++)
        for (Int i = 0; i < out.pixels * out.vecs; i++) {
            Int at = c * out.channel + i;
            out.at[at] = a.at[at] + b.at[at];
        }
}

static void addition_backward(const Run *run, const Node *node) {
    Map g = slope_of(run, node->result);
    if (node->wanted[0]) pass(g, slope_of(run, node->first), node->add[0]);
    if (node->wanted[1]) pass(g, slope_of(run, node->second), node->add[1]);
}

const Operation addition = {.forward = addition_forward, .backward = addition_backward};

/* The second may have one pixel that multiplies all of the first's, as gates of channels do. */
static void product_forward(const Run *run, const Node *node) {
    Map a = map_of(run, node->first), b = map_of(run, node->second), out = map_of(run, node->result);
    Int step = b.pixels == 1 ? 0 : b.vecs;
    for (Int c = 0; c < out.channels; c++)
        for (Int p = 0; p < out.pixels; p++)
            for (Int v = 0; v < out.vecs; v++)
                out.at[c * out.channel + p * out.vecs + v] =
                    a.at[c * a.channel + p * a.vecs + v] * b.at[c * b.channel + p * step + v];
}

static void product_backward(const Run *run, const Node *node) {
    Map a = map_of(run, node->first), b = map_of(run, node->second), g = slope_of(run, node->result);
    Int step = b.pixels == 1 ? 0 : b.vecs;
    Map to_a = node->wanted[0] ? slope_of(run, node->first) : a;
    Map to_b = node->wanted[1] ? slope_of(run, node->second) : b;
    for (Int c = 0; c < g.channels; c++) {
        if (node->wanted[1] && !node->add[1])
            memset(to_b.at + c * to_b.channel, 0, sizeof(vec) * to_b.pixels * to_b.vecs);
        for (Int p = 0; p < g.pixels; p++)
            for (Int v = 0; v < g.vecs; v++) {
                vec slope = g.at[c * g.channel + p * g.vecs + v];
                Int first = c * a.channel + p * a.vecs + v, second = c * b.channel + p * step + v;
                if (node->wanted[0]) {
                    vec part = slope * b.at[second];
                    to_a.at[first] = part + either(node->add[0], to_a.at[first], (vec){0});
                }
                if (node->wanted[1]) to_b.at[second] += slope * a.at[first];
            }
    }
}

const Operation product = {.forward = product_forward, .backward = product_backward};

static Map some_channels(Map map, Int first, Int count) {
    map.at += first * map.channel;
    map.channels = count;
    return map;
}

static void concatenation_forward(const Run *run, const Node *node) {
    Map a = map_of(run, node->first), b = map_of(run, node->second), out = map_of(run, node->result);
    pass(a, some_channels(out, 0, a.channels), 0);
    pass(b, some_channels(out, a.channels, b.channels), 0);
}

static void concatenation_backward(const Run *run, const Node *node) {
    Map g = slope_of(run, node->result);
    Int cut = run->graph->value[node->first].channels;
    if (node->wanted[0]) pass(some_channels(g, 0, cut), slope_of(run, node->first), node->add[0]);
    if (node->wanted[1])
        pass(some_channels(g, cut, g.channels - cut), slope_of(run, node->second), node->add[1]);
}

const Operation concatenation = {.forward = concatenation_forward, .backward = concatenation_backward};

/* The same values in the same order, cut into other channels. */
static void reorder(Map from, Map to, Int add) {
    for (Int k = 0; k < from.channels * from.pixels; k++) {
        const vec *a = from.at + k / from.pixels * from.channel + k % from.pixels * from.vecs;
        vec *b = to.at + k / to.pixels * to.channel + k % to.pixels * to.vecs;
        for (Int v = 0; v < from.vecs; v++) b[v] = a[v] + either(add, b[v], (vec){0});
    }
}

static void reshape_forward(const Run *run, const Node *node) {
    reorder(map_of(run, node->first), map_of(run, node->result), 0);
}

static void reshape_backward(const Run *run, const Node *node) {
    if (node->wanted[0])
        reorder(slope_of(run, node->result), slope_of(run, node->first), node->add[0]);
}

const Operation reshape = {.forward = reshape_forward, .backward = reshape_backward};

/* Dropout: times a mask that was drawn for the batch, for every value or for every channel; what is
 * left is scaled up. When the network is used, nothing happens. */
static void masking_forward(const Run *run, const Node *node) {
    Map in = map_of(run, node->first), out = map_of(run, node->result), mask = out;
    if (!run->training) {
        pass(in, out, 0);
        return;
    }
    mask.at = run->memory + node->saved;
    Int pixels = node->masking.channels ? 1 : in.pixels, size = in.channels * pixels;
    const float *drawn = run->masks[node->masking.which] + run->first * size;
    for (Int c = 0; c < in.channels; c++)
        for (Int p = 0; p < in.pixels; p++)
            for (Int v = 0; v < in.vecs; v++) {
                Int at = c * in.channel + p * in.vecs + v, here = smallest(LANES, run->samples - v * LANES);
                const float *from = drawn + v * LANES * size + c * pixels + smallest(p, pixels - 1);
                vec factor = {0};
                for (Int l = 0; l < here; l++) factor[l] = from[l * size] * node->masking.scale;
                mask.at[at] = factor;
                out.at[at] = in.at[at] * factor;
            }
}

static void masking_backward(const Run *run, const Node *node) {
    if (!node->wanted[0]) return;
    Map g = slope_of(run, node->result), to = slope_of(run, node->first);
    const vec *mask = run->memory + node->saved;
    for (Int c = 0; c < g.channels; c++)
        for (Int i = 0; i < g.pixels * g.vecs; i++) {
            Int at = c * g.channel + i;
            to.at[at] = g.at[at] * mask[at] + either(node->add[0], to.at[at], (vec){0});
        }
}

static void masking_sizes(const Graph *graph, const Node *node, Sizes *sizes) {
    sizes->saved = map_size(graph->value + node->result, graph->vecs);
}

const Operation masking = {.forward = masking_forward, .backward = masking_backward, .sizes = masking_sizes};
