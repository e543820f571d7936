/* strategies: the experiments with which ways to train replicas were first shown, repeated on drawn digits in
 * virtual time: one process steps all replicas in turn (replicas.h). */
#define _POSIX_C_SOURCE 200809L /* mkdir */
#include "replicas.h"

#include <errno.h>
#include <sys/stat.h>

enum { MACHINES_MAX = 64, CURVES_MAX = 12, NAME_MAX_LENGTH = 64 };

typedef struct settings {
    const char *experiment, *svg, *program;
    double target, lr, latency_us, bandwidth_gbit, slowdown;
    int batch, machines;
    bool quick;
} settings;

static const char usage[] =
    "usage: strategies [options]\n"
    "Trains replicas of an MLP on drawn digits in virtual time: one process steps them in turn, and each "
    "gradient\n"
    "is charged what one takes here, each message what it would take on the links described. A row for each "
    "case.\n"
    "  --experiment NAME  surface: SparkNet's speed-up of averaging every tau steps, over machines and tau\n"
    "                     simu_parallel: error of SGD's average over 1, 10 and 100 machines, on 2^18 hashed "
    "features\n"
    "                     methods: synchronous SGD, Downpour SGD and Sandblaster L-BFGS: accuracy over time\n"
    "                     stragglers: one machine is slow: synchronous, asynchronous, bounded staleness, "
    "backup\n"
    "                     all of them; all\n"
    "  --target A         accuracy to be reached, 0 to 1; 0.9\n"
    "  --lr X             SGD's; 0.05 for surface, 0.5 for simu_parallel, else 0.1\n"
    "  --batch B          samples of a replica's gradient; 1 for surface, else 32\n"
    "  --machines K       of methods' and stragglers' curves; 8\n"
    "  --slowdown X       how many times slower the slow machine is; 5\n"
    "  --latency US       of a message; 30\n"
    "  --bandwidth GBIT   of a machine's link, each way; 10\n"
    "  --svg DIR          draws what was found, with the plot that lies in this program's folder's parent\n"
    "  --quick            fewer machines and less time\n";

/* ---- pictures ---- */

/* The curves of one picture: each is a log that plot reads. */
typedef struct picture {
    const settings *s;
    const char *name, *title, *x_name, *y_name;
    const char *axes; /* more of plot's options */
    FILE *curve;
    int points; /* of the last curve */
    char labels[CURVES_MAX][NAME_MAX_LENGTH];
    int curves;
} picture;

static void curve_path(const picture *p, int curve, char *path, size_t size)
{
    snprintf(path, size, "%s/%s_%d.jsonl", p->s->svg, p->name, curve);
}

static void begin_curve(picture *p, const char *label)
{
    char path[700];
    if (!p->s->svg || p->curves == CURVES_MAX) return;
    curve_path(p, p->curves, path, sizeof path);
    p->curve = fopen(path, "w");
    if (!p->curve) {
        fprintf(stderr, "strategies: can't write to %s\n", p->s->svg);
        exit(1);
    }
    snprintf(p->labels[p->curves++], NAME_MAX_LENGTH, "%s", label);
    p->points = 0;
}

static void add_point(picture *p, double x, double y)
{
    if (p->curve) fprintf(p->curve, "{\"step\": %.9g, \"loss\": %.9g}\n", x, y);
    p->points++;
}

static void end_curve(picture *p)
{
    char path[700];
    if (!p->curve) return;
    fclose(p->curve);
    p->curve = NULL;
    if (p->points) return;
    curve_path(p, --p->curves, path, sizeof path); /* nothing to draw */
    remove(path);
}

static void draw(picture *p)
{
    char command[8192], path[700];
    const char *slash = strrchr(p->s->program, '/');
    if (!p->s->svg || p->curves == 0) return;
    size_t length = (size_t)snprintf(
        command, sizeof command,
        "'%.*s/../plot' --smooth 1 %s --title '%s' --x-name '%s' --y-name '%s' -o '%s/%s.svg'",
        slash ? (int)(slash - p->s->program) : 1, slash ? p->s->program : ".", p->axes, p->title, p->x_name,
        p->y_name, p->s->svg, p->name);
    for (int i = 0; i < p->curves && length < sizeof command; i++) {
        curve_path(p, i, path, sizeof path);
        length += (size_t)snprintf(command + length, sizeof command - length, " --label '%s' '%s'",
                                   p->labels[i], path);
    }
    if (length >= sizeof command || system(command) != 0)
        fprintf(stderr, "strategies: plot failed: %s\n", command);
    for (int i = 0; i < p->curves; i++) {
        curve_path(p, i, path, sizeof path);
        remove(path);
    }
}

