/* reference: writes docs/reference.md from the public part of the products. A public header's text is its
   reference; this only leaves out what a reader doesn't need (guards, includes, private names) and puts an
   index in front. */
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 4096, MAX_TEXT = 1 << 20 };

static char body[MAX_TEXT], contents[MAX_TEXT]; /* what is written so far: the sections, and their index */

static void append(char *text, const char *piece)
{
    const size_t used = strlen(text), more = strlen(piece);
    if (used + more >= MAX_TEXT) {
        fprintf(stderr, "reference: the products have more than %d bytes of public text\n", MAX_TEXT);
        exit(1);
    }
    memcpy(text + used, piece, more + 1);
}

static bool starts(const char *line, const char *prefix)
{
    return strncmp(line, prefix, strlen(prefix)) == 0;
}

/* "DML_API type *dml_name(..." -> "dml_name"; false for any other line. */
static bool function_name(const char *line, char name[128])
{
    if (!starts(line, "DML_API ")) return false;
    const char *open = strchr(line, '(');
    if (!open) return false;
    const char *start = open;
    while (start > line && (isalnum((unsigned char)start[-1]) || start[-1] == '_')) start--;
    snprintf(name, 128, "%.*s", (int)(open - start), start);
    return true;
}

/* GitHub's anchor of "## base/status.h" is base-status-h without the marks: basestatush. */
static void anchor(const char *file, char out[128])
{
    size_t n = 0;
    for (; *file && n < 127; file++)
        if (isalnum((unsigned char)*file) || *file == '_') out[n++] = *file;
    out[n] = '\0';
}

static void begin_section(const char *product, const char *file)
{
    char piece[LINE], link[128];
    anchor(file, link);
    snprintf(piece, sizeof piece, "\n## %s\n\nIn `%s`.\n\n```c\n", file, product);
    append(body, piece);
    snprintf(piece, sizeof piece, "\n- [%s](#%s)", file, link);
    append(contents, piece);
}

/* Lines that are not for readers: guards, includes, and definitions of private macros with what continues
 * them. */
static bool is_plumbing(const char *line, bool *continued)
{
    const bool was_continued = *continued;
    const size_t length = strcspn(line, "\n");
    const bool plumbing = was_continued || starts(line, "#ifndef DML_") ||
                          (starts(line, "#define DML__") && !strstr(line, "_LIST(X)")) ||
                          starts(line, "#endif") || starts(line, "#include") || starts(line, "#undef") ||
                          starts(line, "#if") || starts(line, "#else") ||
                          (starts(line, "#define DML_") && strstr(line, "_H\n")) || strstr(line, "DML__ABI(");
    *continued = plumbing && length > 0 && line[length - 1] == '\\' ? true : false;
    return plumbing;
}

/* Copies the public sections of a product that no earlier product had. */
static void read_product(const char *path)
{
    FILE *in = fopen(path, "r");
    char line[LINE], file[128], name[128];
    if (!in) {
        fprintf(stderr, "reference: can't read %s\n", path);
        exit(1);
    }
    bool in_section = false, in_list = false, blank = true, continued = false;
    int implementation = 0; /* how many #ifs deep we are in a part that users don't read */
    while (fgets(line, sizeof line, in)) {
        if (implementation > 0) {
            implementation += starts(line, "#if") - starts(line, "#endif");
            continue;
        }
        const bool banner = sscanf(line, "/* ---- %127[^ ] ---- */", file) == 1 && strchr(file, '/');
        const bool ends = banner || starts(line, "#ifdef DML_IMPLEMENTATION");
        if (ends && in_section) append(body, "```\n");
        if (ends) in_section = false;
        if (banner) {
            const char *dot = strrchr(file, '.');
            char heading[160];
            snprintf(heading, sizeof heading, "\n## %s\n", file);
            if (!dot || strcmp(dot, ".h") != 0 || strstr(file, "_internal") ||
                strcmp(file, "base/platform.h") == 0 || strstr(body, heading))
                continue;
            begin_section(path, file);
            in_section = blank = true;
            in_list = continued = false;
            continue;
        }
        implementation = starts(line, "#ifdef DML_IMPLEMENTATION");
        if (!in_section || is_plumbing(line, &continued)) continue;
        if (line[0] == '\n' && blank) continue;
        blank = line[0] == '\n';
        append(body, line);
        if (function_name(line, name)) {
            append(contents, in_list ? " `" : ": `");
            in_list = true;
            append(contents, name);
            append(contents, "`");
        }
    }
    fclose(in);
}

int main(int argc, char **argv)
{
    if (argc < 2 || starts(argv[1], "-")) {
        fprintf(argc < 2 ? stderr : stdout, "usage: reference PRODUCT... > docs/reference.md\n");
        return argc < 2 ? 2 : 0;
    }
    for (int i = 1; i < argc; i++) read_product(argv[i]);
    printf("# Reference\n\nWritten by `make amalgamate` from the public headers, whose text it is. Start "
           "with the "
           "[guide](guide.md).\n%s\n%s",
           contents, body);
    return 0;
}
