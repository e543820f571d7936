/* amalgamate.c: writes a product (dml.h, dml_comm.h, dml_cuda.cu, dml_opencl.c) from its root file in src/.

   Each `#include "folder/file"` of the root, and of what it includes, is replaced by that file, once, in the
   order met. A file keeps its include guard, so parts that two products share may meet in one translation
   unit. Four rules make the rest:

   - A file directly in src/ is a root. A root that includes another keeps that line, and what the other root
     brings counts as present.
   - What is written inside an #if counts as present only where that #if holds; elsewhere it is written again,
     and its guard keeps one of the two.
   - `#include "folder/file.inc"`, where src/ has folder/file but no such .inc, becomes folder/file (with its
   own includes resolved) as rows of C strings, "text\n", one a line: the initialiser of an array. --strings
     writes those rows alone.
   - An include of a system header, and an include inside a comment, stays as it is.

   The output is written beside the target and renamed, and left alone when it would not change. */
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 64, STRING_PIECE = 1000 };

typedef struct text {
    char *data; /* ends in a NUL that `size` doesn't count */
    size_t size, capacity;
} text;

/* A file that is present wherever all of `conditions` (one a line) hold. */
typedef struct present {
    char *name;
    char *conditions;
    struct present *next;
} present;

typedef struct amalgamation {
    const char *source; /* the folder that includes are resolved from */
    const char *root;   /* the root's name in it */
    bool lines;         /* #line directives */
    bool bare;          /* no separators between files: the text goes into strings */
    bool quiet;         /* inside another root: only notes what is present */
    text out;
    bool blank; /* the last line written is empty */
    char version[32];
    present *present;
    const char *open[MAX_DEPTH]; /* the files being read, outermost first */
    int depth;
    char *condition[MAX_DEPTH]; /* the #ifs around this place; "" for an include guard */
    int conditions;
} amalgamation;

static void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("amalgamate: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

static void *allocate(size_t bytes)
{
    void *memory = malloc(bytes);
    if (!memory) fail("no memory left");
    return memory;
}

static char *duplicate(const char *string)
{
    const size_t bytes = strlen(string) + 1;
    return (char *)memcpy(allocate(bytes), string, bytes);
}

static void append(text *t, const char *data, size_t size)
{
    if (t->size + size + 1 > t->capacity) {
        const size_t capacity = 2 * (t->size + size) + 4096;
        char *grown = (char *)allocate(capacity);
        if (t->size) memcpy(grown, t->data, t->size);
        free(t->data);
        t->data = grown;
        t->capacity = capacity;
    }
    if (size) memcpy(t->data + t->size, data, size);
    t->size += size;
    t->data[t->size] = '\0';
}

static void append_format(text *t, const char *format, ...)
{
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    const int size = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (size < 0 || (size_t)size >= sizeof line) fail("a file name is too long");
    append(t, line, (size_t)size);
}

/* The path of a file of the source folder. */
static char *path_of(const amalgamation *a, const char *name)
{
    text path = { NULL, 0, 0 };
    append_format(&path, "%s/%s", a->source, name);
    return path.data;
}

/* False, with errno set, when the file can't be read. */
static bool read_file(const char *path, text *content)
{
    char block[4096];
    FILE *file = fopen(path, "rb");
    if (!file) return false;
    append(content, "", 0);
    size_t got;
    while ((got = fread(block, 1, sizeof block, file)) > 0) append(content, block, got);
    const bool bad = ferror(file) != 0;
    const int error = errno;
    fclose(file);
    errno = error;
    return !bad;
}

static bool exists(const amalgamation *a, const char *name)
{
    char *path = path_of(a, name);
    FILE *file = fopen(path, "rb");
    free(path);
    if (!file) return false;
    fclose(file);
    return true;
}

/* ---- lines ---- */

/* Where a reader of C stands between two lines. */
typedef struct lexer {
    bool comment; /* inside a block comment */
    char quote;   /* inside a literal that a backslash continues */
} lexer;

/* Reads one line (without its newline). */
static void lex_line(lexer *l, const char *line, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        const char next = i + 1 < size ? line[i + 1] : '\0';
        if (l->comment) {
            if (line[i] == '*' && next == '/') l->comment = false, i++;
        } else if (l->quote) {
            if (line[i] == '\\') {
                if (i + 1 >= size) return; /* the literal goes on */
                i++;
            } else if (line[i] == l->quote) {
                l->quote = '\0';
            }
        } else if (line[i] == '/' && next == '/') {
            return;
        } else if (line[i] == '/' && next == '*') {
            l->comment = true;
            i++;
        } else if (line[i] == '"' || line[i] == '\'') {
            l->quote = line[i];
        }
    }
    l->quote = '\0';
}

