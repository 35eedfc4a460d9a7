/* Tables that follow from the settings: candidates, rays, stencils, costs. Computed in double, stored as float32,
 * as the simulator does. */
#include <stdlib.h>
#include <string.h>

#include "planner.h"

#define PI 3.14159265358979323846
#define MAP_RANGE_M 11.0   /* of the local map under sensors that see farther */
#define TRACK_RANGE_M 5.4  /* of the tracker */
#define UPRIGHT_M 0.1      /* safety distance above and below the body */
#define LIMIT_M 0.1        /* distance to keep from the height limits */
#define BOX_WIDTH 1.2      /* boxes count as cylinders that are wider by this factor */
#define GUARD_SKIN_M 0.1
#define GUARD_HORIZON_S 2.0
#define GUARD_NEAR_HORIZON_S 1.0

static double radians(double degrees) { return degrees * (PI / 180.0); }
static bool single_rays(const fledge_settings *s) {
    return s->lidar_pinhole || s->lidar_jitter || s->lidar_tilts || s->lidar_view_deg < 360 || s->lidar_min_range_m > 0;
}

/* Return zeroed memory for at least one item. */
static void *zeroed(size_t count, size_t size) { return calloc(count ? count : 1, size); }

/* Return the number of cells along a side of a map with room for hits at this range. */
static int window_cells(double range_m) {
    int needed = 2 * ((int)ceil(range_m / 0.1) + REACH_CELLS + 2), size = 128;
    while (size < needed) size *= 2;
    return size;
}

static double map_range(const fledge_settings *s) {
    if (s->movers_from == FLEDGE_LIDAR) return lesser(s->lidar_range_m, TRACK_RANGE_M);
    return single_rays(s) ? lesser(s->lidar_range_m, MAP_RANGE_M) : s->lidar_range_m;
}

/* Write the candidate commands: the likely ones first, hovering last. Speeds are at most `speed_limit`. */
static void candidates(search_data *q, const fledge_settings *s) {
    double limit = s->speed_limit, climb = lesser(s->planner_climb, limit), climbs[3] = {0.0, -climb, climb};
    double speeds[3] = {lesser(s->planner_fast, limit), lesser(s->planner_middle, limit), lesser(s->planner_slow, limit)};
    q->count = 0;
    for (int a = 0; a < 3; a++) {
        bool again = (a > 0 && speeds[a] == speeds[0]) || (a > 1 && speeds[a] == speeds[1]);
        for (int b = 0; !again && b < (climb > 0.0 ? 3 : 1); b++)
            for (int k = 0; k < s->planner_headings; k++) { /* 0, 1, -1, 2, -2, ... */
                int heading = k % 2 ? (k + 1) / 2 : (s->planner_headings - k / 2) % s->planner_headings;
                double angle = 2 * PI * heading / s->planner_headings;
                q->commands[q->count++] = vec((float)(speeds[a] * cos(angle)), (float)(speeds[a] * sin(angle)), (float)climbs[b]);
            }
    }
    q->commands[q->count++] = vec(0.0f, 0.0f, 0.0f);
    q->top_speed = 0.0f;
    for (int c = 0; c < q->count; c++) q->top_speed = most(q->top_speed, hypot2(q->commands[c].x, q->commands[c].y));
}

/* Compute rings and stencils: the cells around a hit, by the ring in which they lie. */
static void rings(search_data *q, local_map *m) {
    static const double edges[RINGS] = {0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8};
    double sum[RINGS] = {0}, number[RINGS] = {0};
    memset(m->stencils, 0, sizeof m->stencils);
    for (int dx = -REACH_CELLS; dx <= REACH_CELLS; dx++)
        for (int dy = -REACH_CELLS; dy <= REACH_CELLS; dy++) {
            double away = sqrt((double)(dx * dx + dy * dy)) * 0.1;
            int ring = 0;
            while (ring < RINGS && edges[ring] + 1e-6 < away) ring++;
            if (ring == RINGS) continue;
            sum[ring] += away;
            number[ring] += 1.0;
            for (int place = 0; place < BLOCK; place++) {
                int at = place + dy + REACH_CELLS;
                m->stencils[place][dx + REACH_CELLS][at / BLOCK][2 * (at % BLOCK) + ring / 4] = (uint64_t)0xFFFF << 16 * (ring % 4);
            }
        }
    for (int k = 0; k < RINGS; k++) q->ring_m[k] = (float)(sum[k] / number[k]);
    q->ring_m[RINGS] = 1.0e6f;
}

