/* reasons.h: why rows are short of their bars, as bench/reasons.txt has it. */
#ifndef DML_BENCH_REASONS_H
#define DML_BENCH_REASONS_H

#include "rows.h"

/* One line: the words that a row has to have, and the text. */
typedef struct reason {
    row words;
    const char *text;
    int number; /* by which the table that is being written cites it; 0: it doesn't */
} reason;

typedef struct reasons {
    reason *list;
    int count, cited, unknown; /* by this table; rows and means of it for which there is none */
} reasons;

/* NULL, after a sentence, where the file can't be read or a line isn't "KEY=VALUE ... | TEXT". */
static reasons *read_reasons(const char *path)
{
    FILE *file = fopen(path, "r");
    reasons *all = (reasons *)grow(NULL, sizeof *all);
    char line[2048];
    memset(all, 0, sizeof *all);
    if (!file) {
        fprintf(stderr, "report: there is no file of reasons '%s'\n", path);
        return NULL;
    }
    while (fgets(line, sizeof line, file)) {
        reason r;
        line[strcspn(line, "\n")] = '\0';
        if (!line[0] || line[0] == '#') continue;
        char *copy = (char *)memcpy(grow(NULL, strlen(line) + 1), line, strlen(line) + 1);
        char *bar = strstr(copy, " | ");
        if (!bar || strncmp(copy, "name=", 5) != 0) {
            fprintf(stderr, "report: %s: \"%s\" isn't \"name=NAME ... | TEXT\"\n", path, line);
            fclose(file);
            return NULL;
        }
        *bar = '\0';
        memset(&r, 0, sizeof r);
        read_words(&r.words, copy);
        r.text = bar + 3;
        all->list = (reason *)grow(all->list, (size_t)(all->count + 1) * sizeof r);
        all->list[all->count++] = r;
    }
    fclose(file);
    return all;
}

/* The first reason all of whose words the row has; NULL: there is none. */
static reason *reason_of_row(reasons *all, const row *r)
{
    for (int i = 0; all && i < all->count; i++) {
        const row *words = &all->list[i].words;
        int alike = 0;
        while (alike < words->count && is(r, words->key[alike], words->value[alike])) alike++;
        if (alike == words->count) return &all->list[i];
    }
    return NULL;
}

static reason *reason_of_mean(reasons *all, const char *name, const char *kind)
{
    row r;
    memset(&r, 0, sizeof r);
    r.count = 2;
    r.key[0] = (char *)(uintptr_t) "name", r.value[0] = (char *)(uintptr_t)name;
    r.key[1] = (char *)(uintptr_t) "mean", r.value[1] = (char *)(uintptr_t)kind;
    return reason_of_row(all, &r);
}

/* What stands behind a "no": the reason's number in brackets, or nothing. text (24) */
static void cite_reason(reasons *all, reason *why, char *text)
{
    if (!all) return;
    if (!why) {
        all->unknown++;
        return;
    }
    if (!why->number) why->number = ++all->cited;
    snprintf(text, 24, " (%d)", why->number);
}

/* What the table cited. */
static void print_reasons(reasons *all)
{
    if (!all) return;
    for (int number = 1; number <= all->cited; number++)
        for (int i = 0; i < all->count; i++)
            if (all->list[i].number == number) printf("%d. %s\n", number, all->list[i].text);
    if (all->unknown)
        printf("%sNo reason has been measured for %d that %s short.\n", all->cited ? "\n" : "", all->unknown,
               all->unknown == 1 ? "is" : "are");
    if (all->cited || all->unknown) printf("\n");
    for (int i = 0; i < all->count; i++) all->list[i].number = 0;
    all->cited = all->unknown = 0;
}

#endif
