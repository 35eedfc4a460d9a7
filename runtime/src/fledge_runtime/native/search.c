/* The search: predict candidate commands on the local map and among the movers, and choose the cheapest; the cost of a
 * candidate is described in docs/worlds/planner.md. Candidates are dropped as soon as their cost must exceed the lowest so
 * far, which changes no result: the first of equally cheap candidates wins. */
#include "gaps.h"

#define REACHED 1000.0f   /* m: reduction of the cost if the goal is reached */
#define TOUCH 0.02f       /* m */
#define PROBE 5           /* every so many prediction steps are examined first */
#define ROUNDING 1.0e-3f  /* m: larger than rounding errors of costs */
#define USUAL_SPEED 1.5f  /* m/s: faster movers get a further margin */
#define EVERY_MOVER 0x54321

vec3 fp_position_at(const search_data *q, const own_state *own, vec3 command, int brief, int k) {
    vec3 f = q->flat[(2 * own->flat + brief) * q->steps + k], u = q->upright[(2 * own->upright + brief) * q->steps + k];
    return vec(own->pos.x + f.x * own->vel.x + f.y * own->acc.x + f.z * command.x,
               own->pos.y + f.x * own->vel.y + f.y * own->acc.y + f.z * command.y,
               own->pos.z + u.x * own->vel.z + u.y * own->acc.z + u.z * command.z);
}

float fp_to_go(const cost_grid *w, const own_state *own, vec3 at) {
    float flat = fp_cost_from(w, at.x, at.y), up = own->goal.z - at.z;
    return sqrtf(flat * flat + up * up);
}

/* List the movers that can have an effect at each prediction step, under any command up to a speed. */
static void list_near_movers(const search_data *q, mover_list *movers, const own_state *own, float top_speed) {
    float away[NEAREST];
    const vec3 *flat = q->flat + 2 * own->flat * q->steps;
    for (int n = 0; n < NEAREST; n++) away[n] = sqrtf(own->reach[n]);
    for (int k = 0; k < q->steps; k++) {
        vec3 f = flat[k];
        float x = own->pos.x + f.x * own->vel.x + f.y * own->acc.x, y = own->pos.y + f.x * own->vel.y + f.y * own->acc.y;
        float reach = top_speed * most(fabsf(f.z), fabsf(flat[q->steps + k].z)) + ROUNDING;
        float t = own->lead + (float)(k + 1) * q->step_s;
        int listed = 0;
        for (int n = NEAREST - 1; n >= 0; n--) {
            vec4 p = movers->place[n], v = movers->motion[n];
            float dx = p.x + t * v.x - x, dy = p.y + t * v.y - y;
            if (away[n] > 0.0f && dx * dx + dy * dy < (away[n] + reach) * (away[n] + reach)) listed = listed << 4 | (n + 1);
        }
        movers->near[k] = listed;
    }
}

/* Complete the drone's state: margins of movers, and the distances below which it collides. Each of these is the drone's
 * radius plus the safety distance or, if the drone is already nearer, its present distance. */
void fp_prepare_search(fledge_planner *p, own_state *own, float top_speed) {
    const search_data *q = &p->search;
    for (int k = 0; k < NEAREST; k++) {
        vec4 at = p->movers.place[k], v = p->movers.motion[k];
        float speed = sqrtf(v.x * v.x + v.y * v.y + v.z * v.z);
        own->further[k] = q->fast_mover_s * most(speed - USUAL_SPEED, 0.0f);
        float away = at.w + q->body + q->mover_margin + own->further[k] + 2.0f * TOUCH;
        own->reach[k] = at.x < FAR ? away * away : 0.0f;
    }
    list_near_movers(q, &p->movers, own, top_speed);
    float columns = q->body - (1.0f - own->patience) * q->skin, mover, less;
    nearest_mover(&p->movers, own, own->pos, own->lead, EVERY_MOVER, &mover, &less);
    float gap = column_gap(q, &p->map, own->pos.x, own->pos.y, bands_at(q, own->pos.z)), away = mover - TOUCH;
    if (q->depth_cost > 0.0f) {
        gap = most(gap, q->body - q->skin);
        away = most(away, q->body - q->skin);
    }
    own->body_columns = least(columns, gap);
    own->body_movers = least(q->body, away);
}

/* Return the first prediction step at which a command reaches the goal if it meets no obstacle, or else T. */
static int goal_step(const search_data *q, const own_state *own, vec3 command, int brief) {
    for (int k = 0; k < q->steps; k++) {
        vec3 away = sub(own->goal, fp_position_at(q, own, command, brief, k));
        if (dot(away, away) < q->goal_radius * q->goal_radius) return k;
    }
    return q->steps;
}

