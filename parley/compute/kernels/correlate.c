/* The gradient of a convolution's weights: for each of them, the sum over samples and pixels of the
 * output's gradient times what the weight saw.
 *
 * With few weights every lane has its own sum of each: then this is products of vectors as they lie,
 * and the lanes are added up at the end. With many weights these sums would not stay in the caches. It
 * is a product of matrices for each run of pixels then: the output's gradient, [out][pixels x samples],
 * times what the taps saw, turned to [pixels x samples][in x taps].
 */
#include "convolution.h"
#include "tiles.h"

/* ---- a sum for every lane ---- */

#define SUMS (1280 << 10) /* bytes of them */
#define WORTH 8           /* pixels of a map for which it pays to add up lanes */

static int by_lane(const Convolution *c, Int outputs, Int entries) {
    return outputs * entries * (Int)sizeof(vec) <= SUMS && c->rows * c->columns >= WORTH;
}

/* Rows of the map that one row of outputs sees, and columns: those a stride apart. */
static Int rows_seen(const Convolution *c) { return (c->kernel_h - 1) * c->dilation_h + 1; }
static Int columns_seen(const Convolution *c) {
    return c->columns + (c->kernel_w - 1) * c->dilation_w / c->stride_w;
}

/* Of the columns a stride apart, how many rows of them are seen. */
static Int phases(const Convolution *c) {
    return smallest(c->stride_w, (c->kernel_w - 1) * c->dilation_w + 1);
}

/* Whether rows have to be laid out anew, with zeros around them and columns a stride apart together. */
static int laid_out(const Convolution *c) { return c->pad_w || c->stride_w > 1; }

/* Vectors of `inputs` channels' rows, laid out. */
static Int rows_size(const Convolution *c, Int inputs, Int vecs) {
    return laid_out(c) ? inputs * rows_seen(c) * phases(c) * columns_seen(c) * vecs : 0;
}

static void lay_out(const Convolution *c, const vec *from, Int vecs, vec *to) {
    for (Int first = -c->pad_w; first < phases(c) - c->pad_w; first++)
        for (Int k = 0; k < columns_seen(c); k++, to += vecs) {
            Int column = first + k * c->stride_w;
            int inside = column >= 0 && column < c->width;
            for (Int v = 0; v < vecs; v++) to[v] = inside ? from[column * vecs + v] : (vec){0};
        }
}

static void correlate_lanes(
    const Convolution *c, Map g, Int outputs, Map in, Int inputs, vec *scratch, float *gradient
) {
    Int vecs = in.vecs, area = c->kernel_h * c->kernel_w, entries = inputs * area, known = 0;
    Int high = rows_seen(c), row_size = phases(c) * columns_seen(c) * vecs;
    int anew = laid_out(c);
    vec *sums = scratch, *rows = sums + outputs * entries;
    const vec **from = (const vec **)(rows + rows_size(c, inputs, vecs));
    memset(sums, 0, outputs * entries * sizeof(vec));
    for (Int y = 0; y < g.rows; y++) {
        Int top = y * c->stride_h - c->pad_h, begin = 0, end = c->kernel_h;
        while (begin < end && top + begin * c->dilation_h < 0) begin++;
        while (begin < end && top + (end - 1) * c->dilation_h >= c->height) end--;
        for (Int row = largest(known, top); anew && row < smallest(c->height, top + high); row++) {
            for (Int k = 0; k < inputs; k++)
                lay_out(c, in.at + k * in.channel + row * c->width * vecs, vecs,
                        rows + (k * high + row % high) * row_size);
            known = row + 1;
        }
        Int each = (end - begin) * c->kernel_w, count = 0;
        for (Int k = 0; k < inputs; k++)
            for (Int i = begin; i < end; i++) {
                Int row = top + i * c->dilation_h;
                const vec *first = anew ? rows + (k * high + row % high) * row_size
                                        : in.at + k * in.channel + row * c->width * vecs;
                for (Int j = 0; j < c->kernel_w; j++) {
                    Int at = j * c->dilation_w;
                    from[count++] = first + (at % c->stride_w * columns_seen(c) + at / c->stride_w) * vecs;
                }
            }
        Dots d = {
            g.at + y * g.columns * vecs, g.channel, from, g.columns * vecs,
            sums + begin * c->kernel_w, entries, 1,
        };
        if (each == area) each = entries; /* all of them lie side by side */
        for (Int k = 0; each && k < count; k += each, d.right += each, d.sum += area)
            dots(&d, outputs, each);
    }
    for (Int k = 0; k < outputs * entries; k++) gradient[k] += total(sums[k]);
}

