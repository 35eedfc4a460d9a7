/* Possible responses of the drone to commands, and where they lead: src/fledge/tasks/navigation/planner/responses.py. */
#include <stdlib.h>
#include <string.h>

#include "planner.h"

#define USUAL_S (1.0 / 2.2 + 0.15) /* time in which the drone of this package follows a command */
#define FADING_S 4.0               /* of the scores of responses */

typedef struct {
    double gain, lag_s, damping;
} rate;

static const rate FLAT_RATES[] = {{2.2, 0.15, 0.2}, {1.1, 0.15, 0.2}, {4.0, 0.08, 0.2}, {2.0, 0.08, 0.2}, {0.8, 0.25, 0.0},
                                  {2.8, 0.08, 0.2}, {1.5, 0.03, 0.0}, {1.5, 0.15, 0.0}, {0.8, 0.5, 0.0},  {1.1, 0.3, 0.2}};
static const rate CLIMB_RATES[] = {{2.2, 0.03, 0.2}, {5.5, 0.03, 0.0}, {1.1, 0.03, 0.2}, {2.8, 0.25, 0.0},
                                   {4.0, 0.03, 0.2}, {1.5, 0.03, 0.2}, {2.2, 0.15, 0.0}};
static const double DELAYS_S[] = {0.0, 0.064, 0.128, 0.192};

static void multiply(double a[4][4], double b[4][4], double out[4][4]) {
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            out[i][j] = 0.0;
            for (int k = 0; k < 4; k++) out[i][j] += a[i][k] * b[k][j];
        }
}

/* Write the linear response after a time: rows are the change of position, the velocity and the acceleration, columns the
 * coefficients of velocity, acceleration and command. */
static void respond(rate x, double seconds, double out[3][3]) {
    double lag = greater(x.lag_s, 1e-3), part = seconds / 65536.0, m[4][4] = {{0}}, square[4][4];
    m[0][1] = part;
    m[1][1] = -x.damping * part;
    m[1][2] = part;
    m[2][1] = -x.gain / lag * part;
    m[2][2] = -1.0 / lag * part;
    m[2][3] = x.gain / lag * part;
    for (int k = 0; k < 4; k++) m[k][k] += 1.0;
    for (int k = 0; k < 16; k++) {
        multiply(m, m, square);
        memcpy(m, square, sizeof m);
    }
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) out[i][j] = m[i][j + 1];
}

/* Write the coefficients in the position at each prediction step, for held and for brief commands. */
static void step_responses(const search_data *q, const fledge_settings *s, rate x, vec3 *out) {
    int steps = q->steps, after = (int)nearbyint(s->planner_brief_s / s->planner_step_s);
    double held[MAX_STEPS][3], response[3][3];
    for (int k = 0; k < steps; k++) {
        respond(x, (k + 1.0) * s->planner_step_s, response);
        memcpy(held[k], response[0], sizeof held[k]);
        double brief = held[k][2];
        if (after > 0 && k >= after) brief -= held[k - after][2]; /* to end a command is to add its opposite */
        out[k] = vec((float)held[k][0], (float)held[k][1], (float)held[k][2]);
        out[steps + k] = vec((float)held[k][0], (float)held[k][1], (float)brief);
    }
}

/* Return the rate of a slow drone under exaggerated commands, and write the exaggeration. */
static rate hastened(rate x, vec2 *shape) {
    double lag = lesser(x.lag_s, greater(0.15, 0.5 * x.lag_s));
    rate faster = {greater(x.gain, lesser(2.2, 0.5 / greater(lag, 1e-3))), lag, x.damping};
    double share = lag > 0 ? x.lag_s / lag : 1.0;
    shape->x = (float)(faster.gain * share / x.gain);
    shape->y = (float)((1.0 - share) / x.gain);
    return faster;
}

/* Append a rate, or a delay, to a list unless it is there. */
static void add_rate(rate *list, int *count, rate x) {
    for (int k = 0; k < *count; k++)
        if (list[k].gain == x.gain && list[k].lag_s == x.lag_s && list[k].damping == x.damping) return;
    list[(*count)++] = x;
}

static void add_delay(response_data *r, double decisions) {
    int delay = (int)nearbyint(decisions);
    for (int k = 0; k < r->num_delays; k++)
        if (r->delays[k] == delay) return;
    r->delays[r->num_delays++] = delay;
    if (delay > r->longest) r->longest = delay;
}

/* Write how a drone of this rate responds within a decision, and in which positions it is at each prediction step. */
static void rate_tables(const fledge_planner *p, const fledge_settings *s, rate x, rate predicted, vec3 next[3], vec3 *steps) {
    double response[3][3];
    respond(x, decision_s(s), response);
    for (int k = 0; k < 3; k++) next[k] = vec((float)response[k][0], (float)response[k][1], (float)response[k][2]);
    step_responses(&p->search, s, predicted, steps);
}

/* Fill the hypotheses about the response: the given one, and with `identify` all others. */
bool fp_response_tables(fledge_planner *p, const fledge_settings *s) {
    search_data *q = &p->search;
    response_data *r = &p->response;
    rate given = {s->planner_gain, s->planner_lag_s, s->planner_damping}, flat[RATES], up[RATES];
    rate climb = {s->planner_climb_gain, lesser(s->planner_lag_s, s->planner_climb_lag_s), s->planner_damping};
    size_t both = 2 * (size_t)q->steps;
    r->on = s->planner_identify;
    r->hasten = r->on && s->planner_hasten;
    r->decision_s = (float)decision_s(s);
    r->keep = (float)exp(-decision_s(s) / FADING_S);
    r->limit = (float)s->speed_limit;
    add_rate(flat, &r->num_flat, given);
    add_rate(up, &r->num_up, climb);
    add_delay(r, s->planner_delay_s / decision_s(s));
    for (size_t k = 0; r->on && k < sizeof FLAT_RATES / sizeof *FLAT_RATES; k++) add_rate(flat, &r->num_flat, FLAT_RATES[k]);
    for (size_t k = 0; r->on && k < sizeof CLIMB_RATES / sizeof *CLIMB_RATES; k++) add_rate(up, &r->num_up, CLIMB_RATES[k]);
    for (size_t k = 0; r->on && k < sizeof DELAYS_S / sizeof *DELAYS_S; k++) add_delay(r, DELAYS_S[k] / decision_s(s));
    r->sent = calloc((size_t)r->longest + 1, sizeof(vec3));
    q->flat = calloc((size_t)r->num_flat * both, sizeof(vec3));
    q->upright = calloc((size_t)r->num_up * both, sizeof(vec3));
    if (!r->sent || !q->flat || !q->upright) return false;
    for (int k = 0; k < r->num_flat; k++) {
        rate faster = hastened(flat[k], &r->flat_shape[k]), x = r->hasten ? faster : flat[k];
        r->slower[k] = (float)(GUARD_LAG_S / USUAL_S * (1.0 / x.gain + x.lag_s - USUAL_S));
        rate_tables(p, s, flat[k], x, r->flat[k], q->flat + (size_t)k * both);
    }
    for (int k = 0; k < r->num_up; k++) {
        rate faster = hastened(up[k], &r->up_shape[k]);
        rate_tables(p, s, up[k], r->hasten ? faster : up[k], r->upright[k], q->upright + (size_t)k * both);
    }
    for (size_t k = 0; k < (size_t)r->num_flat * both; k++) {
        vec3 f = q->flat[k], *so_far = &q->furthest;
        *so_far = vec(most(so_far->x, fabsf(f.x)), most(so_far->y, fabsf(f.y)), most(so_far->z, fabsf(f.z)));
    }
    return true;
}
