/* gpu: what a GPU reaches, part by part: products of matrices, kernels that memory limits, and steps of
 * training, beside cuBLAS, CLBlast and what the card allows.
 */
#include "gpu_convs.h"
#include "gpu_memory.h"
#include "gpu_products.h"
#include "gpu_training.h"

static const struct {
    const char *name;
    void (*run)(gpu *g);
    bool on_cpus; /* without being asked for */
} gpu_parts[] = { { "products", products, true },
                  { "convs", convs, false },
                  { "memory", memory, false },
                  { "lenet", lenet, false },
                  { "gpt", gpt_steps, false } };
enum { GPU_PARTS = sizeof gpu_parts / sizeof *gpu_parts };

/* Which parts were named, as bits; 0 with the sentence printed: one that isn't there. */
static unsigned named_parts(const char *list)
{
    unsigned found = 0;
    while (*list) {
        const size_t length = strcspn(list, ",");
        int part = 0;
        while (part < GPU_PARTS &&
               (strlen(gpu_parts[part].name) != length || strncmp(gpu_parts[part].name, list, length) != 0))
            part++;
        if (part == GPU_PARTS) {
            fprintf(stderr, "gpu: there is no --part %.*s (--help has a list)\n", (int)length, list);
            return 0;
        }
        found |= 1u << part;
        list += length + (list[length] == ',');
    }
    return found;
}

static const char usage[] =
    "usage: gpu [--device D] [--part P,...] [options]\n"
    "  --device D   cuda:0, opencl:1, ...; otherwise the first GPU, or opencl:0. Of a CPU the sizes are "
    "small\n"
    "  --part P     of products, convs, memory, lenet, gpt, with commas between them; otherwise all, of "
    "a CPU products\n"
    "products: rows of GFLOP/s. The limit is the card's peak of f32, where it is known. The peer of a CUDA\n"
    "device is cuBLAS (libcublas.so.13 or .12), on the same memory; many of either are queued before they "
    "are\n"
    "waited for. That of an OpenCL device is CLBlast (Debian: libclblast-dev), on the device of that number "
    "of\n"
    "the first platform, and then each is waited for. PoCL has POCL_MAX_PTHREAD_COUNT threads\n"
    "  --m --n --k  only the product of an M x K and a K x N matrix; a size not given is the one before it\n"
    "  --ta --tb    1: the first or the second matrix of it is stored transposed; 0\n"
    "  --kernel K   gemm_64x64, gemm_64x16, ..., gemm_solo: that kernel, not the one that is chosen\n"
    "convs: rows of GFLOP/s of some layers of ResNet-50. The limit is the card's peak of f32\n"
    "  --batch N    images; otherwise 64, of a CPU 1\n"
    "memory: rows of GB/s, of bytes that have to be read or written, each once. The limit is a copy of an\n"
    "array on the device; of attention, whose rows are GFLOP/s, the card's peak\n"
    "  --mib N      the arrays' size; otherwise 64 and 256, of a CPU 4\n"
    "lenet: microseconds of a training step of LeNet-5 (batch 64) whose loss is asked for with each, or "
    "only\n"
    "with the last. The limit is what a step's kernels take by themselves; launches and transfers are a "
    "step's\n"
    "gpt: tokens/s of a training step of a decoder like GPT-2, by AdamW. The limit is that of its\n"
    "multiply-adds at the card's peak of f32\n"
    "  --layers N --width N --context N --vocabulary N --batch N\n"
    "               12, 768, 1024, 50304 and 16 (--quick: 4); a batch there is no memory for is halved\n"
    "  --dtype T    f32, tf32 (a card's products round to it), bf16 or f16 (mixed precision); otherwise all\n"
    "               but f16. Products and attention round their factors to it, too, otherwise to none, and\n"
    "               have a peer in f32 and TF32 alone\n"
    "of lenet and gpt:\n"
    "  --steps N    timed steps; otherwise 500 of lenet, and of gpt as many as 15 s allow (--quick: 4 s)\n"
    "  --profile F  adds tables of the kernels that take longest to the file F\n" BENCH_COMMON_USAGE;

int main(int argc, char **argv)
{
    gpu_asked asked = { .common = { 0, 0.3, false, NULL },
                        .kernel = "gemm",
                        .layers = 12,
                        .width = 768,
                        .context = 1024,
                        .vocabulary = 50304 };
    gpu g;
    const bench_option options[] = { { "--device", BENCH_TEXT, &asked.device, 0, 0 },
                                     { "--part", BENCH_TEXT, &asked.parts, 0, 0 },
                                     { "--m", BENCH_INT, &asked.m, 1, 1 << 20 },
                                     { "--n", BENCH_INT, &asked.n, 1, 1 << 20 },
                                     { "--k", BENCH_INT, &asked.k, 1, 1 << 20 },
                                     { "--ta", BENCH_INT, &asked.trans_a, 0, 1 },
                                     { "--tb", BENCH_INT, &asked.trans_b, 0, 1 },
                                     { "--kernel", BENCH_TEXT, &asked.kernel, 0, 0 },
                                     { "--mib", BENCH_INT, &asked.mib, 1, 4096 },
                                     { "--layers", BENCH_INT, &asked.layers, 1, 1000 },
                                     { "--width", BENCH_INT, &asked.width, 1, 1 << 16 },
                                     { "--context", BENCH_INT, &asked.context, 1, 1 << 20 },
                                     { "--vocabulary", BENCH_INT, &asked.vocabulary, 2, 1 << 24 },
                                     { "--batch", BENCH_INT, &asked.batch, 1, 1 << 16 },
                                     { "--steps", BENCH_INT, &asked.steps, 1, 1 << 20 },
                                     { "--dtype", BENCH_TEXT, &asked.dtype, 0, 0 },
                                     { "--profile", BENCH_TEXT, &asked.profile, 0, 0 },
                                     BENCH_COMMON_OPTIONS(asked.common) };
    bench_parse(argc, argv, "gpu", usage, options);
    if (!asked.n) asked.n = asked.m;
    if (!asked.k) asked.k = asked.n;
    if (asked.common.quick && asked.common.seconds > 0.05) asked.common.seconds = 0.05;
    if (!gpu_precision_of(&asked)) {
        fprintf(stderr, "gpu: --dtype is f32, tf32, bf16 or f16, not \"%s\"\n", asked.dtype);
        return 2;
    }
    unsigned parts = asked.parts ? named_parts(asked.parts) : 0;
    if (asked.parts && !parts) return 2;
    if (!gpu_find(&g, &asked)) return 0;
    for (int i = 0; i < GPU_PARTS && !asked.parts; i++)
        if (asked.m ? i == 0 : g.info.gpu || gpu_parts[i].on_cpus) parts |= 1u << i;
    printf("# gpu: %s: %s, %d units of %d MHz, %s, %s\n", g.info.id, g.info.name, g.info.compute_units,
           g.info.clock, g.info.features, g.info.driver);
    for (int i = 0; i < GPU_PARTS; i++)
        if (parts >> i & 1) gpu_parts[i].run(&g);
    return 0;
}