/* When the line is the directive `word`, where its argument starts; else NULL. */
static const char *directive(const char *line, const char *word)
{
    while (*line == ' ' || *line == '\t') line++;
    if (*line++ != '#') return NULL;
    while (*line == ' ' || *line == '\t') line++;
    const size_t size = strlen(word);
    if (strncmp(line, word, size) != 0) return NULL;
    line += size;
    if ((*line >= 'a' && *line <= 'z') || *line == '_') return NULL; /* #ifdef is no #if */
    while (*line == ' ' || *line == '\t') line++;
    return line;
}

/* A directive's argument up to a comment or the line's end, without blanks: conditions are compared as text.
 */
static char *squeeze(const char *argument)
{
    text t = { NULL, 0, 0 };
    append(&t, "", 0);
    for (; *argument && *argument != '\n'; argument++) {
        if (argument[0] == '/' && (argument[1] == '*' || argument[1] == '/')) break;
        if (!strchr(" \t\r", *argument)) append(&t, argument, 1);
    }
    return t.data;
}

/* ---- conditions ---- */

static char *wrap(const char *before, const char *condition, const char *after)
{
    text t = { NULL, 0, 0 };
    append(&t, before, strlen(before));
    append(&t, condition, strlen(condition));
    append(&t, after, strlen(after));
    return t.data;
}

static void push_condition(amalgamation *a, char *condition)
{
    if (a->conditions == MAX_DEPTH) fail("more than %d #ifs inside each other", MAX_DEPTH);
    a->condition[a->conditions++] = condition;
}

/* `#ifndef X` with `#define X` on the next line. */
static bool is_guard(const char *macro, const char *next_line)
{
    const char *defined = directive(next_line, "define");
    if (!defined) return false;
    char *name = squeeze(defined);
    const bool same = strcmp(name, macro) == 0;
    free(name);
    return same;
}

/* Follows #if ... #endif. `base` is how many conditions were open where the file began. */
static void follow_condition(amalgamation *a, const char *line, const char *next_line, int base)
{
    const char *argument;
    if ((argument = directive(line, "ifdef"))) {
        char *macro = squeeze(argument);
        push_condition(a, wrap("defined(", macro, ")"));
        free(macro);
    } else if ((argument = directive(line, "ifndef"))) {
        char *macro = squeeze(argument);
        push_condition(a, is_guard(macro, next_line) ? duplicate("") : wrap("!defined(", macro, ")"));
        free(macro);
    } else if ((argument = directive(line, "if"))) {
        push_condition(a, squeeze(argument));
    } else if ((argument = directive(line, "elif")) || directive(line, "else")) {
        if (a->conditions == base) fail("%s: #else without #if", a->open[a->depth - 1]);
        char *old = a->condition[a->conditions - 1];
        char *negated = wrap("!(", old, ")");
        char *own = argument ? squeeze(argument) : duplicate("");
        a->condition[a->conditions - 1] = wrap(negated, argument ? "&&" : "", own);
        free(old);
        free(negated);
        free(own);
    } else if (directive(line, "endif")) {
        if (a->conditions == base) fail("%s: #endif without #if", a->open[a->depth - 1]);
        free(a->condition[--a->conditions]);
    }
}

static bool holds(const amalgamation *a, const char *condition, size_t size)
{
    for (int i = 0; i < a->conditions; i++)
        if (strlen(a->condition[i]) == size && memcmp(a->condition[i], condition, size) == 0) return true;
    return false;
}

static bool is_present(const amalgamation *a, const char *name)
{
    for (const present *p = a->present; p; p = p->next) {
        if (strcmp(p->name, name) != 0) continue;
        bool all = true;
        for (const char *c = p->conditions; *c && all;) {
            const char *end = strchr(c, '\n');
            all = holds(a, c, (size_t)(end - c));
            c = end + 1;
        }
        if (all) return true;
    }
    return false;
}

static void note_present(amalgamation *a, const char *name)
{
    text conditions = { NULL, 0, 0 };
    append(&conditions, "", 0);
    for (int i = 0; i < a->conditions; i++)
        if (a->condition[i][0]) append_format(&conditions, "%s\n", a->condition[i]);
    present *p = (present *)allocate(sizeof *p);
    p->name = duplicate(name);
    p->conditions = conditions.data;
    p->next = a->present;
    a->present = p;
}

/* ---- writing ---- */

/* One line, without its newline. Runs of empty lines, left where includes went, shrink to one. */
static void write_line(amalgamation *a, const char *line, size_t size)
{
    if (a->quiet) return;
    const bool blank = size == 0;
    if (blank && a->blank && !a->lines) return;
    append(&a->out, line, size);
    append(&a->out, "\n", 1);
    a->blank = blank;
}

static void write_position(amalgamation *a, const char *name, int line)
{
    if (a->quiet || !a->lines) return;
    append_format(&a->out, "#line %d \"%s%s%s\"\n", line, a->bare ? "" : a->source, a->bare ? "" : "/", name);
}

