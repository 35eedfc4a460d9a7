/* Returns and clusters of a scan: what the LiDAR hit that is not known to be static. A return is the nearest such surface in one
 * azimuth; neighbouring returns that are close to each other form a cluster, the visible side of one obstacle. */
#include <string.h>

#include "planner.h"

#define DEPTH_M 0.35f /* hits of an azimuth within this distance belong to one surface */
#define JOIN_M 0.35f  /* returns of neighbouring azimuths within this distance belong to one obstacle */
#define JOIN_PITCHES 1.6f
#define SKIPPED 2 /* azimuths from one return to the next, at most */
#define WIDEST_M 1.7f
#define OPEN 1.0e6f
#define HIGHEST_TOP_M 4.6f
#define LOWEST_BOTTOM_M 0.3f
#define HALF_BOX_M 0.5f

/* Sums over the hits of a surface. */
typedef struct {
    float x, y, flat, count, came, nearest, low, high;
    int bottom, top;
} surface;

/* Sums over the returns of a cluster. */
typedef struct {
    float count, came, x, y, flat;
    vec2 first, last, top, bottom; /* top, bottom: sum of the heights of seen edges, number of them */
} sums;

/* Return the height at which ray n passes beyond a surface at a horizontal distance; OPEN if it does not. */
static float passed(const sensor *seen, const readings *r, vec4 turn, int n, float flat, float z) {
    vec3 ray = rotate(turn, seen->ray[n]);
    float level = hypot2(ray.x, ray.y), value = r->lidar[n];
    if (value > 0.0f && (seen->range_m - value) * level < flat + DEPTH_M) return OPEN;
    return z + flat * ray.z / most(level, 1.0e-3f);
}

/* Add the hit of ray v at (x, y, z) to the nearest surface of its azimuth. */
static void add_hit(surface *s, float x, float y, float z, float flat, int kind, int v) {
    if (flat < s->nearest - DEPTH_M) {
        s->came = s->x = s->y = s->flat = s->count = 0.0f;
        s->bottom = -1;
    }
    s->nearest = least(s->nearest, flat);
    s->x = s->x + x;
    s->y = s->y + y;
    s->flat = s->flat + flat;
    s->count = s->count + 1.0f;
    s->came = s->came + (kind == HIT_CAME ? 1.0f : 0.0f);
    s->high = z;
    s->top = v;
    if (s->bottom < 0) {
        s->bottom = v;
        s->low = z;
    }
}

/* Store the hits of azimuth h, and write its return: the nearest surface that is not static. */
static void read_azimuth(tracker_data *t, const sensor *seen, const readings *r, vec4 turn, vec3 pos, int h, int now) {
    surface s = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, OPEN, 0.0f, 0.0f, -1, -1};
    azimuth_return *out = &t->returns[h];
    int start = h * t->elevations;
    out->first_hit = seen->reach_m;
    for (int v = 0; v < t->elevations; v++) {
        float value = r->lidar[start + v];
        if (!(value > 0.0f)) continue;
        vec3 hit = scale(rotate(turn, seen->ray[start + v]), seen->range_m - value + INSIDE_M);
        float flat = hypot2(hit.x, hit.y), x = pos.x + hit.x, y = pos.y + hit.y, z = pos.z + hit.z;
        if (!(flat < seen->reach_m && z > GROUND_M + seen->angle_error * flat)) continue;
        out->first_hit = least(out->first_hit, flat);
        int kind = fp_stamp_hit(t, x, y, z, bands_between(seen->standing ? 0.0f : z, z), now);
        if (kind != HIT_STATIC && flat < s.nearest + DEPTH_M) add_hit(&s, x, y, z, flat, kind, v);
    }
    vec3 level = rotate(turn, seen->ray[start + t->elevations / 2]), lowest = rotate(turn, seen->ray[start]);
    float size = most(hypot2(level.x, level.y), 1.0e-6f);
    out->ux = level.x / size;
    out->uy = level.y / size;
    out->slope = lowest.z / most(hypot2(lowest.x, lowest.y), 1.0e-3f);
    out->count = s.count;
    if (s.count == 0.0f) return;
    out->flat = s.flat / s.count;
    out->x = s.x / s.count;
    out->y = s.y / s.count;
    out->came = s.came / s.count;
    out->low = s.low;
    out->high = s.high;
    out->below = s.bottom > 0 ? passed(seen, r, turn, start + s.bottom - 1, out->flat, pos.z) : OPEN;
    out->above = s.top < t->elevations - 1 ? passed(seen, r, turn, start + s.top + 1, out->flat, pos.z) : OPEN;
}

