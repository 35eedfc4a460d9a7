/* The guard: ORCA (J. van den Berg et al., ISRR 2009) in three dimensions, among obstacles that do not give way. A half-space of
 * allowed commands v is (n, b): n . v >= b. See src/fledge/tasks/navigation/orca/solver.py for the geometry. */
#include "planner.h"

#define EPSILON 1.0e-5f
#define BISECTIONS 14

static inline vec3 normal_of(vec4 plane) { return vec(plane.x, plane.y, plane.z); }

/* Return the half-space of allowed commands for an obstacle at `p` from the drone; `v` is `command` minus its velocity. */
static vec4 half_space(vec3 p, vec3 v, vec3 command, float radius, float horizon, float step) {
    bool inside = dot(p, p) <= radius * radius;
    float t = inside ? step : horizon;
    vec3 w = sub(v, divide(p, t));
    float size = radius / t, across = dot(w, p);
    bool ball = inside || (across < 0.0f && across * across > radius * radius * dot(w, w));
    if (!ball) {
        float a = dot(p, p), b = dot(p, v);
        float root = length(cross(p, v)) * radius / sqrtf(a - radius * radius);
        float along = (b + root) / a;
        w = sub(v, scale(p, along));
        size = radius * along;
    }
    float away = length(w), far = length(p);
    vec3 n = far > 0.0f ? divide(p, far) : vec(0.0f, 0.0f, 0.0f);
    n = vec(-n.x, -n.y, -n.z); /* at the centre of a ball any direction leads out */
    if (away > EPSILON) n = divide(w, away);
    vec3 u = scale(n, size - away);
    vec4 plane = {n.x, n.y, n.z, dot(add(command, u), n)};
    return plane;
}

/* Find the allowed point nearest to `wanted` on the line where planes a and b meet; all half-spaces are enlarged by `back`. */
static bool on_line(const vec4 *planes, int a, int b, float back, vec3 wanted, float limit, vec3 *v) {
    vec3 na = normal_of(planes[a]), nb = normal_of(planes[b]), way = cross(na, nb);
    float square = dot(way, way);
    if (square < EPSILON) return false;
    float cosine = dot(na, nb), ba = planes[a].w - back, bb = planes[b].w - back;
    vec3 point = divide(add(scale(na, ba - bb * cosine), scale(nb, bb - ba * cosine)), square);
    float rest = limit * limit - dot(point, point);
    if (rest < 0.0f) return false;
    way = divide(way, sqrtf(square));
    float high = sqrtf(rest), low = -high; /* `point` is the line's point nearest to the origin */
    for (int k = 0; k < b; k++) {
        vec3 n = normal_of(planes[k]);
        float slope = dot(n, way), lack = planes[k].w - back - dot(n, point);
        if (fabsf(slope) < EPSILON) {
            if (lack > EPSILON) return false;
        } else if (slope > 0.0f) {
            low = most(low, lack / slope);
        } else {
            high = least(high, lack / slope);
        }
    }
    if (low > high) return false;
    *v = add(point, scale(way, clamp(dot(way, sub(wanted, point)), low, high)));
    return true;
}

/* Find the allowed point nearest to `wanted` on plane a. */
static bool on_plane(const vec4 *planes, int a, float back, vec3 wanted, float limit, vec3 *v) {
    vec3 n = normal_of(planes[a]);
    float b = planes[a].w - back;
    if (fabsf(b) > limit) return false;
    float radius = sqrtf(limit * limit - b * b);
    vec3 offset = sub(wanted, scale(n, dot(wanted, n)));
    float away = length(offset);
    if (away > radius) offset = scale(offset, radius / away);
    *v = add(scale(n, b), offset);
    for (int k = 0; k < a; k++)
        if (dot(normal_of(planes[k]), *v) < planes[k].w - back - EPSILON)
            if (!on_line(planes, a, k, back, wanted, limit, v)) return false;
    return true;
}

/* Find the allowed point nearest to `wanted`, by R. Seidel's incremental linear programming (1991). */
static bool nearest_allowed(const vec4 *planes, int count, float back, vec3 wanted, float limit, vec3 *v) {
    float speed = length(wanted);
    *v = speed > limit ? scale(wanted, limit / speed) : wanted;
    for (int a = 0; a < count; a++)
        if (dot(normal_of(planes[a]), *v) < planes[a].w - back - EPSILON)
            if (!on_plane(planes, a, back, wanted, limit, v)) return false;
    return true;
}

