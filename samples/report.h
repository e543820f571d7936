/* report.h: what a training run tells while it goes: a progress bar, a line an epoch, and a log of one line
   of JSON a step. A sample's own helper, not part of the library. Include dml.h, dml_comm.h and args.h first.
 */
#ifndef REPORT_H
#define REPORT_H

enum { REPORT_WINDOW = 16 };

/* Every rank notes its part of each step's loss. After a window of steps the parts are added up over the
   ranks, all at once so that it costs next to nothing, and rank 0 tells. */
typedef struct report {
    dml_comm *comm;
    int epochs;
    const char *log_path;
    FILE *log; /* NULL: none */
    dml_progress bar;
    struct {
        uint64_t step;
        int epoch, samples; /* of all ranks */
        double lr;
    } noted[REPORT_WINDOW];
    double loss[REPORT_WINDOW]; /* summed over the step's samples */
    int count;
    double shown_loss, window_start, epoch_start, epoch_loss;
    int64_t done, samples, epoch_samples;
} report;

/* --dtype's word; "tf32" is f32 whose products a card may round to that (dml_options.allow_tf32). */
static dml_dtype dtype_of(const char *name)
{
    for (int i = 0; i < 2; i++) {
        const dml_dtype dtype = i ? DML_F16 : DML_BF16;
        if (strcmp(name, dml_dtype_name(dtype)) == 0) return dtype;
    }
    return DML_F32;
}

static bool allows_tf32(const char *name)
{
    return strcmp(name, "tf32") == 0;
}

/* What it comes to on the context's device. */
static const char *dtype_on(const dml_context *ctx, const char *name)
{
    return allows_tf32(name) && strcmp(dml_context_device(ctx)->backend->name, "cuda") != 0 ? "f32" : name;
}

/* --profile: measures what rank 0's ops take, or its device's kernels. */
static void profile_begin(dml_context *ctx, dml_comm *comm, const char *path)
{
    if (!path || dml_comm_rank(comm) != 0) return;
    FILE *file = fopen(path, "w"); /* now, not after the work */
    if (!file) args_exit(1, "can't write the profile %s: %s", path, strerror(errno));
    fclose(file);
    if (dml_profile_begin(ctx, 0) != DML_OK) args_exit(1, "%s", dml_error(ctx));
}

/* Writes the timeline and prints what took longest. */
static void profile_end(dml_context *ctx, dml_comm *comm, const char *path)
{
    dml_profile_row rows[10];
    if (!path || dml_comm_rank(comm) != 0) return;
    const int count = dml_profile_rows(ctx, rows, 10);
    if (dml_profile_write(ctx, path) != DML_OK) args_exit(1, "%s", dml_error(ctx));
    for (int i = 0; i < count && i < 10; i++)
        printf("%8.1f ms in %lld calls: %s, %s%s%s\n", 1e3 * rows[i].seconds, (long long)rows[i].calls,
               rows[i].what, rows[i].pass, *rows[i].node ? " of " : "", rows[i].node);
    printf("%s: all of %d, for ui.perfetto.dev\n", path, count);
    dml_profile_end(ctx);
}

/* `log` NULL: no log. Only rank 0 prints and writes. */
static void report_begin(report *r, dml_comm *comm, const char *label, uint64_t steps, int epochs,
                         const char *log)
{
    const bool speaks = dml_comm_rank(comm) == 0;
    memset(r, 0, sizeof *r);
    r->comm = comm;
    r->epochs = epochs;
    r->log_path = log;
    if (log && speaks && !(r->log = fopen(log, "w")))
        args_exit(1, "can't write the log %s: %s", log, strerror(errno));
    dml_progress_begin(&r->bar, speaks ? stdout : NULL,
                       &(dml_progress_options){ .total = (int64_t)steps, .label = label });
    r->window_start = r->epoch_start = dml_seconds();
}

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static void
report_log_line(report *r, const char *format, ...)
{
    if (!r->log) return;
    va_list arguments;
    va_start(arguments, format);
    vfprintf(r->log, format, arguments);
    va_end(arguments);
}

static void report_log_flush(report *r)
{
    if (r->log && (fflush(r->log) || ferror(r->log)))
        args_exit(1, "can't write the log %s: %s", r->log_path, strerror(errno));
}

static void report_window(report *r)
{
    if (dml_comm_all_reduce(r->comm, r->loss, (size_t)r->count, DML_F64, DML_SUM) != DML_OK)
        args_exit(1, "%s", dml_comm_error(r->comm));
    const double now = dml_seconds();
    int samples = 0;
    for (int i = 0; i < r->count; i++) samples += r->noted[i].samples;
    for (int i = 0; i < r->count; i++) {
        const double loss = r->loss[i] / r->noted[i].samples;
        if (!isfinite(loss)) {
            report_log_flush(r);
            dml_progress_end(&r->bar);
            args_exit(1, "the loss is %g at step %llu; a smaller --lr may help", fabs(loss),
                      (unsigned long long)r->noted[i].step);
        }
        report_log_line(r,
                        "{\"step\": %llu, \"epoch\": %d, \"loss\": %.8g, \"lr\": %.8g, "
                        "\"samples_per_s\": %.1f}\n",
                        (unsigned long long)r->noted[i].step, r->noted[i].epoch, loss, r->noted[i].lr,
                        samples / (now - r->window_start + 1e-9));
        r->shown_loss = loss;
        r->epoch_loss += r->loss[i];
    }
    report_log_flush(r);
    r->epoch_samples += samples;
    r->window_start = now;
    r->count = 0;
}

/* `loss` is the sum over this rank's samples, `samples` the number of all ranks'. */
static void report_step(report *r, uint64_t step, int epoch, int samples, double lr, double loss)
{
    r->noted[r->count].step = step;
    r->noted[r->count].epoch = epoch;
    r->noted[r->count].samples = samples;
    r->noted[r->count].lr = lr;
    r->loss[r->count++] = loss;
    r->samples += samples;
    r->done++;
    /* The first step's loss is wanted at once, as something to show. */
    if (r->count == REPORT_WINDOW || r->done == 1) report_window(r);
    dml_progress_update(&r->bar, r->done, r->shown_loss, r->samples);
}

static void report_epoch(report *r, int epoch)
{
    report_window(r);
    const double seconds = r->window_start - r->epoch_start;
    dml_progress_line(&r->bar, "epoch %d/%d: loss %.4f, %.0f samples/s, %.1f s", epoch, r->epochs,
                      r->epoch_loss / (double)r->epoch_samples, (double)r->epoch_samples / seconds, seconds);
    r->epoch_loss = 0;
    r->epoch_samples = 0;
    r->epoch_start = r->window_start;
}

static void report_end(report *r, int64_t correct, int64_t total)
{
    const double accuracy = (double)correct / (double)total;
    dml_progress_end(&r->bar);
    if (dml_comm_rank(r->comm) == 0)
        printf("test accuracy %.2f %% (%lld/%lld)\n", 100 * accuracy, (long long)correct, (long long)total);
    report_log_line(r, "{\"test_accuracy\": %.6f, \"correct\": %lld, \"total\": %lld}\n", accuracy,
                    (long long)correct, (long long)total);
    report_log_flush(r);
    if (r->log && fclose(r->log)) args_exit(1, "can't write the log %s: %s", r->log_path, strerror(errno));
    args_check_output();
}

#endif