/* ---- an experiment ---- */

/* Opens the replicas; returns the w (count) that all of them start from. */
static float *begin_experiment(replicas *r, const settings *s)
{
    replicas_open(r, s->batch);
    printf(
        "# virtual time: a gradient of %d samples and %zu parameters is charged %.4g ms, as measured here; a "
        "message %g us and its bytes at %g Gbit/s\n",
        s->batch, r->count, r->gradient_seconds * 1e3, s->latency_us, s->bandwidth_gbit);
    float *first = replicas_vector(r);
    memcpy(first, r->w, r->count * sizeof *first);
    return first;
}

static void end_experiment(replicas *r, float *first)
{
    free(first);
    replicas_close(r);
}

/* ---- links and servers ---- */

static double transfer_seconds(const settings *s, size_t count)
{
    return s->latency_us * 1e-6 + (double)(count * sizeof(float)) * 8 / (s->bandwidth_gbit * 1e9);
}

/* A ring's all-reduce, in as many pieces as there are machines. */
static double ring_seconds(const settings *s, size_t count, int machines)
{
    if (machines < 2) return 0;
    return 2 * (machines - 1) * transfer_seconds(s, count / (size_t)machines);
}

/* How a server takes gradients. */
typedef struct policy {
    const char *name;
    bool adagrad;
    bool synchronous; /* the first machines - backup gradients of a step count; else each as it comes */
    int backup;
    int staleness; /* of one that isn't: nobody is further ahead of the slowest; -1: no bound */
    double lr;
} policy;

typedef struct machine {
    double at;     /* when its next event is, */
    bool pushes;   /* which is the end of a gradient, else the wish for new parameters */
    bool waits;    /* for the others: it has no event */
    double factor; /* on what a gradient takes */
    uint64_t step; /* of the server's, that its gradient is for */
    uint64_t clock;
    float *w; /* (count), as it was pulled */
} machine;

/* A server of all parameters, spread over as many processes as there are machines, so that no port is shared.
 */
typedef struct server {
    replicas *r;
    const settings *s;
    policy policy;
    machine machine[MACHINES_MAX];
    int machines, arrived;
    float *w, *sum, *squares; /* (count) */
    uint64_t step, dropped, gradients;
    double now;
} server;

static void apply(server *v, const float *g, double scale)
{
    for (size_t i = 0; i < v->r->count; i++) {
        const float gradient = (float)scale * g[i];
        if (v->policy.adagrad) {
            v->squares[i] += gradient * gradient;
            v->w[i] -= (float)v->policy.lr * gradient / (sqrtf(v->squares[i]) + 1e-6f);
        } else {
            v->w[i] -= (float)v->policy.lr * gradient;
        }
    }
    v->step++;
}

static void wake_all(server *v)
{
    for (int i = 0; i < v->machines; i++) {
        machine *m = &v->machine[i];
        if (!m->waits) continue;
        m->waits = false;
        m->at = v->now;
    }
}

/* Whether a machine has to wait for others before it may take new parameters. */
static bool must_wait(const server *v, const machine *m)
{
    uint64_t slowest = UINT64_MAX;
    for (int i = 0; i < v->machines; i++)
        if (v->machine[i].clock < slowest) slowest = v->machine[i].clock;
    if (v->policy.synchronous) return m->clock > 0 && m->step == v->step;
    return v->policy.staleness >= 0 && m->clock > slowest + (uint64_t)v->policy.staleness;
}