static void write_separator(amalgamation *a, const char *name)
{
    if (a->quiet || a->bare) return;
    if (!a->blank) append(&a->out, "\n", 1);
    append_format(&a->out, "/* ---- %s ---- */\n\n", name);
    a->blank = true;
}

/* The text as rows of C strings. No row is longer than C99's 4095 characters, so a long line takes several.
 */
static void append_strings(text *out, const text *in)
{
    size_t column = 0;
    for (size_t i = 0; i < in->size; i++) {
        const unsigned char c = (unsigned char)in->data[i];
        if (column++ == 0) append(out, "\"", 1);
        if (c == '\n') {
            append(out, "\\n", 2);
        } else if (c == '"' || c == '\\' || c == '?') { /* ? because of trigraphs */
            append(out, "\\", 1);
            append(out, (const char *)&c, 1);
        } else if (c < 32 || c > 126) {
            append_format(out, "\\%03o", (unsigned)c);
        } else {
            append(out, (const char *)&c, 1);
        }
        if (c == '\n' || column == STRING_PIECE || i + 1 == in->size) {
            append(out, "\",\n", 3);
            column = 0;
        }
    }
}

/* ---- walking ---- */

static void walk(amalgamation *a, const char *name, const char *from, int from_line);

/* `name` and what it includes as strings; it shares nothing with the C around it. */
static void write_strings(amalgamation *a, const char *name, const char *from, int from_line)
{
    amalgamation inner;
    memset(&inner, 0, sizeof inner);
    inner.source = a->source;
    inner.root = name;
    inner.bare = true;
    inner.lines = true; /* the compiler of a device speaks of our files, then */
    inner.blank = true;
    walk(&inner, name, from, from_line);
    if (!a->quiet) append_strings(&a->out, &inner.out);
    a->blank = false;
    free(inner.out.data);
}

/* The other root stays an #include; what it brings is present from here on. */
static void keep_root(amalgamation *a, const char *line, size_t size, const char *name, const char *from,
                      int from_line)
{
    write_line(a, line, size);
    const bool quiet = a->quiet;
    a->quiet = true;
    walk(a, name, from, from_line);
    a->quiet = quiet;
}

/* An `#include "name"` at from:from_line. True when something took its place. */
static bool include(amalgamation *a, const char *line, size_t size, const char *name, const char *from,
                    int from_line)
{
    const size_t length = strlen(name);
    for (int i = 0; i < a->depth; i++)
        if (strcmp(a->open[i], name) == 0)
            fail("%s/%s:%d: %s includes itself, by way of %s", a->source, from, from_line, name, from);
    if (length > 4 && strcmp(name + length - 4, ".inc") == 0 && !exists(a, name)) {
        char *strings = duplicate(name);
        strings[length - 4] = '\0';
        write_strings(a, strings, from, from_line);
        free(strings);
        return true;
    }
    if (!strchr(name, '/')) {
        keep_root(a, line, size, name, from, from_line);
        return true;
    }
    if (is_present(a, name)) return false;
    note_present(a, name);
    write_separator(a, name);
    walk(a, name, from, from_line);
    return true;
}

static void note_version(amalgamation *a, const char *line)
{
    const char *argument = directive(line, "define");
    char value[sizeof a->version];
    if (argument && sscanf(argument, "DML_VERSION \"%31[^\"]\"", value) == 1) strcpy(a->version, value);
}

/* The name in `#include "name"`, or NULL. */
static char *included_name(const char *path, const char *line, size_t size, int number)
{
    const char *argument = directive(line, "include");
    if (!argument || *argument != '"') return NULL;
    const char *end = (const char *)memchr(argument + 1, '"', (size_t)(line + size - argument) - 1);
    if (!end) fail("%s:%d: #include without a closing quote", path, number);
    char *name = duplicate(argument + 1);
    name[end - argument - 1] = '\0';
    return name;
}

