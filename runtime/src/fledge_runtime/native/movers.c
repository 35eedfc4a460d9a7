/* The drone's own state and the moving obstacles, from the observations. */
#include "planner.h"

#define BOX_M 1.0f
#define SAME_M 0.6f /* a mover this near to where an unseen one should be is the same */

own_state fp_read_own(const readings *r) {
    own_state own = {0};
    const float *s = r->state;
    float away = hypot2(s[0], s[1]);
    own.patience = 1.0f;
    own.ahead.x = away > 1.0e-6f ? s[0] / away : 1.0f;
    own.ahead.y = away > 1.0e-6f ? s[1] / away : 0.0f;
    own.yaw = r->pose[1];
    own.pos = vec(-s[3] * own.ahead.x, -s[3] * own.ahead.y, r->pose[0]);
    own.goal = vec(0.0f, 0.0f, r->pose[0] + s[4]);
    own.vel = vec(s[5], s[6], s[7]);
    return own;
}

static void read_mover(mover_list *movers, const search_data *q, const float *row, int k, vec3 pos) {
    if (row[0] == 0.0f && row[1] == 0.0f && row[2] == 0.0f) {
        vec4 nowhere = {FAR, FAR, 0.0f, 0.0f}, still = {0.0f, 0.0f, 0.0f, 0.0f};
        movers->place[k] = nowhere;
        movers->motion[k] = still;
        return;
    }
    float scaled = row[3] / most(hypot2(row[0], row[1]), 1.0e-6f);
    float half = row[9] > 0.5f ? 0.5f * BOX_M : FAR;
    float half_width = 0.125f * (row[8] + 1.0f);
    if (half < FAR) half_width = q->box_width * half_width;
    vec3 vel = vec(row[5], row[6], row[7]);
    vec3 at = add(add(pos, vec(scaled * row[0], scaled * row[1], row[4])), scale(vel, q->mover_late_s));
    vec4 place = {at.x, at.y, at.z, half_width}, motion = {vel.x, vel.y, vel.z, half};
    movers->place[k] = place;
    movers->motion[k] = motion;
}

static bool is_seen(const mover_list *movers, vec3 at) {
    for (int k = 0; k < NEAREST; k++) {
        vec4 p = movers->place[k];
        bool tall = movers->motion[k].w >= FAR;
        if (p.x < FAR && movers->unseen[k] == 0.0f && (tall || fabsf(p.z - at.z) < SAME_M))
            if ((p.x - at.x) * (p.x - at.x) + (p.y - at.y) * (p.y - at.y) < SAME_M * SAME_M) return true;
    }
    return false;
}

/* Read the rows of dynamic_obstacle, and fill empty rows with movers that were seen up to `coast_s` ago. */
void fp_track_movers(mover_list *movers, const search_data *q, const float *rows, vec3 pos, bool fresh) {
    mover_list old = *movers;
    for (int k = 0; k < NEAREST; k++) {
        old.unseen[k] = movers->unseen[k] + q->decision_s;
        movers->unseen[k] = 0.0f;
        read_mover(movers, q, rows + FLEDGE_MOVER * k, k, pos);
    }
    if (fresh || q->coast_s == 0.0f) return;
    int row = 0;
    for (int k = 0; k < NEAREST; k++) {
        vec4 p = old.place[k], v = old.motion[k];
        if (!(p.x < FAR && old.unseen[k] <= q->coast_s)) continue;
        vec3 at = vec(p.x + q->decision_s * v.x, p.y + q->decision_s * v.y, p.z + q->decision_s * v.z);
        if (is_seen(movers, at)) continue;
        while (row < NEAREST && movers->place[row].x < FAR) row++;
        if (row == NEAREST) return;
        vec4 place = {at.x, at.y, at.z, p.w};
        movers->place[row] = place;
        movers->motion[row] = v;
        movers->unseen[row] = old.unseen[k];
    }
}