static void pull(server *v, machine *m)
{
    if (must_wait(v, m)) {
        m->waits = true;
        return;
    }
    const double moves = transfer_seconds(v->s, v->r->count);
    memcpy(m->w, v->w, v->r->count * sizeof *m->w);
    m->step = v->step;
    m->pushes = true;
    m->at = v->now + 2 * moves + m->factor * v->r->gradient_seconds; /* there, and back */
}

static void push_synchronously(server *v, const machine *m, const float *g)
{
    const int wanted = v->machines - v->policy.backup;
    if (m->step != v->step) {
        v->dropped++;
        return;
    }
    for (size_t i = 0; i < v->r->count; i++) v->sum[i] += g[i];
    if (++v->arrived < wanted) return;
    apply(v, v->sum, 1.0 / wanted);
    memset(v->sum, 0, v->r->count * sizeof *v->sum);
    v->arrived = 0;
}

/* Returns the loss of the machine's batch. */
static double push(server *v, int index)
{
    machine *m = &v->machine[index];
    const double loss = replicas_gradient(v->r, m->w, index + 1, m->clock);
    v->gradients++;
    m->clock++;
    m->pushes = false;
    m->at = v->now;
    if (v->policy.synchronous)
        push_synchronously(v, m, v->r->g);
    else
        apply(v, v->r->g, 1);
    wake_all(v);
    return loss;
}

/* The next event; returns the loss where that is a gradient, else NAN. */
static double advance(server *v)
{
    int next = -1;
    for (int i = 0; i < v->machines; i++)
        if (!v->machine[i].waits && (next < 0 || v->machine[i].at < v->machine[next].at)) next = i;
    v->now = v->machine[next].at;
    if (v->machine[next].pushes) return push(v, next);
    pull(v, &v->machine[next]);
    return NAN;
}

static void open_server(server *v, const settings *s, replicas *r, policy policy, int machines,
                        const float *first)
{
    memset(v, 0, sizeof *v);
    v->r = r;
    v->s = s;
    v->policy = policy;
    v->machines = machines;
    v->w = replicas_vector(r);
    v->sum = replicas_vector(r);
    v->squares = replicas_vector(r);
    memcpy(v->w, first, r->count * sizeof *first);
    for (int i = 0; i < machines; i++) {
        v->machine[i].factor = 1;
        v->machine[i].w = replicas_vector(r);
    }
}

static void close_server(server *v)
{
    for (int i = 0; i < v->machines; i++) free(v->machine[i].w);
    free(v->w);
    free(v->sum);
    free(v->squares);
}

/* ---- averaging every tau steps ---- */

/* How many rounds of tau steps each take `machines` replicas to the target; 0: more than `most` steps. */
static int rounds_to_target(replicas *r, const settings *s, const float *first, int machines, int tau,
                            int most)
{
    float *w = replicas_vector(r), *mean = replicas_vector(r), *sum = replicas_vector(r);
    const int every = tau < 10 ? (10 + tau - 1) / tau : 1; /* rounds between two looks */
    int found = 0;
    memcpy(mean, first, r->count * sizeof *mean);
    for (int round = 1; round * tau <= most && !found; round++) {
        memset(sum, 0, r->count * sizeof *sum);
        for (int k = 0; k < machines; k++) {
            memcpy(w, mean, r->count * sizeof *w);
            for (int t = 0; t < tau; t++) {
                replicas_gradient(r, w, k + 1, (uint64_t)(round - 1) * (uint64_t)tau + (uint64_t)t);
                for (size_t i = 0; i < r->count; i++) w[i] -= (float)s->lr * r->g[i];
            }
            for (size_t i = 0; i < r->count; i++) sum[i] += w[i];
        }
        for (size_t i = 0; i < r->count; i++) mean[i] = sum[i] / (float)machines;
        if (round % every == 0 && replicas_accuracy(r, mean) >= s->target) found = round;
    }
    free(w);
    free(mean);
    free(sum);
    return found;
}

/* Moritz et al., "SparkNet", 2016, section 3: N_a(b) serial steps to accuracy a, against tau M_a(b, K, tau).
 */
