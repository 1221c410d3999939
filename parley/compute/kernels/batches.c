/* Batches of images: gathered, mirrored, cropped and normalised in one pass over memory.
 *
 * Every number must be the one that torch computes: value * factor - shift, each rounded on its own.
 * This file is therefore compiled with -ffp-contract=off, as average.c is.
 */
#include "interface.h"

typedef uint16_t shorts __attribute__((vector_size(LANES * 2)));

static void normalise(const uint8_t *from, Int n, float factor, float shift, float *to) {
    Int i = 0;
    for (; i + LANES <= n; i += LANES) {
        shorts wider = __builtin_convertvector(*(const bytes *)(from + i), shorts);
        ivec whole = __builtin_convertvector(wider, ivec); /* in one leap GCC goes lane by lane */
        *(loose *)(to + i) = __builtin_convertvector(whole, vec) * splat(factor) - splat(shift);
    }
    for (; i < n; i++) to[i] = (float)from[i] * factor - shift;
}

/* A channel, mirrored or not, then cropped from its padded version at (top, left). What lies outside
 * the image is black. */
static void crop(
    const uint8_t *from, Int rows, Int columns, int mirrored, Int top, Int left, uint8_t *to
) {
    memset(to, 0, rows * columns);
    Int first = left < 0 ? -left : 0, end = left > 0 ? columns - left : columns;
    for (Int row = 0; row < rows; row++, to += columns) {
        if (row + top < 0 || row + top >= rows || first >= end) continue;
        const uint8_t *line = from + (row + top) * columns;
        if (mirrored)
            for (Int c = first; c < end; c++) to[c] = line[columns - 1 - left - c];
        else
            memcpy(to + first, line + left + first, end - first);
    }
}

/* Sample s of `to` is image index[s]. Each draw is (mirrored, top, left) in an image that is padded
 * on all sides. `plane` holds rows * columns bytes. */
void parley_batch(
    const uint8_t *images, Int channels, Int rows, Int columns, Int samples, const Int *index,
    const Int *draw, Int padding, const float *factor, const float *shift, uint8_t *plane, float *to
) {
    Int size = rows * columns;
    for (Int s = 0; s < samples; s++)
        for (Int c = 0; c < channels; c++, to += size) {
            const uint8_t *from = images + (index[s] * channels + c) * size;
            const Int *d = draw + 3 * s;
            crop(from, rows, columns, d[0] != 0, d[1] - padding, d[2] - padding, plane);
            normalise(plane, size, factor[c], shift[c], to);
        }
}
