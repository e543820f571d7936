/* The amalgamation tool, on small trees made on the fly. */
#define _GNU_SOURCE
#include "../test.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char tool[4096], folder[512];

/* Runs the tool with these arguments inside the tree; its exit status, what it said in `said`. */
static char said[4096];
static int amalgamate(const char *arguments)
{
    char command[2 * 4096];
    snprintf(command, sizeof command, "cd '%s' && '%s' %s 2>&1", folder, tool, arguments);
    FILE *pipe = popen(command, "r");
    if (!pipe) return -1;
    said[fread(said, 1, sizeof said - 1, pipe)] = '\0';
    const int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void path_in_tree(char *path, size_t size, const char *name)
{
    snprintf(path, size, "%s/%s", folder, name);
}

static void put_bytes(const char *name, const char *content, size_t size)
{
    char path[8192];
    path_in_tree(path, sizeof path, name);
    FILE *file = fopen(path, "wb");
    CHECK_MESSAGE(file != NULL, "can't write %s", path);
    if (!file) return;
    fwrite(content, 1, size, file);
    fclose(file);
}

static void put(const char *name, const char *content)
{
    put_bytes(name, content, strlen(content));
}

/* The file's content; "" when there is none. The caller's until the next call. */
static const char *get(const char *name)
{
    static char content[1 << 16];
    char path[8192];
    path_in_tree(path, sizeof path, name);
    FILE *file = fopen(path, "rb");
    content[0] = '\0';
    if (!file) return content;
    content[fread(content, 1, sizeof content - 1, file)] = '\0';
    fclose(file);
    return content;
}

/* An empty tree with src/a/ and src/b/. */
static void fresh(void)
{
    char command[2 * 4096];
    snprintf(command, sizeof command, "rm -rf '%s'/* && mkdir -p '%s/src/a' '%s/src/b'", folder, folder,
             folder);
    CHECK_INT(system(command), 0);
}

static int count(const char *text, const char *part)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, part)); at += strlen(part)) n++;
    return n;
}

static void writes_each_file_once_in_include_order(void)
{
    fresh();
    put("src/a/one.h", "#ifndef ONE_H\n#define ONE_H\nint one;\n#endif\n");
    put("src/a/two.h", "#ifndef TWO_H\n#define TWO_H\n#include \"a/one.h\"\nint two;\n#endif\n");
    put("src/b/three.h", "#ifndef THREE_H\n#define THREE_H\n#include \"a/one.h\"\n#include <stddef.h>\n"
                         "#define DML_VERSION \"1.2.3\"\nint three;\n#endif\n");
    put("src/x.h", "/* the manual */\n#include \"a/two.h\"\n#include \"b/three.h\"\nint end;\n");
    CHECK_INT(amalgamate("src/x.h -o x.h"), 0);
    CHECK_STRING(get("x.h"), "/* x.h 1.2.3. DO NOT EDIT, generated from src/ by make amalgamate. */\n"
                             "/* the manual */\n"
                             "\n/* ---- a/two.h ---- */\n\n#ifndef TWO_H\n#define TWO_H\n"
                             "\n/* ---- a/one.h ---- */\n\n#ifndef ONE_H\n#define ONE_H\nint one;\n#endif\n"
                             "int two;\n#endif\n"
                             "\n/* ---- b/three.h ---- */\n\n#ifndef THREE_H\n#define THREE_H\n"
                             "#include <stddef.h>\n#define DML_VERSION \"1.2.3\"\nint three;\n#endif\n"
                             "int end;\n");
}

static void the_version_is_named_when_there_is_none(void)
{
    fresh();
    put("src/x.h", "int x;\n");
    CHECK_INT(amalgamate("src/x.h -o x.h"), 0);
    CHECK_STRING(get("x.h"), "/* x.h. DO NOT EDIT, generated from src/ by make amalgamate. */\nint x;\n");
}

static void includes_in_comments_and_literals_stay(void)
{
    fresh();
    put("src/a/one.h", "int one;\n");
    put("src/x.h", "/* use:\n#include \"a/one.h\"\n*/\nconst char *s = \"/*\";\n#include \"a/one.h\"\n"
                   "const char *t = \"\\\n#include \\\"a/none.h\\\"\";\n// it's fine\nint z = '\"';\n");
    CHECK_INT(amalgamate("src/x.h -o x.h"), 0);
    CHECK_INT(count(get("x.h"), "int one;"), 1);
    CHECK_INT(count(get("x.h"), "#include \"a/one.h\""), 1);
    CHECK_INT(count(get("x.h"), "a/none.h"), 1);
}

