#ifndef DML_BASE_CLOCK_C
#define DML_BASE_CLOCK_C

#include "base/clock.h"

#include "base/clock_internal.h"
#include "base/windows.h"

#include <time.h>

#if (defined(__unix__) || defined(__APPLE__)) && !defined(CLOCK_MONOTONIC)
#error "dml: compile with -D_GNU_SOURCE, or include the dml headers before any system header"
#endif

DML_API double dml_seconds(void)
{
#ifdef _WIN32
    long long now = 0, frequency = 1;
    dml__windows_QueryPerformanceCounter(&now);
    dml__windows_QueryPerformanceFrequency(&frequency);
    return (double)(now / frequency) + (double)(now % frequency) / (double)frequency;
#elif defined(CLOCK_MONOTONIC)
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
#else
    return (double)clock() / CLOCKS_PER_SEC;
#endif
}

DML__LOCAL double dml__about_seconds(void)
{
#if defined(__linux__) && defined(CLOCK_MONOTONIC_COARSE)
    struct timespec now;
    if (clock_gettime(CLOCK_MONOTONIC_COARSE, &now) == 0)
        return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
#endif
    return dml_seconds();
}

#endif
