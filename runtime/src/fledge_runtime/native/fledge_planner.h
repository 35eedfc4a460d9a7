/* The planner of Fledge's navigation policies for one drone, in C99 with a plain C interface.
 *
 *     fledge_settings s;
 *     fledge_settings_default(&s);
 *     fledge_settings_set(&s, "planner.margin_m", 0.43, text, sizeof text);    // as in the policy's contract
 *     fledge_planner *planner;
 *     if (fledge_planner_create(&s, &planner, text, sizeof text)) { ... }
 *     fledge_planner_reset(planner);                                           // a flight begins
 *     fledge_planner_step(planner, &input, &output);                           // each decision
 *     fledge_planner_destroy(planner);
 *
 * The caller owns all buffers of `input` and `output`: float32, contiguous. The library has no globals; planners are
 * independent of each other, and one planner must not be used by two threads at once. Functions that can fail return a
 * fledge_status. Compile with -ffp-contract=off: fused products round differently from the simulator.
 *
 * Frames: the goal frame is fixed in a flight, with x along the horizontal direction from start to goal, z up, and the goal
 * at (0, 0). Units are m, s, rad.
 */
#ifndef FLEDGE_PLANNER_H
#define FLEDGE_PLANNER_H

#include <stddef.h>

#if defined(_WIN32) && defined(FLEDGE_PLANNER_BUILD)
#define FLEDGE_API __declspec(dllexport)
#elif defined(__GNUC__)
#define FLEDGE_API __attribute__((visibility("default")))
#else
#define FLEDGE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define FLEDGE_PLANNER_ABI 2

enum {
    FLEDGE_STATE = 8,      /* unit vector to the goal, horizontal and vertical distance to it, velocity */
    FLEDGE_POSE = 2,       /* height above the ground, yaw in the goal frame */
    FLEDGE_ATTITUDE = 2,   /* roll, pitch */
    FLEDGE_MOVERS = 5,     /* rows of dynamic_obstacle */
    FLEDGE_MOVER = 10,     /* numbers of a row */
    FLEDGE_PLAN = 135,     /* numbers of the observation plan */
    FLEDGE_ELEVATIONS = 64 /* entries of lidar_elevations_deg, at most */
};

typedef enum {
    FLEDGE_OK = 0,
    FLEDGE_MISSING = 1,    /* an argument or an input is NULL */
    FLEDGE_SIZE = 2,       /* the scan has the wrong number of rays */
    FLEDGE_NOT_FINITE = 3, /* an input has NaN, infinity or a number beyond +-1e6 */
    FLEDGE_SETTING = 4,    /* a setting is out of range, or contradicts another */
    FLEDGE_UNKNOWN = 5,    /* there is no setting of this name */
    FLEDGE_MEMORY = 6
} fledge_status;

enum { FLEDGE_CYLINDER = 0, FLEDGE_SPHERE = 1, FLEDGE_BEAMS = 2 }; /* collision */
enum { FLEDGE_DETECTOR = 0, FLEDGE_LIDAR = 1 };                    /* movers_from */

/* Settings, by their names in the contract: the field planner_margin_m is "planner.margin_m". Set them by name where
 * possible: fields may be added. */
typedef struct fledge_settings {
    double lidar_range_m, lidar_min_range_m, lidar_view_deg, lidar_elevations_deg[FLEDGE_ELEVATIONS];
    int num_elevations_deg, lidar_azimuths, lidar_rows, lidar_pinhole, lidar_jitter, lidar_tilts;
    int movers_from, world, decimation, collision;
    double dt_s, speed_limit, goal_radius_m, collision_radius_m, body_height_m, min_height_m, max_height_m;
    double perception_vary, perception_lidar_delay_s, perception_mover_delay_s, perception_mover_period_s;
    int planner_headings, planner_ways_every, planner_guard, planner_memory, planner_standing;
    double planner_slow, planner_middle, planner_fast, planner_climb, planner_horizon_s, planner_brief_s, planner_step_s;
    double planner_skin_m, planner_margin_m, planner_margin_cost, planner_mover_margin_m, planner_fast_mover_s;
    double planner_mover_cost, planner_coast_s, planner_fading_s, planner_crash_cost, planner_crash_relief;
    double planner_patience_s, planner_lag_s, planner_narrow, planner_alarm_s;
    int planner_identify, planner_hasten;
    double planner_depth_cost, planner_gain, planner_damping, planner_climb_gain, planner_climb_lag_s, planner_delay_s;
} fledge_settings;