static void a_file_without_a_last_newline_gets_one(void)
{
    fresh();
    put("src/a/one.h", "int one;");
    put("src/x.h", "#include \"a/one.h\"\nint two;");
    CHECK_INT(amalgamate("src/x.h -o x.h"), 0);
    CHECK_CONTAINS(get("x.h"), "int one;\nint two;\n");
}

static void another_root_stays_an_include_and_its_files_are_not_repeated(void)
{
    fresh();
    put("src/a/one.h", "#ifndef ONE_H\n#define ONE_H\nint one;\n#endif\n");
    put("src/a/own.h", "#ifndef OWN_H\n#define OWN_H\nint own;\n#endif\n");
    put("src/a/one.c", "#ifndef ONE_C\n#define ONE_C\n#include \"a/own.h\"\nint body;\n#endif\n");
    put("src/b/two.c", "#include \"a/one.h\"\n#include \"a/own.h\"\nint two;\n");
    put("src/x.h", "#ifndef X_H\n#define X_H\n#include \"a/one.h\"\n#endif\n#ifdef BODY\n#include "
                   "\"a/one.c\"\n#endif\n");
    put("src/y.c", "#include \"x.h\"\n#include \"b/two.c\"\n");
    CHECK_INT(amalgamate("src/y.c -o y.c"), 0);
    CHECK_CONTAINS(get("y.c"), "#include \"x.h\"\n");
    CHECK_INT(count(get("y.c"), "int one;"), 0);
    CHECK_INT(count(get("y.c"), "int body;"), 0);
    CHECK_INT(count(get("y.c"), "int two;"), 1);
    /* x.h has a/own.h only where BODY is defined, so y.c needs it itself. */
    CHECK_INT(count(get("y.c"), "int own;"), 1);

    put("src/y.c", "#ifdef BODY\n#include \"x.h\"\n#include \"b/two.c\"\n#endif\n");
    CHECK_INT(amalgamate("src/y.c -o y.c"), 0);
    CHECK_INT(count(get("y.c"), "int own;"), 0);
}

static void what_an_if_hides_is_written_again_outside_it(void)
{
    fresh();
    put("src/a/one.h", "#ifndef ONE_H\n#define ONE_H\nint one;\n#endif\n");
    put("src/x.h",
        "#ifdef P\n#include \"a/one.h\"\n#include \"a/one.h\"\n#else\n#include \"a/one.h\"\n#endif\n"
        "#if defined( P ) // again\n#include \"a/one.h\"\n#endif\n");
    CHECK_INT(amalgamate("src/x.h -o x.h"), 0);
    CHECK_INT(count(get("x.h"), "int one;"), 2);
    put("src/x.h", "#include \"a/one.h\"\n#ifdef P\n#include \"a/one.h\"\n#endif\n");
    CHECK_INT(amalgamate("src/x.h -o x.h"), 0);
    CHECK_INT(count(get("x.h"), "int one;"), 1);
}

static void the_output_repeats_and_is_left_alone_when_unchanged(void)
{
    struct stat before, after;
    char path[8192];
    fresh();
    put("src/a/one.h", "int one;\n");
    put("src/x.h", "#include \"a/one.h\"\n");
    CHECK_INT(amalgamate("src/x.h -o x.h"), 0);
    path_in_tree(path, sizeof path, "x.h");
    CHECK_INT(stat(path, &before), 0);
    CHECK_INT(amalgamate("src/x.h -o x.h"), 0);
    CHECK_INT(stat(path, &after), 0);
    CHECK_INT(after.st_ino, before.st_ino);
    CHECK(after.st_mtim.tv_sec == before.st_mtim.tv_sec && after.st_mtim.tv_nsec == before.st_mtim.tv_nsec);
    CHECK_INT(amalgamate("src/x.h -o again.h"), 0);
    char first[1024];
    snprintf(first, sizeof first, "%s", get("x.h"));
    CHECK_STRING(get("again.h"), first);
    put("src/a/one.h", "int two;\n");
    CHECK_INT(amalgamate("src/x.h -o x.h"), 0);
    CHECK_CONTAINS(get("x.h"), "int two;");
    CHECK_STRING(get("x.h.new"), "");
}

