/* fake_cublaslt: what gpu/tensor_lt.cuh calls of cuBLASLt, on the cards of tests/gpu/fake_cuda: matrices by
   columns in f32, f16 or bf16, sums in f32, a bias for each row. What is asked for otherwise than the library
   has it ends the program. FAKE_CUBLASLT=refuses: there is no algorithm for any product. When a handle is
   destroyed it says how many products there were, and how many of them had a bias. */
#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { R_32F = 0, R_16F = 2, R_16BF = 14, COMPUTE_32F = 68, COMPUTE_32F_FAST_TF32 = 77 };
enum { DESC_TRANSA = 3, DESC_EPILOGUE = 7, DESC_BIAS_POINTER = 8 };
enum { EPILOGUE_DEFAULT = 1, EPILOGUE_BIAS = 4 };
enum { PREFERENCE_WORKSPACE = 1, PREFERENCE_ALIGNMENT_A = 5 };
enum { NOT_SUPPORTED = 15 };

typedef struct desc {
    int compute;
    int32_t trans_a;
    uint32_t epilogue;
    const float *bias;
} desc;

typedef struct layout {
    int type;
    uint64_t rows, columns;
    int64_t ld;
} layout;

typedef struct preference {
    uint64_t workspace;
    uint32_t aligned[4]; /* of A, B, C, D */
} preference;

/* An algorithm is for products like that for which it was found. */
typedef struct algorithm {
    uint64_t rows, columns, k;
    uint32_t type, epilogue;
    uint32_t aligned[4];
    uint32_t bias_aligned, reserved;
    uint64_t workspace;
} algorithm;

typedef struct found {
    algorithm own;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} found;

static int products, biases;

static void need(bool ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "fake_cublaslt: %s\n", what);
    abort();
}

static void *make(size_t bytes)
{
    void *p = calloc(1, bytes);
    need(p != NULL, "no memory left");
    return p;
}

int cublasLtCreate(void **handle);
int cublasLtCreate(void **handle)
{
    *handle = make(1);
    return 0;
}

int cublasLtDestroy(void *handle);
int cublasLtDestroy(void *handle)
{
    free(handle);
    printf("fake_cublaslt: %d products, %d with a bias\n", products, biases);
    return 0;
}

int cublasLtMatmulDescCreate(desc **d, int compute, int scale);
int cublasLtMatmulDescCreate(desc **d, int compute, int scale)
{
    need((compute == COMPUTE_32F || compute == COMPUTE_32F_FAST_TF32) && scale == R_32F,
         "sums aren't in f32");
    *d = make(sizeof **d);
    (*d)->compute = compute, (*d)->epilogue = EPILOGUE_DEFAULT;
    return 0;
}

int cublasLtMatmulDescDestroy(desc *d);
int cublasLtMatmulDescDestroy(desc *d)
{
    free(d);
    return 0;
}

int cublasLtMatmulDescSetAttribute(desc *d, int attribute, const void *value, size_t size);
int cublasLtMatmulDescSetAttribute(desc *d, int attribute, const void *value, size_t size)
{
    void *to = attribute == DESC_TRANSA         ? (void *)&d->trans_a
               : attribute == DESC_EPILOGUE     ? (void *)&d->epilogue
               : attribute == DESC_BIAS_POINTER ? (void *)&d->bias
                                                : NULL;
    need(to && size == (attribute == DESC_BIAS_POINTER ? sizeof(void *) : 4),
         "no such attribute of a product");
    memcpy(to, value, size);
    return 0;
}

int cublasLtMatrixLayoutCreate(layout **l, int type, uint64_t rows, uint64_t columns, int64_t ld);
int cublasLtMatrixLayoutCreate(layout **l, int type, uint64_t rows, uint64_t columns, int64_t ld)
{
    need(type == R_32F || type == R_16F || type == R_16BF, "no such type");
    need(rows > 0 && columns > 0 && ld >= (int64_t)rows, "columns overlap");
    *l = make(sizeof **l);
    **l = (layout){ type, rows, columns, ld };
    return 0;
}

int cublasLtMatrixLayoutDestroy(layout *l);
int cublasLtMatrixLayoutDestroy(layout *l)
{
    free(l);
    return 0;
}

int cublasLtMatmulPreferenceCreate(preference **p);
int cublasLtMatmulPreferenceCreate(preference **p)
{
    *p = make(sizeof **p);
    for (int i = 0; i < 4; i++) (*p)->aligned[i] = 256;
    return 0;
}

int cublasLtMatmulPreferenceDestroy(preference *p);
int cublasLtMatmulPreferenceDestroy(preference *p)
{
    free(p);
    return 0;
}

int cublasLtMatmulPreferenceSetAttribute(preference *p, int attribute, const void *value, size_t size);
int cublasLtMatmulPreferenceSetAttribute(preference *p, int attribute, const void *value, size_t size)
{
    const int matrix = attribute - PREFERENCE_ALIGNMENT_A;
    const bool workspace = attribute == PREFERENCE_WORKSPACE;
    need(workspace ? size == 8 : matrix >= 0 && matrix < 4 && size == 4, "no such preference");
    memcpy(workspace ? (void *)&p->workspace : (void *)&p->aligned[matrix], value, size);
    return 0;
}

