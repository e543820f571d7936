/* opencl_gemm: how fast are the OpenCL backend's products of matrices, beside CLBlast's on the same device?
 */
#include "bench.h"

#ifndef DML_OPENCL
int main(void)
{
    printf("# opencl_gemm: built without OpenCL\n");
    return 0;
}
#else

typedef struct product {
    int m, n, k, trans_a, trans_b;
} product;

typedef struct job {
    dml_device *device;
    dml_launch launch;
} job;

static void stop(const dml_device *device)
{
    fprintf(stderr, "opencl_gemm: %s\n", dml_error(device->context));
    exit(1);
}

/* As CLBlast's are timed: launched and waited for. */
static void run(void *argument)
{
    const job *j = (const job *)argument;
    const dml_backend *backend = j->device->backend;
    if (backend->launch(j->device, &j->launch) != DML_OK || backend->finish(j->device) != DML_OK)
        stop(j->device);
}

static dml_buffer *matrix(dml_device *device, size_t count)
{
    dml_buffer *buffer = (dml_buffer *)calloc(1, sizeof *buffer);
    float *numbers = bench_floats("opencl_gemm", count);
    const dml_ref at = { buffer, 0 };
    if (!buffer) exit(1);
    buffer->bytes = count * sizeof(float);
    if (device->backend->buffer_create(device, buffer) != DML_OK ||
        device->backend->write(device, at, numbers, buffer->bytes) != DML_OK)
        stop(device);
    free(numbers);
    return buffer;
}

static void measure(const product *p, const char *kernel, dml_device *device, bench_peers *peers, int threads,
                    double seconds)
{
    const size_t m = (size_t)p->m, n = (size_t)p->n, k = (size_t)p->k;
    const int32_t integers[] = {
        p->m, p->n, p->k, p->trans_a, p->trans_b, p->trans_a ? p->m : p->k, p->trans_b ? p->k : p->n, p->n
    };
    char name[128];
    job j;
    memset(&j, 0, sizeof j);
    j.device = device;
    j.launch.kernel = kernel;
    j.launch.size[0] = n, j.launch.size[1] = m;
    memcpy(j.launch.integer, integers, sizeof integers);
    j.launch.real[0] = 1;
    j.launch.buffer[0].buffer = matrix(device, m * k);
    j.launch.buffer[1].buffer = matrix(device, k * n);
    j.launch.buffer[2].buffer = matrix(device, m * n);
    snprintf(name, sizeof name, "gemm %d %d %d %d %d", p->m, p->n, p->k, p->trans_a, p->trans_b);
    const double one = bench_beside(peers, name, run, &j, seconds);
    printf("name=opencl_gemm what=%s m=%d n=%d k=%d ta=%d tb=%d", kernel, p->m, p->n, p->k, p->trans_a,
           p->trans_b);
    bench_row(peers, threads, one, 0, 2e-9 * p->m * p->n * p->k, "GFLOP/s");
    for (int i = 0; i < 3; i++) {
        device->backend->buffer_destroy(device, j.launch.buffer[i].buffer);
        free(j.launch.buffer[i].buffer);
    }
}

static const char usage[] =
    "usage: opencl_gemm [--m M] [--n N] [--k K] [--ta 0|1] [--tb 0|1] [--device I] [--kernel NAME] "
    "[options]\n"
    "  --m --n --k  the product of an M x K and a K x N matrix; a size that isn't given is the one before "
    "it\n"
    "  --ta --tb    1: the first or the second matrix is stored transposed; 0\n"
    "  --device I   opencl:I, and CLBlast on the device of that number of the first platform; 0\n"
    "  --kernel K   one of the kernels of products (gemm_tiles, gemm_solo), not the one that is chosen\n"
    "" BENCH_COMMON_USAGE
    "Prints a row for each product, in GFLOP/s of launches that are waited for one by one. The "
    "peer is CLBlast (Debian:\nlibclblast-dev). The threads of PoCL are as many as POCL_MAX_PTHREAD_COUNT "
    "says.\n";

int main(int argc, char **argv)
{
    static const char *const names[] = { "clblast", NULL };
    bench_common common = { 0, 0.15, false, NULL };
    product asked = { 0, 0, 0, 0, 0 };
    int index = 0;
    const char *kernel = "gemm";
    const bench_option options[] = {
        { "--m", BENCH_INT, &asked.m, 1, 1 << 20 },  { "--n", BENCH_INT, &asked.n, 1, 1 << 20 },
        { "--k", BENCH_INT, &asked.k, 1, 1 << 20 },  { "--ta", BENCH_INT, &asked.trans_a, 0, 1 },
        { "--tb", BENCH_INT, &asked.trans_b, 0, 1 }, { "--device", BENCH_INT, &index, 0, 63 },
        { "--kernel", BENCH_TEXT, &kernel, 0, 0 },   BENCH_COMMON_OPTIONS(common)
    };
    bench_parse(argc, argv, "opencl_gemm", usage, options);
    if (!asked.n) asked.n = asked.m;
    if (!asked.k) asked.k = asked.n;
    dml_device device;
    memset(&device, 0, sizeof device);
    device.backend = dml_opencl_backend();
    device.index = index;
    if (index >= device.backend->count()) {
        printf("# opencl_gemm: there is no device opencl:%d\n", index);
        return 0;
    }
    device.context = dml_open(NULL);
    if (!device.context) return 1;
    if (device.backend->open(&device) != DML_OK) stop(&device);
    const int threads = common.threads ? common.threads : dml_cpu_count();
    bench_peers peers;
    bench_peers_start(&peers, "opencl_gemm", common.peers, names, threads);
    if (asked.m) measure(&asked, kernel, &device, &peers, threads, common.seconds);
    for (int n = 64; n <= 1024 && !asked.m; n *= 2)
        for (int trans = 0; trans < (common.quick ? 1 : 3); trans++) {
            const product p = { n, n, n, trans == 1, trans == 2 };
            measure(&p, kernel, &device, &peers, threads, common.seconds);
        }
    bench_peers_end(&peers);
    device.backend->close(&device);
    dml_close(device.context);
    return 0;
}
#endif
