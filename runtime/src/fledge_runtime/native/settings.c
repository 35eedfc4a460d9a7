/* Settings by name, their ranges and defaults: those of NavigationConfig in src/fledge/tasks/navigation/config.py. */
#include <stdio.h>
#include <string.h>

#include "planner.h"

typedef enum { REAL, REAL_ABOVE, REAL_BELOW, WHOLE, SWITCH, CHOICE } kind_of_setting; /* REAL_ABOVE: above `low` */

typedef struct {
    const char *name;
    size_t offset;
    kind_of_setting kind;
    double low, high, usual;
} setting;

#define SET(name, field, kind, low, high, usual) {name, offsetof(fledge_settings, field), kind, low, high, usual}
#define PLAN(field, kind, low, high, usual) SET("planner." #field, planner_##field, kind, low, high, usual)
#define SEES(field, kind, low, high, usual) SET("perception." #field, perception_##field, kind, low, high, usual)
#define PLAIN(field, kind, low, high, usual) SET(#field, field, kind, low, high, usual)

static const setting SETTINGS[] = {
    PLAIN(lidar_range_m, REAL_ABOVE, 0, 100, 4),
    PLAIN(lidar_min_range_m, REAL_BELOW, 0, 100, 0),
    PLAIN(lidar_view_deg, REAL_ABOVE, 0, 360, 360),
    PLAIN(lidar_azimuths, WHOLE, 1, 3600, 36),
    PLAIN(lidar_rows, WHOLE, 0, 256, 0),
    PLAIN(lidar_pinhole, SWITCH, 0, 1, 0),
    PLAIN(lidar_jitter, SWITCH, 0, 1, 0),
    PLAIN(lidar_tilts, SWITCH, 0, 1, 0),
    PLAIN(movers_from, CHOICE, 0, 1, FLEDGE_DETECTOR),
    PLAIN(world, SWITCH, 0, 1, 0),
    PLAIN(dt_s, REAL, 0.0001, 0.1, 0.016),
    PLAIN(decimation, WHOLE, 1, 10000, 1),
    PLAIN(speed_limit, REAL_ABOVE, 0, 1000, 2),
    PLAIN(goal_radius_m, REAL_ABOVE, 0, 1000, 0.5),
    PLAIN(collision, CHOICE, 0, 2, FLEDGE_CYLINDER),
    PLAIN(collision_radius_m, REAL_ABOVE, 0, 10, 0.3),
    PLAIN(body_height_m, REAL_ABOVE, 0, 10, 0.2),
    PLAIN(min_height_m, REAL, 0, 0.5, 0.2),
    PLAIN(max_height_m, REAL_ABOVE, 2.5, 1000, 4),
    SEES(vary, REAL, 0, 1, 0),
    SEES(lidar_delay_s, REAL, 0, 2, 0),
    SEES(mover_delay_s, REAL, 0, 2, 0),
    SEES(mover_period_s, REAL, 0, 2, 0),
    PLAN(headings, WHOLE, 1, 360, 32),
    PLAN(slow, REAL_ABOVE, 0, 1000, 0.7),
    PLAN(middle, REAL_ABOVE, 0, 1000, 1.4),
    PLAN(fast, REAL_ABOVE, 0, 1000, 2.0),
    PLAN(climb, REAL, 0, 1000, 1.0),
    PLAN(horizon_s, REAL_ABOVE, 0, 20, 3.0),
    PLAN(brief_s, REAL, 0, 20, 1.0),
    PLAN(step_s, REAL_ABOVE, 0, 1, 0.1),
    PLAN(skin_m, REAL, 0, 0.5, 0.07),
    PLAN(margin_m, REAL_ABOVE, 0, 0.5, 0.43),
    PLAN(margin_cost, REAL, 0, 1e6, 0.6),
    PLAN(mover_margin_m, REAL, 0, 1000, 1.0),
    PLAN(fast_mover_s, REAL, 0, 1000, 0.5),
    PLAN(mover_cost, REAL, 0, 1e6, 1.5),
    PLAN(coast_s, REAL, 0, 100, 0.8),
    PLAN(fading_s, REAL_ABOVE, 0, 1e6, 2.0),
    PLAN(crash_cost, REAL_ABOVE, 0, 1e6, 100),
    PLAN(crash_relief, REAL, 0, 1e6, 20),
    PLAN(depth_cost, REAL, 0, 1e6, 0.0),
    PLAN(patience_s, REAL, 0, 1e6, 2.0),
    PLAN(identify, SWITCH, 0, 1, 0),
    PLAN(hasten, SWITCH, 0, 1, 0),
    PLAN(gain, REAL_ABOVE, 0, 100, 2.2),
    PLAN(damping, REAL, 0, 10, 0.2),
    PLAN(lag_s, REAL, 0, 1, 0.15),
    PLAN(climb_gain, REAL_ABOVE, 0, 100, 2.2),
    PLAN(climb_lag_s, REAL, 0, 1, 0.03),
    PLAN(delay_s, REAL, 0, 1, 0.0),
    PLAN(ways_every, WHOLE, 0, 1e6, 5),
    PLAN(narrow, REAL, 0, 1000, 1.0),
    PLAN(alarm_s, REAL_ABOVE, 0, 1000, 1.5),
    PLAN(guard, SWITCH, 0, 1, 0),
    PLAN(memory, SWITCH, 0, 1, 1),
    PLAN(standing, SWITCH, 0, 1, 1),
};
#define COUNT (sizeof SETTINGS / sizeof *SETTINGS)