static void add_return(sums *c, const azimuth_return *at) {
    vec2 point = {at->x, at->y};
    if (c->count == 0.0f) c->first = point;
    c->last = point;
    c->count = c->count + 1.0f;
    c->came = c->came + at->came;
    c->x = c->x + at->x;
    c->y = c->y + at->y;
    c->flat = c->flat + at->flat;
    if (at->below < OPEN && at->below < at->low) {
        c->bottom.x = c->bottom.x + 0.5f * (at->low + at->below);
        c->bottom.y = c->bottom.y + 1.0f;
    }
    if (at->above < OPEN && at->above > at->high) {
        c->top.x = c->top.x + 0.5f * (at->high + at->above);
        c->top.y = c->top.y + 1.0f;
    }
}

/* Write a cluster as number n, unless it is empty or too wide; return the number of clusters. */
static int write_cluster(tracker_data *t, int n, const sums *c) {
    if (c->count == 0.0f || n >= CLUSTERS) return n;
    float flat = c->flat / c->count;
    float width = hypot2(c->last.x - c->first.x, c->last.y - c->first.y) + t->pitch * flat;
    if (width > WIDEST_M) return n;
    float top = c->top.x / most(c->top.y, 1.0f), bottom = c->bottom.x / most(c->bottom.y, 1.0f);
    bool has_top = 2.0f * c->top.y > c->count && top < HIGHEST_TOP_M;
    bool has_bottom = 2.0f * c->bottom.y > c->count && bottom > LOWEST_BOTTOM_M;
    cluster *out = &t->clusters[n];
    out->z = has_top && has_bottom ? 0.5f * (top + bottom) : has_top ? top - HALF_BOX_M : has_bottom ? bottom + HALF_BOX_M : 0.0f;
    out->box = has_top || has_bottom ? 1.0f : 0.0f;
    out->x = c->x / c->count;
    out->y = c->y / c->count;
    out->width = width;
    out->flat = flat;
    out->came = c->came / c->count;
    return n + 1;
}

/* Return an azimuth at which no cluster is cut: the first after SKIPPED azimuths without a return. */
static int first_azimuth(const tracker_data *t) {
    int empty = 0;
    for (int h = 0; t->wraps && h < t->azimuths; h++) {
        empty = t->returns[h].count == 0.0f ? empty + 1 : 0;
        if (empty == SKIPPED) return h;
    }
    return 0;
}

/* Read the scan, taken at `pos` and `yaw`; write its clusters and return their number. */
int fp_find_clusters(tracker_data *t, const sensor *seen, const readings *r, vec3 pos, float yaw, int now) {
    vec4 turn = fp_sensor_turn(seen, r, yaw);
    for (int h = 0; h < t->azimuths; h++) read_azimuth(t, seen, r, turn, pos, h, now);
    fp_free_cells(t, pos, now);
    int start = first_azimuth(t), n = 0, last = -SKIPPED - 1;
    sums c;
    memset(&c, 0, sizeof c);
    for (int k = 0; k < t->azimuths; k++) {
        const azimuth_return *at = &t->returns[(start + k) % t->azimuths];
        if (!(at->count > 0.0f)) continue;
        float apart = hypot2(at->x - c.last.x, at->y - c.last.y);
        if (k - last > SKIPPED || apart > most(JOIN_M, JOIN_PITCHES * t->pitch * at->flat)) {
            n = write_cluster(t, n, &c);
            memset(&c, 0, sizeof c);
        }
        add_return(&c, at);
        last = k;
    }
    return write_cluster(t, n, &c);
}
