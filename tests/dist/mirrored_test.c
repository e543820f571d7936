/* Several devices in one process, compared with one trainer on the CPU. */
#include "mirrored_replicas.h"

static dml_node *build_small_loss(dml_context *context)
{
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, IN), *t = dml_input(graph, "t", DML_I32);
    return dml_softmax_cross_entropy(dml_dense(x, CLASSES), t);
}

static void change_gradient(dml_trainer *trainer)
{
    const size_t n = dml_trainer_count(trainer, DML_GRADIENTS);
    float *g = dml_trainer_get(trainer, DML_GRADIENTS, 0, n);
    for (size_t i = 0; i < n; i++) g[i] = 0.7f * g[i] + 0.01f * (float)(i % 3);
    CHECK_INT(dml_trainer_put(trainer, DML_GRADIENTS, 0, n), DML_OK);
}

/* A batch in three: one that waits for more, one that is combined, one that is added to that. */
static dml_status step_in_pieces(dml_mirrored *m, dml_trainer *trainer, int batch, const float *x,
                                 const int32_t *t, bool changes, float *loss)
{
    const int ends[] = { batch / 4, batch / 2, batch };
    dml_status status = DML_OK;
    double sum = 0;
    for (int i = 0, from = 0; i < 3 && status == DML_OK; from = ends[i++]) {
        const int flags = DML_ADD | (i == 0 ? DML_MORE : 0), rows = ends[i] - from;
        status = m ? dml_mirrored_backward(m, rows, DML_INPUTS(x + from * IN, t + from), flags, loss)
                   : dml_trainer_backward(trainer, rows, DML_INPUTS(x + from * IN, t + from), flags, loss);
        sum += (double)*loss * rows;
        if (changes && i > 0) change_gradient(m ? dml_mirrored_trainer(m, 0) : trainer);
    }
    *loss = (float)(sum / batch);
    if (status != DML_OK) return status;
    return m ? dml_mirrored_update(m) : dml_trainer_update(trainer);
}

static dml_status one_step(const run *r, dml_mirrored *m, dml_trainer *trainer, int step, float *loss)
{
    float x[MAX_BATCH * IN];
    int32_t t[MAX_BATCH];
    make_batch(step, r->batch, x, t);
    if (r->pieces) return step_in_pieces(m, trainer, r->batch, x, t, r->changes, loss);
    return m ? dml_mirrored_step(m, r->batch, DML_INPUTS(x, t), loss)
             : dml_trainer_step(trainer, r->batch, DML_INPUTS(x, t), loss);
}

/* On the devices, or, if there are none, by one trainer. */
static void train(run *r)
{
    dml_context *context = open_seeded();
    dml_node *loss = r->small ? build_small_loss(context) : build_loss(context, r->norms);
    dml_mirrored *m = r->devices ? dml_mirrored_create(loss, r->device, r->devices, &r->options) : NULL;
    dml_trainer *trainer = r->devices ? NULL : dml_trainer_create(loss, &r->options.trainer);
    CHECK_MESSAGE(m || trainer, "%s", dml_error(context));
    if (!m && !trainer) {
        dml_close(context);
        return;
    }
    for (int step = 0; step < r->steps; step++) {
        const dml_status status = one_step(r, m, trainer, step, &r->loss[step]);
        CHECK_MESSAGE(status == DML_OK, "step %d: %s", step, dml_error(context));
        if (status != DML_OK) break;
    }
    if (m && dml_status_of(context) == DML_OK) CHECK_INT(dml_mirrored_copy_back(m), DML_OK);
    r->parameters = dml_graph_parameter_count(dml_node_graph(loss));
    CHECK(r->parameters <= MAX_PARAMETERS);
    memcpy(r->w, dml_graph_get(dml_node_graph(loss), 0, r->parameters), r->parameters * sizeof *r->w);
    dml_close(context); /* and the replicas */
}

