/* Messages of one bit an entry: a scale for each segment, then the signs, eight to a byte. */
#include "interface.h"

static float mean_size(const float *p, Int n) {
    double sum = 0;
    Int i = 0;
    while (i + LANES <= n) { /* float lanes in short runs, double across them */
        vec part = {0};
        for (Int end = smallest(n - LANES, i + 64 * LANES); i <= end; i += LANES) {
            vec v = *(const loose *)(p + i);
            part += choose(less(v, splat(0)), -v, v);
        }
        sum += total(part);
    }
    for (; i < n; i++) sum += fabsf(p[i]);
    return n ? sum / n : 0;
}

static void pack_signs(const float *p, Int n, uint8_t *signs) {
    Int i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16) {
        uint16_t word = _mm512_cmp_ps_mask(_mm512_loadu_ps(p + i), _mm512_setzero_ps(), _CMP_GE_OQ);
        memcpy(signs + i / 8, &word, 2);
    }
#elif defined(__AVX__)
    for (; i + 8 <= n; i += 8) {
        __m256 more = _mm256_cmp_ps(_mm256_loadu_ps(p + i), _mm256_setzero_ps(), _CMP_GE_OQ);
        signs[i / 8] = _mm256_movemask_ps(more);
    }
#endif
    for (; i < n; i += 8) {
        uint8_t byte = 0;
        for (Int k = 0; k < smallest(8, n - i); k++) byte |= (p[i + k] >= 0) << k;
        signs[i / 8] = byte;
    }
}

/* to[i] = ± scale, or to[i] -= ± scale, for the signs from number `begin` to `end`. */
static ALWAYS_INLINE void unpack_signs(
    const uint8_t *signs, Int begin, Int end, Int all, float scale, float *to, int subtract
) {
    Int i = begin;
    for (; i + LANES <= end && i / 8 + 4 <= (all + 7) / 8; i += LANES) {
        uint32_t word;
        memcpy(&word, signs + i / 8, 4);
        vec value = choose(lanes_of(word >> i % 8), splat(scale), splat(-scale));
        if (subtract) value = (vec)(*(loose *)(to + i)) - value;
        *(loose *)(to + i) = value;
    }
    for (; i < end; i++) {
        float value = signs[i / 8] >> i % 8 & 1 ? scale : -scale;
        to[i] = subtract ? to[i] - value : value;
    }
}

static Int sum_of(const Int *sizes, Int segments) {
    Int sum = 0;
    for (Int s = 0; s < segments; s++) sum += sizes[s];
    return sum;
}

void parley_encode_signs(const float *p, Int rows, const Int *sizes, Int segments, uint8_t *wire) {
    Int n = sum_of(sizes, segments), bytes_each = 4 * segments + (n + 7) / 8;
    for (Int r = 0; r < rows; r++, p += n, wire += bytes_each) {
        const float *part = p;
        for (Int s = 0; s < segments; part += sizes[s++]) {
            float scale = mean_size(part, sizes[s]);
            memcpy(wire + 4 * s, &scale, 4);
        }
        pack_signs(p, n, wire + 4 * segments);
    }
}

void parley_decode_signs(
    const uint8_t *wire, Int rows, const Int *sizes, Int segments, float *to, int subtract
) {
    Int n = sum_of(sizes, segments), bytes_each = 4 * segments + (n + 7) / 8;
    for (Int r = 0; r < rows; r++, to += n, wire += bytes_each)
        for (Int s = 0, begin = 0; s < segments; begin += sizes[s++]) {
            float scale;
            memcpy(&scale, wire + 4 * s, 4);
            if (subtract)
                unpack_signs(wire + 4 * segments, begin, begin + sizes[s], n, scale, to, 1);
            else
                unpack_signs(wire + 4 * segments, begin, begin + sizes[s], n, scale, to, 0);
        }
}
