/* choice: is the algorithm that is chosen the best one? Every algorithm of a collective is timed in turn with
   the others, so that whatever else the machine does slows all of them down alike, beside its price. It asks
   which one is chosen and for what price, which the library keeps to itself, so it holds the implementation
   (see the Makefile). */
#include "base/clock.h" /* first: it asks the system headers for POSIX */
#include "comm/algorithms.h"
#include "comm/choice.h"
#include "comm/job.h"

#include "bench.h"

#include "collective.h"
#include "loopback.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { RANKS_MAX = 64, SAMPLES_MAX = 32, SAMPLES_MIN = 6, ALGORITHMS_MAX = 16, SLOW = 4 };
enum { DOUBTS_MAX = 2 * OPERATIONS * 32 };
enum {
    AGAIN_MAX = 48,
    AGAIN_MIN = 10,
    AGAIN_LONGER = 20
}; /* rounds of a row that is short; times `seconds` */

#define AS_GOOD (1 / 1.1) /* of the best one's speed: the bar */

typedef struct settings {
    const char *operation, *transport;
    double least, most, seconds, tune;
    bool each, quick;
} settings;

/* A row that is short in one job, for the next to ask again. */
typedef struct doubt {
    const operation *operation;
    double bytes;
    const dml__algorithm_info *best;
    bool tuned;
    double before; /* the chosen one's speed by the best one's */
} doubt;

/* In memory that all ranks of both jobs share; rank 0 of the first writes it. */
typedef struct doubts {
    int count;
    doubt rows[DOUBTS_MAX];
} doubts;

static const char usage[] =
    "usage: choice [--op NAME] [--transport tcp|shm|local] [--ranks N] [--min B] [--max B] [--seconds S] "
    "[--tune S] [--each] [--quick]\n"
    "  --op NAME         one collective, as in allreduce; otherwise all of them\n"
    "  --transport NAME  ranks that are processes over TCP or in shared memory, or threads of one (local); "
    "otherwise\n"
    "                    one after the other\n"
    "  --ranks N         N ranks only, 2 to 64; otherwise 2, 4 and 8\n"
    "  --min B, --max B  sizes from B to B bytes, of the whole array; otherwise 4 to 64 MiB, times 4 each\n"
    "  --seconds S       how long to time each algorithm; 0.05. 0: only prices\n"
    "  --tune S          seconds of dml_comm_tune for each number of ranks; 10 (--quick: 1). 0: none\n"
    "  --each            a row for each algorithm, too\n"
    "  --quick           fewer sizes\n"
    "Prints a row for each transport, number of ranks, collective and size: the algorithm that is chosen and "
    "the\n"
    "best one by median times (microseconds of a call, of many one after the other, on the rank that takes "
    "longest;\n"
    "those with a root, which would overlap, one by one behind barriers), both with their prices (of one "
    "call, by\n"
    "the links that rank 0 measured), and how much longer the chosen one takes: the least of many noisy "
    "medians is\n"
    "lower than what that algorithm takes when it is asked again, so the best one of every other round is "
    "compared\n"
    "in the rounds between, both ways round (ratio_peer). Where that is more than 10 %, the two are asked "
    "again, by\n"
    "turns and longer, and the median of that counts (asked_again=1). Where it still is, a new job, whose "
    "ranks the\n"
    "system places anew, asks again: what it chooses beside what was the best one in the job before, and "
    "that\n"
    "counts (asked_again=2; ratio_before: in the job before).\n"
    "Rows of name=choice are of what is chosen by prices, of name=tuned of what is by dml_comm_tune.\n";

static void die(const char *what, const char *name)
{
    fprintf(stderr, "choice: %s%s\n", what, name);
    exit(2);
}

/* ---- one call ---- */

typedef struct job {
    dml_comm *comm;
    const settings *asked;
    const operation *operation;
    const char *transport;
    dml__choice by_prices, by_trials;
    float *in, *out; /* (count) each */
    size_t count;    /* floats of the whole array */
    doubts *doubts;
} job;

