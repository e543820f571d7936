#ifndef DML_NET_UNLIKE_C
#define DML_NET_UNLIKE_C

#include "net/unlike.h"

#include <stdio.h>
#include <string.h>

#define DML__COMERS_NAMED 8 /* ranks of a group */
#define DML__GROUPS_NAMED 3 /* of those that are wrong */

/* Most come in that order already. */
static void dml__sort_comers(dml__comer *comers, int count)
{
    for (int i = 1; i < count; i++) {
        const dml__comer comer = comers[i];
        int at = i;
        for (; at > 0 && comers[at - 1].rank > comer.rank; at--) comers[at] = comers[at - 1];
        comers[at] = comer;
    }
}

static bool dml__comers_agree(const dml__comer *comers, int count, int setting)
{
    for (int i = 1; i < count; i++)
        if (comers[i].settings[setting] != comers[0].settings[setting]) return false;
    return true;
}

/* What most have. */
static uint32_t dml__right_setting(const dml__comer *comers, int count, int setting)
{
    uint32_t right = 0;
    int most = 0;
    for (int i = 0; i < count; i++) {
        int same = 0;
        for (int j = 0; j < count; j++) same += comers[j].settings[setting] == comers[i].settings[setting];
        if (same <= most) continue;
        most = same;
        right = comers[i].settings[setting];
    }
    return right;
}

/* "rank 2 has" or "ranks 0, 1 and 3 have": those with this value. */
static void dml__comers_text(const dml__comer *comers, int count, int setting, uint32_t value, char *text,
                             size_t bytes)
{
    int ranks[DML__COMERS_NAMED + 1], named = 0;
    for (int i = 0; i < count && named <= DML__COMERS_NAMED; i++)
        if (comers[i].settings[setting] == value && (!named || ranks[named - 1] != comers[i].rank))
            ranks[named++] = comers[i].rank;
    size_t used = (size_t)snprintf(text, bytes, named == 1 ? "rank" : "ranks");
    for (int i = 0; i < named && used < bytes; i++) {
        const char *before = i == 0 ? " " : i + 1 == named ? " and " : ", ";
        if (i == DML__COMERS_NAMED)
            used += (size_t)snprintf(text + used, bytes - used, " and more");
        else
            used += (size_t)snprintf(text + used, bytes - used, "%s%d", before, ranks[i]);
    }
    if (used < bytes) snprintf(text + used, bytes - used, named == 1 ? " has" : " have");
}

/* Whether nobody before has the same. */
static bool dml__first_with(const dml__comer *comers, int at, int setting)
{
    for (int i = 0; i < at; i++)
        if (comers[i].settings[setting] == comers[at].settings[setting]) return false;
    return true;
}

/* "rank 2 has max_requests 16, ranks 0, 1 and 3 have 64: give all the same" */
static int dml__unlike_text(const dml__comer *comers, int count, int setting, char *text, size_t bytes)
{
    static const char *const names[DML__COMER_SETTINGS] = { "world_size", "segment_bytes", "max_requests" };
    const uint32_t right = dml__right_setting(comers, count, setting);
    char group[160];
    int culprit = -1, groups = 0;
    size_t used = 0;
    for (int i = 0; i < count; i++) {
        if (comers[i].settings[setting] == right || !dml__first_with(comers, i, setting)) continue;
        if (culprit < 0) culprit = comers[i].rank;
        if (groups++ >= DML__GROUPS_NAMED) continue;
        const uint32_t value = comers[i].settings[setting];
        dml__comers_text(comers, count, setting, value, group, sizeof group);
        used += (size_t)snprintf(text + used, bytes - used, "%s %s%s%u, ", group,
                                 groups == 1 ? names[setting] : "", groups == 1 ? " " : "", (unsigned)value);
        if (used >= bytes) return culprit;
    }
    dml__comers_text(comers, count, setting, right, group, sizeof group);
    snprintf(text + used, bytes - used, "%s%s %u: give all the same",
             groups > DML__GROUPS_NAMED ? "others have others, " : "", group, (unsigned)right);
    return culprit;
}

/* "rank 1 came twice to rank 0, and rank 2 of 3 not at all: ..." */
static int dml__twice_text(const dml__comer *comers, int count, char *text, size_t bytes)
{
    const int world = (int)comers[0].settings[DML__COMER_WORLD];
    int twice = -1, times = 0, missing = -1;
    char often[24] = "twice", absent[64] = "";
    for (int i = 1; i < count; i++) {
        if (twice < 0 && comers[i].rank == comers[i - 1].rank) twice = comers[i].rank;
        if (missing < 0 && comers[i].rank > comers[i - 1].rank + 1) missing = comers[i - 1].rank + 1;
    }
    if (missing < 0 && comers[count - 1].rank + 1 < world) missing = comers[count - 1].rank + 1;
    if (twice < 0) return -1;
    for (int i = 0; i < count; i++) times += comers[i].rank == twice;
    if (times > 2) snprintf(often, sizeof often, "%d times", times);
    if (missing >= 0) snprintf(absent, sizeof absent, ", and rank %d of %d not at all", missing, world);
    snprintf(text, bytes,
             "rank %d came %s to rank 0%s: %s processes have the same rank, or two jobs the same port", twice,
             often, absent, times > 2 ? "several" : "two");
    return twice;
}

DML__LOCAL int dml__judge_comers(dml__comer *comers, int count, char *text, size_t bytes)
{
    text[0] = '\0';
    dml__sort_comers(comers, count);
    for (int setting = 0; setting < DML__COMER_SETTINGS; setting++)
        if (!dml__comers_agree(comers, count, setting))
            return dml__unlike_text(comers, count, setting, text, bytes);
    return dml__twice_text(comers, count, text, bytes);
}

#endif