static void surface(const settings *s)
{
    replicas own, *r = &own;
    float *first = begin_experiment(r, s);
    static const int taus[] = { 1, 2, 5, 10, 25, 50, 100 };
    const int most_machines = s->quick ? 4 : 16, tau_count = s->quick ? 4 : 7;
    picture ideal = { .s = s,
                      .name = "surface",
                      .title = "averaging every tau steps: speed-up",
                      .x_name = "tau",
                      .y_name = "speed-up over one machine",
                      .axes = "--log-x" };
    const int serial = rounds_to_target(r, s, first, 1, 1, 20000);
    if (!serial) {
        fprintf(stderr, "strategies: SGD at %g doesn't reach %g\n", s->lr, s->target);
        end_experiment(r, first);
        return;
    }
    for (int machines = 2; machines <= most_machines; machines *= 2) {
        char label[NAME_MAX_LENGTH];
        snprintf(label, sizeof label, "%d machines", machines);
        begin_curve(&ideal, label);
        for (int t = 0; t < tau_count; t++) {
            const int tau = taus[t], rounds = rounds_to_target(r, s, first, machines, tau, 2 * serial);
            if (!rounds) continue;
            const double compute = r->gradient_seconds, moves = ring_seconds(s, r->count, machines);
            const double time = rounds * (tau * compute + moves);
            printf("name=surface machines=%d tau=%d batch=%d target=%g serial_steps=%d rounds=%d "
                   "speedup_free_links=%.3f speedup=%.3f seconds=%.6g\n",
                   machines, tau, s->batch, s->target, serial, rounds,
                   (double)serial / ((double)tau * rounds), serial * compute / time, time);
            fflush(stdout);
            add_point(&ideal, tau, serial * compute / time);
        }
        end_curve(&ideal);
    }
    draw(&ideal);
    end_experiment(r, first);
}

/* ---- one machine is slow ---- */

static void stragglers(const settings *s)
{
    replicas own, *r = &own;
    float *first = begin_experiment(r, s);
    const policy policies[] = { { "synchronous", false, true, 0, -1, s->lr },
                                { "backup", false, true, 1, -1, s->lr },
                                { "asynchronous", false, false, 0, -1, s->lr / s->machines },
                                { "bounded_staleness_4", false, false, 0, 4, s->lr / s->machines } };
    picture p = { .s = s,
                  .name = "stragglers",
                  .title = "one machine is slow",
                  .x_name = "virtual seconds",
                  .y_name = "training loss",
                  .axes = "" };
    for (int i = 0; i < 4; i++) {
        static server v;
        open_server(&v, s, r, policies[i], s->machines, first);
        v.machine[s->machines - 1].factor = s->slowdown;
        const double end = (s->quick ? 100 : 600) * r->gradient_seconds;
        double smooth = NAN;
        begin_curve(&p, policies[i].name);
        while (v.now < end) {
            const double loss = advance(&v);
            if (isnan(loss)) continue;
            smooth = isnan(smooth) ? loss : 0.95 * smooth + 0.05 * loss;
            add_point(&p, v.now, smooth);
        }
        end_curve(&p);
        printf(
            "name=stragglers policy=%s machines=%d slowdown=%g seconds=%.6g samples_per_s=%.0f dropped=%llu "
            "loss=%.4f accuracy=%.4f\n",
            policies[i].name, s->machines, s->slowdown, v.now,
            (double)(v.gradients - v.dropped) * s->batch / v.now, (unsigned long long)v.dropped, smooth,
            replicas_accuracy(r, v.w));
        fflush(stdout);
        close_server(&v);
    }
    draw(&p);
    end_experiment(r, first);
}

/* ---- methods ---- */

/* Runs a server's policy; returns when the target was reached, or NAN. */
static double run_policy(replicas *r, const settings *s, const float *first, policy policy, int machines,
                         double end, picture *p)
{
    static server v;
    double reached = NAN, looked = 0;
    open_server(&v, s, r, policy, machines, first);
    while (v.now < end && isnan(reached)) {
        advance(&v);
        if (v.now - looked < end / 200) continue;
        looked = v.now;
        const double accuracy = replicas_accuracy(r, v.w);
        if (p) add_point(p, v.now, accuracy);
        if (!p && accuracy >= s->target) reached = v.now;
    }
    close_server(&v);
    return reached;
}