/* Writes a file with its includes resolved. `from` is what includes it, NULL for the root. */
static void walk(amalgamation *a, const char *name, const char *from, int from_line)
{
    text content = { NULL, 0, 0 };
    lexer lexer = { false, '\0' };
    char *path = path_of(a, name);
    const int base = a->conditions;
    int number = 0;

    if (!read_file(path, &content)) {
        if (!from) fail("can't read %s: %s", path, strerror(errno));
        fail("%s/%s:%d includes \"%s\", but can't read %s: %s", a->source, from, from_line, name, path,
             strerror(errno));
    }
    if (strlen(content.data) != content.size) fail("%s holds a NUL byte: it is no text", path);
    if (a->depth == MAX_DEPTH) fail("%s: more than %d includes inside each other", path, MAX_DEPTH);
    a->open[a->depth++] = name;
    write_position(a, name, 1);
    for (char *line = content.data; *line;) {
        char *end = strchr(line, '\n');
        const size_t size = end ? (size_t)(end - line) : strlen(line);
        char *next = line + size + (end ? 1 : 0);
        const bool code = !lexer.comment && !lexer.quote;
        number++;
        lex_line(&lexer, line, size);
        char *included = code ? included_name(path, line, size, number) : NULL;
        if (included) {
            const bool written = include(a, line, size, included, name, number);
            if (written)
                write_position(a, name, number + 1);
            else if (a->lines)
                write_line(a, "", 0);
            free(included);
        } else {
            if (code) {
                follow_condition(a, line, next, base);
                note_version(a, line);
            }
            write_line(a, line, size);
        }
        line = next;
    }
    if (lexer.comment) fail("%s: a comment is never closed", path);
    if (a->conditions != base) fail("%s: #if without #endif", path);
    a->depth--;
    free(path);
    free(content.data);
}

/* ---- the command ---- */

static const char usage[] = "usage: amalgamate [-I DIR] [--line] [--strings] ROOT -o OUT\n";
static const char help[] =
    "Writes ROOT, a file directly in DIR, to OUT with each #include \"folder/file\" replaced by that file.\n"
    "  -I DIR     where includes are resolved from (default: src)\n"
    "  --line     with #line directives, for coverage and debuggers\n"
    "  --strings  as rows of C strings instead; ROOT may then lie in a folder of DIR\n"
    "  -o OUT     the file to write; it is not touched when it would not change\n";

/* ROOT as a name inside the source folder. */
static const char *name_in(const char *source, const char *path, bool any_folder)
{
    const size_t size = strlen(source);
    if (strncmp(path, source, size) != 0 || path[size] != '/') fail("%s is not in %s", path, source);
    const char *name = path + size + 1;
    if (!any_folder && strchr(name, '/')) fail("%s is not a root: a root lies directly in %s", path, source);
    return name;
}

static void write_output(const char *path, const text *out)
{
    text old = { NULL, 0, 0 };
    const bool same =
        read_file(path, &old) && old.size == out->size && memcmp(old.data, out->data, out->size) == 0;
    free(old.data);
    if (same) return;

    text aside = { NULL, 0, 0 };
    append_format(&aside, "%s.new", path);
    FILE *file = fopen(aside.data, "wb");
    if (!file) fail("can't write %s: %s", aside.data, strerror(errno));
    const bool written = fwrite(out->data, 1, out->size, file) == out->size;
    if (fclose(file) != 0 || !written) {
        const int error = errno;
        remove(aside.data);
        fail("can't write %s: %s", aside.data, strerror(error));
    }
    if (rename(aside.data, path) != 0) {
        const int error = errno;
        remove(aside.data);
        fail("can't rename %s to %s: %s", aside.data, path, strerror(error));
    }
    free(aside.data);
}

static int wrong_usage(const char *what, const char *argument)
{
    fprintf(stderr, "amalgamate: %s%s\n%s", what, argument, usage);
    return 2;
}

int main(int argc, char **argv)
{
    amalgamation a;
    const char *root = NULL, *out = NULL;
    bool strings = false;
    memset(&a, 0, sizeof a);
    a.source = "src";
    for (int i = 1; i < argc; i++) {
        const bool last = i + 1 == argc;
        if (strcmp(argv[i], "--help") == 0) {
            printf("%s%s", usage, help);
            return 0;
        } else if (strcmp(argv[i], "--line") == 0) {
            a.lines = true;
        } else if (strcmp(argv[i], "--strings") == 0) {
            strings = true;
        } else if (strcmp(argv[i], "-I") == 0 || strcmp(argv[i], "-o") == 0) {
            if (last) return wrong_usage(argv[i], " needs a value");
            if (argv[i][1] == 'I')
                a.source = argv[++i];
            else
                out = argv[++i];
        } else if (argv[i][0] == '-') {
            return wrong_usage("unknown option ", argv[i]);
        } else if (root) {
            return wrong_usage("more than one ROOT: ", argv[i]);
        } else {
            root = argv[i];
        }
    }
    if (!root || !out) return wrong_usage(root ? "-o OUT" : "ROOT", " is missing");

    a.root = name_in(a.source, root, strings);
    a.blank = true;
    strcpy(a.version, "");
    text result = { NULL, 0, 0 };
    if (strings) {
        write_strings(&a, a.root, NULL, 0);
    } else {
        walk(&a, a.root, NULL, 0);
        append_format(&result, "/* %s%s%s. DO NOT EDIT, generated from src/ by make amalgamate. */\n", a.root,
                      a.version[0] ? " " : "", a.version);
    }
    append(&result, a.out.data ? a.out.data : "", a.out.size);
    write_output(out, &result);
    return 0;
}
