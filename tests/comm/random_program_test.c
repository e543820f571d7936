/* Random programs of many operations under way at once (random_program.h): first executed by a model of a few
   lines, which proves the generator; then by the library, where it has tags, groups and all calls that start.

       PROGRAM_ROUNDS=500 PROGRAM_SEED=7 random_program_test     more of them; or one again
       PROGRAM_LENGTH=40                                         of so many operations */
#include "jobs.h"

#include "comm/job.h"
#include "random_program.h"

#if defined(DML_ANY_TAG) && !defined(DML_COMM_HAS_TAGS)
#define DML_COMM_HAS_TAGS
#endif

static int setting(const char *name, int otherwise)
{
    const char *value = getenv(name);
    return value && *value ? atoi(value) : otherwise;
}

static unsigned first_seed(void)
{
    return (unsigned)setting("PROGRAM_SEED", (int)(time(NULL) % 100000));
}

static int length(void)
{
    const int operations = setting("PROGRAM_LENGTH", PROGRAM_OPERATIONS);
    return operations < PROGRAM_OPERATIONS ? operations : PROGRAM_OPERATIONS;
}

/* ---- the model: all ranks in one thread, one step at a time; what has come to a place from all its ranks is
 * done ----
 */

typedef struct model_place {
    int group, from, to, tag, turn; /* a collective: from -1 */
    int number[PROGRAM_RANKS];      /* by group rank: the operation that came, -1: none yet */
    program_call call[PROGRAM_RANKS];
    int here;
    bool done;
} model_place;

typedef struct model {
    const program *p;
    program_rank ranks[PROGRAM_RANKS];
    int place_of[PROGRAM_RANKS][PROGRAM_OPERATIONS]; /* -1: not started */
    model_place places[PROGRAM_OPERATIONS * 2];
    int count;
} model;

/* The k-th time that this rank comes to such a place. */
static model_place *model_find(model *m, const model_place *like)
{
    for (int i = 0; i < m->count; i++) {
        model_place *place = &m->places[i];
        if (place->group == like->group && place->from == like->from && place->to == like->to &&
            place->tag == like->tag && place->turn == like->turn)
            return place;
    }
    model_place *place = &m->places[m->count++];
    *place = *like;
    for (int rank = 0; rank < PROGRAM_RANKS; rank++) place->number[rank] = -1;
    return place;
}

/* Element i over all ranks of the group. */
static int model_reduced(const program_operation *o, const model_place *place, int size, size_t i)
{
    int result = 0;
    for (int rank = 0; rank < size; rank++) {
        const program_call *call = &place->call[rank];
        const int value =
            program_get(o->kind == PROGRAM_REDUCE_SCATTER ? call->in : (const void *)call->out, i, o->dtype);
        if (rank == 0 || (o->op == DML_MIN && value < result) || (o->op == DML_MAX && value > result))
            result = value;
        else if (o->op == DML_SUM)
            result += value;
    }
    return result;
}

/* What the calls are to do, as their reference says it. */
static void model_perform(const program *p, model_place *place)
{
    const int number = place->number[place->from < 0 ? 0 : place->from];
    const program_operation *o = &p->operation[number];
    const int size = p->group[o->group].size;
    const size_t row = o->count * dml_dtype_size(o->dtype);
    program_call *calls = place->call;
    for (size_t i = 0; (o->kind == PROGRAM_ALL_REDUCE || o->kind == PROGRAM_REDUCE) && i < o->count; i++) {
        const int result = model_reduced(o, place, size, i);
        for (int rank = 0; rank < size; rank++)
            if (o->kind == PROGRAM_ALL_REDUCE || rank == o->root)
                program_put(calls[rank].out, i, o->dtype, result);
    }
    for (int rank = 0; rank < size; rank++) {
        char *out = (char *)calls[rank].out;
        if (o->kind == PROGRAM_BROADCAST && rank != o->root) memcpy(out, calls[o->root].out, row);
        if (o->kind == PROGRAM_SCATTER)
            memcpy(out, (const char *)calls[o->root].in + (size_t)rank * row, row);
        if (o->kind == PROGRAM_MESSAGE && rank == o->to) memcpy(out, calls[o->root].out, row);
        for (size_t i = 0; o->kind == PROGRAM_REDUCE_SCATTER && i < o->count; i++)
            program_put(out, i, o->dtype, model_reduced(o, place, size, (size_t)rank * o->count + i));
        for (int other = 0; other < size; other++) {
            if (o->kind == PROGRAM_ALL_GATHER || (o->kind == PROGRAM_GATHER && rank == o->root))
                memcpy(out + (size_t)other * row, calls[other].in, row);
            if (o->kind == PROGRAM_ALL_TO_ALL)
                memcpy(out + (size_t)other * row, (const char *)calls[other].in + (size_t)rank * row, row);
        }
    }
    place->done = true;
}