/* Return whether every PROBE-th prediction step shows that a command costs more than `enough`. */
static bool is_too_costly(const fledge_planner *p, const own_state *own, vec3 command, int brief, float cost, float enough) {
    for (int k = p->search.steps - 1; k >= 0; k -= PROBE) {
        gaps g = gaps_at(p, own, fp_position_at(&p->search, own, command, brief, k), k);
        cost = cost + nearness(&p->search, g, k, own->patience);
        if (collides(g) || cost > enough + ROUNDING) return true;
    }
    return false;
}

/* Return the largest cost of a collision from prediction step `first` on, by its time and its depth. */
static float deepest(const fledge_planner *p, const own_state *own, vec3 command, int brief, int first) {
    const search_data *q = &p->search;
    float cost = most(q->crash_cost - q->crash_relief * (float)(first + 1) * q->step_s, 0.0f);
    for (int k = first; k < q->steps; k++) {
        gaps g = gaps_at(p, own, fp_position_at(q, own, command, brief, k), k);
        float depth = -least(g.columns, g.movers);
        if (depth > 0.0f) cost = cost + q->depth_cost * depth * expf(-(float)(k + 1) * q->step_s);
    }
    return cost;
}

/* Return the cost of a command, or a lower bound of at least `enough`; `cost` is the distance that is lost, and `goal` the
 * prediction step at which the command reaches the goal. */
static float cost_of(const fledge_planner *p, const own_state *own, vec3 command, int brief, int goal, float cost,
                     float enough) {
    const search_data *q = &p->search;
    if (goal == q->steps && (q->depth_cost > 0.0f ? 0.0f : cost) + q->least_crash > enough + ROUNDING)
        if (is_too_costly(p, own, command, brief, cost, enough)) return FAR;
    for (int k = 0; k < q->steps; k++) {
        if (cost >= enough && goal == q->steps) return cost;
        float t = (float)(k + 1) * q->step_s;
        gaps g = gaps_at(p, own, fp_position_at(q, own, command, brief, k), k);
        if (collides(g) && q->depth_cost > 0.0f) return most(deepest(p, own, command, brief, k), cost);
        if (collides(g)) return most(q->crash_cost - q->crash_relief * t, 0.0f) + cost;
        if (k == goal) return t - REACHED;
        cost = cost + nearness(q, g, k, own->patience);
    }
    return cost;
}

/* Return the cheapest command, held or brief. */
choice fp_cheapest(const fledge_planner *p, const own_state *own) {
    const search_data *q = &p->search;
    choice best = {{0.0f, 0.0f, 0.0f}, FAR, 0};
    int steps = q->steps;
    vec3 ahead = vec(own->ahead.x, own->ahead.y, 0.0f), widest = q->furthest;
    /* the least that a command must contribute to reach the goal within the horizon */
    float needed = hypot2(own->pos.x, own->pos.y) - q->goal_radius - ROUNDING;
    needed = needed - widest.x * fabsf(dot(own->vel, ahead)) - widest.y * fabsf(dot(own->acc, ahead));
    for (int brief = 0; brief < q->kinds; brief++) {
        vec3 rest = fp_position_at(q, own, vec(0.0f, 0.0f, 0.0f), brief, steps - 1);
        float along = q->flat[(2 * own->flat + brief + 1) * steps - 1].z, up = q->upright[(2 * own->upright + brief + 1) * steps - 1].z;
        for (int c = 0; c < q->count; c++) {
            vec3 v = q->commands[c];
            vec3 command = vec(ahead.x * v.x - ahead.y * v.y, ahead.y * v.x + ahead.x * v.y, v.z);
            vec3 end = add(rest, vec(along * command.x, along * command.y, up * command.z));
            bool may_reach = widest.z * v.x >= needed;
            vec3 away = sub(own->goal, end); /* no path is shorter than a straight line */
            float longest = most(best.cost + own->to_go - q->gain + ROUNDING, 0.0f);
            if (!may_reach && !(dot(away, away) < longest * longest)) continue;
            float cost = fp_to_go(&p->cost, own, end) - own->to_go + q->gain; /* lost against full speed to the goal */
            int goal = may_reach ? goal_step(q, own, command, brief) : steps;
            if (!((goal < steps ? (float)(goal + 1) * q->step_s - REACHED : cost) < best.cost)) continue;
            cost = cost_of(p, own, command, brief, goal, cost, best.cost);
            if (cost < best.cost) {
                best.command = command;
                best.cost = cost;
                best.brief = brief;
            }
        }
    }
    return best;
}
