/* The tracker's memory of past hits in cells of 0.1 m, which tells static obstacles from moving ones. A stay is a time in which a
 * cell is hit again and again. A cell that a ray passed through shortly before its stay was free: a mover came into it. Other
 * cells are static when one of their neighbours has been hit for long enough; a static cell stays so until rays pass it. */
#include <stdlib.h>

#include "planner.h"

#define BESIDE_CELLS 2
#define BANDS_MASK 0xFFFF
#define CAME_BIT 0x10000
#define STATIC_BIT 0x20000
#define PASSED 0x40000 /* counts the rays that passed since the last hit, in the bits from here on */
#define ERASE 3        /* such rays that erase a static cell */
#define NUMBER_OFFSET 0x4000u
#define NUMBER_MASK 0x7FFFu
#define SLACK_M 0.2f  /* hits this near to a moving obstacle's surface belong to it */
#define MARGIN_M 0.15f /* rays count as passing up to this far from their hit */
#define NEAR_CELLS 3  /* cells around the drone that are not marked */

/* Return the number of a cell. Numbers repeat every 3.2 km, far beyond the grid. */
static int32_t number_of(int ix, int iy) {
    return (int32_t)((((uint32_t)ix + NUMBER_OFFSET) & NUMBER_MASK) << 15 | (((uint32_t)iy + NUMBER_OFFSET) & NUMBER_MASK));
}

/* Return the coordinate nearest to `near` whose last 15 bits, after adding the offset, are those of `number`. */
static int coordinate(uint32_t number, int near) {
    uint32_t ahead = (number - NUMBER_OFFSET - (uint32_t)near) & NUMBER_MASK;
    return near + (int)ahead - (ahead > NUMBER_MASK / 2 ? (int)NUMBER_MASK + 1 : 0);
}

static bool is_beside_static(const tracker_data *t, int ix, int iy, int now) {
    for (int x = ix - BESIDE_CELLS; x <= ix + BESIDE_CELLS; x++)
        for (int y = iy - BESIDE_CELLS; y <= iy + BESIDE_CELLS; y++) {
            const grid_cell *cell = &t->grid[place_of(t->size, x, y)];
            if (cell->number != number_of(x, y)) continue;
            if (cell->bits & STATIC_BIT) return true;
            if (!(cell->bits & CAME_BIT) && now - cell->last <= t->gap && now - cell->first >= t->confirm) return true;
        }
    return false;
}

static bool is_free(const tracker_data *t, int ix, int iy, int band, int now) {
    const free_mark *mark = &t->free[place_of(t->size, ix, iy)];
    return mark->number == number_of(ix, iy) && now - mark->stamp / BANDS <= t->recent && mark->stamp % BANDS <= band;
}

/* Return whether rays recently passed through a cell and its eight neighbours, at a height band. */
static bool was_free(const tracker_data *t, int ix, int iy, int band, int now) {
    for (int n = 0; n < 9; n++)
        if (!is_free(t, ix + n / 3 - 1, iy + n % 3 - 1, band, now)) return false;
    return true;
}

/* Return whether a point lies on an obstacle that moves, where it was `ago_s` before the last scan. */
static bool is_on_track(const tracker_data *t, float x, float y, float ago_s) {
    for (int k = 0; k < TRACKS; k++) {
        const track *at = &t->tracks[k];
        if (!at->moves) continue;
        float dx = x - at->pos.x + ago_s * at->vel.x, dy = y - at->pos.y + ago_s * at->vel.y;
        float reach = 0.5f * at->width + SLACK_M;
        if (dx * dx + dy * dy < reach * reach) return true;
    }
    return false;
}