/* A rank comes to the place where an operation meets: found by counting what it has started of that kind
   before, not by the operation's number, which is then compared. */
static void model_start(model *m, int world_rank, int number)
{
    const program *p = m->p;
    const program_operation *o = &p->operation[number];
    const bool message = o->kind == PROGRAM_MESSAGE;
    model_place like;
    memset(&like, 0, sizeof like);
    like.group = o->group;
    like.from = message ? o->root : -1;
    like.to = message ? o->to : -1;
    like.tag = message ? o->tag : -1;
    for (int other = 0; other < p->operations; other++)
        if (m->place_of[world_rank][other] >= 0 && program_same_stream(p, other, number)) like.turn++;
    model_place *place = model_find(m, &like);
    const int rank = program_takes_part(p, number, world_rank);
    for (int other = 0; other < p->group[o->group].size; other++)
        CHECK_MESSAGE(place->number[other] < 0 || place->number[other] == number,
                      "seed %u: operations %d and %d meet", p->seed, number, place->number[other]);
    place->number[rank] = number;
    if (o->kind != PROGRAM_SPLIT) program_begin(&m->ranks[world_rank], number, &place->call[rank]);
    m->place_of[world_rank][number] = (int)(place - m->places);
    if (++place->here < (message ? 2 : p->group[o->group].size)) return;
    model_perform(p, place);
}

/* One step of a rank if it can make one. */
static bool model_step(model *m, int rank)
{
    program_rank *me = &m->ranks[rank];
    if (me->next >= m->p->steps[rank]) return false;
    const program_step *step = &m->p->step[rank][me->next];
    const int number = step->operation;
    if (step->action == PROGRAM_PAUSE || step->action == PROGRAM_LOOK) {
        me->next++;
        return true;
    }
    const bool fresh = m->place_of[rank][number] < 0;
    CHECK_MESSAGE(fresh == (step->action != PROGRAM_WAIT) || step->action == PROGRAM_RUN,
                  "seed %u: operation %d of rank %d is started twice or waited for before", m->p->seed,
                  number, rank);
    if (fresh) model_start(m, rank, number);
    if (step->action != PROGRAM_START) {
        if (!m->places[m->place_of[rank][number]].done) return fresh;
        if (m->p->operation[number].kind != PROGRAM_SPLIT) program_end(me, number);
    }
    me->next++;
    return true;
}

static int model_under_way(const model *m, int rank)
{
    int count = 0;
    for (int number = 0; number < m->p->operations; number++)
        count += m->ranks[rank].slots[number].in != NULL;
    return count;
}

