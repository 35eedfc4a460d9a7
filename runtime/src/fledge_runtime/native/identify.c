/* How the drone responds to commands, identified from its last seconds of flight: every delay with every horizontal and every
 * vertical rate predicts the velocity at the next decision, and the least sum of squared errors wins. See
 * src/fledge/tasks/navigation/planner/identify.py. */
#include "planner.h"

#define FOLLOW 0.3f
#define DOUBT 0.02f /* m²/s²: initial score of all hypotheses but the given response */

/* Return horizontal velocity and acceleration (x, y each) after one decision under a command. */
static vec4 flat_step(const response_data *r, int f, vec4 x, vec3 command) {
    vec3 v = r->flat[f][1], a = r->flat[f][2];
    vec4 next = {v.x * x.x + v.y * x.z + v.z * command.x, v.x * x.y + v.y * x.w + v.z * command.y,
                 a.x * x.x + a.y * x.z + a.z * command.x, a.x * x.y + a.y * x.w + a.z * command.y};
    return next;
}

/* Return vertical velocity and acceleration after one decision under a command. */
static vec2 up_step(const response_data *r, int u, vec2 x, vec3 command) {
    vec3 v = r->upright[u][1], a = r->upright[u][2];
    vec2 next = {v.x * x.x + v.y * x.y + v.z * command.z, a.x * x.x + a.y * x.y + a.z * command.z};
    return next;
}

/* Begin a flight: no command was flown, and the given response is the likeliest. */
static void forget_flight(response_data *r, const own_state *own) {
    for (int n = 0; n <= r->longest; n++) r->sent[n] = vec(0.0f, 0.0f, 0.0f);
    for (int h = 0; h < r->num_delays * r->num_flat; h++) {
        vec4 x = {own->vel.x, own->vel.y, 0.0f, 0.0f};
        r->flat_state[h] = x;
        r->flat_score[h] = h ? DOUBT : 0.0f;
    }
    for (int h = 0; h < r->num_delays * r->num_up; h++) {
        vec2 z = {own->vel.z, 0.0f};
        r->up_state[h] = z;
        r->up_score[h] = h ? DOUBT : 0.0f;
    }
}

void fp_note_command(response_data *r, vec3 command) {
    for (int n = r->longest; n > 0; n--) r->sent[n] = r->sent[n - 1];
    r->sent[0] = command;
}

vec3 fp_predicted_acc(const response_data *r, vec3 vel, vec3 acc) {
    vec3 a = r->flat[0][2], u = r->upright[0][2], command = r->sent[r->delays[0]];
    return vec(a.x * vel.x + a.y * acc.x + a.z * command.x, a.x * vel.y + a.y * acc.y + a.z * command.y,
               u.x * vel.z + u.y * acc.z + u.z * command.z);
}

/* Advance all hypotheses by one decision, and compare them with the measured velocity. */
static void compare(response_data *r, const own_state *own) {
    for (int m = 0; m < r->num_delays; m++) {
        vec3 command = r->sent[r->delays[m]];
        for (int f = 0; f < r->num_flat; f++) {
            int h = m * r->num_flat + f;
            vec4 x = flat_step(r, f, r->flat_state[h], command);
            float ex = own->vel.x - x.x, ey = own->vel.y - x.y;
            vec4 next = {x.x + FOLLOW * ex, x.y + FOLLOW * ey, x.z, x.w};
            r->flat_state[h] = next;
            r->flat_score[h] = r->keep * r->flat_score[h] + (ex * ex + ey * ey);
        }
        for (int u = 0; u < r->num_up; u++) {
            int h = m * r->num_up + u;
            vec2 z = up_step(r, u, r->up_state[h], command);
            float ez = own->vel.z - z.x;
            vec2 next = {z.x + FOLLOW * ez, z.y};
            r->up_state[h] = next;
            r->up_score[h] = r->keep * r->up_score[h] + ez * ez;
        }
    }
}

/* Return the index of the least of some scores, the first of equals. */
static int lowest(const float *score, int count) {
    int best = 0;
    for (int k = 1; k < count; k++)
        if (score[k] < score[best]) best = k;
    return best;
}

void fp_identify(response_data *r, own_state *own, bool fresh) {
    if (fresh) forget_flight(r, own);
    if (r->on) {
        if (!fresh) compare(r, own);
        float least_score = 1.0e30f;
        for (int m = 0; m < r->num_delays; m++) {
            const float *flat_score = r->flat_score + m * r->num_flat, *up_score = r->up_score + m * r->num_up;
            int f = lowest(flat_score, r->num_flat), u = lowest(up_score, r->num_up);
            float score = flat_score[f] + up_score[u];
            if (score < least_score) {
                least_score = score;
                own->delay = m;
                own->flat = f;
                own->upright = u;
            }
        }
        vec4 flat = r->flat_state[own->delay * r->num_flat + own->flat];
        vec2 up = r->up_state[own->delay * r->num_up + own->upright];
        own->acc = vec(flat.z, flat.w, up.y);
    }
    own->slower = r->slower[own->flat];
}

vec3 fp_hastened(const response_data *r, const own_state *own, vec3 command) {
    if (!r->hasten) return command;
    vec2 f = r->flat_shape[own->flat], u = r->up_shape[own->upright];
    vec3 v = own->vel, a = own->acc;
    vec3 c = add(v, vec(f.x * (command.x - v.x) + f.y * a.x, f.x * (command.y - v.y) + f.y * a.y, u.x * (command.z - v.z) + u.y * a.z));
    return vec(clamp(c.x, -r->limit, r->limit), clamp(c.y, -r->limit, r->limit), clamp(c.z, -r->limit, r->limit));
}

void fp_advance(const response_data *r, own_state *own) {
    int n = r->delays[own->delay];
    vec3 before = own->pos, p = r->flat[own->flat][0], q = r->upright[own->upright][0];
    own->lead = (float)n * r->decision_s;
    while (n > 0) {
        vec3 command = r->sent[--n], v = own->vel, a = own->acc;
        own->pos = add(own->pos, vec(p.x * v.x + p.y * a.x + p.z * command.x, p.x * v.y + p.y * a.y + p.z * command.y,
                                     q.x * v.z + q.y * a.z + q.z * command.z));
        vec4 x = {v.x, v.y, a.x, a.y};
        vec2 z = {v.z, a.z};
        x = flat_step(r, own->flat, x, command);
        z = up_step(r, own->upright, z, command);
        own->vel = vec(x.x, x.y, z.x);
        own->acc = vec(x.z, x.w, z.y);
    }
    own->moved = sub(own->pos, before);
}
