#ifndef DML_DIST_OPTION_LIST_C
#define DML_DIST_OPTION_LIST_C

#include "dist/option_list.h"

#include "base/checksum.h"
#include "train/optimizer_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

DML__LOCAL void dml__list_word(dml__option_list *list, const char *name, const char *word)
{
    dml__option *option = list->option;
    while (option->name[0]) option++;
    DML_ASSERT(option < list->option + DML__MOST_OPTIONS - 1);
    snprintf(option->name, sizeof option->name, "%s", name);
    snprintf(option->value, sizeof option->value, "%s", word);
}

DML__LOCAL void dml__list_number(dml__option_list *list, const char *name, double number)
{
    char text[24]; /* sizes as they are; other numbers are floats, as they were written if these digits do */
    const bool whole = fabs(number) < 1e15 && floor(number) == number;
    snprintf(text, sizeof text, whole ? "%.0f" : "%g", number);
    if (!whole && (float)strtod(text, NULL) != (float)number) snprintf(text, sizeof text, "%.9g", number);
    dml__list_word(list, name, text);
}

DML__LOCAL void dml__list_optimizer(dml__option_list *list, const char *of, const dml_optimizer *optimizer)
{
    dml_optimizer copy = *optimizer;
    const dml__optimizer_row *row = dml__optimizer_row_of(copy.kind);
    const float *number;
    const char *number_name;
    char name[32];
    snprintf(name, sizeof name, "%s.kind", of);
    if (row)
        dml__list_word(list, name, row->name);
    else
        dml__list_number(list, name, (double)copy.kind);
    snprintf(name, sizeof name, "%s.nesterov", of);
    dml__list_number(list, name, copy.nesterov ? 1.0 : 0.0);
    for (int i = 0; (number = dml_optimizer_number(&copy, i, &number_name)) != NULL; i++) {
        snprintf(name, sizeof name, "%s.%s", of, number_name);
        dml__list_number(list, name, (double)*number);
    }
}

DML__LOCAL uint32_t dml__option_mark(const dml__option_list *list)
{
    return dml__crc32c(0, list, sizeof *list);
}

DML__LOCAL void dml__option_difference(const dml__option_list *list, const dml__option_list *first,
                                       char *text, size_t size)
{
    for (int i = 0; i < DML__MOST_OPTIONS; i++) {
        const dml__option *mine = &list->option[i], *other = &first->option[i];
        if (memcmp(mine, other, sizeof *mine) == 0) continue;
        snprintf(text, size, "%.31s (%.23s, where rank 0 has %.23s)", mine->name, mine->value, other->value);
        return;
    }
    snprintf(text, size, "options");
}

#endif