/* Steps of ranks in a random order until none can make one: then all must be at their ends. */
static void check_by_model(const program *p, int *most_under_way)
{
    model *m = (model *)calloc(1, sizeof *m);
    unsigned state = p->seed + 1;
    m->p = p;
    memset(m->place_of, -1, sizeof m->place_of);
    for (int rank = 0; rank < p->world; rank++) {
        m->ranks[rank].p = p;
        m->ranks[rank].rank = rank;
    }
    for (int idle = 0; idle < 50;) {
        const int rank = program_draw(&state, p->world);
        idle = model_step(m, rank) ? 0 : idle + 1;
        const int count = model_under_way(m, rank);
        *most_under_way = count > *most_under_way ? count : *most_under_way;
        for (int other = 0; idle > 40 && other < p->world; other++)
            if (model_step(m, other)) idle = 0;
    }
    for (int rank = 0; rank < p->world; rank++) {
        CHECK_MESSAGE(m->ranks[rank].next == p->steps[rank], "seed %u: rank %d hangs in step %d of %d",
                      p->seed, rank, m->ranks[rank].next, p->steps[rank]);
        CHECK_MESSAGE(!m->ranks[rank].bad, "seed %u: rank %d: %s", p->seed, rank, m->ranks[rank].first_bad);
        CHECK_MESSAGE(!model_under_way(m, rank), "seed %u: rank %d leaves operations", p->seed, rank);
        program_finish(&m->ranks[rank]);
    }
    free(m);
}

static void programs_by_the_model(void)
{
    static program p;
    const unsigned first = first_seed();
    const int rounds = setting("PROGRAM_ROUNDS", JOB_SLOW > 1 ? 10 : 60);
    int kinds[PROGRAM_KINDS] = { 0 }, groups = 0, most_under_way = 0;
    printf("PROGRAM_SEED=%u PROGRAM_ROUNDS=%d\n", first, rounds);
    for (int round = 0; round < rounds; round++) {
        program_write(&p, first + (unsigned)round, length(), 3000);
        for (int number = 0; number < p.operations; number++) kinds[p.operation[number].kind]++;
        groups += p.groups - 1;
        check_by_model(&p, &most_under_way);
    }
    if (length() < PROGRAM_OPERATIONS || rounds < 60) return;
    for (int kind = 0; kind < PROGRAM_KINDS; kind++)
        CHECK_MESSAGE(kinds[kind] > rounds, "%d operations of kind %d in %d programs", kinds[kind], kind,
                      rounds);
    CHECK(groups > rounds && most_under_way > 8);
}

/* ---- the library ---- */

#ifdef DML_COMM_HAS_TAGS

static void *library_split(void *comm, int color, int key)
{
    return dml_comm_split((dml_comm *)comm, color, key);
}

static void *library_start(void *opaque, const program_call *c)
{
    dml_comm *comm = (dml_comm *)opaque;
    switch (c->kind) {
    case PROGRAM_ALL_REDUCE: return dml_comm_all_reduce_start(comm, c->out, c->count, c->dtype, c->op);
    case PROGRAM_REDUCE: return dml_comm_reduce_start(comm, c->out, c->count, c->dtype, c->op, c->root);
    case PROGRAM_BROADCAST: return dml_comm_broadcast_start(comm, c->out, c->count, c->dtype, c->root);
    case PROGRAM_SCATTER: return dml_comm_scatter_start(comm, c->in, c->count, c->dtype, c->out, c->root);
    case PROGRAM_GATHER: return dml_comm_gather_start(comm, c->in, c->count, c->dtype, c->out, c->root);
    case PROGRAM_ALL_GATHER: return dml_comm_all_gather_start(comm, c->in, c->count, c->dtype, c->out);
    case PROGRAM_REDUCE_SCATTER:
        return dml_comm_reduce_scatter_start(comm, (void *)(uintptr_t)c->in, c->count, c->dtype, c->op,
                                             c->out);
    case PROGRAM_ALL_TO_ALL: return dml_comm_all_to_all_start(comm, c->in, c->count, c->dtype, c->out);
    case PROGRAM_BARRIER: return dml_comm_barrier_start(comm);
    case PROGRAM_MESSAGE:
        return c->sends ? dml_comm_send_start(comm, c->out, c->count, c->dtype, c->root, c->tag)
                        : dml_comm_receive_start(comm, c->out, c->count, c->dtype, c->root, c->tag);
    default: return NULL;
    }
}