static void check(const dml_comm *comm)
{
    if (dml_comm_status(comm) == DML_OK) return;
    fprintf(stderr, "choice: rank %d: %s\n", dml_comm_rank(comm), dml_comm_error(comm));
    exit(1);
}

/* Those with a root, which would overlap, are timed one by one, each behind a barrier, as the OSU benchmarks
   do (osu_bcast, osu_reduce, osu_scatter, osu_gather). */
static double seconds_of_calls(const job *j, int calls)
{
    const bool apart = dml__has_root(j->operation->call);
    const int at_once = apart ? 1 : calls;
    double seconds = 0;
    for (int done = 0; done < calls; done += at_once) {
        if (apart) dml_comm_barrier(j->comm);
        const double start = dml_seconds();
        for (int i = 0; i < at_once; i++) call_operation(j->operation, j->comm, j->in, j->out, j->count);
        seconds += dml_seconds() - start;
    }
    return seconds / calls;
}

/* Seconds of one, on the rank that takes longest; told to all. What the algorithm before has left in the
   caches is not this one's affair, so a call goes before. */
static double time_calls(const job *j, const char *algorithm, int calls)
{
    dml__comm_job *own = j->comm->job;
    dml__ask_for_algorithm(own, "");
    dml_comm_barrier(j->comm);
    char name[64];
    snprintf(name, sizeof name, "%s=%s", j->operation->name, algorithm);
    dml__ask_for_algorithm(own, name);
    call_operation(j->operation, j->comm, j->in, j->out, j->count);
    double seconds = seconds_of_calls(j, calls);
    dml__ask_for_algorithm(own, "");
    dml_comm_all_reduce(j->comm, &seconds, 1, DML_F64, DML_MAX);
    check(j->comm);
    return seconds;
}

/* ---- one size ---- */

typedef struct candidate {
    const dml__algorithm_info *info;
    double seconds, price; /* 0: not known */
    double half[2];        /* seconds, of the rounds with even and with odd numbers */
    double by_best;        /* of the best one's speed; of the chosen ones only, as `again` */
    int again;             /* 1: in this job; 2: in a new one */
    bool chosen, tuned;
} candidate;

static double price_of(const job *j, const dml__algorithm_info *info, uint64_t count)
{
    const int size = dml_comm_world_size(j->comm), steps = dml__most_steps(size);
    const dml__price_model model = dml__choice_model(&j->comm->model, size);
    dml__collective c;
    dml__price price;
    memset(&c, 0, sizeof c);
    memset(&price, 0, sizeof price);
    c.operation = info->operation;
    c.size = size;
    c.count = count;
    const size_t bytes = dml__price_work_bytes(&model, size, steps);
    void *work = malloc(bytes);
    if (!work) die("no memory", "");
    if (dml__price_collective(&model, info, &c, sizeof(float), steps, work, bytes, &price)) price.seconds = 0;
    free(work);
    return price.seconds;
}

static int choose_by(const job *j, const dml__choice *choice, const dml__comm_call *call)
{
    j->comm->choice = *choice;
    dml__ask_for_algorithm(j->comm->job, "");
    return dml__choose_algorithm(j->comm, call);
}

/* The algorithms that can run the call. */
static int list_candidates(const job *j, candidate *list)
{
    dml__comm_call call;
    int all, count = 0;
    const dml__algorithm_info *infos = dml__algorithms(&all);
    memset(&call, 0, sizeof call);
    call.signature.operation = j->operation->call;
    call.signature.dtype = DML_F32;
    call.signature.count = j->operation->parts ? j->count / (size_t)dml_comm_world_size(j->comm) : j->count;
    const int tuned = choose_by(j, &j->by_trials, &call), chosen = choose_by(j, &j->by_prices, &call);
    for (int i = 0; i < all && count < ALGORITHMS_MAX; i++) {
        if (infos[i].operation != call.signature.operation || dml__is_in_place(&infos[i])) continue;
        dml__ask_for_algorithm(j->comm->job, infos[i].name);
        if (dml__choose_algorithm(j->comm, &call) != i) continue;
        candidate *c = &list[count++];
        c->info = &infos[i];
        c->chosen = i == chosen;
        c->tuned = i == tuned;
        c->again = 0;
        c->seconds = c->by_best = 0;
        c->price = dml_comm_rank(j->comm) ? 0 : price_of(j, c->info, call.signature.count);
    }
    return count;
}