/* Observations of one decision. */
typedef struct fledge_input {
    const float *state;            /* [8] */
    const float *lidar;            /* [azimuths * elevations] range - distance, 0 without a hit */
    size_t lidar_count;            /* numbers in `lidar` */
    const float *dynamic_obstacle; /* [5 * 10]; NULL with movers_from=lidar */
    const float *pose;             /* [2] */
    const float *attitude;         /* [2] with lidar_tilts, else NULL */
    const float *flown;            /* [3] action flown since the last decision, 0 to 1; NULL: the planner's own command, unrounded */
} fledge_input;

/* Results of one decision; a NULL is not written. */
typedef struct fledge_output {
    float *plan;    /* [135] the observation plan */
    float *command; /* [3] the planner's command, m/s, goal frame */
    float *movers;  /* [5 * 10] dynamic_obstacle: the tracked movers with movers_from=lidar, else a copy of the input */
} fledge_output;

typedef struct fledge_planner fledge_planner;

FLEDGE_API int fledge_planner_abi(void);
/* Return the digest of the sources that the library was built from; "" if the build did not set it. */
FLEDGE_API const char *fledge_planner_source(void);
/* Return a text for a status. */
FLEDGE_API const char *fledge_status_text(int status);

FLEDGE_API size_t fledge_settings_size(void);
FLEDGE_API void fledge_settings_default(fledge_settings *s);
/* Return the name of setting k, or NULL beyond the last. */
FLEDGE_API const char *fledge_settings_name(size_t k);
/* Set a number or a switch (0 or 1) by name, e.g. "planner.margin_m". `world` is 1 if the env flies in worlds. On failure,
 * write the reason to `text`, at most `size` bytes; `text` may be NULL. */
FLEDGE_API int fledge_settings_set(fledge_settings *s, const char *name, double value, char *text, size_t size);
/* Set a choice by name: "collision" to "cylinder", "sphere" or "beams"; "movers_from" to "detector" or "lidar". */
FLEDGE_API int fledge_settings_choose(fledge_settings *s, const char *name, const char *value, char *text, size_t size);
/* Set "lidar_elevations_deg". */
FLEDGE_API int fledge_settings_elevations(fledge_settings *s, const double *values, size_t count, char *text, size_t size);

/* Create a planner, of which the caller must destroy *planner. On failure *planner is NULL, and `text` says why. */
FLEDGE_API int fledge_planner_create(const fledge_settings *s, fledge_planner **planner, char *text, size_t size);
FLEDGE_API void fledge_planner_destroy(fledge_planner *planner);
/* Begin a new flight: the next step starts with an empty memory. */
FLEDGE_API void fledge_planner_reset(fledge_planner *planner);
/* Compute the plan for the next decision. On failure nothing is written and the memory stays as it was. */
FLEDGE_API int fledge_planner_step(fledge_planner *planner, const fledge_input *input, fledge_output *output);
/* Return why the last step failed; "" if it did not. */
FLEDGE_API const char *fledge_planner_error(const fledge_planner *planner);
/* Write which response the last step identified, [3]: its delay in decisions, and the numbers of its horizontal and vertical
 * rate among those that the planner compares, the given ones first. */
FLEDGE_API void fledge_planner_response(const fledge_planner *planner, int *found);
/* Return the number of rays of a scan. */
FLEDGE_API size_t fledge_planner_rays(const fledge_planner *planner);

#ifdef __cplusplus
}
#endif

#endif