static dml_status library_run(void *opaque, const program_call *c)
{
    dml_comm *comm = (dml_comm *)opaque;
    switch (c->kind) {
    case PROGRAM_ALL_REDUCE: return dml_comm_all_reduce(comm, c->out, c->count, c->dtype, c->op);
    case PROGRAM_REDUCE: return dml_comm_reduce(comm, c->out, c->count, c->dtype, c->op, c->root);
    case PROGRAM_BROADCAST: return dml_comm_broadcast(comm, c->out, c->count, c->dtype, c->root);
    case PROGRAM_SCATTER: return dml_comm_scatter(comm, c->in, c->count, c->dtype, c->out, c->root);
    case PROGRAM_GATHER: return dml_comm_gather(comm, c->in, c->count, c->dtype, c->out, c->root);
    case PROGRAM_ALL_GATHER: return dml_comm_all_gather(comm, c->in, c->count, c->dtype, c->out);
    case PROGRAM_REDUCE_SCATTER:
        return dml_comm_reduce_scatter(comm, (void *)(uintptr_t)c->in, c->count, c->dtype, c->op, c->out);
    case PROGRAM_ALL_TO_ALL: return dml_comm_all_to_all(comm, c->in, c->count, c->dtype, c->out);
    case PROGRAM_BARRIER: return dml_comm_barrier(comm);
    case PROGRAM_MESSAGE:
        return c->sends ? dml_comm_send(comm, c->out, c->count, c->dtype, c->root, c->tag)
                        : dml_comm_receive(comm, c->out, c->count, c->dtype, c->root, c->tag, NULL);
    default: return DML_ERROR_ARGUMENT;
    }
}

static bool library_done(void *comm, void *request)
{
    return dml_comm_done((dml_comm *)comm, (dml_request *)request);
}

static dml_status library_wait(void *comm, void *request, size_t *got)
{
    dml_message message;
    memset(&message, 0, sizeof message);
    const dml_status status = dml_comm_wait_message((dml_comm *)comm, (dml_request *)request, &message);
    *got = message.count;
    return status;
}

static void library_close(void *comm)
{
    dml_comm_close((dml_comm *)comm);
}

static const program_calls library = { library_split, library_run,  library_start,
                                       library_done,  library_wait, library_close };

static void program_body(job_rank *me)
{
    const program *p = (const program *)me->user;
    program_rank *rank = (program_rank *)calloc(1, sizeof *rank);
    unsigned state = p->seed + (unsigned)me->rank;
    rank->p = p;
    rank->calls = &library;
    rank->rank = me->rank;
    rank->comms[0] = me->comm;
    for (; rank->next < p->steps[me->rank]; rank->next++) {
        if (p->step[me->rank][rank->next].action == PROGRAM_PAUSE) job_sleep(1e-3 * program_draw(&state, 3));
        if (!program_do_step(rank)) break;
    }
    me->notes[0] = rank->next;
    me->bad = rank->bad;
    if (rank->bad) snprintf(me->logged, sizeof me->logged, "%s", rank->first_bad);
    /* After an error the library may still write to them. */
    if (!dml_comm_status(me->comm)) program_finish(rank);
    free(rank);
}

/* ---- on each transport: processes over TCP, processes that share memory, threads of one process ---- */

typedef enum program_ranks { OVER_TCP, OVER_SHM, AS_THREADS, PROGRAM_PLACES } program_ranks;
static const char *const places[] = { "tcp", "shm", "local" };

static void *program_thread(void *argument)
{
    job_rank *me = (job_rank *)argument;
    me->state = JOB_OPENED;
    me->body(me);
    me->state = JOB_RAN;
    me->status = dml_comm_status(me->comm);
    snprintf(me->error, sizeof me->error, "%s", dml_comm_error(me->comm));
    me->closed = dml_comm_close(me->comm);
    me->state = JOB_CLOSED;
    return NULL;
}

