/* rows.h: the rows that benchmarks print, as the report reads them. */
#ifndef DML_BENCH_ROWS_H
#define DML_BENCH_ROWS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS_MAX = 48, COLUMNS_MAX = 24, NAMES_MAX = 32 };

typedef struct row {
    char *key[WORDS_MAX], *value[WORDS_MAX];
    int count, threads_at; /* which word is threads=: before it stands the case, behind it the figures */
} row;

typedef struct report {
    row *rows;
    size_t count;
    char **notes; /* lines that begin with # */
    size_t note_count;
    const char *names[NAMES_MAX];
    int name_count;
    struct reasons *reasons; /* NULL: none were given */
    bool intel;
} report;

static void *grow(void *memory, size_t bytes)
{
    void *grown = realloc(memory, bytes);
    if (grown) return grown;
    fprintf(stderr, "report: no memory left\n");
    exit(1);
}

static const char *word(const row *r, const char *key)
{
    for (int i = 0; i < r->count; i++)
        if (strcmp(r->key[i], key) == 0) return r->value[i];
    return "";
}

static double number(const row *r, const char *key)
{
    return strtod(word(r, key), NULL);
}

static bool is(const row *r, const char *key, const char *value)
{
    return strcmp(word(r, key), value) == 0;
}

/* --- reading --- */

/* The words of a line, which is cut into them. */
static void read_words(row *r, char *line)
{
    for (char *at = strtok(line, " "); at && r->count < WORDS_MAX; at = strtok(NULL, " ")) {
        char *equals = strchr(at, '=');
        if (!equals) continue;
        *equals = '\0';
        if (strcmp(at, "threads") == 0 && !r->threads_at) r->threads_at = r->count;
        r->key[r->count] = at, r->value[r->count++] = equals + 1;
    }
}

static void read_rows(report *all)
{
    char *line = NULL;
    size_t capacity = 0;
    for (;;) {
        size_t length = 0;
        int c;
        while ((c = getchar()) != EOF && c != '\n') {
            if (length + 2 > capacity) line = grow(line, capacity = 2 * capacity + 256);
            line[length++] = (char)c;
        }
        if (c == EOF && length == 0) break;
        if (!line) continue;
        line[length] = '\0';
        if (line[0] == '#') {
            all->notes = grow(all->notes, (all->note_count + 1) * sizeof *all->notes);
            all->notes[all->note_count++] = line;
            line = NULL, capacity = 0;
        } else if (strncmp(line, "name=", 5) == 0) {
            row r;
            memset(&r, 0, sizeof r);
            read_words(&r, line);
            all->rows = grow(all->rows, (all->count + 1) * sizeof *all->rows);
            all->rows[all->count++] = r;
            int known = 0;
            while (known < all->name_count && strcmp(all->names[known], r.value[0]) != 0) known++;
            if (known == all->name_count && known < NAMES_MAX) all->names[all->name_count++] = r.value[0];
            line = NULL, capacity = 0;
        }
    }
    free(line);
}

#endif
