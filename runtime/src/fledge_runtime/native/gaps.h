/* Distances from a predicted position to static obstacles and to movers, and their costs. */
#ifndef FLEDGE_GAPS_H
#define FLEDGE_GAPS_H

#include "planner.h"

/* Gaps to columns and to movers, m; a negative gap is a collision. `less` is by how much less the gap to movers counts for
 * the margin. */
typedef struct {
    float columns, movers, less;
} gaps;

/* Return the distance from a point to the nearest remembered hit whose height bands are in the mask, m. */
static inline float column_gap(const search_data *q, const local_map *m, float x, float y, uint64_t every) {
    int ix = to_cell(x), iy = to_cell(y);
    return q->ring_m[on_map(m, ix, iy) ? nearest_ring(m->cells + 2 * place_of(m->size, ix, iy), every) : RINGS];
}

static inline uint64_t bands_at(const search_data *q, float z) {
    return in_every_ring(bands_between(z - q->reach_z, z + q->reach_z));
}

/* Write the distance from a point to the nearest mover at time t, m, and by how much less it counts for the margin; `listed`
 * has the movers to examine, as rows from 1 in four bits each. */
static inline void nearest_mover(const mover_list *movers, const own_state *own, vec3 at, float t, int listed, float *gap,
                                 float *less) {
    float counted = FAR;
    *gap = FAR;
    for (; listed; listed >>= 4) {
        int k = (listed & 15) - 1;
        vec4 p = movers->place[k], v = movers->motion[k];
        float x = p.x + t * v.x - at.x, y = p.y + t * v.y - at.y, square = x * x + y * y;
        if (square < own->reach[k]) {
            float each = most(sqrtf(square) - p.w, fabsf(p.z + t * v.z - at.z) - v.w);
            *gap = least(*gap, each);
            counted = least(counted, each - own->further[k]);
        }
    }
    *less = *gap - counted;
}

/* Return whether a height is within the limits; a drone beyond them may return. */
static inline bool is_within_heights(const search_data *q, const own_state *own, float z) {
    return (z >= q->floor || z >= own->pos.z) && (z <= q->ceiling || z <= own->pos.z);
}

/* Return the gaps at a point inside the height limits at prediction step k; `every` is `bands_at` its height. */
static inline gaps gaps_inside(const fledge_planner *p, const own_state *own, vec3 at, int k, uint64_t every) {
    const search_data *q = &p->search;
    float mover = FAR, less = 0.0f;
    int listed = p->movers.near[k];
    if (listed) nearest_mover(&p->movers, own, at, own->lead + (float)(k + 1) * q->step_s, listed, &mover, &less);
    gaps g = {column_gap(q, &p->map, at.x, at.y, every) - own->body_columns, mover - own->body_movers, less};
    return g;
}

static inline gaps gaps_at(const fledge_planner *p, const own_state *own, vec3 at, int k) {
    gaps outside = {-1.0f, -1.0f, 0.0f};
    if (!is_within_heights(&p->search, own, at.z)) return outside;
    return gaps_inside(p, own, at, k, bands_at(&p->search, at.z));
}

static inline bool collides(gaps g) { return g.columns < 0.0f || g.movers < 0.0f; }

/* Return the cost of being near obstacles at prediction step k; `patience` is a factor on the cost of columns. */
static inline float nearness(const search_data *q, gaps g, int k, float patience) {
    float missing = most(q->mover_margin - g.movers + g.less, 0.0f);
    return patience * q->price[k] * most(q->margin - g.columns, 0.0f) + q->mover_price[k] * missing;
}

#endif
