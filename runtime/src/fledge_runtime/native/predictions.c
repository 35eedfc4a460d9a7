/* The predictions in the observation `plan`: hovering, and level commands in 32 headings at two speeds. Predictions use every
 * second prediction step. */
#include "gaps.h"

#define STRIDE 2
#define HOVER 5
#define AROUND 7
#define EACH 4

/* Return the predicted time to a collision under a level command, as a share of the horizon, and write the nearness cost until
 * then. */
static float time_to_collision(const fledge_planner *p, const own_state *own, const vec3 *base, float vx, float vy,
                               float *near) {
    const search_data *q = &p->search;
    int count = q->steps / STRIDE;
    *near = 0.0f;
    for (int n = 0; n < count; n++) {
        int k = n * STRIDE + STRIDE - 1;
        float along = q->flat[2 * own->flat * q->steps + k].z;
        vec3 at = vec(base[n].x + along * vx, base[n].y + along * vy, base[n].z);
        gaps g = gaps_at(p, own, at, k);
        if (collides(g)) return (float)n / (float)count;
        *near = *near + (float)STRIDE * nearness(q, g, k, 1.0f);
    }
    return 1.0f;
}

void fp_write_predictions(const fledge_planner *p, const own_state *own, float *plan) {
    const search_data *q = &p->search;
    vec3 base[MAX_STEPS / STRIDE], still = vec(0.0f, 0.0f, 0.0f); /* positions when hovering */
    float near, slow_near, turn = (float)(6.283185307179586 / HEADINGS);
    for (int n = 0; n < q->steps / STRIDE; n++) base[n] = fp_position_at(q, own, still, 0, n * STRIDE + STRIDE - 1);
    plan[HOVER] = time_to_collision(p, own, base, 0.0f, 0.0f, &near);
    plan[HOVER + 1] = near / (near + 1.0f);
    for (int h = 0; h < HEADINGS; h++) {
        float x = cosf(turn * (float)h), y = sinf(turn * (float)h), *row = plan + AROUND + EACH * h;
        row[1] = time_to_collision(p, own, base, q->slow * x, q->slow * y, &slow_near);
        row[0] = time_to_collision(p, own, base, q->fast * x, q->fast * y, &near);
        vec3 end = fp_position_at(q, own, vec(q->fast * x, q->fast * y, 0.0f), q->kinds - 1, q->steps - 1);
        row[2] = near / (near + 1.0f);
        row[3] = clamp((own->to_go - fp_to_go(&p->cost, own, end)) / q->brief_m, -1.0f, 1.0f);
    }
}