static void costs(search_data *q, const fledge_settings *s) {
    bool beams = s->collision == FLEDGE_BEAMS;
    double radius = s->collision_radius_m, fast = lesser(s->planner_fast, s->speed_limit);
    for (int k = 0; k < q->steps; k++) {
        double fade = exp(-((k + 1.0) * s->planner_step_s) / s->planner_fading_s);
        q->price[k] = (float)(s->planner_margin_cost * fade);
        q->mover_price[k] = (float)(s->planner_mover_cost * fade);
    }
    q->kinds = s->planner_brief_s > 0.0 ? 2 : 1;
    q->mover_margin = (float)s->planner_mover_margin_m;
    q->fast_mover_s = (float)s->planner_fast_mover_s;
    q->step_s = (float)s->planner_step_s;
    q->skin = (float)s->planner_skin_m;
    q->margin = (float)s->planner_margin_m;
    q->body = (float)(radius + s->planner_skin_m);
    q->crash_cost = (float)s->planner_crash_cost;
    q->crash_relief = (float)s->planner_crash_relief;
    q->depth_cost = (float)s->planner_depth_cost;
    q->reach_z = (float)(beams ? 0.2 : radius + UPRIGHT_M);
    q->goal_radius = (float)s->goal_radius_m;
    q->floor = (float)((beams ? s->min_height_m : greater(s->min_height_m, radius)) + LIMIT_M);
    q->ceiling = (float)(s->max_height_m - LIMIT_M);
    q->gain = (float)(fast * s->planner_horizon_s);
    q->least_crash = (float)greater(s->planner_crash_cost - s->planner_crash_relief * s->planner_horizon_s, 0.0);
    q->decision_s = (float)decision_s(s);
    q->patience_s = (float)s->planner_patience_s;
    bool tracks = s->movers_from == FLEDGE_LIDAR;
    double age = s->perception_mover_delay_s * (1.0 - 0.5 * s->perception_vary) + 0.5 * s->perception_mover_period_s;
    q->coast_s = (float)(tracks ? 0.0 : s->planner_coast_s);
    q->mover_late_s = (float)(tracks ? 0.0 : age); /* tracks are up to date */
    q->box_width = (float)(beams ? 1.0 : BOX_WIDTH);
    q->fast = (float)fast;
    q->slow = (float)lesser(s->planner_slow, s->speed_limit);
    q->limit = (float)s->speed_limit;
    q->brief_m = (float)(fast * (s->planner_brief_s > 0.0 ? s->planner_brief_s : s->planner_horizon_s));
}

/* Write the azimuth of column h and the elevation of row v, rad. */
static double azimuth(const fledge_settings *s, int h) {
    double half = s->lidar_view_deg / 2, middle = (h + 0.5) / s->lidar_azimuths;
    if (s->lidar_pinhole) return atan(-tan(radians(half)) + 2 * tan(radians(half)) * middle);
    return radians(s->lidar_view_deg < 360 ? -half + 2 * half * (h + 0.5) / s->lidar_azimuths : 360.0 * h / s->lidar_azimuths);
}

static double elevation(const fledge_settings *s, int v) {
    double low = s->lidar_elevations_deg[0], high = s->lidar_elevations_deg[1];
    if (!s->lidar_rows) return radians(s->lidar_elevations_deg[v]);
    if (s->lidar_pinhole) {
        low = tan(radians(low));
        high = tan(radians(high));
        return atan(low + (high - low) * (v + 0.5) / s->lidar_rows);
    }
    return radians(low + (high - low) * (v + 0.5) / s->lidar_rows);
}

static bool sensor_tables(sensor *seen, const fledge_settings *s) {
    seen->azimuths = s->lidar_azimuths;
    seen->elevations = s->lidar_rows ? s->lidar_rows : s->num_elevations_deg;
    seen->rays = (size_t)seen->azimuths * (size_t)seen->elevations;
    seen->cosine = zeroed((size_t)seen->elevations, sizeof(float));
    seen->sine = zeroed((size_t)seen->elevations, sizeof(float));
    bool single = single_rays(s) || s->movers_from == FLEDGE_LIDAR;
    if (single) seen->ray = zeroed(seen->rays, sizeof(vec3));
    if (!seen->cosine || !seen->sine || (single && !seen->ray)) return false;
    for (int v = 0; v < seen->elevations; v++) {
        double up = elevation(s, v);
        seen->cosine[v] = (float)cos(up);
        seen->sine[v] = (float)sin(up);
        for (int h = 0; single && h < seen->azimuths; h++) {
            double around = azimuth(s, h), x = cos(up) * cos(around), y = cos(up) * sin(around), z = sin(up);
            if (s->lidar_pinhole) {
                double size = sqrt(1.0 + tan(around) * tan(around) + tan(up) * tan(up));
                x = 1.0 / size;
                y = tan(around) / size;
                z = tan(up) / size;
            }
            seen->ray[h * seen->elevations + v] = vec((float)x, (float)y, (float)z);
        }
    }
    double low = s->lidar_elevations_deg[0], high = s->lidar_elevations_deg[s->num_elevations_deg - 1];
    seen->tilts = s->lidar_tilts;
    seen->standing = s->planner_standing && !s->world;
    seen->memory = s->planner_memory;
    seen->angle_error = s->lidar_jitter ? (float)radians((high - low) / s->lidar_rows / 2) : 0.0f;
    seen->range_m = (float)s->lidar_range_m;
    seen->reach_m = (float)map_range(s);
    seen->late_s = (float)(s->perception_lidar_delay_s * (1.0 - 0.5 * s->perception_vary));
    return true;
}

