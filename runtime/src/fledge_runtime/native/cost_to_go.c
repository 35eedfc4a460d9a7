/* Cost-to-go: the length of the shortest path to the goal from each point of a grid around the drone, at its height. */
#include "planner.h"

#define SPACING_M 0.2f
#define INV_SPACING 5.0f
#define UNKNOWN 1.0e6f
#define NEAR_GOAL_M 0.4f /* paths from nearer points are straight */

static inline float less(float a, float b) { return a < b ? a : b; }

/* Initialise the grid: straight-line lengths at its border and near the goal, unknown lengths elsewhere. */
static void clear_grid(cost_grid *w, const local_map *m, vec3 pos, float body) {
    float x0 = floorf(pos.x * INV_SPACING) * SPACING_M - 0.5f * (float)POINTS * SPACING_M + 0.5f * SPACING_M;
    float y0 = floorf(pos.y * INV_SPACING) * SPACING_M - 0.5f * (float)POINTS * SPACING_M + 0.5f * SPACING_M;
    w->corner_x = x0;
    w->corner_y = y0;
    uint64_t every = in_every_ring(bands_between(pos.z - body, pos.z + body));
    float costs[RINGS + 1];
    for (int k = 0; k <= RINGS; k++) costs[k] = SPACING_M * w->slowness[k];
    for (int r = 0; r < POINTS; r++) {
        float x = x0 + (float)r * SPACING_M;
        int ix = to_cell(x);
        for (int c = 0; c < POINTS; c++) {
            float y = y0 + (float)c * SPACING_M;
            int iy = to_cell(y);
            int ring = on_map(m, ix, iy) ? nearest_ring(m->cells + 2 * place_of(m->size, ix, iy), every) : RINGS;
            w->slow[r][c] = costs[ring];
            bool border = r == 0 || c == 0 || r == POINTS - 1 || c == POINTS - 1;
            float square = x * x + y * y;
            w->length[r][c] = border || square < NEAR_GOAL_M * NEAR_GOAL_M ? sqrtf(square) : UNKNOWN;
        }
    }
}

/* Update the points of a row from the row `before` it and from each other; return whether a length changed. */
static bool relax_row(cost_grid *w, int row, int before) {
    const float *slow = w->slow[row], *side = w->length[before];
    float *length = w->length[row], found[POINTS], right[POINTS], left[POINTS];
    found[0] = length[0];
    found[POINTS - 1] = length[POINTS - 1];
    for (int c = 1; c < POINTS - 1; c++)
        found[c] = less(less(length[c], side[c] + slow[c]), less(side[c - 1], side[c + 1]) + 1.41421356f * slow[c]);
    float low = found[0], high = found[POINTS - 1];
    for (int c = 1; c < POINTS - 1; c++) { /* along the row in both directions at once */
        low = less(found[c], low + slow[c]);
        right[c] = low;
        high = less(found[POINTS - 1 - c], high + slow[POINTS - 1 - c]);
        left[POINTS - 1 - c] = high;
    }
    int changed = 0;
    for (int c = 1; c < POINTS - 1; c++) {
        float now = less(left[c], right[c]);
        changed |= now < length[c];
        length[c] = now;
    }
    return changed != 0;
}

/* Sweep the rows forth and back until no length changes; the first sweep comes from the goal. A row is skipped if neither it
 * nor the row before it has changed since the last sweep in this direction. */
static void sweep(cost_grid *w) {
    uint64_t forth = ~(uint64_t)0, back = ~(uint64_t)0; /* a bit for each row that the next sweep must update */
    for (int k = 0; k < 2 * w->rounds; k++) {
        int step = (w->corner_x < 0.0f ? -1 : 1) * (1 - 2 * (k % 2));
        if ((step > 0 ? forth : back) == 0) return;
        for (int n = 1; n < POINTS - 1; n++) {
            int row = step > 0 ? n : POINTS - 1 - n;
            uint64_t bit = (uint64_t)1 << row;
            if (((step > 0 ? forth : back) & bit) && relax_row(w, row, row - step)) {
                forth |= bit << 1;
                back |= bit >> 1;
            }
        }
        if (step > 0)
            forth = 0;
        else
            back = 0;
    }
}

/* Solve the grid again if the flight is new (`fresh`) or `every` decisions have passed since the last time. */
void fp_update_cost(cost_grid *w, const local_map *m, vec3 pos, float body, bool fresh) {
    if (fresh) w->age = 0;
    if (w->every > 0) {
        if (w->age % w->every == 0) {
            clear_grid(w, m, pos, body);
            sweep(w);
            w->age = 0;
        }
        w->age++;
    }
}

/* Return the length of the shortest path from a point to the goal, m; off the grid, of a straight line. */
float fp_cost_from(const cost_grid *w, float x, float y) {
    float away = hypot2(x, y);
    if (w->every == 0 || away < 1.0f) return away;
    float u = (x - w->corner_x) * INV_SPACING, v = (y - w->corner_y) * INV_SPACING;
    float fu = floorf(u), fv = floorf(v);
    if (!(fu >= 0.0f && fv >= 0.0f && fu < (float)(POINTS - 1) && fv < (float)(POINTS - 1))) return away; /* also NaN */
    int r = (int)fu, c = (int)fv;
    float a = u - fu, b = v - fv;
    float low = (1.0f - b) * w->length[r][c] + b * w->length[r][c + 1];
    float high = (1.0f - b) * w->length[r + 1][c] + b * w->length[r + 1][c + 1];
    return (1.0f - a) * low + a * high;
}