/* A run of Sandblaster: L-BFGS over all digits, whose gradient `machines` share. */
typedef struct sandblaster {
    replicas *r;
    const settings *s;
    int samples, machines;
    double now, end, reached;
    picture *p;
} sandblaster;

static double sandblaster_value(void *user, const float *x, float *gradient)
{
    sandblaster *b = (sandblaster *)user;
    const double loss = replicas_whole_gradient(b->r, x, b->samples, gradient);
    const double gradients = (double)(b->samples / b->r->batch);
    /* Parameters come, gradients go; both are spread over as many servers as machines. */
    b->now += gradients / b->machines * b->r->gradient_seconds + 2 * transfer_seconds(b->s, b->r->count);
    if (b->now > b->end || !isnan(b->reached)) return loss;
    const double accuracy = replicas_accuracy(b->r, x);
    if (b->p) add_point(b->p, b->now, accuracy);
    if (accuracy >= b->s->target) b->reached = b->p ? NAN : b->now;
    return loss;
}

static double run_sandblaster(replicas *r, const settings *s, const float *first, int machines, double end,
                              picture *p)
{
    sandblaster b = { r, s, REPLICAS_TRAIN / s->batch * s->batch, machines, 0, end, NAN, p };
    float *x = replicas_vector(r);
    memcpy(x, first, r->count * sizeof *x);
    dml_lbfgs_minimize(r->count, x, sandblaster_value, &b,
                       &(dml_lbfgs_options){ .iterations = s->quick ? 10 : 100 }, NULL);
    free(x);
    return b.reached;
}

/* Dean et al., "Large scale distributed deep networks", 2012, figures 4 and 5. */
static void methods(const settings *s)
{
    replicas model, *r = &model;
    float *first = begin_experiment(r, s);
    const policy policies[] = { { "synchronous_sgd", false, true, 0, -1, s->lr },
                                { "downpour_sgd", false, false, 0, -1, s->lr / s->machines },
                                { "downpour_adagrad", true, false, 0, -1, 0.02 } };
    const double end = (s->quick ? 200 : 1500) * r->gradient_seconds;
    picture curves = { .s = s,
                       .name = "methods",
                       .title = "accuracy over time",
                       .x_name = "virtual seconds",
                       .y_name = "accuracy on digits held out",
                       .axes = "" };
    picture scaling = { .s = s,
                        .name = "methods_scaling",
                        .title = "time to the target accuracy",
                        .x_name = "machines",
                        .y_name = "virtual seconds",
                        .axes = "--log-x --log-y" };
    for (int i = 0; i < 4; i++) {
        const char *name = i < 3 ? policies[i].name : "sandblaster_lbfgs";
        begin_curve(&curves, name);
        if (i < 3)
            run_policy(r, s, first, policies[i], s->machines, end, &curves);
        else
            run_sandblaster(r, s, first, s->machines, end, &curves);
        end_curve(&curves);
        begin_curve(&scaling, name);
        for (int machines = 1; machines <= (s->quick ? 4 : 32); machines *= 2) {
            policy own = policies[i < 3 ? i : 0];
            if (i == 1) own.lr = s->lr / machines;
            const double seconds = i < 3 ? run_policy(r, s, first, own, machines, 20 * end, NULL)
                                         : run_sandblaster(r, s, first, machines, 20 * end, NULL);
            printf("name=methods method=%s machines=%d target=%g seconds=%.6g\n", name, machines, s->target,
                   seconds);
            fflush(stdout);
            if (!isnan(seconds)) add_point(&scaling, machines, seconds);
        }
        end_curve(&scaling);
    }
    draw(&curves);
    draw(&scaling);
    end_experiment(r, first);
}

/* ---- SGD's average over machines ---- */

enum { HASHED = 1 << 18, ACTIVE = 20, WORDS = 4096, HELD_OUT = 2000, MARKS_MAX = 16 };

/* Sample i of the endless series `stream`: words drawn by a power law, hashed to a place and a sign, and a
   target that is linear in the words, with noise. */