static bool guard_tables(guard_data *g, const fledge_settings *s) {
    double half = s->collision == FLEDGE_CYLINDER ? 0.5 * s->body_height_m : s->collision == FLEDGE_SPHERE ? s->collision_radius_m : 0.0;
    g->on = s->planner_guard;
    g->body = (float)(s->collision_radius_m + GUARD_SKIN_M);
    g->limit = (float)s->speed_limit;
    g->floor = (float)(greater(s->min_height_m, half) + GUARD_SKIN_M);
    g->ceiling = (float)(s->max_height_m - GUARD_SKIN_M);
    g->step_s = (float)decision_s(s);
    g->horizon = (float)GUARD_HORIZON_S;
    g->near_horizon = (float)GUARD_NEAR_HORIZON_S;
    g->lag = (float)GUARD_LAG_S;
    g->planes = zeroed((size_t)(NEAREST + s->lidar_azimuths + 2), sizeof(vec4));
    return g->planes != NULL;
}

static int in_decisions(double seconds, const fledge_settings *s) { return (int)greater(1.0, nearbyint(seconds / decision_s(s))); }

static bool tracker_tables(tracker_data *t, const sensor *seen, const fledge_settings *s) {
    t->on = s->movers_from == FLEDGE_LIDAR;
    if (!t->on) return true;
    t->size = window_cells(TRACK_RANGE_M);
    t->azimuths = seen->azimuths;
    t->elevations = seen->elevations;
    t->wraps = s->lidar_view_deg == 360;
    t->pitch = (float)radians(s->lidar_view_deg / s->lidar_azimuths);
    t->decision_s = (float)decision_s(s);
    t->late_s = seen->late_s;
    t->confirm = in_decisions(1.0, s);
    t->confirm_late = in_decisions(2.0, s);
    t->gap = in_decisions(0.7, s);
    t->recent = in_decisions(1.5, s);
    t->hold = in_decisions(0.3, s);
    t->overrule = in_decisions(3.0, s);
    t->scan = zeroed(seen->rays, sizeof(float));
    t->grid = zeroed((size_t)t->size * (size_t)t->size, sizeof(grid_cell));
    t->free = zeroed((size_t)t->size * (size_t)t->size, sizeof(free_mark));
    t->returns = zeroed((size_t)t->azimuths, sizeof(azimuth_return));
    return t->scan && t->grid && t->free && t->returns;
}

/* Allocate and fill all tables of a zeroed planner; return a status. */
int fp_planner_tables(fledge_planner *p, const fledge_settings *s) {
    search_data *q = &p->search;
    q->steps = (int)nearbyint(s->planner_horizon_s / s->planner_step_s);
    size_t steps = (size_t)q->steps, cells;
    q->commands = zeroed((size_t)(9 * s->planner_headings + 1), sizeof(vec3));
    q->price = zeroed(steps, sizeof(float));
    q->mover_price = zeroed(steps, sizeof(float));
    p->movers.near = zeroed(steps, sizeof(int));
    p->map.size = window_cells(map_range(s));
    cells = (size_t)p->map.size * (size_t)p->map.size;
    p->map.cells = zeroed(2 * cells, sizeof(uint64_t));
    if (!q->commands || !q->price || !q->mover_price || !p->movers.near || !p->map.cells)
        return FLEDGE_MEMORY;
    if (!sensor_tables(&p->sensor, s) || !guard_tables(&p->guard, s) || !tracker_tables(&p->tracker, &p->sensor, s) || !fp_response_tables(p, s))
        return FLEDGE_MEMORY;
    candidates(q, s);
    rings(q, &p->map);
    costs(q, s);
    for (int k = 0; k <= RINGS; k++) p->cost.slowness[k] = q->ring_m[k] <= q->body ? 20.0f : 1.0f;
    p->cost.slowness[3] = (float)((double)p->cost.slowness[3] + s->planner_narrow);
    p->cost.slowness[4] = (float)((double)p->cost.slowness[4] + s->planner_narrow / 2);
    p->cost.every = s->planner_ways_every;
    p->cost.rounds = 3;
    return FLEDGE_OK;
}