/* Those that take SLOW times as long as the best by first calls, of many rounds of few elements mostly, are
   put behind the others. Returns how many these are. */
static int try_candidates(const job *j, candidate *list, int count)
{
    double least = 1e9;
    int fast = 0;
    for (int i = 0; i < count; i++) {
        list[i].seconds = 1e9;
        for (int calls = 1; calls == 1 || (calls <= 16 && calls * list[i].seconds < 20e-3); calls *= 4) {
            const double seconds = time_calls(j, list[i].info->name, calls);
            if (seconds < list[i].seconds) list[i].seconds = seconds;
        }
        list[i].half[0] = list[i].half[1] = list[i].seconds;
        if (list[i].seconds < least) least = list[i].seconds;
    }
    for (int i = 0; i < count; i++) {
        if (list[i].seconds > SLOW * least) continue;
        const candidate c = list[i];
        list[i] = list[fast];
        list[fast++] = c;
    }
    return fast;
}

/* So many that the clock's steps and the barrier don't count. */
static int calls_of(const candidate *c)
{
    return c->seconds > 2e-3 ? 1 : (int)(2e-3 / c->seconds) + 1;
}

/* As many as fit, an even number, since each is the first in half of them. */
static int rounds_in(double seconds, double round, int least, int most)
{
    const double fit = seconds / round;
    return fit < least ? least : fit > most ? most : (int)fit / 2 * 2;
}

/* Rounds in which each has its turn, and each is the first in one. */
static void time_candidates(const job *j, candidate *list, int count)
{
    double samples[ALGORITHMS_MAX][2][SAMPLES_MAX / 2], all[SAMPLES_MAX], sum = 0;
    int calls[ALGORITHMS_MAX];
    for (int i = 0; i < count; i++) {
        calls[i] = calls_of(&list[i]);
        sum += list[i].seconds * calls[i];
    }
    const int rounds = rounds_in(j->asked->seconds * count, sum, SAMPLES_MIN, SAMPLES_MAX);
    for (int round = 0; round < rounds; round++)
        for (int k = 0; k < count; k++) {
            const int i = (k + round) % count;
            samples[i][round % 2][round / 2] = time_calls(j, list[i].info->name, calls[i]);
        }
    for (int i = 0; i < count; i++) {
        for (int half = 0; half < 2; half++) {
            memcpy(all + half * rounds / 2, samples[i][half], (size_t)rounds / 2 * sizeof(double));
            list[i].half[half] = bench_median(samples[i][half], rounds / 2);
        }
        list[i].seconds = bench_median(all, rounds);
    }
}

static const candidate *best_of(const candidate *list, int count)
{
    const candidate *best = &list[0];
    for (int i = 1; i < count; i++)
        if (list[i].seconds < best->seconds) best = &list[i];
    return best;
}

/* The chosen one's speed by that of the one that is best by the other half of the rounds; the geometric mean
   of both ways round. */
static double chosen_by_best(const candidate *list, int count, const candidate *chosen)
{
    double product = 1;
    for (int half = 0; half < 2; half++) {
        const candidate *best = &list[0];
        for (int i = 1; i < count; i++)
            if (list[i].half[half] < best->half[half]) best = &list[i];
        product *= best->half[!half] / chosen->half[!half];
    }
    return sqrt(product);
}