static const char *const COLLISIONS[] = {"cylinder", "sphere", "beams", NULL};
static const char *const SOURCES[] = {"detector", "lidar", NULL};

static bool is_real(const setting *e) { return e->kind == REAL || e->kind == REAL_ABOVE || e->kind == REAL_BELOW; }

static double read_field(const fledge_settings *s, const setting *e) {
    const char *at = (const char *)s + e->offset;
    return is_real(e) ? *(const double *)(const void *)at : (double)*(const int *)(const void *)at;
}

static void write_field(fledge_settings *s, const setting *e, double value) {
    char *at = (char *)s + e->offset;
    if (is_real(e))
        *(double *)(void *)at = value;
    else
        *(int *)(void *)at = (int)value;
}

static const setting *find(const char *name) {
    for (size_t k = 0; k < COUNT; k++)
        if (strcmp(SETTINGS[k].name, name) == 0) return &SETTINGS[k];
    return NULL;
}

static bool allows(const setting *e, double value) {
    if (!isfinite(value) || value < e->low || value > e->high) return false;
    if (e->kind == REAL_ABOVE) return value > e->low;
    if (e->kind == REAL_BELOW) return value < e->high;
    return is_real(e) || value == floor(value);
}

static int refuse(const setting *e, double value, char *text, size_t size) {
    const char *whole = is_real(e) ? "" : "a whole number, ", *above = e->kind == REAL_ABOVE ? "above" : "at least";
    if (text)
        snprintf(text, size, "%s is %g, but must be %s%s %g and %s %g.", e->name, value, whole, above, e->low,
                 e->kind == REAL_BELOW ? "below" : "at most", e->high);
    return FLEDGE_SETTING;
}

static int unknown(const char *name, char *text, size_t size) {
    if (text) snprintf(text, size, "%.60s is not a setting of the planner.", name);
    return FLEDGE_UNKNOWN;
}

size_t fledge_settings_size(void) { return sizeof(fledge_settings); }

const char *fledge_settings_name(size_t k) { return k < COUNT ? SETTINGS[k].name : NULL; }

void fledge_settings_default(fledge_settings *s) {
    static const double elevations[] = {-10.0, 0.0, 10.0, 20.0};
    memset(s, 0, sizeof *s);
    for (size_t k = 0; k < COUNT; k++) write_field(s, &SETTINGS[k], SETTINGS[k].usual);
    fledge_settings_elevations(s, elevations, 4, NULL, 0);
}