static void check_same(const run *got, const run *want, double tolerance, const char *what)
{
    double worst = 0;
    for (int s = 0; s < want->steps; s++) {
        const double error = fabs(got->loss[s] - want->loss[s]) / want->loss[s];
        if (!(error <= worst)) worst = error;
    }
    CHECK_MESSAGE(worst <= tolerance, "%s, %d devices: a loss differs by %.2g", what, got->devices, worst);
    worst = 0;
    for (size_t i = 0; i < want->parameters; i++) {
        const double error = fabs(got->w[i] - want->w[i]);
        if (!(error <= worst)) worst = error;
    }
    CHECK_INT(got->parameters, want->parameters);
    CHECK_MESSAGE(worst <= 10 * tolerance, "%s, %d devices: a parameter differs by %.2g", what, got->devices,
                  worst);
}

/* As many devices as it says, in the placements up to `last`. */
static void compare_placements(const run *like, dml_placement last, double tolerance)
{
    static const char *const names[] = { "mirrored", "central", "each step" };
    static run one, several;
    one = *like;
    one.devices = 0;
    train(&one);
    if (like->batch == MAX_BATCH) CHECK(one.loss[one.steps - 1] < one.loss[0]);
    for (int p = 0; p <= (int)last; p++) {
        several = *like;
        several.options.placement = (dml_placement)p;
        train(&several);
        check_same(&several, &one, tolerance, names[p]);
    }
}

static void compare_with_one(const run *like, double tolerance)
{
    compare_placements(like, DML_PLACE_EACH_STEP, tolerance);
}

static void replicas_follow_one_trainer(void)
{
    for (int devices = 1; devices <= MOST_DEVICES; devices++) {
        run like = usual(devices);
        like.options.even = devices % 2;
        compare_with_one(&like, 1e-5);
    }
}

static void every_way_across_devices(void)
{
    for (int cross = 0; cross <= DML_CROSS_ONE_DEVICE; cross++) {
        run like = usual(3);
        like.steps = 10;
        like.options.cross_device = (dml_cross_device)cross;
        like.options.bucket_bytes = 100;
        compare_with_one(&like, 1e-5);
    }
}

static void all_that_a_trainer_can_do(void)
{
    run like = usual(3);
    like.steps = 20;
    like.norms = true;
    like.options.trainer.optimizer = dml_adamw(0, 0.1f);
    like.options.trainer.optimizer.epsilon = 0.05f;
    like.options.trainer.schedule = dml_schedule_warm_up(dml_schedule_cosine(0.02f, 20, 0), 3, 0.1f);
    like.options.trainer.clip_norm = 0.2f;
    like.options.trainer.average = 0.5f;
    compare_with_one(&like, 2e-5);
    like.pieces = true;
    like.norms = false;
    compare_with_one(&like, 2e-5);
}

