#include "base/clock.h"

#include "../test.h"

static void never_runs_backwards_and_does_run(void)
{
    const double start = dml_seconds();
    double last = start;
    for (long i = 0; i < 100000000 && last == start; i++) {
        const double now = dml_seconds();
        CHECK(now >= last);
        last = now;
    }
    CHECK(last > start);
}

int main(void)
{
    RUN(never_runs_backwards_and_does_run);
    return test_report("base/clock");
}
