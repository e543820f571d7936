/* strategy.h: the ways in which ranks train together, for any sample that has a --strategy. A sample's own
   helper, not part of the library. Include dml.h, dml_comm.h and args.h first.

       strategy_options chosen = { 0 };
       const arg args[] = { ..., STRATEGY_ARGS(chosen), { 0 } };
       args_parse(argc, argv, "...", args);
       strategy s = strategy_open(&chosen, &(dml_comm_options){ .timeout_s = timeout });
       dml_trainer *trainer = strategy_trainer(&s, loss, &options);
       strategy_start(&s);
       for (...; s.trains && ...) strategy_step(&s, rows, DML_INPUTS(x, t), &mean);
       strategy_end(&s);
       strategy_close(&s);

   What goes wrong ends the program with a sentence. */
#ifndef STRATEGY_H
#define STRATEGY_H

/* What the flags say; zeros: not given. */
typedef struct strategy_options {
    const char *name, *compression, *devices;
    int tau, servers, staleness, fetch_every, push_every, portions;
    double outer_lr, penalty, server_momentum;
    bool average_state, asynchronous, across_steps;
} strategy_options;

/* All that a model learns from, for such rows. */
typedef struct strategy_set {
    int samples, batch; /* the most rows of one `fill` */
    /* inputs (count) become arrays of samples begin ... begin + rows - 1, which stay until the next call. */
    void (*fill)(void *user, int begin, int rows, const void **inputs);
    int count; /* of inputs */
    void *user;
} strategy_set;

typedef struct strategy {
    const struct strategy_row *row;
    strategy_options options;
    dml_comm *job;   /* all ranks */
    dml_comm *comm;  /* those that train, this one among them; NULL on one that doesn't */
    bool trains;     /* this rank; else it is a server, which strategy_start ends with */
    int rank, ranks; /* among those that train, to share out each batch; a server: -1 of 1 */
    dml_context *context;
    dml_trainer *trainer;   /* to look at, load and save at rank 0, and set the learning rate on every rank */
    dml_cluster cluster;    /* of rows with servers */
    dml_mirrored *mirrored; /* of rows with several devices in this process */
} strategy;

/* One way to train. Each function may be NULL, for what is in brackets, and returns a status, with the error
   on s->context or s->job. */
typedef struct strategy_row {
    const char *name, *flags; /* its own, "--tau|--outer-lr" */
    const char *sentence, *paper;
    int which; /* of several rows with the same functions */
    /* [dml_comm_open]; sets s->trains of servers to false */
    dml_comm *(*open)(strategy *s, const dml_comm_options *options);
    /* [dml_trainer_create]; where there are several trainers, returns the one to look at */
    dml_trainer *(*create)(strategy *s, dml_node *loss, const dml_trainer_options *options);
    /* Makes it distributed, from what rank 0's trainer holds; on a server serves until all others are done.
     */
    dml_status (*start)(strategy *s);
    /* [dml_trainer_step] */
    dml_status (*step)(strategy *s, int rows, const void *const *inputs, int count, float *loss);
    /* [its steps]; trains by iterations over the whole set; says the mean loss at the end, and how often the
       set was gone through */
    dml_status (*whole)(strategy *s, const strategy_set *set, int iterations, double *loss, int *passes);
    /* [nothing]; makes the graph's parameters the same on all ranks that train */
    dml_status (*end)(strategy *s);
} strategy_row;

/* ---- the table ---- */

static const struct {
    const char *name;
    dml_compression compression;
} strategy_compressions[] = {
    { "bf16", { .kind = DML_COMPRESS_BF16 } },
    { "f16", { .kind = DML_COMPRESS_F16 } },
    { "8bit", { .kind = DML_COMPRESS_QUANTISE, .bits = 8 } },
    { "4bit", { .kind = DML_COMPRESS_QUANTISE, .bits = 4 } },
    { "1bit", { .kind = DML_COMPRESS_QUANTISE, .bits = 1 } },
    { "topk", { .kind = DML_COMPRESS_TOP_K, .fraction = 0.05f } },
    { "powersgd", { .kind = DML_COMPRESS_POWER } },
};

