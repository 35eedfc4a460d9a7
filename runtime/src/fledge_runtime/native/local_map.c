/* The local map: a window of cells around the drone that stores how near past hits are. A cell has two words of four rings,
 * 16 bits each, a bit for each height band; see docs/worlds/planner.md. */
#include <stdlib.h>
#include <string.h>

#include "planner.h"

#define MOVER_SLACK_M 0.25f /* hits this near to a mover belong to it */

static void wipe_line(local_map *m, int line, bool along_x) {
    for (int k = 0; k < m->size; k++) {
        uint64_t *cell = m->cells + 2 * (along_x ? place_of(m->size, line, k) : place_of(m->size, k, line));
        cell[0] = cell[1] = 0;
    }
}

/* Move the window so that cell (ix, iy) is its centre; clear the cells that enter it, or all if `forget`. */
void fp_map_roll(local_map *m, int ix, int iy, bool forget) {
    int old_x = m->centre_x, old_y = m->centre_y, dx = abs(ix - old_x), dy = abs(iy - old_y), half = m->size / 2;
    m->centre_x = ix;
    m->centre_y = iy;
    if (m->fresh || forget || dx >= m->size || dy >= m->size) {
        memset(m->cells, 0, (size_t)m->size * (size_t)m->size * 2 * sizeof *m->cells);
        m->fresh = false;
        return;
    }
    for (int k = 0; k < dx; k++) wipe_line(m, (ix < old_x ? ix : old_x) + half + k, true);
    for (int k = 0; k < dy; k++) wipe_line(m, (iy < old_y ? iy : old_y) + half + k, false);
}

/* Mark the rings around a hit, unless all of its height bands are marked already. */
void fp_map_draw(local_map *m, int ix, int iy, uint32_t bands) {
    if (((uint32_t)(m->cells[2 * place_of(m->size, ix, iy)] & 0xFFFFu) & bands) == bands) return;
    uint64_t every = in_every_ring(bands);
    int place = iy & (BLOCK - 1);
    for (int r = 0; r < DISC_CELLS; r++)
        for (int b = 0; b < BLOCKS; b++) {
            uint64_t *words = m->cells + 2 * place_of(m->size, ix + r - REACH_CELLS, iy - place + BLOCK * b - REACH_CELLS);
            const uint64_t *stencil = m->stencils[place][r][b];
            for (int n = 0; n < 2 * BLOCK; n++) words[n] |= every & stencil[n];
        }
}

/* Return the rotation from the sensor's frame to the frame in which the drone has this yaw. */
vec4 fp_sensor_turn(const sensor *seen, const readings *r, float yaw) {
    vec4 q = about_axis(vec(0.0f, 0.0f, 1.0f), yaw);
    if (seen->tilts) {
        q = combine(q, about_axis(vec(0.0f, 1.0f, 0.0f), r->attitude[1]));
        q = combine(q, about_axis(vec(1.0f, 0.0f, 0.0f), r->attitude[0]));
    }
    return q;
}

static bool is_on_mover(const mover_list *movers, float x, float y) {
    for (int k = 0; k < NEAREST; k++) {
        float dx = x - movers->place[k].x, dy = y - movers->place[k].y, reach = movers->place[k].w + MOVER_SLACK_M;
        if (dx * dx + dy * dy < reach * reach) return true;
    }
    return false;
}

static void remember_rays(local_map *m, const sensor *seen, const readings *r, const mover_list *movers, vec3 pos, float yaw) {
    vec4 turn = fp_sensor_turn(seen, r, yaw);
    for (size_t n = 0; n < seen->rays; n++) {
        float value = r->lidar[n];
        if (!(value > 0.0f)) continue;
        vec3 hit = scale(rotate(turn, seen->ray[n]), seen->range_m - value + INSIDE_M);
        float flat = hypot2(hit.x, hit.y), z = pos.z + hit.z;
        if (!(flat < seen->reach_m && z > GROUND_M + seen->angle_error * flat)) continue;
        uint32_t bands = bands_between(seen->standing ? 0.0f : z, z);
        if (bands && !is_on_mover(movers, pos.x + hit.x, pos.y + hit.y))
            fp_map_draw(m, to_cell(pos.x + hit.x), to_cell(pos.y + hit.y), bands);
    }
}

static void remember_upright(local_map *m, const sensor *seen, const readings *r, vec3 pos, float yaw) {
    for (int h = 0; h < seen->azimuths; h++) {
        float angle = yaw + TWO_PI * (float)h / (float)seen->azimuths, dx = cosf(angle), dy = sinf(angle);
        for (int v = seen->elevations - 1; v >= 0; v--) { /* downwards: the highest hit contains those below */
            float value = r->lidar[h * seen->elevations + v];
            if (!(value > 0.0f)) continue;
            float d = seen->range_m - value + INSIDE_M, z = pos.z + d * seen->sine[v];
            uint32_t bands = z > GROUND_M ? bands_between(seen->standing ? 0.0f : z, z) : 0u;
            if (!bands) continue;
            float flat = d * seen->cosine[v];
            fp_map_draw(m, to_cell(pos.x + flat * dx), to_cell(pos.y + flat * dy), bands);
        }
    }
}

/* Add a scan to the map, from where the drone was when it was taken; a scan that is held is drawn once. */
void fp_map_remember(local_map *m, const sensor *seen, const readings *r, const mover_list *movers, const own_state *own,
                     bool fresh) {
    fp_map_roll(m, to_cell(own->pos.x), to_cell(own->pos.y), !seen->memory);
    float total = 0.0f;
    for (size_t n = 0; n < seen->rays; n++) total = total + r->lidar[n];
    bool same = total == m->drawn && !fresh && seen->memory;
    m->drawn = total;
    if (same) return;
    vec3 pos = sub(own->pos, scale(own->vel, seen->late_s));
    if (seen->ray)
        remember_rays(m, seen, r, movers, pos, own->yaw);
    else
        remember_upright(m, seen, r, pos, own->yaw);
}
