/* ranks.h: what samples whose ranks work together need: a rank's share, and an end that all of them come to.
   A sample's own helper, not part of the library. Include dml_comm.h and args.h first. */
#ifndef RANKS_H
#define RANKS_H

#if defined(__GNUC__)
#define RANKS_UNUSED __attribute__((unused))
#else
#define RANKS_UNUSED
#endif

RANKS_UNUSED static void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (!memory) args_exit(1, "no memory left for %zu x %zu bytes", count, size);
    return memory;
}

/* Of `count` things, rank r has those from share(count, r) up to share(count, r + 1). */
RANKS_UNUSED static int share(int count, int rank, int ranks)
{
    return (int)((int64_t)count * rank / ranks);
}

/* What a rank has to say against going on; empty: nothing. */
typedef struct complaint {
    char text[1024];
} complaint;

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
RANKS_UNUSED static bool
complain(complaint *c, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(c->text, sizeof c->text, format, arguments);
    va_end(arguments);
    return false;
}

/* Ends all ranks when one has a complaint: as a rule they all have the same, so the first of them speaks and
   the others are silent. It leaves when everyone knows that, for its going looks like a failure to a rank
   that is still in the sum; and they wait until it has left, since dmlrun ends a job soon after one of its
   ranks has. How their waiting ends doesn't matter. */
RANKS_UNUSED static void settle(const complaint *c, dml_comm *comm)
{
    const int rank = dml_comm_rank(comm), ranks = dml_comm_world_size(comm);
    int32_t speaker = c->text[0] ? rank : ranks;
    if (dml_comm_all_reduce(comm, &speaker, 1, DML_I32, DML_MIN) != DML_OK)
        args_exit(1, "%s", c->text[0] ? c->text : dml_comm_error(comm));
    if (speaker == ranks) return;
    dml_comm_barrier(comm);
    if (speaker == rank)
        fprintf(stderr, "%s: %s\n", args_program, c->text);
    else
        dml_comm_barrier(comm);
    dml_comm_close(comm);
    exit(1);
}

#endif