/* "powersgd", or with another number than the usual: "powersgd:8". */
static dml_compression strategy_compression(const char *text)
{
    const size_t count = sizeof strategy_compressions / sizeof strategy_compressions[0];
    const size_t length = text ? strcspn(text, ":") : 0;
    for (size_t i = 0; text && i < count; i++) {
        dml_compression c = strategy_compressions[i].compression;
        const char *name = strategy_compressions[i].name;
        char *end = NULL;
        if (strlen(name) != length || strncmp(text, name, length) != 0) continue;
        if (!text[length]) return c;
        const double number = strtod(text + length + 1, &end);
        const bool share = c.kind == DML_COMPRESS_TOP_K, rank = c.kind == DML_COMPRESS_POWER;
        if (*end || end == text + length + 1) break;
        const bool fits = share ? number > 0 && number <= 1 : rank && number >= 1 && number <= 1024;
        if (!fits || (rank && number != floor(number))) break;
        if (share) c.fraction = (float)number;
        if (rank) c.rank = (int)number;
        return c;
    }
    if (text)
        args_exit(2,
                  "--compression %s: it takes bf16, f16, 8bit, 4bit, 1bit, topk, topk:FRACTION (up to 1), "
                  "powersgd or powersgd:RANK (a whole number up to 1024)",
                  text);
    return (dml_compression){ .kind = DML_COMPRESS_NONE };
}

static dml_status strategy_all_reduce(strategy *s)
{
    const dml_all_reduce_sync_options o = { .compression = strategy_compression(s->options.compression),
                                            .across_steps = s->options.across_steps };
    return s->ranks > 1 ? dml_trainer_sync(s->trainer, dml_all_reduce_sync(s->comm, &o)) : DML_OK;
}

/* `which` is the stage. */
static dml_status strategy_zero(strategy *s)
{
    return dml_trainer_sync(s->trainer,
                            dml_zero_sync(s->comm, &(dml_zero_options){ .stage = s->row->which }));
}

static dml_status strategy_gather(strategy *s)
{
    return dml_trainer_gather(s->trainer);
}

enum { STRATEGY_NOW_AND_THEN, STRATEGY_ONCE };

static dml_status strategy_local_sgd(strategy *s)
{
    const bool once = s->row->which == STRATEGY_ONCE;
    dml_local_sgd_options o = { .tau = s->options.tau ? s->options.tau : 8 };
    if (s->options.outer_lr > 0) o.outer = dml_diloco_options(o.tau).outer;
    if (s->options.outer_lr > 0) o.outer.lr = (float)s->options.outer_lr;
    o.average_state = s->options.average_state;
    return dml_trainer_sync(s->trainer,
                            once ? dml_simu_parallel_sync(s->comm, &o) : dml_local_sgd_sync(s->comm, &o));
}

static dml_status strategy_average(strategy *s)
{
    return dml_local_sgd_average(s->trainer);
}

/* ---- several devices in this process; `which` is the placement ---- */

typedef struct strategy_devices {
    char text[512];
    const char *name[16]; /* in the text */
    int count;
} strategy_devices;

/* Or an end, where there are too many. */
static void strategy_find_devices(const strategy_options *o, strategy_devices *devices)
{
    const char *list = o->devices ? o->devices : "cpu,cpu";
    const int most = (int)(sizeof devices->name / sizeof devices->name[0]);
    const size_t length = strlen(list);
    devices->count = 0;
    if (length >= sizeof devices->text)
        args_exit(2, "--devices %.40s...: %zu bytes, and it takes at most %zu", list, length,
                  sizeof devices->text - 1);
    strcpy(devices->text, list);
    for (char *name = strtok(devices->text, ","); name; name = strtok(NULL, ",")) {
        if (devices->count == most) args_exit(2, "--devices %s: it takes at most %d devices", list, most);
        devices->name[devices->count++] = name;
    }
}