/* ---- products of matrices ---- */

#define RUN 384     /* samples x pixels of one product */
#define COLUMNS 96  /* in x taps of one product */

/* What tap (i, j) of a channel saw from outputs [x, x + count) of row y. */
static const float *seen(
    const Convolution *c, Map in, Int channel, Int tap, Int y, Int x, Int count, vec *room
) {
    Int vecs = in.vecs, i = tap / c->kernel_w, j = tap % c->kernel_w;
    Int row = source(y, i, c->stride_h, c->pad_h, c->dilation_h, c->height, 0);
    Int first = x * c->stride_w - c->pad_w + j * c->dilation_w;
    const vec *from = in.at + channel * in.channel + row * c->width * vecs;
    if (row >= 0 && c->stride_w == 1 && first >= 0 && first + count <= c->width)
        return (const float *)(from + first * vecs);
    for (Int k = 0; k < count; k++, first += c->stride_w)
        for (Int v = 0; v < vecs; v++)
            room[k * vecs + v] =
                row >= 0 && first >= 0 && first < c->width ? from[first * vecs + v] : (vec){0};
    return (const float *)room;
}

static Int run_of(Int vecs) { return largest(1, RUN / (vecs * LANES)); } /* pixels */

static void correlate_turned(
    const Convolution *c, Map g, Int outputs, Map in, Int inputs, vec *scratch, float *gradient
) {
    Int vecs = in.vecs, area = c->kernel_h * c->kernel_w, entries = inputs * area;
    Int run = run_of(vecs), padded = blocks_of(entries) * LANES;
    vec *sums = scratch, *panel = sums + outputs * blocks_of(entries);
    vec *room = panel + run * vecs * COLUMNS, *zeros = room + LANES * run * vecs;
    int direct = entries % LANES == 0;
    float *to = direct ? gradient : (float *)sums;
    Tile tile = tile_for(outputs, smallest(COLUMNS, padded) / LANES);
    memset(zeros, 0, run * vecs * sizeof(vec));
    if (!direct) memset(sums, 0, outputs * blocks_of(entries) * sizeof(vec));
    for (Int y = 0; y < g.rows; y++)
        for (Int x = 0; x < g.columns; x += run) {
            Int count = smallest(run, g.columns - x), depth = count * vecs * LANES;
            for (Int first = 0; first < padded; first += COLUMNS) {
                Int wide = smallest(COLUMNS, padded - first);
                for (Int e = 0; e < wide; e += LANES) {
                    const float *from[LANES];
                    for (Int l = 0; l < LANES; l++) {
                        Int entry = first + e + l;
                        from[l] = entry >= entries ? (const float *)zeros
                                                   : seen(c, in, entry / area, entry % area, y, x,
                                                          count, room + l * run * vecs);
                    }
                    turn(from, depth, (float *)panel + e, wide);
                }
                Product p = {
                    (const float *)(g.at + (y * g.columns + x) * vecs), g.channel * LANES, 1,
                    (const float *)panel, wide, depth, to + first, padded, 1,
                };
                multiply(&p, outputs, wide / LANES, tile);
            }
        }
    if (direct) return;
    for (Int o = 0; o < outputs; o++)
        for (Int e = 0; e < entries; e++) gradient[o * entries + e] += to[o * padded + e];
}

/* ---- either ---- */

/* Vectors of scratch. */
Int correlate_size(const Convolution *c, Int outputs, Int inputs, Int vecs) {
    Int entries = inputs * c->kernel_h * c->kernel_w;
    if (by_lane(c, outputs, entries)) {
        Int addresses = blocks_of(entries * sizeof(vec *) / sizeof(float));
        return outputs * entries + rows_size(c, inputs, vecs) + addresses;
    }
    /* Sums, the turned panel, room for LANES rows of it and a row of zeros. */
    Int run = largest(vecs, RUN / LANES);
    return outputs * blocks_of(entries) + run * LANES * COLUMNS / LANES + LANES * run + run;
}

void correlate(const Convolution *c, Map g, Int outputs, Map in, Int inputs, vec *scratch, float *gradient) {
    int lanes = by_lane(c, outputs, inputs * c->kernel_h * c->kernel_w);
    (lanes ? correlate_lanes : correlate_turned)(c, g, outputs, in, inputs, scratch, gradient);
}