static void line_directives_name_the_source(void)
{
    fresh();
    put("src/a/one.h", "#ifndef ONE_H\n#define ONE_H\n#include \"a/one.c\"\n#error here\n#endif\n");
    put("src/a/one.c", "int a;\n");
    put("src/x.h", "int x;\n#include \"a/one.h\"\n");
    CHECK_INT(amalgamate("--line src/x.h -o x.h"), 0);
    CHECK_CONTAINS(get("x.h"), "#line 1 \"src/x.h\"\nint x;\n");
    CHECK_CONTAINS(get("x.h"), "#line 1 \"src/a/one.c\"\nint a;\n#line 4 \"src/a/one.h\"\n#error here\n");
    CHECK_CONTAINS(get("x.h"), "#line 3 \"src/x.h\"\n");
}

/* Compiles what the tool wrote and compares the array's text with the file. */
static void check_strings(const char *name, const char *want, size_t size)
{
    char command[2 * 4096];
    put_bytes("want", want, size);
    snprintf(command, sizeof command,
             "cd '%s' && printf '%%s\\n' '#include <stdio.h>' 'static const char *const text[] = {' "
             "'#include \"%s\"' '};' "
             "'int main(void) { for (int i = 0; i < (int)(sizeof text / sizeof *text); i++) fputs(text[i], "
             "stdout); "
             "return 0; }' >show.c && %s -std=c99 -Wall -Wextra -Wpedantic -Werror -I. show.c -o show && "
             "./show >all && sed '/^#line/d' all >got && cmp got want",
             folder, name, getenv("CC") ? getenv("CC") : "cc");
    CHECK_INT(system(command), 0);
}

static void a_file_becomes_strings(void)
{
    static char text[12000];
    size_t size = (size_t)snprintf(text, sizeof text,
                                   "a \"quote\", a \\ and a \\n, ?\?= and %%s\ttab\r\n\n\303\251 1\n");
    memset(text + size, 'x', 9000); /* more than a C99 compiler must take in one literal */
    size += 9000;
    size += (size_t)snprintf(text + size, sizeof text - size, "\nno newline at the end");
    fresh();
    put_bytes("src/a/code.cl", text, size);
    CHECK_INT(amalgamate("--strings src/a/code.cl -o code.inc"), 0);
    text[size++] = '\n'; /* the tool ends a last line */
    check_strings("code.inc", text, size);
}

static void strings_resolve_their_own_includes(void)
{
    fresh();
    put("src/a/head.h", "#ifndef HEAD\n#define HEAD\nint \"head\";\n#endif\n");
    put("src/a/code.cl", "#include \"a/head.h\"\n#include \"a/head.h\"\nkernel\n");
    put("src/b/use.c",
        "#include \"a/head.h\"\nstatic const char *rows[] = {\n#include \"a/code.cl.inc\"\n};\n");
    put("src/x.c", "#include \"b/use.c\"\n");
    CHECK_INT(amalgamate("src/x.c -o x.c"), 0);
    CHECK_CONTAINS(get("x.c"),
                   "rows[] = {\n\"#line 1 \\\"a/code.cl\\\"\\n\",\n\"#line 1 \\\"a/head.h\\\"\\n\",\n"
                   "\"#ifndef HEAD\\n\",\n\"#define HEAD\\n\",\n\"int \\\"head\\\";\\n\",\n\"#endif\\n\",\n"
                   "\"#line 2 \\\"a/code.cl\\\"\\n\",\n\"\\n\",\n\"kernel\\n\",\n};\n");
    /* The header that became text is still written as code. */
    CHECK_INT(count(get("x.c"), "\nint \"head\";"), 1);
    /* A real .inc file is a file like any other. */
    put("src/a/code.cl.inc", "0\n");
    CHECK_INT(amalgamate("src/x.c -o x.c"), 0);
    CHECK_CONTAINS(get("x.c"), "rows[] = {\n\n/* ---- a/code.cl.inc ---- */\n\n0\n};\n");
}

/* The command fails with one line that holds `part`, and leaves no output. */
static void check_fails(const char *arguments, const char *part)
{
    CHECK_INT(amalgamate(arguments), 1);
    CHECK_CONTAINS(said, part);
    CHECK_INT(count(said, "\n"), 1);
    CHECK_STRING(get("out.h"), "");
}

