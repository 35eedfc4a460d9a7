/* The tracker: movers from the drone's own LiDAR. Tracks are Kalman filters of constant velocity, one for each cluster that is
 * seen again and again. A scan that equals the last one is a scan that is held until the next arrives: then tracks are only
 * predicted. */
#include <float.h>
#include <string.h>

#include "planner.h"

#define GATE_M 0.5f          /* largest distance between a track's prediction and its cluster */
#define JERKINESS 1.5f       /* m²/s³: spectral density of the accelerations of movers */
#define RANGE_SIGMA_M 0.03f  /* standard deviation of a cluster's position, plus a share of the spacing of rays */
#define PITCH_SIGMA 0.25f
#define FIRST_SPEED 0.7f     /* m/s: standard deviation of an unknown velocity */
#define PUSH 0.42f           /* distance of a mover's centre behind its visible surface, as a share of its width */
#define NARROWEST_M 0.25f
#define WIDEST_M 1.1f
#define GROW 0.4f            /* shares by which a new measurement changes the width */
#define SHRINK 0.1f
#define UPRIGHT 0.5f         /* shares of the horizontal filter's gains that apply to heights and vertical speeds */
#define UPRIGHT_SPEED 0.2f
#define BOX_SHARE 0.3f       /* share by which a new scan changes the evidence for a box, and that it came into free cells */
#define CAME_SHARE 0.3f
#define REST_SPEED 0.2f
#define FASTEST 2.0f
/* A track moves if it was seen in so many scans, is faster than this and this far from its first position ... */
#define SCANS 3
#define SPEED 0.3f
#define MOVED_M 0.2f
#define CAME 0.08f           /* ... if at least this share of it came into free cells */
#define SCANS_ELSE 12        /* ... or else */
#define SPEED_ELSE 0.5f
#define MOVED_ELSE_M 1.3f
#define COAST_S 0.8f         /* time for which an unseen track lives, if it moves, or not */
#define WAIT_S 0.3f
#define BOX 0.5f             /* evidence from which on a track counts as a box */

static void predict_tracks(tracker_data *t, float seconds) {
    float q = JERKINESS * seconds;
    for (int k = 0; k < TRACKS; k++) {
        track *at = &t->tracks[k];
        if (at->seen == 0) continue;
        vec3 p = at->cov;
        at->pos = add(at->pos, scale(at->vel, seconds));
        at->cov = vec(p.x + seconds * (2.0f * p.y + seconds * p.z) + q * seconds * seconds / 3.0f,
                      p.y + seconds * p.z + 0.5f * q * seconds, p.z + q);
    }
}

/* Return the centre of an obstacle of this width whose visible side is a cluster, seen from `own`. */
static vec2 centre_of(const cluster *c, float width, vec3 own) {
    float x = c->x - own.x, y = c->y - own.y;
    float push = PUSH * clamp(width, NARROWEST_M, WIDEST_M) / most(hypot2(x, y), 1.0e-3f);
    vec2 centre = {c->x + push * x, c->y + push * y};
    return centre;
}

/* Match tracks and clusters, the nearest pair first, up to GATE_M apart. */
static void assign(tracker_data *t, int count, vec3 own) {
    for (int k = 0; k < TRACKS; k++) t->match[k] = -1;
    for (int c = 0; c < count; c++) t->clusters[c].taken = false;
    for (int pair = 0; pair < TRACKS; pair++) {
        float best = GATE_M;
        int best_k = -1, best_c = -1;
        for (int k = 0; k < TRACKS; k++) {
            if (t->tracks[k].seen == 0 || t->match[k] >= 0) continue;
            for (int c = 0; c < count; c++) {
                if (t->clusters[c].taken) continue;
                vec2 at = centre_of(&t->clusters[c], t->tracks[k].width, own);
                float away = hypot2(at.x - t->tracks[k].pos.x, at.y - t->tracks[k].pos.y);
                if (away < best) {
                    best = away;
                    best_k = k;
                    best_c = c;
                }
            }
        }
        if (best_k < 0) return;
        t->match[best_k] = best_c;
        t->clusters[best_c].taken = true;
    }
}

static float sigma_at(const tracker_data *t, float flat) { return RANGE_SIGMA_M + PITCH_SIGMA * t->pitch * flat; }

/* Return 1 if a track that was seen in so many scans moves; `before` is the last answer. */
static int moves(const track *at, int scans, int before) {
    float speed = hypot2(at->vel.x, at->vel.y);
    if (speed > FASTEST || speed < REST_SPEED) return 0;
    if (before == 1) return 1;
    float away = hypot2(at->pos.x - at->born.x, at->pos.y - at->born.y);
    if (at->came >= CAME && scans >= SCANS && speed > SPEED && away > MOVED_M) return 1;
    return scans >= SCANS_ELSE && speed > SPEED_ELSE && away > MOVED_ELSE_M;
}

static void update_track(const tracker_data *t, track *at, const cluster *c, vec3 own, int now) {
    float rate = c->width > at->width ? GROW : SHRINK;
    at->width = at->width + rate * (c->width - at->width);
    at->box = at->box + BOX_SHARE * (c->box - at->box);
    at->came = at->came + CAME_SHARE * (c->came - at->came);
    vec3 p = at->cov;
    float sigma = sigma_at(t, c->flat), s = p.x + sigma * sigma, g = p.x / s, h = p.y / s;
    vec2 centre = centre_of(c, at->width, own);
    float dx = centre.x - at->pos.x, dy = centre.y - at->pos.y, dz = c->box > 0.0f ? c->z - at->pos.z : 0.0f;
    at->pos = add(at->pos, scale(vec(dx, dy, UPRIGHT * dz), g));
    at->vel = add(at->vel, scale(vec(dx, dy, UPRIGHT_SPEED * dz), h));
    at->cov = vec((1.0f - g) * p.x, (1.0f - g) * p.y, p.z - h * p.y);
    at->seen = at->seen + 1;
    at->last = now;
    at->moves = moves(at, at->seen, at->moves);
}