/* Finite, but of a norm whose square is no float: a step that counts. */
static void large_gradients(void)
{
    static const float input[][2] = { { 1, 0.5f }, { 5e9f, 2.5e9f }, { 0.25f, 1 }, { 1e30f, 0 }, { 1, 1 } };
    float w[4][2];
    uint64_t skipped[4];
    for (int p = -1; p <= DML_PLACE_EACH_STEP; p++) {
        dml_context *context = dml_open(&(dml_options){ .threads = 1 });
        dml_graph *graph = dml_graph_create(context);
        dml_node *x = dml_input(graph, "x", DML_F32, 2), *t = dml_input(graph, "t", DML_F32, 1);
        dml_node *weight = dml_parameter(graph, "w", dml_init_constant(1), 1, 2);
        dml_node *loss = dml_mean_squared_error(dml_dense_with(x, weight, NULL), t);
        const dml_trainer_options options = { .batch = 2, .optimizer = dml_sgd(0.1f, 0), .loss_scale = 16 };
        const dml_mirrored_options how = {
            .trainer = options, .even = true, .timeout_s = 20, .placement = (dml_placement)(p < 0 ? 0 : p)
        };
        dml_mirrored *m = p < 0 ? NULL : dml_mirrored_create(loss, cpus, 2, &how);
        dml_trainer *trainer = m ? dml_mirrored_trainer(m, 0) : dml_trainer_create(loss, &options);
        const float zeros[2] = { 0 };
        for (int step = 0; step < 5; step++) {
            const float *in = input[step], both[4] = { in[0], in[1], in[0], in[1] };
            if (step == 2) { /* small again, so that what follows shows whose loss scale is whose */
                float *now = dml_trainer_get(trainer, DML_PARAMETERS, 0, 2);
                now[0] = now[1] = 1;
                if (m) CHECK_INT(dml_mirrored_spread(m), DML_OK);
            }
            CHECK_INT(m ? dml_mirrored_step(m, 2, DML_INPUTS(both, zeros), NULL)
                        : dml_trainer_step(trainer, 2, DML_INPUTS(both, zeros), NULL),
                      DML_OK);
        }
        for (int r = 1; m && r < 2; r++)
            CHECK_INT(dml_trainer_skipped(dml_mirrored_trainer(m, r)), dml_trainer_skipped(trainer));
        memcpy(w[p + 1], dml_trainer_get(trainer, DML_PARAMETERS, 0, 2), sizeof w[0]);
        skipped[p + 1] = dml_trainer_skipped(trainer);
        CHECK_INT(skipped[p + 1], 1);
        for (int k = 0; k < 2; k++) CHECK_NEAR(w[p + 1][k], w[0][k], 1e-6);
        dml_close(context);
    }
}

/* The first replica's is the one to change. */
static void a_changed_gradient_is_everybodys(void)
{
    for (int p = 0; p <= DML_PLACE_EACH_STEP; p++) {
        run like = usual(3);
        like.steps = 10;
        like.pieces = like.changes = true;
        like.options.placement = (dml_placement)p;
        compare_with_one(&like, 2e-5);
    }
}

static void fewer_rows_than_replicas(void)
{
    run like = usual(4);
    like.steps = 10;
    like.batch = 3;
    like.options.trainer.optimizer = dml_sgd(0.05f, 0);
    compare_with_one(&like, 1e-5);
    like.norms = true; /* a replica without samples takes part in the sums */
    compare_with_one(&like, 2e-5);
}

/* A step whose gradient isn't finite is left out by all replicas, also by those that never see its sum. */
static void loss_scales_move_together(void)
{
    run like = usual(3);
    like.steps = 12;
    like.options.trainer.loss_scale = 1e30f;
    compare_with_one(&like, 1e-5);
}

static const char oclgrind[] = "/usr/lib/oclgrind/liboclgrind-rt-icd.so";
static char vendors[64]; /* where OpenCL finds its implementations, if that is ours */

/* Oclgrind beside whatever OpenCL there is; before OpenCL is first asked. */
static void add_oclgrind(void)
{
    char command[512];
    if (access(oclgrind, R_OK) != 0) return;
    snprintf(vendors, sizeof vendors, "/tmp/dml-mirrored-%ld", (long)getpid());
    snprintf(command, sizeof command,
             "mkdir '%s' && { cp \"${OCL_ICD_VENDORS:-/etc/OpenCL/vendors}\"/*.icd '%s' 2>/dev/null; "
             "echo %s >'%s/oclgrind.icd'; }",
             vendors, vendors, oclgrind, vendors);
    if (system(command) == 0) setenv("OCL_ICD_VENDORS", vendors, 1);
}

static void remove_vendors(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", vendors);
    if (*vendors && system(command) != 0) printf("can't remove %s\n", vendors);
}

/* A CPU, those that are neither that nor Oclgrind, and CPUs again up to MOST_DEVICES. */
static const char *const *other_devices(int *kinds, const char **slow)
{
    static const char *names[MOST_DEVICES];
    static dml_device_info infos[16];
    const int found = dml_devices(infos, 16);
    int count = 0;
    names[count++] = "cpu*1";
    *slow = NULL;
    for (int i = 0; i < found && i < 16 && count < MOST_DEVICES; i++)
        if (strstr(infos[i].name, "Oclgrind"))
            *slow = infos[i].id;
        else if (strncmp(infos[i].id, "cpu", 3) != 0)
            names[count++] = infos[i].id;
    *kinds = count;
    while (count < MOST_DEVICES) names[count++] = "cpu*1";
    return names;
}