/* Return the allowed command nearest to `wanted`; if none is allowed, the command that violates the planes least. */
static vec3 safest(const vec4 *planes, int count, vec3 wanted, float limit) {
    vec3 best = vec(0.0f, 0.0f, 0.0f), trial;
    if (nearest_allowed(planes, count, 0.0f, wanted, limit, &trial)) return trial;
    float low = 0.0f, high = 0.0f;
    for (int a = 0; a < count; a++) high = most(high, planes[a].w); /* hovering violates no plane by more than this */
    high = high + 0.01f;
    if (nearest_allowed(planes, count, high, wanted, limit, &trial)) best = trial;
    for (int k = 0; k < BISECTIONS; k++) {
        float middle = 0.5f * (low + high);
        if (nearest_allowed(planes, count, middle, wanted, limit, &trial)) {
            best = trial;
            high = middle;
        } else {
            low = middle;
        }
    }
    return best;
}

/* A mover counts as a ball around the point of its vertical axis that is nearest in height to the drone. */
static vec4 mover_plane(const guard_data *g, const mover_list *movers, int k, const own_state *own, vec3 wanted) {
    vec4 place = movers->place[k], motion = movers->motion[k];
    vec3 vel = vec(motion.x, motion.y, motion.z);
    float away = place.z + own->lead * vel.z - own->pos.z, up = away - clamp(away, -motion.w, motion.w);
    if (up == 0.0f) vel.z = 0.0f;
    vec3 p = vec(place.x + own->lead * vel.x - own->pos.x, place.y + own->lead * vel.y - own->pos.y, up);
    p = add(p, scale(sub(vel, own->vel), g->lag + own->slower));
    return half_space(p, sub(wanted, vel), wanted, g->body + place.w, g->horizon - g->lag, g->step_s);
}

/* Write the half-space for the nearest LiDAR hit at azimuth h; return false if there is no hit. */
static bool beam_plane(const guard_data *g, const sensor *seen, const readings *r, vec4 turn, int h, const own_state *own,
                       vec3 wanted, vec4 *plane) {
    float angle = own->yaw + TWO_PI * (float)h / (float)seen->azimuths, nearest = FAR, height = own->pos.z - own->moved.z;
    vec3 p = vec(0.0f, 0.0f, 0.0f);
    for (int v = 0; v < seen->elevations; v++) {
        float value = r->lidar[h * seen->elevations + v], d = seen->range_m - value;
        if (!(value > 0.0f && d < nearest)) continue;
        if (seen->ray) {
            vec3 hit = scale(rotate(turn, seen->ray[h * seen->elevations + v]), d);
            if (!(height + hit.z > GROUND_M + seen->angle_error * hypot2(hit.x, hit.y))) continue;
            p = hit;
        } else {
            if (!(height + d * seen->sine[v] > GROUND_M)) continue;
            p = scale(vec(seen->cosine[v] * cosf(angle), seen->cosine[v] * sinf(angle), seen->sine[v]), d);
        }
        nearest = d;
    }
    if (nearest == FAR) return false;
    p = sub(sub(p, own->moved), scale(own->vel, g->lag + own->slower));
    *plane = half_space(p, wanted, wanted, g->body, g->near_horizon - g->lag, g->step_s);
    return plane->x != 0.0f || plane->y != 0.0f || plane->z != 0.0f;
}

/* Return the command outside all velocity obstacles that is nearest to `command`; if the guard is off, `command`. */
vec3 fp_guarded(fledge_planner *p, const readings *r, const own_state *own, vec3 command) {
    const guard_data *g = &p->guard;
    const sensor *seen = &p->sensor;
    int count = 0;
    if (!g->on) return command;
    for (int k = 0; k < NEAREST; k++)
        if (p->movers.place[k].x < FAR) g->planes[count++] = mover_plane(g, &p->movers, k, own, command);
    vec4 turn = fp_sensor_turn(seen, r, own->yaw);
    for (int h = 0; h < seen->azimuths; h++)
        if (beam_plane(g, seen, r, turn, h, own, command, &g->planes[count])) count++;
    float coasting = own->pos.z + (g->lag + own->slower) * own->vel.z, ahead = g->near_horizon - g->lag;
    vec4 down = {0.0f, 0.0f, 1.0f, least((g->floor - coasting) / ahead, 0.5f)};
    vec4 up = {0.0f, 0.0f, -1.0f, least((coasting - g->ceiling) / ahead, 0.5f)};
    g->planes[count++] = down;
    g->planes[count++] = up;
    return safest(g->planes, count, command, most(g->limit, length(command)));
}
