/* Data of one planner, and the functions that its files share, whose names begin with fp_. Positions are in the goal frame with the
 * goal at (0, 0) and heights above the ground. In shapes: C candidates, T prediction steps, H azimuths, V elevations. */
#ifndef FLEDGE_INTERNAL_H
#define FLEDGE_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "fledge_planner.h"
#include "vectors.h"

#define TWO_PI 6.283185307179586f
#define NEAREST 5
#define HEADINGS 32
#define RINGS 8
#define CELL_M 0.1f
#define BANDS 16
#define BAND_M 0.25f
#define GROUND_M 0.1f /* hits below this height are the ground */
#define REACH_CELLS 8
#define INSIDE_M 0.02f /* a hit is stored this far behind the surface */
#define BLOCK 4
#define BLOCKS 5
#define DISC_CELLS (2 * REACH_CELLS + 1)
#define POINTS 64
#define FAR 1.0e6f
#define TRACKS 16
#define CLUSTERS 32
#define MAX_STEPS 1000
#define RATES 11 /* at most; the given one and those of responses.c */
#define DELAYS 5

/* Hypotheses about how the drone responds to commands, and their state. The given response is the first, and the only one unless
 * `on`. In shapes: M delays, F horizontal, U vertical rates. */
typedef struct {
    bool on, hasten;
    int num_delays, num_flat, num_up; /* M, F, U */
    int longest;                      /* of the delays */
    int delays[DELAYS];               /* [M] decisions */
    float keep, decision_s, limit;
    vec3 flat[RATES][3];      /* [F, 3] position's change, velocity and acceleration after a decision, ... */
    vec3 upright[RATES][3];   /* [U, 3] ... per velocity, acceleration and command before it */
    vec2 flat_shape[RATES];   /* [F] exaggeration of commands */
    vec2 up_shape[RATES];     /* [U] */
    float slower[RATES];      /* [F] s: how much longer than usual a velocity takes to follow */
    vec3 *sent;               /* [longest + 1] m/s: commands flown, the last one first */
    vec4 flat_state[DELAYS * RATES]; /* [M * F] velocity and acceleration, x and y */
    float flat_score[DELAYS * RATES];
    vec2 up_state[DELAYS * RATES];   /* [M * U] */
    float up_score[DELAYS * RATES];
} response_data;

typedef struct {
    int steps;    /* T */
    int count;    /* C */
    vec3 *commands; /* [C] m/s, x to the goal */
    vec3 *flat;    /* [2 F, T] coefficients of velocity, acceleration and command in the horizontal position: of each rate, ... */
    vec3 *upright; /* [2 U, T] ... for held and for brief commands; in the vertical position */
    vec3 furthest; /* largest coefficients of the horizontal position within the horizon */
    int kinds;             /* 2 with brief commands, else 1 */
    float *price;          /* [T] cost per metre of clearance missing to static obstacles */
    float *mover_price;    /* [T] to movers */
    float ring_m[RINGS + 1];
    float step_s, body, skin, reach_z, margin, mover_margin, fast_mover_s, crash_cost, crash_relief, depth_cost, goal_radius;
    float floor, ceiling, gain, least_crash, top_speed;
    float decision_s, patience_s, coast_s, mover_late_s, box_width;
    float fast, slow, limit, brief_m; /* of the plan */
} search_data;

typedef struct {
    int azimuths, elevations;
    size_t rays;
    vec3 *ray;            /* [H * V] unit vectors in the sensor's frame; NULL if rays are upright and cover 360 degrees */
    float *cosine, *sine; /* [V] */
    bool tilts, standing, memory;
    float angle_error, reach_m, range_m, late_s;
} sensor;

typedef struct {
    int size;                                    /* cells along a side, a power of two */
    uint64_t *cells;                             /* [size * size, 2] */
    uint64_t stencils[BLOCK][DISC_CELLS][BLOCKS][2 * BLOCK];
    int centre_x, centre_y;
    bool fresh;
    float drawn; /* sum over the last scan */
} local_map;

typedef struct {
    float length[POINTS][POINTS]; /* m to the goal */
    float slow[POINTS][POINTS];   /* cost of a step to a neighbouring point, m */
    float corner_x, corner_y;
    float slowness[RINGS + 1];
    int age, every, rounds;
} cost_grid;

