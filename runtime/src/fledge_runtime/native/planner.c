/* The planner's interface: create, reset, step. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner.h"

#define STUCK_M 0.5f /* a drone that stays within this of a place is stuck */
#define IMPATIENCE_S 2.0f
#define USUAL_COST 6.0f
#define LARGEST 1.0e6f /* of an input */

#ifndef FLEDGE_PLANNER_SOURCE
#define FLEDGE_PLANNER_SOURCE ""
#endif

int fledge_planner_abi(void) { return FLEDGE_PLANNER_ABI; }

const char *fledge_planner_source(void) { return FLEDGE_PLANNER_SOURCE; }

const char *fledge_status_text(int status) {
    static const char *const texts[] = {
        "no error",
        "an argument or an observation is missing",
        "an observation has the wrong size",
        "an observation is not finite, or beyond +-1e6",
        "a setting is out of range, or contradicts another",
        "unknown setting",
        "out of memory",
    };
    return status >= 0 && status < (int)(sizeof texts / sizeof *texts) ? texts[status] : "unknown status";
}

int fledge_planner_create(const fledge_settings *s, fledge_planner **planner, char *text, size_t size) {
    if (text && size) text[0] = '\0';
    if (!planner) return FLEDGE_MISSING;
    *planner = NULL;
    if (!s) return FLEDGE_MISSING;
    int status = fp_settings_check(s, text, size);
    if (status) return status;
    fledge_planner *p = calloc(1, sizeof *p);
    status = p ? fp_planner_tables(p, s) : FLEDGE_MEMORY;
    if (status) {
        if (text) snprintf(text, size, "%s", fledge_status_text(status));
        fledge_planner_destroy(p);
        return status;
    }
    fledge_planner_reset(p);
    *planner = p;
    return FLEDGE_OK;
}

void fledge_planner_destroy(fledge_planner *p) {
    if (!p) return;
    void *owned[] = {p->search.commands, p->search.flat, p->search.upright, p->search.price, p->search.mover_price, p->response.sent,
                     p->sensor.ray, p->sensor.cosine, p->sensor.sine, p->map.cells, p->movers.near,
                     p->guard.planes, p->tracker.scan, p->tracker.grid, p->tracker.free, p->tracker.returns};
    for (size_t k = 0; k < sizeof owned / sizeof *owned; k++) free(owned[k]);
    free(p);
}

void fledge_planner_reset(fledge_planner *p) {
    if (p) p->fresh = true;
}

const char *fledge_planner_error(const fledge_planner *p) { return p ? p->error : fledge_status_text(FLEDGE_MISSING); }

void fledge_planner_response(const fledge_planner *p, int *found) {
    for (int k = 0; p && found && k < 3; k++) found[k] = p->found[k];
}

size_t fledge_planner_rays(const fledge_planner *p) { return p ? p->sensor.rays : 0; }

/* Return whether an input is there and finite; if not, say so in the planner's error. */
static int check(fledge_planner *p, const char *name, const float *values, size_t count) {
    if (!values) {
        snprintf(p->error, sizeof p->error, "%s is missing.", name);
        return FLEDGE_MISSING;
    }
    int wrong = 0;
    for (size_t k = 0; k < count; k++) wrong |= !(values[k] >= -LARGEST && values[k] <= LARGEST);
    if (wrong) {
        snprintf(p->error, sizeof p->error, "%s must be finite and within +-1e6, but is not: pass the last finite reading.", name);
        return FLEDGE_NOT_FINITE;
    }
    return FLEDGE_OK;
}

static int check_input(fledge_planner *p, const fledge_input *in) {
    int status = check(p, "state", in->state, FLEDGE_STATE);
    if (!status && in->lidar && in->lidar_count != p->sensor.rays) {
        snprintf(p->error, sizeof p->error, "lidar must have %zu numbers, got %zu.", p->sensor.rays, in->lidar_count);
        status = FLEDGE_SIZE;
    }
    if (!status) status = check(p, "lidar", in->lidar, p->sensor.rays);
    if (!status && !p->tracker.on) status = check(p, "dynamic_obstacle", in->dynamic_obstacle, FLEDGE_MOVERS * FLEDGE_MOVER);
    if (!status) status = check(p, "pose", in->pose, FLEDGE_POSE);
    if (!status && p->sensor.tilts) status = check(p, "attitude", in->attitude, FLEDGE_ATTITUDE);
    if (!status && in->flown) status = check(p, "flown", in->flown, 3);
    return status;
}