static uint32_t alignment(const void *address)
{
    uint32_t most = 256;
    while ((uintptr_t)address % most) most /= 2;
    return most;
}

/* What such a product is; it is one of op(A) = A^T. */
static algorithm algorithm_for(const desc *d, const layout *a, const layout *b, const layout *c)
{
    algorithm own;
    memset(&own, 0, sizeof own);
    need(d->trans_a == 1 && a->rows == b->rows, "op(A) and B have different ks");
    need(c->rows == a->columns && c->columns == b->columns, "C isn't of the product's size");
    need(a->type == b->type && c->type == R_32F, "these types can't be multiplied");
    need((d->compute == COMPUTE_32F_FAST_TF32) == (a->type == R_32F),
         "f32 is multiplied as TF32, and nothing else");
    need((d->epilogue == EPILOGUE_BIAS) == (d->bias != NULL),
         "a bias without its epilogue, or the other way round");
    own.rows = c->rows, own.columns = c->columns, own.k = a->rows;
    own.type = (uint32_t)a->type, own.epilogue = d->epilogue;
    return own;
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, const desc *d, const layout *a, const layout *b,
                                   const layout *c, const layout *to, const preference *p, int wanted,
                                   found *list, int *count);
int cublasLtMatmulAlgoGetHeuristic(void *handle, const desc *d, const layout *a, const layout *b,
                                   const layout *c, const layout *to, const preference *p, int wanted,
                                   found *list, int *count)
{
    const char *mode = getenv("FAKE_CUBLASLT");
    need(handle && c == to && wanted >= 1, "what is asked for isn't foreseen");
    *count = 0;
    if (mode && strcmp(mode, "refuses") == 0) return NOT_SUPPORTED;
    memset(list, 0, sizeof *list);
    list->own = algorithm_for(d, a, b, c);
    memcpy(list->own.aligned, p->aligned, sizeof p->aligned);
    list->own.bias_aligned = d->bias ? alignment(d->bias) : 0;
    list->own.workspace = p->workspace;
    *count = 1;
    return 0;
}

static float at(const void *matrix, const layout *l, uint64_t row, uint64_t column)
{
    const uint64_t i = row + column * (uint64_t)l->ld;
    if (l->type == R_32F) return ((const float *)matrix)[i];
    const uint16_t half = ((const uint16_t *)matrix)[i];
    uint32_t bits = (uint32_t)half << 16;
    float x;
    if (l->type == R_16F) {
        const int exponent = half >> 10 & 31, steps = half & 1023;
        const float size =
            exponent ? ldexpf((float)(1024 + steps), exponent - 25) : ldexpf((float)steps, -24);
        return exponent == 31  ? (steps           ? NAN
                                  : half & 0x8000 ? -INFINITY
                                                  : INFINITY)
               : half & 0x8000 ? -size
                               : size;
    }
    memcpy(&x, &bits, sizeof x);
    return x;
}

int cublasLtMatmul(void *handle, const desc *d, const float *alpha, const void *a, const layout *la,
                   const void *b, const layout *lb, const float *beta, const float *c, const layout *lc,
                   float *to, const layout *lto, const algorithm *own, void *workspace, size_t bytes,
                   void *stream);
int cublasLtMatmul(void *handle, const desc *d, const float *alpha, const void *a, const layout *la,
                   const void *b, const layout *lb, const float *beta, const float *c, const layout *lc,
                   float *to, const layout *lto, const algorithm *own, void *workspace, size_t bytes,
                   void *stream)
{
    bool (*finish)(void *stream);
    void *function = dlsym(RTLD_DEFAULT, "fake_cuda_finish");
    algorithm now = algorithm_for(d, la, lb, lc);
    const void *places[] = { a, b, c, to };
    memcpy(&finish, &function, sizeof finish);
    need(handle && c == to && lc == lto && finish && finish(stream), "no card, or C and D apart");
    need(workspace && bytes >= own->workspace, "the workspace is smaller than it was said to be");
    for (int i = 0; i < 4; i++)
        need(alignment(places[i]) >= own->aligned[i], "a matrix isn't aligned as was said");
    need((d->bias ? alignment(d->bias) : 0) >= own->bias_aligned, "the bias isn't aligned as was said");
    memcpy(now.aligned, own->aligned, sizeof now.aligned);
    now.bias_aligned = own->bias_aligned, now.workspace = own->workspace;
    need(memcmp(&now, own, sizeof now) == 0, "the algorithm is another product's");
    products++, biases += d->bias != NULL;
    for (uint64_t column = 0; column < lc->columns; column++)
        for (uint64_t row = 0; row < lc->rows; row++) {
            float sum = 0;
            for (uint64_t k = 0; k < la->rows; k++) sum += at(a, la, k, row) * at(b, lb, k, column);
            float *out = &to[row + column * (uint64_t)lc->ld];
            const float old = *beta == 0.0f ? 0.0f : *beta * *out;
            *out = *alpha * sum + old + (d->bias ? d->bias[row] : 0.0f);
        }
    return 0;
}