typedef struct {
    vec4 place[NEAREST];  /* x, y, z, half the width; x is FAR in an empty row */
    vec4 motion[NEAREST]; /* velocity, half the height (FAR: unlimited) */
    float unseen[NEAREST];
    int *near; /* [T] movers that matter at each prediction step */
} mover_list;

/* State of the drone itself. */
typedef struct {
    vec3 pos, vel, acc, goal;
    float yaw;
    vec2 ahead;                   /* horizontal unit vector to the goal */
    float to_go;                  /* m to the goal */
    float body_columns, body_movers; /* m: distances that count as a collision */
    float further[NEAREST];       /* m: clearance from each mover that is desired because it is fast */
    float reach[NEAREST];         /* m²: squared distance at which a mover ceases to have an effect; 0 in an empty row */
    float patience;
    int delay, flat, upright; /* its response to commands, as indices in response_data */
    float slower;             /* s: how much longer than usual its velocity takes to follow */
    float lead;               /* s: pos, vel and acc are those after this time, when a new command takes effect */
    vec3 moved;               /* m: flown in that time */
} own_state;

/* Parameters of the velocity obstacles. */
typedef struct {
    bool on;
    float body, limit, floor, ceiling, step_s, horizon, near_horizon, lag;
    vec4 *planes; /* [NEAREST + H + 2] */
} guard_data;

typedef struct {
    int32_t number, first, last, bits;
} grid_cell;

typedef struct {
    int32_t number, stamp;
} free_mark;

typedef struct {
    vec3 pos, vel, cov;
    vec2 born;
    float width, box, came;
    int seen, last, moves;
} track;

typedef struct {
    float x, y, width, flat, z, box, came;
    bool taken;
} cluster;

typedef struct {
    float x, y, flat, count;
    float ux, uy, first_hit, slope;
    float came;
    float low, high, below, above;
} azimuth_return;

typedef struct {
    bool on;
    int size, azimuths, elevations;
    bool wraps;
    float pitch, decision_s, late_s;
    int confirm, confirm_late, gap, recent, hold, overrule;
    int clock, scanned;
    float *scan;             /* [H * V] the last new scan */
    grid_cell *grid;         /* [size * size] */
    free_mark *free;         /* [size * size] */
    track tracks[TRACKS];
    float rows[NEAREST * FLEDGE_MOVER];
    azimuth_return *returns; /* [H] */
    cluster clusters[CLUSTERS];
    int match[TRACKS];
} tracker_data;

struct fledge_planner {
    search_data search;
    sensor sensor;
    local_map map;
    cost_grid cost;
    mover_list movers;
    guard_data guard;
    tracker_data tracker;
    response_data response;
    bool fresh; /* the next step begins a flight */
    vec3 acc, vel, stay_pos;
    int stay;
    int found[3]; /* of the response: delay in decisions, numbers of the horizontal and the vertical rate */
    vec3 command; /* the planner's own last one */
    char error[160];
};

/* Observations of the present decision. */
typedef struct {
    const float *state, *lidar, *rows, *pose, *attitude;
} readings;

typedef struct {
    vec3 command;
    float cost;
    int brief;
} choice;

/* settings.c */
int fp_settings_check(const fledge_settings *s, char *text, size_t size);

/* tables.c, responses.c */
int fp_planner_tables(fledge_planner *p, const fledge_settings *s);
bool fp_response_tables(fledge_planner *p, const fledge_settings *s); /* false if memory is short */

/* local_map.c */
void fp_map_roll(local_map *m, int ix, int iy, bool forget);
void fp_map_draw(local_map *m, int ix, int iy, uint32_t bands);
void fp_map_remember(local_map *m, const sensor *seen, const readings *r, const mover_list *movers, const own_state *own,
                     bool fresh);
vec4 fp_sensor_turn(const sensor *seen, const readings *r, float yaw);

/* cost_to_go.c */
void fp_update_cost(cost_grid *w, const local_map *m, vec3 pos, float body, bool fresh);
float fp_cost_from(const cost_grid *w, float x, float y);

/* movers.c */
own_state fp_read_own(const readings *r);
void fp_track_movers(mover_list *movers, const search_data *q, const float *rows, vec3 pos, bool fresh);

