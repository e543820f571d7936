/* args.h: the flags of a program, from a table. A sample's own helper, not part of the library. */
#ifndef ARGS_H
#define ARGS_H

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One flag. Exactly one of the pointers is set: where its value goes, and what it is. What lies there before
   is the default, which the help shows. */
typedef struct arg {
    const char *name;  /* "--batch" */
    const char *value; /* "B", as the help calls it; "mlp|lenet": one of these; NULL for a switch */
    const char *help;
    bool *flag;
    const char **text;
    int *integer;
    double *real;
    double low, high;        /* the numbers that make sense; high 0: no limit */
    const char *environment; /* the variable that sets it where the flag doesn't; NULL: none */
    void (*more)(void);      /* prints what else the help has to say of it; NULL: nothing */
} arg;

static const char *args_program = "";

/* Ends the program with one sentence: "mnist: ...". Status 1: it went wrong; 2: it was called wrongly. */
#if defined(__GNUC__)
__attribute__((noreturn, format(printf, 2, 3)))
#endif
static void
args_exit(int status, const char *format, ...)
{
    char text[1024]; /* written at once, so that the sentences of several ranks don't mix */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fflush(stdout);
    fprintf(stderr, "%s: %s\n", args_program, text);
    exit(status);
}

/* Ends the program if any of its output could not be written: a disk is full. For after the last of it, and
   wherever going on would be in vain. */
static void args_check_output(void)
{
    errno = 0;
    if (fflush(stdout) || ferror(stdout))
        args_exit(1, "can't write to the standard output: %s",
                  errno ? strerror(errno) : "some of it is lost");
}

static void args_help(const char *about, const arg *args)
{
    printf("usage: %s [flags]\n\n%s\n\n", args_program, about);
    for (const arg *a = args; a->name; a++) {
        char left[64];
        snprintf(left, sizeof left, "%s %s", a->name, a->value ? a->value : "");
        printf("  %-20s %s", left, a->help);
        if (a->integer && *a->integer) printf(" (%d)", *a->integer);
        if (a->real && *a->real != 0) printf(" (%g)", *a->real);
        if (a->text && *a->text) printf(" (%s)", *a->text);
        printf("\n");
        if (a->more) a->more();
    }
    printf("  %-20s %s\n", "--help", "print this");
}

static bool args_is_one_of(const char *text, const char *choices)
{
    const size_t length = strcspn(text, "|"); /* of which no choice has one */
    for (const char *choice = choices; !text[length] && choice; choice = strchr(choice, '|')) {
        if (*choice == '|') choice++;
        if (strncmp(choice, text, length) == 0 && (choice[length] == '|' || !choice[length]))
            return length > 0;
    }
    return false;
}

/* `name` is what the user wrote, a flag or a variable. */
static void args_set_number(const arg *a, const char *name, const char *text)
{
    char *end;
    errno = 0;
    const double number = a->integer ? (double)strtoll(text, &end, 10) : strtod(text, &end);
    const double high = a->high != 0 ? a->high : a->integer ? INT_MAX : HUGE_VAL;
    if (end == text || *end || errno == ERANGE || !(number >= a->low && number <= high)) {
        char range[64];
        if (high < INT_MAX || (a->integer && number > high))
            snprintf(range, sizeof range, "from %.10g to %.10g", a->low, high);
        else
            snprintf(range, sizeof range, "of %.10g or more", a->low);
        args_exit(2, "%s %s: it takes a%s number %s", name, text, a->integer ? " whole" : "", range);
    }
    if (a->integer)
        *a->integer = (int)number;
    else
        *a->real = number;
}

static void args_set(const arg *a, const char *name, const char *text)
{
    if (a->integer || a->real)
        args_set_number(a, name, text);
    else if (strchr(a->value, '|') && !args_is_one_of(text, a->value))
        args_exit(2, "%s %s: it takes one of %s", name, text, a->value);
    else if (!*text)
        args_exit(2, "%s wants a value, %s", name, a->value);
    else
        *a->text = text;
}

/* Sets what argv asks for: "--batch 64" or "--batch=64". `args` ends with a row of zeros. Prints the help and
   exits for --help; exits with status 2 and one sentence for what it doesn't understand. */
static void args_parse(int argc, char **argv, const char *about, const arg *args)
{
    const char *slash = argc > 0 ? strrchr(argv[0], '/') : NULL;
    args_program = slash ? slash + 1 : argc > 0 ? argv[0] : "";
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            args_help(about, args);
            args_check_output();
            exit(0);
        }
    }
    for (const arg *a = args; a->name; a++) {
        const char *text = a->environment ? getenv(a->environment) : NULL;
        if (text && *text) args_set(a, a->environment, text);
    }
    for (int i = 1; i < argc; i++) {
        const char *equals = strchr(argv[i], '=');
        const size_t length = equals ? (size_t)(equals - argv[i]) : strlen(argv[i]);
        const arg *a = args;
        while (a->name && (strncmp(a->name, argv[i], length) != 0 || a->name[length])) a++;
        if (!a->name) args_exit(2, "\"%s\" is no flag of this program; --help lists them", argv[i]);
        if (a->flag && equals) args_exit(2, "%s takes no value", a->name);
        if (a->flag)
            *a->flag = true;
        else if (equals)
            args_set(a, a->name, equals + 1);
        else if (i + 1 < argc)
            args_set(a, a->name, argv[++i]);
        else
            args_exit(2, "%s wants a value, %s", a->name, a->value);
    }
}

#endif