static float hashed_sample(int stream, uint64_t i, int32_t index[ACTIVE], float value[ACTIVE])
{
    const uint32_t key[2] = { 11, (uint32_t)stream };
    double target = 0;
    uint32_t words[4] = { 0, 0, 0, 0 };
    for (uint32_t a = 0; a < ACTIVE; a++) {
        const uint32_t counter[4] = { (uint32_t)i, (uint32_t)(i >> 32), a, 1 };
        dml_philox4x32(counter, key, words);
        const double u = ((double)words[0] + 0.5) / 4294967296.0;
        const uint32_t word = (uint32_t)(WORDS * u * u * u);
        const uint32_t hash = word * 2654435761u, truth = (word + 17u) * 2246822519u;
        index[a] = (int32_t)(hash >> 14);
        value[a] = (hash & 1 ? 1.0f : -1.0f) / sqrtf((float)ACTIVE);
        target += (double)value[a] * ((double)truth / 2147483648.0 - 1);
    }
    return (float)(target + 0.1 * (((double)words[1] + (double)words[2]) / 4294967296.0 - 1));
}

typedef struct hashed_model {
    dml_context *context;
    dml_trainer *trainer;
    float *w; /* (HASHED), the trainer's own */
} hashed_model;

static hashed_model hashed_open(double lr)
{
    hashed_model m = { .context = dml_open(&(dml_options){ .threads = 1 }) };
    dml_graph *graph = dml_graph_create(m.context);
    dml_node *index = dml_input(graph, "index", DML_I32, ACTIVE),
             *value = dml_input(graph, "value", DML_F32, ACTIVE);
    dml_node *w = dml_parameter(graph, "w", dml_init_constant(0), HASHED, 1);
    dml_parameter_set_sparse(w, true);
    dml_node *y = dml_embedding_bag_with(index, value, w, NULL);
    m.trainer = dml_trainer_create(dml_mean_squared_error(y, dml_input(graph, "target", DML_F32, 1)),
                                   &(dml_trainer_options){ .batch = 1, .optimizer = dml_sgd((float)lr, 0) });
    if (!m.trainer) {
        fprintf(stderr, "strategies: %s\n", dml_error(m.context));
        exit(1);
    }
    m.w = dml_trainer_get(m.trainer, DML_PARAMETERS, 0, HASHED);
    return m;
}

static double hashed_error(const float *w)
{
    double squares = 0;
    for (uint64_t i = 0; i < HELD_OUT; i++) {
        int32_t index[ACTIVE];
        float value[ACTIVE];
        double y = 0;
        const float target = hashed_sample(1 << 20, i, index, value);
        for (int a = 0; a < ACTIVE; a++) y += (double)value[a] * (double)w[index[a]];
        squares += (y - (double)target) * (y - (double)target);
    }
    return sqrt(squares / HELD_OUT);
}

/* One machine's pass over its samples; adds w at each mark to that mark's sum. */
static void hashed_pass(hashed_model *m, int machine, const uint64_t *mark, int marks, float **sum)
{
    memset(m->w, 0, HASHED * sizeof(float));
    uint64_t i = 0;
    for (int k = 0; k < marks; k++) {
        for (; i < mark[k]; i++) {
            int32_t index[ACTIVE];
            float value[ACTIVE];
            const float target = hashed_sample(machine, i, index, value);
            dml_trainer_step(m->trainer, 1, DML_INPUTS(index, value, &target), NULL);
        }
        for (size_t e = 0; e < HASHED; e++) sum[k][e] += m->w[e];
    }
}

/* Zinkevich et al., "Parallelized stochastic gradient descent", 2010, section 4: the error of the average, as
   a share of that of one machine's whole pass. */