/* identify.c */
void fp_note_command(response_data *r, vec3 command); /* that the drone has flown since the last decision */
/* Return the predicted acceleration, m/s², from velocity and acceleration at the last decision, by the given response. */
vec3 fp_predicted_acc(const response_data *r, vec3 vel, vec3 acc);
/* Complete the drone's state by its response and, if that is identified, its acceleration. */
void fp_identify(response_data *r, own_state *own, bool fresh);
/* Advance the drone's state to the time when a command that is given now takes effect. */
void fp_advance(const response_data *r, own_state *own);
/* Return the exaggerated command that makes a slow drone follow `command` faster. */
vec3 fp_hastened(const response_data *r, const own_state *own, vec3 command);

/* search.c */
void fp_prepare_search(fledge_planner *p, own_state *own, float top_speed);
choice fp_cheapest(const fledge_planner *p, const own_state *own);
vec3 fp_position_at(const search_data *q, const own_state *own, vec3 command, int brief, int k);
float fp_to_go(const cost_grid *w, const own_state *own, vec3 at);

/* predictions.c */
void fp_write_predictions(const fledge_planner *p, const own_state *own, float *plan);

/* guard.c */
vec3 fp_guarded(fledge_planner *p, const readings *r, const own_state *own, vec3 command);

/* tracker.c, tracker_clusters.c, tracker_memory.c */
void fp_track_scan(tracker_data *t, const sensor *seen, const readings *r, bool fresh);
int fp_find_clusters(tracker_data *t, const sensor *seen, const readings *r, vec3 pos, float yaw, int now);
enum { HIT_STATIC, HIT_KNOWN, HIT_CAME }; /* on a static obstacle; not known to be; in a cell that was free before */
int fp_stamp_hit(tracker_data *t, float x, float y, float z, uint32_t bands, int now);
void fp_free_cells(tracker_data *t, vec3 pos, int now);
void fp_draw_memory(local_map *m, const tracker_data *t, vec3 pos, bool memory);

#define GUARD_LAG_S 0.4 /* of velocity obstacles: how late the drone responds to a command */
static inline double lesser(double a, double b) { return a < b ? a : b; }
static inline double greater(double a, double b) { return a > b ? a : b; }
#define FAR_CELL (-1000000000)

static inline double decision_s(const fledge_settings *s) { return s->dt_s * s->decimation; }

/* Return the cell of a coordinate; FAR_CELL, which no drone reaches, if it is NaN or too far away. */
static inline int to_cell(float x) {
    float cell = floorf(x * 10.0f);
    return cell > (float)FAR_CELL && cell < -(float)FAR_CELL ? (int)cell : FAR_CELL;
}

static inline size_t place_of(int size, int ix, int iy) {
    unsigned last = (unsigned)size - 1u;
    return (size_t)((unsigned)ix & last) * (size_t)size + ((unsigned)iy & last);
}

/* Return a bit mask of the height bands that the heights from `low` to `high`, m, touch. */
static inline uint32_t bands_between(float low, float high) {
    int a = clamp_int((int)floorf(low * 4.0f), 0, BANDS - 1);
    int b = clamp_int((int)floorf(high * 4.0f), -1, BANDS - 1);
    return a > b ? 0u : (2u << (unsigned)b) - (1u << (unsigned)a); /* b >= a >= 0 */
}

/* Return a word that has a mask of height bands in each of its four rings. */
static inline uint64_t in_every_ring(uint32_t bands) { return (uint64_t)bands * 0x0001000100010001u; }

/* Return the nearest ring in which a cell has a bit of the mask; RINGS if there is none. */
static inline int nearest_ring(const uint64_t *cell, uint64_t every) {
    uint64_t near = cell[0] & every, word = near ? near : cell[1] & every;
    return 4 * !near + !(word & 0xFFFFu) + !(word & 0xFFFFFFFFu) + !(word & 0xFFFFFFFFFFFFu) + !word;
}

static inline bool on_map(const local_map *m, int ix, int iy) {
    int half = m->size / 2;
    return ix >= m->centre_x - half && ix < m->centre_x + half && iy >= m->centre_y - half && iy < m->centre_y + half;
}

#endif