static dml_trainer *strategy_mirror(strategy *s, dml_node *loss, const dml_trainer_options *options)
{
    strategy_devices devices;
    strategy_find_devices(&s->options, &devices);
    dml_mirrored_options o = { .trainer = *options,
                               .placement = (dml_placement)s->row->which,
                               .comm = s->ranks > 1 ? s->comm : NULL };
    s->mirrored = dml_mirrored_create(loss, devices.name, devices.count, &o);
    return s->mirrored ? dml_mirrored_trainer(s->mirrored, 0) : NULL;
}

static dml_status strategy_spread(strategy *s)
{
    return dml_mirrored_spread(s->mirrored);
}

static dml_status strategy_step_all(strategy *s, int rows, const void *const *inputs, int count, float *loss)
{
    for (int i = 1; i < dml_mirrored_replicas(s->mirrored); i++)
        dml_trainer_set_lr(dml_mirrored_trainer(s->mirrored, i), dml_trainer_lr(s->trainer));
    return dml_mirrored_step(s->mirrored, rows, inputs, count, loss);
}

static dml_status strategy_copy_back(strategy *s)
{
    return dml_mirrored_copy_back(s->mirrored);
}

/* ---- workers and servers ---- */

static dml_comm *strategy_cluster(strategy *s, const dml_comm_options *options)
{
    char servers[16];
    snprintf(servers, sizeof servers, "%d", s->options.servers ? s->options.servers : 1);
    if (s->options.servers || !getenv("DML_PS")) setenv("DML_PS", servers, 1);
    s->cluster = dml_cluster_from_environment();
    s->trains = !dml_cluster_is_server(&s->cluster);
    return dml_cluster_open(&s->cluster, options);
}

static dml_status strategy_parameter_server(strategy *s)
{
    dml_ps_options o = { .staleness = s->options.staleness };
    if (s->options.staleness) o.consistency = DML_PS_STALE;
    if (s->options.asynchronous) o.consistency = DML_PS_ASYNCHRONOUS;
    if (!s->trains) return dml_parameter_server_serve(s->job, &s->cluster, NULL);
    return dml_trainer_sync(s->trainer, dml_parameter_server_sync(s->job, &s->cluster, &o));
}

static dml_status strategy_downpour(strategy *s)
{
    dml_downpour_options o = { .fetch_every = s->options.fetch_every, .push_every = s->options.push_every };
    if (!s->trains) return dml_parameter_server_serve(s->job, &s->cluster, NULL);
    o.optimizer =
        s->options.server_momentum > 0 ? dml_sgd(0, (float)s->options.server_momentum) : dml_adagrad(0);
    o.optimizer.weight_decay = dml_trainer_get_run(s->trainer).optimizer.weight_decay;
    return dml_trainer_sync(s->trainer, dml_downpour_sync(s->job, &s->cluster, &o));
}

static dml_status strategy_serve(strategy *s)
{
    return s->trains ? DML_OK : dml_ps_serve(s->job, &s->cluster, NULL, NULL);
}

enum { STRATEGY_MOST_INPUTS = 8 };

/* What sandblaster minimises: the mean loss of a set, and half of `penalty` times the sum of the parameters'
   squares. Without that it goes to the end of what the samples say, and is half a percent worse at others. */
typedef struct strategy_goal {
    const strategy_set *set;
    double penalty;
} strategy_goal;

static dml_status strategy_penalise(dml_trainer *trainer, double penalty, double samples, double *loss_sum)
{
    const size_t count = dml_trainer_count(trainer, DML_GRADIENTS);
    const float *w = dml_trainer_get(trainer, DML_PARAMETERS, 0, count);
    float *g = dml_trainer_get(trainer, DML_GRADIENTS, 0, count);
    double squares = 0;
    if (!w || !g) return dml_status_of(dml_trainer_context(trainer));
    for (size_t i = 0; i < count; i++) {
        squares += (double)w[i] * (double)w[i];
        g[i] += (float)penalty * w[i];
    }
    *loss_sum += 0.5 * penalty * squares * samples;
    return dml_trainer_put(trainer, DML_GRADIENTS, 0, count);
}