static void begin_track(const tracker_data *t, track *at, const cluster *c, vec3 own, int now) {
    vec2 centre = centre_of(c, c->width, own);
    float sigma = sigma_at(t, c->flat);
    at->pos = vec(centre.x, centre.y, c->box > 0.0f ? c->z : own.z);
    at->vel = vec(0.0f, 0.0f, 0.0f);
    at->cov = vec(sigma * sigma, 0.0f, FIRST_SPEED * FIRST_SPEED);
    at->born = centre;
    at->width = c->width;
    at->box = c->box;
    at->came = c->came;
    at->seen = 1;
    at->last = now;
    at->moves = 0;
}

/* Update the tracks with `count` clusters; end those unseen for long, begin new ones. */
static void update_tracks(tracker_data *t, int count, vec3 own, int now) {
    assign(t, count, own);
    for (int k = 0; k < TRACKS; k++) {
        track *at = &t->tracks[k];
        if (t->match[k] >= 0) {
            update_track(t, at, &t->clusters[t->match[k]], own, now);
        } else if (at->seen > 0) {
            float unseen = (float)(now - at->last) * t->decision_s;
            if (unseen > (at->moves == 1 ? COAST_S : WAIT_S)) at->seen = at->last = at->moves = 0;
        }
    }
    int k = 0;
    for (int c = 0; c < count; c++) {
        if (t->clusters[c].taken) continue;
        while (k < TRACKS && t->tracks[k].seen > 0) k++;
        if (k < TRACKS) begin_track(t, &t->tracks[k], &t->clusters[c], own, now);
    }
}

/* Write a track, predicted by `seconds`, to a row of dynamic_obstacle. */
static void write_row(float *row, const track *at, const own_state *own, float seconds) {
    vec3 vel = at->vel, away = sub(add(at->pos, scale(vel, seconds)), own->pos);
    bool box = at->box > BOX;
    if (!box) away.z = vel.z = 0.0f;
    vec3 unit = divide(away, most(length(away), 1.0e-6f));
    row[0] = unit.x;
    row[1] = unit.y;
    row[2] = unit.z;
    row[3] = hypot2(away.x, away.y);
    row[4] = away.z;
    row[5] = vel.x;
    row[6] = vel.y;
    row[7] = vel.z;
    row[8] = 4.0f * clamp(at->width, NARROWEST_M, WIDEST_M) - 1.0f;
    row[9] = box ? 1.0f : 0.0f;
}

/* Write the nearest moving tracks, predicted by `seconds`, to the rows of dynamic_obstacle, the nearest first. */
static void write_rows(tracker_data *t, const own_state *own, float seconds) {
    float last = -1.0f;
    int last_k = -1;
    memset(t->rows, 0, sizeof t->rows);
    for (int row = 0; row < NEAREST; row++) {
        float best = FLT_MAX;
        int best_k = -1;
        for (int k = 0; k < TRACKS; k++) {
            if (!t->tracks[k].moves) continue;
            vec3 away = sub(add(t->tracks[k].pos, scale(t->tracks[k].vel, seconds)), own->pos);
            float d = away.x * away.x + away.y * away.y;
            bool after = d > last || (d == last && k > last_k); /* rows before have the nearer tracks */
            if (after && d < best) {
                best = d;
                best_k = k;
            }
        }
        if (best_k < 0) return;
        write_row(t->rows + row * FLEDGE_MOVER, &t->tracks[best_k], own, seconds);
        last = best;
        last_k = best_k;
    }
}

static bool take_scan(tracker_data *t, const float *lidar, size_t rays, bool fresh) {
    if (!fresh) {
        size_t n = 0;
        while (n < rays && t->scan[n] == lidar[n]) n++;
        if (n == rays) return false;
    }
    memcpy(t->scan, lidar, rays * sizeof *lidar);
    return true;
}

/* Update memory and tracks with the present scan, and write the rows of dynamic_obstacle. */
void fp_track_scan(tracker_data *t, const sensor *seen, const readings *r, bool fresh) {
    if (fresh) {
        size_t cells = (size_t)t->size * (size_t)t->size;
        memset(t->grid, 0, cells * sizeof *t->grid);
        memset(t->free, 0, cells * sizeof *t->free);
        for (int k = 0; k < TRACKS; k++) t->tracks[k].seen = t->tracks[k].last = t->tracks[k].moves = 0;
        t->clock = t->scanned = 0;
    } else {
        t->clock++;
    }
    own_state own = fp_read_own(r);
    if (take_scan(t, r->lidar, seen->rays, fresh)) {
        vec3 place = sub(own.pos, scale(own.vel, t->late_s));
        predict_tracks(t, (float)(t->clock - t->scanned) * t->decision_s);
        t->scanned = t->clock;
        update_tracks(t, fp_find_clusters(t, seen, r, place, own.yaw, t->clock), place, t->clock);
    }
    write_rows(t, &own, (float)(t->clock - t->scanned) * t->decision_s + t->late_s);
}