static void refuse_twice(const char *device)
{
    const char *const twice[] = { device, "cpu", device };
    const dml_mirrored_options options = usual(2).options;
    dml_context *context = open_seeded();
    char sentence[64];
    snprintf(sentence, sizeof sentence, "devices 1 and 3 are both %s", device);
    CHECK(!dml_mirrored_create(build_loss(context, false), twice, 3, &options));
    CHECK_CONTAINS(dml_error(context), sentence);
    dml_close(context);
}

static void devices_of_several_kinds(void)
{
    int kinds;
    const char *slow;
    const char *const *devices = other_devices(&kinds, &slow);
    if (kinds < 2) {
        SKIP("no other device than the CPU");
        return;
    }
    for (int n = 2; n <= MOST_DEVICES; n++) {
        run like = usual(n);
        like.device = devices;
        like.options.timeout_s = 300; /* drivers compile kernels in the first step */
        compare_with_one(&like, 1e-5);
    }
    refuse_twice(devices[1]);
}

/* A CPU and two implementations of OpenCL, of which Oclgrind is slow: a small model, and few samples. */
static void devices_of_three_kinds(void)
{
    int kinds;
    const char *slow;
    const char *const *devices = other_devices(&kinds, &slow);
    if (kinds < 2 || !slow) {
        SKIP("no second implementation of OpenCL (Debian: pocl-opencl-icd and oclgrind)");
        return;
    }
    const char *const three[] = { "cpu*1", devices[1], slow };
    run like = usual(3);
    like.device = three;
    like.small = true;
    like.batch = 6;
    like.options.timeout_s = 300;
    compare_placements(&like, DML_PLACE_MIRRORED, 1e-5);
}

/* ---- several processes ---- */

typedef struct process {
    run like, got;
    int counts[3];
} process;

/* A rank here is what a process would be: a context and replicas of its own. */
static void train_as_process(test_rank *me)
{
    process *all = (process *)me->user;
    static pthread_mutex_t checks = PTHREAD_MUTEX_INITIALIZER;
    run *r = &all->like;
    dml_mirrored_options options = r->options;
    options.comm = me->comm;
    dml_context *context = open_seeded();
    dml_node *node = build_loss(context, r->norms);
    dml_graph *graph = dml_node_graph(node);
    dml_mirrored *m = dml_mirrored_create(node, cpus, all->counts[me->rank], &options);
    float x[MAX_BATCH * IN], loss = 0;
    int32_t t[MAX_BATCH];
    double sum = 0;
    me->bad += !m;
    for (int step = 0; step < r->steps && m; step++) {
        make_batch(step, r->batch, x, t);
        const int begin = r->batch * me->rank * me->rank / (me->world * me->world); /* unevenly */
        const int end = r->batch * (me->rank + 1) * (me->rank + 1) / (me->world * me->world);
        me->bad += dml_mirrored_step(m, end - begin, DML_INPUTS(x + begin * IN, t + begin), &loss) != DML_OK;
        sum = (double)loss * (end - begin);
        me->bad += dml_comm_all_reduce(me->comm, &sum, 1, DML_F64, DML_SUM) != DML_OK;
        if (me->rank == 0) all->got.loss[step] = (float)(sum / r->batch);
    }
    me->bad += dml_mirrored_copy_back(m) != DML_OK;
    if (me->rank == me->world - 1) {
        all->got.parameters = dml_graph_parameter_count(graph);
        memcpy(all->got.w, dml_graph_get(graph, 0, all->got.parameters), all->got.parameters * sizeof(float));
    }
    pthread_mutex_lock(&checks);
    CHECK_MESSAGE(!me->bad, "rank %d: %s", me->rank, dml_error(context));
    pthread_mutex_unlock(&checks);
    dml_mirrored_destroy(m);
    dml_close(context);
}