/* Of the two alone, by turns. */
static double asked_again(const job *j, const candidate *chosen, const candidate *best)
{
    double by_best[AGAIN_MAX], seconds[2];
    const int calls[2] = { calls_of(chosen), calls_of(best) };
    const double round = chosen->seconds * calls[0] + best->seconds * calls[1];
    const int rounds = rounds_in(AGAIN_LONGER * j->asked->seconds, round, AGAIN_MIN, AGAIN_MAX);
    for (int i = 0; i < rounds; i++) {
        for (int k = 0; k < 2; k++) {
            const int which = (i + k) % 2;
            seconds[which] = time_calls(j, (which ? best : chosen)->info->name, calls[which]);
        }
        by_best[i] = seconds[1] / seconds[0];
    }
    return bench_median(by_best, rounds);
}

static void judge_chosen(const job *j, candidate *list, int count)
{
    const candidate *best = best_of(list, count);
    for (int i = 0; i < count; i++) {
        candidate *c = &list[i];
        if (!c->chosen && !(c->tuned && j->asked->tune > 0)) continue;
        c->by_best = c == best ? 1 : chosen_by_best(list, count, c);
        c->again = c->by_best < AS_GOOD;
        if (c->again) c->by_best = asked_again(j, c, best);
    }
}

static void where_text(const job *j, char where[128])
{
    snprintf(where, 128, "op=%s transport=%s ranks=%d bytes=%zu", j->operation->name, j->transport,
             dml_comm_world_size(j->comm), j->count * sizeof(float));
}

/* `before`: its ratio in the job before; 0: there was none. */
static void print_choice(const job *j, bool tuned, const candidate *chosen, const candidate *best,
                         double before)
{
    char where[128];
    where_text(j, where);
    if (best->seconds <= 0) return;
    printf("name=%s %s chosen=%s threads=1 ours=%.4g best_peer=%.4g peer=%s limit=0 ratio_peer=%.3f "
           "ratio_limit=0 unit=us price_us=%.4g best_price_us=%.4g asked_again=%d ratio_before=%.3f\n",
           tuned ? "tuned" : "choice", where, chosen->info->name, 1e6 * chosen->seconds, 1e6 * best->seconds,
           best->info->name, chosen->by_best, 1e6 * chosen->price, 1e6 * best->price, chosen->again, before);
}

/* What is short is left for the next job. */
static void print_or_doubt(const job *j, double bytes, bool tuned, const candidate *chosen,
                           const candidate *best)
{
    if (chosen->by_best >= AS_GOOD || best->seconds <= 0 || j->doubts->count == DOUBTS_MAX) {
        print_choice(j, tuned, chosen, best, 0);
        return;
    }
    doubt *d = &j->doubts->rows[j->doubts->count++];
    d->operation = j->operation;
    d->bytes = bytes;
    d->best = best->info;
    d->tuned = tuned;
    d->before = chosen->by_best;
}

static void print_rows(const job *j, double bytes, const candidate *list, int count)
{
    char where[128];
    where_text(j, where);
    for (int i = 0; j->asked->each && i < count; i++)
        printf("name=algorithm %s algo=%s chosen=%d tuned=%d us=%.4g price_us=%.4g\n", where,
               list[i].info->name, list[i].chosen, list[i].tuned, 1e6 * list[i].seconds, 1e6 * list[i].price);
    for (int i = 0; i < count; i++)
        if (list[i].chosen) print_or_doubt(j, bytes, false, &list[i], best_of(list, count));
    for (int i = 0; j->asked->tune > 0 && i < count; i++)
        if (list[i].tuned) print_or_doubt(j, bytes, true, &list[i], best_of(list, count));
    fflush(stdout);
}