/* Note where the drone is, and return 1, or less if it has been stuck in its place for longer than `patience_s`. */
static float patience_of(fledge_planner *p, vec3 pos, bool fresh) {
    if (fresh || length(sub(pos, p->stay_pos)) > STUCK_M) {
        p->stay_pos = pos;
        p->stay = 0;
        return 1.0f;
    }
    if (p->stay < 1 << 24) p->stay++; /* beyond, float32 has no whole numbers */
    return expf(least(p->search.patience_s - (float)p->stay * p->search.decision_s, 0.0f) / IMPATIENCE_S);
}

/* Return the velocity that an action commands, m/s. */
static vec3 flown_command(const fledge_planner *p, const float *action) {
    float limit = p->search.limit;
    return vec(limit * (2.0f * clamp(action[0], 0.0f, 1.0f) - 1.0f), limit * (2.0f * clamp(action[1], 0.0f, 1.0f) - 1.0f),
               limit * (2.0f * clamp(action[2], 0.0f, 1.0f) - 1.0f));
}

/* Update the memory with the present observations, choose a command, and write the plan. */
static vec3 decide(fledge_planner *p, const readings *r, vec3 flown, bool fresh, float *plan) {
    const search_data *q = &p->search;
    own_state own = fp_read_own(r);
    if (!fresh) {
        fp_note_command(&p->response, flown);
        own.acc = fp_predicted_acc(&p->response, p->vel, p->acc);
    }
    fp_identify(&p->response, &own, fresh);
    p->found[0] = p->response.delays[own.delay];
    p->found[1] = own.flat;
    p->found[2] = own.upright;
    p->vel = own.vel;
    p->acc = own.acc;
    p->map.fresh = fresh;
    fp_track_movers(&p->movers, q, r->rows, own.pos, fresh);
    if (p->tracker.on)
        fp_draw_memory(&p->map, &p->tracker, own.pos, p->sensor.memory);
    else
        fp_map_remember(&p->map, &p->sensor, r, &p->movers, &own, fresh);
    fp_update_cost(&p->cost, &p->map, own.pos, q->reach_z, fresh);
    own.patience = patience_of(p, own.pos, fresh);
    fp_advance(&p->response, &own);
    own.to_go = fp_to_go(&p->cost, &own, own.pos);
    fp_prepare_search(p, &own, most(q->top_speed, most(q->fast, q->slow)));
    choice chosen = fp_cheapest(p, &own);
    vec3 command = fp_hastened(&p->response, &own, fp_guarded(p, r, &own, chosen.command));
    plan[0] = clamp(command.x / q->limit, -1.0f, 1.0f);
    plan[1] = clamp(command.y / q->limit, -1.0f, 1.0f);
    plan[2] = clamp(command.z / q->limit, -1.0f, 1.0f);
    plan[3] = chosen.cost / (fabsf(chosen.cost) + USUAL_COST);
    plan[4] = (float)chosen.brief;
    fp_write_predictions(p, &own, plan);
    return command;
}

int fledge_planner_step(fledge_planner *p, const fledge_input *in, fledge_output *out) {
    if (!p) return FLEDGE_MISSING;
    p->error[0] = '\0';
    if (!in || !out) {
        snprintf(p->error, sizeof p->error, "input or output is missing.");
        return FLEDGE_MISSING;
    }
    int status = check_input(p, in);
    if (status) return status;
    bool fresh = p->fresh;
    p->fresh = false;
    readings r = {in->state, in->lidar, in->dynamic_obstacle, in->pose, in->attitude};
    if (p->tracker.on) {
        fp_track_scan(&p->tracker, &p->sensor, &r, fresh);
        r.rows = p->tracker.rows;
    }
    float plan[FLEDGE_PLAN];
    vec3 command = p->command = decide(p, &r, in->flown ? flown_command(p, in->flown) : p->command, fresh, plan);
    if (out->plan) memcpy(out->plan, plan, sizeof plan);
    if (out->movers) memmove(out->movers, r.rows, FLEDGE_MOVERS * FLEDGE_MOVER * sizeof *r.rows);
    if (out->command) {
        out->command[0] = command.x;
        out->command[1] = command.y;
        out->command[2] = command.z;
    }
    return FLEDGE_OK;
}