static void processes_of_several_replicas(void)
{
    static process all;
    static run one;
    static const int counts[][3] = { { 2, 2, 0 }, { 1, 3, 0 }, { 2, 1, 2 } };
    for (int turn = 0; turn < 9; turn++) {
        test_rank ranks[3];
        const int world = turn % 3 == 2 ? 3 : 2;
        memset(&all, 0, sizeof all);
        memcpy(all.counts, counts[turn % 3], sizeof all.counts);
        all.like = usual(0);
        all.like.steps = 12;
        all.like.norms = turn % 2;
        if (turn == 3) all.like.batch = 3; /* process 0 gets nothing */
        all.like.options.bucket_bytes = 200;
        one = all.like;
        train(&one);
        all.like.options.placement = (dml_placement)(turn / 3);
        ranks_prepare(ranks, world, 30, train_as_process, &all);
        ranks_run_on(ranks, world, "local");
        check_ranks(ranks, world);
        all.got.devices = world;
        check_same(&all.got, &one, 2e-5, "processes");
    }
}

/* ---- the rest ---- */

static void an_average_is_copied_back(void)
{
    run like = usual(2);
    like.options.trainer.average = 0.5f;
    for (int p = 0; p <= DML_PLACE_EACH_STEP; p++) {
        like.options.placement = (dml_placement)p;
        model s = open_model(&like);
        dml_trainer *first = dml_mirrored_trainer(s.m, 0);
        const size_t n = dml_trainer_count(first, DML_PARAMETERS);
        for (int step = 0; step < 5; step++)
            CHECK_INT(dml_mirrored_step(s.m, MAX_BATCH, DML_INPUTS(s.x, s.t), NULL), DML_OK);
        float average[MAX_PARAMETERS];
        memcpy(average, dml_trainer_get(first, dml_trainer_vectors(first) - 1, 0, n), n * sizeof *average);
        CHECK_INT(dml_trainer_swap_average(first), DML_OK);
        CHECK_INT(dml_mirrored_copy_back(s.m), DML_OK);
        const float *copied = dml_graph_get(s.graph, 0, n);
        CHECK(copied && memcmp(copied, average, n * sizeof *average) == 0);
        CHECK_INT(dml_mirrored_step(s.m, MAX_BATCH, DML_INPUTS(s.x, s.t), NULL), DML_ERROR_STATE);
        dml_clear_error(s.context);
        CHECK_INT(dml_trainer_swap_average(first), DML_OK);
        CHECK_INT(dml_mirrored_step(s.m, MAX_BATCH, DML_INPUTS(s.x, s.t), NULL), DML_OK);
        dml_close(s.context);
    }
}

static void what_the_first_has_is_spread(void)
{
    for (int p = 0; p <= DML_PLACE_EACH_STEP; p++) {
        run like = usual(3);
        like.options.placement = (dml_placement)p;
        model s = open_model(&like);
        CHECK_INT(dml_mirrored_replicas(s.m), 3);
        CHECK(!dml_mirrored_trainer(s.m, 3) && !dml_mirrored_trainer(s.m, -1));
        dml_trainer *first = dml_mirrored_trainer(s.m, 0);
        const size_t n = dml_trainer_count(first, DML_PARAMETERS);
        dml_trainer_set_lr(first, 0);
        float *w = dml_trainer_get(first, DML_PARAMETERS, 0, n);
        for (size_t i = 0; i < n; i++) w[i] = 0.01f * (float)i;
        dml_trainer_put(first, DML_PARAMETERS, 0, n);
        dml_trainer_run run = dml_trainer_get_run(first);
        run.skipped = 6;
        CHECK_INT(dml_trainer_set_run(first, &run), DML_OK);
        CHECK_INT(dml_mirrored_spread(s.m), DML_OK);
        CHECK_INT(dml_mirrored_step(s.m, MAX_BATCH, DML_INPUTS(s.x, s.t), NULL), DML_OK);
        int rows = 0;
        for (int i = 0; i < 3; i++) {
            const float *mine = dml_trainer_get(dml_mirrored_trainer(s.m, i), DML_PARAMETERS, 0, n);
            const dml_replica_report report = dml_mirrored_report(s.m, i);
            for (size_t k = 0; k < n; k++) CHECK(mine[k] == 0.01f * (float)k);
            CHECK_INT(dml_trainer_skipped(dml_mirrored_trainer(s.m, i)), 6);
            CHECK_STRING(report.device, "cpu");
            CHECK_INT(report.threads, 1);
            CHECK(report.seconds > 0);
            rows += report.rows;
        }
        CHECK_INT(rows, MAX_BATCH);
        CHECK(!dml_mirrored_report(s.m, 3).device);
        dml_close(s.context);
    }
}