static void simu_parallel(const settings *s)
{
    const int most = s->quick ? 10 : 100;
    uint64_t mark[MARKS_MAX];
    int marks = 0;
    for (uint64_t n = 100; n <= (s->quick ? 1600u : 12800u); n *= 2) mark[marks++] = n;
    float *sum[MARKS_MAX], *mean = (float *)replicas_allocate(HASHED, sizeof(float));
    double error[3][MARKS_MAX];
    hashed_model m = hashed_open(s->lr);
    picture p = { .s = s,
                  .name = "simu_parallel",
                  .title = "SGD averaged once, 2^18 hashed features",
                  .x_name = "samples a machine",
                  .y_name = "RMSE by one machine on all",
                  .axes = "--log-x" };
    for (int k = 0; k < marks; k++) sum[k] = (float *)replicas_allocate(HASHED, sizeof(float));
    for (int machine = 0, row = 0, next = 1; machine < most; machine++) {
        hashed_pass(&m, machine, mark, marks, sum);
        if (machine + 1 != next) continue;
        for (int k = 0; k < marks; k++) {
            for (size_t e = 0; e < HASHED; e++) mean[e] = sum[k][e] / (float)(machine + 1);
            error[row][k] = hashed_error(mean);
        }
        next *= 10;
        row++;
    }
    for (int row = 0, machines = 1; machines <= most; row++, machines *= 10) {
        char label[NAME_MAX_LENGTH];
        snprintf(label, sizeof label, "%d machine%s", machines, machines > 1 ? "s" : "");
        begin_curve(&p, label);
        for (int k = 0; k < marks; k++) {
            const double ratio = error[row][k] / error[0][marks - 1];
            printf("name=simu_parallel machines=%d samples=%llu rmse=%.5f normalised=%.4f\n", machines,
                   (unsigned long long)mark[k], error[row][k], ratio);
            add_point(&p, (double)mark[k], ratio);
        }
        end_curve(&p);
    }
    draw(&p);
    for (int k = 0; k < marks; k++) free(sum[k]);
    free(mean);
    dml_close(m.context);
}

typedef struct experiment {
    const char *name;
    void (*run)(const settings *s);
    int batch; /* unless others are asked for */
    double lr;
} experiment;

int main(int argc, char **argv)
{
    settings s = { .experiment = "all",
                   .program = argc > 0 ? argv[0] : "strategies",
                   .target = 0.9,
                   .latency_us = 30,
                   .bandwidth_gbit = 10,
                   .slowdown = 5,
                   .machines = 8 };
    const bench_option options[] = { { "--experiment", BENCH_TEXT, &s.experiment, 0, 0 },
                                     { "--target", BENCH_NUMBER, &s.target, 0.11, 1 },
                                     { "--lr", BENCH_NUMBER, &s.lr, 1e-6, 10 },
                                     { "--batch", BENCH_INT, &s.batch, 1, 2048 },
                                     { "--machines", BENCH_INT, &s.machines, 2, MACHINES_MAX },
                                     { "--slowdown", BENCH_NUMBER, &s.slowdown, 1, 1e3 },
                                     { "--latency", BENCH_NUMBER, &s.latency_us, 0, 1e7 },
                                     { "--bandwidth", BENCH_NUMBER, &s.bandwidth_gbit, 1e-6, 1e6 },
                                     { "--svg", BENCH_TEXT, &s.svg, 0, 0 },
                                     { "--quick", BENCH_FLAG, &s.quick, 0, 0 },
                                     { NULL, BENCH_FLAG, NULL, 0, 0 } };
    /* Averaging pays where gradients are noisy, slow machines matter where a gradient takes longer than its
     * way. */
    static const experiment experiments[] = { { "simu_parallel", simu_parallel, 1, 0.5 },
                                              { "surface", surface, 1, 0.05 },
                                              { "stragglers", stragglers, 32, 0.1 },
                                              { "methods", methods, 32, 0.1 } };
    bool known = false;
    bench_parse(argc, argv, "strategies", usage, options);
    if (s.svg && mkdir(s.svg, 0777) != 0 && errno != EEXIST) {
        fprintf(stderr, "strategies: can't make the folder %s\n", s.svg);
        return 1;
    }
    for (int i = 0; i < 4; i++) {
        settings own = s;
        if (strcmp(s.experiment, "all") != 0 && strcmp(s.experiment, experiments[i].name) != 0) continue;
        known = true;
        if (own.batch == 0) own.batch = experiments[i].batch;
        if (own.lr == 0) own.lr = experiments[i].lr;
        experiments[i].run(&own);
    }
    if (known) return 0;
    fprintf(stderr, "strategies: there is no experiment \"%s\": see --help\n", s.experiment);
    return 2;
}
