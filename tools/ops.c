/* ops: writes docs/ops.md and the op table of README.md from the op table of the library, with which it is
   compiled, and from the headers that declare what builds them. */
#define DML_STATIC
#define DML_IMPLEMENTATION
#include "dml.h"

#include <ctype.h>

enum { MOST_LINE = 4096, MOST_FAMILIES = 64, MOST_NAMES = 64 };

/* A public header of src/ops/: its title, and the functions that it declares. */
typedef struct family {
    char file[128], title[512];
    char function[MOST_NAMES][64];
    int functions;
} family;

static family families[MOST_FAMILIES];
static int family_count;

static void fail(const char *what, const char *name)
{
    fprintf(stderr, "ops: %s %s\n", what, name);
    exit(1);
}

static bool starts(const char *line, const char *prefix)
{
    return strncmp(line, prefix, strlen(prefix)) == 0;
}

/* What the header's first comment says of it, up to the first full stop. */
static void read_title(family *f, const char *text)
{
    const char *colon = strchr(text, ':');
    size_t n = 0;
    for (const char *c = colon ? colon + 1 : text;
         *c && *c != '.' && !starts(c, "*/") && n < sizeof f->title - 1; c++)
        if (!isspace((unsigned char)*c) || (n && f->title[n - 1] != ' '))
            f->title[n++] = isspace((unsigned char)*c) ? ' ' : *c;
    f->title[n] = '\0';
}

static void read_headers(const char *path)
{
    FILE *in = fopen(path, "r");
    char line[MOST_LINE], file[128], title[MOST_LINE] = "";
    family *f = NULL;
    if (!in) fail("can't read", path);
    while (fgets(line, sizeof line, in)) {
        if (starts(line, "#ifdef DML_IMPLEMENTATION")) break;
        if (sscanf(line, "/* ---- %127[^ ] ---- */", file) == 1) {
            const size_t length = strlen(file);
            f = NULL;
            if (!starts(file, "ops/op_") || strcmp(file + length - 2, ".h") != 0 || strstr(file, "_internal"))
                continue;
            if (family_count == MOST_FAMILIES) fail("too many headers at", file);
            f = &families[family_count++];
            snprintf(f->file, sizeof f->file, "%s", file);
            title[0] = '\0';
            continue;
        }
        if (!f) continue;
        if (!f->title[0] && (title[0] || starts(line, "/* "))) {
            const size_t used = strlen(title);
            snprintf(title + used, sizeof title - used, "%s", line);
            if (strstr(line, "*/")) read_title(f, title);
        }
        char *open = strchr(line, '('), *start = open;
        if (!starts(line, "DML_API ") || !open) continue;
        while (isalnum((unsigned char)start[-1]) || start[-1] == '_') start--;
        if (f->functions == MOST_NAMES) fail("too many functions in", file);
        snprintf(f->function[f->functions++], 64, "%.*s", (int)(open - start), start);
    }
    fclose(in);
}

/* Whether the function builds the op alone: dml_OP or dml_OP_with; or with an option, as dml_hinge does
 * squared_hinge. */
static bool builds(const char *function, const char *op)
{
    const size_t n = strlen(op);
    if (starts(op, "squared_") && strcmp(op + 8, function + 4) == 0) return true;
    return starts(function, "dml_") && starts(function + 4, op) &&
           (function[4 + n] == '\0' || strcmp(function + 4 + n, "_with") == 0);
}

static const dml__op *op_of(const char *function)
{
    const dml__op *op;
    for (int i = 0; (op = dml__op_at(i)) != NULL; i++)
        if (builds(function, op->name)) return op;
    return NULL;
}

static const family *family_of(const dml__op *op)
{
    for (int f = 0; f < family_count; f++)
        for (int i = 0; i < families[f].functions; i++)
            if (builds(families[f].function[i], op->name)) return &families[f];
    fail("no public header declares a builder of the op", op->name);
    return NULL;
}

static void anchor(const char *file, char out[64])
{
    size_t n = 0;
    for (; *file; file++)
        if (isalnum((unsigned char)*file) || *file == '_') out[n++] = *file;
    out[n] = '\0';
}