/* The processors are shared out; the devices' samples by their speed, evenly where that is asked for. */
static void threads_and_rows(void)
{
    const char *const devices[] = { "cpu*3", "cpu", "cpu" };
    run like = usual(3);
    like.device = devices;
    like.options.even = true;
    model s = open_model(&like);
    CHECK_INT(dml_mirrored_report(s.m, 0).threads, 3);
    CHECK(dml_mirrored_report(s.m, 1).threads >= 1);
    for (int step = 0; step < 8; step++)
        CHECK_INT(dml_mirrored_step(s.m, MAX_BATCH, DML_INPUTS(s.x, s.t), NULL), DML_OK);
    for (int i = 0; i < 3; i++) CHECK_INT(dml_mirrored_report(s.m, i).rows, i < 2 ? 8 : 7);
    dml_close(s.context);
    like = usual(2);
    like.options.most_rows = MAX_BATCH;
    s = open_model(&like);
    dml_context *context = dml_trainer_context(dml_mirrored_trainer(s.m, 1));
    broken_cpu = *context->device.backend;
    broken_cpu.write = broken_write; /* a cost of its own */
    hangs = 0.02;
    context->device.backend = &broken_cpu;
    for (int step = 0; step < 16; step++)
        CHECK_INT(dml_mirrored_step(s.m, MAX_BATCH, DML_INPUTS(s.x, s.t), NULL), DML_OK);
    CHECK_MESSAGE(dml_mirrored_report(s.m, 1).rows <= 3, "a slow replica has %d of %d rows",
                  dml_mirrored_report(s.m, 1).rows, MAX_BATCH);
    dml_close(s.context);
}

/* What the first one's context was opened for goes for all. */
static void all_round_alike(void)
{
    const dml_mirrored_options options = usual(2).options;
    for (int i = 0; i < 2; i++) {
        dml_context *context = dml_open(&(dml_options){ .threads = 1, .allow_tf32 = i });
        dml_mirrored *m = dml_mirrored_create(build_loss(context, false), cpus, 2, &options);
        for (int j = 0; j < 2; j++)
            CHECK(dml_context_device(dml_trainer_context(dml_mirrored_trainer(m, j)))->allow_tf32 == i);
        dml_close(context);
    }
}

static void without_threads(void)
{
    SKIP("replicas need threads");
}

int main(void)
{
    if (!THREADS) {
        RUN(without_threads);
        return test_report("dist/mirrored");
    }
    add_oclgrind();
    RUN(replicas_follow_one_trainer);
    RUN(every_way_across_devices);
    RUN(all_that_a_trainer_can_do);
    RUN(large_gradients);
    RUN(a_changed_gradient_is_everybodys);
    RUN(an_average_is_copied_back);
    RUN(fewer_rows_than_replicas);
    RUN(loss_scales_move_together);
    RUN(devices_of_several_kinds);
    RUN(devices_of_three_kinds);
    RUN(processes_of_several_replicas);
    RUN(what_the_first_has_is_spread);
    RUN(threads_and_rows);
    RUN(all_round_alike);
    remove_vendors();
    return test_report("dist/mirrored");
}
