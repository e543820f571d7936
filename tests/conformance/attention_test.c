/* Attention, its layer and rotary positions against what PyTorch computed. */
#include "ops/op_attention.h"
#include "ops/op_rotary.h"

#include "conformance.h"
#include "attention_cases.h"
enum { CASES = sizeof attention_cases / sizeof attention_cases[0] };

static bool is_lengths(const conformance_case *c, int t)
{
    return t < c->tensors && strcmp(c->tensor[t].kind, "i32") == 0;
}

static dml_node *build_attention(const conformance_case *c, dml_node *const *tensor)
{
    const float *n = c->number;
    const dml_attention_options o = { .kv_heads = (int)n[1],
                                      .causal = n[2] != 0,
                                      .window = (int)n[3],
                                      .scale = n[4],
                                      .lengths = is_lengths(c, 3) ? tensor[3] : NULL };
    return dml_attention(tensor[0], tensor[1], tensor[2], (int)n[0], &o);
}

static dml_node *build_module(const conformance_case *c, dml_node *const *tensor)
{
    const float *n = c->number;
    const bool cross = n[3] != 0, padded = is_lengths(c, 1);
    dml_node *const *p = tensor + 1 + cross + padded;
    const dml_multi_head_attention_options o = { .causal = n[1] != 0,
                                                 .memory = cross ? tensor[1] : NULL,
                                                 .lengths = padded ? tensor[1] : NULL };
    if (n[2] == 0) return dml_multi_head_attention_with(tensor[0], (int)n[0], p[0], NULL, p[1], NULL, &o);
    return dml_multi_head_attention_with(tensor[0], (int)n[0], p[0], p[1], p[2], p[3], &o);
}

static dml_node *build_rotary(const conformance_case *c, dml_node *const *tensor)
{
    const float *n = c->number;
    const dml_rotary_options o = {
        .base = n[1], .offset = (int)n[2], .rotated = (int)n[3], .interleaved = n[4] != 0
    };
    return dml_rotary(tensor[0], (int)n[0], &o);
}

static void pytorch(void)
{
    for (int i = 0; i < CASES; i++) {
        const conformance_case *c = &attention_cases[i];
        conformance_run(c, i,
                        strcmp(c->name, "attention") == 0 ? build_attention
                        : strcmp(c->name, "module") == 0  ? build_module
                                                          : build_rotary,
                        4e-6);
    }
}
EACH_BACKEND(pytorch)

int main(void)
{
    RUN_EACH(pytorch);
    return test_report("conformance/attention");
}