/* A process of the ranks' own, should they hang. */
static void program_start_threads(job *job, bool tight)
{
    fflush(stdout);
    const pid_t pid = fork();
    for (int rank = 0; rank < job->world; rank++) job->ranks[rank].pid = pid;
    if (pid) return;
    dml_comm *comms[PROGRAM_RANKS];
    pthread_t threads[PROGRAM_RANKS];
    alarm(300);
    if (dml_comm_open_local(comms, job->world, &job->ranks[0].options)) _exit(1);
    for (int rank = 0; rank < job->world; rank++) {
        job->ranks[rank].comm = comms[rank];
        if (tight) { /* hardly anything comes unasked */
            dml__comm_job *inside = comms[rank]->job;
            inside->eager_bytes = 2000;
            inside->store_bytes = 4 * DML__FRAME_BYTES * ((size_t)inside->max_requests + 1);
        }
        pthread_create(&threads[rank], NULL, program_thread, &job->ranks[rank]);
    }
    for (int rank = 0; rank < job->world; rank++) pthread_join(threads[rank], NULL);
    _exit(0);
}

static void program_wait(job *job, program_ranks place)
{
    const int world = job->world;
    if (place == AS_THREADS) job->world = 1; /* processes */
    job_wait(job, 60);
    job->world = world;
    for (int rank = 1; rank < world && place == AS_THREADS; rank++) {
        job->ranks[rank].hung = job->ranks[0].hung;
        job->ranks[rank].exit_code = job->ranks[0].exit_code;
    }
}

static void program_start(job *job, const program *p, program_ranks place)
{
    job_prepare(job, p->world, 10, program_body, p);
    for (int rank = 0; rank < p->world; rank++) {
        dml_comm_options *options = &job->ranks[rank].options;
        if (p->seed % 2) options->segment_bytes = 4096;
        options->progress_thread = p->seed % 3 == 0;
        options->transport = place == OVER_TCP ? "tcp" : "shm";
        if (p->seed % 5 == 0) options->max_requests = PROGRAM_OPERATIONS; /* what has to do at least */
    }
    if (place == AS_THREADS)
        program_start_threads(job, p->seed % 2 == 0);
    else
        job_start(job);
}

static void programs_by_the_library(void)
{
    static program p;
    const unsigned first = first_seed();
    const int rounds = setting("PROGRAM_ROUNDS", JOB_SLOW > 1 ? 3 : 12);
    for (unsigned seed = first; seed < first + (unsigned)rounds && test__ok; seed++) {
        job jobs[PROGRAM_PLACES];
        program_write(&p, seed, length(), 150000);
        for (int place = 0; place < PROGRAM_PLACES; place++)
            program_start(&jobs[place], &p, (program_ranks)place);
        for (int place = 0; place < PROGRAM_PLACES; place++) {
            char name[64];
            program_wait(&jobs[place], (program_ranks)place);
            for (int rank = 0; rank < p.world; rank++) {
                const job_rank *me = &jobs[place].ranks[rank];
                CHECK_MESSAGE(
                    !me->bad && me->notes[0] == p.steps[rank],
                    "PROGRAM_SEED=%u PROGRAM_ROUNDS=1: %s: rank %d came to step %lld of %d; %d wrong: %s",
                    seed, places[place], rank, me->notes[0], p.steps[rank], me->bad, me->logged);
            }
            snprintf(name, sizeof name, "seed %u over %s", seed, places[place]);
            check_job(&jobs[place], name);
            job_release(&jobs[place]);
        }
    }
}

#else

static void programs_by_the_library(void)
{
    SKIP("it has no tags and no groups");
}

#endif

int main(void)
{
    RUN(programs_by_the_model);
    RUN(programs_by_the_library);
    return test_report("comm/random_program");
}