/* Arrays for so many bytes, and the algorithms that can run the call. */
static int begin_size(job *j, double bytes, candidate list[ALGORITHMS_MAX])
{
    const size_t ranks = (size_t)dml_comm_world_size(j->comm);
    j->count = (size_t)bytes / sizeof(float);
    if (j->operation->parts) j->count = (j->count + ranks - 1) / ranks * ranks;
    j->in = new_array(j->count);
    j->out = new_array(j->count);
    return list_candidates(j, list);
}

static void end_size(job *j)
{
    free(j->in);
    free(j->out);
}

static void measure_size(job *j, double bytes)
{
    candidate list[ALGORITHMS_MAX];
    const int count = begin_size(j, bytes, list);
    if (j->asked->seconds > 0) {
        time_candidates(j, list, try_candidates(j, list, count));
        judge_chosen(j, list, count);
    }
    if (dml_comm_rank(j->comm) == 0) print_rows(j, bytes, list, count);
    end_size(j);
}

/* What this job chooses beside what was the best one in the job before. */
static void measure_doubt(job *j, const doubt *d)
{
    candidate list[ALGORITHMS_MAX], two[2];
    j->operation = d->operation;
    const int count = begin_size(j, d->bytes, list);
    two[0] = two[1] = list[0];
    for (int i = 0; i < count; i++) {
        if (d->tuned ? list[i].tuned : list[i].chosen) two[0] = list[i];
        if (list[i].info == d->best) two[1] = list[i];
    }
    const dml__algorithm_info *chosen = two[0].info;
    const int different = chosen == d->best ? 1 : 2;
    try_candidates(j, two, different);
    if (two[0].info != chosen) { /* it is slow, and was put behind */
        const candidate best = two[0];
        two[0] = two[1];
        two[1] = best;
    }
    time_candidates(j, two, different);
    two[0].by_best = different == 1 ? 1 : asked_again(j, &two[0], &two[1]);
    two[0].again = 2;
    if (dml_comm_rank(j->comm) == 0) print_choice(j, d->tuned, &two[0], &two[different - 1], d->before);
    fflush(stdout);
    end_size(j);
}

/* ---- the ranks ---- */

static void measure_sizes(job *j)
{
    for (int i = 0; i < OPERATIONS; i++) {
        j->operation = &operations[i];
        if (j->asked->operation && strcmp(j->asked->operation, operations[i].name) != 0) continue;
        for (double bytes = 4; bytes <= j->asked->most; bytes *= j->asked->quick ? 64 : 4)
            if (bytes >= j->asked->least) measure_size(j, bytes);
    }
}

static void run_rank(dml_comm *comm, const char *transport, const settings *asked, doubts *doubts, bool again)
{
    job j;
    memset(&j, 0, sizeof j);
    j.comm = comm;
    j.asked = asked;
    j.transport = transport;
    check(comm);
    j.by_prices = comm->choice;
    if (asked->tune > 0) dml_comm_tune(comm, asked->tune);
    check(comm);
    j.by_trials = comm->choice;
    j.doubts = doubts;
    if (!again) measure_sizes(&j);
    for (int i = 0; again && i < doubts->count; i++) measure_doubt(&j, &doubts->rows[i]);
    dml_comm_close(comm);
}

/* Forks the ranks and waits for them: 0 if all went well. */
static int run_processes(int ranks, const char *transport, const settings *asked, doubts *doubts, bool again)
{
    pid_t pids[RANKS_MAX];
    const int port = loopback_free_port();
    int failed = 0;
    fflush(stdout);
    for (int rank = 0; rank < ranks; rank++) {
        pids[rank] = fork();
        if (pids[rank] < 0) die("can't start a process", "");
        if (pids[rank]) continue;
        dml_comm_options options;
        memset(&options, 0, sizeof options);
        options.rank = rank;
        options.world_size = ranks;
        options.master_addr = "127.0.0.1";
        options.master_port = port;
        options.transport = transport;
        run_rank(dml_comm_open(&options), transport, asked, doubts, again);
        exit(0);
    }
    for (int rank = 0; rank < ranks; rank++) {
        int status = 1;
        waitpid(pids[rank], &status, 0);
        failed |= status != 0;
    }
    return failed;
}