/* One of a set's even portions, in pieces of its batch. */
static dml_status strategy_portion(void *user, dml_trainer *trainer, int portion, int portions,
                                   double *loss_sum, double *samples)
{
    const strategy_goal *goal = user;
    const strategy_set *set = goal->set;
    const int begin = (int)((int64_t)set->samples * portion / portions);
    const int end = (int)((int64_t)set->samples * (portion + 1) / portions);
    const void *inputs[STRATEGY_MOST_INPUTS];
    dml_status status = DML_OK;
    for (int at = begin, rows; at < end && status == DML_OK; at += rows) {
        float loss = 0;
        rows = end - at < set->batch ? end - at : set->batch;
        set->fill(set->user, at, rows, inputs);
        status = dml_trainer_backward(trainer, rows, inputs, set->count,
                                      (at > begin ? DML_ADD : 0) | (at + rows < end ? DML_MORE : 0), &loss);
        *loss_sum += (double)loss * rows;
    }
    *samples = end - begin;
    if (status != DML_OK || begin == end) return status;
    return strategy_penalise(trainer, goal->penalty, *samples, loss_sum);
}

/* Running statistics of batch norms, which lie behind what is trained, become those of the parameters found:
   each worker's over its part of the set, as often as it takes to forget what was, averaged. */
static dml_status strategy_measure(strategy *s, strategy_goal *goal)
{
    enum { LEAST_BATCHES = 60 };
    const size_t begin = dml_trainer_count(s->trainer, DML_GRADIENTS);
    const size_t end = dml_trainer_count(s->trainer, DML_PARAMETERS);
    dml_status status = DML_OK;
    for (int b = 0; begin < end && b < LEAST_BATCHES && status == DML_OK;
         b += goal->set->samples / s->ranks / goal->set->batch + 1) {
        double sum = 0, samples = 0;
        status = strategy_portion(goal, s->trainer, s->rank, s->ranks, &sum, &samples);
    }
    if (begin == end || status != DML_OK) return status;
    float *w = dml_trainer_get(s->trainer, DML_PARAMETERS, begin, end);
    if (!w) return dml_status_of(s->context);
    if (dml_comm_all_reduce(s->comm, w, end - begin, DML_F32, DML_SUM) != DML_OK)
        return dml_comm_status(s->comm);
    for (size_t i = 0; i < end - begin; i++) w[i] /= (float)s->ranks;
    return dml_trainer_put(s->trainer, DML_PARAMETERS, begin, end);
}

static dml_status strategy_sandblaster(strategy *s, const strategy_set *set, int iterations, double *loss,
                                       int *passes)
{
    strategy_goal goal = { set, s->options.penalty > 0 ? s->options.penalty : 3e-4 };
    const dml_sandblaster_options o = { .portion = strategy_portion,
                                        .user = &goal,
                                        .portions = s->options.portions,
                                        .lbfgs.iterations = iterations };
    dml_sandblaster_result result = { 0 };
    const dml_status status = dml_sandblaster_minimize(s->trainer, s->job, &s->cluster, &o, &result);
    *loss = result.lbfgs.value;
    *passes = result.lbfgs.evaluations;
    return status == DML_OK ? strategy_measure(s, &goal) : status;
}

/* Where workers have fetched at unlike times, worker 0's parameters count. */
static dml_status strategy_take_over(strategy *s)
{
    const size_t count = dml_trainer_count(s->trainer, DML_PARAMETERS);
    float *w = dml_trainer_get(s->trainer, DML_PARAMETERS, 0, count);
    if (!w) return dml_status_of(s->context);
    const dml_status status = dml_comm_broadcast(s->comm, w, count, DML_F32, 0);
    return status == DML_OK ? dml_trainer_put(s->trainer, DML_PARAMETERS, 0, count) : status;
}