static void op_row(const family *f, const dml__op *op)
{
    const bool view = op->view, chooses = (op->needs & DML__CHOOSES_BY_FIRST) != 0;
    const bool flat = view ? chooses : !op->backward;
    /* Those of one element save at most a repeated operand, on GPUs. */
    const bool saves = op->saved_bytes && op->infer != dml__formula_op(0)->infer;
    printf("| %s |", op->name);
    for (int i = 0; i < f->functions; i++)
        if (builds(f->function[i], op->name)) printf(" `%s`", f->function[i]);
    printf(" | %s |", flat ? "none" : chooses ? "all inputs but the first" : "each input that takes one");
    if (!(op->needs & (DML__NEEDS_INPUTS | DML__NEEDS_OUTPUT)) && !saves) printf(" nothing");
    const char *comma = " ";
    for (int i = 0; i < DML__MAX_INPUTS; i++)
        if ((op->needs & DML__NEEDS_INPUTS) != DML__NEEDS_INPUTS && op->needs & DML__NEEDS_INPUT(i))
            printf("%sinput %d", comma, i), comma = ", ";
    if ((op->needs & DML__NEEDS_INPUTS) == DML__NEEDS_INPUTS) printf("%sinputs", comma), comma = ", ";
    if (op->needs & DML__NEEDS_OUTPUT) printf("%soutput", comma), comma = ", ";
    if (saves) printf("%swhat forward saved", comma);
    printf(" | %s |\n", view ? "a view: nothing moves" : op->in_place ? "yes" : "no");
}

/* docs/ops.md */
static void write_reference(void)
{
    const dml__op *op;
    printf("# Ops\n\nWritten by `make amalgamate` from the op table. `tests/ops/ops_test.c` holds each op "
           "and its gradient to "
           "float64 and central\ndifferences on every backend, `random_graphs_test.c` in random company. "
           "Shapes and options "
           "are in the [reference](reference.md).\n\n"
           "- *gradient*: which inputs get one, when they depend on a parameter that is trained\n"
           "- *backward reads*: what is kept from forward, beside the output's gradient\n"
           "- *in place*: whether the output may lie where the input did\n");
    for (int f = 0; f < family_count; f++) {
        char link[64];
        bool others = false, table = false;
        anchor(families[f].file, link);
        printf("\n## [%s](reference.md#%s)\n\n%c%s.\n", families[f].file + 4, link,
               toupper((unsigned char)families[f].title[0]), families[f].title + 1);
        for (int i = 0; (op = dml__op_at(i)) != NULL; i++) {
            if (family_of(op) != &families[f]) continue;
            if (!table)
                printf("\n| op | built by | gradient | backward reads | in place |\n|---|---|---|---|---|\n");
            table = true;
            op_row(&families[f], op);
        }
        for (int i = 0; i < families[f].functions; i++) {
            if (op_of(families[f].function[i])) continue;
            printf("%s `%s`", others ? "," : "\nMade of other ops:", families[f].function[i]);
            others = true;
        }
        if (others) printf(".\n");
    }
}

static void readme_rows(FILE *out)
{
    fprintf(out, "\n| ops, each with its gradient | | CPU | OpenCL | CUDA |\n|---|---|---|---|---|\n");
    for (int f = 0; f < family_count; f++) {
        fprintf(out, "| %s |", families[f].title);
        const char *comma = " ";
        for (int i = 0; i < families[f].functions; i++) {
            const char *name = families[f].function[i], *end = strstr(name, "_with");
            if (end && !end[5]) continue;
            fprintf(out, "%s%s", comma, name + 4), comma = ", ";
        }
        fprintf(out, " | yes | yes | yes* |\n");
    }
    fprintf(out, "\n");
}

/* README.md with the rows between its marks, to stdout. */
static void write_readme(const char *path)
{
    FILE *in = fopen(path, "r");
    char line[MOST_LINE];
    bool inside = false, found = false;
    if (!in) fail("can't read", path);
    while (fgets(line, sizeof line, in)) {
        if (starts(line, "<!-- end of ops -->")) inside = false;
        if (!inside) fputs(line, stdout);
        if (starts(line, "<!-- ops, ")) inside = found = true, readme_rows(stdout);
    }
    fclose(in);
    if (!found || inside) fail("no marks of the ops in", path);
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 3 || starts(argv[1], "-")) {
        fprintf(argc < 2 ? stderr : stdout,
                "usage: ops dml.h > docs/ops.md; ops dml.h README.md > new README.md\n");
        return argc < 2 ? 2 : 0;
    }
    read_headers(argv[1]);
    if (argc == 2)
        write_reference();
    else
        write_readme(argv[2]);
    return 0;
}
