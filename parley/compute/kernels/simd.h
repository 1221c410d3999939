/* Vectors of LANES floats, one sample in each lane: GCC's vector extension (GCC and Clang), except
 * comparisons on AVX-512. Not for -ffinite-math-only: a NaN must reach the loss. */
#ifndef PARLEY_SIMD
#define PARLEY_SIMD
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX__)
#include <immintrin.h>
#endif
#if defined(__AVX512F__)
#define LANES 16
#define REGISTERS 32
#elif defined(__AVX__)
#define LANES 8
#define REGISTERS 16
#elif defined(__aarch64__)
#define LANES 4
#define REGISTERS 32
#else
#define LANES 4
#define REGISTERS 16
#endif

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

typedef int64_t Int;
typedef float vec __attribute__((vector_size(LANES * 4), may_alias));
typedef float loose __attribute__((vector_size(LANES * 4), may_alias, aligned(4)));
typedef int32_t ivec __attribute__((vector_size(LANES * 4), may_alias));
typedef uint8_t bytes __attribute__((vector_size(LANES), may_alias, aligned(1)));

/* Keeps a vector that is used several times in a register: GCC would load it again for every use. */
#if defined(__AVX512F__)
#define HOLD(v) __asm__("" : "+v"(v))
#elif defined(__AVX__)
#define HOLD(v) __asm__("" : "+x"(v))
#else
#define HOLD(v) (void)0
#endif

static ALWAYS_INLINE vec splat(float a) { return a - (vec){0}; }
static ALWAYS_INLINE vec either(int is, vec a, vec b) { return is ? a : b; }

/* Comparisons and choice by lane. A comparison with NaN is false. */
#if defined(__AVX512F__)
typedef __mmask16 mask;
static ALWAYS_INLINE mask less(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
static ALWAYS_INLINE mask is_nan(vec a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
static ALWAYS_INLINE mask same(ivec a, int b) {
    return _mm512_cmpeq_epi32_mask((__m512i)a, _mm512_set1_epi32(b));
}
static ALWAYS_INLINE vec choose(mask m, vec a, vec b) { return _mm512_mask_blend_ps(m, b, a); }
static ALWAYS_INLINE ivec choose_int(mask m, ivec a, ivec b) {
    return (ivec)_mm512_mask_blend_epi32(m, (__m512i)b, (__m512i)a);
}
static ALWAYS_INLINE mask lanes_of(uint32_t bits) { return bits; }
#else
typedef ivec mask;
static ALWAYS_INLINE mask less(vec a, vec b) { return a < b; }
static ALWAYS_INLINE mask is_nan(vec a) { return a != a; }
static ALWAYS_INLINE mask same(ivec a, int b) { return a == b; }
static ALWAYS_INLINE vec choose(mask m, vec a, vec b) {
    return (vec)((m & (ivec)a) | (~m & (ivec)b));
}
static ALWAYS_INLINE ivec choose_int(mask m, ivec a, ivec b) { return (m & a) | (~m & b); }
static ALWAYS_INLINE mask lanes_of(uint32_t bits) { /* lane k by bit k */
#if LANES == 8
    const ivec each = {1, 2, 4, 8, 16, 32, 64, 128};
#else
    const ivec each = {1, 2, 4, 8};
#endif
    return (((ivec){0} + (int32_t)bits) & each) != 0;
}
#endif

/* Small numbers as bytes, and where a byte is b. GCC would convert them one by one. */
#if defined(__AVX512F__)
static ALWAYS_INLINE bytes bytes_of(ivec a) { return (bytes)_mm512_cvtepi32_epi8((__m512i)a); }
#else
static ALWAYS_INLINE bytes bytes_of(ivec a) { return __builtin_convertvector(a, bytes); }
#endif
#if defined(__AVX512BW__) && defined(__AVX512VL__)
static ALWAYS_INLINE mask same_byte(bytes a, int b) {
    return _mm_cmpeq_epi8_mask((__m128i)a, _mm_set1_epi8(b));
}
#elif defined(__AVX512F__)
static ALWAYS_INLINE mask same_byte(bytes a, int b) {
    return same((ivec)_mm512_cvtepu8_epi32((__m128i)a), b);
}
#elif defined(__AVX2__)
static ALWAYS_INLINE mask same_byte(bytes a, int b) {
    return same((ivec)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)&a)), b);
}
#else
static ALWAYS_INLINE mask same_byte(bytes a, int b) { return same(__builtin_convertvector(a, ivec), b); }
#endif

/* The operand order lets a NaN in x through: both instructions return the second one then. */
#if defined(__AVX512F__)
static ALWAYS_INLINE vec at_least(vec x, float low) { return _mm512_max_ps(splat(low), x); }
static ALWAYS_INLINE vec at_most(vec x, float high) { return _mm512_min_ps(splat(high), x); }
#elif defined(__AVX__)
static ALWAYS_INLINE vec at_least(vec x, float low) { return _mm256_max_ps(splat(low), x); }
static ALWAYS_INLINE vec at_most(vec x, float high) { return _mm256_min_ps(splat(high), x); }
#else
static ALWAYS_INLINE vec at_least(vec x, float low) { return choose(less(x, splat(low)), splat(low), x); }
static ALWAYS_INLINE vec at_most(vec x, float high) { return choose(less(splat(high), x), splat(high), x); }
#endif

static ALWAYS_INLINE float total(vec v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps(v);
#else
    float sum[LANES];
    memcpy(sum, &v, sizeof v);
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++) sum[l] += sum[l + half];
    return sum[0];
#endif
}

/* e^x to 2e-7: 2^n times a polynomial of the rest (Cephes' coefficients). */
static ALWAYS_INLINE vec exponential(vec x) {
    x = at_most(at_least(x, -87.0f), 88.0f);
    const vec magic = splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to a whole number */
    vec shifted = x * 1.44269504f + magic;
    vec n = shifted - magic;
    vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vec p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    ivec scale = (((ivec)shifted - (ivec)magic) + 127) << 23;
    return p * (vec)scale;
}

static ALWAYS_INLINE Int blocks_of(Int n) { return (n + LANES - 1) / LANES; }
static ALWAYS_INLINE Int largest(Int a, Int b) { return a > b ? a : b; }
static ALWAYS_INLINE Int smallest(Int a, Int b) { return a < b ? a : b; }

#endif