typedef struct thread_rank {
    pthread_t thread;
    dml_comm *comm;
    const settings *asked;
    doubts *doubts;
    bool again;
} thread_rank;

static void *run_thread(void *argument)
{
    thread_rank *r = (thread_rank *)argument;
    run_rank(r->comm, "local", r->asked, r->doubts, r->again);
    return NULL;
}

static int run_threads(int ranks, const settings *asked, doubts *doubts, bool again)
{
    dml_comm *comms[RANKS_MAX];
    thread_rank all[RANKS_MAX];
    if (dml_comm_open_local(comms, ranks, NULL) != DML_OK) die("no memory", "");
    for (int rank = 0; rank < ranks; rank++) {
        all[rank].comm = comms[rank];
        all[rank].asked = asked;
        all[rank].doubts = doubts;
        all[rank].again = again;
        if (pthread_create(&all[rank].thread, NULL, run_thread, &all[rank])) die("can't start a thread", "");
    }
    for (int rank = 0; rank < ranks; rank++) pthread_join(all[rank].thread, NULL);
    return 0;
}

static int run_job(int ranks, const char *transport, const settings *asked, doubts *doubts, bool again)
{
    return strcmp(transport, "local") == 0 ? run_threads(ranks, asked, doubts, again)
                                           : run_processes(ranks, transport, asked, doubts, again);
}

/* A job, and one for what was short in it. */
static int run_jobs(int ranks, const char *transport, const settings *asked, doubts *doubts)
{
    doubts->count = 0;
    const int failed = run_job(ranks, transport, asked, doubts, false);
    return failed || doubts->count == 0 ? failed : run_job(ranks, transport, asked, doubts, true);
}

int main(int argc, char **argv)
{
    static const char *const transports[] = { "tcp", "shm", "local" };
    int ranks = 0, failed = 0;
    bool known = false;
    settings asked;
    memset(&asked, 0, sizeof asked);
    asked.least = 4;
    asked.most = 64 << 20;
    asked.seconds = 0.05;
    asked.tune = -1;
    const bench_option options[] = { { "--op", BENCH_TEXT, &asked.operation, 0, 0 },
                                     { "--transport", BENCH_TEXT, &asked.transport, 0, 0 },
                                     { "--ranks", BENCH_INT, &ranks, 2, RANKS_MAX },
                                     { "--min", BENCH_NUMBER, &asked.least, 4, 1 << 30 },
                                     { "--max", BENCH_NUMBER, &asked.most, 4, 1 << 30 },
                                     { "--seconds", BENCH_NUMBER, &asked.seconds, 0, 600 },
                                     { "--tune", BENCH_NUMBER, &asked.tune, 0, 3600 },
                                     { "--each", BENCH_FLAG, &asked.each, 0, 0 },
                                     { "--quick", BENCH_FLAG, &asked.quick, 0, 0 },
                                     { NULL, BENCH_FLAG, NULL, 0, 0 } };
    bench_parse(argc, argv, "choice", usage, options);
    if (asked.tune < 0) asked.tune = asked.quick ? 1 : 10;
    if (asked.seconds == 0) asked.tune = 0;
    if (asked.operation && !find_operation(asked.operation))
        die("there is no such collective: ", asked.operation);
    doubts *doubts = mmap(NULL, sizeof *doubts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (doubts == MAP_FAILED) die("can't share memory", "");
    for (int t = 0; t < 3; t++) {
        if (asked.transport && strcmp(asked.transport, transports[t]) != 0) continue;
        known = true;
        for (int n = ranks ? ranks : 2; n <= (ranks ? ranks : 8); n *= 2)
            failed |= run_jobs(n, transports[t], &asked, doubts);
    }
    if (!known) die("there is no such transport: ", asked.transport);
    return failed;
}