/* Store a hit, and return what it is; hits on obstacles that move are not stored. */
int fp_stamp_hit(tracker_data *t, float x, float y, float z, uint32_t bands, int now) {
    int ix = to_cell(x), iy = to_cell(y), kind = HIT_STATIC;
    const grid_cell empty = {0, 0, 0, 0};
    grid_cell *at = &t->grid[place_of(t->size, ix, iy)], cell = *at;
    int32_t bits = (cell.bits & (BANDS_MASK | CAME_BIT | STATIC_BIT)) | (int32_t)bands;
    if (cell.number != number_of(ix, iy) || (!(cell.bits & STATIC_BIT) && now - cell.last > t->gap)) {
        cell.number = number_of(ix, iy);
        cell.first = now;
        bits = (int32_t)bands;
        if (was_free(t, ix, iy, (int)(z / BAND_M), now)) bits |= CAME_BIT;
    }
    if (now - cell.first < t->overrule && is_on_track(t, x, y, 0.0f)) {
        if (cell.number == at->number) *at = empty;
        return HIT_CAME;
    }
    if (!(bits & STATIC_BIT)) {
        if (bits & CAME_BIT)
            kind = now - cell.first < t->confirm_late ? HIT_CAME : HIT_STATIC;
        else if (!is_beside_static(t, ix, iy, now))
            kind = HIT_KNOWN;
        if (kind == HIT_STATIC) bits = (bits | STATIC_BIT) & (BANDS_MASK | STATIC_BIT);
    }
    cell.last = now;
    cell.bits = bits;
    *at = cell;
    return kind;
}

/* Mark the cell at a point as free from height band `low` on, unless it has hits; erase hits after ERASE rays. A cell with hits
 * is erased only if it reaches up to the drone's height: `level` is that height's band. */
static void free_cell(tracker_data *t, float x, float y, int low, int32_t level, int now) {
    int ix = to_cell(x), iy = to_cell(y);
    const grid_cell empty = {0, 0, 0, 0};
    size_t place = place_of(t->size, ix, iy);
    grid_cell *cell = &t->grid[place];
    if (cell->number != number_of(ix, iy)) {
        t->free[place].number = number_of(ix, iy);
        t->free[place].stamp = (int32_t)((uint32_t)BANDS * (uint32_t)now + (uint32_t)low);
    } else if (cell->last < now && (cell->bits & level) > 0) {
        cell->bits += PASSED;
        if (cell->bits >= ERASE * PASSED) *cell = empty;
    }
}

/* Mark the cells that lie between neighbouring azimuths, before the nearest hit of both, as free. */
void fp_free_cells(tracker_data *t, vec3 pos, int now) {
    int32_t level = (int32_t)bands_between(pos.z, pos.z);
    for (int h = 0; h < t->azimuths - 1 + t->wraps; h++) {
        const azimuth_return *a = &t->returns[h], *b = &t->returns[(h + 1) % t->azimuths];
        int steps = (int)((least(a->first_hit, b->first_hit) - MARGIN_M) / CELL_M);
        float slope = most(a->slope, b->slope);
        for (int k = NEAR_CELLS; k < steps; k++) {
            float d = CELL_M * (float)k;
            int parts = (int)(t->pitch * (float)k) + 1;
            int low = clamp_int((int)floorf((pos.z + d * slope) / BAND_M) + 1, 0, BANDS - 1);
            for (int n = 0; n < parts; n++) {
                float s = (float)n / (float)parts;
                float x = pos.x + d * (a->ux + s * (b->ux - a->ux)), y = pos.y + d * (a->uy + s * (b->uy - a->uy));
                free_cell(t, x, y, low, level, now);
            }
        }
    }
}

/* Draw the local map anew after a new scan: recent hits that do not move, and static cells. Without `memory`, static cells are
 * drawn only if they were hit recently. */
void fp_draw_memory(local_map *m, const tracker_data *t, vec3 pos, bool memory) {
    int ix = to_cell(pos.x), iy = to_cell(pos.y), reach = m->size / 2 - REACH_CELLS - 1, now = t->scanned;
    bool is_new = t->scanned == t->clock;
    fp_map_roll(m, ix, iy, is_new);
    if (!is_new) return;
    for (int at = 0; at < t->size * t->size; at++) {
        grid_cell cell = t->grid[at];
        bool fixed = (cell.bits & STATIC_BIT) > 0;
        bool recent = cell.bits > 0 && now - cell.last <= t->hold && cell.bits < PASSED;
        if (!recent && !(memory && fixed)) continue;
        int cx = coordinate((uint32_t)cell.number >> 15, ix), cy = coordinate((uint32_t)cell.number, iy);
        if (abs(cx - ix) > reach || abs(cy - iy) > reach) continue;
        float ago = (float)(now - cell.last) * t->decision_s;
        if (fixed || !is_on_track(t, CELL_M * ((float)cx + 0.5f), CELL_M * ((float)cy + 0.5f), ago))
            fp_map_draw(m, cx, cy, (uint32_t)(cell.bits & BANDS_MASK));
    }
}
