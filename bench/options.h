/* options.h: the benchmarks' command lines. */
#ifndef DML_BENCH_OPTIONS_H
#define DML_BENCH_OPTIONS_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef BENCH__UNUSED
#if defined(__GNUC__)
#define BENCH__UNUSED __attribute__((unused))
#else
#define BENCH__UNUSED
#endif
#endif

typedef enum bench_kind { BENCH_INT, BENCH_NUMBER, BENCH_TEXT, BENCH_FLAG } bench_kind;

typedef struct bench_option {
    const char *name; /* with its dashes; NULL ends a list */
    bench_kind kind;
    void *value; /* int, double, const char * or bool */
    double min, max;
} bench_option;

/* Exits after --help, and with 2 and a sentence for what it doesn't understand. */
BENCH__UNUSED static void bench_parse(int argc, char **argv, const char *program, const char *usage,
                                      const bench_option *options)
{
    for (int i = 1; i < argc; i++) {
        const bench_option *o = options;
        char *end = NULL;
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(usage, stdout);
            exit(0);
        }
        while (o->name && strcmp(o->name, argv[i]) != 0) o++;
        if (!o->name) {
            fprintf(stderr, "%s: there is no option \"%s\": see --help\n", program, argv[i]);
            exit(2);
        }
        if (o->kind == BENCH_FLAG) {
            *(bool *)o->value = true;
            continue;
        }
        if (i + 1 == argc) {
            fprintf(stderr, "%s: %s needs a value: see --help\n", program, o->name);
            exit(2);
        }
        const char *text = argv[++i];
        if (o->kind == BENCH_TEXT) {
            *(const char **)o->value = text;
            continue;
        }
        const double value = o->kind == BENCH_INT ? (double)strtol(text, &end, 10) : strtod(text, &end);
        if (end == text || *end || !(value >= o->min && value <= o->max)) {
            fprintf(stderr, "%s: %s takes a %snumber from %g to %g, not \"%s\"\n", program, o->name,
                    o->kind == BENCH_INT ? "whole " : "", o->min, o->max, text);
            exit(2);
        }
        if (o->kind == BENCH_INT)
            *(int *)o->value = (int)value;
        else
            *(double *)o->value = value;
    }
}

#endif