static void mistakes_end_in_one_sentence(void)
{
    fresh();
    check_fails("src/none.h -o out.h", "can't read src/none.h");
    put("src/x.h", "int x;\n#include \"a/none.h\"\n");
    check_fails("src/x.h -o out.h", "src/x.h:2 includes \"a/none.h\"");
    put("src/x.h", "#include \"none.h\"\n");
    check_fails("src/x.h -o out.h", "src/x.h:1 includes \"none.h\"");
    put("src/x.h", "#include \"a/code.cl.inc\"\n");
    check_fails("src/x.h -o out.h", "can't read src/a/code.cl");
    put("src/x.h", "#include \"a\"\n");
    check_fails("src/x.h -o out.h", "src/a");
    put("src/x.h", "#include \"a/one.h\n");
    check_fails("src/x.h -o out.h", "src/x.h:1: #include without a closing quote");
    put("src/x.h", "#ifdef A\n");
    check_fails("src/x.h -o out.h", "src/x.h: #if without #endif");
    put("src/x.h", "#endif\n");
    check_fails("src/x.h -o out.h", "#endif without #if");
    put("src/x.h", "/* open\n");
    check_fails("src/x.h -o out.h", "a comment is never closed");
    put("src/x.h", "#include \"a/code.cl.inc\"\n");
    put_bytes("src/a/code.cl", "a\0b", 3);
    check_fails("src/x.h -o out.h", "src/a/code.cl holds a NUL byte");
    put("src/x.h", "int x;\n");
    check_fails("src/x.h -o nowhere/out.h", "can't write nowhere/out.h.new");
    check_fails("-I other src/x.h -o out.h", "src/x.h is not in other");
    put("src/a/one.h", "int x;\n");
    check_fails("src/a/one.h -o out.h", "src/a/one.h is not a root");
}

static void a_cycle_is_an_error(void)
{
    fresh();
    put("src/a/one.h", "#include \"b/two.h\"\n");
    put("src/b/two.h", "\n#include \"a/one.h\"\n");
    put("src/x.h", "#include \"a/one.h\"\n");
    check_fails("src/x.h -o out.h", "src/b/two.h:2: a/one.h includes itself");
    put("src/a/one.h", "#include \"x.h\"\n");
    check_fails("src/x.h -o out.h", "x.h includes itself");
}

static void wrong_usage_is_status_2(void)
{
    fresh();
    put("src/x.h", "int x;\n");
    CHECK_INT(amalgamate(""), 2);
    CHECK_INT(amalgamate("src/x.h"), 2);
    CHECK_CONTAINS(said, "-o OUT is missing");
    CHECK_INT(amalgamate("src/x.h -o"), 2);
    CHECK_INT(amalgamate("--wrong src/x.h -o out.h"), 2);
    CHECK_CONTAINS(said, "--wrong");
    CHECK_INT(amalgamate("src/x.h src/x.h -o out.h"), 2);
    CHECK_INT(amalgamate("--help"), 0);
    CHECK_CONTAINS(said, "usage: amalgamate");
    CHECK_STRING(get("out.h"), "");
}

int main(void)
{
    const char *build = getenv("DML_BUILD");
    char path[4096];
    snprintf(path, sizeof path, "%s/amalgamate", build ? build : "build");
    if (!realpath(path, tool)) {
        printf("%s is not there: run make first\n", path);
        return 1;
    }
    snprintf(folder, sizeof folder, "%s/dml-amalgamate-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (!mkdtemp(folder)) return 1;
    RUN(writes_each_file_once_in_include_order);
    RUN(the_version_is_named_when_there_is_none);
    RUN(includes_in_comments_and_literals_stay);
    RUN(a_file_without_a_last_newline_gets_one);
    RUN(another_root_stays_an_include_and_its_files_are_not_repeated);
    RUN(what_an_if_hides_is_written_again_outside_it);
    RUN(the_output_repeats_and_is_left_alone_when_unchanged);
    RUN(line_directives_name_the_source);
    RUN(a_file_becomes_strings);
    RUN(strings_resolve_their_own_includes);
    RUN(mistakes_end_in_one_sentence);
    RUN(a_cycle_is_an_error);
    RUN(wrong_usage_is_status_2);
    snprintf(path, sizeof path, "rm -rf '%s'", folder);
    if (system(path) != 0) return 1;
    return test_report("tools/amalgamate");
}
