/* peer.h: the peers' side of the protocol in bench/peers.h, for those in C or C++. */
#ifndef DML_BENCH_PEERS_PEER_H
#define DML_BENCH_PEERS_PEER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double peer_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int peer_compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* As bench_time in bench/bench.h. */
static double peer_time(void (*run)(void), double seconds)
{
    double start = peer_now(), once, sample[99], spent = 0;
    int samples = 0, calls, i;
    run();
    once = peer_now() - start;
    if (once > 5e-3 && once >= seconds) return once;
    start = peer_now();
    run();
    once = peer_now() - start + 1e-9;
    calls = once > 50e-6 ? 1 : (int)(50e-6 / once) + 1;
    do {
        start = peer_now();
        for (i = 0; i < calls; i++) run();
        sample[samples] = peer_now() - start;
        spent += sample[samples];
        sample[samples++] /= calls;
    } while (samples < 99 && spent < seconds);
    qsort(sample, (size_t)samples, sizeof *sample, peer_compare);
    return sample[samples / 2];
}

static void peer_say(const char *word, const char *rest)
{
    printf("%s %s\n", word, rest ? rest : "");
    fflush(stdout);
}

/* Floats of [-1, 1). */
static inline float *peer_floats(size_t count)
{
    float *x = (float *)aligned_alloc(64, (count * sizeof *x / 64 + 1) * 64);
    size_t i;
    if (!x) {
        peer_say("no", "memory");
        exit(1);
    }
    for (i = 0; i < count; i++) x[i] = (float)(i * 7919 % 1000) * 0.002f - 1;
    return x;
}

/* The upper halves of the floats. */
static inline unsigned short *peer_bf16(const float *x, size_t count)
{
    unsigned short *narrow = (unsigned short *)aligned_alloc(64, (count * sizeof *narrow / 64 + 1) * 64);
    size_t i;
    if (!narrow) {
        peer_say("no", "memory");
        exit(1);
    }
    for (i = 0; i < count; i++) {
        unsigned bits;
        memcpy(&bits, &x[i], sizeof bits);
        narrow[i] = (unsigned short)(bits >> 16);
    }
    return narrow;
}

/* Answers until the input ends. `prepare` gets a case's words and returns NULL, or why it can't. */
static inline int peer_serve(const char *version, const char *(*prepare)(const char *words),
                             void (*run)(void))
{
    char line[256];
    int ready = 0;
    peer_say("ready", version);
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "case ", 5) == 0) {
            const char *why = prepare(line + 5);
            ready = !why;
            peer_say(why ? "no" : "ok", why);
        } else if (strncmp(line, "time ", 5) == 0 && ready) {
            printf("%.9g\n", peer_time(run, atof(line + 5)));
            fflush(stdout);
        } else {
            peer_say("no", "such request");
        }
    }
    return 0;
}

#endif
