/* A batch is shared out so that unlike devices end together, within what each has room for. */
#include "dist/mirrored_share.h"

#include "../test.h"

#include <math.h>
#include <string.h>

static double time_of(double fixed, double each, int rows, unsigned *random)
{
    const double noise = 1 + 0.2 * ((double)(test_random(random) % 1000) / 1000 - 0.5);
    return rows ? (fixed + each * rows) * noise : 0;
}

/* Devices of which one has a large cost of its own, and times that vary by a fifth. */
static void unlike_devices_end_together(void)
{
    const double fixed[] = { 0, 2e-3, 5e-4 }, each[] = { 1e-3, 1e-4, 4e-4 };
    const int most[] = { 256, 256, 256 };
    unsigned random = 1;
    dml__speed speed[3];
    int share[3];
    memset(speed, 0, sizeof speed);
    for (int step = 0; step < 60; step++) {
        dml__share_rows(256, 3, speed, most, share);
        CHECK_INT(share[0] + share[1] + share[2], 256);
        for (int i = 0; i < 3; i++) {
            const double seconds = time_of(fixed[i], each[i], share[i], &random);
            const bool late = step < 2 || step % 10 == i; /* it warms up, or another program runs */
            dml__speed_note(&speed[i], share[i], late ? 100 * seconds : seconds);
        }
        if (step < 6) CHECK(share[0] == 86 && share[1] == 85 && share[2] == 85);
        if (step < 20) continue;
        double first = 1, last = 0;
        for (int i = 0; i < 3; i++) {
            const double seconds = fixed[i] + each[i] * share[i];
            first = fmin(first, seconds);
            last = fmax(last, seconds);
        }
        CHECK_MESSAGE(last <= 1.4 * first, "step %d: %d, %d, %d rows take %g to %g s", step, share[0],
                      share[1], share[2], first, last);
    }
}

static void shares_within_bounds(void)
{
    unsigned random = 3;
    for (int turn = 0; turn < 2000; turn++) {
        dml__speed speed[5];
        int most[5], share[5], room = 0, sum = 0;
        const int devices = 1 + (int)(test_random(&random) % 5);
        memset(speed, 0, sizeof speed);
        for (int i = 0; i < devices; i++) {
            room += most[i] = 1 + (int)(test_random(&random) % 40);
            for (int s = 0; s < 5; s++)
                dml__speed_note(&speed[i], 1 + (int)(test_random(&random) % 40),
                                1e-6 * (1 + test_random(&random) % 100000));
        }
        const int rows = (int)(test_random(&random) % (unsigned)(room + 1));
        dml__share_rows(rows, devices, turn % 3 ? speed : NULL, most, share);
        for (int i = 0; i < devices; i++) {
            sum += share[i];
            CHECK(share[i] <= most[i] && share[i] >= (rows >= devices));
        }
        CHECK_INT(sum, rows);
    }
}

int main(void)
{
    RUN(unlike_devices_end_together);
    RUN(shares_within_bounds);
    return test_report("dist/mirrored_share");
}