static const strategy_row strategy_rows[] = {
    { "all_reduce", "--compression|--across-steps",
      "all ranks apply the mean of their gradients, in every step",
      "Li et al., PyTorch distributed, VLDB 2020", .start = strategy_all_reduce },
    { "local_sgd", "--tau|--outer-lr|--average-state",
      "each rank trains alone; parameters are averaged now and then",
      "Moritz et al., SparkNet, ICLR 2016; with --outer-lr 0.7 --tau 50: Douillard et al., DiLoCo, 2023",
      .start = strategy_local_sgd, .end = strategy_average },
    { "simu_parallel", "", "each rank trains alone; parameters are averaged once, at the end",
      "Zinkevich et al., Parallelized SGD, NIPS 2010", .which = STRATEGY_ONCE, .start = strategy_local_sgd,
      .end = strategy_average },
    { "zero1", "", "as all_reduce, but each rank keeps a part of the optimizer's state",
      "Rajbhandari et al., ZeRO, 2020", .which = 1, .start = strategy_zero, .end = strategy_gather },
    { "zero2", "", "and of the gradient", "the same", .which = 2, .start = strategy_zero,
      .end = strategy_gather },
    { "zero3", "", "and of the parameters", "the same; Zhao et al., PyTorch FSDP, 2023", .which = 3,
      .start = strategy_zero, .end = strategy_gather },
    { "parameter_server", "--ps|--asynchronous|--staleness",
      "workers push gradients to servers, which update the parameters, and pull these",
      "Li et al., OSDI 2014; Ho et al., NIPS 2013", .open = strategy_cluster,
      .start = strategy_parameter_server, .end = strategy_take_over },
    { "downpour", "--ps|--fetch-every|--push-every|--server-momentum",
      "the same, but nobody waits for another, and servers update by Adagrad",
      "Dean et al., Large scale distributed deep networks, NIPS 2012", .open = strategy_cluster,
      .start = strategy_downpour, .end = strategy_take_over },
    { "sandblaster", "--ps|--portions|--penalty",
      "L-BFGS over all samples, on servers' vectors; worker 0 only hands out portions to the others",
      "the same, section 4.2", .open = strategy_cluster, .start = strategy_serve,
      .whole = strategy_sandblaster },
    { "mirrored", "--devices", "a replica on each of several devices in this process",
      "TensorFlow's MirroredStrategy", .which = DML_PLACE_MIRRORED, .create = strategy_mirror,
      .start = strategy_spread, .step = strategy_step_all, .end = strategy_copy_back },
    { "central_storage", "--devices", "the same, with parameters and state on the first alone",
      "TensorFlow's CentralStorageStrategy", .which = DML_PLACE_CENTRAL, .create = strategy_mirror,
      .start = strategy_spread, .step = strategy_step_all, .end = strategy_copy_back },
    { "data_parallel", "--devices", "the same, and they go out before each forward pass",
      "PyTorch's DataParallel", .which = DML_PLACE_EACH_STEP, .create = strategy_mirror,
      .start = strategy_spread, .step = strategy_step_all, .end = strategy_copy_back },
    { 0 },
};

/* ---- flags ---- */

/* Under the line of --strategy. */
static void strategy_list(void)
{
    for (const strategy_row *row = strategy_rows; row->name; row++) {
        printf("    %-18s %s\n%23s%s\n", row->name, row->sentence, "", row->paper);
        if (*row->flags) printf("%23sflags %s\n", "", row->flags);
    }
}

