/* Replay a script from the standard input through the planner, and print each step's status and plan:
 *
 *     set NAME VALUE | choose NAME VALUE | elevations COUNT VALUES | create | reset
 *     step RAYS state[8] lidar[RAYS] dynamic_obstacle[50] pose[2] attitude[2] flown[3]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fledge_planner.h"

static void read_floats(float *out, size_t count) {
    char word[64];
    for (size_t k = 0; k < count; k++) {
        if (scanf("%63s", word) != 1) exit(3);
        out[k] = strtof(word, NULL);
    }
}

static void step(fledge_planner *planner) {
    size_t rays;
    float state[8], movers[50], pose[2], attitude[2], flown[3], plan[FLEDGE_PLAN], command[3], rows[50];
    if (scanf("%zu", &rays) != 1) exit(3);
    float *lidar = malloc((rays ? rays : 1) * sizeof *lidar); /* exactly as long as it must be */
    if (!lidar) exit(3);
    read_floats(state, 8);
    read_floats(lidar, rays);
    read_floats(movers, 50);
    read_floats(pose, 2);
    read_floats(attitude, 2);
    read_floats(flown, 3);
    fledge_input input = {state, lidar, rays, movers, pose, attitude, flown};
    fledge_output output = {plan, command, rows};
    int status = fledge_planner_step(planner, &input, &output);
    printf("%d", status);
    for (int k = 0; !status && k < FLEDGE_PLAN; k++) printf(" %a", (double)plan[k]);
    printf("\n");
    free(lidar);
}

int main(void) {
    char word[64], name[64], text[200];
    double value, values[64];
    int count, status = 0;
    fledge_settings settings;
    fledge_planner *planner = NULL;
    fledge_settings_default(&settings);
    while (!status && scanf("%63s", word) == 1) {
        if (!strcmp(word, "set") && scanf("%63s %lf", name, &value) == 2) {
            status = fledge_settings_set(&settings, name, value, text, sizeof text);
        } else if (!strcmp(word, "choose") && scanf("%63s %63s", name, word) == 2) {
            status = fledge_settings_choose(&settings, name, word, text, sizeof text);
        } else if (!strcmp(word, "elevations") && scanf("%d", &count) == 1 && count <= 64) {
            for (int k = 0; k < count; k++)
                if (scanf("%lf", &values[k]) != 1) return 3;
            status = fledge_settings_elevations(&settings, values, (size_t)count, text, sizeof text);
        } else if (!strcmp(word, "create")) {
            fledge_planner_destroy(planner);
            status = fledge_planner_create(&settings, &planner, text, sizeof text);
        } else if (!strcmp(word, "reset")) {
            fledge_planner_reset(planner);
        } else if (!strcmp(word, "step") && planner) {
            step(planner);
        } else {
            return 2;
        }
    }
    if (status) fprintf(stderr, "%s\n", text);
    fledge_planner_destroy(planner);
    return status ? 1 : 0;
}
