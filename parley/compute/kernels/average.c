/* Weighted sums of rows, each added up in a given order.
 *
 * The order is what makes the result the same wherever it is computed: on one worker all rows are
 * here, on seven most of them have arrived in messages. So the rounding has to be that of the
 * plainest loop, sum = sum + weight * row, everywhere: in the vectors, in what is left over at the
 * end of a row, and in torch where there is no compiler. This file is therefore compiled with
 * -ffp-contract=off: a fused multiply-add rounds once where the loop rounds twice.
 *
 * Columns are handled a block at a time, so that a row that goes into several sums is read from
 * memory once, and a few vectors of a block at a time, whose sums stay in registers.
 */
#ifndef NUMBER
#include "interface.h"

#define WIDTH (4 * LANES)
#define MANY 8 /* vectors whose sums are kept in registers */
#define CACHE (1 << 18) /* bytes of all rows that should stay in the cache, half of the second */

#define NUMBER float
#define OF(name) name##_float
#include "average.c"
#undef NUMBER
#undef OF
#define NUMBER double
#define OF(name) name##_double
#include "average.c"

#else /* once for each type of number */

typedef NUMBER OF(vec) __attribute__((vector_size(WIDTH), aligned(sizeof(NUMBER)), may_alias));

typedef struct {
    const Int *row; /* of each term; rows from x_rows on are those of y */
    const NUMBER *weight;
    Int terms;
    const NUMBER *x, *y;
    Int x_stride, x_rows, y_stride;
    int add; /* to what is there, or from the first term on */
    NUMBER gamma;
    const NUMBER *plus; /* added at the end, or null */
} OF(Sum);

static ALWAYS_INLINE const NUMBER *OF(at)(const OF(Sum) *s, Int term, Int column) {
    Int row = s->row[term];
    return (row < s->x_rows ? s->x + row * s->x_stride : s->y + (row - s->x_rows) * s->y_stride) + column;
}

/* `count` vectors of one sum. */
static ALWAYS_INLINE void OF(vectors)(const int count, const OF(Sum) *s, Int column, NUMBER *to) {
    OF(vec) sum[MANY], *out = (OF(vec) *)(to + column); /* constant bounds: registers */
    Int term = 0;
    if (s->add) {
        UNROLL for (int v = 0; v < count; v++) sum[v] = out[v];
    } else {
        const OF(vec) *row = (const OF(vec) *)OF(at)(s, 0, column);
        UNROLL for (int v = 0; v < count; v++) sum[v] = s->weight[0] * row[v];
        term = 1;
    }
    for (; term < s->terms; term++) {
        const OF(vec) *row = (const OF(vec) *)OF(at)(s, term, column);
        NUMBER weight = s->weight[term];
        UNROLL for (int v = 0; v < count; v++) sum[v] = sum[v] + weight * row[v];
    }
    if (s->gamma != 1) {
        const OF(vec) *own = (const OF(vec) *)OF(at)(s, 0, column);
        UNROLL for (int v = 0; v < count; v++) sum[v] = own[v] + s->gamma * (sum[v] - own[v]);
    }
    if (s->plus) {
        const OF(vec) *plus = (const OF(vec) *)(s->plus + column);
        UNROLL for (int v = 0; v < count; v++) sum[v] = sum[v] + plus[v];
    }
    UNROLL for (int v = 0; v < count; v++) out[v] = sum[v];
}

static ALWAYS_INLINE void OF(single)(const OF(Sum) *s, Int column, NUMBER *to) {
    NUMBER sum = s->add ? to[column] : s->weight[0] * *OF(at)(s, 0, column);
    for (Int term = !s->add; term < s->terms; term++)
        sum = sum + s->weight[term] * *OF(at)(s, term, column);
    if (s->gamma != 1) {
        NUMBER own = *OF(at)(s, 0, column);
        sum = own + s->gamma * (sum - own);
    }
    if (s->plus) sum = sum + s->plus[column];
    to[column] = sum;
}

/* One more term: `size` columns of weight * row are added to a sum. */
void OF(add_row)(const NUMBER *row, NUMBER weight, Int size, NUMBER *sum) {
    Int none = 0;
    OF(Sum) s = {&none, &weight, 1, row, row, 0, 1, 0, 1, 1, 0};
    const Int lanes = WIDTH / sizeof(NUMBER), piece = MANY * lanes;
    Int i = 0;
    for (; i + piece <= size; i += piece) OF(vectors)(MANY, &s, i, sum);
    for (; i < size; i++) OF(single)(&s, i, sum);
}

/* Columns [from, to) of `sums` sums. Sum s goes to row target[s] of `out`; its terms are those from
 * start[s] to start[s + 1], at least one unless it is added to what is there. With gamma it is only
 * that share of the way from its first row to the sum. Row target[s] of `plus`, if given, is added. */
void OF(parley_sums)(
    Int from, Int to, Int sums, const Int *target, const Int *start, const Int *row,
    const NUMBER *weight, const NUMBER *x, Int x_stride, Int x_rows, const NUMBER *y, Int y_stride,
    NUMBER *out, Int out_stride, int add, NUMBER gamma, const NUMBER *plus, Int plus_stride
) {
    const Int lanes = WIDTH / sizeof(NUMBER), piece = MANY * lanes;
    Int block = CACHE / (Int)sizeof(NUMBER) / (sums ? sums : 1) / piece * piece;
    if (block < 4 * piece) block = 4 * piece;
    for (Int low = from; low < to; low += block) {
        Int high = low + block < to ? low + block : to;
        for (Int n = 0; n < sums; n++) {
            OF(Sum) s = {row + start[n], weight + start[n], start[n + 1] - start[n],
                         x, y, x_stride, x_rows, y_stride, add, gamma,
                         plus ? plus + target[n] * plus_stride : 0};
            NUMBER *sum = out + target[n] * out_stride;
            Int i = low;
            for (; i + piece <= high; i += piece) OF(vectors)(MANY, &s, i, sum);
            for (; i + lanes <= high; i += lanes) OF(vectors)(1, &s, i, sum);
            for (; i < high; i++) OF(single)(&s, i, sum);
        }
    }
}

#endif