int fledge_settings_set(fledge_settings *s, const char *name, double value, char *text, size_t size) {
    const setting *e = name ? find(name) : NULL;
    if (!s) return FLEDGE_MISSING;
    if (!e) return unknown(name ? name : "NULL", text, size);
    if (!allows(e, value)) return refuse(e, value, text, size);
    write_field(s, e, value);
    return FLEDGE_OK;
}

int fledge_settings_choose(fledge_settings *s, const char *name, const char *value, char *text, size_t size) {
    const setting *e = name ? find(name) : NULL;
    if (!s || !value) return FLEDGE_MISSING;
    if (!e || e->kind != CHOICE) return unknown(name ? name : "NULL", text, size);
    const char *const *choices = strcmp(name, "collision") == 0 ? COLLISIONS : SOURCES;
    for (int k = 0; choices[k]; k++)
        if (strcmp(choices[k], value) == 0) {
            write_field(s, e, k);
            return FLEDGE_OK;
        }
    if (text)
        snprintf(text, size, "%s is %.40s, but must be %s, %s%s%s.", name, value, choices[0], choices[1],
                 choices[2] ? " or " : "", choices[2] ? choices[2] : "");
    return FLEDGE_SETTING;
}

int fledge_settings_elevations(fledge_settings *s, const double *values, size_t count, char *text, size_t size) {
    if (!s || !values) return FLEDGE_MISSING;
    bool fits = count >= 1 && count <= FLEDGE_ELEVATIONS;
    for (size_t k = 0; fits && k < count; k++) fits = values[k] > -89.0 && values[k] < 89.0;
    if (!fits) {
        if (text) snprintf(text, size, "lidar_elevations_deg must have 1 to 64 numbers, each above -89 and below 89.");
        return FLEDGE_SETTING;
    }
    memcpy(s->lidar_elevations_deg, values, count * sizeof *values);
    s->num_elevations_deg = (int)count;
    return FLEDGE_OK;
}

/* Return FLEDGE_SETTING, and why, for settings that are out of range or contradict each other. */
int fp_settings_check(const fledge_settings *s, char *text, size_t size) {
    for (size_t k = 0; k < COUNT; k++)
        if (!allows(&SETTINGS[k], read_field(s, &SETTINGS[k]))) return refuse(&SETTINGS[k], read_field(s, &SETTINGS[k]), text, size);
    fledge_settings copy = *s;
    size_t count = s->num_elevations_deg < 0 ? 0 : (size_t)s->num_elevations_deg;
    int status = fledge_settings_elevations(&copy, s->lidar_elevations_deg, count, text, size);
    if (status) return status;
    const char *why = NULL;
    double steps = nearbyint(s->planner_horizon_s / s->planner_step_s);
    if (steps < 2 || steps > MAX_STEPS)
        why = "planner.horizon_s must be 2 to 1000 times planner.step_s.";
    else if (s->dt_s * s->decimation > s->planner_horizon_s)
        why = "dt_s times decimation, the time between two decisions, must be at most planner.horizon_s.";
    else if (s->lidar_rows && (count != 2 || s->lidar_elevations_deg[0] >= s->lidar_elevations_deg[1]))
        why = "lidar_rows above 0 needs two lidar_elevations_deg, the lowest and the highest.";
    else if (s->lidar_jitter && (!s->lidar_rows || s->lidar_pinhole))
        why = "lidar_jitter needs lidar_rows above 0 and no lidar_pinhole.";
    else if (s->lidar_pinhole && s->lidar_view_deg >= 180)
        why = "lidar_pinhole needs lidar_view_deg below 180.";
    else if (s->lidar_min_range_m >= s->lidar_range_m)
        why = "lidar_min_range_m must be below lidar_range_m.";
    if (why && text) snprintf(text, size, "%s", why);
    return why ? FLEDGE_SETTING : FLEDGE_OK;
}
