/* Vectors of float32 and the arithmetic of Warp's kernels: the same operations in the same order, so that results are equal
 * bit for bit. */
#ifndef FLEDGE_VECTORS_H
#define FLEDGE_VECTORS_H

#include <math.h>

typedef struct { float x, y; } vec2;
typedef struct { float x, y, z; } vec3;
typedef struct { float x, y, z, w; } vec4;

static inline float least(float a, float b) { return a <= b ? a : b; }
static inline float most(float a, float b) { return a >= b ? a : b; }
static inline float clamp(float x, float low, float high) { return least(most(low, x), high); }
static inline int clamp_int(int x, int low, int high) { return x < low ? low : x > high ? high : x; }

static inline vec3 vec(float x, float y, float z) { vec3 v = {x, y, z}; return v; }
static inline vec3 add(vec3 a, vec3 b) { return vec(a.x + b.x, a.y + b.y, a.z + b.z); }
static inline vec3 sub(vec3 a, vec3 b) { return vec(a.x - b.x, a.y - b.y, a.z - b.z); }
static inline vec3 scale(vec3 a, float s) { return vec(a.x * s, a.y * s, a.z * s); }
static inline vec3 divide(vec3 a, float s) { return vec(a.x / s, a.y / s, a.z / s); }
static inline float dot(vec3 a, vec3 b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
static inline float length(vec3 a) { return sqrtf(dot(a, a)); }
static inline float hypot2(float x, float y) { return sqrtf(x * x + y * y); }
static inline vec3 cross(vec3 a, vec3 b) {
    return vec(a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x);
}

/* Quaternions (x, y, z, w). */
static inline vec4 about_axis(vec3 axis, float angle) {
    float half = angle * 0.5f, s = sinf(half);
    vec4 q = {axis.x * s, axis.y * s, axis.z * s, cosf(half)};
    return q;
}

static inline vec4 combine(vec4 a, vec4 b) {
    vec4 q = {a.w * b.x + b.w * a.x + a.y * b.z - b.y * a.z, a.w * b.y + b.w * a.y + a.z * b.x - b.z * a.x,
              a.w * b.z + b.w * a.z + a.x * b.y - b.x * a.y, a.w * b.w - a.x * b.x - a.y * b.y - a.z * b.z};
    return q;
}

static inline vec3 rotate(vec4 q, vec3 v) {
    float c = 2.0f * q.w * q.w - 1.0f;
    float d = 2.0f * (q.x * v.x + q.y * v.y + q.z * v.z);
    return vec(v.x * c + q.x * d + (q.y * v.z - q.z * v.y) * q.w * 2.0f,
               v.y * c + q.y * d + (q.z * v.x - q.x * v.z) * q.w * 2.0f,
               v.z * c + q.z * d + (q.x * v.y - q.y * v.x) * q.w * 2.0f);
}

#endif
