/* option_list.h: a strategy's options with their names, so that ranks which have others can say which. */
#ifndef DML_DIST_OPTION_LIST_H
#define DML_DIST_OPTION_LIST_H

#include "base/platform.h"
#include "train/optimizer.h"

#include <stdint.h>

enum { DML__MOST_OPTIONS = 16 };

typedef struct dml__option {
    char name[32], value[24]; /* texts, which are the same in either byte order */
} dml__option;

/* What all ranks need alike. It begins as zeros: it is compared, and sent, as bytes. */
typedef struct dml__option_list {
    dml__option option[DML__MOST_OPTIONS]; /* up to the first without a name */
} dml__option_list;

DML__LOCAL void dml__list_word(dml__option_list *list, const char *name, const char *word);
DML__LOCAL void dml__list_number(dml__option_list *list, const char *name, double number);

/* Its kind and its numbers, as "outer.lr" where `of` is "outer". */
DML__LOCAL void dml__list_optimizer(dml__option_list *list, const char *of, const dml_optimizer *optimizer);

DML__LOCAL uint32_t dml__option_mark(const dml__option_list *list);

/* The first that differs, "name (value, where rank 0 has value)"; "options": none does. */
DML__LOCAL void dml__option_difference(const dml__option_list *list, const dml__option_list *first,
                                       char *text, size_t size);

#endif