#define STRATEGY_ARGS(o)                                                                                     \
    { "--compression", "KIND",                                                                               \
      "all_reduce: of gradients: bf16, f16, 8bit, 4bit, 1bit, topk[:FRACTION] or powersgd[:RANK]",           \
      .text = &(o).compression },                                                                            \
        { "--across-steps", NULL, "all_reduce: a forward pass waits only for the gradients it needs next",   \
          .flag = &(o).across_steps },                                                                       \
        { "--tau", "N", "local_sgd: steps from one average to the next; otherwise 8", .integer = &(o).tau,   \
          .low = 1 },                                                                                        \
        { "--outer-lr",                                                                                      \
          "X",                                                                                               \
          "local_sgd: parameters follow the average by SGD of this rate with Nesterov's momentum 0.9",       \
          .real = &(o).outer_lr,                                                                             \
          .low = 1e-6,                                                                                       \
          .high = 10 },                                                                                      \
        { "--average-state", NULL, "local_sgd: average what the optimizer keeps, too",                       \
          .flag = &(o).average_state },                                                                      \
        { "--ps", "N", "servers, the last ranks; otherwise DML_PS, or 1", .integer = &(o).servers,           \
          .low = 1 },                                                                                        \
        { "--asynchronous", NULL, "parameter_server: gradients are applied as they come",                    \
          .flag = &(o).asynchronous },                                                                       \
        { "--staleness", "N", "parameter_server: the same, but nobody is N steps ahead of the slowest",      \
          .integer = &(o).staleness, .low = 1 },                                                             \
        { "--fetch-every", "N", "downpour: steps between two fetches; otherwise 1",                          \
          .integer = &(o).fetch_every, .low = 1 },                                                           \
        { "--push-every", "N", "downpour: steps of which a push is the sum; otherwise 1",                    \
          .integer = &(o).push_every, .low = 1 },                                                            \
        { "--server-momentum",                                                                               \
          "X",                                                                                               \
          "downpour: servers update by SGD with this momentum; otherwise by Adagrad",                        \
          .real = &(o).server_momentum,                                                                      \
          .low = 1e-6,                                                                                       \
          .high = 0.9999 },                                                                                  \
        { "--portions",                                                                                      \
          "N",                                                                                               \
          "sandblaster: of the training set; otherwise four for each worker",                                \
          .integer = &(o).portions,                                                                          \
          .low = 1,                                                                                          \
          .high = 1e6 },                                                                                     \
        { "--penalty",                                                                                       \
          "X",                                                                                               \
          "sandblaster: half of it times the parameters' squares is in the loss; otherwise 3e-4",            \
          .real = &(o).penalty,                                                                              \
          .low = 1e-30,                                                                                      \
          .high = 10 },                                                                                      \
        { "--devices", "D,D,...",                                                                            \
          "mirrored, ...: cpu, cpu*3 (its threads), opencl:0, ...; otherwise cpu,cpu",                       \
          .text = &(o).devices },                                                                            \
    {                                                                                                        \
        "--strategy", "NAME", "how ranks train together; otherwise all_reduce:", .text = &(o).name,          \
                                                                                 .more = strategy_list       \
    }

static const strategy_row *strategy_find(const char *name)
{
    char names[512] = "";
    for (const strategy_row *row = strategy_rows; row->name; row++) {
        if (!name || strcmp(row->name, name) == 0) return row;
        const size_t length = strlen(names);
        snprintf(names + length, sizeof names - length, "%s%s", length ? ", " : "", row->name);
    }
    args_exit(2, "--strategy %s: it takes one of %s", name, names);
    return NULL;
}

static void strategy_check_flags(const strategy_row *row, const strategy_options *o)
{
    const struct {
        const char *flag;
        bool given;
    } all[] = {
        { "--tau", o->tau != 0 },
        { "--outer-lr", o->outer_lr != 0 },
        { "--average-state", o->average_state },
        { "--compression", o->compression != NULL },
        { "--across-steps", o->across_steps },
        { "--ps", o->servers != 0 },
        { "--asynchronous", o->asynchronous },
        { "--staleness", o->staleness != 0 },
        { "--fetch-every", o->fetch_every != 0 },
        { "--push-every", o->push_every != 0 },
        { "--server-momentum", o->server_momentum != 0 },
        { "--portions", o->portions != 0 },
        { "--penalty", o->penalty != 0 },
        { "--devices", o->devices != NULL },
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i].given && !args_is_one_of(all[i].flag, row->flags))
            args_exit(2, "%s means nothing to --strategy %s; --help says which flags are whose", all[i].flag,
                      row->name);
}

