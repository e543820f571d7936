/* choice_table.h: the cheapest algorithms, in a table. A model of the links prices every algorithm; the table
   is what rank 0 sends to all. */
#ifndef DML_COMM_CHOICE_TABLE_H
#define DML_COMM_CHOICE_TABLE_H

#include "base/platform.h"
#include "comm/price.h"
#include "comm/schedule.h"

enum {
    DML__CHOICE_OPERATIONS = DML__CALL_BARRIER + 1,
    DML__CHOICE_SIZES = 36, /* the last: 2^35 bytes and more */
    DML__CHOICE_NONE = 255  /* no algorithm is known for the operation */
};

/* Indices of dml__algorithms(), for a call of at most 2^i bytes (of what dml__collective.count counts): the
   cheapest of all, and of those that take parts of different sizes. */
typedef struct dml__choice {
    uint8_t algorithm[2][DML__CHOICE_OPERATIONS][DML__CHOICE_SIZES];
} dml__choice;

/* The one for a call of so many bytes. */
DML__LOCAL uint8_t dml__choice_of(const dml__choice *choice, dml__comm_operation operation, uint64_t bytes,
                                  bool equal_parts);

/* Writes the table for groups of `size` ranks. The algorithms are run at a few sizes (price.h) with root 0
   and the model's scratch, but for those that can't be best by what they send alone, and are taken to cost in
   between what lies on the straight line; of those that cost as little as the cheapest, or, where the
   ranks are all on one host and more than its processors, within 12 % of it, the first in the list is
   taken. One that doesn't fit `work` (aligned for a double) is taken only where nothing else is. After
   `until` (dml_seconds) none is run any more: what is left is judged by what it sends alone. `rank_order`: of
   those that sum only the ones that do so in the order of the ranks. model->most_segments is not used. */
DML__LOCAL void dml__fill_choice(const dml__price_model *model, int size,
                                 const dml__algorithm_info *algorithms, int count, int most_steps,
                                 bool rank_order, double until, void *work, size_t work_bytes,
                                 dml__choice *choice);

/* The model as it is used for that: coarser, and of ranks that share memory awake if each has a processor. */
DML__LOCAL dml__price_model dml__choice_model(const dml__price_model *model, int size);

/* Enough work for that, up to 4 MiB and what a rank's steps take. From about 64 ranks on only those
   algorithms fit whose ranks are alike or have few steps; to run the others would take seconds, too. */
DML__LOCAL size_t dml__choice_work_bytes(int size, int most_steps);

#endif