/* ---- what samples call ---- */

/* Flags of the sample's own that are about one device, where the strategy has devices of its own. */
static inline void strategy_check_device(const strategy_options *chosen, const char *device,
                                         const char *profile)
{
    const strategy_row *row = strategy_find(chosen->name);
    const bool several = args_is_one_of("--devices", row->flags);
    if (several && profile)
        args_exit(2, "--profile measures one device; --strategy %s has some of its own", row->name);
    if (several && strcmp(device, "cpu") != 0)
        args_exit(2, "--device %s means nothing to --strategy %s: it takes --devices", device, row->name);
}

/* The other ranks, if the environment says that there are any, and what this one is among them. */
static strategy strategy_open(const strategy_options *chosen, const dml_comm_options *options)
{
    strategy s = { .row = strategy_find(chosen->name), .options = *chosen, .trains = true };
    strategy_devices devices;
    strategy_check_flags(s.row, chosen);
    strategy_compression(chosen->compression); /* or an end, before anything starts */
    strategy_find_devices(chosen, &devices);
    s.job = s.row->open ? s.row->open(&s, options) : dml_comm_open(options);
    s.comm = s.job;
    /* Servers take no part in what those that train tell each other. */
    if (s.row->open && s.job) s.comm = dml_comm_split(s.job, s.trains ? 0 : -1, 0);
    if (!s.job || dml_comm_status(s.job) != DML_OK)
        args_exit(1, "%s", s.job ? dml_comm_error(s.job) : "no memory left for a communicator");
    s.rank = s.trains ? dml_comm_rank(s.comm) : -1;
    s.ranks = dml_comm_world_size(s.comm);
    return s;
}

/* Ends the program with whatever sentence there is. */
static void strategy_check(strategy *s, dml_status status)
{
    if (status == DML_OK) return;
    const char *text = s->context ? dml_error(s->context) : "";
    if (!*text) text = dml_comm_error(s->job);
    args_exit(1, "%s", *text ? text : dml_status_string(status));
}

/* NULL, with the error on the loss's context, where dml_trainer_create returns that. */
static dml_trainer *strategy_trainer(strategy *s, dml_node *loss, const dml_trainer_options *options)
{
    s->context = loss ? dml_graph_context(dml_node_graph(loss)) : NULL;
    s->trainer = s->row->create ? s->row->create(s, loss, options) : dml_trainer_create(loss, options);
    return s->trainer;
}

static void strategy_start(strategy *s)
{
    strategy_check(s, s->row->start(s));
}

static void strategy_step(strategy *s, int rows, const void *const *inputs, int count, float *loss)
{
    strategy_check(s, s->row->step ? s->row->step(s, rows, inputs, count, loss)
                                   : dml_trainer_step(s->trainer, rows, inputs, count, loss));
}

/* Before the model is tested, and saved for good. */
static void strategy_end(strategy *s)
{
    if (s->row->end) strategy_check(s, s->row->end(s));
}

/* Writes a checkpoint of what rank 0's trainer holds; all that train call it. */
static void strategy_save(strategy *s, const char *path)
{
    strategy_check(s, dml_trainer_gather(s->trainer));
    if (s->rank == 0) strategy_check(s, dml_trainer_save(s->trainer, path));
}

/* After dml_close. */
static void strategy_close(strategy *s)
{
    char text[512];
    if (s->comm != s->job) dml_comm_close(s->comm);
    if (dml_comm_close_error(s->job, text, sizeof text) != DML_OK) args_exit(1, "%s", text);
}

#endif
